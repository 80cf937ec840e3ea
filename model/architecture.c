#include "model/architecture.h"

#include "model/architecture_config.h"

#include <math.h>
#include <string.h>

static const struct rk_family_row families[RK_FAMILY_COUNT] = {
    {RK_FAMILY_LLAMA, "Llama", {"llama", NULL}, rk_config_read_llama, NULL},
    {RK_FAMILY_QWEN3, "Qwen3", {"qwen3", NULL}, rk_config_read_qwen3, NULL},
    {RK_FAMILY_MIXTRAL, "Mixtral", {"mixtral", NULL}, rk_config_read_mixtral, NULL},
    {RK_FAMILY_OLMOE, "OLMoE", {"olmoe", NULL}, rk_config_read_olmoe, NULL},
    {RK_FAMILY_QWEN2_MOE, "Qwen2-MoE", {"qwen2_moe", NULL}, rk_config_read_qwen2_moe, NULL},
    {RK_FAMILY_QWEN3_MOE, "Qwen3-MoE", {"qwen3_moe", NULL}, rk_config_read_qwen3_moe, NULL},
    {RK_FAMILY_DEEPSEEK_V2,
     "DeepSeek-V2",
     {"deepseek_v2", NULL},
     rk_config_read_deepseek_v2,
     "multi-head latent attention"},
    {RK_FAMILY_DEEPSEEK_V3,
     "DeepSeek-V3",
     {"deepseek_v3", NULL},
     rk_config_read_deepseek_v3,
     "multi-head latent attention"},
    {RK_FAMILY_KIMI_K2, "Kimi-K2", {"kimi_k2", NULL}, rk_config_read_deepseek_v3, "multi-head latent attention"},
    {RK_FAMILY_GLM4_MOE, "GLM-4-MoE", {"glm4_moe", NULL}, rk_config_read_glm4_moe, NULL},
    {RK_FAMILY_GPT_OSS, "gpt-oss", {"gpt_oss", NULL}, rk_config_read_gpt_oss, "the gpt-oss form of SwiGLU"},
    {RK_FAMILY_LLAMA4,
     "Llama-4",
     {"llama4_text", "llama4", NULL},
     rk_config_read_llama4,
     "interleaved attention without rotation"},
    {RK_FAMILY_MINIMAX_M2, "MiniMax-M2", {"minimax_m2", NULL}, rk_config_read_minimax_m2, NULL},
};

const struct rk_family_row *rk_family_row(enum rk_family family) {
    return &families[family];
}

static bool any_layer(const uint8_t *flags, int64_t layers) {
    return memchr(flags, 1, (size_t)layers) != NULL;
}

enum rk_status rk_architecture_runnable(const struct rk_architecture *architecture, struct rk_error *error) {
    const struct rk_architecture *a = architecture;
    const char *family_reason = rk_family_row(a->family)->not_runnable;
    const bool mla = a->attention == RK_ATTENTION_MLA;
    const struct {
        bool present;
        const char *what;
        const char *detail;
    } lacks[] = {
        {family_reason != NULL, family_reason, ""},
        {mla && family_reason == NULL, "multi-head latent attention", ""},
        {strcmp(a->activation, "silu") != 0, "hidden_act ", a->activation},
        {a->embedding_norm, "embedding_norm", ""},
        {a->block_norms != 2, "peri_norm", ""},
        {a->qkv_bias, "bias of query, key and value projections", ""},
        {a->output_bias, "bias of the attention output", ""},
        {a->attention_sinks, "attention sinks", ""},
        {a->span == RK_SPAN_SLIDING && any_layer(a->limited, a->layers), "sliding-window attention", ""},
        {a->span == RK_SPAN_CHUNKED && any_layer(a->limited, a->layers), "chunked attention", ""},
        {any_layer(a->without_rope, a->layers), "layers without RoPE", ""},
        {a->rope_scaling[0] != '\0', "rope_scaling ", a->rope_scaling},
        {a->rotary_fraction < 1.0, "partial rotation (partial_rotary_factor below 1)", ""},
        {a->mlp_bias, "mlp_bias", ""},
        {a->shared_gate, "the gate of the shared experts", ""},
        {a->router_bias, "bias of the router", ""},
        {a->expert_bias, "biases of the experts", ""},
        {a->score_on_input, "router scores on the experts' input", ""},
        {a->correction_bias, "the router's correction bias (topk_method noaux_tc; greedy has none)", ""},
        {a->expert_groups > 1, "group-limited routing", ""},
        {a->swiglu_limit > 0.0, "swiglu_limit", ""},
        {a->mtp_layers > 0, "multi-token-prediction layers (num_nextn_predict_layers 0 leaves them out)", ""},
        {a->forward_only_keys[0] != '\0', "", a->forward_only_keys},
    };
    struct rk_text reasons = {0};
    for (size_t i = 0; i < sizeof lacks / sizeof lacks[0]; i++) {
        if (lacks[i].present) {
            rk_text_format(&reasons, "%s%s%s", reasons.length ? "; " : "", lacks[i].what, lacks[i].detail);
        }
    }
    enum rk_status status = RK_OK;
    if (reasons.failed) {
        status = rk_fail(error, RK_ERROR, "%s: out of memory", a->name);
    } else if (reasons.length > 0) {
        status = rk_fail(error, RK_USAGE,
                         "%s (%s): can be planned but not run; the executor does not have: %s. Take a model without "
                         "them, or remove them from its config",
                         a->name, rk_family_row(a->family)->name, reasons.data);
    }
    rk_text_free(&reasons);
    return status;
}

/* The largest sizes that are believed. They keep every sum of a few products within a double's exact integers only
 * where that matters; the parameter count itself is bounded below. */
#define SIZE_MAXIMUM ((int64_t)1 << 24)
#define PARAMETERS_MAXIMUM 1e17 /* times 64 bytes stays below 2^63 */

struct size_rule {
    const char *what;
    int64_t value;
    int64_t minimum;
    int64_t maximum;
};

static enum rk_status check_sizes(const char *name, const struct size_rule *rules, size_t count,
                                  struct rk_error *error) {
    for (size_t i = 0; i < count; i++) {
        if (rules[i].value < rules[i].minimum || rules[i].value > rules[i].maximum) {
            return rk_fail(error, RK_USAGE, "%s: %s is %lld; it must be between %lld and %lld", name, rules[i].what,
                           (long long)rules[i].value, (long long)rules[i].minimum, (long long)rules[i].maximum);
        }
    }
    return RK_OK;
}

static enum rk_status check_attention(const char *name, const struct rk_architecture *a, struct rk_error *error) {
    const bool mla = a->attention == RK_ATTENTION_MLA;
    const int64_t limit = mla ? SIZE_MAXIMUM : 0;
    const struct size_rule rules[] = {
        {"num_attention_heads", a->heads, 1, 65536},
        {"num_key_value_heads", a->kv_heads, 1, a->heads},
        {"head_dim", a->head_dim, 2, 65536},
        {"q_lora_rank", a->q_lora_rank, 0, limit},
        {"kv_lora_rank", a->kv_lora_rank, mla ? 1 : 0, limit},
        {"qk_nope_head_dim", a->qk_nope_head_dim, mla ? 1 : 0, mla ? 65536 : 0},
        {"qk_rope_head_dim", a->qk_rope_head_dim, mla ? 2 : 0, mla ? 65536 : 0},
        {"v_head_dim", a->v_head_dim, mla ? 1 : 0, mla ? 65536 : 0},
        {"the attention span (sliding_window, attention_chunk_size)", a->span_tokens, a->span == RK_SPAN_FULL ? 0 : 1,
         a->span == RK_SPAN_FULL ? 0 : (int64_t)1 << 40},
    };
    enum rk_status status = check_sizes(name, rules, sizeof rules / sizeof rules[0], error);
    if (status != RK_OK) {
        return status;
    }
    if (a->heads % a->kv_heads != 0) {
        return rk_fail(error, RK_USAGE,
                       "%s: num_attention_heads is %lld, not a multiple of num_key_value_heads, %lld; every key-value "
                       "head serves the same number of query heads",
                       name, (long long)a->heads, (long long)a->kv_heads);
    }
    const int64_t rotated = mla ? a->qk_rope_head_dim : a->head_dim;
    if (rotated % 2 != 0) {
        return rk_fail(error, RK_USAGE, "%s: %s is %lld; RoPE rotates pairs, so it must be even", name,
                       mla ? "qk_rope_head_dim" : "head_dim", (long long)rotated);
    }
    return RK_OK;
}

static enum rk_status check_experts(const char *name, const struct rk_architecture *a, struct rk_error *error) {
    const bool moe = a->moe_layers > 0;
    const struct size_rule rules[] = {
        {"the number of routed experts", a->experts, moe ? 1 : 0, moe ? 65536 : 0},
        {"num_experts_per_tok", a->top_k, moe ? 1 : 0, moe ? a->experts : 0},
        {"the width of a routed expert", a->expert_hidden, moe ? 1 : 0, moe ? SIZE_MAXIMUM : 0},
        {"the width of the shared experts", a->shared_hidden, 0, moe ? SIZE_MAXIMUM : 0},
        {"n_group", a->expert_groups, 1, moe ? a->experts : 1},
        {"topk_group", a->top_groups, 1, a->expert_groups},
    };
    enum rk_status status = check_sizes(name, rules, sizeof rules / sizeof rules[0], error);
    if (status != RK_OK) {
        return status;
    }
    if (moe && a->experts % a->expert_groups != 0) {
        return rk_fail(error, RK_USAGE, "%s: the number of routed experts, %lld, is not a multiple of n_group, %lld",
                       name, (long long)a->experts, (long long)a->expert_groups);
    }
    if (moe && a->top_k > a->experts / a->expert_groups * a->top_groups) {
        return rk_fail(error, RK_USAGE,
                       "%s: num_experts_per_tok is %lld, but topk_group %lld of n_group %lld leave only %lld experts",
                       name, (long long)a->top_k, (long long)a->top_groups, (long long)a->expert_groups,
                       (long long)(a->experts / a->expert_groups * a->top_groups));
    }
    return RK_OK;
}

/* An upper bound in floating point, of the largest products only: cannot overflow, unlike the exact count. */
static double parameter_bound(const struct rk_architecture *a) {
    const double hidden = (double)a->hidden;
    const double heads = (double)a->heads;
    const double lora = (double)(a->q_lora_rank + a->kv_lora_rank);
    const double width = heads * (double)(a->head_dim + a->v_head_dim + a->qk_nope_head_dim + 1);
    const double attention = (4 * hidden + lora + 4) * (width + 4) + (hidden + 4) * (lora + (double)a->head_dim + 4);
    const double mlp = 4 * (hidden + 1);
    const double dense = (double)a->dense_layers * mlp * (double)a->dense_hidden;
    const double per_moe = mlp * ((double)a->experts * ((double)a->expert_hidden + 1) + (double)a->shared_hidden + 1);
    return (double)a->layers * (attention + 8 * hidden) + dense + (double)a->moe_layers * per_moe +
           2 * hidden * ((double)a->vocabulary + 2) + 4 * hidden * hidden;
}

static enum rk_status check_layers(const char *name, const struct rk_architecture *a, struct rk_error *error) {
    int64_t moe_layers = 0;
    for (int64_t layer = 0; layer < a->layers; layer++) {
        moe_layers += a->block[layer] == RK_BLOCK_MOE;
    }
    if (moe_layers != a->moe_layers || a->layers - moe_layers != a->dense_layers) {
        return rk_fail(error, RK_USAGE, "%s: %lld MoE and %lld dense layers are stated, but %lld of %lld are MoE", name,
                       (long long)a->moe_layers, (long long)a->dense_layers, (long long)moe_layers,
                       (long long)a->layers);
    }
    return RK_OK;
}

enum rk_status rk_architecture_check(const char *name, const struct rk_architecture *architecture,
                                     struct rk_error *error) {
    const struct rk_architecture *a = architecture;
    const bool dense = a->dense_layers > 0;
    const struct size_rule rules[] = {
        {"num_hidden_layers", a->layers, 1, RK_LAYERS_MAX},
        {"hidden_size", a->hidden, 1, SIZE_MAXIMUM},
        {"vocab_size", a->vocabulary, 1, (int64_t)1 << 31},
        {"max_position_embeddings", a->max_positions, 0, (int64_t)1 << 40},
        {"the number of norms in a block", a->block_norms, 2, 4},
        {"the width of a dense layer's MLP", a->dense_hidden, dense ? 1 : 0, dense ? SIZE_MAXIMUM : 0},
        {"the number of multi-token-prediction layers", a->mtp_layers, 0, RK_LAYERS_MAX},
    };
    enum rk_status status = check_sizes(name, rules, sizeof rules / sizeof rules[0], error);
    if (status == RK_OK) {
        status = check_layers(name, a, error);
    }
    if (status == RK_OK) {
        status = check_attention(name, a, error);
    }
    if (status == RK_OK) {
        status = check_experts(name, a, error);
    }
    if (status != RK_OK) {
        return status;
    }
    if (!(a->norm_epsilon > 0.0 && a->norm_epsilon < 1.0 && a->rope_theta > 0.0 && isfinite(a->rope_theta) &&
          a->rotary_fraction > 0.0 && a->rotary_fraction <= 1.0 && a->routed_scaling > 0.0 &&
          isfinite(a->routed_scaling))) {
        return rk_fail(error, RK_USAGE,
                       "%s: rms_norm_eps %g, rope_theta %g, partial_rotary_factor %g and routed_scaling_factor %g must "
                       "be positive and finite, and the third at most 1",
                       name, a->norm_epsilon, a->rope_theta, a->rotary_fraction, a->routed_scaling);
    }
    const double bound = parameter_bound(a) * (double)(1 + a->mtp_layers);
    if (!(bound <= PARAMETERS_MAXIMUM)) {
        return rk_fail(error, RK_USAGE,
                       "%s: the sizes multiply to about %.3g parameters, more than the %.0e that byte counts can hold; "
                       "check hidden_size, vocab_size, the number of experts and their width",
                       name, bound, PARAMETERS_MAXIMUM);
    }
    return RK_OK;
}

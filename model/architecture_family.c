/* The keys that only some families have. Widths and counts have no defaults here: a file without them is refused. */
#include "model/architecture_config.h"

#include <string.h>

static const char *const scorings[] = {"softmax", "sigmoid", NULL};

static void defaults(struct rk_config *config, double rope_theta, double norm_epsilon) {
    config->architecture->rope_theta = rope_theta;
    config->architecture->norm_epsilon = norm_epsilon;
}

/* Where the library has one flag for the biases of all four projections. */
static void attention_bias(struct rk_config *config) {
    bool bias = config->architecture->qkv_bias;
    rk_config_optional_flag(config, "attention_bias", &bias);
    config->architecture->qkv_bias = bias;
    config->architecture->output_bias = bias;
}

static void routed_experts(struct rk_config *config, const char *experts_key, const char *width_key) {
    struct rk_architecture *a = config->architecture;
    rk_config_size(config, experts_key, &a->experts);
    rk_config_size(config, "num_experts_per_tok", &a->top_k);
    rk_config_size(config, width_key, &a->expert_hidden);
    if (config->status == RK_OK && a->top_k > a->experts) {
        rk_config_fail(config,
                       "num_experts_per_tok is %lld, but %s is %lld; a token cannot have more experts than exist",
                       (long long)a->top_k, experts_key, (long long)a->experts);
    }
}

static void all_layers_moe(struct rk_architecture *a) {
    memset(a->block, RK_BLOCK_MOE, (size_t)a->layers);
}

/* Dense layers' width is required only when there are such layers. */
static void dense_width(struct rk_config *config, const char *key) {
    struct rk_architecture *a = config->architecture;
    if (config->status == RK_OK && memchr(a->block, RK_BLOCK_DENSE, (size_t)a->layers) != NULL) {
        rk_config_size(config, key, &a->dense_hidden);
    } else {
        int64_t unused = 0;
        rk_config_optional_size(config, key, 0, &unused);
    }
}

void rk_config_read_llama(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    defaults(config, 10000.0, 1e-6);
    rk_config_grouped_query(config, true);
    rk_config_size(config, "intermediate_size", &a->dense_hidden);
    attention_bias(config);
    rk_config_optional_flag(config, "mlp_bias", &a->mlp_bias);
    rk_config_layer_types(config);
}

/* use_sliding_window decides whether sliding_window means anything; from max_window_layers on, or everywhere. */
static void qwen_window(struct rk_config *config, bool layers_before_are_full) {
    struct rk_architecture *a = config->architecture;
    bool use = false;
    int64_t window = 0;
    int64_t first = layers_before_are_full ? a->layers : 0;
    rk_config_optional_flag(config, "use_sliding_window", &use);
    rk_config_optional_size(config, "sliding_window", 1, &window);
    rk_config_optional_size(config, "max_window_layers", 0, &first);
    const bool listed = rk_config_layer_types(config);
    if (!use || config->status != RK_OK) {
        if (listed && a->span != RK_SPAN_FULL) {
            rk_config_fail(config, "layer_types has limited layers, but use_sliding_window is not true");
        }
        return;
    }
    if (window == 0) {
        rk_config_fail(config, "use_sliding_window is true, but sliding_window is missing");
    }
    a->span = RK_SPAN_SLIDING;
    a->span_tokens = window;
    for (int64_t layer = 0; layer < a->layers && !listed; layer++) {
        a->limited[layer] = !layers_before_are_full || layer >= first;
    }
}

void rk_config_read_qwen3(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    defaults(config, 10000.0, 1e-6);
    rk_config_grouped_query(config, false);
    a->qk_norm = RK_QK_NORM_PER_HEAD;
    attention_bias(config);
    rk_config_size(config, "intermediate_size", &a->dense_hidden);
    qwen_window(config, true);
}

void rk_config_read_mixtral(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    defaults(config, 1e6, 1e-5);
    rk_config_grouped_query(config, true);
    routed_experts(config, "num_local_experts", "intermediate_size");
    all_layers_moe(a);
    a->normalise_top_k = true;
    rk_config_optional_size(config, "sliding_window", 1, &a->span_tokens);
    if (a->span_tokens > 0) {
        a->span = RK_SPAN_SLIDING;
        memset(a->limited, 1, (size_t)a->layers);
    }
}

void rk_config_read_olmoe(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    defaults(config, 10000.0, 1e-5);
    rk_config_grouped_query(config, true);
    a->qk_norm = RK_QK_NORM_FULL_WIDTH;
    attention_bias(config);
    routed_experts(config, "num_experts", "intermediate_size");
    all_layers_moe(a);
    rk_config_optional_flag(config, "norm_topk_prob", &a->normalise_top_k);
}

/* A layer is MoE unless mlp_only_layers names it, and only every decoder_sparse_step-th is. */
static void qwen_blocks(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    int64_t step = 1;
    rk_config_optional_size(config, "decoder_sparse_step", 1, &step);
    if (config->status != RK_OK) {
        return;
    }
    for (int64_t layer = 0; layer < a->layers; layer++) {
        a->block[layer] = (layer + 1) % step == 0 ? RK_BLOCK_MOE : RK_BLOCK_DENSE;
    }
    const cJSON *dense = NULL;
    if (!rk_json_has(&config->object, "mlp_only_layers")) {
        return;
    }
    config->status = rk_json_array(&config->object, "mlp_only_layers", &dense, config->error);
    for (const cJSON *item = config->status == RK_OK ? dense->child : NULL; item != NULL; item = item->next) {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < (double)a->layers) ||
            (double)(int64_t)item->valuedouble != item->valuedouble) {
            rk_config_fail(config, "mlp_only_layers must hold whole numbers from 0 to %lld", (long long)a->layers - 1);
            return;
        }
        a->block[(int64_t)item->valuedouble] = RK_BLOCK_DENSE;
    }
}

void rk_config_read_qwen2_moe(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    defaults(config, 10000.0, 1e-6);
    rk_config_grouped_query(config, true);
    a->qkv_bias = true;
    rk_config_optional_flag(config, "qkv_bias", &a->qkv_bias);
    routed_experts(config, "num_experts", "moe_intermediate_size");
    rk_config_size(config, "shared_expert_intermediate_size", &a->shared_hidden);
    a->shared_gate = true;
    qwen_blocks(config);
    dense_width(config, "intermediate_size");
    rk_config_optional_flag(config, "norm_topk_prob", &a->normalise_top_k);
    qwen_window(config, true);
}

void rk_config_read_qwen3_moe(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    defaults(config, 10000.0, 1e-6);
    rk_config_grouped_query(config, false);
    a->qk_norm = RK_QK_NORM_PER_HEAD;
    attention_bias(config);
    routed_experts(config, "num_experts", "moe_intermediate_size");
    qwen_blocks(config);
    dense_width(config, "intermediate_size");
    rk_config_optional_flag(config, "norm_topk_prob", &a->normalise_top_k);
    qwen_window(config, false);
}

static void latent_attention(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    a->attention = RK_ATTENTION_MLA;
    rk_config_optional_size(config, "q_lora_rank", 0, &a->q_lora_rank);
    rk_config_size(config, "kv_lora_rank", &a->kv_lora_rank);
    rk_config_size(config, "qk_nope_head_dim", &a->qk_nope_head_dim);
    rk_config_size(config, "qk_rope_head_dim", &a->qk_rope_head_dim);
    rk_config_size(config, "v_head_dim", &a->v_head_dim);
    a->head_dim = a->qk_nope_head_dim + a->qk_rope_head_dim;
    a->kv_heads = a->heads;
    int64_t unused = 0; /* latent attention has no key-value heads; files state the query heads again */
    rk_config_optional_size(config, "num_key_value_heads", 1, &unused);
    rk_config_optional_size(config, "head_dim", 1, &unused);
    attention_bias(config);
    if (a->q_lora_rank == 0 && a->qkv_bias) {
        rk_config_fail(config, "attention_bias without q_lora_rank is not modelled");
    }
}

/* The first first_k_dense_replace layers are dense, of the others every moe_layer_freq-th is MoE. */
static void dense_first(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    int64_t first = 0;
    int64_t frequency = 1;
    if (config->status != RK_OK) {
        return;
    }
    config->status = rk_json_integer(&config->object, "first_k_dense_replace", 0, a->layers, &first, config->error);
    rk_config_optional_size(config, "moe_layer_freq", 1, &frequency);
    for (int64_t layer = 0; layer < a->layers && config->status == RK_OK; layer++) {
        a->block[layer] = layer >= first && layer % frequency == 0 ? RK_BLOCK_MOE : RK_BLOCK_DENSE;
    }
}

static void shared_experts(struct rk_config *config, bool required) {
    struct rk_architecture *a = config->architecture;
    int64_t shared = 0;
    if (required && config->status == RK_OK) {
        config->status = rk_json_integer(&config->object, "n_shared_experts", 0, 65536, &shared, config->error);
    } else {
        rk_config_optional_size(config, "n_shared_experts", 0, &shared);
    }
    if (shared > 65536) {
        rk_config_fail(config, "n_shared_experts is %lld; it must be at most 65536", (long long)shared);
        return;
    }
    a->shared_hidden = shared * a->expert_hidden;
}

/* topk_method: "greedy" takes the best scores; "group_limited_greedy" takes them from the best groups, a group being
 * judged by its best expert; "noaux_tc" adds the correction bias for selection. */
static void selection(struct rk_config *config, int otherwise) {
    static const char *const methods[] = {"greedy", "group_limited_greedy", "noaux_tc", NULL};
    struct rk_architecture *a = config->architecture;
    const int method = rk_config_optional_choice(config, "topk_method", methods, otherwise);
    a->correction_bias = method == 2;
    rk_config_optional_size(config, "n_group", 1, &a->expert_groups);
    rk_config_optional_size(config, "topk_group", 1, &a->top_groups);
    if (method == 0 || a->expert_groups == a->top_groups) {
        a->expert_groups = 1;
        a->top_groups = 1;
    }
    rk_config_optional_number(config, "routed_scaling_factor", 1e-6, 1e6, &a->routed_scaling);
    rk_config_optional_flag(config, "norm_topk_prob", &a->normalise_top_k);
}

static void deepseek(struct rk_config *config, bool shared_required) {
    latent_attention(config);
    routed_experts(config, "n_routed_experts", "moe_intermediate_size");
    dense_first(config);
    dense_width(config, "intermediate_size");
    shared_experts(config, shared_required);
    rk_config_optional_size(config, "num_nextn_predict_layers", 0, &config->architecture->mtp_layers);
}

void rk_config_read_deepseek_v2(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    defaults(config, 10000.0, 1e-6);
    deepseek(config, false);
    a->scoring = (enum rk_scoring)rk_config_optional_choice(config, "scoring_func", scorings, RK_SCORING_SOFTMAX);
    selection(config, 0);
}

void rk_config_read_deepseek_v3(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    defaults(config, 10000.0, 1e-6);
    a->normalise_top_k = true;
    a->routed_scaling = 2.5;
    deepseek(config, true);
    a->scoring = (enum rk_scoring)rk_config_optional_choice(config, "scoring_func", scorings, RK_SCORING_SIGMOID);
    selection(config, 2);
}

void rk_config_read_glm4_moe(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    bool per_head = false;
    bool peri_norm = false;
    defaults(config, 10000.0, 1e-5);
    a->rotary_fraction = 0.5;
    a->normalise_top_k = true;
    rk_config_grouped_query(config, false);
    rk_config_optional_flag(config, "use_qk_norm", &per_head);
    a->qk_norm = per_head ? RK_QK_NORM_PER_HEAD : RK_QK_NORM_NONE;
    rk_config_optional_flag(config, "attention_bias", &a->qkv_bias);
    routed_experts(config, "n_routed_experts", "moe_intermediate_size");
    dense_first(config);
    dense_width(config, "intermediate_size");
    shared_experts(config, true);
    a->scoring = (enum rk_scoring)rk_config_optional_choice(config, "scoring_func", scorings, RK_SCORING_SIGMOID);
    selection(config, 2);
    rk_config_optional_size(config, "num_nextn_predict_layers", 0, &a->mtp_layers);
    rk_config_optional_flag(config, "peri_norm", &peri_norm);
    rk_config_optional_flag(config, "embedding_norm", &a->embedding_norm);
    a->block_norms = peri_norm ? 4 : 2;
}

void rk_config_read_gpt_oss(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    defaults(config, 150000.0, 1e-5);
    rk_config_grouped_query(config, false);
    a->qkv_bias = true;
    attention_bias(config);
    a->attention_sinks = true;
    routed_experts(config, "num_local_experts", "intermediate_size");
    int64_t alias = a->top_k;
    rk_config_optional_size(config, "experts_per_token", 1, &alias);
    if (alias != a->top_k) {
        rk_config_fail(config, "experts_per_token is %lld, but num_experts_per_tok is %lld", (long long)alias,
                       (long long)a->top_k);
    }
    all_layers_moe(a);
    a->router_bias = true;
    a->expert_bias = true;
    a->normalise_top_k = true; /* softmax over the chosen logits is the same */
    a->swiglu_limit = 7.0;
    rk_config_optional_number(config, "swiglu_limit", 0.0, 1e6, &a->swiglu_limit);
    int64_t window = 0;
    rk_config_optional_size(config, "sliding_window", 1, &window);
    if (!rk_config_layer_types(config) && window > 0) {
        a->span = RK_SPAN_SLIDING;
        for (int64_t layer = 0; layer < a->layers; layer += 2) {
            a->limited[layer] = 1;
        }
    }
    if (a->span == RK_SPAN_SLIDING && window == 0) {
        rk_config_fail(config, "layer_types has sliding layers, but sliding_window is missing");
    }
    a->span_tokens = a->span == RK_SPAN_SLIDING ? window : 0;
}

/* moe_layers lists the MoE layers, or every interleave_moe_layer_step-th is one. */
static void llama4_blocks(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    int64_t step = 1;
    rk_config_size(config, "interleave_moe_layer_step", &step);
    if (rk_json_has(&config->object, "moe_layers")) {
        rk_config_fail(config, "moe_layers is not modelled; give interleave_moe_layer_step instead");
    }
    for (int64_t layer = 0; layer < a->layers && config->status == RK_OK; layer++) {
        a->block[layer] = (layer + 1) % step == 0 ? RK_BLOCK_MOE : RK_BLOCK_DENSE;
    }
}

/* no_rope_layers holds 1 for a layer that rotates, 0 for one that does not; rotated layers attend within chunks. */
static void llama4_positions(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    int64_t interval = 4;
    int64_t chunk = 8192;
    rk_config_optional_size(config, "no_rope_layer_interval", 1, &interval);
    rk_config_optional_size(config, "attention_chunk_size", 1, &chunk);
    const bool listed = rk_json_has(&config->object, "no_rope_layers");
    const cJSON *layers = NULL;
    if (listed && config->status == RK_OK) {
        config->status = rk_json_array(&config->object, "no_rope_layers", &layers, config->error);
    }
    if (config->status != RK_OK) {
        return;
    }
    /* An empty list means the interval, as the library has it. */
    const cJSON *item = layers != NULL ? layers->child : NULL;
    const bool from_list = item != NULL;
    for (int64_t layer = 0; layer < a->layers; layer++) {
        bool rotates = (layer + 1) % interval != 0;
        if (from_list) {
            if (!cJSON_IsNumber(item) || (item->valuedouble != 0.0 && item->valuedouble != 1.0)) {
                rk_config_fail(config, "no_rope_layers must hold 0 or 1 for each of the %lld layers",
                               (long long)a->layers);
                return;
            }
            rotates = item->valuedouble == 1.0;
            item = item->next;
        }
        a->without_rope[layer] = !rotates;
        a->limited[layer] = rotates;
    }
    if (item != NULL) {
        rk_config_fail(config, "no_rope_layers is longer than num_hidden_layers, %lld", (long long)a->layers);
    }
    a->span = RK_SPAN_CHUNKED;
    a->span_tokens = chunk;
    if (rk_json_has(&config->object, "layer_types")) {
        uint8_t rotated[RK_LAYERS_MAX];
        memcpy(rotated, a->limited, sizeof rotated);
        rk_config_layer_types(config);
        if (memcmp(rotated, a->limited, sizeof rotated) != 0) {
            rk_config_fail(config, "layer_types and no_rope_layers disagree about the chunked layers");
        }
    }
}

void rk_config_read_llama4(struct rk_config *config) {
    struct rk_architecture *a = config->architecture;
    bool l2_norm = true;
    bool temperature = true;
    defaults(config, 500000.0, 1e-5);
    rk_config_grouped_query(config, false);
    attention_bias(config);
    routed_experts(config, "num_local_experts", "intermediate_size");
    a->shared_hidden = a->expert_hidden;
    a->scoring = RK_SCORING_SIGMOID;
    a->score_on_input = true;
    llama4_blocks(config);
    dense_width(config, "intermediate_size_mlp");
    llama4_positions(config);
    rk_config_optional_flag(config, "use_qk_norm", &l2_norm); /* without weights in this family */
    if (l2_norm) {
        rk_config_forward_only(config, "use_qk_norm");
    }
    rk_config_optional_flag(config, "attn_temperature_tuning", &temperature);
    if (temperature) {
        rk_config_forward_only(config, "attn_temperature_tuning");
    }
}

/* attn_type_list holds 1 for softmax attention; other kinds have other parameters. */
static void minimax_attention_types(struct rk_config *config) {
    const cJSON *types = NULL;
    if (config->status != RK_OK || !rk_json_has(&config->object, "attn_type_list")) {
        return;
    }
    config->status = rk_json_array(&config->object, "attn_type_list", &types, config->error);
    for (const cJSON *item = config->status == RK_OK ? types->child : NULL; item != NULL; item = item->next) {
        if (!cJSON_IsNumber(item) || item->valuedouble != 1.0) {
            rk_config_fail(config, "attn_type_list has a kind other than 1; only softmax attention is modelled");
            return;
        }
    }
}

void rk_config_read_minimax_m2(struct rk_config *config) {
    static const char *const norms[] = {"per_layer", "per_head", NULL};
    struct rk_architecture *a = config->architecture;
    bool normalised = true;
    bool bias = true;
    bool mtp = false;
    int64_t rotary = 0;
    int64_t modules = 0;
    int64_t module_layers = 1;
    defaults(config, 5e6, 1e-6);
    rk_config_grouped_query(config, false);
    rk_config_optional_flag(config, "use_qk_norm", &normalised);
    const int kind = rk_config_optional_choice(config, "qk_norm_type", norms, 0);
    a->qk_norm = !normalised ? RK_QK_NORM_NONE : kind == 0 ? RK_QK_NORM_FULL_WIDTH : RK_QK_NORM_PER_HEAD;
    minimax_attention_types(config);
    rk_config_optional_size(config, "rotary_dim", 1, &rotary);
    if (rotary > a->head_dim) {
        rk_config_fail(config, "rotary_dim is %lld, more than head_dim, %lld", (long long)rotary,
                       (long long)a->head_dim);
    }
    a->rotary_fraction = rotary > 0 && a->head_dim > 0 ? (double)rotary / (double)a->head_dim : 1.0;
    routed_experts(config, "num_local_experts", "intermediate_size");
    all_layers_moe(a);
    rk_config_optional_size(config, "shared_intermediate_size", 0, &a->shared_hidden);
    a->scoring = (enum rk_scoring)rk_config_optional_choice(config, "scoring_func", scorings, RK_SCORING_SIGMOID);
    rk_config_optional_flag(config, "use_routing_bias", &bias);
    a->correction_bias = bias;
    a->normalise_top_k = true;
    rk_config_optional_flag(config, "use_mtp", &mtp);
    rk_config_optional_size(config, "num_mtp_modules", 0, &modules);
    rk_config_optional_size(config, "mtp_transformer_layers", 1, &module_layers);
    if (module_layers != 1) {
        rk_config_fail(config, "mtp_transformer_layers is %lld; only 1 is modelled", (long long)module_layers);
    }
    a->mtp_layers = mtp ? modules : 0;
}

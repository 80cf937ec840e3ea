/* The reader of config.json: what each family's keys mean, and every kind of bad input. Counts are in test_count.c. */
#include "model/architecture.h"
#include "model/count.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct rk_architecture parse_warned(const char *name, const char *text, struct rk_text *warnings) {
    struct rk_architecture architecture;
    struct rk_error error;
    assert_ok(rk_architecture_parse(name, text, strlen(text), &architecture, warnings, &error), error);
    return architecture;
}

static struct rk_architecture parse(const char *text) {
    struct rk_text warnings = {0};
    struct rk_architecture architecture = parse_warned("test.json", text, &warnings);
    if (warnings.length > 0) {
        fail_msg("%s", warnings.data);
    }
    rk_text_free(&warnings);
    return architecture;
}

static void assert_refused(const char *text, size_t length, const char *part) {
    struct rk_architecture architecture = {.name = "untouched"};
    struct rk_error error = {.text = ""};
    enum rk_status status = rk_architecture_parse("bad.json", text, length, &architecture, NULL, &error);
    if (status != RK_USAGE || strstr(error.text, "bad.json") == NULL || strstr(error.text, part) == NULL) {
        fail_msg("%.300s: status %d, '%s', wanted '%s'", text, (int)status, error.text, part);
    }
    assert_string_equal(architecture.name, "untouched");
}

#define SIZES "\"num_hidden_layers\":4,\"hidden_size\":64,\"vocab_size\":256,\"num_attention_heads\":4,"
#define LLAMA_WITH(more) "{\"model_type\":\"llama\"," SIZES "\"intermediate_size\":128" more "}"
#define QWEN_WITH(type, more)                                                                                          \
    "{\"model_type\":\"" type "\"," SIZES "\"num_key_value_heads\":2,\"head_dim\":32,\"num_experts\":8,"               \
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,\"intermediate_size\":96" more "}"
#define GLM_WITH(more)                                                                                                 \
    "{\"model_type\":\"glm4_moe\"," SIZES "\"num_key_value_heads\":2,\"head_dim\":32,\"n_routed_experts\":8,"          \
    "\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,\"intermediate_size\":96,\"n_shared_experts\":2,"          \
    "\"first_k_dense_replace\":1" more "}"
#define DEEPSEEK_WITH(type, more)                                                                                      \
    "{\"model_type\":\"" type "\"," SIZES "\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,"        \
    "\"v_head_dim\":24,\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,"                 \
    "\"intermediate_size\":96,\"n_shared_experts\":1,\"first_k_dense_replace\":1" more "}"
#define GPT_OSS_WITH(more)                                                                                             \
    "{\"model_type\":\"gpt_oss\"," SIZES "\"num_key_value_heads\":2,\"head_dim\":16,\"num_local_experts\":8,"          \
    "\"num_experts_per_tok\":2,\"intermediate_size\":48" more "}"
#define LLAMA4_WITH(more)                                                                                              \
    "{\"model_type\":\"llama4\",\"text_config\":{\"model_type\":\"llama4_text\"," SIZES "\"num_key_value_heads\":2,"   \
    "\"head_dim\":16,\"num_local_experts\":8,\"num_experts_per_tok\":1,\"intermediate_size\":48,"                      \
    "\"intermediate_size_mlp\":96,\"interleave_moe_layer_step\":2" more "}}"

static void names_come_from_paths(void **state) {
    (void)state;
    static const struct {
        const char *path, *name;
    } rows[] = {
        {"models/report-8l.json", "report-8l"},
        {"/a/Mixtral-8x7B/config.json", "Mixtral-8x7B"},
        {"config.json", "config"},
        {"plain", "plain"},
        {".json", ".json"},
        {"/config.json", "config"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rk_architecture a = parse_warned(rows[i].path, LLAMA_WITH(""), NULL);
        assert_string_equal(a.name, rows[i].name);
    }
    char path[300];
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    struct rk_architecture a = parse_warned(path, LLAMA_WITH(""), NULL);
    assert_int_equal(strlen(a.name), RK_ARCHITECTURE_NAME_MAX - 1);
}

static void llama_keys(void **state) {
    (void)state;
    struct rk_architecture a = parse(LLAMA_WITH(""));
    assert_int_equal(a.kv_heads, 4);
    assert_int_equal(a.head_dim, 16);
    assert_int_equal(a.dense_layers, 4);
    assert_int_equal(a.moe_layers, 0);
    assert_true(a.rope_theta == 10000.0 && a.norm_epsilon == 1e-6 && a.rotary_fraction == 1.0);
    assert_int_equal(rk_architecture_runnable(&a, NULL), RK_OK);
    a = parse(LLAMA_WITH(",\"head_dim\":8,\"num_key_value_heads\":2,\"attention_bias\":true,\"mlp_bias\":true,"
                         "\"tie_word_embeddings\":true,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}"));
    assert_int_equal(a.head_dim, 8);
    assert_true(a.qkv_bias && a.output_bias && a.mlp_bias && a.tied_embeddings);
    assert_string_equal(a.rope_scaling, "yarn");
    struct rk_parameter_count count;
    rk_count_parameters(&a, &count);
    assert_int_equal(count.attention, 64 * 32 + 32 + 2 * (64 * 16 + 16) + 32 * 64 + 64);
    assert_int_equal(count.dense, 3 * 64 * 128 + 2 * 128 + 64);
    assert_int_equal(count.head, 0);
    a = parse(LLAMA_WITH(",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7e5}"));
    assert_true(a.rope_theta == 7e5 && a.rope_scaling[0] == '\0');
}

static void qwen_blocks_and_windows(void **state) {
    (void)state;
    struct rk_architecture a = parse(QWEN_WITH("qwen3_moe", ""));
    assert_int_equal(a.moe_layers, 4);
    assert_int_equal(a.dense_hidden, 0);
    assert_int_equal(a.qk_norm, RK_QK_NORM_PER_HEAD);
    assert_false(a.normalise_top_k);
    a = parse(QWEN_WITH("qwen3_moe", ",\"decoder_sparse_step\":2,\"mlp_only_layers\":[3],\"norm_topk_prob\":true"));
    const uint8_t blocks[] = {RK_BLOCK_DENSE, RK_BLOCK_MOE, RK_BLOCK_DENSE, RK_BLOCK_DENSE};
    assert_memory_equal(a.block, blocks, 4);
    assert_int_equal(a.dense_layers, 3);
    assert_int_equal(a.dense_hidden, 96);
    assert_true(a.normalise_top_k);
    a = parse(QWEN_WITH("qwen2_moe", ",\"shared_expert_intermediate_size\":80,\"use_sliding_window\":true,"
                                     "\"sliding_window\":32,\"max_window_layers\":3"));
    const uint8_t limited[] = {0, 0, 0, 1};
    assert_memory_equal(a.limited, limited, 4);
    assert_int_equal(a.span_tokens, 32);
    assert_true(a.qkv_bias && !a.output_bias && a.shared_gate);
    assert_int_equal(a.shared_hidden, 80);
    a = parse(QWEN_WITH("qwen3_moe", ",\"use_sliding_window\":false,\"sliding_window\":4096,\"max_window_layers\":4"));
    assert_int_equal(a.span, RK_SPAN_FULL);
    /* All layers dense: nothing of the experts is left. */
    a = parse(QWEN_WITH("qwen3_moe", ",\"mlp_only_layers\":[0,1,2,3]"));
    assert_int_equal(a.experts + a.top_k + a.expert_hidden + a.moe_layers, 0);
    assert_int_equal(rk_architecture_runnable(&a, NULL), RK_OK);
}

static void latent_attention(void **state) {
    (void)state;
    struct rk_parameter_count count;
    struct rk_architecture a = parse(DEEPSEEK_WITH("deepseek_v2", ",\"q_lora_rank\":null,\"moe_layer_freq\":2"));
    const uint8_t blocks[] = {RK_BLOCK_DENSE, RK_BLOCK_DENSE, RK_BLOCK_MOE, RK_BLOCK_DENSE};
    assert_memory_equal(a.block, blocks, 4);
    assert_int_equal(a.attention, RK_ATTENTION_MLA);
    assert_int_equal(a.head_dim, 24);
    assert_int_equal(a.scoring, RK_SCORING_SOFTMAX);
    assert_false(a.correction_bias);
    rk_count_parameters(&a, &count);
    assert_int_equal(count.attention, 64 * 4 * 24 + 64 * (32 + 8) + 32 + 32 * 4 * (16 + 24) + 4 * 24 * 64);
    a = parse(DEEPSEEK_WITH("deepseek_v3", ",\"q_lora_rank\":20,\"attention_bias\":true,\"n_group\":4,\"topk_group\":2,"
                                           "\"num_nextn_predict_layers\":1"));
    rk_count_parameters(&a, &count);
    assert_int_equal(count.attention,
                     64 * 20 + 20 + 20 * 4 * 24 + 64 * (32 + 8) + 32 + 32 * 4 * (16 + 24) + 4 * 24 * 64 + 20 + 40 + 64);
    assert_true(a.correction_bias && a.normalise_top_k && a.routed_scaling == 2.5);
    assert_int_equal(a.scoring, RK_SCORING_SIGMOID);
    assert_int_equal(a.expert_groups, 4);
    assert_int_equal(a.top_groups, 2);
    assert_int_equal(a.mtp_layers, 1);
    /* FLOPs: queries and keys have another width than values. */
    struct rk_token_flops flops;
    rk_count_token_flops(&a, 99, RK_COUNT_CAUSAL, &flops);
    assert_true(fabs(flops.attention_full - 6.0 * 4 * (24 + 24) * 50) < 1e-6);
    assert_true(
        fabs(flops.attention_projections - 6.0 * (64 * 20 + 20 * 4 * 24 + 64 * 40 + 32 * 4 * 40 + 4 * 24 * 64)) < 1e-6);
}

static void spans_and_positions(void **state) {
    (void)state;
    struct rk_architecture a = parse(GPT_OSS_WITH(",\"sliding_window\":8"));
    const uint8_t every_second[] = {1, 0, 1, 0};
    assert_memory_equal(a.limited, every_second, 4);
    a = parse(GPT_OSS_WITH(",\"sliding_window\":8,\"layer_types\":[\"full_attention\",\"full_attention\","
                           "\"sliding_attention\",\"full_attention\"]"));
    const uint8_t third[] = {0, 0, 1, 0};
    assert_memory_equal(a.limited, third, 4);
    assert_true(a.qkv_bias && a.output_bias && a.attention_sinks && a.router_bias && a.expert_bias);
    a = parse(LLAMA4_WITH(""));
    const uint8_t rotated[] = {1, 1, 1, 0};
    const uint8_t blocks[] = {RK_BLOCK_DENSE, RK_BLOCK_MOE, RK_BLOCK_DENSE, RK_BLOCK_MOE};
    assert_memory_equal(a.limited, rotated, 4);
    assert_memory_equal(a.block, blocks, 4);
    assert_true(a.without_rope[3] == 1 && a.without_rope[0] == 0 && a.span == RK_SPAN_CHUNKED);
    a = parse(LLAMA4_WITH(",\"no_rope_layers\":[0,1,1,1],\"attention_chunk_size\":16"));
    assert_true(a.without_rope[0] == 1 && a.limited[0] == 0 && a.limited[3] == 1 && a.span_tokens == 16);
}

static void glm_keys(void **state) {
    (void)state;
    struct rk_architecture a = parse(GLM_WITH(""));
    assert_true(a.rotary_fraction == 0.5 && a.correction_bias && a.normalise_top_k);
    assert_int_equal(a.shared_hidden, 96);
    assert_int_equal(a.qk_norm, RK_QK_NORM_NONE);
    a = parse(GLM_WITH(",\"use_qk_norm\":true,\"partial_rotary_factor\":1.0,\"topk_method\":\"greedy\","
                       "\"scoring_func\":\"softmax\",\"peri_norm\":true,\"embedding_norm\":true,"
                       "\"routed_scaling_factor\":2"));
    assert_true(a.rotary_fraction == 1.0 && !a.correction_bias && a.routed_scaling == 2.0 && a.embedding_norm);
    assert_int_equal(a.block_norms, 4);
    assert_int_equal(a.scoring, RK_SCORING_SOFTMAX);
    struct rk_parameter_count count;
    rk_count_parameters(&a, &count);
    assert_int_equal(count.block_norms, 4 * 64);
    assert_int_equal(count.embedding_norm, 64);
    assert_int_equal(count.router, 8 * 64);
}

/* Each property that the executor lacks is named, and its absence makes the model runnable. */
static void runnable_names_what_is_missing(void **state) {
    (void)state;
#define GLM_PLAIN ",\"partial_rotary_factor\":1.0,\"topk_method\":\"greedy\""
    static const struct {
        const char *config, *part;
    } rows[] = {
        {GLM_WITH(GLM_PLAIN), NULL},
        {GLM_WITH(GLM_PLAIN ",\"use_qk_norm\":true,\"scoring_func\":\"softmax\""), NULL},
        {QWEN_WITH("qwen3_moe", ",\"norm_topk_prob\":true,\"tie_word_embeddings\":true"), NULL},
        {GLM_WITH(",\"topk_method\":\"greedy\""), "partial_rotary_factor"},
        {GLM_WITH(",\"partial_rotary_factor\":1.0"), "noaux_tc"},
        {GLM_WITH(GLM_PLAIN ",\"peri_norm\":true"), "peri_norm"},
        {GLM_WITH(GLM_PLAIN ",\"embedding_norm\":true"), "embedding_norm"},
        {GLM_WITH(GLM_PLAIN ",\"attention_bias\":true"), "bias of query"},
        {GLM_WITH(GLM_PLAIN ",\"num_nextn_predict_layers\":1"), "num_nextn_predict_layers"},
        {GLM_WITH(GLM_PLAIN ",\"hidden_act\":\"gelu\""), "hidden_act gelu"},
        {GLM_WITH(GLM_PLAIN ",\"attention_dropout\":0.1"), "attention_dropout"},
        {QWEN_WITH("qwen2_moe", ",\"shared_expert_intermediate_size\":80"), "gate of the shared experts"},
        {QWEN_WITH("qwen3_moe", ",\"use_sliding_window\":true,\"sliding_window\":8"), "sliding-window"},
        {QWEN_WITH("qwen3_moe", ",\"attention_bias\":true"), "attention output"},
        {LLAMA_WITH(",\"rope_scaling\":{\"rope_type\":\"llama3\"}"), "rope_scaling llama3"},
        {LLAMA_WITH(",\"mlp_bias\":true"), "mlp_bias"},
        {DEEPSEEK_WITH("deepseek_v2", ""), "latent attention"},
        {DEEPSEEK_WITH("deepseek_v3", ",\"n_group\":4,\"topk_group\":2"), "group-limited routing"},
        {GPT_OSS_WITH(",\"sliding_window\":8"), "attention sinks"},
        {GPT_OSS_WITH(",\"sliding_window\":8"), "biases of the experts"},
        {GPT_OSS_WITH(",\"sliding_window\":8"), "bias of the router"},
        {GPT_OSS_WITH(",\"sliding_window\":8"), "swiglu_limit"},
        {LLAMA4_WITH(""), "chunked attention"},
        {LLAMA4_WITH(""), "layers without RoPE"},
        {LLAMA4_WITH(""), "attn_temperature_tuning"},
        {LLAMA4_WITH(""), "experts' input"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rk_architecture a = parse(rows[i].config);
        struct rk_error error = {.text = ""};
        enum rk_status status = rk_architecture_runnable(&a, &error);
        if (rows[i].part == NULL ? status != RK_OK : status != RK_USAGE || strstr(error.text, rows[i].part) == NULL) {
            fail_msg("row %zu: status %d, '%s', wanted '%s'", i, (int)status, error.text,
                     rows[i].part ? rows[i].part : "runnable");
        }
    }
    struct rk_architecture clipped;
    struct rk_error error;
    static const char olmoe[] = "{\"model_type\":\"olmoe\"," SIZES "\"num_experts\":8,\"num_experts_per_tok\":2,"
                                "\"intermediate_size\":32,\"clip_qkv\":8.0}";
    assert_ok(rk_architecture_parse("o.json", olmoe, strlen(olmoe), &clipped, NULL, &error), error);
    assert_fails(rk_architecture_runnable(&clipped, &error), RK_USAGE, error, "clip_qkv");
}

static void example_models_run_or_say_why(void **state) {
    (void)state;
    static const struct {
        const char *file;
        bool runs;
    } rows[] = {
        {"olmoe-cpu-tiny", true}, {"glm4-moe-cpu-tiny", true}, {"olmoe-1b-7b", true},
        {"report-8l-n32", false}, {"report-tiny-64e", false},  {"report-ultra-128e", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char path[128];
        struct rk_architecture a;
        struct rk_error error;
        struct rk_text warnings = {0};
        snprintf(path, sizeof path, "examples/models/%s.json", rows[i].file);
        assert_ok(rk_architecture_read_file(path, &a, &warnings, &error), error);
        assert_string_equal(a.name, rows[i].file);
        assert_int_equal(warnings.length, 0);
        assert_int_equal(rk_architecture_runnable(&a, &error), rows[i].runs ? RK_OK : RK_USAGE);
    }
}

static void unknown_keys_are_said_once(void **state) {
    (void)state;
    struct rk_text warnings = {0};
    parse_warned("m.json", LLAMA_WITH(",\"zebra\":1,\"use_cache\":true,\"apple\":{\"a\":[1]},\"mamba_d_state\":null"),
                 &warnings);
    assert_string_equal(warnings.data, "m.json: unknown keys ignored: zebra, apple, mamba_d_state\n");
    rk_text_free(&warnings);
    parse_warned("m.json",
                 "{\"model_type\":\"llava\",\"text_config\":" LLAMA_WITH("") ",\"vision_config\":{},\"odd\":1}",
                 &warnings);
    assert_non_null(strstr(warnings.data, "odd"));
    assert_non_null(strstr(warnings.data, "only the text model"));
    rk_text_free(&warnings);
}

static void bad_values_name_their_key(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } rows[] = {
        /* Not a model at all. */
        {"", ""},
        {"   ", ""},
        {"null", "object"},
        {"42", "object"},
        {"[]", "object"},
        {"\"llama\"", "object"},
        {"{", ""},
        {"{}", "model_type is missing"},
        {"{\"model_type\":", ""},
        {"{\"model_type\":\"llama\"", ""},
        {LLAMA_WITH("") "x", ""},
        {LLAMA_WITH("") LLAMA_WITH(""), ""},
        {"{\"model_type\":\"llama\"}", "num_hidden_layers"},
        {"{\"model_type\":7}", "model_type"},
        {"{\"model_type\":null,\"hidden_size\":64}", "Keys found: model_type, hidden_size"},
        {"{\"model_type\":\"deepseek_v4\",\"index_topk\":512}", "index_topk"},
        {"{\"model_type\":\"LLAMA\"}", "'LLAMA' is not known"},
        {"{\"text_config\":7,\"model_type\":\"llama4\"}", "text_config"},
        {"{\"text_config\":{},\"model_type\":\"nobody\"}", "nobody"},
        /* Wrong types and absurd sizes. */
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":\"4\"}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":true}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":[4]}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":null}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":0}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":-4}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":4.5}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":513}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":4294967300}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":1e308}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":1e999}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":NaN}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":Infinity}", "num_hidden_layers"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":4,\"num_hidden_layers\":5}", "num_hidden_layers"},
        {LLAMA_WITH(",\"rms_norm_eps\":0"), "rms_norm_eps"},
        {LLAMA_WITH(",\"rms_norm_eps\":\"1e-6\""), "rms_norm_eps"},
        {LLAMA_WITH(",\"rope_theta\":-1"), "rope_theta"},
        {LLAMA_WITH(",\"head_dim\":0"), "head_dim"},
        {LLAMA_WITH(",\"head_dim\":15"), "head_dim"},
        {LLAMA_WITH(",\"num_key_value_heads\":3"), "num_key_value_heads"},
        {LLAMA_WITH(",\"num_key_value_heads\":8"), "num_key_value_heads"},
        {LLAMA_WITH(",\"tie_word_embeddings\":1"), "tie_word_embeddings"},
        {LLAMA_WITH(",\"max_position_embeddings\":0"), "max_position_embeddings"},
        {LLAMA_WITH(",\"hidden_act\":\"relu2\""), "hidden_act"},
        {LLAMA_WITH(",\"hidden_act\":7"), "hidden_act"},
        {LLAMA_WITH(",\"rope_scaling\":\"yarn\""), "rope_scaling"},
        {LLAMA_WITH(",\"rope_scaling\":{\"factor\":2}"), "rope_type"},
        {LLAMA_WITH(",\"rope_scaling\":{\"rope_type\":9}"), "rope_type"},
        {LLAMA_WITH(",\"layer_types\":[\"full_attention\"]"), "layer_types"},
        {LLAMA_WITH(",\"layer_types\":[1,2,3,4]"), "layer_types"},
        {LLAMA_WITH(",\"layer_types\":[\"linear_attention\"]"), "linear_attention"},
        {LLAMA_WITH(
             ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"sliding_attention\"]"),
         "sliding_window"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":4,\"hidden_size\":65,\"vocab_size\":9,"
         "\"num_attention_heads\":4,\"intermediate_size\":8}",
         "head_dim"},
        /* Keys that would change the count. */
        {LLAMA_WITH(",\"num_local_experts\":8"), "num_local_experts"},
        {LLAMA_WITH(",\"mamba_d_state\":16"), "mamba_d_state"},
        {LLAMA_WITH(",\"kv_lora_rank\":16"), "kv_lora_rank"},
        {LLAMA_WITH(",\"sliding_window\":16"), "sliding_window"},
        {LLAMA_WITH(",\"qk_norm\":true"), "qk_norm"},
        {QWEN_WITH("qwen3_moe", ",\"n_shared_experts\":1"), "n_shared_experts"},
        /* Experts. */
        {QWEN_WITH("qwen2_moe", ""), "shared_expert_intermediate_size"},
        {QWEN_WITH("qwen3_moe", ",\"decoder_sparse_step\":0"), "decoder_sparse_step"},
        {QWEN_WITH("qwen3_moe", ",\"mlp_only_layers\":[4]"), "mlp_only_layers"},
        {QWEN_WITH("qwen3_moe", ",\"mlp_only_layers\":[-1]"), "mlp_only_layers"},
        {QWEN_WITH("qwen3_moe", ",\"mlp_only_layers\":[0.5]"), "mlp_only_layers"},
        {QWEN_WITH("qwen3_moe", ",\"mlp_only_layers\":[\"0\"]"), "mlp_only_layers"},
        {QWEN_WITH("qwen3_moe", ",\"mlp_only_layers\":3"), "mlp_only_layers"},
        {QWEN_WITH("qwen3_moe", ",\"use_sliding_window\":true"), "sliding_window"},
        {GLM_WITH(",\"scoring_func\":\"sqrtsoftplus\""), "sqrtsoftplus"},
        {GLM_WITH(",\"topk_method\":\"best\""), "best"},
        {GLM_WITH(",\"n_group\":3,\"topk_group\":1"), "n_group"},
        {GLM_WITH(",\"n_group\":4,\"topk_group\":5"), "topk_group"},
        {GLM_WITH(",\"n_group\":8,\"topk_group\":1"), "num_experts_per_tok"},
        {GLM_WITH(",\"routed_scaling_factor\":0"), "routed_scaling_factor"},
        {GLM_WITH(",\"partial_rotary_factor\":1.5"), "partial_rotary_factor"},
        {GPT_OSS_WITH(""), NULL},
        {GPT_OSS_WITH(",\"experts_per_token\":3"), "experts_per_token"},
        {GPT_OSS_WITH(",\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\","
                      "\"full_attention\"]"),
         "sliding_window"},
        {DEEPSEEK_WITH("deepseek_v3", ",\"attention_bias\":true"), "q_lora_rank"},
        {DEEPSEEK_WITH("deepseek_v3", ",\"moe_layer_freq\":[1,1]"), "moe_layer_freq"},
        {LLAMA4_WITH(",\"no_rope_layers\":[1,1]"), "no_rope_layers"},
        {LLAMA4_WITH(",\"no_rope_layers\":[1,1,1,1,1]"), "no_rope_layers"},
        {LLAMA4_WITH(",\"no_rope_layers\":[2,1,1,1]"), "no_rope_layers"},
        {LLAMA4_WITH(",\"moe_layers\":[1]"), "moe_layers"},
        {"{\"model_type\":\"mixtral\"," SIZES "\"intermediate_size\":8,\"num_local_experts\":4,"
         "\"num_experts_per_tok\":5}",
         "num_experts_per_tok"},
        {"{\"model_type\":\"olmoe\"," SIZES "\"intermediate_size\":8,\"num_experts\":4}", "num_experts_per_tok"},
        {"{\"model_type\":\"minimax_m2\"," SIZES "\"num_key_value_heads\":2,\"head_dim\":16,\"intermediate_size\":8,"
         "\"num_local_experts\":4,\"num_experts_per_tok\":2,\"attn_type_list\":[1,0,1,1]}",
         "attn_type_list"},
        /* Each size is believable, their product is not. */
        {"{\"model_type\":\"mixtral\",\"num_hidden_layers\":512,\"hidden_size\":16777216,\"vocab_size\":16777216,"
         "\"num_attention_heads\":65536,\"num_key_value_heads\":1,\"head_dim\":65536,\"intermediate_size\":16777216,"
         "\"num_local_experts\":65536,\"num_experts_per_tok\":2}",
         "parameters"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].part != NULL) {
            assert_refused(rows[i].text, strlen(rows[i].text), rows[i].part);
        } else {
            parse(rows[i].text);
        }
    }
}

/* A file cut anywhere is refused, and nothing is read past its end. */
static void every_truncation_is_refused(void **state) {
    (void)state;
    static const char text[] = GLM_WITH(",\"rope_scaling\":{\"rope_type\":\"yarn\"}");
    for (size_t length = 0; length + 1 < sizeof text - 1; length++) {
        char *cut = malloc(length + 1);
        assert_non_null(cut);
        memcpy(cut, text, length);
        cut[length] = '!'; /* not part of the text */
        assert_refused(cut, length, "");
        free(cut);
    }
}

static void hostile_shapes(void **state) {
    (void)state;
    struct rk_text text = {0};
    /* Deep nesting. */
    rk_text_add(&text, "{\"model_type\":\"llama\",\"x\":");
    for (int i = 0; i < 100000; i++) {
        rk_text_add(&text, "[");
    }
    assert_refused(text.data, text.length, "nested");
    rk_text_free(&text);
    /* More keys than a config has. */
    rk_text_add(&text, "{\"model_type\":\"llama\"");
    for (int i = 0; i < 2000; i++) {
        rk_text_format(&text, ",\"k%d\":0", i);
    }
    rk_text_add(&text, "}");
    assert_refused(text.data, text.length, "1024");
    rk_text_free(&text);
    /* Long names stay within the message. */
    rk_text_add(&text, "{\"model_type\":\"");
    for (int i = 0; i < 5000; i++) {
        rk_text_add(&text, "y");
    }
    rk_text_add(&text, "\"}");
    assert_refused(text.data, text.length, "model_type");
    rk_text_free(&text);
    for (int i = 0; i < 300; i++) {
        rk_text_format(&text, "%s\"%s_a_long_key_that_fills_the_message_%d\":0", i == 0 ? "{" : ",", "expert", i);
    }
    rk_text_add(&text, "}");
    assert_refused(text.data, text.length, "...");
    rk_text_free(&text);
    /* A zero byte inside the text. */
    assert_refused("{\"model_type\":\"llama\0\"}", 23, "");
}

/* Names that only a hand-made struct can get wrong. */
static void check_of_hand_made(void **state) {
    (void)state;
    struct rk_error error;
    struct rk_architecture good = parse(GLM_WITH(""));
    assert_ok(rk_architecture_check("hand", &good, &error), error);
    struct rk_architecture bad = good;
    bad.moe_layers = 4;
    assert_fails(rk_architecture_check("hand", &bad, &error), RK_USAGE, error, "MoE");
    bad = good;
    bad.kv_heads = 0;
    assert_fails(rk_architecture_check("hand", &bad, &error), RK_USAGE, error, "num_key_value_heads");
    bad = good;
    bad.expert_groups = 0;
    assert_fails(rk_architecture_check("hand", &bad, &error), RK_USAGE, error, "n_group");
    bad = good;
    bad.kv_lora_rank = 3;
    assert_fails(rk_architecture_check("hand", &bad, &error), RK_USAGE, error, "kv_lora_rank");
    bad = good;
    bad.rope_theta = (double)NAN;
    assert_fails(rk_architecture_check("hand", &bad, &error), RK_USAGE, error, "rope_theta");
    bad = good;
    bad.layers = 513;
    assert_fails(rk_architecture_check("hand", &bad, &error), RK_USAGE, error, "num_hidden_layers");
}

static void missing_file(void **state) {
    (void)state;
    struct rk_architecture a;
    struct rk_error error = {.text = ""};
    assert_int_not_equal(rk_architecture_read_file("no/such/config.json", &a, NULL, &error), RK_OK);
    assert_non_null(strstr(error.text, "no/such/config.json"));
}

/* The family table is in the order of its enum, and every name is distinct. */
static void family_table(void **state) {
    (void)state;
    for (int i = 0; i < RK_FAMILY_COUNT; i++) {
        const struct rk_family_row *row = rk_family_row((enum rk_family)i);
        assert_int_equal(row->family, i);
        assert_non_null(row->read);
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(row->model_types[0], rk_family_row((enum rk_family)j)->model_types[0]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_come_from_paths),
        cmocka_unit_test(llama_keys),
        cmocka_unit_test(qwen_blocks_and_windows),
        cmocka_unit_test(latent_attention),
        cmocka_unit_test(spans_and_positions),
        cmocka_unit_test(glm_keys),
        cmocka_unit_test(runnable_names_what_is_missing),
        cmocka_unit_test(example_models_run_or_say_why),
        cmocka_unit_test(unknown_keys_are_said_once),
        cmocka_unit_test(bad_values_name_their_key),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(hostile_shapes),
        cmocka_unit_test(check_of_hand_made),
        cmocka_unit_test(missing_file),
        cmocka_unit_test(family_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

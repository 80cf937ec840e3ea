/* Parameter counts, FLOPs and closed-form memory against published figures, to the last printed digit. */
#include "model/count.h"
#include "model/memory_estimate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GIB 1073741824.0

/* Configs with the keys that count, and nothing else. */
#define LLAMA(layers, hidden, heads, kv, width, vocabulary)                                                            \
    "{\"model_type\":\"llama\",\"num_hidden_layers\":" #layers ",\"hidden_size\":" #hidden                             \
    ",\"num_attention_heads\":" #heads ",\"num_key_value_heads\":" #kv ",\"intermediate_size\":" #width                \
    ",\"vocab_size\":" #vocabulary "}"
#define MIXTRAL(layers, hidden, heads, width, vocabulary)                                                              \
    "{\"model_type\":\"mixtral\",\"num_hidden_layers\":" #layers ",\"hidden_size\":" #hidden                           \
    ",\"num_attention_heads\":" #heads ",\"num_key_value_heads\":8,\"head_dim\":null,\"intermediate_size\":" #width    \
    ",\"num_local_experts\":8,\"num_experts_per_tok\":2,\"vocab_size\":" #vocabulary "}"
#define QWEN3_MOE(layers, hidden, heads, width)                                                                        \
    "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":" #layers ",\"hidden_size\":" #hidden                         \
    ",\"num_attention_heads\":" #heads ",\"num_key_value_heads\":4,\"head_dim\":128,\"moe_intermediate_size\":" #width \
    ",\"num_experts\":128,\"num_experts_per_tok\":8,\"mlp_only_layers\":[],\"vocab_size\":151936}"
#define DEEPSEEK(type, dense, heads, experts, vocabulary)                                                              \
    "{\"model_type\":\"" type "\",\"num_hidden_layers\":61,\"hidden_size\":7168,\"num_attention_heads\":" #heads       \
    ",\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"  \
    "\"intermediate_size\":18432,\"moe_intermediate_size\":2048,\"n_routed_experts\":" #experts                        \
    ",\"num_experts_per_tok\":8,\"n_shared_experts\":1,\"first_k_dense_replace\":" #dense                              \
    ",\"vocab_size\":" #vocabulary "}"

static const char gpt_oss_120b[] =
    "{\"model_type\":\"gpt_oss\",\"num_hidden_layers\":36,\"hidden_size\":2880,\"num_attention_heads\":64,"
    "\"num_key_value_heads\":8,\"head_dim\":64,\"intermediate_size\":2880,\"num_local_experts\":128,"
    "\"num_experts_per_tok\":4,\"sliding_window\":128,\"vocab_size\":201088}";
static const char glm_air[] =
    "{\"model_type\":\"glm4_moe\",\"num_hidden_layers\":46,\"hidden_size\":4096,\"num_attention_heads\":96,"
    "\"num_key_value_heads\":8,\"head_dim\":128,\"attention_bias\":true,\"intermediate_size\":10944,"
    "\"moe_intermediate_size\":1408,\"n_routed_experts\":128,\"num_experts_per_tok\":8,\"n_shared_experts\":1,"
    "\"first_k_dense_replace\":1,\"num_nextn_predict_layers\":1,\"vocab_size\":151552}";
static const char maverick[] =
    "{\"model_type\":\"llama4\",\"text_config\":{\"model_type\":\"llama4_text\",\"num_hidden_layers\":48,"
    "\"hidden_size\":5120,\"num_attention_heads\":40,\"num_key_value_heads\":8,\"head_dim\":128,"
    "\"intermediate_size\":8192,\"intermediate_size_mlp\":16384,\"interleave_moe_layer_step\":2,"
    "\"num_local_experts\":128,\"num_experts_per_tok\":1,\"vocab_size\":202048},\"vision_config\":{}}";
static const char olmoe_1b_7b[] =
    "{\"model_type\":\"olmoe\",\"num_hidden_layers\":16,\"hidden_size\":2048,\"num_attention_heads\":16,"
    "\"num_key_value_heads\":16,\"intermediate_size\":1024,\"num_experts\":64,\"num_experts_per_tok\":8,"
    "\"vocab_size\":50304}";

static struct rk_architecture parse(const char *name, const char *text) {
    struct rk_architecture architecture;
    struct rk_error error = {.text = ""};
    if (rk_architecture_parse(name, text, strlen(text), &architecture, NULL, &error) != RK_OK) {
        fail_msg("%s", error.text);
    }
    return architecture;
}

static struct rk_architecture read_file(const char *path) {
    struct rk_architecture architecture;
    struct rk_error error = {.text = ""};
    if (rk_architecture_read_file(path, &architecture, NULL, &error) != RK_OK) {
        fail_msg("%s", error.text);
    }
    return architecture;
}

static void published_counts(void **state) {
    (void)state;
    static const struct {
        const char *name, *config;
        int64_t total, active, active_without_embedding; /* 0: not published */
    } rows[] = {
        {"Llama-3-8B", LLAMA(32, 4096, 32, 8, 14336, 128256), 8030261248, 8030261248, 0},
        {"Llama-3-70B", LLAMA(80, 8192, 64, 8, 28672, 128256), 70553706496, 70553706496, 0},
        {"Mixtral-8x7B", MIXTRAL(32, 4096, 32, 14336, 32000), 46702792704, 12879925248, 0},
        {"Mixtral-8x22B", MIXTRAL(56, 6144, 48, 16384, 32768), 140630071296, 39161468928, 0},
        {"OLMoE-1B-7B", olmoe_1b_7b, 6919161856, 1282017280, 0},
        {"Qwen3-30B-A3B", QWEN3_MOE(48, 2048, 32, 768), 30532122624, 3353032704, 0},
        {"Qwen3-235B-A22B", QWEN3_MOE(94, 4096, 64, 1536), 235093634560, 22190763520, 0},
        {"DeepSeek-V3", DEEPSEEK("deepseek_v3", 3, 128, 256, 129280), 671026419200, 37552297472, 0},
        {"Kimi-K2", DEEPSEEK("kimi_k2", 1, 64, 384, 163840), 1026408232448, 0, 0},
        {"gpt-oss-120b", gpt_oss_120b, 116829156672, 5711982912, 5132849472},
        {"GLM-4.5-Air", glm_air, 106852251264, 0, 0},
        {"Llama-4-Maverick", maverick, 400711848960, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rk_architecture architecture = parse(rows[i].name, rows[i].config);
        struct rk_parameter_count count;
        rk_count_parameters(&architecture, &count);
        print_message("%s %lld %lld\n", rows[i].name, (long long)count.total, (long long)count.active);
        assert_int_equal(count.total, rows[i].total);
        assert_int_equal(count.total, count.routed + count.not_routed);
        if (rows[i].active != 0) {
            assert_int_equal(count.active, rows[i].active);
        }
        if (rows[i].active_without_embedding != 0) {
            assert_int_equal(count.active_without_embedding, rows[i].active_without_embedding);
        }
    }
}

/* cmocka compares floats in single precision. */
static void assert_close(double value, double expected, double tolerance) {
    if (!(fabs(value - expected) <= tolerance)) {
        fail_msg("%.17g expected, got %.17g", expected, value);
    }
}

/* printed: the value as the report prints it, in units of 1e9, with this many digits after the point. */
static void assert_prints(double value, double unit, int digits, double printed) {
    const double scale = pow(10.0, digits);
    const double rounded = round(value / unit * scale) / scale;
    if (fabs(rounded - printed) > 1e-9 * printed) {
        fail_msg("%.*f expected, got %.*f (%.10g)", digits, printed, digits + 3, value / unit, value);
    }
}

static void report_counts_and_flops(void **state) {
    (void)state;
    static const struct {
        const char *file;
        double active, total;
        int active_digits, total_digits;
        double flops; /* GFLOP per token at S = 8,192; 0: not printed */
        int flops_digits;
    } rows[] = {
        {"examples/models/report-8l-n8.json", 3.171, 4.58, 3, 2, 18.171, 3},
        {"examples/models/report-8l-n32.json", 3.172, 13.037, 3, 3, 0, 0},
        {"examples/models/report-8l-n64.json", 3.173, 24.31, 3, 2, 0, 0},
        {"examples/models/report-8l-n128.json", 3.175, 46.86, 3, 2, 18.192, 3},
        {"examples/models/report-tiny-64e.json", 1.588, 12.912, 3, 3, 0, 0},
        {"examples/models/report-medium-64e.json", 7.37, 70.22, 2, 2, 0, 0},
        {"examples/models/report-ultra-128e.json", 58.359, 1200.5, 3, 1, 371.8, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rk_architecture architecture = read_file(rows[i].file);
        struct rk_parameter_count count;
        struct rk_token_flops flops;
        rk_count_parameters(&architecture, &count);
        rk_count_token_flops(&architecture, 8192, RK_COUNT_CAUSAL, &flops);
        print_message("%s %lld %lld %.6g\n", rows[i].file, (long long)count.active, (long long)count.total,
                      flops.total);
        assert_prints((double)count.active, 1e9, rows[i].active_digits, rows[i].active);
        assert_prints((double)count.total, 1e9, rows[i].total_digits, rows[i].total);
        if (rows[i].flops > 0) {
            assert_prints(flops.total, 1e9, rows[i].flops_digits, rows[i].flops);
        }
    }
}

/* The report's terms, written out again from its text. */
static void report_terms(void **state) {
    (void)state;
    struct rk_architecture a = read_file("examples/models/report-8l-n8.json");
    struct rk_parameter_count count;
    struct rk_token_flops flops;
    const double d = 4096, h = 4096, hs = 4096, kv = 1024, k = 4, n = 8, v = 100352, s = 8192;
    rk_count_parameters(&a, &count);
    rk_count_token_flops(&a, 8192, RK_COUNT_CAUSAL, &flops);
    assert_int_equal(count.attention, 2 * 4096 * 4096 + 2 * 4096 * 1024 + 2 * 128);
    assert_int_equal(count.block_norms, 2 * 4096);
    assert_int_equal(count.expert, 3 * 4096 * 4096);
    assert_int_equal(count.router, 4096 * 8);
    assert_int_equal(count.shared, 3 * 4096 * 4096);
    assert_int_equal(count.dense, 3 * 4096 * (4 * 4096 + 4096));
    assert_int_equal(count.embedding + count.embedding_norm + count.head + count.final_norm,
                     2 * (int64_t)100352 * 4096 + 2 * 4096);
    assert_close(flops.attention_projections, 6 * (2 * d * d + 2 * d * kv), 0.5);
    assert_close(flops.attention_full, 12 * 32 * 128 * (s + 1) / 2, 0.5);
    assert_close(flops.router, 6 * d * n, 0.5);
    assert_close(flops.routed, 18 * d * h * k, 0.5);
    assert_close(flops.shared, 18 * d * hs, 0.5);
    assert_close(flops.dense, 18 * d * (k * h + hs), 0.5);
    assert_close(flops.head, 6 * d * v, 0.5);
}

/* 858 TFLOP/s on Ultra are 2,308 tokens/s/GPU, 38.1 % MFU, and 56.8 s for a step of 64 Mi tokens on 512 GPUs. */
static void ultra_rates(void **state) {
    (void)state;
    struct rk_architecture a = read_file("examples/models/report-ultra-128e.json");
    struct rk_token_flops flops;
    rk_count_token_flops(&a, 8192, RK_COUNT_CAUSAL, &flops);
    assert_prints(858e12 / flops.total, 1.0, 0, 2308);
    const double tokens = 64.0 * 1048576.0;
    const double seconds = tokens / (512.0 * 858e12 / flops.total);
    assert_prints(seconds, 1.0, 1, 56.8);
    assert_prints(rk_count_mfu(flops.total, tokens, seconds, 512, 2250e12) * 100.0, 1.0, 1, 38.1);
}

static void llama_2_7b_flops(void **state) {
    (void)state;
    struct rk_architecture a = parse("Llama-2-7B", LLAMA(32, 4096, 32, 32, 11008, 32000));
    const double tokens = 4.0 * 8192.0;
    static const struct {
        enum rk_attention_counting counting;
        double attention;
    } rows[] = {{RK_COUNT_FULL, 422.21}, {RK_COUNT_CAUSAL_HALF, 211.11}, {RK_COUNT_CAUSAL, 211.13}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rk_token_flops flops;
        rk_count_token_flops(&a, 8192, rows[i].counting, &flops);
        const double attention = 32.0 * flops.attention_full;
        assert_prints(attention * tokens, 1e12, 2, rows[i].attention);
        assert_prints((flops.total - attention) * tokens, 1e12, 2, 1299.00);
    }
}

static void limited_spans(void **state) {
    (void)state;
    struct rk_architecture a = parse("gpt-oss", gpt_oss_120b);
    /* Positions 1..128 see 1..128 tokens, the rest 128. */
    double sum = 0;
    for (int position = 1; position <= 1000; position++) {
        sum += position < 128 ? position : 128;
    }
    assert_close(rk_count_attended(&a, true, 1000, RK_COUNT_CAUSAL), sum / 1000, 1e-9);
    assert_close(rk_count_attended(&a, true, 100, RK_COUNT_CAUSAL), 50.5, 1e-12);
    assert_close(rk_count_attended(&a, false, 1000, RK_COUNT_CAUSAL), 500.5, 1e-12);
    struct rk_architecture chunked = parse("maverick", maverick);
    chunked.span_tokens = 300;
    sum = 0;
    for (int position = 0; position < 1000; position++) {
        sum += position % 300 + 1;
    }
    assert_close(rk_count_attended(&chunked, true, 1000, RK_COUNT_CAUSAL), sum / 1000, 1e-9);
    struct rk_token_flops flops;
    rk_count_token_flops(&a, 1000, RK_COUNT_CAUSAL, &flops);
    assert_close(flops.total,
                 36 * (flops.attention_projections + flops.router + flops.routed) + 18 * flops.attention_full +
                     18 * flops.attention_limited + flops.head,
                 1.0);
    assert_true(flops.attention_limited < flops.attention_full);
}

static void tied_head_is_counted_once(void **state) {
    (void)state;
    struct rk_architecture a = read_file("examples/models/glm4-moe-cpu-tiny.json");
    struct rk_parameter_count tied, untied;
    struct rk_token_flops tied_flops, untied_flops;
    assert_true(a.tied_embeddings);
    rk_count_parameters(&a, &tied);
    rk_count_token_flops(&a, 64, RK_COUNT_CAUSAL, &tied_flops);
    a.tied_embeddings = false;
    rk_count_parameters(&a, &untied);
    rk_count_token_flops(&a, 64, RK_COUNT_CAUSAL, &untied_flops);
    assert_int_equal(untied.total - tied.total, 260 * 128);
    assert_int_equal(untied.active_without_embedding, tied.active_without_embedding);
    assert_true(tied_flops.total == untied_flops.total);
}

static void mtp_modules_stand_apart(void **state) {
    (void)state;
    struct rk_architecture a = parse("GLM-4.5-Air", glm_air);
    struct rk_parameter_count with, without;
    rk_count_parameters(&a, &with);
    a.mtp_layers = 0;
    rk_count_parameters(&a, &without);
    assert_int_equal(with.total, without.total);
    assert_int_equal(without.mtp_module, 0);
    assert_int_equal(with.mtp_module, with.attention + with.block_norms + with.router + 128 * with.expert +
                                          with.shared + 2 * 4096 * 4096 + 3 * 4096);
}

static void states_of_mixtral_on_sixteen(void **state) {
    (void)state;
    struct rk_architecture a = parse("Mixtral-8x7B", MIXTRAL(32, 4096, 32, 14336, 32000));
    struct rk_parameter_count count;
    rk_count_parameters(&a, &count);
    const int64_t dense = rk_not_routed_per_tensor_rank(&a, &count, 2);
    const int64_t experts = count.routed / 8;
    assert_int_equal(dense, 803475456);
    assert_int_equal(experts, 5637144576);
    const double dense_bytes = rk_state_bytes_per_parameter(RK_STATES_DISTRIBUTED_OPTIMIZER, 2, 8);
    const double expert_bytes = rk_state_bytes_per_parameter(RK_STATES_DISTRIBUTED_OPTIMIZER, 2, 2);
    assert_true(dense_bytes == 7.5 && expert_bytes == 12.0);
    assert_true((double)dense * dense_bytes + (double)experts * expert_bytes == 73671800832.0);
}

static void states_of_the_report(void **state) {
    (void)state;
    assert_true(rk_state_bytes_per_parameter(RK_STATES_REPLICATED, 2, 4) == 18.0);
    assert_true(rk_state_bytes_per_parameter(RK_STATES_DISTRIBUTED_OPTIMIZER, 2, 1) == 18.0);
    assert_true(rk_state_bytes_per_parameter(RK_STATES_FULLY_SHARDED, 2, 8) == 2.25);
    struct rk_parameter_count count;
    struct rk_architecture eight = read_file("examples/models/report-8l-n32.json");
    rk_count_parameters(&eight, &count);
    assert_prints(rk_state_bytes_per_rank(&count, 2, 1, 4, 1), GIB, 2, 62.02);
    struct rk_architecture ultra = read_file("examples/models/report-ultra-128e.json");
    rk_count_parameters(&ultra, &count);
    assert_prints(rk_state_bytes_per_rank(&count, 2.0625, 8, 8, 8), GIB, 0, 145);
    struct rk_architecture v3 = parse("DeepSeek-V3", DEEPSEEK("deepseek_v3", 3, 128, 256, 129280));
    rk_count_parameters(&v3, &count);
    assert_prints(2.0 * (double)count.total, GIB, 1, 1249.9);
    assert_prints(18.0 * (double)count.total, GIB, 0, 11249);
}

static void activations_of_the_report(void **state) {
    (void)state;
    struct rk_architecture a = read_file("examples/models/report-8l-n32.json");
    const double tokens = 16384;
    const double u = tokens * 4096 * 2;
    assert_prints(u, 1e6, 1, 134.2);
    const double moe = rk_moe_block_activation_bytes(&a, tokens, 2);
    const double dense = rk_dense_block_activation_bytes(&a, tokens, 2);
    assert_true(moe == 29.5 * u);
    assert_true(dense == 21.5 * u);
    assert_prints(moe, 1e9, 3, 3.959);
    const double all = 7 * moe + dense;
    assert_prints(all, 1e9, 1, 30.6);
    assert_prints(all + rk_logit_bytes(&a, tokens), GIB, 2, 40.75);
    assert_prints(8 * u + rk_logit_bytes(&a, tokens), GIB, 2, 13.25);
}

static void activations_of_korthikanti(void **state) {
    (void)state;
    static const struct {
        struct rk_gpt_shape shape;
        double none, selective, states; /* GiB */
    } rows[] = {
        {{2048, 4, 6144, 48, 64, 8, 1, 1}, 59.25, 9.5625, 45.5625},
        {{2048, 1, 12288, 96, 96, 8, 8, 3}, 66.84375, 12.3515625, 45.5625},
        {{2048, 1, 25600, 128, 160, 8, 64, 1}, 131.25, 26.5625, 32.958984375},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_close(rk_gpt_activation_bytes(&rows[i].shape, false) / GIB, rows[i].none, 1e-9);
        assert_close(rk_gpt_activation_bytes(&rows[i].shape, true) / GIB, rows[i].selective, 1e-9);
        assert_close(rk_gpt_state_bytes(&rows[i].shape) / GIB, rows[i].states, 1e-9);
    }
}

/* Real files, where they are at hand. Mixtral-8x22B is there with its smaller vocabulary. */
static void real_files(void **state) {
    (void)state;
    static const struct {
        const char *file;
        int64_t total;
    } rows[] = {
        {"meta-llama--Meta-Llama-3.1-8B.json", 8030261248},
        {"meta-llama--Meta-Llama-3.1-70B.json", 70553706496},
        {"mistralai--Mixtral-8x7B-v0.1.json", 46702792704},
        {"mistralai--Mixtral-8x22B-v0.1.json", 140630071296 - 2 * 768 * 6144},
        {"allenai--OLMoE-1B-7B-0924.json", 6919161856},
        {"Qwen--Qwen3-30B-A3B.json", 30532122624},
        {"Qwen--Qwen3-235B-A22B.json", 235093634560},
        {"Qwen--Qwen3-8B.json", 8190735360},
        {"Qwen--Qwen1.5-MoE-A2.7B.json", 14315784192},
        {"deepseek-ai--DeepSeek-V2.json", 235741434880},
        {"deepseek-ai--DeepSeek-V3.json", 671026419200},
        {"moonshotai--Kimi-K2-Instruct.json", 1026408232448},
        {"openai--gpt-oss-120b.json", 116829156672},
        {"zai-org--GLM-4.5-Air.json", 106852251264},
        {"meta-llama--Llama-4-Maverick-17B-128E-Instruct.json", 400711848960},
        {"MiniMaxAI--MiniMax-M2.5.json", 228689764864},
    };
    size_t found = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char path[256];
        snprintf(path, sizeof path, "../shared/data/models/%s", rows[i].file);
        if (access(path, R_OK) != 0) {
            continue;
        }
        found++;
        struct rk_architecture architecture;
        struct rk_error error = {.text = ""};
        struct rk_text warnings = {0};
        if (rk_architecture_read_file(path, &architecture, &warnings, &error) != RK_OK) {
            fail_msg("%s", error.text);
        }
        struct rk_parameter_count count;
        rk_count_parameters(&architecture, &count);
        print_message("%s %lld\n%s", rows[i].file, (long long)count.total, warnings.data ? warnings.data : "");
        assert_int_equal(count.total, rows[i].total);
        assert_int_equal(warnings.length, 0);
        rk_text_free(&warnings);
    }
    static const char *const unknown[] = {"deepseek-ai--DeepSeek-V4-Flash.json",
                                          "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        char path[256];
        struct rk_architecture architecture;
        struct rk_error error = {.text = ""};
        snprintf(path, sizeof path, "../shared/data/models/%s", unknown[i]);
        if (access(path, R_OK) == 0) {
            found++;
            assert_int_equal(rk_architecture_read_file(path, &architecture, NULL, &error), RK_USAGE);
            assert_non_null(strstr(error.text, "Keys found: architectures"));
        }
    }
    if (found == 0) {
        skip();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_counts),
        cmocka_unit_test(report_counts_and_flops),
        cmocka_unit_test(report_terms),
        cmocka_unit_test(ultra_rates),
        cmocka_unit_test(llama_2_7b_flops),
        cmocka_unit_test(limited_spans),
        cmocka_unit_test(tied_head_is_counted_once),
        cmocka_unit_test(mtp_modules_stand_apart),
        cmocka_unit_test(states_of_mixtral_on_sixteen),
        cmocka_unit_test(states_of_the_report),
        cmocka_unit_test(activations_of_the_report),
        cmocka_unit_test(activations_of_korthikanti),
        cmocka_unit_test(real_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

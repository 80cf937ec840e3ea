/* What the table of cases cannot say: bad data, ties, empty experts, independence of the capacity, refused calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/bf16.h"
#include "kernels/operands_routing.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct rk_device *device;
static struct rk_stream *stream;

static int open_device(void **state) {
    (void)state;
    const struct rk_backend *cpu = rk_backend_cpu();
    return cpu->device_open(0, NULL, &device, NULL) != RK_OK ||
           cpu->stream_create(device, false, &stream, NULL) != RK_OK;
}

static int close_device(void **state) {
    (void)state;
    rk_backend_cpu()->stream_destroy(stream);
    rk_backend_cpu()->device_close(device);
    return 0;
}

static void run(const struct rk_op_call *call) {
    struct rk_error error;
    if (rk_kernel_run(rk_backend_cpu(), stream, call, &error) != RK_OK) {
        fail_msg("%s", error.text);
    }
}

static void route(uint32_t flags, int64_t tokens, int64_t experts, int64_t top_k, float *logits, uint64_t serial,
                  int32_t *index, float *weight) {
    struct rk_op_shape shape = {.kind = RK_OP_ROUTE_FORWARD, .flags = flags, .dim = {tokens, experts, top_k}};
    int32_t requested[512];
    float mean[512];
    struct rk_op_call call = {
        .shape = &shape, .operand = {logits, NULL, index, weight, requested, mean}, .parameter = {1}, .serial = serial};
    run(&call);
    int64_t total = 0;
    for (int64_t e = 0; e < experts; e++) {
        total += requested[e];
    }
    assert_int_equal(total, tokens * top_k);
}

static void a_nan_logit_leaves_indices_valid(void **state) {
    (void)state;
    float logits[3 * 5] = {0, 1, NAN, 3, 4, NAN, NAN, NAN, NAN, NAN, 5, 4, 3, 2, 1};
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        int32_t index[9];
        float weight[9];
        route(sigmoid != 0 ? RK_OP_FLAG_SIGMOID : 0, 3, 5, 3, logits, 0, index, weight);
        for (int t = 0; t < 3; t++) {
            for (int j = 0; j < 3; j++) {
                assert_in_range(index[t * 3 + j], 0, 4);
                for (int i = 0; i < j; i++) {
                    assert_int_not_equal(index[t * 3 + i], index[t * 3 + j]);
                }
            }
        }
        assert_true(isnan(weight[3])); /* it shows */
        assert_int_equal(index[6], 0); /* and stays in its token */
        assert_true(isfinite(weight[6]) && weight[6] > weight[7]);
    }
}

static void infinite_logits_stay_in_range(void **state) {
    (void)state;
    float logits[2 * 4] = {-INFINITY, 2, -INFINITY, 1, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    int32_t index[8];
    float weight[8];
    route(0, 2, 4, 4, logits, 0, index, weight);
    const int32_t first[4] = {1, 3, 0, 2};
    assert_memory_equal(index, first, sizeof first);
    for (int i = 0; i < 8; i++) {
        assert_in_range(index[i], 0, 3);
    }
}

static void ties_go_to_the_lower_expert(void **state) {
    (void)state;
    float logits[2 * 6] = {1, 1, 1, 1, 1, 1, 0, 2, 1, 2, 1, 0};
    int32_t index[6];
    float weight[6];
    route(0, 2, 6, 3, logits, 0, index, weight);
    const int32_t expected[6] = {0, 1, 2, 1, 3, 2};
    assert_memory_equal(index, expected, sizeof expected);
}

static void random_routes_depend_on_the_serial_alone(void **state) {
    (void)state;
    enum { TOKENS = 4000, EXPERTS = 8, TOP_K = 3 };
    float *logits = calloc(TOKENS * EXPERTS, sizeof *logits), *weight = calloc(TOKENS * TOP_K, sizeof *weight);
    int32_t *first = calloc(TOKENS * TOP_K, sizeof *first), *second = calloc(TOKENS * TOP_K, sizeof *second);
    int64_t count[EXPERTS] = {0};
    route(RK_OP_FLAG_ROUTE_RANDOM, TOKENS, EXPERTS, TOP_K, logits, 7, first, weight);
    logits[5] = 3; /* the scores do not matter */
    route(RK_OP_FLAG_ROUTE_RANDOM, TOKENS, EXPERTS, TOP_K, logits, 7, second, weight);
    assert_memory_equal(first, second, TOKENS * TOP_K * sizeof *first);
    route(RK_OP_FLAG_ROUTE_RANDOM, TOKENS, EXPERTS, TOP_K, logits, 8, second, weight);
    assert_memory_not_equal(first, second, TOKENS * TOP_K * sizeof *first);
    for (int64_t i = 0; i < TOKENS * TOP_K; i++) {
        assert_in_range(first[i], 0, EXPERTS - 1);
        count[first[i]]++;
        for (int64_t j = i - i % TOP_K; j < i; j++) {
            assert_int_not_equal(first[i], first[j]);
        }
    }
    for (int e = 0; e < EXPERTS; e++) { /* 1500 expected, standard deviation 31 */
        assert_in_range(count[e], 1345, 1655);
    }
    free(logits);
    free(weight);
    free(first);
    free(second);
}

static void bad_tokens_show_and_harm_nothing(void **state) {
    (void)state;
    for (int type = 0; type < RK_DATA_TYPE_COUNT; type++) {
        struct rk_op_shape shape = {.kind = RK_OP_EMBEDDING_FORWARD, .type = (enum rk_data_type)type, .dim = {4, 3, 2}};
        int32_t tokens[4] = {2, -1, 3, 0};
        uint32_t table[6], x[8];
        memset(table, 0, sizeof table);
        struct rk_op_call call = {.shape = &shape, .operand = {tokens, table, x}};
        run(&call);
        for (int i = 0; i < 8; i++) {
            bool bad = i / 2 == 1 || i / 2 == 2;
            float value = type == RK_F32 ? ((float *)(void *)x)[i] : rk_bf16_widen(((uint16_t *)(void *)x)[i]);
            assert_true(bad ? isnan(value) : value == 0.0f);
        }
    }
    struct rk_op_shape shape = {.kind = RK_OP_EMBEDDING_BACKWARD, .dim = {3, 2, 1}};
    int32_t tokens[3] = {2, -7, 1};
    float dx[3] = {5, 6, 7}, dtable[2] = {1, 2};
    struct rk_op_call call = {.shape = &shape, .operand = {tokens, dx, dtable}};
    run(&call);
    assert_true(dtable[0] == 1.0f && dtable[1] == 9.0f);
}

static void cross_entropy_sums_the_loss(void **state) {
    (void)state;
    struct rk_op_shape shape = {.kind = RK_OP_CROSS_ENTROPY, .dim = {3, 4}};
    float logits[12] = {1, 2, 3, 4, 100, -100, 0, 0, 7, 7, 7, 7};
    int32_t targets[3] = {1, -1, 3};
    double loss = 10;
    struct rk_op_call call = {.shape = &shape, .operand = {logits, targets, &loss}, .parameter = {0.25f}};
    run(&call);
    double first = log(exp(1) + exp(2) + exp(3) + exp(4)) - 2, last = log(4);
    assert_true(fabs(loss - (10 + 0.25 * (first + last))) < 1e-6);
    for (int i = 4; i < 8; i++) {
        assert_true(logits[i] == 0.0f); /* the ignored token */
    }
    targets[0] = 4;
    run(&call);
    assert_true(isnan(loss));
    for (int i = 0; i < 4; i++) {
        assert_true(logits[i] == 0.0f);
    }
}

/* All 16 subsets of empty experts, in every grouped op: right values, NaN tails unread and untouched, and the gradient
 * of an expert without rows not changed by a bit. */
static void every_subset_of_empty_experts(void **state) {
    (void)state;
    static const enum rk_op_kind kinds[] = {RK_OP_GROUPED_GEMM_FORWARD, RK_OP_GROUPED_GEMM_DGRAD,
                                            RK_OP_GROUPED_GEMM_WGRAD, RK_OP_SWIGLU_FORWARD, RK_OP_SWIGLU_BACKWARD};
    for (int empty = 0; empty < 16; empty++) {
        for (int k = 0; k < 5 * RK_DATA_TYPE_COUNT; k++) {
            bool grouped = rk_op_family(kinds[k / 2]) == RK_OP_FAMILY_GROUPED_GEMM;
            struct rk_op_case op_case = {.name = "empty experts",
                                         .shape = {.kind = kinds[k / 2], .dim = {29, 4, 5, 3}},
                                         .tolerance = {2e-5, 4e-3}};
            op_case.shape.dim[1] = grouped ? 4 : 7;
            op_case.shape.dim[2] = grouped ? 5 : 4;
            for (int e = 0; e < 4; e++) {
                op_case.offsets[e + 1] = op_case.offsets[e] + ((empty >> e & 1) != 0 ? 0 : 3 + 2 * e);
            }
            if (empty == 15) {
                continue; /* all offsets 0 means "as drawn"; the cases without rows cover it */
            }
            struct rk_oracle_result result;
            struct rk_error error = {0};
            enum rk_data_type type = k % 2 == 0 ? RK_F32 : RK_BF16;
            if (rk_oracle_run(rk_backend_cpu(), device, &op_case, type, (uint64_t)empty, &result, &error) != RK_OK ||
                rk_oracle_check_untouched(&op_case, &result, &error) != RK_OK ||
                rk_oracle_compare_reference(&op_case, &result, 40, 1, &error) != RK_OK) {
                fail_msg("subset %d, %s: %s", empty, rk_op_name(op_case.shape.kind), error.text);
            }
            for (int e = 0; e < 4 && op_case.shape.kind == RK_OP_GROUPED_GEMM_WGRAD; e++) {
                size_t bytes = 5 * 3 * sizeof(float);
                const char *before = (const char *)result.bytes_before[3] + (size_t)e * bytes;
                const char *after = (const char *)result.bytes_after[3] + (size_t)e * bytes;
                assert_int_equal(memcmp(before, after, bytes) == 0, (empty >> e & 1) != 0);
            }
            rk_oracle_result_free(&result);
        }
    }
}

/* The same rows in receive buffers of different capacity give the same bits. */
static void results_do_not_depend_on_the_capacity(void **state) {
    (void)state;
    enum { ROWS = 301, N = 37, K = 53 };
    const int32_t offsets[3] = {0, 290, ROWS};
    float *x = calloc(ROWS * K, sizeof *x), *w = calloc(2 * N * K, sizeof *w);
    float *first = calloc(ROWS * N, sizeof *first), *second = calloc(ROWS * N, sizeof *second);
    for (int i = 0; i < ROWS * K; i++) {
        x[i] = (float)((i * 7919) % 1009) / 1009.0f - 0.5f;
    }
    for (int i = 0; i < 2 * N * K; i++) {
        w[i] = (float)((i * 104729) % 1013) / 1013.0f - 0.5f;
    }
    struct rk_op_shape shape = {.kind = RK_OP_GROUPED_GEMM_FORWARD, .dim = {ROWS, 2, N, K}};
    struct rk_op_call call = {.shape = &shape, .operand = {x, w, (void *)(uintptr_t)offsets, first}};
    run(&call);
    shape.dim[0] = 40 * ROWS;
    call.operand[3] = second;
    run(&call);
    assert_memory_equal(first, second, ROWS * N * sizeof *first);
    free(x);
    free(w);
    free(first);
    free(second);
}

/* The maps of all ranks of a group fit together: the same keep decision, and every row of a receive buffer filled once.
 */
static void maps_of_a_group_fit_together(void **state) {
    (void)state;
    enum { TOKENS = 53, EXPERTS = 12, TOP_K = 3, RANKS = 4, HELD = EXPERTS / RANKS };
    const int64_t capacities[] = {1, 100, 159, 200, TOKENS * TOP_K * RANKS};
    for (size_t c = 0; c < sizeof capacities / sizeof capacities[0]; c++) {
        struct rk_routing_example map[RANKS];
        for (int rank = 0; rank < RANKS; rank++) {
            assert_int_equal(
                rk_routing_example_make(TOKENS, EXPERTS, TOP_K, RANKS, capacities[c], rank, 5, &map[rank], NULL),
                RK_OK);
            assert_memory_equal(map[0].kept, map[rank].kept, RANKS * EXPERTS * sizeof(int32_t));
        }
        for (int destination = 0; destination < RANKS; destination++) {
            int32_t rows = map[destination].offsets[HELD];
            int32_t *filled = calloc((size_t)rows + 1, sizeof *filled);
            assert_true(rows <= capacities[c]);
            for (int source = 0; source < RANKS; source++) {
                for (int i = 0; i < TOKENS * TOP_K; i++) {
                    int32_t expert = map[source].index[i], row = map[source].row[i];
                    if (expert / HELD != destination || row < 0) {
                        continue;
                    }
                    assert_in_range(row, map[destination].offsets[expert % HELD],
                                    map[destination].offsets[expert % HELD + 1] - 1);
                    filled[row]++;
                }
            }
            for (int32_t row = 0; row < rows; row++) {
                assert_int_equal(filled[row], 1);
            }
            free(filled);
        }
        for (int rank = 0; rank < RANKS; rank++) {
            rk_routing_example_free(&map[rank]);
        }
    }
}

static void calls_that_cannot_run_are_refused(void **state) {
    (void)state;
    struct rk_error error;
    float value = 0;
    struct rk_op_shape shape = {.kind = RK_OP_GEMM_FORWARD, .dim = {1, 1, 1}};
    struct rk_op_call call = {.shape = &shape, .operand = {&value, NULL, NULL, &value}};
    assert_int_equal(rk_kernel_run(rk_backend_cpu(), stream, &call, &error), RK_ERROR);
    assert_non_null(strstr(error.text, "operand 1 (w, 4 bytes) is missing"));
    shape.type = RK_BF16;
    call.operand[1] = &value;
    assert_int_equal(rk_kernel_run(rk_backend_cpu(), stream, &call, &error), RK_ERROR);
    assert_non_null(strstr(error.text, "workspace"));
    shape.dim[1] = (int64_t)1 << 31;
    call.operand[4] = &value;
    assert_int_equal(rk_kernel_run(rk_backend_cpu(), stream, &call, &error), RK_USAGE);
    shape = (struct rk_op_shape){.kind = RK_OP_ALL_REDUCE, .dim = {1, 2}};
    assert_int_equal(rk_kernel_run(rk_backend_cpu(), stream, &call, &error), RK_ERROR);
    assert_non_null(strstr(error.text, "all_reduce"));
    shape = (struct rk_op_shape){.kind = RK_OP_ROPE_FORWARD, .flags = RK_OP_FLAG_QK_NORM_HEAD, .dim = {1, 1, 1, 1, 2}};
    assert_int_equal(rk_kernel_run(rk_backend_cpu(), stream, &call, &error), RK_ERROR);
    assert_non_null(strstr(error.text, "gain"));
    shape = (struct rk_op_shape){.kind = RK_OP_ROPE_FORWARD, .dim = {0, 1, 1, 1, 3}};
    assert_int_equal(rk_kernel_run(rk_backend_cpu(), stream, &call, &error), RK_USAGE);
    shape = (struct rk_op_shape){.kind = RK_OP_ROUTE_BACKWARD, .dim = {0, 3, 4}};
    memset(call.operand, 0, sizeof call.operand);
    call.operand[2] = call.operand[3] = &value;
    assert_int_equal(rk_kernel_run(rk_backend_cpu(), stream, &call, &error), RK_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_nan_logit_leaves_indices_valid), cmocka_unit_test(infinite_logits_stay_in_range),
        cmocka_unit_test(ties_go_to_the_lower_expert),      cmocka_unit_test(random_routes_depend_on_the_serial_alone),
        cmocka_unit_test(bad_tokens_show_and_harm_nothing), cmocka_unit_test(cross_entropy_sums_the_loss),
        cmocka_unit_test(every_subset_of_empty_experts),    cmocka_unit_test(results_do_not_depend_on_the_capacity),
        cmocka_unit_test(maps_of_a_group_fit_together),     cmocka_unit_test(calls_that_cannot_run_are_refused),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}

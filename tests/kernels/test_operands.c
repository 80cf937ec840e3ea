/* rk_operands_make: valid for every op, reproducible, as distributed as asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/operands.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct rk_device *device;

static int open_device(void **state) {
    (void)state;
    return rk_backend_cpu()->device_open(0, "/tmp", &device, NULL) != RK_OK;
}

static int close_device(void **state) {
    (void)state;
    rk_backend_cpu()->device_close(device);
    return 0;
}

static void make(const struct rk_op_shape *shape, int32_t group_rank, enum rk_distribution distribution, uint64_t seed,
                 struct rk_operands *operands) {
    struct rk_error error;
    if (rk_operands_make(rk_backend_cpu(), device, shape, group_rank, distribution, seed, operands, &error) != RK_OK) {
        fail_msg("%s: %s", rk_op_name(shape->kind), error.text);
    }
}

static struct rk_op_shape example(enum rk_op_kind kind) {
    struct rk_op_shape shape = {.kind = kind, .type = RK_BF16};
    static const int64_t exchange[6] = {40, 6, 3, 8, 2, 90}, map[5] = {40, 8, 3, 2, 90}, other[5] = {12, 6, 4, 2, 4};
    if (kind == RK_OP_DISPATCH || kind == RK_OP_COMBINE) {
        memcpy(shape.dim, exchange, sizeof exchange);
    } else if (kind == RK_OP_ROUTE_MAP) {
        memcpy(shape.dim, map, sizeof map);
    } else if (kind == RK_OP_COUNT_EXCHANGE) {
        memcpy(shape.dim, map + 1, sizeof(int64_t));
        shape.dim[1] = 2;
    } else {
        memcpy(shape.dim, other, sizeof other);
    }
    return shape;
}

static void every_op_gets_operands_and_runs(void **state) {
    (void)state;
    for (int kind = 0; kind < RK_OP_KIND_COUNT; kind++) {
        struct rk_op_shape shape = example((enum rk_op_kind)kind);
        for (int distribution = 0; distribution < RK_DISTRIBUTION_COUNT; distribution++) {
            struct rk_operands operands;
            struct rk_error error;
            make(&shape, 0, (enum rk_distribution)distribution, 3, &operands);
            assert_true(rk_op_shape_equal(operands.call.shape, &shape));
            for (int i = 0; i < rk_op_operand_count(shape.kind); i++) {
                assert_true(operands.call.operand[i] != NULL || rk_op_operand_optional(shape.kind, i));
            }
            if (rk_op_executor(shape.kind) == RK_BY_KERNEL &&
                rk_kernel_run(rk_backend_cpu(), operands.stream, &operands.call, &error) != RK_OK) {
                fail_msg("%s: %s", rk_op_name(shape.kind), error.text);
            }
            rk_operands_free(&operands);
        }
    }
}

static void the_same_seed_gives_the_same_bytes(void **state) {
    (void)state;
    struct rk_op_shape shape = {.kind = RK_OP_GEMM_FORWARD, .dim = {300, 5, 700}}; /* x repeats after 65,521 values */
    struct rk_operands first, second, other;
    make(&shape, 0, RK_DISTRIBUTION_NORMAL, 1, &first);
    make(&shape, 0, RK_DISTRIBUTION_NORMAL, 1, &second);
    make(&shape, 0, RK_DISTRIBUTION_NORMAL, 2, &other);
    assert_int_equal(first.bytes[0], 300 * 700 * 4);
    assert_memory_equal(first.memory[0], second.memory[0], 300 * 700 * 4);
    assert_memory_not_equal(first.memory[0], other.memory[0], 300 * 700 * 4);
    rk_operands_free(&first);
    rk_operands_free(&second);
    rk_operands_free(&other);
}

static void distributions_are_what_they_say(void **state) {
    (void)state;
    const struct {
        enum rk_distribution distribution;
        double square, largest;
    } expected[] = {
        {RK_DISTRIBUTION_NORMAL, 1, 6},
        {RK_DISTRIBUTION_ZEROS, 0, 0},
        {RK_DISTRIBUTION_UNIFORM, 1.0 / 3, 1},
        {RK_DISTRIBUTION_CONSTANT, 1, 1},
    };
    struct rk_op_shape shape = {.kind = RK_OP_GEMM_FORWARD, .dim = {200, 300, 100}};
    for (size_t d = 0; d < sizeof expected / sizeof expected[0]; d++) {
        struct rk_operands operands;
        make(&shape, 0, expected[d].distribution, 1, &operands);
        const float *x = operands.memory[0], *w = operands.memory[1];
        double square = 0, weight_square = 0, largest = 0;
        for (int i = 0; i < 200 * 100; i++) {
            square += (double)(x[i] * x[i]) / (200 * 100);
            largest = fmax(largest, fabs((double)x[i]));
        }
        for (int i = 0; i < 300 * 100; i++) {
            weight_square += (double)(w[i] * w[i]) / 300; /* scaled by 1/sqrt(100) */
        }
        assert_true(fabs(square - expected[d].square) < 0.05 && largest <= expected[d].largest);
        assert_true(fabs(weight_square - expected[d].square) < 0.05);
        assert_int_equal(rk_distribution_from_name(rk_distribution_name(expected[d].distribution)),
                         expected[d].distribution);
        rk_operands_free(&operands);
    }
    assert_int_equal(rk_distribution_from_name("gaussian"), RK_DISTRIBUTION_COUNT);
}

static void exchange_operands_agree_over_the_group(void **state) {
    (void)state;
    struct rk_op_shape shape = example(RK_OP_COMBINE);
    struct rk_operands ranks[2];
    for (int32_t rank = 0; rank < 2; rank++) {
        make(&shape, rank, RK_DISTRIBUTION_NORMAL, 9, &ranks[rank]);
    }
    assert_memory_equal(ranks[0].memory[4], ranks[1].memory[4], 2 * 8 * 4); /* kept */
    assert_memory_not_equal(ranks[0].memory[2], ranks[1].memory[2], 40 * 3 * 4);
    for (int32_t rank = 0; rank < 2; rank++) {
        const int32_t *kept = ranks[0].memory[4];
        int64_t received = 0;
        for (int32_t source = 0; source < 2; source++) {
            for (int32_t e = 4 * rank; e < 4 * rank + 4; e++) {
                received += kept[source * 8 + e];
            }
        }
        assert_int_equal(received, ranks[rank].valid_rows);
        assert_in_range(received, 1, 90);
        const uint16_t *rows = ranks[rank].memory[0];
        for (int64_t i = 0; i < 90 * 6; i++) {
            assert_int_equal(rows[i] == 0xFFFF, i >= received * 6); /* NaN past the prefix */
        }
    }
    rk_operands_free(&ranks[0]);
    rk_operands_free(&ranks[1]);
}

static void grouped_rows_are_all_valid_until_told_otherwise(void **state) {
    (void)state;
    struct rk_op_shape shape = {.kind = RK_OP_GROUPED_GEMM_FORWARD, .dim = {1000, 4, 3, 2}};
    struct rk_operands operands;
    make(&shape, 0, RK_DISTRIBUTION_NORMAL, 1, &operands);
    const int32_t *offsets = operands.memory[2];
    assert_int_equal(offsets[0], 0);
    assert_int_equal(offsets[4], 1000);
    assert_int_equal(operands.valid_rows, 1000);
    for (int e = 0; e < 4; e++) { /* 250 expected, standard deviation 14 */
        assert_in_range(offsets[e + 1] - offsets[e], 180, 320);
    }
    const int32_t shorter[5] = {0, 1, 1, 500, 700};
    assert_int_equal(rk_operands_set_offsets(&operands, shorter, NULL), RK_OK);
    assert_int_equal(operands.valid_rows, 700);
    const float *x = operands.memory[0];
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(isnan(x[i]) != 0, i >= 1400);
    }
    rk_operands_free(&operands);
}

static void impossible_routing_is_refused(void **state) {
    (void)state;
    struct rk_error error;
    struct rk_operands operands;
    struct rk_op_shape shape = {.kind = RK_OP_ROUTE_MAP, .dim = {4, 6, 2, 4, 8}};
    assert_int_equal(
        rk_operands_make(rk_backend_cpu(), device, &shape, 0, RK_DISTRIBUTION_NORMAL, 1, &operands, &error), RK_USAGE);
    shape.dim[3] = 2;
    assert_int_equal(
        rk_operands_make(rk_backend_cpu(), device, &shape, 2, RK_DISTRIBUTION_NORMAL, 1, &operands, &error), RK_USAGE);
    shape.dim[2] = 7;
    assert_int_equal(
        rk_operands_make(rk_backend_cpu(), device, &shape, 0, RK_DISTRIBUTION_NORMAL, 1, &operands, &error), RK_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_gets_operands_and_runs),
        cmocka_unit_test(the_same_seed_gives_the_same_bytes),
        cmocka_unit_test(distributions_are_what_they_say),
        cmocka_unit_test(exchange_operands_agree_over_the_group),
        cmocka_unit_test(grouped_rows_are_all_valid_until_told_otherwise),
        cmocka_unit_test(impossible_routing_is_refused),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}

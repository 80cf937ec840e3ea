/* The op tables: complete, consistent with one another, and right on worked examples. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/ops.h"

#include <string.h>

static void every_kind_and_operand_is_in_the_tables(void **state) {
    (void)state;
    for (int kind = 0; kind < RK_OP_KIND_COUNT; kind++) {
        enum rk_op_kind op = (enum rk_op_kind)kind;
        assert_int_equal(rk_op_from_name(rk_op_name(op)), op);
        assert_true(strlen(rk_op_dimensions(op)) > 0);
        int count = rk_op_operand_count(op);
        assert_in_range(count, 1, RK_OP_OPERANDS);
        for (int operand = 0; operand < count; operand++) {
            assert_true(strlen(rk_op_operand_name(op, operand)) > 0);
            assert_int_not_equal(rk_op_operand_access(op, operand), RK_ACCESS_NONE);
        }
        assert_string_equal(rk_op_operand_name(op, count), "");
        assert_int_equal(rk_op_operand_access(op, count), RK_ACCESS_NONE);
        assert_int_equal(rk_op_operand_access(op, -1), RK_ACCESS_NONE);
        int workspace = rk_op_workspace_operand(op);
        assert_true(workspace == -1 || strcmp(rk_op_operand_name(op, workspace), "workspace") == 0);
    }
    assert_int_equal(rk_op_from_name("no such op"), RK_OP_KIND_COUNT);
}

static void every_name_of_a_list_differs(void **state) {
    (void)state;
    for (int left = 0; left < RK_OP_FAMILY_COUNT; left++) {
        for (int right = 0; right < left; right++) {
            assert_string_not_equal(rk_op_family_name((enum rk_op_family)left),
                                    rk_op_family_name((enum rk_op_family)right));
        }
    }
    for (int stream = 0; stream < RK_STREAM_COUNT; stream++) {
        assert_non_null(rk_stream_name((enum rk_stream_kind)stream));
    }
    for (int group = 0; group < RK_GROUP_COUNT; group++) {
        assert_non_null(rk_group_name((enum rk_group_kind)group));
    }
    for (int phase = 0; phase < RK_PHASE_COUNT; phase++) {
        assert_non_null(rk_phase_name((enum rk_phase)phase));
    }
    assert_string_equal(rk_data_type_name(RK_F32), "f32");
    assert_string_equal(rk_data_type_name(RK_BF16), "bf16");
}

/* Every operand of a shape without a zero dimension has a size, workspaces and absent gains apart. */
static void operands_have_sizes(void **state) {
    (void)state;
    for (int kind = 0; kind < RK_OP_KIND_COUNT; kind++) {
        struct rk_op_shape shape = {
            .kind = (enum rk_op_kind)kind, .flags = RK_OP_FLAG_QK_NORM_HEAD, .dim = {8, 4, 4, 2, 2, 8, 8, 8}};
        for (int operand = 0; operand < rk_op_operand_count(shape.kind); operand++) {
            int64_t bytes = rk_op_operand_bytes(&shape, operand);
            if (operand == rk_op_workspace_operand(shape.kind)) {
                assert_int_equal(bytes, 0);
            } else {
                assert_true(bytes > 0);
                assert_int_equal(bytes % rk_element_bytes(rk_op_operand_element(&shape, operand)), 0);
            }
        }
        assert_int_equal(rk_op_operand_bytes(&shape, rk_op_operand_count(shape.kind)), 0);
    }
}

static void sizes_follow_type_and_flags(void **state) {
    (void)state;
    struct rk_op_shape gemm = {.kind = RK_OP_GEMM_FORWARD, .type = RK_BF16, .dim = {3, 5, 7}};
    assert_int_equal(rk_op_operand_bytes(&gemm, 0), 3 * 7 * 2);
    assert_int_equal(rk_op_operand_bytes(&gemm, 3), 3 * 5 * 2);
    gemm.flags = RK_OP_FLAG_F32_OUTPUT;
    assert_int_equal(rk_op_operand_bytes(&gemm, 3), 3 * 5 * 4);
    assert_int_equal(rk_op_operand_bytes(&gemm, 2), 3 * 5 * 2);
    struct rk_op_shape dgrad = {
        .kind = RK_OP_GEMM_DGRAD, .type = RK_BF16, .flags = RK_OP_FLAG_F32_INPUT, .dim = {3, 5, 7}};
    assert_int_equal(rk_op_operand_bytes(&dgrad, 0), 3 * 5 * 4);

    struct rk_op_shape rope = {.kind = RK_OP_ROPE_FORWARD, .dim = {6, 3, 4, 2, 8}};
    assert_int_equal(rk_op_operand_bytes(&rope, 0), 6 * 8 * 8 * 4);
    assert_int_equal(rk_op_operand_bytes(&rope, 1), 0);
    rope.flags = RK_OP_FLAG_QK_NORM_HEAD;
    assert_int_equal(rk_op_operand_bytes(&rope, 2), 8 * 4);
    rope.flags = RK_OP_FLAG_QK_NORM_FULL;
    assert_int_equal(rk_op_operand_bytes(&rope, 1), 4 * 8 * 4);
    assert_int_equal(rk_op_operand_bytes(&rope, 2), 2 * 8 * 4);

    struct rk_op_shape map = {.kind = RK_OP_ROUTE_MAP, .dim = {10, 8, 2, 4, 25}};
    assert_int_equal(rk_op_operand_bytes(&map, 4), 3 * 4);
    assert_int_equal(rk_op_operand_bytes(&map, 6), 17 * 8);

    struct rk_op_shape large = {.kind = RK_OP_GEMM_FORWARD, .dim = {1 << 20, 1 << 18, 1 << 16}};
    assert_int_equal(rk_op_operand_bytes(&large, 3), (int64_t)1 << 40);

    struct rk_op_shape sum = {.kind = RK_OP_ALL_REDUCE, .flags = RK_OP_FLAG_F64, .dim = {4, 2}};
    assert_int_equal(rk_op_operand_bytes(&sum, 0), 32);
}

static void operations_and_bytes_of_worked_examples(void **state) {
    (void)state;
    struct rk_op_shape gemm = {.kind = RK_OP_GEMM_WGRAD, .dim = {3, 5, 7}};
    assert_float_equal(rk_op_flops(&gemm), 2 * 3 * 5 * 7, 0);
    assert_float_equal(rk_op_bytes(&gemm), 4 * (3 * 5 + 3 * 7 + 2 * 5 * 7), 0);

    /* two sequences of 3 positions: 2 · (1 + 2 + 3) pairs, two products of width 8 for each of 4 heads */
    struct rk_op_shape attention = {.kind = RK_OP_ATTENTION_FORWARD, .dim = {6, 3, 4, 2, 8}};
    assert_float_equal(rk_op_flops(&attention), 12 * 2 * 2 * 8 * 4, 0);
    attention.kind = RK_OP_ATTENTION_BACKWARD;
    assert_float_equal(rk_op_flops(&attention), 12 * 5 * 2 * 8 * 4, 0);

    /* a small vocabulary is read once, of a large one only the rows of the tokens */
    struct rk_op_shape embedding = {.kind = RK_OP_EMBEDDING_FORWARD, .dim = {10, 4, 2}};
    assert_float_equal(rk_op_bytes(&embedding), 10 * 4 + 4 * 2 * 4 + 10 * 2 * 4, 0);
    embedding.dim[1] = 1000;
    assert_float_equal(rk_op_bytes(&embedding), 10 * 4 + 10 * 2 * 4 + 10 * 2 * 4, 0);
}

static void remote_bytes_of_worked_examples(void **state) {
    (void)state;
    /* 4 experts on 2 ranks, 2 routes: both on the same rank with chance 1/3 in all, so the other rank is missed with
     * chance C(2,2)/C(4,2) = 1/6 */
    struct rk_op_shape dispatch = {.kind = RK_OP_DISPATCH, .type = RK_BF16, .dim = {12, 10, 2, 4, 2, 24}};
    assert_float_equal(rk_op_remote_bytes(&dispatch), 12 * (5.0 / 6 * 10 * 2 + 2 * 0.5 * 4), 1e-9);
    dispatch.dim[2] = 4; /* K = N: every rank is hit */
    assert_float_equal(rk_op_remote_bytes(&dispatch), 12 * (10 * 2 + 4 * 0.5 * 4), 1e-9);
    dispatch.dim[4] = 1;
    assert_float_equal(rk_op_remote_bytes(&dispatch), 0, 0);

    struct rk_op_shape combine = {.kind = RK_OP_COMBINE, .type = RK_BF16, .dim = {12, 10, 2, 4, 2, 24}};
    assert_float_equal(rk_op_remote_bytes(&combine), 12 * 2 * 0.5 * 10 * 2, 1e-9);

    struct rk_op_shape scatter = {.kind = RK_OP_REDUCE_SCATTER, .type = RK_BF16, .dim = {64, 4}};
    assert_float_equal(rk_op_remote_bytes(&scatter), 64 * 4 * 0.75, 0);
    struct rk_op_shape gather = {.kind = RK_OP_ALL_GATHER, .type = RK_BF16, .dim = {64, 4}};
    assert_float_equal(rk_op_remote_bytes(&gather), 64 * 2 * 0.75, 0);
    struct rk_op_shape reduce = {.kind = RK_OP_ALL_REDUCE, .dim = {64, 4}};
    assert_float_equal(rk_op_remote_bytes(&reduce), 2 * 64 * 4 * 0.75, 0);
    struct rk_op_shape local = {.kind = RK_OP_GEMM_FORWARD, .dim = {64, 4, 4}};
    assert_float_equal(rk_op_remote_bytes(&local), 0, 0);
}

static void workspaces_are_bounded_and_aligned(void **state) {
    (void)state;
    for (int kind = 0; kind < RK_OP_KIND_COUNT; kind++) {
        for (int backend = 0; backend < RK_BACKEND_COUNT; backend++) {
            struct rk_op_shape shape = {.kind = (enum rk_op_kind)kind, .type = RK_BF16, .dim = {8, 4, 4, 2, 2, 8}};
            int64_t bytes = rk_op_workspace_bytes(&shape, (enum rk_backend_kind)backend);
            assert_true(bytes >= 0 && bytes % 256 == 0);
            assert_true(bytes == 0 || rk_op_workspace_operand(shape.kind) >= 0);
        }
    }
    struct rk_op_shape gemm = {.kind = RK_OP_GEMM_FORWARD, .dim = {512, 512, 512}};
    assert_int_equal(rk_op_workspace_bytes(&gemm, RK_BACKEND_CPU), 0);
    gemm.type = RK_BF16;
    int64_t bytes = rk_op_workspace_bytes(&gemm, RK_BACKEND_CPU);
    gemm.dim[0] = gemm.dim[1] = 1 << 20;
    assert_int_equal(rk_op_workspace_bytes(&gemm, RK_BACKEND_CPU), bytes);
}

static void equal_shapes_hash_alike_and_others_apart(void **state) {
    (void)state;
    struct rk_op_shape base = {.kind = RK_OP_GEMM_FORWARD, .type = RK_BF16, .dim = {1, 2, 3}};
    struct rk_op_shape changed[6] = {base, base, base, base, base, base};
    assert_true(rk_op_shape_equal(&base, &changed[0]));
    assert_true(rk_op_shape_hash(&base) == rk_op_shape_hash(&changed[0]));
    changed[0].kind = RK_OP_GEMM_DGRAD;
    changed[1].type = RK_F32;
    changed[2].flags = RK_OP_FLAG_F32_OUTPUT;
    changed[3].group = RK_GROUP_WORLD;
    changed[4].dim[0] = 2;
    changed[5].dim[7] = 1;
    for (int i = 0; i < 6; i++) {
        assert_false(rk_op_shape_equal(&base, &changed[i]));
        for (int j = 0; j < i; j++) {
            assert_true(rk_op_shape_hash(&changed[i]) != rk_op_shape_hash(&changed[j]));
        }
        assert_true(rk_op_shape_hash(&base) != rk_op_shape_hash(&changed[i]));
    }
}

static void a_shape_as_text_says_all_of_it(void **state) {
    (void)state;
    char text[160], small[8];
    struct rk_op_shape shape = {
        .kind = RK_OP_ALL_REDUCE, .type = RK_BF16, .flags = RK_OP_FLAG_F64, .group = RK_GROUP_DATA, .dim = {64, 4}};
    assert_string_equal(rk_op_shape_text(&shape, text, sizeof text),
                        "all_reduce bf16 elements=64 group=4 f64 over data");
    shape = (struct rk_op_shape){.kind = RK_OP_GEMM_FORWARD, .flags = RK_OP_FLAG_F32_OUTPUT, .dim = {1, 2, 3}};
    assert_string_equal(rk_op_shape_text(&shape, text, sizeof text), "gemm_forward f32 m=1 n=2 k=3 f32_output");
    assert_string_equal(rk_op_shape_text(&shape, small, sizeof small), "gemm_fo");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_and_operand_is_in_the_tables),
        cmocka_unit_test(every_name_of_a_list_differs),
        cmocka_unit_test(operands_have_sizes),
        cmocka_unit_test(sizes_follow_type_and_flags),
        cmocka_unit_test(operations_and_bytes_of_worked_examples),
        cmocka_unit_test(remote_bytes_of_worked_examples),
        cmocka_unit_test(workspaces_are_bounded_and_aligned),
        cmocka_unit_test(equal_shapes_hash_alike_and_others_apart),
        cmocka_unit_test(a_shape_as_text_says_all_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Activation offload in the step program: what leaves, that it comes back, and that no copy races with a use. */
#include "step_samples.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct rk_program *lower(enum rk_recompute recompute, int32_t percent) {
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MIXED);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    candidate.recompute = recompute;
    candidate.offload_percent = percent;
    rk_sample_layout(&architecture, &candidate, 3, 1, 2, 4, 6);
    return rk_sample_lower(&architecture, &candidate, 1);
}

static const struct rk_buffer *find_buffer(const struct rk_program *program, const char *name) {
    for (size_t i = 0; i < program->buffer_count; i++)
        if (strcmp(program->buffers[i].name, name) == 0)
            return &program->buffers[i];
    return NULL;
}

static void offloaded_bytes_never_pass_the_percentage(void **state) {
    (void)state;
    for (int policy = 0; policy < RK_RECOMPUTE_COUNT; policy++) {
        int64_t before = 0;
        for (int32_t percent = 0; percent <= 100; percent += 5) {
            struct rk_program *program = lower((enum rk_recompute)policy, percent);
            int64_t kept = program->kept_bytes[RK_BLOCK_MOE], leaves = program->offloaded_bytes[RK_BLOCK_MOE];
            assert_true(leaves * 100 <= kept * percent);
            assert_true(leaves >= before);
            assert_int_equal(leaves == kept, percent == 100);
            /* The largest value is under half of all: some set comes within it of any limit below the block's input. */
            if (policy == RK_RECOMPUTE_NONE && percent >= 10 && percent < 90)
                assert_true(leaves * 100 > kept * (percent - 8));
            before = leaves;
            rk_program_free(program);
        }
    }
}

/* By block only the input is kept, which leaves whole or not at all; routes never leave. */
static void routes_and_single_inputs_stay(void **state) {
    struct rk_program *program = lower(RK_RECOMPUTE_BLOCK, 99);
    (void)state;
    assert_int_equal(program->offloaded_bytes[RK_BLOCK_MOE], 0);
    assert_non_null(find_buffer(program, "block.input"));
    rk_program_free(program);

    program = lower(RK_RECOMPUTE_BLOCK, 100);
    assert_int_equal(program->offloaded_bytes[RK_BLOCK_MOE], 32 * 32 * 4);
    assert_null(find_buffer(program, "block.input"));
    assert_non_null(find_buffer(program, "block.input.staging"));
    assert_int_equal(find_buffer(program, "block.input.reload")->ring_size, 2);
    assert_int_equal(find_buffer(program, "block.input.host")->space, RK_SPACE_HOST);
    assert_int_equal(find_buffer(program, "moe.index")->scope, RK_SCOPE_LAYER_SLOT);
    assert_int_equal(find_buffer(program, "moe.index")->space, RK_SPACE_DEVICE);
    rk_program_free(program);
}

/* Bytes of the copies of one visit of each kind of segment, and how often they are visited. */
static int64_t copied(const struct rk_program *program, enum rk_op_kind kind) {
    int64_t bytes = 0;
    for (size_t v = 0; v < program->visit_count; v++) {
        const struct rk_segment *segment = &program->segments[program->schedule[v].segment];
        for (size_t i = 0; i < segment->op_count; i++)
            if (program->ops[segment->first_op + i].shape.kind == kind)
                bytes += program->ops[segment->first_op + i].shape.dim[0];
    }
    return bytes;
}

static void what_leaves_comes_back_once_for_each_micro_batch(void **state) {
    static const int32_t percents[] = {0, 30, 100};
    (void)state;
    for (int policy = 0; policy < RK_RECOMPUTE_COUNT; policy++) {
        for (size_t p = 0; p < sizeof percents / sizeof percents[0]; p++) {
            struct rk_program *program = lower((enum rk_recompute)policy, percents[p]);
            int64_t expected = 0;
            for (int32_t i = 0; i < program->layer_count; i++)
                expected += program->offloaded_bytes[program->layer_kinds[i]] * 6;
            assert_int_equal(copied(program, RK_OP_COPY_D2H), expected);
            assert_int_equal(copied(program, RK_OP_COPY_H2D), expected);
            rk_program_free(program);
        }
    }
}

/* The host pool holds every layer and slot; the device holds two instances on the way out and two on the way back. */
static void memory_moves_to_the_host(void **state) {
    struct rk_error error;
    struct rk_memory_layout stays, leaves;
    struct rk_program *all = lower(RK_RECOMPUTE_NONE, 100), *none = lower(RK_RECOMPUTE_NONE, 0);
    (void)state;
    assert_int_equal(rk_memory_layout_make(none, &stays, &error), RK_OK);
    assert_int_equal(rk_memory_layout_make(all, &leaves, &error), RK_OK);
    assert_int_equal(stays.host_bytes, 0);
    int64_t kept = all->kept_bytes[RK_BLOCK_MOE] * all->layer_count * all->slots[0];
    assert_true(leaves.host_bytes >= kept);
    assert_true(leaves.host_bytes < kept + kept / 8);
    assert_int_equal(leaves.owner_bytes[RK_OWNER_ACTIVATIONS], 0);
    assert_true(leaves.owner_bytes[RK_OWNER_OFFLOAD] >= 4 * all->kept_bytes[RK_BLOCK_MOE]);
    rk_memory_layout_free(&stays);
    rk_memory_layout_free(&leaves);
    rk_program_free(all);
    rk_program_free(none);
}

static bool waits_for(const struct rk_program *program, const struct rk_op *op, const char *event) {
    for (int i = 0; i < RK_OP_WAITS; i++)
        if (op->wait[i].event != RK_NO_EVENT && strcmp(program->events[op->wait[i].event].name, event) == 0)
            return true;
    return false;
}

static void drop_wait(const struct rk_program *program, struct rk_op *op, const char *event) {
    int kept = 0;
    for (int i = 0; i < RK_OP_WAITS; i++)
        if (op->wait[i].event != RK_NO_EVENT && strcmp(program->events[op->wait[i].event].name, event) != 0)
            op->wait[kept++] = op->wait[i];
    while (kept < RK_OP_WAITS)
        op->wait[kept++].event = RK_NO_EVENT;
}

/* Every event that guards a ring is needed: without it a copy and a use meet. */
static void missing_ring_events_are_found(void **state) {
    static const char *const events[] = {"staging free", "offloaded", "reload free", "reloaded"};
    (void)state;
    for (size_t e = 0; e < sizeof events / sizeof events[0]; e++) {
        struct rk_program *program = lower(RK_RECOMPUTE_NONE, 100);
        struct rk_error error = {.text = ""};
        int dropped = 0;
        for (size_t i = 0; i < program->op_count; i++) {
            if (!waits_for(program, &program->ops[i], events[e]))
                continue;
            drop_wait(program, &program->ops[i], events[e]);
            dropped++;
        }
        assert_true(dropped > 0);
        if (rk_program_check(program, &error) == RK_OK)
            fail_msg("without its waits for '%s' the program passes", events[e]);
        rk_program_free(program);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offloaded_bytes_never_pass_the_percentage),
        cmocka_unit_test(routes_and_single_inputs_stay),
        cmocka_unit_test(what_leaves_comes_back_once_for_each_micro_batch),
        cmocka_unit_test(memory_moves_to_the_host),
        cmocka_unit_test(missing_ring_events_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "model/cost_hardware.h"
#include "model/cost_place.h"
#include "model/segment_time.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void read_profile(const char *name, struct rk_hardware *hardware) {
    struct rk_error error = {0};
    char path[128];
    snprintf(path, sizeof path, "hardware/%s.json", name);
    if (rk_hardware_read_file(path, hardware, &error) != RK_OK)
        fail_msg("%s", error.text);
}

static struct rk_cost_hardware *profile_costs(const struct rk_hardware *hardware,
                                              const struct rk_architecture *architecture) {
    struct rk_cost_hardware *costs = NULL;
    struct rk_error error = {0};
    if (rk_cost_hardware_make(hardware, architecture, 8192, &costs, &error) != RK_OK)
        fail_msg("%s", error.text);
    return costs;
}

static const struct rk_cost_place LOCAL = {.group_size = 1, .concurrent = 8, .row_share = 1};

static struct rk_cost price_of(struct rk_cost_hardware *costs, const struct rk_op_shape *shape,
                               const struct rk_cost_place *place) {
    struct rk_cost_source source = rk_cost_hardware_source(costs);
    struct rk_cost cost;
    struct rk_error error = {0};
    if (source.price(source.context, shape, place, &cost, &error) != RK_OK)
        fail_msg("%s", error.text);
    return cost;
}

/* No op is faster than the data sheet allows. */
static void test_never_beats_the_roofline(void **state) {
    (void)state;
    static const char *const profiles[] = {"b300", "h200", "h100", "a100"};
    static const struct rk_op_shape shapes[] = {
        {.kind = RK_OP_GEMM_FORWARD, .type = RK_BF16, .dim = {8192, 8192, 8192}},
        {.kind = RK_OP_GEMM_WGRAD, .type = RK_BF16, .dim = {16, 8192, 8192}},
        {.kind = RK_OP_GROUPED_GEMM_FORWARD, .type = RK_BF16, .dim = {65536, 8, 8192, 4096}},
        {.kind = RK_OP_ATTENTION_FORWARD, .type = RK_BF16, .dim = {16384, 8192, 32, 8, 128}},
        {.kind = RK_OP_ATTENTION_BACKWARD, .type = RK_BF16, .dim = {16384, 8192, 32, 8, 128}},
        {.kind = RK_OP_RMSNORM_FORWARD, .type = RK_BF16, .dim = {16384, 4096}},
        {.kind = RK_OP_ADAMW, .type = RK_BF16, .dim = {1 << 28}},
    };
    for (size_t p = 0; p < sizeof profiles / sizeof profiles[0]; p++) {
        struct rk_hardware hardware;
        read_profile(profiles[p], &hardware);
        struct rk_cost_hardware *costs = profile_costs(&hardware, NULL);
        double peak = rk_hardware_figure(&hardware, RK_HARDWARE_PEAK_BF16)->value;
        const struct rk_profile_figure *memory = rk_hardware_figure(&hardware, RK_HARDWARE_MEMORY_BANDWIDTH);
        for (size_t i = 0; memory != NULL && i < sizeof shapes / sizeof shapes[0]; i++) {
            struct rk_cost cost = price_of(costs, &shapes[i], &LOCAL);
            assert_true(cost.seconds >= rk_op_flops(&shapes[i]) / peak);
            assert_true(cost.seconds >= rk_op_bytes(&shapes[i]) / memory->value * (1 - 1e-12));
            assert_true(cost.origin != RK_ORIGIN_MEASURED);
            assert_true(cost.relative_uncertainty > 0);
        }
        rk_cost_hardware_free(costs);
    }
}

/* What leaves the host goes over a rail, however small the group. */
static void test_tiers(void **state) {
    (void)state;
    struct rk_hardware hardware;
    read_profile("b300", &hardware);
    struct rk_cost_hardware *costs = profile_costs(&hardware, NULL);
    struct rk_op_shape reduce = {.kind = RK_OP_ALL_REDUCE, .type = RK_F32, .dim = {1 << 26, 8}};
    struct rk_cost_place inside = {.group_size = 8, .concurrent = 8, .row_share = 1};
    struct rk_cost_place outside = inside;
    outside.crosses_hosts = true;
    assert_true(price_of(costs, &reduce, &outside).seconds > 4 * price_of(costs, &reduce, &inside).seconds);
    struct rk_op_shape dispatch = {.kind = RK_OP_DISPATCH, .type = RK_BF16, .dim = {8192, 4096, 4, 64, 8, 32768}};
    assert_true(price_of(costs, &dispatch, &outside).seconds >= price_of(costs, &dispatch, &inside).seconds);
    struct rk_op_shape copy = {.kind = RK_OP_COPY_D2H, .type = RK_BF16, .dim = {53000000}};
    assert_true(fabs(price_of(costs, &copy, &LOCAL).seconds - 1e-3) < 1e-9);
    rk_cost_hardware_free(costs);
}

static void test_missing_figures(void **state) {
    (void)state;
    struct rk_hardware hardware;
    read_profile("b300", &hardware);
    hardware.figures[RK_HARDWARE_MEMORY_BANDWIDTH].known = false;
    hardware.figures[RK_HARDWARE_EFFICIENCY_GEMM].known = false;
    hardware.published_count = 0;
    struct rk_cost_hardware *costs = profile_costs(&hardware, NULL);
    struct rk_cost_source source = rk_cost_hardware_source(costs);
    struct rk_op_shape norm = {.kind = RK_OP_RMSNORM_FORWARD, .type = RK_BF16, .dim = {128, 4096}};
    struct rk_cost cost;
    struct rk_error error = {0};
    assert_int_equal(source.price(source.context, &norm, &LOCAL, &cost, &error), RK_UNCALIBRATED);
    assert_non_null(strstr(error.text, "memory_bandwidth"));
    rk_cost_hardware_free(costs);
    read_profile("b300", &hardware);
    hardware.figures[RK_HARDWARE_EFFICIENCY_GEMM].known = false;
    costs = profile_costs(&hardware, NULL);
    struct rk_op_shape gemm = {.kind = RK_OP_GEMM_FORWARD, .type = RK_BF16, .dim = {8192, 8192, 8192}};
    cost = price_of(costs, &gemm, &LOCAL);
    assert_int_equal(cost.origin, RK_ORIGIN_SPECIFICATION);
    assert_true(cost.relative_uncertainty >= 0.5);
    assert_true(fabs(cost.seconds - rk_op_flops(&gemm) / 2.25e15) < 1e-9);
    rk_cost_hardware_free(costs);
}

/* Sum of a block's visit in a lowered program with the prices of the source. */
static double block_seconds(struct rk_cost_hardware *costs, const struct rk_machine *machine,
                            const struct rk_program *program, bool backward) {
    double *seconds = calloc(program->op_count, sizeof *seconds);
    assert_non_null(seconds);
    double found = 0;
    for (size_t v = 0; v < program->visit_count && !(found > 0); v++) {
        const struct rk_visit *visit = &program->schedule[v];
        if (visit->ordinal < 0 || program->layer_kinds[visit->ordinal] != RK_BLOCK_MOE ||
            !rk_segment_is_block(program, visit->segment, backward))
            continue;
        const struct rk_segment *segment = &program->segments[visit->segment];
        for (size_t i = segment->first_op; i < segment->first_op + segment->op_count; i++) {
            struct rk_cost_place place;
            rk_cost_place_of(program, machine, &program->ops[i], rk_cost_routed_rows(program), RK_BUSY_ALL, &place);
            struct rk_cost cost = price_of(costs, &program->ops[i].shape, &place);
            assert_int_equal(cost.origin, RK_ORIGIN_PUBLISHED);
            seconds[i] = cost.seconds;
        }
        found = rk_segment_seconds(program, visit->segment, seconds, false);
    }
    free(seconds);
    return found;
}

/* The report's block takes the report's times, whatever the capacity of the receive buffer. */
static void test_published_block(void **state) {
    (void)state;
    struct rk_hardware hardware;
    struct rk_machine machine;
    struct rk_architecture architecture;
    struct rk_error error = {0};
    read_profile("b300", &hardware);
    assert_int_equal(rk_hardware_machine(&hardware, &machine, &error), RK_OK);
    if (rk_architecture_read_file("examples/models/report-8l-n32.json", &architecture, NULL, &error) != RK_OK)
        fail_msg("%s", error.text);
    struct rk_cost_hardware *costs = profile_costs(&hardware, &architecture);
    for (int i = 0; i < 2; i++) {
        struct rk_candidate candidate = {.pipeline = 1,
                                         .virtual_stages = 1,
                                         .expert_parallel = 4,
                                         .data_parallel = 4,
                                         .micro_batch_tokens = 16384,
                                         .sequence = 8192,
                                         .global_batch_tokens = 65536,
                                         .type = RK_BF16,
                                         .backend = RK_BACKEND_CUDA,
                                         .capacity_factor = 1 + 3 * i};
        rk_candidate_defaults(&candidate);
        rk_candidate_even_chunks(&architecture, &candidate);
        struct rk_program *program = NULL;
        if (rk_program_lower(&architecture, &candidate, 0, &program, &error) != RK_OK)
            fail_msg("%s", error.text);
        assert_true(fabs(block_seconds(costs, &machine, program, false) - 10.3e-3) < 1e-7);
        assert_true(fabs(block_seconds(costs, &machine, program, true) - 22e-3) < 1e-7);
        rk_program_free(program);
    }
    /* The head's products are no part of the block. */
    struct rk_op_shape head = {
        .kind = RK_OP_GEMM_FORWARD, .type = RK_BF16, .dim = {1024, architecture.vocabulary, 4096}};
    assert_true(price_of(costs, &head, &LOCAL).origin != RK_ORIGIN_PUBLISHED);
    rk_cost_hardware_free(costs);
}

/* Sixteen ranks on hosts of eight: a group of all crosses hosts and keeps eight ranks of each busy; on shared devices
 * ranks outnumber devices. */
static void test_places(void **state) {
    (void)state;
    struct rk_architecture architecture;
    struct rk_error error = {0};
    if (rk_architecture_read_file("examples/models/olmoe-cpu-tiny.json", &architecture, NULL, &error) != RK_OK)
        fail_msg("%s", error.text);
    struct rk_candidate candidate = {.pipeline = 1,
                                     .virtual_stages = 1,
                                     .expert_parallel = 8,
                                     .data_parallel = 16,
                                     .micro_batch_tokens = 128,
                                     .sequence = 128,
                                     .global_batch_tokens = 2048,
                                     .type = RK_F32,
                                     .backend = RK_BACKEND_CUDA,
                                     .capacity_factor = 1};
    rk_candidate_defaults(&candidate);
    rk_candidate_even_chunks(&architecture, &candidate);
    struct rk_program *program = NULL;
    if (rk_program_lower(&architecture, &candidate, 0, &program, &error) != RK_OK)
        fail_msg("%s", error.text);
    struct rk_machine hosts = {.backend = RK_BACKEND_CUDA, .devices_per_host = 8}, shared = hosts;
    shared.shared_devices = true;
    size_t data = 0, experts = 0;
    for (size_t i = 0; i < program->op_count; i++) {
        const struct rk_op *op = &program->ops[i];
        struct rk_cost_place place;
        for (int32_t busy = 0; busy <= 1; busy++) {
            rk_cost_place_of(program, &hosts, op, 0, busy == 0 ? 0 : RK_BUSY_ALL, &place);
            if (op->shape.group == RK_GROUP_DATA || op->shape.group == RK_GROUP_EXPERT_PARALLEL)
                assert_int_equal(place.concurrent, 8);
            assert_int_equal(place.crosses_hosts, op->shape.group == RK_GROUP_DATA ||
                                                      op->shape.group == RK_GROUP_EXPERT_REPLICA ||
                                                      op->shape.group == RK_GROUP_WORLD);
        }
        data += op->shape.group == RK_GROUP_DATA;
        experts += op->shape.group == RK_GROUP_EXPERT_PARALLEL;
        rk_cost_place_of(program, &shared, op, 0, 0, &place);
        if (op->shape.group == RK_GROUP_DATA)
            assert_int_equal(place.concurrent, 16);
        assert_false(place.crosses_hosts);
    }
    assert_true(data > 0 && experts > 0);
    rk_program_free(program);
}

/* A profile's times for four ranks say nothing about a model whose experts four ranks cannot share, nor forbid it. */
static void test_published_for_others(void **state) {
    (void)state;
    struct rk_hardware hardware;
    struct rk_architecture architecture;
    struct rk_error error = {0};
    read_profile("b300", &hardware);
    if (rk_architecture_read_file("examples/models/report-8l-n32.json", &architecture, NULL, &error) != RK_OK)
        fail_msg("%s", error.text);
    architecture.experts = 30;
    struct rk_cost_hardware *costs = NULL;
    if (rk_cost_hardware_make(&hardware, &architecture, 8192, &costs, &error) != RK_OK)
        fail_msg("%s", error.text);
    struct rk_op_shape product = {.kind = RK_OP_GEMM_FORWARD, .type = RK_BF16, .dim = {16384, 4096, 4096}};
    assert_true(price_of(costs, &product, &LOCAL).origin != RK_ORIGIN_PUBLISHED);
    rk_cost_hardware_free(costs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_never_beats_the_roofline),
        cmocka_unit_test(test_tiers),
        cmocka_unit_test(test_missing_figures),
        cmocka_unit_test(test_published_block),
        cmocka_unit_test(test_published_for_others),
        cmocka_unit_test(test_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

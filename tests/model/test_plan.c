#include "model/cost_hardware.h"
#include "model/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A plan of a small model on GPUs of a profile, as text. */
static struct rk_plan *make_plan(const char *model, int64_t world, int64_t sequence, int32_t pipeline) {
    struct rk_error error = {0};
    struct rk_architecture architecture;
    struct rk_hardware hardware;
    struct rk_machine machine;
    struct rk_cost_hardware *profile = NULL;
    struct rk_search_result result = {0};
    struct rk_plan *plan = NULL;
    char path[256], *config = NULL;
    size_t length = 0;
    snprintf(path, sizeof path, "examples/models/%s.json", model);
    if (rk_read_file(path, 1 << 20, &config, &length, &error) != RK_OK ||
        rk_architecture_read_file(path, &architecture, NULL, &error) != RK_OK ||
        rk_hardware_read_file("hardware/b300.json", &hardware, &error) != RK_OK ||
        rk_hardware_machine(&hardware, &machine, &error) != RK_OK ||
        rk_cost_hardware_make(&hardware, &architecture, sequence, &profile, &error) != RK_OK)
        fail_msg("%s", error.text);
    struct rk_cost_source costs = rk_cost_hardware_source(profile);
    struct rk_search_request request = {.architecture = &architecture,
                                        .machine = &machine,
                                        .costs = &costs,
                                        .world = world,
                                        .sequence = sequence,
                                        .global_batch_tokens = sequence * world * 8,
                                        .type = RK_BF16,
                                        .pipeline = pipeline,
                                        .offload_percent = -1,
                                        .recompute = -1};
    if (rk_search(&request, &result, &error) != RK_OK ||
        rk_plan_make(&architecture, config, &result.judgements[0].candidate, &machine, &costs, &result, &plan,
                     &error) != RK_OK)
        fail_msg("%s", error.text);
    rk_search_result_free(&result);
    rk_cost_hardware_free(profile);
    free(config);
    return plan;
}

static struct rk_text write_plan(const struct rk_plan *plan) {
    struct rk_text text = {0};
    struct rk_error error = {0};
    if (rk_plan_write(plan, &text, &error) != RK_OK)
        fail_msg("%s", error.text);
    assert_false(text.failed);
    return text;
}

static void test_round_trip(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int64_t world, sequence;
        int32_t pipeline;
    } cases[] = {{"olmoe-cpu-tiny", 4, 128, 0}, {"glm4-moe-cpu-tiny", 8, 128, 4}, {"report-8l-n32", 8, 8192, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rk_plan *plan = make_plan(cases[i].model, cases[i].world, cases[i].sequence, cases[i].pipeline);
        plan->calibration = (int64_t)i;
        struct rk_text first = write_plan(plan);
        struct rk_plan *again = NULL;
        struct rk_error error = {0};
        if (rk_plan_read("plan.json", first.data, first.length, &again, &error) != RK_OK)
            fail_msg("%s", error.text);
        struct rk_text second = write_plan(again);
        assert_int_equal(first.length, second.length);
        assert_memory_equal(first.data, second.data, first.length);
        assert_int_equal(again->calibration, (int64_t)i);
        assert_int_equal(again->candidate.pipeline, plan->candidate.pipeline);
        assert_true(again->candidates > 50 && again->example_count > 2);
        assert_true(again->term_count > 10);
        assert_true(again->seconds > 0 && again->low <= again->seconds && again->seconds <= again->high);
        if (getenv("RK_WRITE_PLAN") != NULL && i == 0)
            assert_int_equal(rk_write_file(getenv("RK_WRITE_PLAN"), first.data, first.length, NULL), RK_OK);
        rk_text_free(&first);
        rk_text_free(&second);
        rk_plan_free(plan);
        rk_plan_free(again);
    }
}

/* Replaces the first occurrence of `from` after `after` by `to`. */
static char *changed(const struct rk_text *text, const char *after, const char *from, const char *to) {
    const char *start = strstr(text->data, after);
    const char *at = start != NULL ? strstr(start, from) : NULL;
    if (at == NULL)
        fail_msg("the plan has no '%s' after '%s'", from, after);
    size_t head = (size_t)(at - text->data);
    char *made = malloc(text->length + strlen(to) + 1);
    assert_non_null(made);
    memcpy(made, text->data, head);
    strcpy(made + head, to);
    strcat(made, at + strlen(from));
    return made;
}

static void test_hostile_plans(void **state) {
    (void)state;
    static const struct {
        const char *after, *from, *to, *message;
    } cases[] = {
        {"", "\"reckon-plan\"", "\"something\"", "this is no plan"},
        {"", "\"version\": 1", "\"version\": 2", "version is 2; this program reads version 1: plan again"},
        {"", "\"version\": 1", "\"version\": 1.5", "whole number"},
        {"", "\"version\": 1", "\"version\": \"1\"", "version must be a whole number, not a string"},
        {"", "\"version\": 1,", "\"version\": 1, \"colour\": 3,", "unknown keys: colour"},
        {"\"candidate\"", "\"pipeline\":", "\"pipelines\":", "candidate.pipeline"},
        {"\"candidate\"", "\"pipeline\":", "\"extra\": 1, \"pipeline\":", "candidate: unknown keys: extra"},
        {"\"candidate\"", "\"capacity_factor\": ", "\"capacity_factor\": -", "capacity_factor"},
        {"\"candidate\"", "\"capacity_factor\": ", "\"capacity_factor\": NaN, \"x\": ", "capacity_factor"},
        {"\"candidate\"", "\"micro_batch_tokens\": ", "\"micro_batch_tokens\": 1e300, \"x\": ", "micro_batch_tokens"},
        {"\"candidate\"", "\"micro_batch_tokens\": ", "\"micro_batch_tokens\": 7", "candidate"},
        {"\"candidate\"", "\"recompute\": \"", "\"recompute\": \"un", "candidate.recompute: 'un"},
        {"\"candidate\"", "\"chunk_layers\": [", "\"chunk_layers\": [1, ", "chunk_layers"},
        {"\"candidate\"", "\"chunk_layers\": [", "\"chunk_layers\": [true], \"x\": [", "chunk_layers"},
        {"\"stages\"", "\"arena_bytes\": ", "\"arena_bytes\": 1", "stages[0].arena_bytes"},
        {"\"stages\"", "\"weights\": ", "\"weights\": 1", "stages[0].owner_bytes.weights"},
        {"\"stages\"", "\"total\": ", "\"total\": -", "total"},
        {"\"stages\"", "\"compute\": ", "\"computed\": ", "compute"},
        {"\"step_seconds\"", "\"low\": ", "\"low\": 9", "step_seconds"},
        {"\"terms\"", "\"kind\": \"", "\"kind\": \"no", "kind: 'no"},
        {"\"terms\"", "\"count\": ", "\"count\": -", "count"},
        {"\"search\"", "\"feasible\": ", "\"feasible\": 1e17, \"x\": ", "feasible"},
        {"\"config\"", "\"model_type\": \"", "\"model_type\": \"no", "config"},
        {"\"config\"", "\"num_experts\": ", "\"num_experts\": -", "config"},
    };
    struct rk_plan *plan = make_plan("olmoe-cpu-tiny", 4, 128, 1);
    struct rk_text text = write_plan(plan);
    rk_plan_free(plan);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *bad = changed(&text, cases[i].after, cases[i].from, cases[i].to);
        struct rk_error error = {0};
        plan = NULL;
        enum rk_status status = rk_plan_read("bad.json", bad, strlen(bad), &plan, &error);
        if (status != RK_USAGE || strstr(error.text, cases[i].message) == NULL ||
            strstr(error.text, "bad.json") == NULL)
            fail_msg("case %zu (%s): status %d, '%s'", i, cases[i].to, (int)status, error.text);
        free(bad);
    }
    /* Cut anywhere. */
    for (size_t length = 0; length < text.length - 2; length += 1 + length / 50) {
        struct rk_error error = {0};
        assert_int_equal(rk_plan_read("cut.json", text.data, length, &plan, &error), RK_USAGE);
        assert_true(error.text[0] != '\0');
    }
    rk_text_free(&text);
}

/* A candidate that would take a schedule of a billion visits is refused before it is lowered. */
static void test_absurd_schedule(void **state) {
    (void)state;
    struct rk_plan *plan = make_plan("olmoe-cpu-tiny", 4, 128, 1);
    plan->candidate.global_batch_tokens *= 100000000;
    struct rk_text text = write_plan(plan);
    rk_plan_free(plan);
    struct rk_error error = {0};
    assert_int_equal(rk_plan_read("large.json", text.data, text.length, &plan, &error), RK_USAGE);
    assert_non_null(strstr(error.text, "enlarge the micro-batch"));
    rk_text_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_hostile_plans),
        cmocka_unit_test(test_absurd_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

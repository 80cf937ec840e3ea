/* A comparison made by hand: medians, signed errors, waits that are no work, factors that explain, memory to the byte.
 */
#include "report/compare.h"

#include "base/json.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 10 };

/* Two stages of two ranks. */
struct fixture {
    struct rk_plan plan;
    struct rk_stage_time stages[2];
    struct rk_plan_term terms[2];
    struct rk_step_row steps[STEPS];
    struct rk_run_op_row ops[5];
    struct rk_run_memory_row memory[3];
    struct rk_compare_input input;
};

static struct rk_run_op_row op_row(int64_t stage, const char *kind, const char *phase, int64_t count, double total,
                                   double wait) {
    struct rk_run_op_row row = {
        .rank = -1, .stage = stage, .count = count, .total_seconds = total, .wait_seconds = wait};
    snprintf(row.kind, sizeof row.kind, "%s", kind);
    snprintf(row.phase, sizeof row.phase, "%s", phase);
    return row;
}

static struct rk_run_memory_row memory_row(int64_t rank, const char *owner, int64_t predicted, int64_t allocated) {
    struct rk_run_memory_row row = {.rank = rank, .predicted_bytes = predicted, .allocated_bytes = allocated};
    snprintf(row.owner, sizeof row.owner, "%s", owner);
    snprintf(row.space, sizeof row.space, "device");
    return row;
}

static void fixture_make(struct fixture *made) {
    memset(made, 0, sizeof *made);
    made->plan.candidate.pipeline = 2;
    made->plan.candidate.data_parallel = 2;
    made->plan.seconds = 1.0;
    made->plan.low = 0.9;
    made->plan.high = 1.1;
    made->plan.stages = made->stages;
    made->stages[0] = (struct rk_stage_time){.compute = 0.4, .bubble = 0.6, .total = 1.0};
    made->stages[1] = (struct rk_stage_time){.compute = 0.7, .exposed_pipeline = 0.1, .bubble = 0.2, .total = 1.0};
    made->stages[1].phase[RK_PHASE_FORWARD] = 0.5;
    made->stages[1].family[RK_OP_FAMILY_GEMM] = 0.5;
    made->plan.terms = made->terms;
    made->plan.term_count = 2;
    made->terms[0] = (struct rk_plan_term){.kind = RK_OP_GEMM_FORWARD,
                                           .count = 10,
                                           .seconds = 0.5,
                                           .relative_uncertainty = 0.02,
                                           .origin = RK_ORIGIN_MEASURED};
    made->terms[1] = (struct rk_plan_term){.kind = RK_OP_RECEIVE,
                                           .count = 4,
                                           .seconds = 0.1,
                                           .relative_uncertainty = 0.1,
                                           .origin = RK_ORIGIN_EXTRAPOLATED};
    for (int i = 0; i < STEPS; i++)
        made->steps[i] = (struct rk_step_row){.step = i, .seconds = i < 2 ? 9.0 : 1.24 + 0.01 * (i - 5), .tokens = 1};
    made->steps[5].traced = true;
    made->steps[5].seconds = 50;
    made->ops[0] = op_row(1, "gemm_forward", "forward", 10, 0.6, 0);
    made->ops[1] = op_row(1, "receive", "forward", 4, 0.5, 0.38);
    made->ops[2] = op_row(0, "gemm_forward", "forward", 10, 0.4, 0);
    made->ops[3] = op_row(1, "bubble", "account", 1, 0.38, 0);
    made->ops[4] = op_row(1, "compute", "account", 1, 0.84, 0);
    made->memory[0] = memory_row(0, "weights", 1000, 1000);
    made->memory[1] = memory_row(3, "all", 5000, 5001);
    made->memory[2] = memory_row(3, "driver", -1, 7000);
    made->input = (struct rk_compare_input){.plan = &made->plan,
                                            .steps = made->steps,
                                            .step_count = STEPS,
                                            .ops = made->ops,
                                            .op_count = 5,
                                            .memory = made->memory,
                                            .memory_count = 3,
                                            .tolerance = NAN};
}

static const struct rk_comparison_row *find(const struct rk_comparison *comparison, const char *level, const char *name,
                                            int64_t stage) {
    for (size_t i = 0; i < comparison->row_count; i++)
        if (strcmp(comparison->rows[i].level, level) == 0 && strcmp(comparison->rows[i].name, name) == 0 &&
            comparison->rows[i].stage == stage)
            return &comparison->rows[i];
    fail_msg("no row %s %s of stage %lld", level, name, (long long)stage);
    return NULL;
}

static void near(double value, double wanted) {
    if (!(fabs(value - wanted) < 1e-12))
        fail_msg("%.17g for %.17g", value, wanted);
}

static void rows_by_hand(void **state) {
    (void)state;
    struct fixture made;
    struct rk_comparison comparison;
    struct rk_error error = {0};
    fixture_make(&made);
    assert_ok(rk_compare(&made.input, &comparison, &error), error);
    /* Steps 2 to 9 without the traced one: 1.21 1.22 1.23 1.25 1.26 1.27 1.28. */
    near(comparison.measured_seconds, 1.25);
    assert_int_equal(comparison.counted_steps, 7);
    assert_int_equal(comparison.traced_steps, 1);
    assert_int_equal(comparison.deciding_stage, 1);
    const struct rk_comparison_row *step = find(&comparison, "step", "step", -1);
    near(rk_comparison_error(step), 1 / 1.25 - 1);
    near(step->relative_uncertainty, 0.1);
    assert_string_equal(step->origin, "extrapolated");
    /* Waiting for the other stage is no work of RECEIVE. */
    near(find(&comparison, "op", "receive", 1)->measured, 0.12);
    near(find(&comparison, "op", "gemm_forward", 1)->measured, 0.6);
    near(find(&comparison, "phase", "forward", 1)->measured, 0.72);
    near(find(&comparison, "family", "gemm", 1)->measured, 0.6);
    near(find(&comparison, "account", "bubble", 1)->measured, 0.38);
    near(find(&comparison, "account", "bubble", 1)->predicted, 0.2);
    assert_true(isnan(find(&comparison, "account", "compute", 0)->measured));
    /* 0.25 s are missing: 1 + 0.25/0.5 on the GEMM, 1 + 0.25/0.1 on RECEIVE. */
    assert_non_null(strstr(find(&comparison, "op", "gemm_forward", 1)->note, "x1.500"));
    assert_non_null(strstr(find(&comparison, "op", "gemm_forward", 1)->note, "is x1.200"));
    assert_non_null(strstr(find(&comparison, "op", "receive", 1)->note, "x3.500"));
    assert_int_equal(comparison.memory_rows, 2);
    assert_int_equal(comparison.memory_exact, 1);
    assert_false(find(&comparison, "memory", "rank 3 device all", 1)->within);
    assert_true(comparison.within);
    rk_comparison_free(&comparison);
}

static void tolerance_decides(void **state) {
    (void)state;
    struct fixture made;
    struct rk_comparison comparison;
    struct rk_error error = {0};
    fixture_make(&made);
    made.input.tolerance = 0.15;
    assert_ok(rk_compare(&made.input, &comparison, &error), error);
    assert_false(comparison.within);
    rk_comparison_free(&comparison);
    made.input.tolerance = 0.25;
    assert_ok(rk_compare(&made.input, &comparison, &error), error);
    assert_true(comparison.within);
    rk_comparison_free(&comparison);
}

static void nothing_counted_is_refused(void **state) {
    (void)state;
    struct fixture made;
    struct rk_comparison comparison;
    struct rk_error error = {0};
    fixture_make(&made);
    for (int i = 0; i < STEPS; i++)
        made.steps[i].traced = true;
    assert_fails(rk_compare(&made.input, &comparison, &error), RK_USAGE, error, "untraced");
    made.input.step_count = 0;
    assert_fails(rk_compare(&made.input, &comparison, &error), RK_USAGE, error, "untraced");
}

static void output_is_complete(void **state) {
    (void)state;
    struct fixture made;
    struct rk_comparison comparison;
    struct rk_error error = {0};
    struct rk_text text = {0};
    cJSON *root = NULL;
    fixture_make(&made);
    assert_ok(rk_compare(&made.input, &comparison, &error), error);
    rk_comparison_print_json(&comparison, 7, &text);
    assert_false(text.failed);
    assert_ok(rk_json_parse("comparison", text.data, text.length, &root, &error), error);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "rows")), comparison.row_count);
    cJSON_Delete(root);
    rk_text_free(&text);
    rk_comparison_print(&comparison, &text);
    assert_non_null(strstr(text.data, "error -20.0 %"));
    assert_non_null(strstr(text.data, "1 of 2 accounts predicted to the byte"));
    assert_non_null(strstr(text.data, "stage 1"));
    rk_text_free(&text);
    rk_comparison_free(&comparison);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_by_hand),
        cmocka_unit_test(tolerance_decides),
        cmocka_unit_test(nothing_counted_is_refused),
        cmocka_unit_test(output_is_complete),
    };
    return cmocka_run_group_tests_name("compare", tests, NULL, NULL);
}

/* Layout does not change the mathematics: the same global batch under every division of the model and the batch over
 * ranks gives the same loss, gradient norm and gradients within FP32 rounding; recomputation, offload, tracing and
 * repetition give the same bits.
 *
 * Bound: sums over ranks and micro-batches are taken in another order, so an element may differ by a few roundings of
 * the largest partial sums. Measured over these cases the largest difference is below 2e-6 of the largest element of
 * its tensor; 1e-5 (84 units of FP32 rounding) is the bound of the test. A wrong factor, a lost micro-batch or a
 * dropped route is many orders above it. */
#include "training_case.h"

#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double BOUND = 1e-5;

static char folder[64];
static struct training_outcome *reference, *outcome;

static void in_folder(char path[128], const char *name) {
    snprintf(path, 128, "%s/%s", folder, name);
}

static double relative(double value, double wanted) {
    return fabs(value - wanted) / fabs(wanted);
}

/* Two steps on one rank; the gradients of the second are those of updated weights. */
static void make_reference(const struct training_case *like) {
    char gradients[128], final[128];
    struct training_case test = *like;
    in_folder(gradients, "reference-gradients");
    in_folder(final, "reference-final");
    test.pipeline = test.virtual_stages = test.expert_parallel = test.data_parallel = 0;
    test.chunk_layers = NULL;
    test.gradients = gradients;
    test.final = final;
    test.steps = 2;
    case_run_well(&test, reference);
}

static void check_layout(const char *name, const struct training_case *like) {
    char gradients[128], final[128], wanted[128], worst[64] = "";
    struct training_case test = *like;
    in_folder(gradients, "gradients");
    in_folder(final, "final");
    in_folder(wanted, "reference-gradients");
    test.gradients = gradients;
    test.final = final;
    test.steps = 2;
    case_run_well(&test, outcome);
    for (int i = 0; i < 2; i++) {
        const struct rk_training_step *step = &outcome->step[i], *want = &reference->step[i];
        if (relative(step->loss, want->loss) > 1e-6 || relative(step->balance, want->balance) > 1e-6 ||
            relative(step->z, want->z) > 1e-5 || relative(step->gradient_norm, want->gradient_norm) > BOUND ||
            step->dropped != want->dropped || step->routes != want->routes)
            fail_msg(
                "%s, step %d: loss %.9g for %.9g, balance %.9g for %.9g, z %.9g for %.9g, norm %.9g for %.9g, routes "
                "%lld (%lld dropped) for %lld (%lld)",
                name, i, step->loss, want->loss, step->balance, want->balance, step->z, want->z, step->gradient_norm,
                want->gradient_norm, (long long)step->routes, (long long)step->dropped, (long long)want->routes,
                (long long)want->dropped);
    }
    double difference = file_difference(wanted, gradients, worst);
    if (!(difference <= BOUND))
        fail_msg("%s: gradients differ by %g of the largest element of %s", name, difference, worst);
    in_folder(wanted, "reference-final");
    double weights = file_difference(wanted, final, worst);
    if (!(weights <= 1e-3))
        fail_msg("%s: weights after two steps differ by %g of the largest element of %s", name, weights, worst);
    print_message("  %-28s gradients within %.1e, weights within %.1e\n", name, difference, weights);
}

/* Layers of each chunk, for uneven stages. */
static const int16_t uneven_2[] = {3, 1};

static const struct layout {
    const char *name;
    int pipeline, virtual_stages, expert_parallel, data_parallel;
    const int16_t *chunk_layers;
} layouts[] = {
    {"DP 2", 1, 1, 1, 2, NULL},
    {"DP 4", 1, 1, 1, 4, NULL},
    {"EP 2", 1, 1, 2, 2, NULL},
    {"EP 4", 1, 1, 4, 4, NULL},
    {"EP 2, EP-DP 2", 1, 1, 2, 4, NULL},
    {"PP 2", 2, 1, 1, 1, NULL},
    {"PP 4", 4, 1, 1, 1, NULL},
    {"PP 2, two virtual stages", 2, 2, 1, 1, NULL},
    {"PP 2, uneven", 2, 1, 1, 1, uneven_2},
    {"PP 2, DP 2", 2, 1, 1, 2, NULL},
    {"PP 2, EP 2", 2, 1, 2, 2, NULL},
    {"PP 2, EP 2, EP-DP 2", 2, 1, 2, 4, NULL},
    {"PP 2, two virtual, EP 2", 2, 2, 2, 2, NULL},
    {"PP 4, EP 2", 4, 1, 2, 2, NULL},
};

static void check_layouts(const struct training_case *like) {
    make_reference(like);
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        struct training_case test = *like;
        test.pipeline = layouts[i].pipeline;
        test.virtual_stages = layouts[i].virtual_stages;
        test.expert_parallel = layouts[i].expert_parallel;
        test.data_parallel = layouts[i].data_parallel;
        test.chunk_layers = layouts[i].chunk_layers;
        check_layout(layouts[i].name, &test);
    }
}

static void olmoe_layouts(void **state) {
    (void)state;
    struct training_case test = {.model = model_olmoe, .poison = true};
    check_layouts(&test);
}

static void qwen3_layouts(void **state) {
    (void)state;
    struct training_case test = {.model = model_qwen3, .poison = true, .logits_chunk = 8, .bucket_bytes = 4096};
    check_layouts(&test);
}

static void glm4_layouts(void **state) {
    (void)state;
    struct training_case test = {.model = model_glm4, .poison = true, .recompute = RK_RECOMPUTE_BLOCK};
    check_layouts(&test);
}

static void random_routes_are_those_of_the_window(void **state) {
    (void)state;
    struct training_case test = {.model = model_olmoe, .routing = RK_ROUTING_RANDOM, .poison = true};
    check_layouts(&test);
}

/* The same bits: every policy of memory against keeping everything, on two stages of two ranks. */
static void policies_keep_the_bits(void **state) {
    (void)state;
    static const struct policy {
        const char *name;
        enum rk_recompute recompute;
        int offload;
        int64_t trace_steps;
    } policies[] = {
        {"again", RK_RECOMPUTE_NONE, 0, 0},
        {"traced", RK_RECOMPUTE_NONE, 0, 1},
        {"attention", RK_RECOMPUTE_ATTENTION, 0, 0},
        {"block", RK_RECOMPUTE_BLOCK, 0, 0},
        {"offload 50", RK_RECOMPUTE_NONE, 50, 0},
        {"offload 100", RK_RECOMPUTE_NONE, 100, 0},
        {"block, offload 100", RK_RECOMPUTE_BLOCK, 100, 0},
        {"attention, offload 60", RK_RECOMPUTE_ATTENTION, 60, 0},
    };
    static const char *const models[] = {"olmoe", "qwen3", "glm4"};
    for (int m = 0; m < 3; m++) {
        char gradients[128], final[128], kept_gradients[128], kept_final[128];
        struct training_case test = {.model = m == 0   ? model_olmoe
                                              : m == 1 ? model_qwen3
                                                       : model_glm4,
                                     .pipeline = 2,
                                     .expert_parallel = 2,
                                     .data_parallel = 2,
                                     .steps = 3,
                                     .poison = true};
        in_folder(kept_gradients, "kept-gradients");
        in_folder(kept_final, "kept-final");
        in_folder(gradients, "gradients");
        in_folder(final, "final");
        test.gradients = kept_gradients;
        test.final = kept_final;
        case_run_well(&test, reference);
        test.gradients = gradients;
        test.final = final;
        for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
            test.recompute = policies[p].recompute;
            test.offload_percent = policies[p].offload;
            test.trace_steps = policies[p].trace_steps;
            case_run_well(&test, outcome);
            for (int i = 0; i < 3; i++) {
                assert_true(outcome->step[i].loss == reference->step[i].loss);
                assert_true(outcome->step[i].gradient_norm == reference->step[i].gradient_norm);
                assert_int_equal(outcome->step[i].routes, reference->step[i].routes);
                assert_true(outcome->step[i].load.kept_rank == reference->step[i].load.kept_rank);
            }
            if (!files_equal(gradients, kept_gradients) || !files_equal(final, kept_final))
                fail_msg("%s, %s: gradients or weights have other bits", models[m], policies[p].name);
        }
    }
}

static void bf16_layouts_agree_roughly(void **state) {
    (void)state;
    char gradients[128], other[128], worst[64] = "";
    struct training_case test = {.model = model_glm4, .type = RK_BF16, .poison = true, .steps = 1};
    in_folder(gradients, "reference-gradients");
    in_folder(other, "gradients");
    test.gradients = gradients;
    case_run_well(&test, reference);
    test.gradients = other;
    test.pipeline = test.expert_parallel = test.data_parallel = 2;
    case_run_well(&test, outcome);
    assert_true(relative(outcome->step[0].loss, reference->step[0].loss) < 1e-3);
    assert_true(relative(outcome->step[0].gradient_norm, reference->step[0].gradient_norm) < 1e-2);
    double difference = file_difference(gradients, other, worst);
    print_message("  BF16: gradients within %.1e (%s)\n", difference, worst);
    assert_true(difference < 0.05);
}

static void bf16_is_repeatable(void **state) {
    (void)state;
    char first[128], second[128];
    struct training_case test = {.model = model_qwen3,
                                 .type = RK_BF16,
                                 .poison = true,
                                 .steps = 3,
                                 .pipeline = 2,
                                 .expert_parallel = 2,
                                 .data_parallel = 2};
    in_folder(first, "first");
    in_folder(second, "second");
    test.final = first;
    case_run_well(&test, reference);
    test.final = second;
    test.recompute = RK_RECOMPUTE_BLOCK;
    test.offload_percent = 100;
    case_run_well(&test, outcome);
    assert_true(files_equal(first, second));
}

static int set_up(void **state) {
    (void)state;
    folder_make(folder);
    reference = outcome_make();
    outcome = outcome_make();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    folder_remove(folder);
    outcome_free(reference);
    outcome_free(outcome);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(olmoe_layouts),          cmocka_unit_test(qwen3_layouts),
        cmocka_unit_test(glm4_layouts),           cmocka_unit_test(random_routes_are_those_of_the_window),
        cmocka_unit_test(policies_keep_the_bits), cmocka_unit_test(bf16_layouts_agree_roughly),
        cmocka_unit_test(bf16_is_repeatable),
    };
    return cmocka_run_group_tests_name("layouts", tests, set_up, tear_down);
}

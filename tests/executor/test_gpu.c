/* Training on GPUs: the losses of the CPU ranks, the same mathematics under every layout, the same bits under every
 * policy and in every repetition, and no wait of the host inside a step. Skipped, case by case, where there are too few
 * GPUs. */
#include "training_case.h"

#include "base/clock.h"
#include "tests/test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

static char folder[64];
static struct training_outcome *reference, *outcome;

static void in_folder(char path[128], const char *name) {
    snprintf(path, 128, "%s/%s", folder, name);
}

static void on_gpus(bool gpus) {
    assert_int_equal(setenv("RK_TEST_BACKEND", gpus ? "cuda" : "cpu", 1), 0);
}

static double relative(double value, double wanted) {
    return fabs(value - wanted) / fabs(wanted);
}

/* FP32 on both sides; sums are taken in another order, and no product rounds its factors. */
static void losses_are_those_of_cpus(void **state) {
    (void)state;
    const char *const models[] = {model_olmoe, model_qwen3, model_glm4};
    for (int m = 0; m < 3; m++) {
        char expected[128], gradients[128], worst[64] = "";
        struct training_case test = {.model = models[m], .steps = 3, .poison = true};
        in_folder(expected, "cpu-gradients");
        in_folder(gradients, "gpu-gradients");
        on_gpus(false);
        test.gradients = expected;
        case_run_well(&test, reference);
        on_gpus(true);
        if (!ranks_can_run(1))
            return;
        test.gradients = gradients;
        case_run_well(&test, outcome);
        for (int i = 0; i < 3; i++) {
            const struct rk_training_step *step = &outcome->step[i], *want = &reference->step[i];
            if (relative(step->loss, want->loss) > 2e-5 || relative(step->gradient_norm, want->gradient_norm) > 1e-3 ||
                step->routes != want->routes)
                fail_msg("model %d, step %d: loss %.9g for %.9g, norm %.9g for %.9g", m, i, step->loss, want->loss,
                         step->gradient_norm, want->gradient_norm);
        }
        double difference = file_difference(expected, gradients, worst);
        print_message("  model %d: gradients of the third step within %.1e (%s)\n", m, difference, worst);
        assert_true(difference < 1e-2);
    }
}

static const struct layout {
    const char *name;
    int pipeline, expert_parallel, data_parallel;
} layouts[] = {{"DP 2", 1, 1, 2}, {"EP 2", 1, 2, 2}, {"PP 2", 2, 1, 1}};

static void layouts_agree(void **state) {
    (void)state;
    char expected[128], gradients[128];
    on_gpus(true);
    if (!ranks_can_run(2))
        return;
    in_folder(expected, "one-gradients");
    in_folder(gradients, "two-gradients");
    struct training_case one = {.model = model_olmoe, .steps = 2, .poison = true, .gradients = expected};
    case_run_well(&one, reference);
    for (int i = 0; i < 3; i++) {
        char worst[64] = "";
        struct training_case two = one;
        two.gradients = gradients;
        two.pipeline = layouts[i].pipeline;
        two.expert_parallel = layouts[i].expert_parallel;
        two.data_parallel = layouts[i].data_parallel;
        case_run_well(&two, outcome);
        double difference = file_difference(expected, gradients, worst);
        print_message("  %s: gradients within %.1e (%s)\n", layouts[i].name, difference, worst);
        for (int s = 0; s < 2; s++)
            assert_true(relative(outcome->step[s].loss, reference->step[s].loss) < 1e-5);
        assert_true(difference < 1e-4);
    }
}

static void same_bits(const char *name, const struct training_case *test, const char *kept, const char *final) {
    case_run_well(test, outcome);
    for (int i = 0; i < 3; i++)
        if (outcome->step[i].loss != reference->step[i].loss)
            fail_msg("%s, step %d: loss %.17g for %.17g", name, i, outcome->step[i].loss, reference->step[i].loss);
    if (!files_equal(kept, final))
        fail_msg("%s: weights have other bits", name);
}

static void policies_and_repetitions_keep_the_bits(void **state) {
    (void)state;
    static const struct policy {
        const char *name;
        enum rk_recompute recompute;
        int offload;
        int64_t trace_steps;
    } policies[] = {{"again", RK_RECOMPUTE_NONE, 0, 0},
                    {"traced", RK_RECOMPUTE_NONE, 0, 1},
                    {"block", RK_RECOMPUTE_BLOCK, 0, 0},
                    {"attention, offload 60", RK_RECOMPUTE_ATTENTION, 60, 0},
                    {"block, offload 100", RK_RECOMPUTE_BLOCK, 100, 0}};
    on_gpus(true);
    for (int layout = 0; layout < 3; layout++) {
        char kept[128], final[128];
        in_folder(kept, "kept-final");
        in_folder(final, "final");
        struct training_case test = {.model = layout == 2 ? model_glm4 : model_olmoe,
                                     .type = RK_BF16,
                                     .pipeline = layout == 2 ? 2 : 1,
                                     .expert_parallel = layout == 1 ? 2 : 1,
                                     .data_parallel = layout == 1 ? 2 : 1,
                                     .steps = 3,
                                     .poison = true,
                                     .final = kept};
        if (!ranks_can_run(case_world(&test)))
            continue;
        case_run_well(&test, reference);
        test.final = final;
        for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
            test.recompute = policies[p].recompute;
            test.offload_percent = policies[p].offload;
            test.trace_steps = policies[p].trace_steps;
            same_bits(policies[p].name, &test, kept, final);
        }
    }
}

static void no_host_in_the_loop(void **state) {
    (void)state;
    on_gpus(true);
    for (int world = 1; world <= 2 && ranks_can_run(world); world++) {
        struct training_case test = {
            .model = model_olmoe, .expert_parallel = world, .data_parallel = world, .type = RK_BF16, .steps = 3};
        case_run_well(&test, outcome);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(outcome->step[i].host_waits, 0);
            assert_int_equal(outcome->step[i].copies_to_host, 0);
        }
    }
}

static const double DEADLINE = 5;

static int endless_rank(const struct rk_place *place, void *context) {
    return case_rank(context, outcome, place);
}

static void sleep_seconds(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* Sends the signal to rank 1 in the middle of its steps. The other must say so within the deadline and some seconds. */
static void disturb(struct training_case *test, int signal_number) {
    pid_t processes[RANKS_MAX];
    int results[RANKS_MAX];
    memset(outcome, 0, sizeof *outcome);
    ranks_start(2, endless_rank, test, processes);
    double begin = rk_clock_seconds();
    volatile int64_t *steps = &outcome->steps;
    while (*steps < 3 && rk_clock_seconds() - begin < 60)
        sleep_seconds(0.01);
    assert_true(*steps >= 3);
    kill(processes[1], signal_number);
    begin = rk_clock_seconds();
    while (outcome->message[0][0] == '\0' && rk_clock_seconds() - begin < 4 * DEADLINE)
        sleep_seconds(0.01);
    double ended = rk_clock_seconds() - begin;
    kill(processes[1], SIGKILL);
    sleep_seconds(5);
    kill(processes[0], SIGKILL); /* nothing to a rank that has ended */
    ranks_wait(2, processes, results);
    print_message("  after %.1f s: %s\n", ended, outcome->message[0]);
    assert_int_equal(outcome->status[0], RK_RANK_FAILED);
    assert_non_null(strstr(outcome->message[0], "rank 1"));
    assert_true(ended < 3 * DEADLINE);
    assert_true(WIFEXITED(results[0]));
}

static void a_lost_rank_is_named(void **state) {
    (void)state;
    on_gpus(true);
    for (int layout = 0; layout < 2 && ranks_can_run(2); layout++) {
        struct training_case test = {.model = model_olmoe,
                                     .pipeline = layout == 0 ? 1 : 2,
                                     .expert_parallel = layout == 0 ? 2 : 1,
                                     .data_parallel = layout == 0 ? 2 : 1,
                                     .type = RK_BF16,
                                     .steps = 1000000,
                                     .deadline = DEADLINE};
        disturb(&test, SIGKILL);
        disturb(&test, SIGSTOP);
    }
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

enum { SKIPPED = 77 };

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_those_of_cpus),
        cmocka_unit_test(layouts_agree),
        cmocka_unit_test(policies_and_repetitions_keep_the_bits),
        cmocka_unit_test(no_host_in_the_loop),
        cmocka_unit_test(a_lost_rank_is_named),
    };
    on_gpus(true);
    if (!ranks_can_run(1))
        return SKIPPED;
    return cmocka_run_group_tests_name("gpu", tests, set_up, tear_down);
}

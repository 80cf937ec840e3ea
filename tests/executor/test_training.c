/* The training step under every layout: the mathematics does not change, and nothing of it depends on chance. */
#include "training_case.h"

#include "base/clock.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char folder[64];

static void one_rank_learns(void **state) {
    (void)state;
    struct training_outcome *outcome = outcome_make();
    struct training_case test = {.model = model_olmoe, .steps = 30, .learning_rate = 1e-2, .poison = true};
    case_run_well(&test, outcome);
    assert_int_equal(outcome->steps, 30);
    for (int i = 0; i < 30; i++)
        assert_true(isfinite(outcome->step[i].loss) && outcome->step[i].gradient_norm > 0);
    print_message("loss %.4f -> %.4f\n", outcome->step[0].loss, outcome->step[29].loss);
    assert_true(fabs(outcome->step[0].cross_entropy - log(48)) < 0.2);
    assert_true(outcome->step[29].loss < outcome->step[0].loss - 0.3);
    outcome_free(outcome);
}

/* A diverged run ends with what happened, on every rank, and no checkpoint of it is written over the good one. */
static void a_diverged_run_stops(void **state) {
    (void)state;
    char directory[128], latest[160];
    struct training_outcome *outcome = outcome_make();
    struct training_case test = {.model = model_olmoe,
                                 .data_parallel = 2,
                                 .steps = 20,
                                 .learning_rate = 1e30,
                                 .checkpoint = directory,
                                 .checkpoint_every = 1};
    snprintf(directory, sizeof directory, "%s/diverged", folder);
    case_run(&test, outcome);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(outcome->status[rank], RK_ERROR);
        assert_non_null(strstr(outcome->message[rank], "diverged"));
    }
    snprintf(latest, sizeof latest, "%s/step-%08lld", directory, (long long)outcome->steps);
    assert_int_not_equal(access(latest, F_OK), 0);
    snprintf(latest, sizeof latest, "%s/step-%08lld", directory, (long long)outcome->steps - 1);
    assert_int_equal(access(latest, F_OK), 0);
    outcome_free(outcome);
}

/* The accounts of traced steps: every op is counted once, and their sums are the phases' and fit into the step. */
static void traced_steps_add_up(void **state) {
    (void)state;
    struct training_outcome *outcome = outcome_make();
    struct training_case test = {
        .model = model_olmoe, .pipeline = 2, .expert_parallel = 2, .data_parallel = 2, .steps = 12, .trace_steps = 3};
    case_run_well(&test, outcome);
    int traced = 0;
    for (int i = 0; i < 12; i++)
        traced += outcome->step[i].traced;
    assert_int_equal(traced, 3);
    for (int rank = 0; rank < 4; rank++) {
        const struct rk_stage_time *time = &outcome->ranks[rank].time;
        double phases = 0, families = 0, accounts = 0;
        for (int phase = 0; phase < RK_PHASE_COUNT; phase++)
            phases += time->phase[phase];
        for (int family = 0; family < RK_OP_FAMILY_COUNT; family++)
            families += time->family[family];
        for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++) {
            assert_true(rk_stage_account_seconds(time, account) >= 0);
            accounts += rk_stage_account_seconds(time, account);
        }
        assert_true(outcome->ranks[rank].account_count > 20);
        assert_true(fabs(phases - families) < 1e-9 && phases > 0);
        assert_true(fabs(accounts - time->total) < 0.2 * time->total);
        assert_true(time->compute > 0 && time->exposed_exchange > 0 && time->optimizer > 0);
        assert_true(time->phase[RK_PHASE_RECOMPUTE] == 0);
    }
    outcome_free(outcome);
}

/* A back end whose streams take a while to run empty, and whose events come one after another meanwhile or never. */
static const double STEP_SECONDS = 1.2, SHORT_DEADLINE = 0.4;
static bool stands_still;
static double emptying_since; /* of this process's streams; 0: nothing is under way */
static uintptr_t asked;       /* events since they were last counted from the first */

static enum rk_status slow_synchronize(struct rk_stream *stream, double deadline_seconds, struct rk_error *error) {
    struct timespec pause = {.tv_nsec = (long)(deadline_seconds * 1e9)};
    (void)stream;
    if (deadline_seconds > SHORT_DEADLINE / 2)
        return RK_OK; /* a copy outside a step */
    asked = 0;
    if (emptying_since == 0)
        emptying_since = rk_clock_seconds();
    if (!stands_still && rk_clock_seconds() - emptying_since > STEP_SECONDS)
        return RK_OK;
    nanosleep(&pause, NULL);
    return rk_fail(error, RK_ERROR, "not yet");
}

/* One event more in each tenth of the time. */
static enum rk_status slow_done(struct rk_event_handle *event, bool *done, struct rk_error *error) {
    (void)event;
    (void)error;
    *done = !stands_still && (double)asked++ < 10 * (rk_clock_seconds() - emptying_since) / STEP_SECONDS;
    return RK_OK;
}

/* The deadline is of a standstill, not of the step: a step may take several times as long. */
static void long_steps_are_no_lost_ranks(void **state) {
    (void)state;
    struct training_outcome *outcome = outcome_make();
    struct rk_backend slow = *rk_backend_cpu();
    struct training_case test = {.model = model_olmoe, .backend = &slow, .deadline = SHORT_DEADLINE};
    slow.stream_synchronize = slow_synchronize;
    slow.event_done = slow_done;
    stands_still = false;
    case_run_well(&test, outcome);
    assert_true(outcome->step[0].seconds >= STEP_SECONDS);
    stands_still = true;
    case_run(&test, outcome);
    assert_int_equal(outcome->status[0], RK_RANK_FAILED);
    assert_non_null(strstr(outcome->message[0], "rank 0"));
    assert_non_null(strstr(outcome->message[0], "step 0"));
    assert_non_null(strstr(outcome->message[0], "--deadline"));
    outcome_free(outcome);
}

static int set_up(void **state) {
    (void)state;
    folder_make(folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    folder_remove(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_learns),
        cmocka_unit_test(a_diverged_run_stops),
        cmocka_unit_test(traced_steps_add_up),
        cmocka_unit_test(long_steps_are_no_lost_ranks),
    };
    return cmocka_run_group_tests_name("training", tests, set_up, tear_down);
}

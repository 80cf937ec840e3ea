/* Ranks killed at random instants: peers learn of it at once and say which rank is gone, and the resumed run ends with
 * the bits of an undisturbed one. */
#include "training_case.h"

#include "base/clock.h"
#include "base/random.h"
#include "executor/checkpoint.h"
#include "tests/test.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { KILLS = 50, STEPS = 40 };
static const double DEADLINE = 10;

static char folder[64], directory[128], whole[128], final[128];
static struct training_outcome *outcome;

struct killed_run {
    struct training_case test;
    struct training_outcome *outcome;
};

static int killed_rank(const struct rk_place *place, void *context) {
    const struct killed_run *run = context;
    return case_rank(&run->test, run->outcome, place);
}

static void sleep_seconds(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* Starts the run, kills one rank after a while, and waits for all. *killed: whether it was killed before its end.
 * Returns seconds from the kill to the end of the last rank. */
static double run_and_kill(struct killed_run *run, int victim, double after, bool *killed) {
    pid_t processes[RANKS_MAX];
    int results[RANKS_MAX], world = case_world(&run->test);
    memset(run->outcome, 0, sizeof *run->outcome);
    for (int rank = 0; rank < world; rank++)
        run->outcome->status[rank] = RK_INTERRUPTED; /* stays for a rank that did not get past the meeting */
    ranks_start(world, killed_rank, run, processes);
    sleep_seconds(after);
    kill(processes[victim], SIGKILL);
    double begin = rk_clock_seconds();
    ranks_wait(world, processes, results);
    *killed = WIFSIGNALED(results[victim]);
    return rk_clock_seconds() - begin;
}

/* A rank killed before all have met: the others wait for it until the deadline, as they would for one that starts late.
 */
static bool killed_before_meeting(const struct training_outcome *of, int victim) {
    for (int rank = 0; rank < 4; rank++)
        if (rank != victim && of->status[rank] == RK_INTERRUPTED)
            return true;
    return false;
}

static void fifty_kills_lose_nothing(void **state) {
    (void)state;
    struct killed_run run = {.outcome = outcome,
                             .test = {.model = model_olmoe,
                                      .pipeline = 2,
                                      .expert_parallel = 2,
                                      .data_parallel = 2,
                                      .steps = STEPS,
                                      .deadline = DEADLINE}};
    run.test.final = whole;
    double begin = rk_clock_seconds();
    case_run_well(&run.test, outcome);
    double undisturbed = rk_clock_seconds() - begin, slowest = 0;
    run.test.final = final;
    run.test.checkpoint = directory;
    run.test.checkpoint_every = 3;
    run.test.checkpoint_keep = 2;
    run.test.resume = true;
    int kills = 0, finished = 0, in_steps = 0;
    for (uint64_t attempt = 0; kills < KILLS || finished == 0; attempt++) {
        bool killed = false;
        int victim = (int)rk_random_below(11, 2 * attempt, 4);
        double after = rk_random_uniform(11, 2 * attempt + 1) * (kills < KILLS ? 1.5 * undisturbed : 60);
        assert_true(attempt < 10 * KILLS);
        if (kills < KILLS) {
            double ended = run_and_kill(&run, victim, after, &killed);
            if (killed && killed_before_meeting(outcome, victim))
                continue;
            slowest = ended > slowest ? ended : slowest;
        } else {
            case_run_well(&run.test, outcome);
        }
        kills += killed;
        in_steps += killed && outcome->steps > 0;
        bool well = !killed;
        for (int rank = 0; rank < 4; rank++) {
            enum rk_status status = outcome->status[rank];
            if (rank == victim && killed)
                continue;
            if (status != RK_OK && status != RK_RANK_FAILED)
                fail_msg("rank %d: status %d, '%s'", rank, (int)status, outcome->message[rank]);
            well = well && status == RK_OK;
        }
        if (!well)
            continue;
        if (!files_equal(whole, final))
            fail_msg("after %d kills the run ends with other weights", kills);
        finished++;
        folder_remove(directory);
    }
    print_message("  %d kills, %d of them between steps, %d runs finished; the last rank ended within %.2f s\n", kills,
                  in_steps, finished, slowest);
    assert_true(in_steps >= KILLS / 5);
    assert_true(slowest < DEADLINE);
}

/* Who is lost, where it ran, and where this rank stood. Returns whether the text names a layer: between two steps, in
 * the loss and in the update there is none. */
static bool check_text(int rank, int victim, const char *text) {
    static const char *const place[] = {" over the ", " group", "segment \"", "step "};
    char lost[32];
    snprintf(lost, sizeof lost, "rank %d (host ", victim);
    if (strstr(text, lost) == NULL)
        fail_msg("rank %d does not name rank %d: '%s'", rank, victim, text);
    for (size_t i = 0; strstr(text, " stood in ") != NULL && i < sizeof place / sizeof place[0]; i++)
        if (strstr(text, place[i]) == NULL)
            fail_msg("rank %d does not say '%s' where it stood: '%s'", rank, place[i], text);
    return strstr(text, " stood in ") != NULL && strstr(text, "layer ") != NULL && strstr(text, "micro-batch ") != NULL;
}

/* Until one kill falls into a layer, which most do. */
static void peers_name_the_lost_rank(void **state) {
    (void)state;
    struct killed_run run = {.outcome = outcome,
                             .test = {.model = model_olmoe,
                                      .pipeline = 2,
                                      .expert_parallel = 2,
                                      .data_parallel = 2,
                                      .steps = 100000,
                                      .deadline = DEADLINE}};
    int in_layers = 0;
    for (int attempt = 0; in_layers == 0; attempt++) {
        bool killed = false;
        int victim = attempt % 3 + 1;
        assert_true(attempt < 20);
        double ended = run_and_kill(&run, victim, 0.6 + 0.0101 * attempt, &killed);
        assert_true(killed);
        assert_true(outcome->steps > 0);
        assert_true(ended < DEADLINE);
        for (int rank = 0; rank < 4; rank++) {
            if (rank == victim)
                continue;
            print_message("  rank %d: %s\n", rank, outcome->message[rank]);
            assert_int_equal(outcome->status[rank], RK_RANK_FAILED);
            in_layers += check_text(rank, victim, outcome->message[rank]);
        }
    }
}

static int set_up(void **state) {
    (void)state;
    folder_make(folder);
    snprintf(directory, sizeof directory, "%s/checkpoints", folder);
    snprintf(whole, sizeof whole, "%s/whole", folder);
    snprintf(final, sizeof final, "%s/final", folder);
    outcome = outcome_make();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    folder_remove(folder);
    outcome_free(outcome);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_name_the_lost_rank),
        cmocka_unit_test(fifty_kills_lose_nothing),
    };
    return cmocka_run_group_tests_name("killed", tests, set_up, tear_down);
}

/* `run --nproc`: ranks as children, their ends, their output, signals; no rank outlives its parent. This program is
 * also the rank: started with "--as-rank MODE". */
#include "ranks.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#include <cmocka.h>

static void pause_for(double seconds) {
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    while (nanosleep(&time, &time) != 0 && errno == EINTR)
        ;
}

/* ---- the rank's side ---- */

static void end_interrupted(int signal_number) {
    (void)signal_number;
    _exit(RK_INTERRUPTED);
}

static int meet_and_gather(void) {
    struct rk_place place;
    struct rk_error error = {0};
    RANK_CHECK_OK(rk_launch_discover(-1, 0, NULL, 0, &place, &error), error);
    RANK_CHECK(place.launcher == RK_LAUNCHER_TORCHRUN && place.local_rank == place.rank);
    struct rk_job *job = rank_meet(&place, 10);
    int64_t all[RANKS_MAX];
    RANK_CHECK_OK(rk_job_all_gather(job, &place.rank, sizeof place.rank, all, &error), error);
    for (int64_t rank = 0; rank < place.world; rank++)
        RANK_CHECK(all[rank] == rank);
    RANK_CHECK(job->one_host);
    rk_job_free(job);
    return 0;
}

static int as_rank(const char *mode) {
    const char *rank_text = getenv("RANK");
    RANK_CHECK(rank_text != NULL);
    int rank = atoi(rank_text);
    if (strcmp(mode, "meet") == 0)
        return meet_and_gather();
    if (strcmp(mode, "one-fails") == 0) {
        if (rank == 1)
            return RK_DATABASE;
        pause_for(60);
    }
    if (strcmp(mode, "one-dies") == 0) {
        if (rank == 2)
            raise(SIGKILL);
        pause_for(60);
    }
    if (strcmp(mode, "usage") == 0) {
        if (rank != 0) /* rank 0 would speak on the test's own standard error */
            fprintf(stderr, "error: --steps is missing\n");
        return RK_USAGE;
    }
    if (strcmp(mode, "blame") == 0) {
        pause_for(rank == 1 ? 0.3 : 0.0);
        if (rank == 1)
            fprintf(stderr, "error: the disk is full\n");
        return rank == 1 ? RK_ERROR : RK_RANK_FAILED;
    }
    if (strcmp(mode, "stubborn") == 0) {
        if (rank == 0)
            return RK_ERROR;
        signal(SIGTERM, SIG_IGN);
        pause_for(60);
    }
    if (strcmp(mode, "talk") == 0) {
        if (rank == 1) {
            printf("one\ntwo");
            fflush(stdout);
            fprintf(stderr, " and a half\n[rank 1] three\n");
            printf("no line break");
        }
        return 0;
    }
    if (strcmp(mode, "wait") == 0) {
        signal(SIGINT, end_interrupted);
        signal(SIGTERM, end_interrupted);
        signal(SIGHUP, end_interrupted);
        if (rank != 0)
            printf("process %d\n", (int)getpid());
        fflush(stdout);
        pause_for(60);
    }
    return 97;
}

/* ---- the test's side ---- */

static enum rk_status launch(int nproc, const char *mode, double grace, char *output, size_t size,
                             struct rk_error *error) {
    FILE *stream = tmpfile();
    assert_non_null(stream);
    struct rk_log log = {.stream = stream, .level = RK_LOG_INFO, .rank = -1};
    char *arguments[] = {"test", "--as-rank", (char *)mode, NULL};
    enum rk_status status = rk_launch_local(nproc, arguments, &log, grace, error);
    rewind(stream);
    size_t length = fread(output, 1, size - 1, stream);
    output[length] = '\0';
    fclose(stream);
    /* Nothing is left to wait for. */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    return status;
}

static void ranks_find_each_other(void **state) {
    (void)state;
    char output[4096];
    struct rk_error error = {0};
    /* What another launcher has left does not reach the ranks. */
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "1", 1);
    setenv("OMPI_COMM_WORLD_RANK", "5", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "6", 1);
    for (int nproc = 1; nproc <= 8; nproc *= 2) {
        enum rk_status status = launch(nproc, "meet", 2, output, sizeof output, &error);
        if (status != RK_OK)
            fail_msg("%d ranks: %s; %s", nproc, error.text, output);
    }
    clearenv();
    assert_int_equal(launch(0, "meet", 2, output, sizeof output, &error), RK_USAGE);
    assert_int_equal(launch(100000, "meet", 2, output, sizeof output, &error), RK_USAGE);
}

static void the_first_failure_is_reported(void **state) {
    (void)state;
    char output[4096];
    struct rk_error error = {0};
    double start = rk_clock_seconds();
    assert_int_equal(launch(3, "one-fails", 1, output, sizeof output, &error), RK_RANK_FAILED);
    assert_non_null(strstr(error.text, "rank 1 "));
    assert_non_null(strstr(error.text, "status 8 (database)"));
    assert_int_equal(launch(4, "one-dies", 1, output, sizeof output, &error), RK_RANK_FAILED);
    assert_non_null(strstr(error.text, "rank 2 "));
    assert_non_null(strstr(error.text, "signal 9"));
    assert_int_equal(launch(3, "stubborn", 1, output, sizeof output, &error), RK_RANK_FAILED);
    assert_non_null(strstr(error.text, "rank 0 "));
    assert_true(rk_clock_seconds() - start < 10);
    assert_int_equal(launch(4, "blame", 5, output, sizeof output, &error), RK_RANK_FAILED);
    assert_non_null(strstr(error.text, "rank 1 "));
    assert_non_null(strstr(error.text, "status 1 (error)"));
    assert_string_equal(output, "[rank 1] error: the disk is full\n");
}

static void a_usage_error_of_all_is_one(void **state) {
    (void)state;
    char output[4096];
    struct rk_error error = {0};
    assert_int_equal(launch(4, "usage", 5, output, sizeof output, &error), RK_USAGE);
    assert_string_equal(output, ""); /* rank 0 says it, on this process's own standard error */
}

static void output_is_passed_on_by_lines(void **state) {
    (void)state;
    char output[4096];
    struct rk_error error = {0};
    assert_int_equal(launch(2, "talk", 5, output, sizeof output, &error), RK_OK);
    assert_string_equal(output, "[rank 1] one\n[rank 1] two and a half\n[rank 1] three\n[rank 1] no line break\n");
}

/* Starts a launcher in a child and reads the process numbers of its ranks 1 and 2 from its log. */
static pid_t start_launcher(pid_t ranks[2]) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t launcher = fork();
    if (launcher == 0) {
        close(ends[0]);
        struct rk_log log = {.stream = fdopen(ends[1], "w"), .level = RK_LOG_INFO, .rank = -1};
        char *arguments[] = {"test", "--as-rank", "wait", NULL};
        struct rk_error error = {0};
        _exit((int)rk_launch_local(3, arguments, &log, 2, &error));
    }
    close(ends[1]);
    FILE *lines = fdopen(ends[0], "r");
    for (int i = 0; i < 2; i++) {
        int rank, process;
        char line[128];
        assert_non_null(fgets(line, sizeof line, lines));
        assert_int_equal(sscanf(line, "[rank %d] process %d", &rank, &process), 2);
        ranks[i] = process;
    }
    fclose(lines);
    return launcher;
}

static void signals_are_forwarded(void **state) {
    (void)state;
    static const int numbers[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        pid_t ranks[2];
        int result;
        pid_t launcher = start_launcher(ranks);
        kill(launcher, numbers[i]);
        assert_int_equal(waitpid(launcher, &result, 0), launcher);
        assert_true(WIFEXITED(result));
        assert_int_equal(WEXITSTATUS(result), RK_INTERRUPTED);
        for (int rank = 0; rank < 2; rank++)
            assert_true(kill(ranks[rank], 0) != 0 && errno == ESRCH);
    }
}

static void no_rank_outlives_its_parent(void **state) {
    (void)state;
    /* Orphans come to this process, which can then wait for them. */
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    pid_t ranks[2];
    pid_t launcher = start_launcher(ranks);
    kill(launcher, SIGKILL);
    double end = rk_clock_seconds() + 10;
    int seen = 0;
    while (seen < 4 && rk_clock_seconds() < end) {
        int result;
        pid_t ended = waitpid(-1, &result, WNOHANG);
        if (ended > 0) {
            assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL);
            seen++;
        } else {
            pause_for(0.01);
        }
    }
    assert_int_equal(seen, 4); /* the launcher and three ranks */
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}

static void a_stopped_job_continues(void **state) {
    (void)state;
    pid_t ranks[2];
    int result;
    pid_t launcher = start_launcher(ranks);
    kill(launcher, SIGTSTP);
    assert_int_equal(waitpid(launcher, &result, WUNTRACED), launcher);
    assert_true(WIFSTOPPED(result));
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)ranks[0]);
    bool stopped = false;
    for (int trial = 0; trial < 200 && !stopped; trial++) {
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        assert_non_null(fgets(line, sizeof line, file));
        fclose(file);
        stopped = strstr(line, ") T ") != NULL;
        pause_for(0.01);
    }
    assert_true(stopped);
    kill(launcher, SIGCONT);
    kill(launcher, SIGTERM);
    assert_int_equal(waitpid(launcher, &result, 0), launcher);
    assert_int_equal(WEXITSTATUS(result), RK_INTERRUPTED);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--as-rank") == 0)
        return as_rank(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_find_each_other),       cmocka_unit_test(the_first_failure_is_reported),
        cmocka_unit_test(a_usage_error_of_all_is_one), cmocka_unit_test(output_is_passed_on_by_lines),
        cmocka_unit_test(signals_are_forwarded),       cmocka_unit_test(no_rank_outlives_its_parent),
        cmocka_unit_test(a_stopped_job_continues),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

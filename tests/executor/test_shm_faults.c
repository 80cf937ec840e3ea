/* Thousands of mixed steps without a deadlock; ranks that die, hang, give up or run another program. */
#include "ranks.h"

#include "base/clock.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { EXPERTS = 4, SHARD = 96, MESSAGE = 700 };

/* Two stages, two ranks that share an expert pool, two replicas: every group has a use. */
static const int pipeline = 2, expert_parallel = 2, data_parallel = 4;
enum { WORLD = 8 };

static const struct rk_op_shape shapes[] = {
    {.kind = RK_OP_COUNT_EXCHANGE, .group = RK_GROUP_EXPERT_PARALLEL, .dim = {EXPERTS, 2}},
    {.kind = RK_OP_REDUCE_SCATTER, .group = RK_GROUP_DATA, .dim = {SHARD * 4, 4}},
    {.kind = RK_OP_ALL_GATHER, .type = RK_F32, .group = RK_GROUP_EXPERT_REPLICA, .dim = {SHARD * 2, 2}},
    {.kind = RK_OP_ALL_REDUCE, .flags = RK_OP_FLAG_F64, .group = RK_GROUP_WORLD, .dim = {4, WORLD}},
    {.kind = RK_OP_ALL_REDUCE, .group = RK_GROUP_EMBEDDING, .dim = {SHARD, 2}},
    {.kind = RK_OP_SEND, .group = RK_GROUP_PIPELINE_NEXT, .dim = {MESSAGE}},
    {.kind = RK_OP_RECEIVE, .group = RK_GROUP_PIPELINE_PREVIOUS, .dim = {MESSAGE}},
    {.kind = RK_OP_SEND, .group = RK_GROUP_PIPELINE_PREVIOUS, .dim = {MESSAGE}},
    {.kind = RK_OP_RECEIVE, .group = RK_GROUP_PIPELINE_NEXT, .dim = {MESSAGE}},
};
enum { COUNTS, SCATTER, GATHER, SUM, EMBEDDING, SEND_NEXT, FROM_PREVIOUS, SEND_PREVIOUS, FROM_NEXT, SHAPES };

static struct rk_transport *open_transport(const struct rk_job *job, double deadline) {
    struct rk_program program;
    struct rk_op ops[SHAPES];
    struct rk_transport *transport = NULL;
    struct rk_error error = {0};
    rank_program(&program, ops, shapes, SHAPES, pipeline, expert_parallel, data_parallel);
    RANK_CHECK_OK(rk_transport_shm()->open(job, NULL, NULL, &program, deadline, &transport, &error), error);
    return transport;
}

static enum rk_status run(struct rk_transport *transport, int shape, int64_t step, void *first, void *second,
                          struct rk_error *error) {
    const struct rk_transport_position position = {
        .step = step, .layer = 5, .micro_batch = 2, .segment = "routed block forward"};
    struct rk_op_call call = {.shape = &shapes[shape], .operand = {first, second}};
    return rk_transport_shm()->run(transport, NULL, &call, RK_STREAM_EXCHANGE, &position, error);
}

/* One step: exchange, messages both ways, reductions, with checks of what came. */
static enum rk_status mixed_step(struct rk_transport *transport, int64_t rank, int64_t step, struct rk_error *error) {
    int32_t counts[EXPERTS], all[2 * EXPERTS];
    float values[SHARD * 4], shard[SHARD];
    double sums[4];
    unsigned char message[MESSAGE];
    int64_t stage = rank / data_parallel;
    enum rk_status status = RK_OK;
    for (int i = 0; i < EXPERTS; i++)
        counts[i] = (int32_t)(rank * 1000 + step + i);
    for (int i = 0; i < SHARD * 4; i++)
        values[i] = (float)(rank + step % 100 + i);
    for (int i = 0; i < 4; i++)
        sums[i] = (double)(rank * 3 + step);
    memset(message, (int)(rank + step), sizeof message);
    /* Both neighbours send before they receive. */
    status = run(transport, stage == 0 ? SEND_NEXT : SEND_PREVIOUS, step, message, NULL, error);
    if (status == RK_OK)
        status = run(transport, COUNTS, step, counts, all, error);
    if (status == RK_OK)
        status = run(transport, SCATTER, step, values, shard, error);
    if (status == RK_OK)
        status = run(transport, stage == 0 ? FROM_NEXT : FROM_PREVIOUS, step, message, NULL, error);
    if (status == RK_OK && step % 3 == 0)
        status = run(transport, EMBEDDING, step, shard, NULL, error);
    if (status == RK_OK)
        status = run(transport, SUM, step, sums, NULL, error);
    if (status == RK_OK)
        status = run(transport, GATHER, step, shard, values, error);
    if (status == RK_OK && step % 7 == 0)
        status = rk_transport_shm()->barrier(transport, error);
    if (status != RK_OK)
        return status;
    int64_t first = rank / 2 * 2, peer = stage == 0 ? rank + data_parallel : rank - data_parallel;
    for (int member = 0; member < 2; member++)
        for (int i = 0; i < EXPERTS; i++)
            RANK_CHECK(all[member * EXPERTS + i] == (first + member) * 1000 + step + i);
    for (int i = 0; i < MESSAGE; i++)
        RANK_CHECK(message[i] == (unsigned char)(peer + step));
    RANK_CHECK(sums[3] == (double)(3 * 28 + 8 * step));
    return RK_OK;
}

static int many_steps(const struct rk_place *place, void *context) {
    int64_t steps = *(const int64_t *)context;
    struct rk_job *job = rank_meet(place, 30);
    struct rk_transport *transport = open_transport(job, 30);
    struct rk_error error = {0};
    for (int64_t step = 0; step < steps; step++)
        RANK_CHECK_OK(mixed_step(transport, place->rank, step, &error), error);
    rk_transport_shm()->close(transport);
    rk_job_free(job);
    return 0;
}

static void two_thousand_mixed_steps(void **state) {
    (void)state;
    int64_t steps = 2000;
    ranks_run(WORLD, many_steps, &steps);
}

/* Steps until something stands in the way; the words of the error go to the pipe. */
struct endless {
    double deadline;
    int words;
};

static int endless_steps(const struct rk_place *place, void *context) {
    const struct endless *endless = context;
    struct rk_job *job = rank_meet(place, 30);
    struct rk_transport *transport = open_transport(job, endless->deadline);
    struct rk_error error = {0};
    enum rk_status status = RK_OK;
    for (int64_t step = 0; status == RK_OK; step++)
        status = mixed_step(transport, place->rank, step, &error);
    dprintf(endless->words, "%d %s\n", (int)place->rank, error.text);
    rk_transport_shm()->close(transport);
    rk_job_free(job);
    return (int)status;
}

static void sleep_seconds(double seconds) {
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    nanosleep(&time, NULL);
}

/* Starts endless ranks, hits one with the signal after a while, and looks at what the others say. */
static void strike(int number, int victim, double after, double deadline, const char *words) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    struct endless endless = {.deadline = deadline, .words = ends[1]};
    pid_t processes[RANKS_MAX];
    ranks_start(WORLD, endless_steps, &endless, processes);
    close(ends[1]);
    sleep_seconds(after);
    kill(processes[victim], number);
    double start = rk_clock_seconds();
    char expected[64];
    snprintf(expected, sizeof expected, "rank %d (host ", victim);
    FILE *lines = fdopen(ends[0], "r");
    int said = 0;
    for (int rank = 0; rank < WORLD; rank++) {
        if (rank == victim)
            continue;
        int result;
        assert_int_equal(waitpid(processes[rank], &result, 0), processes[rank]);
        assert_true(WIFEXITED(result));
        assert_int_equal(WEXITSTATUS(result), RK_RANK_FAILED);
    }
    assert_true(rk_clock_seconds() - start < deadline + 3);
    int result;
    kill(processes[victim], SIGKILL);
    waitpid(processes[victim], &result, 0);
    char line[2048];
    while (fgets(line, sizeof line, lines) != NULL) {
        said++;
        if (strstr(line, expected) == NULL || strstr(line, words) == NULL)
            fail_msg("victim %d: %s", victim, line);
        /* Where it happened: the op, and unless it was the barrier the place in the program. */
        if (strstr(line, "barrier") == NULL) {
            assert_non_null(strstr(line, "segment \"routed block forward\""));
            assert_non_null(strstr(line, "layer 5"));
            assert_non_null(strstr(line, "step "));
        }
    }
    fclose(lines);
    assert_int_equal(said, WORLD - 1);
}

static void peers_name_a_killed_rank(void **state) {
    (void)state;
    /* The instant is random because nothing stops the ranks where the kill meets them. */
    for (int trial = 0; trial < 16; trial++)
        strike(SIGKILL, (trial * 5 + 3) % WORLD, 0.15 + 0.013 * trial, 10, "is gone");
}

static void peers_name_a_hanging_rank(void **state) {
    (void)state;
    strike(SIGSTOP, 0, 0.3, 1, "did not come within 1 s");
    strike(SIGSTOP, 6, 0.3, 1, "did not come within 1 s");
}

/* Rank 3 waits for 2, which waits for 0 with 1, which waits for 0, which does something else. Rank 3 loses patience
 * first. */
static int chain_of_waits(const struct rk_place *place, void *context) {
    (void)context;
    struct rk_job *job = rank_meet(place, 30);
    struct rk_transport *transport = open_transport(job, place->rank == 3 ? 0.4 : 20);
    struct rk_error error = {0};
    float values[SHARD * 4] = {0}, shard[SHARD];
    int32_t counts[EXPERTS] = {0}, all[2 * EXPERTS];
    enum rk_status status = RK_RANK_FAILED;
    if (place->rank == 0)
        sleep_seconds(1);
    else if (place->rank == 2)
        status = run(transport, SCATTER, 1, values, shard, &error);
    else if (place->rank < 4)
        status = run(transport, COUNTS, 1, counts, all, &error);
    RANK_CHECK(status == RK_RANK_FAILED);
    if (place->rank > 0 && place->rank < 4)
        RANK_CHECK(strstr(error.text, "rank 0 (host ") != NULL && strstr(error.text, "did not come") != NULL);
    rk_transport_shm()->close(transport);
    rk_job_free(job);
    return 0;
}

static void a_chain_of_waits_leads_to_the_hanging_rank(void **state) {
    (void)state;
    ranks_run(WORLD, chain_of_waits, NULL);
}

static int one_gives_up(const struct rk_place *place, void *context) {
    (void)context;
    struct rk_job *job = rank_meet(place, 30);
    struct rk_transport *transport = open_transport(job, 30);
    struct rk_error error = {0};
    RANK_CHECK_OK(rk_transport_shm()->barrier(transport, &error), error);
    if (place->rank == 3) {
        sleep_seconds(0.2);
        rk_transport_shm()->abort(transport);
        sleep_seconds(1); /* alive, so that the others can only know from the abort */
    } else {
        double start = rk_clock_seconds();
        enum rk_status status = rk_transport_shm()->barrier(transport, &error);
        RANK_CHECK(status == RK_RANK_FAILED);
        RANK_CHECK(strstr(error.text, "rank 3 ") != NULL && strstr(error.text, "gave up") != NULL);
        RANK_CHECK(rk_clock_seconds() - start < 0.9);
    }
    rk_transport_shm()->close(transport);
    rk_job_free(job);
    return 0;
}

static void an_abort_ends_every_wait(void **state) {
    (void)state;
    ranks_run(WORLD, one_gives_up, NULL);
}

/* A rank that has closed in order may end without harm, as long as nobody waits for it. */
static int one_leaves_early(const struct rk_place *place, void *context) {
    (void)context;
    struct rk_job *job = rank_meet(place, 30);
    struct rk_transport *transport = open_transport(job, 30);
    struct rk_error error = {0};
    int32_t counts[EXPERTS] = {0}, all[2 * EXPERTS];
    if (place->rank < 2) {
        for (int64_t step = 0; step < 3; step++) {
            sleep_seconds(place->rank == 0 ? 0.2 : 0);
            RANK_CHECK_OK(run(transport, COUNTS, step, counts, all, &error), error);
        }
        enum rk_status status = rk_transport_shm()->barrier(transport, &error);
        RANK_CHECK(status == RK_RANK_FAILED);
        RANK_CHECK(strstr(error.text, "is gone") != NULL);
    }
    rk_transport_shm()->close(transport);
    rk_job_free(job);
    return 0;
}

static void leaving_in_order_is_no_failure(void **state) {
    (void)state;
    ranks_run(WORLD, one_leaves_early, NULL);
}

static int programs_part(const struct rk_place *place, void *context) {
    int variant = *(const int *)context;
    struct rk_job *job = rank_meet(place, 30);
    struct rk_transport *transport = open_transport(job, 10);
    struct rk_error error = {0};
    float values[SHARD * 4] = {0};
    enum rk_status status;
    struct rk_op_shape shape = shapes[SUM];
    struct rk_op_call call = {.shape = &shape, .operand = {values}};
    if (variant == 0 && place->rank == 5) /* another op */
        status = rk_transport_shm()->barrier(transport, &error);
    else if (variant == 0) {
        status = run(transport, SUM, 1, values, NULL, &error);
    } else if (variant == 1) { /* another size */
        shape.dim[0] = place->rank == 5 ? 3 : 4;
        status = rk_transport_shm()->run(transport, NULL, &call, RK_STREAM_REDUCTION, NULL, &error);
    } else { /* a message of another length */
        shape = shapes[place->rank < data_parallel ? SEND_NEXT : FROM_PREVIOUS];
        shape.dim[0] = place->rank == 1 ? 8 : 16;
        status = rk_transport_shm()->run(transport, NULL, &call, RK_STREAM_SEND_FORWARD, NULL, &error);
        if (status == RK_OK)
            status = rk_transport_shm()->barrier(transport, &error);
    }
    RANK_CHECK(status == RK_ERROR || status == RK_RANK_FAILED);
    if (variant < 2 && status == RK_ERROR)
        RANK_CHECK(strstr(error.text, "programs part") != NULL && strstr(error.text, "rank 5 ") != NULL);
    if (variant == 2 && place->rank == 5)
        RANK_CHECK(status == RK_ERROR && strstr(error.text, "sent 8 bytes") != NULL);
    rk_transport_shm()->close(transport);
    rk_job_free(job);
    return 0;
}

static void programs_that_part_are_caught(void **state) {
    (void)state;
    for (int variant = 0; variant < 3; variant++)
        ranks_run(WORLD, programs_part, &variant);
}

static int bad_calls(const struct rk_place *place, void *context) {
    (void)context;
    struct rk_job *job = rank_meet(place, 30);
    struct rk_transport *transport = open_transport(job, 10);
    struct rk_error error = {0};
    static float values[1 << 20];
    static const struct rk_op_shape bad[] = {
        {.kind = RK_OP_REDUCE_SCATTER, .group = RK_GROUP_DATA, .dim = {400, 5}},      /* another group size */
        {.kind = RK_OP_ALL_REDUCE, .group = RK_GROUP_WORLD, .dim = {1 << 20, WORLD}}, /* larger than opened for */
        {.kind = RK_OP_ALL_GATHER, .group = RK_GROUP_PIPELINE_NEXT, .dim = {8, 1}},   /* not a group of that kind */
        {.kind = RK_OP_SEND, .group = RK_GROUP_DATA, .dim = {8}},
        {.kind = RK_OP_GEMM_FORWARD, .group = RK_GROUP_WORLD, .dim = {1, 1, 1}}, /* not a transport's op */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct rk_op_call call = {.shape = &bad[i], .operand = {values, values}};
        RANK_CHECK(rk_transport_shm()->run(transport, NULL, &call, RK_STREAM_COMPUTE, NULL, &error) == RK_ERROR);
    }
    struct rk_op_call missing = {.shape = &shapes[GATHER], .operand = {values}};
    RANK_CHECK(rk_transport_shm()->run(transport, NULL, &missing, RK_STREAM_COMPUTE, NULL, &error) == RK_ERROR);
    RANK_CHECK(strstr(error.text, "is missing") != NULL);
    /* The transport is whole after such a refusal. */
    RANK_CHECK_OK(mixed_step(transport, place->rank, 0, &error), error);
    rk_transport_shm()->close(transport);
    rk_job_free(job);
    return 0;
}

static void bad_calls_are_refused(void **state) {
    (void)state;
    ranks_run(WORLD, bad_calls, NULL);
}

static int wrong_world(const struct rk_place *place, void *context) {
    (void)context;
    struct rk_job *job = rank_meet(place, 30);
    struct rk_program program;
    struct rk_op ops[SHAPES];
    struct rk_transport *transport = NULL;
    struct rk_error error = {0};
    rank_program(&program, ops, shapes, SHAPES, 2, 1, 2);
    RANK_CHECK(rk_transport_shm()->open(job, NULL, NULL, &program, 5, &transport, &error) == RK_USAGE);
    RANK_CHECK(transport == NULL && strstr(error.text, "4 ranks") != NULL);
    job->one_host = false;
    RANK_CHECK(rk_transport_shm()->open(job, NULL, NULL, &program, 5, &transport, &error) == RK_USAGE);
    rk_job_free(job);
    return 0;
}

static void opening_checks_the_world(void **state) {
    (void)state;
    ranks_run(2, wrong_world, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_thousand_mixed_steps),      cmocka_unit_test(peers_name_a_killed_rank),
        cmocka_unit_test(peers_name_a_hanging_rank),     cmocka_unit_test(a_chain_of_waits_leads_to_the_hanging_rank),
        cmocka_unit_test(an_abort_ends_every_wait),      cmocka_unit_test(leaving_in_order_is_no_failure),
        cmocka_unit_test(programs_that_part_are_caught), cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(opening_checks_the_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

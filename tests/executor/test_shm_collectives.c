/* Sums, gathers, messages and barriers of a transport against one process. */
#include "ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A value that another rank, element or round would not have. */
static float value_of(int64_t rank, int64_t element, int64_t round) {
    uint64_t hash = (uint64_t)(rank * 1000003 + element * 7919 + round * 104729) * 0x9E3779B97F4A7C15u;
    return (float)((double)(hash >> 40) / 16777216.0 - 0.5);
}

struct collective_case {
    int pipeline, expert_parallel, data_parallel;
    enum rk_group_kind group;
    int64_t shard; /* elements of a shard */
    bool in_place;
};

static struct rk_transport *open_for(const struct rk_job *job, const struct collective_case *test,
                                     const struct rk_op_shape *shapes, size_t count) {
    struct rk_program program;
    struct rk_op ops[8];
    rank_program(&program, ops, shapes, count, test->pipeline, test->expert_parallel, test->data_parallel);
    return rank_open(job, &program, 20);
}

static void run(struct rk_transport *transport, const struct rk_op_shape *shape, void *first, void *second) {
    static const struct rk_transport_position position = {.step = 3, .layer = 1, .micro_batch = -1, .segment = "test"};
    struct rk_op_call call = {.shape = shape, .operand = {first, second}};
    struct rk_error error = {0};
    RANK_CHECK_OK(rank_run(transport, &call, RK_STREAM_REDUCTION, &position, &error), error);
}

static int collectives_rank(const struct rk_place *place, void *context) {
    const struct collective_case *test = context;
    struct rk_job *job = rank_meet(place, 20);
    struct rk_program program;
    struct rk_op unused[1];
    int64_t members[RANKS_MAX], index;
    rank_program(&program, unused, NULL, 0, test->pipeline, test->expert_parallel, test->data_parallel);
    int64_t count = rk_candidate_group(&program.candidate, place->rank, test->group, members, RANKS_MAX, &index);
    int64_t elements = test->shard * count;
    const struct rk_op_shape shapes[] = {
        {.kind = RK_OP_REDUCE_SCATTER, .group = test->group, .dim = {elements, count}},
        {.kind = RK_OP_ALL_GATHER, .type = RK_F32, .group = test->group, .dim = {elements, count}},
        {.kind = RK_OP_ALL_GATHER, .type = RK_BF16, .group = test->group, .dim = {elements, count}},
        {.kind = RK_OP_ALL_REDUCE, .group = test->group, .dim = {elements, count}},
        {.kind = RK_OP_ALL_REDUCE, .flags = RK_OP_FLAG_F64, .group = test->group, .dim = {elements, count}},
    };
    struct rk_transport *transport = open_for(job, test, shapes, 5);
    float *values = malloc((size_t)elements * sizeof *values), *out = malloc((size_t)elements * sizeof *out);
    double *wide = malloc((size_t)elements * sizeof *wide);
    uint16_t *narrow = malloc((size_t)elements * sizeof *narrow);
    for (int64_t round = 0; round < 3; round++) {
        int64_t at = index * test->shard;
        for (int64_t i = 0; i < elements; i++)
            values[i] = value_of(place->rank, i, round);
        float *shard = test->in_place ? values + at : out;
        run(transport, &shapes[0], values, shard);
        for (int64_t i = 0; i < test->shard; i++) {
            float sum = value_of(members[0], at + i, round);
            for (int64_t member = 1; member < count; member++)
                sum += value_of(members[member], at + i, round);
            RANK_CHECK(shard[i] == sum);
        }

        for (int64_t i = 0; i < elements; i++)
            values[i] = i / test->shard == index ? value_of(place->rank, i, round) : NAN;
        run(transport, &shapes[1], values + at, test->in_place ? values : out);
        for (int64_t i = 0; i < elements; i++)
            RANK_CHECK((test->in_place ? values : out)[i] == value_of(members[i / test->shard], i, round));

        for (int64_t i = 0; i < elements; i++)
            narrow[i] = i / test->shard == index ? (uint16_t)(place->rank * 31 + i + round) : 0xFFFF;
        run(transport, &shapes[2], narrow + at, narrow);
        for (int64_t i = 0; i < elements; i++)
            RANK_CHECK(narrow[i] == (uint16_t)(members[i / test->shard] * 31 + i + round));

        for (int64_t i = 0; i < elements; i++) {
            values[i] = value_of(place->rank, i, round);
            wide[i] = (double)value_of(place->rank, i, round) * 1.1;
        }
        run(transport, &shapes[3], values, NULL);
        run(transport, &shapes[4], wide, NULL);
        for (int64_t i = 0; i < elements; i++) {
            float sum = value_of(members[0], i, round);
            double wide_sum = (double)value_of(members[0], i, round) * 1.1;
            for (int64_t member = 1; member < count; member++) {
                sum += value_of(members[member], i, round);
                wide_sum += (double)value_of(members[member], i, round) * 1.1;
            }
            RANK_CHECK(values[i] == sum);
            RANK_CHECK(wide[i] == wide_sum);
        }
    }
    int64_t traffic[RK_OP_FAMILY_COUNT];
    ranks_transport()->traffic(transport, traffic);
    RANK_CHECK(traffic[RK_OP_FAMILY_COLLECTIVE] == 3 * (count - 1) * test->shard * (4 + 4 + 2 + count * (4 + 8)));
    struct rk_error error = {0};
    RANK_CHECK_OK(ranks_transport()->barrier(transport, &error), error);
    ranks_transport()->close(transport);
    rk_job_free(job);
    free(values);
    free(out);
    free(wide);
    free(narrow);
    return 0;
}

static void collectives_agree_with_one_process(void **state) {
    (void)state;
    static const struct collective_case cases[] = {
        {1, 1, 1, RK_GROUP_DATA, 64, false},
        {1, 1, 2, RK_GROUP_DATA, 1, true},
        {1, 1, 2, RK_GROUP_DATA, 300007, false},
        {1, 1, 4, RK_GROUP_DATA, 64 * 1031, true},
        {1, 2, 4, RK_GROUP_EXPERT_REPLICA, 127, true},
        {1, 1, 8, RK_GROUP_DATA, 12289, true},
        {2, 1, 2, RK_GROUP_DATA, 64, true},
        {2, 1, 2, RK_GROUP_EMBEDDING, 200003, false},
        {2, 2, 4, RK_GROUP_WORLD, 3, false},
        {1, 1, 3, RK_GROUP_DATA, 5, false},
        {1, 1, 7, RK_GROUP_WORLD, 11, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ranks_run(cases[i].pipeline * cases[i].data_parallel, collectives_rank, (void *)&cases[i]);
}

/* Every rank first sends both ways and only then receives, as neighbours in 1F1B do; the ring round all stages is used.
 */
static int pipeline_rank(const struct rk_place *place, void *context) {
    const int64_t *bytes = context;
    const struct collective_case layout = {.pipeline = (int)place->world, .expert_parallel = 1, .data_parallel = 1};
    struct rk_job *job = rank_meet(place, 20);
    const struct rk_op_shape shapes[] = {
        {.kind = RK_OP_SEND, .group = RK_GROUP_PIPELINE_NEXT, .dim = {*bytes}},
        {.kind = RK_OP_SEND, .group = RK_GROUP_PIPELINE_PREVIOUS, .dim = {*bytes}},
        {.kind = RK_OP_RECEIVE, .group = RK_GROUP_PIPELINE_PREVIOUS, .dim = {*bytes}},
        {.kind = RK_OP_RECEIVE, .group = RK_GROUP_PIPELINE_NEXT, .dim = {*bytes}},
    };
    struct rk_transport *transport = open_for(job, &layout, shapes, 4);
    int64_t next = (place->rank + 1) % place->world, previous = (place->rank + place->world - 1) % place->world;
    unsigned char *buffer = malloc((size_t)*bytes + 1);
    for (int round = 0; round < 20; round++) {
        for (int message = 0; message < place->world; message++)
            for (int way = 0; way < 2; way++) {
                memset(buffer, (int)(place->rank * 64 + message * 2 + way + round), (size_t)*bytes);
                run(transport, &shapes[way], buffer, NULL);
            }
        for (int message = 0; message < place->world; message++)
            for (int way = 0; way < 2; way++) {
                int64_t peer = way == 0 ? previous : next;
                run(transport, &shapes[2 + way], buffer, NULL);
                for (int64_t i = 0; i < *bytes; i++)
                    RANK_CHECK(buffer[i] == (unsigned char)(peer * 64 + message * 2 + way + round));
            }
    }
    int64_t traffic[RK_OP_FAMILY_COUNT];
    ranks_transport()->traffic(transport, traffic);
    RANK_CHECK(traffic[RK_OP_FAMILY_PIPELINE] == (place->world > 1 ? 40 * place->world * *bytes : 0));
    free(buffer);
    ranks_transport()->close(transport);
    rk_job_free(job);
    return 0;
}

static void messages_come_in_order(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 17, 4096, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int world = ranks_on_gpus() ? 2 : 1; world <= 4; world *= 2) /* a GPU sends nothing to itself */
            ranks_run(world, pipeline_rank, (void *)&sizes[i]);
    ranks_run(3, pipeline_rank, (void *)&sizes[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_agree_with_one_process),
        cmocka_unit_test(messages_come_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

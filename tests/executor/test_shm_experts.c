/* Count exchange, dispatch and combine of a transport against one process that sees all ranks. */
#include "ranks.h"

#include "kernels/bf16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct expert_case {
    int ranks;         /* M */
    int replicas;      /* EP-DP */
    int64_t tokens[8]; /* T of each member */
    int64_t width, routes, experts, rows;
    uint64_t allowed; /* set of experts that may be chosen */
    enum rk_data_type type;
    bool weighted;
    bool residual;
};

static uint64_t hash_of(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t hash = (a * 1000003 + b) * 1000033 + c + 1;
    hash ^= hash >> 31;
    hash *= 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
    hash *= 0xBF58476D1CE4E5B9u;
    return hash ^ hash >> 32;
}

/* The routes of all members and what becomes of them, by the words of model/ops.h for ROUTE_MAP. */
struct routes {
    int32_t *index[8], *row[8], *order[8];
    float *weight[8];
    int32_t *requested; /* [M,N] */
    int32_t *kept;      /* [M,N] */
};

static void *allocate(int64_t count, size_t size) {
    void *memory = calloc((size_t)count + 1, size);
    RANK_CHECK(memory != NULL);
    return memory;
}

static void choose(const struct expert_case *test, int member, struct routes *routes, uint64_t round) {
    int64_t allowed[64], count = 0;
    for (int64_t expert = 0; expert < test->experts; expert++)
        if (test->allowed >> expert & 1)
            allowed[count++] = expert;
    RANK_CHECK(count >= test->routes);
    for (int64_t token = 0; token < test->tokens[member]; token++)
        for (int64_t k = 0; k < test->routes; k++) {
            int64_t start = (int64_t)(hash_of((uint64_t)member, (uint64_t)token, round) % (uint64_t)count);
            int64_t route = token * test->routes + k;
            int32_t expert = (int32_t)allowed[(start + k) % count];
            routes->index[member][route] = expert;
            routes->weight[member][route] = (float)(hash_of((uint64_t)member, (uint64_t)route, round) % 1000) / 1000;
            routes->requested[member * test->experts + expert]++;
        }
}

static void make_routes(const struct expert_case *test, struct routes *routes, uint64_t round) {
    int64_t held = test->experts / test->ranks;
    routes->requested = allocate(test->ranks * test->experts, sizeof(int32_t));
    routes->kept = allocate(test->ranks * test->experts, sizeof(int32_t));
    int32_t *begin = allocate(test->ranks * test->experts, sizeof(int32_t));
    for (int member = 0; member < test->ranks; member++) {
        int64_t count = test->tokens[member] * test->routes;
        routes->index[member] = allocate(count, sizeof(int32_t));
        routes->row[member] = allocate(count, sizeof(int32_t));
        routes->order[member] = allocate(count, sizeof(int32_t));
        routes->weight[member] = allocate(count, sizeof(float));
        choose(test, member, routes, round);
    }
    for (int owner = 0; owner < test->ranks; owner++) {
        int64_t used = 0;
        for (int64_t expert = owner * held; expert < (owner + 1) * held; expert++)
            for (int member = 0; member < test->ranks; member++) {
                int64_t at = member * test->experts + expert;
                int64_t left = test->rows - used;
                int64_t kept = routes->requested[at] < left ? routes->requested[at] : left;
                begin[at] = (int32_t)used;
                routes->kept[at] = (int32_t)kept;
                used += kept;
            }
    }
    for (int member = 0; member < test->ranks; member++) {
        int64_t count = test->tokens[member] * test->routes, ordered = 0;
        for (int64_t expert = 0; expert < test->experts; expert++) {
            int32_t seen = 0, at = (int32_t)(member * test->experts + expert);
            for (int64_t route = 0; route < count; route++)
                if (routes->index[member][route] == expert) {
                    routes->order[member][ordered++] = (int32_t)route;
                    routes->row[member][route] = seen < routes->kept[at] ? begin[at] + seen : -1;
                    seen++;
                }
        }
    }
    free(begin);
}

static void free_routes(const struct expert_case *test, struct routes *routes) {
    for (int member = 0; member < test->ranks; member++) {
        free(routes->index[member]);
        free(routes->row[member]);
        free(routes->order[member]);
        free(routes->weight[member]);
    }
    free(routes->requested);
    free(routes->kept);
}

static float token_value(int member, int64_t token, int64_t feature) {
    return (float)(hash_of((uint64_t)member + 77, (uint64_t)token, (uint64_t)feature) % 2001) / 1000 - 1;
}

/* What an expert makes of a value: different for each expert, and rounded as storage rounds. */
static float expert_value(const struct expert_case *test, int member, int64_t token, int64_t feature, int32_t expert) {
    float value = token_value(member, token, feature) * (1.0f + (float)expert * 0.37f);
    return test->type == RK_F32 ? value : rk_bf16_widen(rk_bf16_round(value));
}

static float load(const struct expert_case *test, const void *values, int64_t at) {
    return test->type == RK_F32 ? ((const float *)values)[at] : rk_bf16_widen(((const uint16_t *)values)[at]);
}

static void store(const struct expert_case *test, void *values, int64_t at, float value) {
    if (test->type == RK_F32)
        ((float *)values)[at] = value;
    else
        ((uint16_t *)values)[at] = rk_bf16_round(value);
}

static void run(struct rk_transport *transport, const struct rk_op_shape *shape, void *const *operands) {
    static const struct rk_transport_position position = {.step = 1, .layer = 2, .micro_batch = 0, .segment = "test"};
    struct rk_op_call call = {.shape = shape};
    struct rk_error error = {0};
    memcpy(call.operand, operands, sizeof call.operand);
    RANK_CHECK_OK(rank_run(transport, &call, RK_STREAM_EXCHANGE, &position, &error), error);
}

/* What this member's receive buffer must hold after dispatch; every other row must be untouched. */
static void check_rows(const struct expert_case *test, const struct routes *routes, int me, const void *rows,
                       const float *row_weight) {
    int64_t held = test->experts / test->ranks, filled = 0;
    bool *expected = allocate(test->rows, sizeof *expected);
    for (int member = 0; member < test->ranks; member++)
        for (int64_t route = 0; route < test->tokens[member] * test->routes; route++) {
            int64_t row = routes->row[member][route];
            if (routes->index[member][route] / held != me || row < 0)
                continue;
            expected[row] = true;
            filled++;
            for (int64_t i = 0; i < test->width; i++) {
                float value = token_value(member, route / test->routes, i);
                if (test->type == RK_BF16)
                    value = rk_bf16_widen(rk_bf16_round(value));
                RANK_CHECK(load(test, rows, row * test->width + i) == value);
            }
            if (test->weighted)
                RANK_CHECK(row_weight[row] == routes->weight[member][route]);
        }
    for (int64_t row = 0; row < test->rows; row++) {
        RANK_CHECK(expected[row] == (row < filled)); /* a prefix */
        for (int64_t i = 0; row >= filled && i < test->width; i++)
            RANK_CHECK(isnan(load(test, rows, row * test->width + i)));
    }
    free(expected);
}

/* The experts' work: rows and scalars of this member, from the reference's knowledge of who sent what. */
static void make_rows(const struct expert_case *test, const struct routes *routes, int me, void *rows, float *scalar) {
    int64_t held = test->experts / test->ranks;
    for (int member = 0; member < test->ranks; member++)
        for (int64_t route = 0; route < test->tokens[member] * test->routes; route++) {
            int64_t row = routes->row[member][route];
            int32_t expert = routes->index[member][route];
            if (expert / held != me || row < 0)
                continue;
            for (int64_t i = 0; i < test->width; i++)
                store(test, rows, row * test->width + i, expert_value(test, member, route / test->routes, i, expert));
            scalar[row] = (float)(member * 100000 + route) + 0.5f;
        }
}

static void check_out(const struct expert_case *test, const struct routes *routes, int me, const void *out,
                      const float *scalar_out) {
    for (int64_t token = 0; token < test->tokens[me]; token++) {
        for (int64_t i = 0; i < test->width; i++) {
            float sum = 0;
            if (test->residual)
                sum += test->type == RK_F32 ? 0.25f * token_value(me, token, i)
                                            : rk_bf16_widen(rk_bf16_round(0.25f * token_value(me, token, i)));
            for (int64_t k = 0; k < test->routes; k++) {
                int64_t route = token * test->routes + k;
                if (routes->row[me][route] >= 0)
                    sum += expert_value(test, me, token, i, routes->index[me][route]);
            }
            if (test->type == RK_BF16)
                sum = rk_bf16_widen(rk_bf16_round(sum));
            RANK_CHECK(load(test, out, token * test->width + i) == sum);
        }
        for (int64_t k = 0; test->weighted && k < test->routes; k++) {
            int64_t route = token * test->routes + k;
            float expected = routes->row[me][route] >= 0 ? (float)(me * 100000 + route) + 0.5f : 0;
            RANK_CHECK(scalar_out[route] == expected);
        }
    }
}

/* Bytes of DISPATCH and COMBINE to other members, counted from the routes. */
static int64_t remote_bytes(const struct expert_case *test, const struct routes *routes, int me) {
    int64_t held = test->experts / test->ranks, row_bytes = test->width * rk_data_type_bytes(test->type), bytes = 0;
    int64_t extra = test->weighted ? 4 : 0;
    for (int member = 0; member < test->ranks; member++)
        for (int64_t token = 0; token < test->tokens[member]; token++) {
            uint64_t reached = 0;
            for (int64_t k = 0; k < test->routes; k++) {
                int64_t route = token * test->routes + k, owner = routes->index[member][route] / held;
                if (routes->row[member][route] < 0 || owner == member)
                    continue;
                if (member == me && (reached >> owner & 1) == 0)
                    bytes += row_bytes;
                if (member == me)
                    bytes += extra;
                if (owner == me)
                    bytes += row_bytes + extra;
                reached |= (uint64_t)1 << owner;
            }
        }
    return bytes;
}

/* One forward exchange of a round, checked at each step. Returns the bytes that leave this rank. */
static int64_t exchange_once(const struct expert_case *test, struct rk_transport *transport, int me, uint64_t round) {
    struct routes routes;
    make_routes(test, &routes, round);
    int64_t T = test->tokens[me], N = test->experts, M = test->ranks;
    const struct rk_op_shape counts = {.kind = RK_OP_COUNT_EXCHANGE, .group = RK_GROUP_EXPERT_PARALLEL, .dim = {N, M}};
    struct rk_op_shape shape = {.kind = RK_OP_DISPATCH,
                                .type = test->type,
                                .group = RK_GROUP_EXPERT_PARALLEL,
                                .dim = {T, test->width, test->routes, N, M, test->rows}};
    int32_t *all = allocate(M * N, sizeof *all);
    run(transport, &counts, (void *[RK_OP_OPERANDS]){routes.requested + me * N, all});
    RANK_CHECK(memcmp(all, routes.requested, (size_t)(M * N) * sizeof *all) == 0);

    void *source = allocate(T * test->width, 4), *rows = allocate(test->rows * test->width, 4);
    void *out = allocate(T * test->width, 4);
    float *row_weight = allocate(test->rows, 4), *scalar_out = allocate(T * test->routes, 4);
    for (int64_t i = 0; i < T * test->width; i++)
        store(test, source, i, token_value(me, i / test->width, i % test->width));
    memset(rows, 0xFF, (size_t)(test->rows * test->width) * 4);
    run(transport, &shape,
        (void *[RK_OP_OPERANDS]){source, test->weighted ? routes.weight[me] : NULL, routes.index[me], routes.row[me],
                                 routes.kept, routes.order[me], rows, test->weighted ? row_weight : NULL});
    check_rows(test, &routes, me, rows, row_weight);

    /* Combine, with the residual in the place of the result. */
    memset(rows, 0xFF, (size_t)(test->rows * test->width) * 4);
    memset(out, 0xFF, (size_t)(T * test->width) * 4);
    make_rows(test, &routes, me, rows, row_weight);
    for (int64_t i = 0; test->residual && i < T * test->width; i++)
        store(test, out, i, 0.25f * token_value(me, i / test->width, i % test->width));
    shape.kind = RK_OP_COMBINE;
    run(transport, &shape,
        (void *[RK_OP_OPERANDS]){rows, test->weighted ? row_weight : NULL, routes.index[me], routes.row[me],
                                 routes.kept, routes.order[me], test->residual ? out : NULL, out,
                                 test->weighted ? scalar_out : NULL});
    check_out(test, &routes, me, out, scalar_out);
    int64_t bytes = remote_bytes(test, &routes, me) + (M - 1) * N * 4;
    free(all);
    free(source);
    free(rows);
    free(out);
    free(row_weight);
    free(scalar_out);
    free_routes(test, &routes);
    return bytes;
}

static void one_case(const struct expert_case *test, const struct rk_job *job, int64_t rank) {
    int me = (int)(rank % test->ranks);
    struct rk_program program;
    struct rk_op ops[3];
    int64_t M = test->ranks, N = test->experts;
    const struct rk_op_shape shapes[] = {
        {.kind = RK_OP_COUNT_EXCHANGE, .group = RK_GROUP_EXPERT_PARALLEL, .dim = {N, M}},
        {.kind = RK_OP_DISPATCH,
         .type = test->type,
         .group = RK_GROUP_EXPERT_PARALLEL,
         .dim = {test->tokens[me], test->width, test->routes, N, M, test->rows}},
        {.kind = RK_OP_COMBINE,
         .type = test->type,
         .group = RK_GROUP_EXPERT_PARALLEL,
         .dim = {test->tokens[me], test->width, test->routes, N, M, test->rows}},
    };
    rank_program(&program, ops, shapes, 3, 1, test->ranks, test->ranks * test->replicas);
    struct rk_transport *transport = rank_open(job, &program, 20);
    int64_t bytes = 0;
    for (uint64_t round = 0; round < 3; round++)
        bytes += exchange_once(test, transport, me, round + (uint64_t)(rank / test->ranks) * 10);
    int64_t traffic[RK_OP_FAMILY_COUNT];
    ranks_transport()->traffic(transport, traffic);
    RANK_CHECK(traffic[RK_OP_FAMILY_EXPERT_EXCHANGE] == bytes);
    ranks_transport()->close(transport);
}

/* Cases for the same number of ranks. */
struct expert_list {
    int count;
    struct expert_case cases[64];
};

static int expert_rank(const struct rk_place *place, void *context) {
    const struct expert_list *list = context;
    struct rk_job *job = rank_meet(place, 20);
    for (int i = 0; i < list->count; i++)
        one_case(&list->cases[i], job, place->rank);
    rk_job_free(job);
    return 0;
}

/* A GPU takes seconds to open: there the cases are collected, and run at the end by one set of processes. */
static struct expert_list collected[RANKS_MAX + 1];

static void run_case(struct expert_case test) {
    int world = test.ranks * test.replicas;
    if (ranks_on_gpus() && collected[world].count < 64) {
        collected[world].cases[collected[world].count++] = test;
    } else {
        struct expert_list alone = {1, {test}};
        ranks_run(world, expert_rank, &alone);
    }
}

static void collected_cases(void **state) {
    (void)state;
    for (int world = 1; world <= RANKS_MAX; world++)
        if (collected[world].count > 0)
            ranks_run(world, expert_rank, &collected[world]);
}

#define ALL_EXPERTS UINT64_MAX

static void exchange_agrees_with_one_process(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int variant = 0; variant < 4; variant++) {
            struct expert_case test = {.ranks = ranks,
                                       .replicas = 1,
                                       .width = variant == 0 ? 1031 : 61,
                                       .routes = variant == 1 ? 1 : 3,
                                       .experts = 16,
                                       .allowed = ALL_EXPERTS,
                                       .type = variant % 2 == 0 ? RK_F32 : RK_BF16,
                                       .weighted = variant < 2,
                                       .residual = variant % 3 == 0};
            for (int member = 0; member < ranks; member++)
                test.tokens[member] = 53;
            test.rows = ranks * 53 * test.routes; /* nothing is dropped */
            run_case(test);
            test.rows = 53 * test.routes * 3 / 4; /* capacity 0.75: some are */
            run_case(test);
        }
}

static void rows_of_whole_pieces(void **state) {
    (void)state;
    for (int type = 0; type < RK_DATA_TYPE_COUNT; type++)
        for (int64_t width = 64; width <= 2080; width += 2016)
            run_case((struct expert_case){.ranks = 2,
                                          .replicas = 1,
                                          .tokens = {97, 41},
                                          .width = width,
                                          .routes = 8,
                                          .experts = 16,
                                          .rows = 700,
                                          .allowed = ALL_EXPERTS,
                                          .type = (enum rk_data_type)type,
                                          .weighted = true,
                                          .residual = true});
}

static void replicas_do_not_mix(void **state) {
    (void)state;
    run_case((struct expert_case){.ranks = 2,
                                  .replicas = 3,
                                  .tokens = {17, 17},
                                  .width = 7,
                                  .routes = 2,
                                  .experts = 4,
                                  .rows = 40,
                                  .allowed = ALL_EXPERTS,
                                  .weighted = true});
}

static void every_subset_of_empty_experts(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        for (uint64_t allowed = 1; allowed < 16; allowed++)
            run_case((struct expert_case){.ranks = ranks,
                                          .replicas = 1,
                                          .tokens = {5, 5, 5, 5},
                                          .width = 3,
                                          .routes = 1,
                                          .experts = 4,
                                          .rows = 20,
                                          .allowed = allowed,
                                          .weighted = true});
}

static void all_tokens_to_one_expert(void **state) {
    (void)state;
    for (int expert = 0; expert < 8; expert += 7) {
        struct expert_case test = {.ranks = 4,
                                   .replicas = 1,
                                   .tokens = {64, 64, 64, 64},
                                   .width = 16,
                                   .routes = 1,
                                   .experts = 8,
                                   .rows = 80,
                                   .weighted = true,
                                   .residual = true};
        test.allowed = (uint64_t)1 << expert;
        run_case(test); /* 256 routes to one rank with room for 80: the other ranks get nothing */
    }
}

static void a_rank_without_tokens(void **state) {
    (void)state;
    for (int empty = 0; empty < 4; empty++) {
        struct expert_case test = {.ranks = 4,
                                   .replicas = 1,
                                   .tokens = {11, 11, 11, 11},
                                   .width = 5,
                                   .routes = 2,
                                   .experts = 4,
                                   .rows = 30,
                                   .allowed = ALL_EXPERTS,
                                   .weighted = true};
        test.tokens[empty] = 0;
        run_case(test);
    }
    run_case((struct expert_case){
        .ranks = 2, .replicas = 1, .width = 5, .routes = 2, .experts = 4, .rows = 8, .allowed = ALL_EXPERTS});
    run_case((struct expert_case){
        .ranks = 1, .replicas = 1, .width = 5, .routes = 2, .experts = 4, .rows = 8, .allowed = ALL_EXPERTS});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchange_agrees_with_one_process),
        cmocka_unit_test(rows_of_whole_pieces),
        cmocka_unit_test(replicas_do_not_mix),
        cmocka_unit_test(every_subset_of_empty_experts),
        cmocka_unit_test(all_tokens_to_one_expert),
        cmocka_unit_test(a_rank_without_tokens),
        cmocka_unit_test(collected_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

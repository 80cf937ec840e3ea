/* The exhaustive search: every candidate of a space is judged; closed forms rank, the simulator replays the best. */
#ifndef RK_MODEL_SEARCH_H
#define RK_MODEL_SEARCH_H

#include "model/memory.h"
#include "model/simulator.h"

/* Why a candidate is refused. X(name, text, unit) */
#define RK_REFUSAL_TABLE(X)                                                                                            \
    X(NONE, "feasible", "")                                                                                            \
    X(DIVISIBILITY, "divisibility", "")                                                                                \
    X(MEMORY, "memory", "GiB")                                                                                         \
    X(HOST_MEMORY, "host memory", "GiB")                                                                               \
    X(OFFLOAD_D2H, "offload bandwidth, device to host", "GB/s")                                                        \
    X(OFFLOAD_H2D, "offload bandwidth, host to device", "GB/s")                                                        \
    X(TOPOLOGY, "topology", "ranks")                                                                                   \
    X(UNCALIBRATED, "no measurement", "")

enum rk_refusal {
#define RK_REFUSAL_KIND(name, text, unit) RK_REFUSAL_##name,
    RK_REFUSAL_TABLE(RK_REFUSAL_KIND)
#undef RK_REFUSAL_KIND
    RK_REFUSAL_COUNT
};
const char *rk_refusal_name(enum rk_refusal refusal);
const char *rk_refusal_unit(enum rk_refusal refusal);

struct rk_judgement {
    struct rk_candidate candidate;
    enum rk_refusal refusal;
    double need, have;             /* in the refusal's unit */
    char remedy[160];              /* the smallest change that would make it fit: "offload at most 16 %", "EP 16" */
    double seconds, low, high;     /* predicted step; 0 when refused before pricing */
    bool simulated;                /* seconds come from the simulator, not the closed form */
    int64_t arena_bytes[2];        /* heaviest stage: [0] persistent, [1] all */
    int32_t heaviest_stage;
    enum rk_origin origin;         /* the worst among the terms that make 90 % of the time */
};

struct rk_search_request {
    const struct rk_architecture *architecture;
    const struct rk_machine *machine;
    const struct rk_cost_source *costs;
    int64_t world;                 /* ranks; all are used: PP · D = world */
    int64_t sequence, global_batch_tokens;
    enum rk_data_type type;
    int64_t memory_limit_bytes;    /* per rank, 0: the machine's */
    double capacity_factor;        /* 0: without drops under any routing (EP-MP) */
    enum rk_routing routing;
    /* 0 or -1: free; else fixed */
    int32_t pipeline, virtual_stages, expert_parallel, offload_percent;
    int64_t micro_batch_tokens;
    int32_t recompute;             /* enum rk_recompute or -1 */
    size_t replayed;               /* how many of the best the simulator replays; 0: 16 */
};

struct rk_search_result {
    struct rk_judgement *judgements; /* all candidates, feasible first by predicted time, then refused by kind; owned */
    size_t count, feasible;
    double seconds_spent_per_candidate; /* 0: model/ has no clock; the caller fills it */
};

/* RK_INFEASIBLE when nothing fits: the result still holds every refusal, and the error names the nearest candidate, its need
 * and have, and what would make it fit. */
enum rk_status rk_search(const struct rk_search_request *request, struct rk_search_result *result,
                         struct rk_error *error);
void rk_search_result_free(struct rk_search_result *result);

#endif

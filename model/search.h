/* The exhaustive search: every candidate of a space is judged; closed forms rank, the simulator replays the best.
 *
 * The space: PP over the divisors of the ranks, virtual stages 1, 2 and 4, EP-MP over the divisors of the ranks up to
 * the number of experts, micro-batches of 1, 2, 4, ... sequences, every recompute policy, offload of 0, 25, 50, 75 and
 * 100 % and the largest whole per cent that the host link carries. Layers are spread evenly (rk_candidate_even_chunks).
 *
 * A candidate is judged in this order, and the first refusal stands: divisibility; topology (an EP-MP group must not
 * span hosts); size (rk_candidate_check_sizes); memory; host memory; offload bandwidth to the host, then from it;
 * price. Offload: the bytes that a block of the stage's prevailing kind keeps (balanced load, no capacity padding:
 * rk_moe_block_activation_bytes less what is recomputed) times the offloaded share, over the time of the block's
 * forward (backward), must not exceed the link's rate with all ranks of the host copying. Bytes of memory are those of
 * the step program's buffers: near the limit and for the replayed candidates they come from the memory layout itself,
 * elsewhere from a closed form that equals it.
 *
 * Of the feasible ones the best by closed form are replayed, at least four and as many more as keep the replay short.
 * Among those within 0.1 % of the fastest the plainest comes first: no offload, then fewest bytes. */
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
    X(UNCALIBRATED, "no measurement", "")                                                                              \
    X(SIZE, "size", "")

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
    double offload_need[2];        /* GB/s to the host and back that the offloaded bytes demand; 0 when not judged */
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
    /* Constraints. 0: free; else fixed */
    int32_t pipeline, virtual_stages, expert_parallel;
    int64_t micro_batch_tokens;
    /* -1: free; else fixed */
    int32_t offload_percent;
    int32_t recompute;             /* enum rk_recompute */
    size_t replayed;               /* how many of the best the simulator replays; 0: 16 */
};

enum { RK_SEARCH_KEPT_MAX = 8192 };

struct rk_search_result {
    /* Feasible first by predicted time, then refused by kind, nearest to fitting first; of a large space the first
     * RK_SEARCH_KEPT_MAX feasible and as many of each refusal. Owned. */
    struct rk_judgement *judgements;
    size_t kept;
    size_t count, feasible;          /* of all candidates judged */
    size_t refused[RK_REFUSAL_COUNT];
};

/* RK_INFEASIBLE when nothing fits: the result still holds every refusal, and the error names the nearest candidate, its
 * need and have, and what would make it fit. */
enum rk_status rk_search(const struct rk_search_request *request, struct rk_search_result *result,
                         struct rk_error *error);
void rk_search_result_free(struct rk_search_result *result);

#endif

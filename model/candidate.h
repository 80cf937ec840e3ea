/* A candidate configuration: the decision variables of a training run, and the layout of ranks that follows from them.
 */
#ifndef RK_MODEL_CANDIDATE_H
#define RK_MODEL_CANDIDATE_H

#include "base/status.h"
#include "model/architecture.h"
#include "model/ops.h"

#include <stdbool.h>
#include <stdint.h>

enum { RK_STAGES_MAX = 128, RK_VIRTUAL_STAGES_MAX = 16 };

/* Sizes far beyond any run, so that no product of a few of them leaves 64 bits. */
#define RK_RANKS_MAX ((int64_t)1 << 20)
#define RK_TOKENS_MAX ((int64_t)1 << 31) /* of a sequence and of a micro-batch */
#define RK_GLOBAL_TOKENS_MAX ((int64_t)1 << 50)

/* Micro-batches that plans are searched over and calibrations measured for: 1, 2, 4, ... sequences, so many sizes. */
enum { RK_MICRO_BATCH_SIZES = 6 };

/* X(name, text) */
#define RK_RECOMPUTE_TABLE(X)                                                                                          \
    X(NONE, "none")                                                                                                    \
    X(ATTENTION, "attention") /* norm, qkv, rotation, attention core: kept are the block's input and what follows */   \
    X(BLOCK, "block")         /* everything but the block's input and the routes */

enum rk_recompute {
#define RK_RECOMPUTE_KIND(name, text) RK_RECOMPUTE_##name,
    RK_RECOMPUTE_TABLE(RK_RECOMPUTE_KIND)
#undef RK_RECOMPUTE_KIND
        RK_RECOMPUTE_COUNT
};
const char *rk_recompute_name(enum rk_recompute policy);
enum rk_recompute rk_recompute_from_name(const char *name); /* RK_RECOMPUTE_COUNT if none */

enum rk_routing { RK_ROUTING_LEARNED, RK_ROUTING_RANDOM, RK_ROUTING_UNIFORM, RK_ROUTING_COUNT };
const char *rk_routing_name(enum rk_routing routing);
enum rk_routing rk_routing_from_name(const char *name);

struct rk_candidate {
    int32_t pipeline;            /* PP: stages */
    int32_t virtual_stages;      /* chunks of the model on each stage, 1 without interleaving */
    int32_t expert_parallel;     /* EP-MP, M */
    int32_t data_parallel;       /* D = EP-MP · EP-DP: ranks of one stage */
    int64_t micro_batch_tokens;  /* T, a multiple of sequence */
    int64_t sequence;            /* S */
    int64_t global_batch_tokens; /* T · D · m */
    enum rk_recompute recompute;
    int32_t offload_percent; /* of the activation bytes kept per block, 0 to 100 */
    enum rk_data_type type;  /* of weights and activations */
    enum rk_backend_kind backend;
    double capacity_factor; /* receive rows R = min(ceil(c·T·K), M·T·K) */
    enum rk_routing routing;
    int64_t logits_chunk_tokens;               /* rows of logits alive at once in the loss; divides T */
    int64_t bucket_bytes;                      /* FP32 gradient bytes of a reduction bucket, at least one layer's */
    double balance_coefficient, z_coefficient; /* weights of the auxiliary losses */
    double weight_decay;
    /* Layers of chunk c of the model, c = virtual_stage · pipeline + stage. The sum is the architecture's layer count.
     */
    int16_t chunk_layers[RK_STAGES_MAX * RK_VIRTUAL_STAGES_MAX];
};

/* World size: PP · D. */
int64_t rk_candidate_world(const struct rk_candidate *candidate);
/* Micro-batches per step on a rank: global / (T · D). */
int64_t rk_candidate_micro_batches(const struct rk_candidate *candidate);
/* Receive rows R; 2^62 when there would be more. */
int64_t rk_candidate_receive_rows(const struct rk_architecture *architecture, const struct rk_candidate *candidate);

/* Fills the variables that no search varies: one virtual stage when 0, logits chunk (the largest divisor of T up to
 * 1,024 tokens, at least one sequence is not required), bucket size 250 MiB, loss coefficients 0.01 and 0.001, weight
 * decay 0.1. */
void rk_candidate_defaults(struct rk_candidate *candidate);

/* Spreads the layers over the chunks as evenly as they go; earlier chunks take the remainder from the second one on, so
 * that the first (embedding) and the last (head) are never the heaviest when there is a choice. */
void rk_candidate_even_chunks(const struct rk_architecture *architecture, struct rk_candidate *candidate);

/* Divisibility and ranges. RK_USAGE with the variable, what it is and what it must divide. */
enum rk_status rk_candidate_check(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                  struct rk_error *error);

/* Whether the step fits the formats, for a candidate that rk_candidate_check accepts: row numbers are 32-bit, byte
 * counts 64-bit, and a rank's schedule is written out, at most 4,194,304 visits of blocks. RK_INFEASIBLE with need and
 * have. */
enum rk_status rk_candidate_check_sizes(const struct rk_architecture *architecture,
                                        const struct rk_candidate *candidate, struct rk_error *error);

/* Whether the back end's kernels and transport have room for the routing (model/routing_limits.h). RK_USAGE names the
 * count and the limit. A candidate that they have not is planned, not run. */
enum rk_status rk_candidate_check_routing(const struct rk_architecture *architecture,
                                          const struct rk_candidate *candidate, struct rk_error *error);

/* Where a world rank stands. World rank = stage · D + ep_dp · M + ep_mp. */
struct rk_rank_place {
    int32_t stage, expert_replica, expert_rank; /* PP rank; EP-DP rank; EP-MP rank */
};
struct rk_rank_place rk_candidate_place(const struct rk_candidate *candidate, int64_t world_rank);

/* World ranks of a group as seen from world_rank, in group order; returns the number (at most capacity are written) and
 * this rank's index in it. For pipeline peers the group is the one peer. */
int64_t rk_candidate_group(const struct rk_candidate *candidate, int64_t world_rank, enum rk_group_kind group,
                           int64_t *ranks, int64_t capacity, int64_t *index);

#endif

/* Between the files of the search: the space, what is worked out once and used by many candidates, and the judge.
 *
 * The closed form of a candidate is put together from three things, each made once and kept:
 *   - a stage class: the flat spaces and the time at the end of the step of a stage with given layers (real lowering of
 *     the split, short schedule), by (layers' kinds, first, last, D, EP-MP);
 *   - a template: bytes by scope and seconds by block of the step program of a small model with the same blocks, by
 *     (micro-batch, EP-MP, recompute, offload, first, last, kinds, virtual stages or not);
 *   - live slots of each virtual stage and stage, by (PP, virtual stages, micro-batches).
 * Bytes are exactly those of the memory layout as long as the shared region of a stage is the larger of its template's
 * and its class's; the tests compare, and finalists and candidates near the limit are laid out. Seconds rank, and the
 * simulator decides. Private to model/search*.c. */
#ifndef RK_MODEL_SEARCH_INTERNAL_H
#define RK_MODEL_SEARCH_INTERNAL_H

#include "model/cost_cache.h"
#include "model/search.h"

enum {
    RK_AXIS_MAX = 32,
    RK_OFFLOAD_GRID = 6,           /* 0, 25, 50, 75, 100 and the fraction that the link allows */
    RK_OFFLOAD_ALLOWED = 5,
    RK_LAYER_KIND_SETS = 4,        /* sets of block kinds, as layer_kinds of a buffer */
    RK_ROLES = 4                   /* bit 0: first stage, bit 1: last stage */
};

/* The values of each decision variable. */
struct rk_search_space {
    int32_t pipeline[RK_AXIS_MAX], pipeline_count;
    int32_t virtual_stages[RK_AXIS_MAX], virtual_count;
    int32_t expert_parallel[RK_AXIS_MAX], expert_count;
    int64_t micro_batch[RK_AXIS_MAX];
    int32_t micro_batch_count;
    int32_t recompute[RK_RECOMPUTE_COUNT], recompute_count;
    int32_t offload[RK_OFFLOAD_GRID], offload_count; /* the allowed fraction stands as -1 */
};

/* Where a candidate stands in the space. */
struct rk_search_index {
    int32_t pipeline, virtual_stages, expert, micro_batch, recompute, offload;
};

/* Seconds by origin, so that the worst that matters can be named; sum and doubt. */
struct rk_search_seconds {
    double total, doubt;           /* doubt: seconds · relative uncertainty */
    double ops;                    /* that the host submits */
    double origin[RK_ORIGIN_COUNT];
};

/* Bytes of one place (device or host) by how they multiply. */
struct rk_scope_bytes {
    int64_t step;                          /* once: step scope without the flat spaces, rings by micro-batch */
    int64_t micro_batch;                   /* for each micro-batch */
    int64_t layer[RK_LAYER_KIND_SETS];     /* for each layer of the kinds */
    int64_t layer_ring[RK_LAYER_KIND_SETS]; /* for each instance of a ring over the layers of the kinds */
    int64_t layer_slot[RK_LAYER_KIND_SETS]; /* for each layer of the kinds and slot that it may hold */
    int64_t slot;                          /* for each slot */
};

struct rk_search_template {
    struct rk_scope_bytes device, host;
    int64_t visit_bytes;                   /* the shared region */
    int32_t layer_ring_size;               /* most instances of a ring over layers */
    struct rk_search_seconds forward[2], backward[2]; /* of one block, by enum rk_block, copies apart */
    struct rk_search_seconds extra_forward, extra_backward; /* embedding, loss, transfers of a chunk */
    double to_host[2], to_device[2];       /* seconds of a block's copies */
    double kept_bytes[2], offloaded_bytes[2];
    bool priced;                           /* else uncalibrated says what is missing */
    char uncalibrated[160];
};

struct rk_stage_class {
    int64_t flat_bytes;                    /* weights, gradients, shards */
    int64_t visit_bytes;
    struct rk_search_seconds reduction, end;
    bool priced;
    char uncalibrated[160];
};

/* A stage of a split of the layers. */
struct rk_split_stage {
    int32_t layers[2][RK_VIRTUAL_STAGES_MAX]; /* by kind and virtual stage */
    int32_t layer_count[2];
    uint8_t kinds, role;
};

struct rk_split {
    struct rk_split_stage *stages;         /* pipeline of them; owned */
    bool made, possible;                   /* possible: every chunk has a layer */
};

struct rk_live_slots {
    int32_t *slots;                        /* [stage][virtual stage], then of all of the stage at once; owned */
};

struct rk_searching {
    const struct rk_search_request *request;
    struct rk_search_space space;
    struct rk_cost_cache *cache;
    struct rk_cost_source costs;
    int64_t limit_bytes;                   /* device bytes of one rank for the arena */
    double capacity_factor;                /* of the request; 0: EP-MP */

    struct rk_split *splits;               /* [pipeline][virtual] */
    struct rk_stage_class **classes;       /* [pipeline][virtual][expert] → pipeline of them, NULL not made */
    struct rk_search_template **templates; /* by template_index; NULL not made */
    struct rk_live_slots *live;            /* [pipeline][virtual][micro-batch] */
    struct rk_error *error;
};

/* search_space.c */
enum rk_status rk_search_space_make(const struct rk_search_request *request, struct rk_search_space *space,
                                    struct rk_error *error);
/* The candidate at an index; offload -1 (the allowed fraction) is left at 0. */
void rk_search_candidate(struct rk_searching *searching, const struct rk_search_index *index,
                         struct rk_candidate *candidate);

/* search_template.c: made on first use, NULL with the searching's error when memory runs out or lowering fails. */
const struct rk_split *rk_search_split(struct rk_searching *searching, const struct rk_search_index *index);
const struct rk_stage_class *rk_search_classes(struct rk_searching *searching, const struct rk_search_index *index);
/* percent: the real one, -1 is not allowed here. */
const struct rk_search_template *rk_search_template(struct rk_searching *searching, const struct rk_search_index *index,
                                                    int32_t percent, const struct rk_split_stage *stage);
const int32_t *rk_search_slots(struct rk_searching *searching, const struct rk_search_index *index);
enum rk_status rk_searching_open(const struct rk_search_request *request, struct rk_searching *searching,
                                 struct rk_error *error);
void rk_searching_close(struct rk_searching *searching);

/* What the judge says of a candidate: small, because there is one for each. */
struct rk_verdict {
    struct rk_search_index index;
    int32_t percent;               /* of offload, also where the index says the allowed fraction */
    int32_t heaviest_stage;
    uint8_t refusal, origin;       /* enum rk_refusal, enum rk_origin */
    bool simulated;
    bool exact;                    /* bytes come from the layouts */
    bool absent;                   /* the allowed fraction is one of the fixed ones: no candidate of its own */
    double need, have;
    double seconds, low, high;
    int64_t bytes[2];              /* heaviest stage: persistent, all */
    int64_t host_bytes;
    double allowed;                /* share of the kept bytes that the link carries; offload only */
    double offload_need[2];        /* GB/s to the host and back, of the most demanding block */
};

/* search_judge.c: judges by closed form; text of a missing measurement goes to *uncalibrated when it is not NULL. */
enum rk_status rk_search_judge(struct rk_searching *searching, const struct rk_search_index *index,
                               struct rk_verdict *verdict, const char **uncalibrated);
/* The candidate of a verdict, with its real offload. */
void rk_search_verdict_candidate(struct rk_searching *searching, const struct rk_verdict *verdict,
                                 struct rk_candidate *candidate);
/* search_replay.c: exact bytes of the candidate's stages from their layouts; refuses the candidate when they do not
 * fit. With simulate, also the simulator's seconds, and *ops grows by the ops it played. */
enum rk_status rk_search_replay(struct rk_searching *searching, bool simulate, struct rk_verdict *verdict,
                                int64_t *ops);

#endif

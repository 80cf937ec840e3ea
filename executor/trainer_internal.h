/* What the files of the trainer share. */
#ifndef RK_EXECUTOR_TRAINER_INTERNAL_H
#define RK_EXECUTOR_TRAINER_INTERNAL_H

#include "executor/trainer.h"

/* Bytes to fill after an op. */
struct rk_poison_range {
    void *address;
    int64_t bytes;
};

/* An op of a visit with everything that does not change from step to step. */
struct rk_resolved_op {
    const struct rk_op *op;
    struct rk_op_call call; /* without the serial */
    struct rk_event_handle *wait[RK_OP_WAITS];
    struct rk_event_handle *record[RK_OP_RECORDS];
    size_t poison_first, poison_count; /* into the trainer's list */
};

struct rk_trainer {
    const struct rk_program *program;
    const struct rk_memory_layout *layout;
    struct rk_trainer_options options;
    struct rk_job *job;
    const struct rk_backend *backend;
    struct rk_shards shards;
    int64_t data_rank, micro_batches;
    int64_t group_index[RK_GROUP_COUNT];

    struct rk_device *device;
    char *arena, *host_pool;
    int64_t device_bytes, host_bytes; /* that the back end gave until the counters were last reset */
    struct rk_stream *stream[RK_STREAM_COUNT];
    struct rk_event_handle **event; /* all instances */
    size_t *event_first;            /* of each event of the program, event_count + 1 */
    struct rk_transport *transport;

    struct rk_resolved_op *resolved; /* all visits, one after another */
    size_t *visit_first;             /* visit_count + 1 */
    size_t first_update;             /* the first op that changes masters */
    struct rk_poison_range *poison;  /* in order of the ops */

    int64_t *agreement; /* one value of each rank */
    int64_t *load;      /* of the last step */
    int32_t load_layers;
    double exchange_bytes_per_route;
    int64_t traffic[RK_OP_FAMILY_COUNT]; /* of the transport before the step */
    struct rk_trace trace;
};

/* The address of a buffer's instance. */
void *rk_trainer_address(const struct rk_trainer *trainer, uint32_t buffer, int64_t instance);

/* Fills resolved and visit_first from the schedule. */
enum rk_status rk_trainer_resolve(struct rk_trainer *trainer, struct rk_error *error);
void rk_trainer_resolve_free(struct rk_trainer *trainer);

/* Adds to each resolved op the ranges that nothing reads after it. */
enum rk_status rk_trainer_resolve_poison(struct rk_trainer *trainer, struct rk_error *error);

#endif

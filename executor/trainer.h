/* The training step: opens a device and interprets a step program on it.
 *
 * All memory of a step is one arena on the device (and one pool in host memory for offload), laid out before. Between
 * the first launch of a step and its last, the host neither waits for the device nor reads from it; tokens, targets and
 * the optimizer's state are written before, loss sums and load are read after. With `dropless` there is one more wait:
 * before the first weight update the count of dropped routes is read and agreed on by all ranks, and when one was
 * dropped nothing is updated, so that the step can be repeated with larger buffers from unchanged state. */
#ifndef RK_EXECUTOR_TRAINER_H
#define RK_EXECUTOR_TRAINER_H

#include "executor/shards.h"
#include "executor/trace.h"
#include "executor/transport.h"
#include "model/memory.h"

struct rk_trainer;

/* True in debug builds: released buffers are filled with a byte pattern that reads as NaN. */
bool rk_trainer_default_poison(void);

struct rk_trainer_options {
    const struct rk_backend *backend;
    const struct rk_transport_table *transport;
    int device;                    /* ordinal */
    const char *spill_folder;      /* of the CPU back end, or NULL */
    double deadline_seconds;       /* of every wait; at a step's end, of the time in which nothing ends on the device */
    int64_t predicted_arena_bytes; /* by the plan for this stage; -1: there is no plan */
    int64_t predicted_host_bytes;
    /* Fills every buffer with 0xFF once nothing reads it any more, and the arena before anything is written. A norm
     * that is not finite is then an error: something read a buffer after its release or before its first write. */
    bool poison;
    bool dropless;
};

/* What a step is given. */
struct rk_step_inputs {
    int64_t step;           /* from 0 */
    const int32_t *windows; /* m windows of T + 1 tokens of this data rank, micro-batch by micro-batch; needed on the
                               first and the last stage, may be NULL elsewhere */
    float state[8];         /* rk_optimizer_step_state */
    bool traced;            /* time every op: never counted as throughput */
};

/* What a step says, all of it read after its end. */
struct rk_step_result {
    bool updated;                     /* false: routes were dropped and the trainer is dropless */
    double cross_entropy, balance, z; /* means over the global batch; the last two summed over layers */
    double gradient_norm;             /* before clipping */
    double seconds;                   /* from the first input's copy to the end of the last op, on this rank */
    double submission_seconds;        /* of that, until the last op was enqueued */
    int64_t requested, dropped;       /* routes of this rank, all layers */
    double remote_bytes,
        local_bytes; /* sent to other ranks by all transports; rows of the expert exchange that stayed */
    struct rk_device_counters counters; /* from the first launch to the last */
};

/* Opens everything: collective over the job's ranks. program and layout stay the caller's and must live as long as the
 * trainer. A layout whose size is not what the plan predicted is RK_ERROR. Close with rk_trainer_close. */
enum rk_status rk_trainer_open(struct rk_job *job, const struct rk_program *program,
                               const struct rk_memory_layout *layout, const struct rk_trainer_options *options,
                               struct rk_trainer **trainer, struct rk_error *error);
void rk_trainer_close(struct rk_trainer *trainer);

/* Makes the waits of every peer end at once, when this rank cannot go on. */
void rk_trainer_abort(struct rk_trainer *trainer);

/* Runs one step. RK_RANK_FAILED when a peer is gone or a deadline passes. */
enum rk_status rk_trainer_step(struct rk_trainer *trainer, const struct rk_step_inputs *inputs,
                               struct rk_step_result *result, struct rk_error *error);

/* Load counters of the last step: i64[2N + 1] for each routed layer of the stage in its order (ROUTE_MAP's operand 6).
 * The trainer's. *layers is their number. */
const int64_t *rk_trainer_load(const struct rk_trainer *trainer, int32_t *layers);

/* The account of the traced steps so far. */
const struct rk_trace *rk_trainer_trace(const struct rk_trainer *trainer);

/* Moves the traced steps of one trainer to another of the same stage, whose buffers may have other sizes: out of a
 * trainer that is about to be closed, into one that has just been opened. What is not moved on is freed with
 * rk_trace_close. Programs with other ops are RK_ERROR. */
void rk_trainer_take_traced(struct rk_trainer *trainer, struct rk_trace *taken);
enum rk_status rk_trainer_give_traced(struct rk_trainer *trainer, struct rk_trace *taken, struct rk_error *error);

/* Copies between host memory and an instance of a buffer, outside steps; blocks. offset and bytes are inside the
 * instance. */
enum rk_status rk_trainer_write(struct rk_trainer *trainer, uint32_t buffer, int64_t instance, int64_t offset,
                                const void *from, int64_t bytes, struct rk_error *error);
enum rk_status rk_trainer_read(struct rk_trainer *trainer, uint32_t buffer, int64_t instance, int64_t offset, void *to,
                               int64_t bytes, struct rk_error *error);

enum rk_status rk_trainer_zero(struct rk_trainer *trainer, uint32_t buffer, int64_t instance, struct rk_error *error);

/* What it was opened with. */
const struct rk_program *rk_trainer_program(const struct rk_trainer *trainer);
struct rk_job *rk_trainer_job(const struct rk_trainer *trainer);
const struct rk_shards *rk_trainer_shards(const struct rk_trainer *trainer);
/* This rank's index among the D ranks of its stage. */
int64_t rk_trainer_data_rank(const struct rk_trainer *trainer);
/* Facts of the device; used_bytes as the driver sees it after opening. */
enum rk_status rk_trainer_device_facts(struct rk_trainer *trainer, struct rk_device_facts *facts,
                                       struct rk_error *error);
/* Bytes of device memory and of host memory that the back end has given since the trainer was opened, as it counted
 * them. */
int64_t rk_trainer_arena_bytes(const struct rk_trainer *trainer);
int64_t rk_trainer_host_bytes(const struct rk_trainer *trainer);

#endif

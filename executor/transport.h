/* Transports: how ranks of one run move data to one another. One interface; `shm` for local processes on CPUs, `nccl`
 * for GPUs.
 *
 * A transport is opened once for a program and executes the ops that the op table marks TRANSPORT. Of the program it
 * reads the candidate (layout of the groups), the shapes of the ops (the largest that will be run) and the slots (how
 * many messages a stage can be ahead): a program that holds only these is enough, so calibrate fills in the shapes that
 * it is to time. Collectives are entered by all ranks of the group in the same program order. Sums are bitwise
 * repeatable: `shm` takes them in rank order, which no layout changes; `nccl` in the order of the algorithm that NCCL
 * chooses for the size and the group, the same in every run on the same machines, and the rank order for two ranks.
 * COMBINE sums in order of k on both. Every wait has a deadline; when it passes, or a peer is gone, the call (on GPUs a
 * later call, or the wait for the stream) returns RK_RANK_FAILED and names the missing world rank, its host, the op, the
 * layer and the step. */
#ifndef RK_EXECUTOR_TRANSPORT_H
#define RK_EXECUTOR_TRANSPORT_H

#include "executor/launch.h"
#include "kernels/kernels.h"
#include "model/program.h"

struct rk_transport;

/* What the transport needs to name in its errors; the executor keeps it current. */
struct rk_transport_position {
    int64_t step;
    int32_t layer, micro_batch;
    const char *segment;
};

struct rk_transport_table {
    const char *name; /* "shm", "nccl" */
    /* Collective over all ranks of the job. device is this rank's; the transport creates what it needs on it. */
    enum rk_status (*open)(const struct rk_job *job, const struct rk_backend *backend, struct rk_device *device,
                           const struct rk_program *program, double deadline_seconds,
                           struct rk_transport **transport, struct rk_error *error);
    void (*close)(struct rk_transport *transport);
    /* Enqueues one transport op on the stream. After a failure nothing but abort and close may follow. */
    enum rk_status (*run)(struct rk_transport *transport, struct rk_stream *stream, const struct rk_op_call *call,
                          enum rk_stream_kind stream_kind, const struct rk_transport_position *position,
                          struct rk_error *error);
    /* Host barrier over all ranks, outside steps. */
    enum rk_status (*barrier)(struct rk_transport *transport, struct rk_error *error);
    /* Makes every peer's wait end at once with RK_RANK_FAILED: called by a rank that cannot go on.
     * Async-signal-safe. */
    void (*abort)(struct rk_transport *transport);
    /* Bytes sent to other ranks since opening, by op family; what stays on the rank is not counted. A token that goes
     * to several experts of one rank is counted once for that rank, a row that comes back once for each route, a sum
     * over all ranks (ALL_REDUCE) as often as its values are read by others. */
    void (*traffic)(const struct rk_transport *transport, int64_t remote_bytes[RK_OP_FAMILY_COUNT]);
};

const struct rk_transport_table *rk_transport_shm(void);
const struct rk_transport_table *rk_transport_nccl(void); /* NULL when built without NCCL */

#endif

/* Where the time of a step goes: timed events around every op of marked steps, added up by shape and phase, and the
 * exposure of communication on the timeline of the rank. Traced steps are never counted as throughput. */
#ifndef RK_EXECUTOR_TRACE_H
#define RK_EXECUTOR_TRACE_H

#include "kernels/kernels.h"
#include "model/program.h"
#include "model/simulator.h"

/* Executions of one op shape in one phase on one stream. */
struct rk_op_account {
    struct rk_op_shape shape;
    enum rk_phase phase;
    enum rk_stream_kind stream;
    int64_t count;         /* per step */
    double median_seconds; /* of one execution */
    double total_seconds;  /* per step: median over the traced steps */
    double wait_seconds;   /* per step: of that, waiting for other ranks (see rk_trace_accounts); 0 for local ops */
};

/* One traced step: when each op began and ended, in seconds from the step's first event, in order of the schedule. */
struct rk_trace_step {
    int64_t step;
    double seconds;      /* of the whole step */
    double *begin, *end; /* op_count each; owned */
};

struct rk_trace {
    size_t op_count;          /* of a step, all visits */
    const struct rk_op **ops; /* of each; owned array */
    /* Begin and end of each op, and one at the start; owned, made by the first traced step. */
    struct rk_event_handle **events;
    struct rk_trace_step *steps; /* owned */
    size_t step_count;
};

/* Makes room for the events of op_count ops on the device. */
enum rk_status rk_trace_open(const struct rk_backend *backend, struct rk_device *device, size_t op_count,
                             struct rk_trace *trace, struct rk_error *error);
void rk_trace_close(const struct rk_backend *backend, struct rk_trace *trace);

/* Reads the events of the step that has just ended. */
enum rk_status rk_trace_collect(const struct rk_backend *backend, struct rk_trace *trace, int64_t step, double seconds,
                                struct rk_error *error);

/* Adds the traced steps up, one row for each (shape, phase, stream) in order of first execution. An op that speaks to
 * other ranks is taken to move data for as long as the fastest execution of its shape took, and to wait for the rest.
 * *accounts is the caller's (free). No traced step: 0 rows. */
enum rk_status rk_trace_accounts(const struct rk_trace *trace, struct rk_op_account **accounts, size_t *count,
                                 struct rk_error *error);

/* The same accounts as the simulator's, each the median over the traced steps. Time in which no stream works counts as
 * starved. */
enum rk_status rk_trace_stage_time(const struct rk_trace *trace, struct rk_stage_time *time, struct rk_error *error);

#endif

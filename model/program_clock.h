/* Happens-before over a step program: which ops are certainly over when an op starts, whatever the streams' relative
 * speed.
 *
 * Every op has a number on its stream, from 1 in program order. A clock says of each stream up to which number all ops
 * are over. Ops are fed in program order; an op's clock before it starts joins its stream's and those of the events it
 * waits for. */
#ifndef RK_MODEL_PROGRAM_CLOCK_H
#define RK_MODEL_PROGRAM_CLOCK_H

#include "model/program.h"

struct rk_clock {
    int64_t over[RK_STREAM_COUNT];
};

struct rk_clocks {
    const struct rk_program *program;
    struct rk_clock stream[RK_STREAM_COUNT]; /* after the stream's last op so far */
    struct rk_clock *event;                  /* of each event's instances: after the op that recorded it last; owned */
    size_t *first_event;                     /* of each event inside `event`; owned */
};

enum rk_status rk_clocks_open(const struct rk_program *program, struct rk_clocks *clocks, struct rk_error *error);
void rk_clocks_close(struct rk_clocks *clocks);

/* Feeds the next op of a visit; *before is its clock before it starts. Returns the op's number on its stream. */
int64_t rk_clocks_next(struct rk_clocks *clocks, const struct rk_op *op, const struct rk_visit *visit,
                       struct rk_clock *before);

#endif

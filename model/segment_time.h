/* How long one visit of a segment takes by itself: closed forms are built from these. */
#ifndef RK_MODEL_SEGMENT_TIME_H
#define RK_MODEL_SEGMENT_TIME_H

#include "model/program.h"

/* Makespan of the segment's ops on the streams of one rank with nothing before it, in seconds; op_seconds[op] for the
 * ops of the program. Events that the segment does not record itself are complete. serial: one op after another. Sends,
 * receives and world-wide ops find their peers ready. */
double rk_segment_seconds(const struct rk_program *program, uint32_t segment, const double *op_seconds, bool serial);

/* Whether the segment is the forward (or the backward) of a block: it has the attention core. */
bool rk_segment_is_block(const struct rk_program *program, uint32_t segment, bool backward);

#endif

/* How every transport names a rank and the op that stands still, so that messages read alike. */
#ifndef RK_EXECUTOR_TRANSPORT_TEXT_H
#define RK_EXECUTOR_TRANSPORT_TEXT_H

#include "executor/transport.h"

/* "rank 3 (host n01, process 412)". Returns buffer. */
char *rk_transport_rank_text(const struct rk_job *job, int64_t rank, char *buffer, size_t size);
/* "all_reduce over the data group, segment "reduction", layer 3, micro-batch 1, step 12"; without a shape "the barrier
 * of all ranks". Returns buffer. */
char *rk_transport_place_text(const struct rk_op_shape *shape, const struct rk_transport_position *position,
                              char *buffer, size_t size);

#endif

/* Uniform random routing of a whole group, on the host: what the integer operands of the routing and exchange ops hold.
 */
#ifndef RK_KERNELS_OPERANDS_ROUTING_H
#define RK_KERNELS_OPERANDS_ROUTING_H

#include "base/status.h"

#include <stdint.h>

/* All arrays in host memory; see ROUTE_FORWARD and ROUTE_MAP for their meaning. */
struct rk_routing_example {
    int64_t tokens, experts, top_k, ranks, capacity;
    int32_t *index;         /* [T,K] of this rank */
    int32_t *requested_all; /* [M,N] */
    int32_t *row, *kept, *offsets, *order;
};

/* ranks 1 and capacity T·K for ops without a group. */
enum rk_status rk_routing_example_make(int64_t tokens, int64_t experts, int64_t top_k, int64_t ranks, int64_t capacity,
                                       int32_t group_rank, uint64_t seed, struct rk_routing_example *example,
                                       struct rk_error *error);
void rk_routing_example_free(struct rk_routing_example *example);

#endif

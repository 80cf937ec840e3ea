/* How evenly routes fall on experts and on ranks, from the load counters of a step. */
#ifndef RK_EXECUTOR_LOAD_H
#define RK_EXECUTOR_LOAD_H

#include "model/candidate.h"

/* Largest over mean, and of that the largest over layers. 1 is perfect balance; NaN without routed layers. */
struct rk_load_summary {
    double requested_rank, kept_rank;     /* rows for the ranks of an EP-MP group, all groups of the stage */
    double requested_expert, kept_expert; /* routes of an expert over all D ranks of the stage */
};

/* load[world rank][layer][2N + 1], layer up to layers_per_rank: ROUTE_MAP's operand 6 of each rank's routed layers, in
 * order; layers[world rank] tells how many a rank has. */
struct rk_load_summary rk_load_summarise(const struct rk_candidate *candidate, int64_t experts, const int64_t *load,
                                         const int64_t *layers, int64_t layers_per_rank);

#endif

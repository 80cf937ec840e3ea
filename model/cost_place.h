/* Where the ops of a candidate run: the second half of every question to a cost source. */
#ifndef RK_MODEL_COST_PLACE_H
#define RK_MODEL_COST_PLACE_H

#include "model/cost.h"
#include "model/program.h"

/* Ranks of a group of the candidate; 1 for RK_GROUP_NONE. */
int64_t rk_cost_group_size(const struct rk_candidate *candidate, enum rk_group_kind group);

/* Whether any rank of the stage has a peer of the group on another host. World ranks fill hosts in order,
 * devices_per_host on each; the tier follows from that placement, not from the size of the group. False on machines
 * with shared devices, which are one host. */
bool rk_cost_group_crosses(const struct rk_candidate *candidate, const struct rk_machine *machine, int32_t stage,
                           enum rk_group_kind group);

/* The place of an op of a stage's program. routed_rows: T · K of the program's routed blocks, 0 when it has none; the
 * share of valid rows follows from it for ops that work on the receive buffer. busy: ranks of the host that are busy
 * besides the op's own group; the group alone is busy when it is 0, all that the host has devices for when it is
 * INT32_MAX. */
void rk_cost_place_of(const struct rk_program *program, const struct rk_machine *machine, const struct rk_op *op,
                      int64_t routed_rows, int32_t busy, struct rk_cost_place *place);

/* T · K of the program's routed blocks from its DISPATCH or ROUTE_FORWARD ops, or 0. */
int64_t rk_cost_routed_rows(const struct rk_program *program);

#endif

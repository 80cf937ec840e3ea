/* Where the ops of a candidate run: the second half of every question to a cost source. */
#ifndef RK_MODEL_COST_PLACE_H
#define RK_MODEL_COST_PLACE_H

#include "model/cost.h"
#include "model/program.h"

/* Ranks that are busy besides an op's own group: all that the host has devices for. */
#define RK_BUSY_ALL (INT32_MAX / 2)

/* The place of an op of a stage's program. routed_rows: T · K of the program's routed blocks, 0 when it has none; the
 * share of valid rows follows from it for ops that work on the receive buffer. busy: ranks of the host that are busy
 * besides the op's own group, 0 to RK_BUSY_ALL. A group crosses hosts when any rank of the stage has a peer on another
 * one: world ranks fill hosts in order, devices_per_host on each; never on machines with shared devices. */
void rk_cost_place_of(const struct rk_program *program, const struct rk_machine *machine, const struct rk_op *op,
                      int64_t routed_rows, int32_t busy, struct rk_cost_place *place);

/* T · K of the program's routed blocks from its DISPATCH or ROUTE_FORWARD ops, or 0. */
int64_t rk_cost_routed_rows(const struct rk_program *program);

#endif

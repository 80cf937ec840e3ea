/* A calibration as costs: its measurements become the rows of a cost table (model/cost.h), and its figures of the
 * machine a struct rk_machine. The interpolation itself is model/'s. */
#ifndef RK_DB_COST_SOURCE_H
#define RK_DB_COST_SOURCE_H

#include "db/calibration.h"
#include "model/cost.h"

/* Cases that are no ops but figures of the machine, under these names in bench_case.op; operands "none", mode
 * "sustained". Their measurement's median is the figure in seconds; the copies are ops of the table (copy_d2h,
 * copy_h2d). */
#define RK_CASE_LAUNCH "launch"               /* host time to submit one op */
#define RK_CASE_HOST_WAIT "host_wait"         /* one host-device round trip */
#define RK_CASE_STEP_OVERHEAD "step_overhead" /* per step, outside all ops */
#define RK_CASE_COPY_BOTH "copy_both"         /* dim 0: bytes of each direction; both directions at once */

/* One row for each case: the median over processes, the widest interval, the spread between processes. What was
 * measured on other operands than "normal" (or "none"), in isolation where a sustained figure exists, or with a
 * partner stays outside. Intervals are widened: with other software by 10 %, transferred by 30 %. *rows is the
 * caller's (free). */
enum rk_status rk_cost_rows_make(const struct rk_match *match, struct rk_cost_row **rows, size_t *count,
                                 struct rk_error *error);
/* The cost table of a match. RK_UNCALIBRATED when it holds no op. Free with rk_cost_table_free. */
enum rk_status rk_cost_source_make(const struct rk_match *match, struct rk_cost_table **table, struct rk_error *error);

/* Fills the figures of machine that the calibration holds: d2h, h2d (largest copy with most ranks at once),
 * both_directions, launch, host_wait, step_overhead, dense_peak (the fastest GEMM). Others stay as they are. */
void rk_machine_figures(const struct rk_match *match, struct rk_machine *machine);

#endif

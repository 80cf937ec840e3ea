/* Predicted against measured: a plan held against a run of it.
 *
 * Measured are the run's rows: the step is the median of the untraced steps after the warm-up, ops come from the traced
 * steps, memory from what each rank allocated. Errors are signed: predicted / measured - 1, so that negative means that
 * the run took longer than planned. */
#ifndef RK_REPORT_COMPARE_H
#define RK_REPORT_COMPARE_H

#include "db/run_store.h"
#include "model/plan.h"

/* What a comparison is made from; borrowed. */
struct rk_compare_input {
    const struct rk_plan *plan;
    const struct rk_step_row *steps;
    size_t step_count;
    const struct rk_run_op_row *ops;
    size_t op_count;
    const struct rk_run_memory_row *memory;
    size_t memory_count;
    double tolerance; /* of the step time, relative; NaN: none */
};

struct rk_comparison {
    double predicted_seconds, measured_seconds; /* of the step; measured NaN without a counted step */
    double low, high;                           /* 95 % interval of the measured median (order statistics) */
    size_t counted_steps, traced_steps;
    int32_t deciding_stage;            /* whose ops the plan's terms are: the one with the longest predicted work */
    int64_t memory_rows, memory_exact; /* rows of device and host memory, and those predicted to the byte */
    bool within;                       /* the step's error is inside the tolerance, or there is none */
    struct rk_comparison_row *rows;    /* levels "step", "account", "phase", "family", "op", "memory"; owned */
    size_t row_count;
};

/* RK_USAGE when the run has no step that counts (none untraced after the warm-up). Free with rk_comparison_free. */
enum rk_status rk_compare(const struct rk_compare_input *input, struct rk_comparison *comparison,
                          struct rk_error *error);
void rk_comparison_free(struct rk_comparison *comparison);

/* Signed error, predicted / measured - 1; NaN when nothing was measured. */
double rk_comparison_error(const struct rk_comparison_row *row);

/* Tables for people, and one JSON object. */
void rk_comparison_print(const struct rk_comparison *comparison, struct rk_text *text);
void rk_comparison_print_json(const struct rk_comparison *comparison, int64_t run, struct rk_text *text);

#endif

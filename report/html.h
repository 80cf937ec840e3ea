/* A plan, or a run held against its plan, as one HTML file that needs nothing else: charts as inline SVG, a table
 * beside every chart, no script. Colours are told apart by colour-blind readers, and follow the reader's light or dark
 * setting. */
#ifndef RK_REPORT_HTML_H
#define RK_REPORT_HTML_H

#include "db/run_store.h"
#include "model/plan.h"
#include "report/compare.h"

/* Borrowed. Only plan is required; without a run the sections of measured values are left out, without candidates or a
 * simulation theirs. */
struct rk_html_input {
    const struct rk_plan *plan;
    const char *plan_name;              /* "plan 3" or the file's name */
    const struct rk_plan_row *plan_row; /* or NULL */
    const struct rk_candidate_row *candidates;
    size_t candidate_count;
    const struct rk_run_row *run; /* or NULL */
    const struct rk_step_row *steps;
    size_t step_count;
    const struct rk_run_memory_row *memory;
    size_t memory_count;
    const struct rk_comparison *comparison;   /* with a run that has counted steps, or NULL */
    const struct rk_simulation *simulation;   /* with a timeline, or NULL */
    const struct rk_program *const *programs; /* of the simulation, one for each stage */
    const char *simulation_note;              /* how the timeline was priced */
};

enum rk_status rk_html_write(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error);

/* How far predictions lie from measurements, over the rows of one level. */
struct rk_error_statistics {
    size_t count;
    double median, p90, largest; /* of |predicted / measured - 1| */
    double signed_mean;          /* of predicted / measured - 1 */
    double rank_correlation;     /* Spearman's; NaN below three rows */
};
/* Over the rows of a level ("op", "family", ...) with both values above 0. RK_ERROR only without memory. */
enum rk_status rk_error_statistics_make(const struct rk_comparison *comparison, const char *level,
                                        struct rk_error_statistics *statistics, struct rk_error *error);

#endif

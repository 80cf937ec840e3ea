/* The text of `reckon plan`: what was chosen, why, and what was not. */
#ifndef RK_CLI_PLAN_PRINT_H
#define RK_CLI_PLAN_PRINT_H

#include "model/plan.h"

/* What is printed about. */
struct rk_plan_view {
    const struct rk_architecture *architecture;
    const struct rk_machine *machine;
    const struct rk_search_request *request;
    const struct rk_search_result *result;
    const struct rk_plan *plan; /* NULL: nothing fits */
    double search_seconds;
};

/* "PP 8, EP 8, D 64, micro-batch 8192, recompute block, offload 0 %": the decision variables in words. */
void rk_plan_print_candidate(const struct rk_candidate *candidate, struct rk_text *text);

/* The chosen plan in a few lines. */
void rk_plan_print_summary(const struct rk_plan_view *view, struct rk_text *text);

/* Everything: the summary, where the step's time goes, memory by stage and owner, what the figures rest on, runners-up,
 * and for each kind of refusal the telling example. Without a plan the refusals alone. */
void rk_plan_print_explanation(const struct rk_plan_view *view, struct rk_text *text);

/* Accounts of every stage as a table, in seconds. */
void rk_plan_print_stages(const struct rk_stage_time *stages, int32_t count, struct rk_text *text);

#endif

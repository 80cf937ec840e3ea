/* A made-up plan of two stages and a run of it on four ranks. */
#ifndef RK_TESTS_REPORT_HTML_CASE_H
#define RK_TESTS_REPORT_HTML_CASE_H

#include "report/html.h"

enum { CASE_STAGES = 2, CASE_RANKS = 4, CASE_STEPS = 30, CASE_TERMS = 8, CASE_OPS = 80, CASE_TIMELINE = 240 };

struct html_case {
    struct rk_plan plan;
    struct rk_stage_time stages[CASE_STAGES];
    int64_t owner_bytes[CASE_STAGES][RK_OWNER_COUNT];
    int64_t arena_bytes[CASE_STAGES], host_bytes[CASE_STAGES];
    struct rk_plan_term terms[CASE_TERMS];
    struct rk_plan_row plan_row;
    struct rk_candidate_row candidates[4];
    struct rk_run_row run;
    struct rk_step_row steps[CASE_STEPS];
    struct rk_run_op_row ops[CASE_OPS];
    size_t op_count;
    struct rk_run_memory_row memory[CASE_RANKS * (RK_OWNER_COUNT + 2)];
    struct rk_comparison comparison;
    struct rk_simulation simulation;
    struct rk_timeline_entry timeline[CASE_TIMELINE];
    struct rk_op program_ops[6];
    struct rk_program programs[CASE_STAGES];
    const struct rk_program *program_pointers[CASE_STAGES];
    struct rk_html_input input;
};

/* Fills the case; 0 when it could. name stands wherever a name can. */
int html_case_make(struct html_case *made, const char *name);
void html_case_free(struct html_case *made);

#endif

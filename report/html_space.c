/* Sections about memory, steps and candidates. */
#include "report/html_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_SHOWN = 32, RANK_NAME = 48, CANDIDATES_SHOWN = 40, POINTS_SHOWN = 2000, STEPS_LISTED = 500 };

/* ---- memory ---- */

/* One bar: a rank of the run, or a stage of the plan. */
struct memory_row {
    char name[RANK_NAME];
    double owner[RK_OWNER_COUNT];
    double allocated; /* all of it; NaN without a run */
};

static int find_owner(const char *name) {
    for (int owner = 0; owner < RK_OWNER_COUNT; owner++)
        if (strcmp(rk_owner_name((enum rk_owner)owner), name) == 0)
            return owner;
    return RK_OWNER_COUNT;
}

static size_t stage_rows(const struct rk_plan *plan, struct memory_row *rows) {
    size_t count = plan->candidate.pipeline < RANKS_SHOWN ? (size_t)plan->candidate.pipeline : RANKS_SHOWN;
    for (size_t stage = 0; stage < count; stage++) {
        rows[stage].allocated = NAN;
        snprintf(rows[stage].name, RANK_NAME, "stage %zu, each rank", stage);
        for (int owner = 0; owner < RK_OWNER_COUNT; owner++)
            rows[stage].owner[owner] = (double)plan->owner_bytes[stage][owner];
    }
    return count;
}

/* The run's rows come by rank. */
static size_t rank_rows(const struct rk_html_input *input, struct memory_row *rows) {
    size_t count = 0;
    int64_t rank = -1;
    for (size_t i = 0; i < input->memory_count; i++) {
        const struct rk_run_memory_row *memory = &input->memory[i];
        if (memory->rank != rank) {
            if (count == RANKS_SHOWN)
                break;
            rank = memory->rank;
            rows[count].allocated = NAN;
            snprintf(rows[count++].name, RANK_NAME, "rank %" PRId64, rank);
        }
        struct memory_row *row = &rows[count - 1];
        int owner = strcmp(memory->space, "device") == 0 ? find_owner(memory->owner) : RK_OWNER_COUNT;
        if (owner < RK_OWNER_COUNT)
            row->owner[owner] = (double)memory->predicted_bytes;
        else if (strcmp(memory->owner, "all") == 0 && strcmp(memory->space, "device") == 0)
            row->allocated = (double)memory->allocated_bytes;
    }
    return count;
}

static void memory_table(const struct rk_html_input *input, const struct memory_row *rows, size_t count,
                         struct rk_text *html) {
    if (input->memory_count > 0) {
        rk_section_table(html, "rank|space|owner|#predicted|#allocated|#difference (B)");
        for (size_t i = 0; i < input->memory_count; i++) {
            const struct rk_run_memory_row *memory = &input->memory[i];
            char name[RANK_NAME];
            if (memory->predicted_bytes <= 0 && memory->allocated_bytes <= 0)
                continue;
            snprintf(name, sizeof name, "%" PRId64, memory->rank);
            rk_row_open(html);
            rk_cell(html, name);
            rk_cell(html, memory->space);
            rk_cell(html, memory->owner);
            rk_cell_value(html, RK_CHART_BYTES, memory->predicted_bytes < 0 ? NAN : (double)memory->predicted_bytes);
            rk_cell_value(html, RK_CHART_BYTES, (double)memory->allocated_bytes);
            rk_cell_value(html, RK_CHART_PLAIN,
                          memory->predicted_bytes < 0 ? NAN
                                                      : (double)(memory->allocated_bytes - memory->predicted_bytes));
            rk_row_close(html);
        }
        return;
    }
    rk_section_table(html, "where|owner|#predicted");
    for (size_t i = 0; i < count; i++) {
        for (int owner = 0; owner < RK_OWNER_COUNT; owner++) {
            if (rows[i].owner[owner] == 0)
                continue;
            rk_row_open(html);
            rk_cell(html, rows[i].name);
            rk_cell(html, rk_owner_name((enum rk_owner)owner));
            rk_cell_value(html, RK_CHART_BYTES, rows[i].owner[owner]);
            rk_row_close(html);
        }
    }
}

enum rk_status rk_html_memory(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error) {
    struct memory_row *rows = calloc(RANKS_SHOWN, sizeof *rows);
    if (rows == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the report");
    const char *parts[RK_OWNER_COUNT], *names[RANKS_SHOWN];
    double values[RANKS_SHOWN * RK_OWNER_COUNT], marks[RANKS_SHOWN];
    size_t count = input->memory_count > 0 ? rank_rows(input, rows) : stage_rows(input->plan, rows);
    for (int owner = 0; owner < RK_OWNER_COUNT; owner++)
        parts[owner] = rk_owner_name((enum rk_owner)owner);
    for (size_t i = 0; i < count; i++) {
        names[i] = rows[i].name;
        marks[i] = rows[i].allocated;
        memcpy(&values[i * RK_OWNER_COUNT], rows[i].owner, sizeof rows[i].owner);
    }
    struct rk_chart_stack chart = {.title = "Predicted device memory by owner",
                                   .unit = RK_CHART_BYTES,
                                   .rows = names,
                                   .row_count = count,
                                   .parts = parts,
                                   .part_count = RK_OWNER_COUNT,
                                   .values = values,
                                   .marks = marks,
                                   .mark_name = "allocated"};
    rk_section_open(
        html, "Memory by owner",
        input->memory_count > 0
            ? "Predicted bytes of the one arena of each rank, by whom they are held for; the line is what the "
              "rank allocated. Peak of the step, driver and libraries apart."
            : "Predicted bytes of the one arena of a rank of each stage, by whom they are held for: the peak of "
              "the step, driver and libraries apart.");
    rk_chart_stack(&chart, html);
    memory_table(input, rows, count, html);
    rk_section_close(html);
    free(rows);
    return RK_OK;
}

/* ---- steps ---- */

static void step_table(const struct rk_html_input *input, struct rk_text *html) {
    rk_section_table(html, "#step|#time|#loss|#grad norm|#dropped routes|#load, hottest rank|");
    size_t stride = (input->step_count + STEPS_LISTED - 1) / STEPS_LISTED;
    for (size_t i = 0; i < input->step_count; i += stride) {
        const struct rk_step_row *step = &input->steps[i];
        rk_row_open(html);
        rk_cell_integer(html, step->step);
        rk_cell_value(html, RK_CHART_SECONDS, step->seconds);
        rk_cell_value(html, RK_CHART_PLAIN, step->loss);
        rk_cell_value(html, RK_CHART_PLAIN, step->grad_norm);
        rk_cell_integer(html, step->dropped_routes);
        rk_cell_value(html, RK_CHART_PLAIN, step->requested_load);
        rk_cell(html, step->traced ? "traced" : "");
        rk_row_close(html);
    }
}

enum rk_status rk_html_steps(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error) {
    size_t stride = (input->step_count + POINTS_SHOWN - 1) / POINTS_SHOWN;
    size_t count = input->step_count == 0 ? 0 : (input->step_count + stride - 1) / stride;
    char sentence[320];
    if (count == 0)
        return RK_OK;
    double *memory = calloc(3 * count, sizeof *memory);
    if (memory == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the report");
    double *x = memory, *loss = x + count, *seconds = loss + count;
    for (size_t i = 0; i < count; i++) {
        const struct rk_step_row *step = &input->steps[i * stride];
        x[i] = (double)step->step;
        loss[i] = step->loss;
        seconds[i] = step->traced ? (double)NAN : step->seconds;
    }
    struct rk_chart_series loss_series = {"loss", x, loss, count}, time_series = {"measured step", x, seconds, count};
    struct rk_chart_lines loss_chart = {.title = "Loss by step",
                                        .x_name = "step",
                                        .unit = RK_CHART_PLAIN,
                                        .series = &loss_series,
                                        .series_count = 1,
                                        .low = NAN,
                                        .high = NAN};
    struct rk_chart_lines time_chart = {.title = "Time of each step",
                                        .x_name = "step",
                                        .unit = RK_CHART_SECONDS,
                                        .series = &time_series,
                                        .series_count = 1,
                                        .low = input->plan->low,
                                        .high = input->plan->high,
                                        .band_name = "predicted, 95 % interval",
                                        .from_zero = true};
    snprintf(
        sentence, sizeof sentence,
        "%zu steps%s. The loss holds the cross-entropy and the weighted balance and z losses. Traced steps carry the "
        "instruments: they are left out of the time.",
        input->step_count, input->step_count > STEPS_LISTED ? ", evenly thinned here" : "");
    rk_section_open(html, "Loss and time of each step", sentence);
    rk_chart_lines(&loss_chart, html);
    rk_chart_lines(&time_chart, html);
    step_table(input, html);
    rk_section_close(html);
    free(memory);
    return RK_OK;
}

/* ---- candidates ---- */

/* How many candidates each refusal holds, from the plan's counts. */
static void add_refusal_chart(const struct rk_plan *plan, struct rk_text *html) {
    const char *names[RK_REFUSAL_COUNT], *rows[] = {"candidates"};
    double counts[RK_REFUSAL_COUNT];
    names[0] = "feasible";
    counts[0] = (double)plan->feasible;
    for (int refusal = 1; refusal < RK_REFUSAL_COUNT; refusal++) {
        names[refusal] = rk_refusal_name((enum rk_refusal)refusal);
        counts[refusal] = (double)plan->refused[refusal];
    }
    struct rk_chart_stack chart = {.title = "Candidates by verdict",
                                   .unit = RK_CHART_PLAIN,
                                   .rows = rows,
                                   .row_count = 1,
                                   .parts = names,
                                   .part_count = RK_REFUSAL_COUNT,
                                   .values = counts};
    rk_chart_stack(&chart, html);
}

static void add_candidate(struct rk_text *html, const struct rk_candidate_row *row) {
    char reason[320];
    rk_row_open(html);
    rk_cell(html, row->label);
    rk_cell(html, row->verdict);
    rk_cell_value(html, RK_CHART_SECONDS, row->seconds);
    rk_cell_value(html, RK_CHART_BYTES, row->peak_bytes < 0 ? NAN : (double)row->peak_bytes);
    rk_cell(html, rk_candidate_row_reason(row, reason, sizeof reason));
    rk_row_close(html);
}

/* The best ones, and the first refusals of each reason. */
static void candidate_rows(const struct rk_html_input *input, struct rk_text *html) {
    size_t shown = 0;
    const char *last_reason = "";
    for (size_t i = 0; i < input->candidate_count && shown < CANDIDATES_SHOWN; i++) {
        const struct rk_candidate_row *row = &input->candidates[i];
        bool refused = row->reason[0] != '\0';
        if ((!refused && shown >= CANDIDATES_SHOWN / 2) || (refused && strcmp(last_reason, row->reason) == 0))
            continue;
        last_reason = row->reason;
        add_candidate(html, row);
        shown++;
    }
}

enum rk_status rk_html_candidates(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error) {
    const struct rk_plan *plan = input->plan;
    char sentence[160];
    (void)error;
    if (plan->candidates == 0)
        return RK_OK;
    snprintf(sentence, sizeof sentence,
             "%" PRId64 " configurations were judged, %" PRId64 " are feasible. The table holds the "
             "best and one example of each refusal.",
             plan->candidates, plan->feasible);
    rk_section_open(html, "Candidates", sentence);
    add_refusal_chart(plan, html);
    rk_section_table(html, "candidate|verdict|#step|#peak|reason");
    if (input->candidate_count > 0) {
        candidate_rows(input, html);
    } else {
        for (size_t i = 0; i < plan->example_count; i++) {
            struct rk_candidate_row row;
            rk_candidate_row_make(&plan->examples[i], (int64_t)i, false, &row);
            add_candidate(html, &row);
        }
    }
    rk_section_close(html);
    return RK_OK;
}

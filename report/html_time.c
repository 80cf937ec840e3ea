/* Sections about time: accounts, the way from predicted to measured, ops, timeline, terms. */
#include "executor/trace.h"
#include "report/html_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGE_NAME = 24, STAGES_SHOWN = 32, LANES_MAX = 40, LANE_NAME = 48 };

static double account_of(const struct rk_html_input *input, int64_t stage, int account) {
    return rk_stage_account_seconds(&input->plan->stages[stage], account);
}

/* The measured account of a stage, NaN when the run traced nothing. */
static double measured_account(const struct rk_comparison *comparison, int64_t stage, const char *name) {
    for (size_t i = 0; comparison != NULL && i < comparison->row_count; i++) {
        const struct rk_comparison_row *row = &comparison->rows[i];
        if (strcmp(row->level, "account") == 0 && row->stage == stage && strcmp(row->name, name) == 0)
            return row->measured;
    }
    return NAN;
}

/* The stage whose way to the measured step is drawn. */
static int32_t shown_stage(const struct rk_html_input *input) {
    if (input->comparison != NULL)
        return input->comparison->deciding_stage;
    return rk_stage_deciding(input->plan->stages, input->plan->candidate.pipeline);
}

static enum rk_status add_stages(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error) {
    int32_t stages = input->plan->candidate.pipeline < STAGES_SHOWN ? input->plan->candidate.pipeline : STAGES_SHOWN;
    const char *parts[RK_STAGE_ACCOUNT_COUNT], *rows[STAGES_SHOWN];
    char names[STAGES_SHOWN][STAGE_NAME];
    double values[STAGES_SHOWN * RK_STAGE_ACCOUNT_COUNT];
    (void)error;
    for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++)
        parts[account] = rk_stage_account_name(account);
    for (int32_t stage = 0; stage < stages; stage++) {
        snprintf(names[stage], STAGE_NAME, "stage %" PRId32, stage);
        rows[stage] = names[stage];
        for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++)
            values[stage * RK_STAGE_ACCOUNT_COUNT + account] = account_of(input, stage, account);
    }
    struct rk_chart_stack chart = {.title = "Predicted time of a step by stage and account",
                                   .unit = RK_CHART_SECONDS,
                                   .rows = rows,
                                   .row_count = (size_t)stages,
                                   .parts = parts,
                                   .part_count = RK_STAGE_ACCOUNT_COUNT,
                                   .values = values};
    rk_section_open(
        html, "Where the time of a step goes",
        "Predicted, for one rank of each pipeline stage. Compute is the compute stream at work; exposed is "
        "what communication and copies add because nothing covers them; bubble is waiting for other stages.");
    rk_chart_stack(&chart, html);
    rk_section_table(html, input->comparison == NULL ? "stage|account|#predicted"
                                                     : "stage|account|#predicted|#measured|#error");
    for (int32_t stage = 0; stage < stages; stage++) {
        for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++) {
            double predicted = account_of(input, stage, account);
            double measured = measured_account(input->comparison, stage, parts[account]);
            if (predicted == 0 && !(measured > 0))
                continue;
            rk_row_open(html);
            rk_cell(html, rows[stage]);
            rk_cell(html, parts[account]);
            rk_cell_value(html, RK_CHART_SECONDS, predicted);
            if (input->comparison != NULL) {
                rk_cell_value(html, RK_CHART_SECONDS, measured);
                rk_cell_percent(html, measured > 0 ? predicted / measured - 1 : NAN);
            }
            rk_row_close(html);
        }
    }
    rk_section_close(html);
    return RK_OK;
}

/* Differences are small beside the step: the axis begins a third of their range below the lowest level. */
static double axis_start(const struct rk_chart_step *steps, size_t count) {
    double low = INFINITY, high = -INFINITY, level = 0;
    for (size_t i = 0; i < count; i++) {
        level = steps[i].total ? steps[i].value : level + steps[i].value;
        low = fmin(low, level);
        high = fmax(high, level);
    }
    return fmax(0, low - (high - low) / 3);
}

/* Without a run: the accounts that add up to the step. With one: what each account adds to or takes from the prediction
 * on the way to the measured step. */
static void add_waterfall(const struct rk_html_input *input, struct rk_text *html) {
    struct rk_chart_step steps[RK_STAGE_ACCOUNT_COUNT + 3];
    int32_t stage = shown_stage(input);
    const struct rk_comparison *comparison = input->comparison;
    bool differences = comparison != NULL && isfinite(measured_account(comparison, stage, rk_stage_account_name(0)));
    size_t count = 0;
    double sum = 0, start = differences ? input->plan->seconds : 0;
    double end = differences ? comparison->measured_seconds : input->plan->seconds;
    char sentence[256];
    if (differences)
        steps[count++] = (struct rk_chart_step){"predicted step", start, true};
    for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++) {
        double predicted = account_of(input, stage, account);
        double measured = measured_account(comparison, stage, rk_stage_account_name(account));
        double value = differences ? (isfinite(measured) ? measured : predicted) - predicted : predicted;
        if (value == 0)
            continue;
        steps[count++] = (struct rk_chart_step){rk_stage_account_name(account), value, false};
        sum += value;
    }
    /* What tracing, the host between steps, and rounding leave over. */
    if (fabs(end - start - sum) > 1e-6 * fabs(end))
        steps[count++] = (struct rk_chart_step){differences ? "outside the traced steps" : "outside the ops",
                                                end - start - sum, false};
    steps[count++] = (struct rk_chart_step){differences ? "measured step" : "predicted step", end, true};
    snprintf(sentence, sizeof sentence, "Stage %" PRId32 ", which decides the step: %s", stage,
             differences ? "what each account adds to the prediction or takes from it. The axis does not begin at 0."
                         : "the accounts that add up to it.");
    rk_section_open(
        html, differences ? "From the predicted to the measured step" : "What the predicted step is made of", sentence);
    rk_chart_waterfall("Waterfall of the step's time", RK_CHART_SECONDS, steps, count,
                       differences ? axis_start(steps, count) : 0, html);
    rk_section_table(html, "term|#seconds|#share of the step");
    for (size_t i = 0; i < count; i++) {
        rk_row_open(html);
        rk_cell(html, steps[i].label);
        rk_cell_value(html, RK_CHART_SECONDS, steps[i].value);
        rk_cell_share(html, steps[i].value / input->plan->seconds);
        rk_row_close(html);
    }
    rk_section_close(html);
}

enum rk_status rk_html_time(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error) {
    enum rk_status status = add_stages(input, html, error);
    if (status == RK_OK)
        add_waterfall(input, html);
    return status;
}

/* The rows of a level, for one stage. */
struct level_rows {
    const char **names;
    double *predicted, *measured;
    size_t count;
};

static enum rk_status collect(const struct rk_comparison *comparison, const char *level, int64_t stage,
                              struct level_rows *rows, struct rk_error *error) {
    rows->names = calloc(comparison->row_count + 1, sizeof *rows->names);
    rows->predicted = calloc(comparison->row_count + 1, sizeof *rows->predicted);
    rows->measured = calloc(comparison->row_count + 1, sizeof *rows->measured);
    if (rows->names == NULL || rows->predicted == NULL || rows->measured == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the report");
    for (size_t i = 0; i < comparison->row_count; i++) {
        const struct rk_comparison_row *row = &comparison->rows[i];
        if (strcmp(row->level, level) != 0 || row->stage != stage)
            continue;
        rows->names[rows->count] = row->name;
        rows->predicted[rows->count] = row->predicted;
        rows->measured[rows->count++] = row->measured;
    }
    return RK_OK;
}

static void free_rows(struct level_rows *rows) {
    free(rows->names);
    free(rows->predicted);
    free(rows->measured);
}

static void add_rows(struct rk_text *html, const struct level_rows *rows) {
    for (size_t i = 0; i < rows->count; i++) {
        rk_row_open(html);
        rk_cell(html, rows->names[i]);
        rk_cell_value(html, RK_CHART_SECONDS, rows->predicted[i]);
        rk_cell_value(html, RK_CHART_SECONDS, rows->measured[i]);
        rk_cell_percent(html, rows->measured[i] > 0 ? rows->predicted[i] / rows->measured[i] - 1 : NAN);
        rk_row_close(html);
    }
}

static void describe_errors(const struct rk_error_statistics *statistics, const char *of, char *text, size_t size) {
    char correlation[32] = "not defined";
    if (statistics->count == 0) {
        snprintf(text, size, "No %s with both values: the run traced no step.", of);
        return;
    }
    if (isfinite(statistics->rank_correlation))
        snprintf(correlation, sizeof correlation, "%.3f", statistics->rank_correlation);
    snprintf(
        text, size,
        "%zu %s with both values. Error |predicted / measured − 1|: median %.1f %%, p90 %.1f %%, max %.1f %%; signed "
        "mean %+.1f %%; rank correlation %s.",
        statistics->count, of, 100 * statistics->median, 100 * statistics->p90, 100 * statistics->largest,
        100 * statistics->signed_mean, correlation);
}

static enum rk_status add_families(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error) {
    struct level_rows rows = {0};
    struct rk_error_statistics statistics;
    char sentence[320], heading[96];
    enum rk_status status = collect(input->comparison, "family", input->comparison->deciding_stage, &rows, error);
    if (status == RK_OK)
        status = rk_error_statistics_make(input->comparison, "family", &statistics, error);
    if (status == RK_OK && rows.count > 0) {
        struct rk_chart_pairs chart = {.title = "Predicted and measured time by op family",
                                       .unit = RK_CHART_SECONDS,
                                       .rows = rows.names,
                                       .row_count = rows.count,
                                       .first_name = "predicted",
                                       .second_name = "measured",
                                       .first = rows.predicted,
                                       .second = rows.measured};
        describe_errors(&statistics, "families, all stages,", sentence, sizeof sentence);
        snprintf(heading, sizeof heading, "Op families of stage %" PRId32, input->comparison->deciding_stage);
        rk_section_open(html, heading, sentence);
        rk_chart_pairs(&chart, html);
        rk_section_table(html, "family|#predicted|#measured|#error");
        add_rows(html, &rows);
        rk_section_close(html);
    }
    free_rows(&rows);
    return status;
}

static enum rk_status add_scatter(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error) {
    struct level_rows rows = {0};
    struct rk_error_statistics statistics;
    char sentence[400];
    enum rk_status status = collect(input->comparison, "op", input->comparison->deciding_stage, &rows, error);
    if (status == RK_OK)
        status = rk_error_statistics_make(input->comparison, "op", &statistics, error);
    if (status == RK_OK && rows.count > 0) {
        describe_errors(&statistics, "kinds of op", sentence, sizeof sentence);
        rk_section_open(html, "Every kind of op, predicted against measured", sentence);
        rk_chart_scatter("Predicted against measured seconds per step of every kind of op", RK_CHART_SECONDS,
                         "measured per step", "predicted per step; bands of 10 and 25 %", rows.names, rows.measured,
                         rows.predicted, rows.count, html);
        rk_section_table(html, "op|#predicted|#measured|#error");
        add_rows(html, &rows);
        rk_section_close(html);
    }
    free_rows(&rows);
    return status;
}

enum rk_status rk_html_ops(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error) {
    if (input->comparison == NULL)
        return RK_OK;
    enum rk_status status = add_families(input, html, error);
    return status == RK_OK ? add_scatter(input, html, error) : status;
}

enum rk_status rk_html_terms(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error) {
    const struct rk_plan *plan = input->plan;
    const char *names[RK_ORIGIN_COUNT], *rows[] = {"terms of the step"};
    double seconds[RK_ORIGIN_COUNT] = {0};
    (void)error;
    if (plan->term_count == 0)
        return RK_OK;
    for (int origin = 0; origin < RK_ORIGIN_COUNT; origin++)
        names[origin] = rk_origin_name((enum rk_origin)origin);
    for (size_t i = 0; i < plan->term_count; i++)
        seconds[plan->terms[i].origin] += plan->terms[i].seconds;
    struct rk_chart_stack chart = {.title = "Seconds of the step by the origin of their price",
                                   .unit = RK_CHART_SECONDS,
                                   .rows = rows,
                                   .row_count = 1,
                                   .parts = names,
                                   .part_count = RK_ORIGIN_COUNT,
                                   .values = seconds};
    rk_section_open(
        html, "Where the prices come from",
        "Busy seconds of the stage that decides, by the origin of each price. Measured on this machine is best, "
        "a data sheet is last.");
    rk_chart_stack(&chart, html);
    rk_section_table(html, "op|#count|#per step|#±|origin|source");
    for (size_t i = 0; i < plan->term_count; i++) {
        const struct rk_plan_term *term = &plan->terms[i];
        rk_row_open(html);
        rk_cell(html, rk_op_name(term->kind));
        rk_cell_integer(html, term->count);
        rk_cell_value(html, RK_CHART_SECONDS, term->seconds);
        rk_cell_share(html, term->relative_uncertainty);
        rk_cell(html, names[term->origin]);
        rk_cell(html, term->source);
        rk_row_close(html);
    }
    rk_section_close(html);
    return RK_OK;
}

/* ---- timeline ---- */

struct lanes {
    char names[LANES_MAX][LANE_NAME];
    const char *pointers[LANES_MAX];
    double busy[LANES_MAX];
    size_t index[STAGES_SHOWN * RK_STREAM_COUNT]; /* LANES_MAX: none */
    size_t count;
    bool all; /* every stream has a lane */
};

/* Streams that are left out when not all lanes have room: first the transfers between stages and to the host, then all
 * but the compute stream. */
static bool is_shown(enum rk_stream_kind stream, int pass) {
    return pass == 0 || stream == RK_STREAM_COMPUTE || (pass == 1 && stream == RK_STREAM_EXCHANGE);
}

static void find_lanes(const struct rk_html_input *input, struct lanes *lanes) {
    enum { PLACES = STAGES_SHOWN * RK_STREAM_COUNT, PASSES = 3 };
    bool used[PLACES] = {false};
    for (size_t i = 0; i < input->simulation->timeline_count; i++) {
        const struct rk_timeline_entry *entry = &input->simulation->timeline[i];
        if (entry->stage < STAGES_SHOWN)
            used[entry->stage * RK_STREAM_COUNT + (int)entry->stream] = true;
    }
    size_t wanted = LANES_MAX + 1;
    int pass = -1;
    while (wanted > LANES_MAX && pass + 1 < PASSES) {
        pass++;
        wanted = 0;
        for (size_t i = 0; i < PLACES; i++)
            wanted += used[i] && is_shown((enum rk_stream_kind)(i % RK_STREAM_COUNT), pass);
    }
    lanes->all = pass == 0;
    for (size_t i = 0; i < PLACES; i++) {
        enum rk_stream_kind stream = (enum rk_stream_kind)(i % RK_STREAM_COUNT);
        lanes->index[i] = LANES_MAX;
        if (!used[i] || !is_shown(stream, pass) || lanes->count == LANES_MAX)
            continue;
        snprintf(lanes->names[lanes->count], LANE_NAME, "stage %zu %s", i / RK_STREAM_COUNT, rk_stream_name(stream));
        lanes->pointers[lanes->count] = lanes->names[lanes->count];
        lanes->index[i] = lanes->count++;
    }
}

static int compare_intervals(const void *left, const void *right) {
    double a = ((const struct rk_chart_interval *)left)->start, b = ((const struct rk_chart_interval *)right)->start;
    return (a > b) - (a < b);
}

static size_t fill_intervals(const struct rk_html_input *input, struct lanes *lanes,
                             struct rk_chart_interval *intervals) {
    size_t count = 0;
    for (size_t i = 0; i < input->simulation->timeline_count; i++) {
        const struct rk_timeline_entry *entry = &input->simulation->timeline[i];
        size_t lane =
            entry->stage < STAGES_SHOWN ? lanes->index[entry->stage * RK_STREAM_COUNT + (int)entry->stream] : LANES_MAX;
        if (lane == LANES_MAX || !(entry->end > entry->start))
            continue;
        const struct rk_op *op = &input->programs[entry->stage]->ops[entry->op];
        lanes->busy[lane] += entry->end - entry->start;
        intervals[count++] = (struct rk_chart_interval){.lane = lane,
                                                        .colour = (size_t)op->phase,
                                                        .start = entry->start,
                                                        .end = entry->end,
                                                        .label = rk_op_name(op->shape.kind)};
    }
    qsort(intervals, count, sizeof *intervals, compare_intervals);
    return count;
}

enum rk_status rk_html_timeline(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error) {
    if (input->simulation == NULL || input->simulation->timeline_count == 0)
        return RK_OK;
    const char *phases[RK_PHASE_COUNT];
    struct lanes *lanes = calloc(1, sizeof *lanes);
    struct rk_chart_interval *intervals = calloc(input->simulation->timeline_count, sizeof *intervals);
    if (lanes == NULL || intervals == NULL) {
        free(lanes);
        free(intervals);
        return rk_fail(error, RK_ERROR, "out of memory for the timeline");
    }
    for (int phase = 0; phase < RK_PHASE_COUNT; phase++)
        phases[phase] = rk_phase_name((enum rk_phase)phase);
    find_lanes(input, lanes);
    size_t count = fill_intervals(input, lanes, intervals);
    struct rk_chart_timeline chart = {.title = "Predicted timeline of one step",
                                      .lanes = lanes->pointers,
                                      .lane_count = lanes->count,
                                      .colour_names = phases,
                                      .colour_count = RK_PHASE_COUNT,
                                      .intervals = intervals,
                                      .interval_count = count,
                                      .end = input->simulation->step_seconds};
    char sentence[400];
    snprintf(sentence, sizeof sentence, "%s%s", input->simulation_note,
             lanes->all ? "" : " Only the busiest streams have room here; `reckon simulate --trace` writes all.");
    rk_section_open(html, "Timeline of the predicted step", sentence);
    rk_chart_timeline(&chart, html);
    rk_section_table(html, "lane|#busy|#share of the step");
    for (size_t lane = 0; lane < lanes->count; lane++) {
        rk_row_open(html);
        rk_cell(html, lanes->names[lane]);
        rk_cell_value(html, RK_CHART_SECONDS, lanes->busy[lane]);
        rk_cell_share(html, lanes->busy[lane] / input->simulation->step_seconds);
        rk_row_close(html);
    }
    rk_section_close(html);
    free(lanes);
    free(intervals);
    return RK_OK;
}

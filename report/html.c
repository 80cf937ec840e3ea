/* The page: its head, the summary, and the order of the sections. */
#include "report/html.h"

#include "base/clock.h"
#include "base/statistics.h"
#include "base/version.h"
#include "report/html_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CORRELATION_ROWS_MIN = 3 };

enum rk_status rk_error_statistics_make(const struct rk_comparison *comparison, const char *level,
                                        struct rk_error_statistics *statistics, struct rk_error *error) {
    struct rk_error_statistics made = {
        .median = NAN, .p90 = NAN, .largest = NAN, .signed_mean = NAN, .rank_correlation = NAN};
    double *memory = calloc(3 * (comparison->row_count + 1), sizeof *memory);
    if (memory == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the error statistics");
    double *sizes = memory, *predicted = sizes + comparison->row_count, *measured = predicted + comparison->row_count;
    double sum = 0;
    for (size_t i = 0; i < comparison->row_count; i++) {
        const struct rk_comparison_row *row = &comparison->rows[i];
        if (strcmp(row->level, level) != 0 || !(row->predicted > 0) || !(row->measured > 0))
            continue;
        sizes[made.count] = fabs(rk_comparison_error(row));
        predicted[made.count] = row->predicted;
        measured[made.count] = row->measured;
        sum += rk_comparison_error(row);
        made.count++;
    }
    if (made.count > 0) {
        rk_statistics_sort(sizes, made.count);
        made.median = rk_statistics_median_sorted(sizes, made.count);
        made.p90 = rk_statistics_quantile_sorted(sizes, made.count, 0.9);
        made.largest = sizes[made.count - 1];
        made.signed_mean = sum / (double)made.count;
    }
    /* Undefined when one side is constant: then it stays NaN. */
    double correlation = NAN;
    if (made.count >= CORRELATION_ROWS_MIN &&
        rk_statistics_rank_correlation(predicted, measured, made.count, &correlation, NULL) == RK_OK)
        made.rank_correlation = correlation;
    free(memory);
    *statistics = made;
    return RK_OK;
}

static void figure(struct rk_text *html, const char *name, const char *value) {
    rk_text_add(html, "<div><b>");
    rk_html_add_escaped(html, value);
    rk_text_add(html, "</b><span>");
    rk_html_add_escaped(html, name);
    rk_text_add(html, "</span></div>\n");
}

static void fact(struct rk_text *html, const char *name, const char *value) {
    if (value == NULL || value[0] == '\0')
        return;
    rk_text_add(html, "<dt>");
    rk_html_add_escaped(html, name);
    rk_text_add(html, "</dt><dd>");
    rk_html_add_escaped(html, value);
    rk_text_add(html, "</dd>\n");
}

static void add_figures(const struct rk_html_input *input, struct rk_text *html) {
    const struct rk_plan *plan = input->plan;
    const struct rk_comparison *comparison = input->comparison;
    char text[96], low[32], high[32];
    rk_text_add(html, "<div class=\"figures\">\n");
    figure(html, "predicted step", rk_chart_value(RK_CHART_SECONDS, plan->seconds, text, sizeof text));
    snprintf(text, sizeof text, "%s – %s", rk_chart_value(RK_CHART_SECONDS, plan->low, low, sizeof low),
             rk_chart_value(RK_CHART_SECONDS, plan->high, high, sizeof high));
    figure(html, "95 % interval of the prediction", text);
    if (comparison != NULL) {
        figure(html, "measured step (median)",
               rk_chart_value(RK_CHART_SECONDS, comparison->measured_seconds, text, sizeof text));
        snprintf(text, sizeof text, "%+.1f %%",
                 100 * (comparison->predicted_seconds / comparison->measured_seconds - 1));
        figure(html, "error, predicted / measured − 1", text);
        snprintf(text, sizeof text, "%.0f", (double)plan->candidate.global_batch_tokens / comparison->measured_seconds);
        figure(html, "tokens/s measured", text);
        snprintf(text, sizeof text, "%" PRId64 " of %" PRId64, comparison->memory_exact, comparison->memory_rows);
        figure(html, "memory rows predicted to the byte", text);
    } else if (plan->seconds > 0) {
        snprintf(text, sizeof text, "%.0f", (double)plan->candidate.global_batch_tokens / plan->seconds);
        figure(html, "tokens/s predicted", text);
    }
    rk_text_add(html, "</div>\n");
}

static void add_facts(const struct rk_html_input *input, struct rk_text *html) {
    const struct rk_candidate *candidate = &input->plan->candidate;
    char text[256], time[32];
    rk_text_add(html, "<dl>\n");
    fact(html, "model", input->plan->architecture.name);
    fact(html, "machine", input->plan->machine);
    snprintf(text, sizeof text,
             "PP %" PRId32 " × D %" PRId32 " (EP-MP %" PRId32 "), micro-batch %" PRId64 " tokens, sequence %" PRId64
             ", global batch %" PRId64 " tokens",
             candidate->pipeline, candidate->data_parallel, candidate->expert_parallel, candidate->micro_batch_tokens,
             candidate->sequence, candidate->global_batch_tokens);
    fact(html, "layout", text);
    snprintf(text, sizeof text, "recompute %s, offload %" PRId32 " %%, %s, capacity factor %.4g, routing %s",
             rk_recompute_name(candidate->recompute), candidate->offload_percent, rk_data_type_name(candidate->type),
             candidate->capacity_factor, rk_routing_name(candidate->routing));
    fact(html, "policies", text);
    if (input->plan->calibration != 0) {
        snprintf(text, sizeof text, "calibration %" PRId64, input->plan->calibration);
        fact(html, "priced by", text);
    }
    fact(html, "plan", input->plan_name);
    if (input->plan_row != NULL) {
        fact(html, "plan made", rk_clock_utc_at(input->plan_row->created_us / 1000000, time, sizeof time));
        fact(html, "revision of the planner", input->plan_row->git_revision);
    }
    if (input->run != NULL) {
        snprintf(text, sizeof text, "%" PRId64 " (%s), %" PRId64 " ranks, seed %" PRId64 ", routing %s", input->run->id,
                 rk_run_state_name(input->run->state), input->run->world_size, input->run->seed, input->run->routing);
        fact(html, "run", text);
        fact(html, "command", input->run->command);
        fact(html, "data", input->run->data);
        fact(html, "run started", rk_clock_utc_at(input->run->started_us / 1000000, time, sizeof time));
        fact(html, "revision of the run", input->run->git_revision);
        fact(html, "machine's fingerprint", input->run->fingerprint);
        fact(html, "message", input->run->message);
        fact(html, "warning",
             input->run->forced_unfit ? "the machine's check called it unfit; the run was forced" : "");
    }
    rk_text_add(html, "</dl>\n");
}

enum rk_status rk_html_summary(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error) {
    (void)error;
    rk_text_add(html, "<section>\n<h2>Summary</h2>\n");
    add_figures(input, html);
    add_facts(input, html);
    rk_text_add(html, "</section>\n");
    return RK_OK;
}

static void open_page(const struct rk_html_input *input, struct rk_text *html) {
    char title[256];
    if (input->run != NULL)
        snprintf(title, sizeof title, "Reckon: run %" PRId64 " against %s", input->run->id, input->plan_name);
    else
        snprintf(title, sizeof title, "Reckon: %s", input->plan_name);
    rk_text_add(html, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>");
    rk_html_add_escaped(html, title);
    rk_text_add(html, "</title>\n<style>\n");
    rk_text_add(html, rk_html_style);
    rk_text_add(html, "</style>\n</head>\n<body>\n<h1>");
    rk_html_add_escaped(html, title);
    rk_text_add(html, "</h1>\n<p>Made by reckon ");
    rk_html_add_escaped(html, rk_version());
    rk_text_add(html, " (");
    rk_html_add_escaped(html, rk_revision());
    rk_text_add(html, "). Hover over any mark for its value.</p>\n");
}

enum rk_status rk_html_write(const struct rk_html_input *input, struct rk_text *html, struct rk_error *error) {
    static enum rk_status (*const sections[])(const struct rk_html_input *, struct rk_text *, struct rk_error *) = {
        rk_html_summary, rk_html_time,     rk_html_ops,        rk_html_memory,
        rk_html_steps,   rk_html_timeline, rk_html_candidates, rk_html_terms};
    enum rk_status status = RK_OK;
    open_page(input, html);
    for (size_t i = 0; status == RK_OK && i < sizeof sections / sizeof sections[0]; i++)
        status = sections[i](input, html, error);
    rk_text_add(html, "</body>\n</html>\n");
    if (status == RK_OK && html->failed)
        status = rk_fail(error, RK_ERROR, "out of memory for the report");
    return status;
}

#include "report/compare.h"

#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CELL = 32 };

static const char *seconds_cell(double seconds, char cell[CELL]) {
    if (isnan(seconds))
        return "-";
    return rk_format_seconds(seconds, cell, CELL);
}

static const char *error_cell(const struct rk_comparison_row *row, char cell[CELL]) {
    double error = rk_comparison_error(row);
    if (isnan(error))
        return "-";
    snprintf(cell, CELL, "%+.1f %%", 100 * error);
    return cell;
}

static const char *uncertainty_cell(double uncertainty, char cell[CELL]) {
    if (isnan(uncertainty))
        return "-";
    snprintf(cell, CELL, "±%.1f %%", 100 * uncertainty);
    return cell;
}

static bool is_level(const struct rk_comparison_row *row, const char *level) {
    return strcmp(row->level, level) == 0;
}

/* Pads by characters: the sign of the uncertainty takes two bytes. */
static void add_right(struct rk_text *text, const char *cell, int width) {
    int characters = 0;
    for (const char *at = cell; *at != '\0'; at++)
        characters += ((unsigned char)*at & 0xC0) != 0x80;
    rk_text_format(text, "%*s%s", width > characters ? width - characters : 0, "", cell);
}

static void print_level(const struct rk_comparison *comparison, const char *level, const char *title,
                        struct rk_text *text) {
    char predicted[CELL], measured[CELL], error[CELL];
    int64_t stage = -2;
    for (size_t i = 0; i < comparison->row_count; i++) {
        const struct rk_comparison_row *row = &comparison->rows[i];
        if (!is_level(row, level))
            continue;
        if (row->stage != stage)
            rk_text_format(text, "\n%-26s %12s %12s %10s   stage %lld\n", title, "predicted", "measured", "error",
                           (long long)row->stage);
        stage = row->stage;
        rk_text_format(text, "  %-24s %12s %12s %10s\n", row->name, seconds_cell(row->predicted, predicted),
                       seconds_cell(row->measured, measured), error_cell(row, error));
    }
}

static void print_ops(const struct rk_comparison *comparison, struct rk_text *text) {
    char predicted[CELL], measured[CELL], error[CELL], uncertainty[CELL];
    rk_text_format(text, "\n%-26s %12s %12s %10s %10s %-14s\n", "ops of the deciding stage", "predicted", "measured",
                   "error", "expected", "  origin");
    for (size_t i = 0; i < comparison->row_count; i++) {
        const struct rk_comparison_row *row = &comparison->rows[i];
        if (!is_level(row, "op"))
            continue;
        rk_text_format(text, "  %-24s %12s %12s %10s ", row->name, seconds_cell(row->predicted, predicted),
                       seconds_cell(row->measured, measured), error_cell(row, error));
        add_right(text, uncertainty_cell(row->relative_uncertainty, uncertainty), 10);
        rk_text_format(text, "   %-13s %s\n", row->origin, row->note);
    }
}

static void print_memory(const struct rk_comparison *comparison, struct rk_text *text) {
    char predicted[CELL], measured[CELL];
    rk_text_format(text, "\n%-40s %12s %12s %14s\n", "memory", "predicted", "allocated", "difference");
    for (size_t i = 0; i < comparison->row_count; i++) {
        const struct rk_comparison_row *row = &comparison->rows[i];
        if (is_level(row, "memory") && isnan(row->predicted))
            rk_text_format(text, "  %-38s %12s %12s %14s\n", row->name, "-",
                           rk_format_bytes((int64_t)row->measured, measured, CELL), "-");
        else if (is_level(row, "memory"))
            rk_text_format(text, "  %-38s %12s %12s %12.0f B\n", row->name,
                           rk_format_bytes((int64_t)row->predicted, predicted, CELL),
                           rk_format_bytes((int64_t)row->measured, measured, CELL), row->measured - row->predicted);
    }
}

void rk_comparison_print(const struct rk_comparison *comparison, struct rk_text *text) {
    char predicted[CELL], measured[CELL], error[CELL], uncertainty[CELL];
    const struct rk_comparison_row *step = &comparison->rows[0];
    rk_text_format(text, "step: predicted %s (%s, %s), measured %s, error %s", seconds_cell(step->predicted, predicted),
                   uncertainty_cell(step->relative_uncertainty, uncertainty), step->origin,
                   seconds_cell(step->measured, measured), error_cell(step, error));
    if (!isnan(step->tolerance))
        rk_text_format(text, ", %s the tolerance of %.1f %%", step->within ? "within" : "OUTSIDE",
                       100 * step->tolerance);
    rk_text_format(text, "\n      %s; %zu traced steps give the rest\n", step->note, comparison->traced_steps);
    rk_text_format(text, "memory: %lld of %lld accounts predicted to the byte\n", (long long)comparison->memory_exact,
                   (long long)comparison->memory_rows);
    print_level(comparison, "account", "where the step goes", text);
    print_level(comparison, "phase", "busy by phase", text);
    print_level(comparison, "family", "busy by family of ops", text);
    print_ops(comparison, text);
    print_memory(comparison, text);
}

static void add_number(struct rk_text *text, const char *key, double value) {
    if (isfinite(value))
        rk_text_format(text, ", \"%s\": %.9g", key, value);
    else
        rk_text_format(text, ", \"%s\": null", key);
}

static void print_row_json(const struct rk_comparison_row *row, struct rk_text *text) {
    rk_text_add(text, "{\"level\": ");
    rk_json_add_quoted(text, row->level);
    rk_text_add(text, ", \"name\": ");
    rk_json_add_quoted(text, row->name);
    rk_text_format(text, ", \"stage\": %lld, \"unit\": ", (long long)row->stage);
    rk_json_add_quoted(text, row->unit);
    add_number(text, "predicted", row->predicted);
    add_number(text, "measured", row->measured);
    add_number(text, "error", rk_comparison_error(row));
    add_number(text, "relative_uncertainty", row->relative_uncertainty);
    rk_text_add(text, ", \"origin\": ");
    rk_json_add_quoted(text, row->origin);
    rk_text_format(text, ", \"within\": %s, \"note\": ", row->within ? "true" : "false");
    rk_json_add_quoted(text, row->note);
    rk_text_add(text, "}");
}

void rk_comparison_print_json(const struct rk_comparison *comparison, int64_t run, struct rk_text *text) {
    rk_text_format(text, "{\n  \"run\": %lld", (long long)run);
    add_number(text, "predicted_seconds", comparison->predicted_seconds);
    add_number(text, "measured_seconds", comparison->measured_seconds);
    add_number(text, "measured_low", comparison->low);
    add_number(text, "measured_high", comparison->high);
    add_number(text, "error", rk_comparison_error(&comparison->rows[0]));
    rk_text_format(text,
                   ", \"counted_steps\": %zu, \"traced_steps\": %zu, \"memory_rows\": %lld, \"memory_exact\": %lld, "
                   "\"within\": %s,\n  \"rows\": [",
                   comparison->counted_steps, comparison->traced_steps, (long long)comparison->memory_rows,
                   (long long)comparison->memory_exact, comparison->within ? "true" : "false");
    for (size_t i = 0; i < comparison->row_count; i++) {
        rk_text_add(text, i == 0 ? "\n    " : ",\n    ");
        print_row_json(&comparison->rows[i], text);
    }
    rk_text_add(text, "\n  ]\n}\n");
}

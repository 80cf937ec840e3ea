#include "db/cost_source.h"
#include "base/statistics.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How much further the truth may lie than the interval that was measured, by level of the match. */
static double widening(enum rk_match_level level) {
    return level == RK_MATCH_SAME ? 0.0 : level == RK_MATCH_OTHER_SOFTWARE ? 0.10 : 0.30;
}

/* An op's measurement on its way into a cost row. */
struct entry {
    struct rk_op_shape shape;
    struct rk_cost_place place;
    const struct rk_matched_row *row;
};

static bool is_sustained(const struct rk_matched_row *row) {
    return strcmp(row->bench_case.mode, "sustained") == 0;
}

/* Operands that stand for real training: values drawn like activations, or ops whose time does not depend on values. */
static bool has_real_operands(const struct rk_case_row *bench_case) {
    return strcmp(bench_case->operands, "normal") == 0 || strcmp(bench_case->operands, "none") == 0 ||
           bench_case->operands[0] == '\0';
}

static int compare_integers(int64_t left, int64_t right) {
    return (left > right) - (left < right);
}

/* Same shape and place: 0. A total order over everything that a cost row is keyed by. */
static int compare_key(const struct entry *left, const struct entry *right) {
    const int64_t differences[] = {compare_integers(left->shape.kind, right->shape.kind),
                                   compare_integers(left->shape.type, right->shape.type),
                                   compare_integers(left->shape.flags, right->shape.flags),
                                   compare_integers(left->shape.group, right->shape.group),
                                   compare_integers(left->place.group_size, right->place.group_size),
                                   compare_integers(left->place.crosses_hosts, right->place.crosses_hosts),
                                   compare_integers(left->place.concurrent, right->place.concurrent),
                                   (left->place.row_share > right->place.row_share) -
                                       (left->place.row_share < right->place.row_share)};
    for (size_t i = 0; i < sizeof(differences) / sizeof(differences[0]); i++) {
        if (differences[i] != 0) {
            return (int)differences[i];
        }
    }
    for (int i = 0; i < RK_OP_DIMS; i++) {
        int difference = compare_integers(left->shape.dim[i], right->shape.dim[i]);
        if (difference != 0) {
            return difference;
        }
    }
    return 0;
}

/* By key, then sustained before isolated, then in the order measured. */
static int compare_entries(const void *left, const void *right) {
    const struct entry *a = left;
    const struct entry *b = right;
    int key = compare_key(a, b);
    if (key != 0) {
        return key;
    }
    if (is_sustained(a->row) != is_sustained(b->row)) {
        return is_sustained(a->row) ? -1 : 1;
    }
    return compare_integers(a->row->measurement_id, b->row->measurement_id);
}

static size_t collect(const struct rk_match *match, struct entry *entries) {
    size_t count = 0;
    for (size_t i = 0; i < match->count; i++) {
        const struct rk_matched_row *row = &match->rows[i];
        struct entry *entry = &entries[count];
        if (row->bench_case.partner[0] == '\0' && has_real_operands(&row->bench_case) &&
            rk_case_to_shape(&row->bench_case, &entry->shape, &entry->place)) {
            entry->row = row;
            count++;
        }
    }
    qsort(entries, count, sizeof(*entries), compare_entries);
    return count;
}

/* One cost row from the measurements of one case: processes side by side. medians has room for count values. */
static struct rk_cost_row combine(const struct entry *entries, size_t count, enum rk_match_level level,
                                  double *medians) {
    struct rk_cost_row result = {.shape = entries[0].shape,
                                 .place = entries[0].place,
                                 .low = INFINITY,
                                 .high = 0,
                                 .origin = level == RK_MATCH_TRANSFERRED ? RK_ORIGIN_TRANSFERRED : RK_ORIGIN_MEASURED,
                                 .measurement = entries[0].row->measurement_id};
    for (size_t i = 0; i < count; i++) {
        const struct rk_matched_row *row = entries[i].row;
        medians[i] = row->median_seconds;
        result.low = fmin(result.low, isnan(row->low_seconds) ? row->median_seconds : row->low_seconds);
        result.high = fmax(result.high, isnan(row->high_seconds) ? row->median_seconds : row->high_seconds);
    }
    rk_statistics_sort(medians, count);
    result.seconds = rk_statistics_median_sorted(medians, count);
    result.process_spread = (medians[count - 1] - medians[0]) / result.seconds;
    result.low = fmax(0, result.low - widening(level) * result.seconds);
    result.high += widening(level) * result.seconds;
    return result;
}

enum rk_status rk_cost_rows_make(const struct rk_match *match, struct rk_cost_row **rows, size_t *count,
                                 struct rk_error *error) {
    size_t room = match->count == 0 ? 1 : match->count;
    struct entry *entries = malloc(room * sizeof(*entries));
    struct rk_cost_row *made = malloc(room * sizeof(*made));
    double *medians = malloc(room * sizeof(*medians));
    if (entries == NULL || made == NULL || medians == NULL) {
        free(entries);
        free(made);
        free(medians);
        return rk_fail(error, RK_ERROR, "calibration %" PRId64 ": out of memory for %zu rows", match->campaign_id,
                       room);
    }
    size_t entry_count = collect(match, entries);
    size_t made_count = 0;
    for (size_t first = 0; first < entry_count;) {
        size_t last = first + 1;
        while (last < entry_count && compare_key(&entries[first], &entries[last]) == 0) {
            last++;
        }
        size_t same_mode = first + 1;
        while (same_mode < last && is_sustained(entries[same_mode].row) == is_sustained(entries[first].row)) {
            same_mode++;
        }
        made[made_count++] = combine(&entries[first], same_mode - first, match->level, medians);
        first = last;
    }
    free(entries);
    free(medians);
    *rows = made;
    *count = made_count;
    return RK_OK;
}

enum rk_status rk_cost_source_make(const struct rk_match *match, struct rk_cost_table **table, struct rk_error *error) {
    struct rk_cost_row *rows = NULL;
    size_t count = 0;
    char name[64];
    enum rk_status status = rk_cost_rows_make(match, &rows, &count, error);
    if (status == RK_OK && count == 0) {
        status = rk_fail(error, RK_UNCALIBRATED, "calibration %" PRId64 " holds no measured op; run `reckon calibrate`",
                         match->campaign_id);
    }
    if (status == RK_OK) {
        snprintf(name, sizeof(name), "calibration %" PRId64, match->campaign_id);
        status = rk_cost_table_make(rows, count, name, table, error);
    }
    free(rows);
    return status;
}

/* The row of a figure that counts: the most ranks at once, then the largest copy, then the newest. NULL: none. */
static const struct rk_matched_row *best_row(const struct rk_match *match, const char *op) {
    const struct rk_matched_row *best = NULL;
    for (size_t i = 0; i < match->count; i++) {
        const struct rk_matched_row *row = &match->rows[i];
        if (strcmp(row->bench_case.op, op) != 0 || row->bench_case.partner[0] != '\0' || !is_sustained(row)) {
            continue;
        }
        int order = 1;
        if (best != NULL) {
            order = compare_integers(row->bench_case.concurrent_ranks, best->bench_case.concurrent_ranks);
            order = order != 0 ? order : compare_integers(row->bench_case.dim[0], best->bench_case.dim[0]);
            order = order != 0 ? order : compare_integers(row->measurement_id, best->measurement_id);
        }
        best = order > 0 ? row : best;
    }
    return best;
}

static void set_figure(const struct rk_match *match, const struct rk_matched_row *row, double value,
                       struct rk_figure *figure) {
    double half = isnan(row->low_seconds) || isnan(row->high_seconds)
                      ? 0.0
                      : (row->high_seconds - row->low_seconds) / 2 / row->median_seconds;
    *figure =
        (struct rk_figure){.value = value,
                           .relative_uncertainty = half + widening(match->level),
                           .origin = match->level == RK_MATCH_TRANSFERRED ? RK_ORIGIN_TRANSFERRED : RK_ORIGIN_MEASURED};
    snprintf(figure->source, sizeof(figure->source), "calibration %" PRId64 ", measurement %" PRId64, row->campaign_id,
             row->measurement_id);
}

static void set_rate(const struct rk_match *match, const char *op, struct rk_figure *figure) {
    const struct rk_matched_row *row = best_row(match, op);
    if (row != NULL) {
        set_figure(match, row, (double)row->bench_case.dim[0] / row->median_seconds, figure);
    }
}

static void set_seconds(const struct rk_match *match, const char *op, struct rk_figure *figure) {
    const struct rk_matched_row *row = best_row(match, op);
    if (row != NULL) {
        set_figure(match, row, row->median_seconds, figure);
    }
}

static void set_dense_peak(const struct rk_match *match, struct rk_figure *figure) {
    const struct rk_matched_row *best = NULL;
    for (size_t i = 0; i < match->count; i++) {
        const struct rk_matched_row *row = &match->rows[i];
        if (strcmp(row->bench_case.op, rk_op_name(RK_OP_GEMM_FORWARD)) == 0 && row->flops > 0 &&
            (best == NULL || row->flops / row->median_seconds > best->flops / best->median_seconds)) {
            best = row;
        }
    }
    if (best != NULL) {
        set_figure(match, best, best->flops / best->median_seconds, figure);
    }
}

void rk_machine_figures(const struct rk_match *match, struct rk_machine *machine) {
    set_rate(match, rk_op_name(RK_OP_COPY_D2H), &machine->d2h);
    set_rate(match, rk_op_name(RK_OP_COPY_H2D), &machine->h2d);
    set_seconds(match, RK_CASE_LAUNCH, &machine->launch);
    set_seconds(match, RK_CASE_HOST_WAIT, &machine->host_wait);
    set_seconds(match, RK_CASE_STEP_OVERHEAD, &machine->step_overhead);
    set_dense_peak(match, &machine->dense_peak);
    const struct rk_matched_row *both = best_row(match, RK_CASE_COPY_BOTH);
    double single = fmin(machine->d2h.value, machine->h2d.value);
    if (both != NULL && single > 0) {
        set_figure(match, both, fmin(1.0, (double)both->bench_case.dim[0] / both->median_seconds / single),
                   &machine->both_directions);
    }
}

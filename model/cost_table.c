#include "model/cost_shape.h"

#include "base/statistics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEAREST = 6, LEFT_OUT_MAX = 48 };

/* Without enough rows to leave one out, what an interpolation is worth. */
static const double MODEL_ERROR_UNKNOWN = 0.15;
static const double OTHER_FLAGS_ERROR = 0.10;
static const double UNCERTAINTY_MAX = 2.0;

/* One distinct shape and place. */
struct point {
    struct rk_op_shape shape;
    struct rk_cost_place place;
    struct rk_cost_shape key;
    double seconds, uncertainty;
    double level; /* logarithm of the seconds after pooling */
    enum rk_origin origin;
    int64_t measurement;
    int32_t rows;
};

/* Points that differ in size only, by size. */
struct curve {
    size_t first, count;
};

struct kind_facts {
    size_t first_curve, curve_count;
    size_t first_point, point_count;
    double least_per_work; /* seconds per unit of work, the best measured */
    double model_error;
};

struct rk_cost_table {
    char name[64];
    struct point *points;
    size_t point_count;
    struct curve *curves;
    size_t curve_count;
    struct kind_facts kinds[RK_OP_KIND_COUNT];
};

static int compare_doubles(double left, double right) {
    return (left > right) - (left < right);
}

/* By kind, then everything that makes a curve, then size. */
static int compare_points(const void *a, const void *b) {
    const struct rk_cost_shape *left = &((const struct point *)a)->key, *right = &((const struct point *)b)->key;
    if (left->kind != right->kind)
        return left->kind < right->kind ? -1 : 1;
    if (left->type != right->type)
        return left->type < right->type ? -1 : 1;
    if (left->flags != right->flags)
        return left->flags < right->flags ? -1 : 1;
    if (left->crosses_hosts != right->crosses_hosts)
        return left->crosses_hosts ? 1 : -1;
    for (int i = 0; i < RK_COST_FEATURES; i++) {
        int order = compare_doubles(left->feature[i], right->feature[i]);
        if (order != 0)
            return order;
    }
    return compare_doubles(left->size, right->size);
}

static bool same_curve(const struct point *left, const struct point *right) {
    return rk_cost_shape_alike(&left->key, &right->key, true) && rk_cost_shape_distance(&left->key, &right->key) <= 0;
}

static bool same_size(double left, double right) {
    return fabs(left - right) <= 1e-9 * right;
}

static double hypotenuse(double left, double right) {
    return sqrt(left * left + right * right);
}

static enum rk_status check_row(const char *name, const struct rk_cost_row *row, struct rk_error *error) {
    char shape[256];
    if ((unsigned)row->shape.kind >= RK_OP_KIND_COUNT)
        return rk_fail(error, RK_USAGE, "%s: a row has the unknown op kind %d", name, (int)row->shape.kind);
    if (!isfinite(row->seconds) || row->seconds <= 0 || !isfinite(row->low) || !isfinite(row->high) || row->low < 0 ||
        row->low > row->seconds || row->high < row->seconds || !(row->process_spread >= 0) ||
        !isfinite(row->process_spread))
        return rk_fail(error, RK_USAGE, "%s: the row of %s has %g s in [%g, %g], spread %g: not a measurement", name,
                       rk_op_shape_text(&row->shape, shape, sizeof shape), row->seconds, row->low, row->high,
                       row->process_spread);
    if (row->shape.dim[0] <= 0 || row->place.group_size < 1 || row->place.concurrent < 1 ||
        !(row->place.row_share > 0) || row->place.row_share > 1)
        return rk_fail(error, RK_USAGE,
                       "%s: the row of %s has a size, group, number of busy ranks or share out of range", name,
                       rk_op_shape_text(&row->shape, shape, sizeof shape));
    return RK_OK;
}

static void point_of(const struct rk_cost_row *row, struct point *point) {
    *point = (struct point){.shape = row->shape,
                            .place = row->place,
                            .seconds = row->seconds,
                            .uncertainty = hypotenuse((row->high - row->low) / 2 / row->seconds, row->process_spread),
                            .origin = row->origin,
                            .measurement = row->measurement,
                            .rows = 1};
    rk_cost_shape_of(&row->shape, &row->place, &point->key);
}

static int compare_seconds(const void *a, const void *b) {
    return compare_doubles(((const struct point *)a)->seconds, ((const struct point *)b)->seconds);
}

/* Points of the same shape and place become their median; how far they lie apart widens it. */
static void merge_points(struct rk_cost_table *table) {
    size_t kept = 0;
    for (size_t i = 0; i < table->point_count;) {
        size_t end = i + 1;
        while (end < table->point_count && same_curve(&table->points[i], &table->points[end]) &&
               same_size(table->points[i].key.size, table->points[end].key.size))
            end++;
        qsort(&table->points[i], end - i, sizeof table->points[i], compare_seconds);
        struct point merged = table->points[i + (end - i) / 2];
        double spread = (table->points[end - 1].seconds - table->points[i].seconds) / 2 / merged.seconds;
        merged.uncertainty = hypotenuse(merged.uncertainty, spread);
        merged.rows = (int32_t)(end - i);
        table->points[kept++] = merged;
        i = end;
    }
    table->point_count = kept;
}

/* Pools neighbours whose seconds fall with size into their mean, until none do. */
static void pool_curve(struct point *points, size_t count) {
    for (size_t i = 0; i < count; i++) {
        points[i].level = log2(points[i].seconds);
        double sum = points[i].level;
        size_t first = i;
        while (first > 0 && points[first - 1].level > sum / (double)(i - first + 1)) {
            double level = points[first - 1].level;
            while (first > 0 && !(points[first - 1].level < level)) {
                sum += points[first - 1].level;
                first--;
            }
        }
        for (size_t j = first; j <= i; j++)
            points[j].level = sum / (double)(i - first + 1);
    }
}

static void make_curves(struct rk_cost_table *table) {
    for (size_t i = 0; i < table->point_count;) {
        const struct point *point = &table->points[i];
        size_t end = i + 1;
        while (end < table->point_count && same_curve(point, &table->points[end]))
            end++;
        struct kind_facts *kind = &table->kinds[point->key.kind];
        if (kind->curve_count == 0) {
            kind->first_curve = table->curve_count;
            kind->first_point = i;
            kind->least_per_work = INFINITY;
        }
        pool_curve(&table->points[i], end - i);
        for (size_t j = i; j < end; j++) {
            const struct point *each = &table->points[j];
            kind->least_per_work =
                fmin(kind->least_per_work, each->seconds / rk_cost_work(&each->shape, each->key.size));
        }
        table->curves[table->curve_count++] = (struct curve){.first = i, .count = end - i};
        kind->curve_count++;
        kind->point_count += end - i;
        i = end;
    }
}

/* What a curve says about a size: logarithm of seconds, and how it came by it. */
struct reading {
    double level;
    double uncertainty;
    double octaves_outside;
    enum rk_origin origin;
    bool exact;
    const struct point *point; /* the nearest, for exact readings the row */
};

/* Slope of seconds over size, both in octaves, past an end of the curve. Time grows with size, and in the long run not
 * faster than in proportion; a curve of one point knows nothing better than proportion. */
static double end_slope(const struct point *points, size_t count, bool upper) {
    if (count < 2)
        return 1;
    const struct point *low = upper ? &points[count - 2] : &points[0];
    const struct point *high = low + 1;
    double slope = (high->level - low->level) / log2(high->key.size / low->key.size);
    return slope < 0 ? 0 : slope > 1 ? 1 : slope;
}

static void read_curve(const struct point *points, size_t count, double size, struct reading *reading) {
    size_t above = 0;
    while (above < count && points[above].key.size < size && !same_size(points[above].key.size, size))
        above++;
    if (above < count && same_size(points[above].key.size, size)) {
        *reading = (struct reading){.level = points[above].level,
                                    .uncertainty = points[above].uncertainty,
                                    .origin = points[above].origin,
                                    .exact = true,
                                    .point = &points[above]};
        return;
    }
    if (above > 0 && above < count) {
        const struct point *low = &points[above - 1], *high = &points[above];
        double share = log2(size / low->key.size) / log2(high->key.size / low->key.size);
        *reading = (struct reading){.level = low->level + share * (high->level - low->level),
                                    .uncertainty = fmax(low->uncertainty, high->uncertainty),
                                    .origin = low->origin > high->origin ? low->origin : high->origin,
                                    .point = share < 0.5 ? low : high};
        if (reading->origin < RK_ORIGIN_INTERPOLATED)
            reading->origin = RK_ORIGIN_INTERPOLATED;
        return;
    }
    const struct point *end = above == 0 ? &points[0] : &points[count - 1];
    double octaves = log2(size / end->key.size);
    *reading = (struct reading){.level = end->level + octaves * end_slope(points, count, above > 0),
                                .uncertainty = end->uncertainty,
                                .octaves_outside = fabs(octaves),
                                .origin = end->origin > RK_ORIGIN_EXTRAPOLATED ? end->origin : RK_ORIGIN_EXTRAPOLATED,
                                .point = end};
}

struct neighbour {
    double distance;
    const struct curve *curve;
};

/* The nearest curves of the kind; fewer only when there are fewer. Ties go to the earlier curve. */
static int find_nearest(const struct rk_cost_table *table, const struct rk_cost_shape *key, bool with_flags,
                        struct neighbour nearest[NEAREST]) {
    const struct kind_facts *kind = &table->kinds[key->kind];
    int count = 0;
    for (size_t i = 0; i < kind->curve_count; i++) {
        const struct curve *curve = &table->curves[kind->first_curve + i];
        const struct rk_cost_shape *other = &table->points[curve->first].key;
        if (!rk_cost_shape_alike(key, other, with_flags))
            continue;
        double distance = rk_cost_shape_distance(key, other);
        int at = count < NEAREST ? count++ : NEAREST;
        while (at > 0 && nearest[at - 1].distance > distance) {
            if (at < NEAREST)
                nearest[at] = nearest[at - 1];
            at--;
        }
        if (at < NEAREST)
            nearest[at] = (struct neighbour){distance, curve};
    }
    if (count > 0 && nearest[0].distance <= 0)
        count = 1;
    return count;
}

static void set_source(const struct rk_cost_table *table, const struct point *point, int curves, struct rk_cost *cost) {
    if (cost->origin == RK_ORIGIN_MEASURED && point->measurement > 0)
        snprintf(cost->source, sizeof cost->source, "%.60s, measurement %lld", table->name,
                 (long long)point->measurement);
    else if (curves <= 1)
        snprintf(cost->source, sizeof cost->source, "%s, %d row%s", table->name, point->rows,
                 point->rows == 1 ? "" : "s");
    else
        snprintf(cost->source, sizeof cost->source, "%s, %d nearest curves", table->name, curves);
}

/* Blends what the nearest curves say: seconds per unit of work, so that a curve of another width speaks too. */
static void blend(const struct rk_cost_table *table, const struct rk_op_shape *shape, const struct rk_cost_shape *key,
                  const struct neighbour *nearest, int count, bool other_flags, struct rk_cost *cost) {
    const struct kind_facts *kind = &table->kinds[key->kind];
    double work = rk_cost_work(shape, key->size);
    double weights = 0, level = 0, uncertainty = 0, outside = 0;
    enum rk_origin origin = RK_ORIGIN_MEASURED;
    struct reading reading = {.point = &table->points[nearest[0].curve->first]};
    for (int i = 0; i < count; i++) {
        const struct point *points = &table->points[nearest[i].curve->first];
        read_curve(points, nearest[i].curve->count, key->size, &reading);
        double weight = count == 1 ? 1 : 1 / nearest[i].distance;
        double scale =
            count == 1 && nearest[i].distance <= 0 ? 0 : log2(work / rk_cost_work(&points[0].shape, key->size));
        weights += weight;
        level += weight * (reading.level + scale);
        uncertainty += weight * reading.uncertainty;
        outside += weight * reading.octaves_outside;
        if (reading.origin > origin)
            origin = reading.origin;
    }
    level /= weights;
    uncertainty /= weights;
    outside /= weights;
    bool exact = count == 1 && nearest[0].distance <= 0 && reading.exact && !other_flags;
    if (exact) {
        *cost = (struct rk_cost){reading.point->seconds, uncertainty, origin, ""};
        set_source(table, reading.point, 1, cost);
        return;
    }
    /* Between measured widths it is interpolation; from a single one it is not. */
    bool one_width = count == 1 && nearest[0].distance > 0;
    if (origin < RK_ORIGIN_INTERPOLATED)
        origin = RK_ORIGIN_INTERPOLATED;
    if (one_width && origin < RK_ORIGIN_EXTRAPOLATED)
        origin = RK_ORIGIN_EXTRAPOLATED;
    double octaves = outside + (one_width ? sqrt(nearest[0].distance) : 0);
    uncertainty = hypotenuse(uncertainty, kind->model_error * (1 + octaves));
    if (other_flags)
        uncertainty = hypotenuse(uncertainty, OTHER_FLAGS_ERROR);
    double seconds = exp2(level);
    if (octaves > 0)
        seconds = fmax(seconds, work * kind->least_per_work);
    *cost = (struct rk_cost){seconds, fmin(uncertainty, UNCERTAINTY_MAX), origin, ""};
    set_source(table, reading.point, count, cost);
}

static enum rk_status refuse(const struct rk_cost_table *table, const struct rk_op_shape *shape,
                             const struct rk_cost_place *place, struct rk_error *error) {
    char text[256];
    rk_op_shape_text(shape, text, sizeof text);
    bool any = table->kinds[shape->kind].curve_count > 0;
    if (any && place->crosses_hosts)
        return rk_fail(error, RK_UNCALIBRATED,
                       "%s: no measurement of %s between hosts; run `reckon calibrate` under a launcher on all of "
                       "them, or plan with --hardware PROFILE",
                       table->name, rk_op_name(shape->kind));
    return rk_fail(error, RK_UNCALIBRATED, "%s: no measurement of %s%s; measure %s (group of %d, %d ranks busy)",
                   table->name, rk_op_name(shape->kind), any ? " in this data type" : "", text, place->group_size,
                   place->concurrent);
}

static enum rk_status price(void *context, const struct rk_op_shape *shape, const struct rk_cost_place *place,
                            struct rk_cost *cost, struct rk_error *error) {
    const struct rk_cost_table *table = context;
    struct rk_cost_shape key;
    if (shape->dim[0] == 0) {
        *cost = (struct rk_cost){.origin = RK_ORIGIN_MEASURED, .source = "nothing to do"};
        return RK_OK;
    }
    rk_cost_shape_of(shape, place, &key);
    struct neighbour nearest[NEAREST];
    bool other_flags = false;
    int count = find_nearest(table, &key, true, nearest);
    if (count == 0) {
        count = find_nearest(table, &key, false, nearest);
        other_flags = true;
    }
    if (count == 0)
        return refuse(table, shape, place, error);
    blend(table, shape, &key, nearest, count, other_flags, cost);
    return RK_OK;
}

/* ---- Making ---- */

/* A table over points, without the one of number `left_out`. */
static enum rk_status make_table(const struct point *points, size_t count, size_t left_out, const char *name,
                                 struct rk_cost_table **made, struct rk_error *error) {
    struct rk_cost_table *table = calloc(1, sizeof *table);
    if (table == NULL)
        return rk_fail(error, RK_ERROR, "%s: out of memory", name);
    snprintf(table->name, sizeof table->name, "%s", name);
    table->points = calloc(count + 1, sizeof *table->points);
    table->curves = calloc(count + 1, sizeof *table->curves);
    if (table->points == NULL || table->curves == NULL) {
        rk_cost_table_free(table);
        return rk_fail(error, RK_ERROR, "%s: out of memory for %zu rows", name, count);
    }
    for (size_t i = 0; i < count; i++)
        if (i != left_out)
            table->points[table->point_count++] = points[i];
    qsort(table->points, table->point_count, sizeof *table->points, compare_points);
    merge_points(table);
    make_curves(table);
    for (int kind = 0; kind < RK_OP_KIND_COUNT; kind++)
        table->kinds[kind].model_error = MODEL_ERROR_UNKNOWN;
    *made = table;
    return RK_OK;
}

/* Relative signed errors of the kind's points, each from all the others; at most LEFT_OUT_MAX of them, evenly taken. */
static enum rk_status left_out_errors(const struct rk_cost_table *table, enum rk_op_kind kind, double *errors,
                                      size_t *count, struct rk_error *error) {
    const struct kind_facts *facts = &table->kinds[kind];
    const struct point *points = &table->points[facts->first_point];
    size_t step = (facts->point_count + LEFT_OUT_MAX - 1) / LEFT_OUT_MAX;
    *count = 0;
    for (size_t i = 0; facts->point_count > 1 && i < facts->point_count; i += step) {
        struct rk_cost_table *others = NULL;
        enum rk_status status = make_table(points, facts->point_count, i, table->name, &others, error);
        if (status != RK_OK)
            return status;
        struct rk_cost cost;
        if (price(others, &points[i].shape, &points[i].place, &cost, NULL) == RK_OK)
            errors[(*count)++] = cost.seconds / points[i].seconds - 1;
        rk_cost_table_free(others);
    }
    return RK_OK;
}

enum rk_status rk_cost_table_leave_one_out(const struct rk_cost_table *table, enum rk_op_kind kind,
                                           struct rk_leave_one_out *result, struct rk_error *error) {
    double errors[LEFT_OUT_MAX];
    size_t count;
    enum rk_status status = left_out_errors(table, kind, errors, &count, error);
    if (status != RK_OK)
        return status;
    struct rk_leave_one_out made = {.count = count};
    for (size_t i = 0; i < count; i++) {
        made.signed_mean += errors[i] / (double)count;
        errors[i] = fabs(errors[i]);
    }
    if (count > 0) {
        rk_statistics_sort(errors, count);
        made.median = rk_statistics_median_sorted(errors, count);
        made.p90 = rk_statistics_quantile_sorted(errors, count, 0.9);
    }
    *result = made;
    return RK_OK;
}

/* Half of the errors are larger than the median; the interval must hold most of them. */
static enum rk_status state_model_errors(struct rk_cost_table *table, struct rk_error *error) {
    for (int kind = 0; kind < RK_OP_KIND_COUNT; kind++) {
        struct rk_leave_one_out result;
        enum rk_status status = rk_cost_table_leave_one_out(table, (enum rk_op_kind)kind, &result, error);
        if (status != RK_OK)
            return status;
        if (result.count >= 4)
            table->kinds[kind].model_error = fmax(result.p90, 0.01);
    }
    return RK_OK;
}

enum rk_status rk_cost_table_make(const struct rk_cost_row *rows, size_t row_count, const char *source_name,
                                  struct rk_cost_table **table, struct rk_error *error) {
    struct point *points = calloc(row_count + 1, sizeof *points);
    if (points == NULL)
        return rk_fail(error, RK_ERROR, "%s: out of memory for %zu rows", source_name, row_count);
    enum rk_status status = RK_OK;
    for (size_t i = 0; status == RK_OK && i < row_count; i++)
        if ((status = check_row(source_name, &rows[i], error)) == RK_OK)
            point_of(&rows[i], &points[i]);
    struct rk_cost_table *made = NULL;
    if (status == RK_OK)
        status = make_table(points, row_count, SIZE_MAX, source_name, &made, error);
    free(points);
    if (made == NULL)
        return status;
    if ((status = state_model_errors(made, error)) != RK_OK) {
        rk_cost_table_free(made);
        return status;
    }
    *table = made;
    return RK_OK;
}

void rk_cost_table_free(struct rk_cost_table *table) {
    if (table == NULL)
        return;
    free(table->points);
    free(table->curves);
    free(table);
}

struct rk_cost_source rk_cost_table_source(struct rk_cost_table *table) {
    return (struct rk_cost_source){.price = price, .context = table};
}

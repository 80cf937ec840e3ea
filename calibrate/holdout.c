#include "calibrate/holdout.h"

#include "base/random.h"
#include "base/statistics.h"
#include "db/cost_source.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HELD_OUT_ONE_IN = 5 };

/* Rows of a campaign divided in two: a kind's held-out rows come from a seeded permutation of its rows. */
struct division {
    struct rk_cost_row *rows; /* all; owned */
    bool *held;               /* owned */
    size_t count;
};

static void division_free(struct division *division) {
    free(division->rows);
    free(division->held);
}

static enum rk_status hold_out_kind(struct division *division, enum rk_op_kind kind, uint64_t seed,
                                    struct rk_error *error) {
    int64_t count = 0;
    for (size_t i = 0; i < division->count; i++)
        count += division->rows[i].shape.kind == kind;
    int64_t *order = calloc((size_t)count + 1, sizeof *order);
    if (!order)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory");
    rk_random_permutation(rk_random_stream(seed, "held out", (uint64_t)kind), count, order);
    int64_t place = 0;
    for (size_t i = 0; i < division->count; i++)
        if (division->rows[i].shape.kind == kind)
            division->held[i] = order[place++] < count / HELD_OUT_ONE_IN;
    free(order);
    return RK_OK;
}

static enum rk_status divide(const struct rk_match *match, uint64_t seed, struct division *division,
                             struct rk_error *error) {
    enum rk_status status = rk_cost_rows_make(match, &division->rows, &division->count, error);
    if (status != RK_OK)
        return status;
    division->held = calloc(division->count + 1, sizeof *division->held);
    if (!division->held)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory");
    for (int kind = 0; status == RK_OK && kind < RK_OP_KIND_COUNT; kind++)
        status = hold_out_kind(division, (enum rk_op_kind)kind, seed, error);
    return status;
}

/* A cost table of the rows that are not held out. */
static enum rk_status table_of_others(const struct division *division, struct rk_cost_table **table,
                                      struct rk_error *error) {
    struct rk_cost_row *others = calloc(division->count + 1, sizeof *others);
    if (!others)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory");
    size_t count = 0;
    for (size_t i = 0; i < division->count; i++)
        if (!division->held[i])
            others[count++] = division->rows[i];
    enum rk_status status = rk_cost_table_make(others, count, "hold-out", table, error);
    free(others);
    return status;
}

/* Absolute relative errors of the held-out rows of a kind (any kind: RK_OP_KIND_COUNT). */
static size_t errors_of(const struct division *division, const struct rk_cost_source *source, enum rk_op_kind kind,
                        double *errors) {
    size_t made = 0;
    for (size_t i = 0; i < division->count; i++) {
        const struct rk_cost_row *row = &division->rows[i];
        struct rk_cost cost;
        struct rk_error refused;
        if (division->held[i] && (kind == RK_OP_KIND_COUNT || row->shape.kind == kind) &&
            source->price(source->context, &row->shape, &row->place, &cost, &refused) == RK_OK)
            errors[made++] = fabs(cost.seconds / row->seconds - 1);
    }
    return made;
}

static enum rk_status store_kind(struct rk_db *db, int64_t campaign, const struct division *division,
                                 enum rk_op_kind kind, const double *errors, size_t count, struct rk_error *error) {
    struct rk_fit_row row = {.campaign_id = campaign, .group_size = 1, .parameters = "{}"};
    snprintf(row.op, sizeof row.op, "%s", rk_op_name(kind));
    snprintf(row.form, sizeof row.form, "cost table");
    row.leave_one_out_median = row.leave_one_out_p90 = NAN;
    enum rk_status status = rk_statistics_quantile(errors, count, 0.5, &row.held_out_median, error);
    if (status == RK_OK)
        status = rk_statistics_quantile(errors, count, 0.9, &row.held_out_p90, error);
    if (status != RK_OK)
        return status;
    struct rk_fit_input *inputs = calloc(division->count, sizeof *inputs);
    if (!inputs)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory");
    size_t input_count = 0;
    for (size_t i = 0; i < division->count; i++)
        if (division->rows[i].shape.kind == kind)
            inputs[input_count++] = (struct rk_fit_input){division->rows[i].measurement, division->held[i]};
    status = rk_fit_store(db, &row, inputs, input_count, NULL, error);
    free(inputs);
    return status;
}

static enum rk_status judge(struct rk_db *db, int64_t campaign, const struct division *division,
                            struct rk_campaign_summary *summary, struct rk_error *error) {
    struct rk_cost_table *table = NULL;
    enum rk_status status = table_of_others(division, &table, error);
    if (status != RK_OK)
        return status;
    struct rk_cost_source source = rk_cost_table_source(table);
    double *errors = calloc(division->count + 1, sizeof *errors);
    if (!errors)
        status = rk_fail(error, RK_ERROR, "calibrate: out of memory");
    for (int kind = 0; status == RK_OK && kind < RK_OP_KIND_COUNT; kind++) {
        size_t made = errors_of(division, &source, (enum rk_op_kind)kind, errors);
        if (made > 0)
            status = store_kind(db, campaign, division, (enum rk_op_kind)kind, errors, made, error);
    }
    if (status == RK_OK)
        summary->held_out = errors_of(division, &source, RK_OP_KIND_COUNT, errors);
    if (status == RK_OK && summary->held_out > 0)
        status = rk_statistics_quantile(errors, summary->held_out, 0.5, &summary->held_out_median, error);
    if (status == RK_OK && summary->held_out > 0)
        status = rk_statistics_quantile(errors, summary->held_out, 0.9, &summary->held_out_p90, error);
    free(errors);
    rk_cost_table_free(table);
    return status;
}

enum rk_status rk_holdout_store(struct rk_db *db, int64_t campaign, uint64_t seed, struct rk_campaign_summary *summary,
                                struct rk_error *error) {
    struct rk_match match = {0};
    struct rk_match_request request = {.campaign_id = campaign};
    enum rk_status status = rk_match_find(db, &request, &match, error);
    if (status != RK_OK)
        return status;
    struct division division = {0};
    status = divide(&match, seed, &division, error);
    if (status == RK_OK)
        status = judge(db, campaign, &division, summary, error);
    division_free(&division);
    rk_match_free(&match);
    return status;
}

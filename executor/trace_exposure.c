#include "executor/trace.h"

#include "base/statistics.h"

#include <stdlib.h>
#include <string.h>

/* Who counts when several streams work at once: time under a kernel is the kernel's, and only what it leaves uncovered
 * is exposed communication. No op is booked under the bubble or as starved. */
static const enum rk_stage_account precedence[] = {
    RK_STAGE_ACCOUNT_compute,           RK_STAGE_ACCOUNT_optimizer,       RK_STAGE_ACCOUNT_exposed_exchange,
    RK_STAGE_ACCOUNT_exposed_reduction, RK_STAGE_ACCOUNT_exposed_offload, RK_STAGE_ACCOUNT_exposed_pipeline,
};
enum { PRECEDENCE_COUNT = sizeof precedence / sizeof precedence[0] };

/* A border of the timeline: an op of the account begins (+1) or ends (-1). */
struct border {
    double seconds;
    int change;
    enum rk_stage_account account;
};

static int compare_borders(const void *left, const void *right) {
    const struct border *a = left, *b = right;
    return a->seconds != b->seconds ? (a->seconds > b->seconds) - (a->seconds < b->seconds) : b->change - a->change;
}

static void sweep(struct border *borders, size_t count, double covered[RK_STAGE_ACCOUNT_COUNT]) {
    int active[RK_STAGE_ACCOUNT_COUNT] = {0};
    double last = 0;
    memset(covered, 0, RK_STAGE_ACCOUNT_COUNT * sizeof *covered);
    qsort(borders, count, sizeof *borders, compare_borders);
    for (size_t i = 0; i < count; i++) {
        int who = 0;
        while (who < PRECEDENCE_COUNT && active[precedence[who]] == 0)
            who++;
        if (who < PRECEDENCE_COUNT)
            covered[precedence[who]] += borders[i].seconds - last;
        last = borders[i].seconds;
        active[borders[i].account] += borders[i].change;
    }
}

/* Transfers of stage traffic as fast as the fastest of their shape; what an exposed transfer takes longer is a wait for
 * the other stage. */
static double pipeline_transfer(const struct rk_op_account *accounts, size_t count, double *all) {
    double transfer = 0;
    *all = 0;
    for (size_t i = 0; i < count; i++) {
        if (rk_op_family(accounts[i].shape.kind) != RK_OP_FAMILY_PIPELINE)
            continue;
        *all += accounts[i].total_seconds;
        transfer += accounts[i].total_seconds - accounts[i].wait_seconds;
    }
    return transfer;
}

static void add_sums(const struct rk_op_account *accounts, size_t count, struct rk_stage_time *time) {
    for (size_t i = 0; i < count; i++) {
        time->phase[accounts[i].phase] += accounts[i].total_seconds;
        time->family[rk_op_family(accounts[i].shape.kind)] += accounts[i].total_seconds;
        time->stream_busy[accounts[i].stream] += accounts[i].total_seconds;
    }
}

/* One of each account, and the whole step. */
enum { SERIES = RK_STAGE_ACCOUNT_COUNT + 1 };

static enum rk_status sweep_steps(const struct rk_trace *trace, double *series, struct rk_error *error) {
    struct border *borders = calloc(2 * trace->op_count + 1, sizeof *borders);
    if (borders == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the timeline of a traced step");
    for (size_t s = 0; s < trace->step_count; s++) {
        const struct rk_trace_step *step = &trace->steps[s];
        double covered[RK_STAGE_ACCOUNT_COUNT];
        for (size_t i = 0; i < trace->op_count; i++) {
            enum rk_stage_account account = rk_stage_account_of(trace->ops[i]);
            borders[2 * i] = (struct border){step->begin[i], 1, account};
            borders[2 * i + 1] =
                (struct border){step->end[i] > step->begin[i] ? step->end[i] : step->begin[i], -1, account};
        }
        sweep(borders, 2 * trace->op_count, covered);
        for (int a = 0; a < RK_STAGE_ACCOUNT_COUNT; a++)
            series[(size_t)a * trace->step_count + s] = covered[a];
        series[(size_t)RK_STAGE_ACCOUNT_COUNT * trace->step_count + s] = step->seconds;
    }
    free(borders);
    return RK_OK;
}

static enum rk_status median_series(const struct rk_trace *trace, const double *series, double medians[SERIES],
                                    struct rk_error *error) {
    enum rk_status status = RK_OK;
    for (size_t a = 0; a < SERIES && status == RK_OK; a++)
        status = rk_statistics_median(series + a * trace->step_count, trace->step_count, &medians[a], error);
    return status;
}

enum rk_status rk_trace_stage_time(const struct rk_trace *trace, struct rk_stage_time *time, struct rk_error *error) {
    struct rk_stage_time made = {0};
    struct rk_op_account *accounts = NULL;
    double medians[SERIES] = {0}, all = 0;
    size_t count = 0;
    if (trace->step_count == 0) {
        *time = made;
        return RK_OK;
    }
    double *series = calloc(SERIES * trace->step_count, sizeof *series);
    if (series == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the timeline of traced steps");
    enum rk_status status = sweep_steps(trace, series, error);
    if (status == RK_OK)
        status = median_series(trace, series, medians, error);
    if (status == RK_OK)
        status = rk_trace_accounts(trace, &accounts, &count, error);
    if (status != RK_OK)
        goto free_series;
    double transfer = pipeline_transfer(accounts, count, &all);
    double exposed = medians[RK_STAGE_ACCOUNT_exposed_pipeline];
    add_sums(accounts, count, &made);
    made.compute = medians[RK_STAGE_ACCOUNT_compute];
    made.optimizer = medians[RK_STAGE_ACCOUNT_optimizer];
    made.exposed_exchange = medians[RK_STAGE_ACCOUNT_exposed_exchange];
    made.exposed_reduction = medians[RK_STAGE_ACCOUNT_exposed_reduction];
    made.exposed_offload = medians[RK_STAGE_ACCOUNT_exposed_offload];
    made.exposed_pipeline = all > 0 ? exposed * transfer / all : 0;
    made.bubble = exposed - made.exposed_pipeline;
    made.total = medians[RK_STAGE_ACCOUNT_COUNT];
    made.starved = made.total - made.compute - made.optimizer - made.exposed_exchange - made.exposed_reduction -
                   made.exposed_offload - exposed;
    if (made.starved < 0)
        made.starved = 0;
    *time = made;
    free(accounts);
free_series:
    free(series);
    return status;
}

#include "executor/trace.h"

#include "base/statistics.h"

#include <stdlib.h>
#include <string.h>

enum rk_status rk_trace_open(const struct rk_backend *backend, struct rk_device *device, size_t op_count,
                             struct rk_trace *trace, struct rk_error *error) {
    if (trace->events != NULL)
        return RK_OK;
    size_t count = 2 * op_count + 1;
    trace->op_count = op_count;
    trace->ops = calloc(op_count + 1, sizeof *trace->ops);
    trace->events = calloc(count, sizeof(struct rk_event_handle *));
    if (trace->ops == NULL || trace->events == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the events of a traced step");
    for (size_t i = 0; i < count; i++) {
        enum rk_status status = backend->event_create(device, true, &trace->events[i], error);
        if (status != RK_OK)
            return status;
    }
    return RK_OK;
}

void rk_trace_close(const struct rk_backend *backend, struct rk_trace *trace) {
    for (size_t i = 0; trace->events != NULL && i < 2 * trace->op_count + 1; i++)
        if (trace->events[i] != NULL)
            backend->event_destroy(trace->events[i]);
    for (size_t i = 0; i < trace->step_count; i++) {
        free(trace->steps[i].begin);
        free(trace->steps[i].end);
    }
    free(trace->events);
    free(trace->ops);
    free(trace->steps);
    memset(trace, 0, sizeof *trace);
}

enum rk_status rk_trace_collect(const struct rk_backend *backend, struct rk_trace *trace, int64_t step, double seconds,
                                struct rk_error *error) {
    enum rk_status status = RK_OK;
    struct rk_event_handle *start = trace->events[2 * trace->op_count];
    struct rk_trace_step made = {.step = step, .seconds = seconds};
    struct rk_trace_step *steps = realloc(trace->steps, (trace->step_count + 1) * sizeof *steps);
    if (steps == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for a traced step");
    trace->steps = steps;
    made.begin = calloc(trace->op_count + 1, sizeof(double));
    made.end = calloc(trace->op_count + 1, sizeof(double));
    if (made.begin == NULL || made.end == NULL) {
        status = rk_fail(error, RK_ERROR, "out of memory for a traced step");
        goto free_times;
    }
    for (size_t i = 0; i < trace->op_count && status == RK_OK; i++) {
        status = backend->event_elapsed(start, trace->events[2 * i], &made.begin[i], error);
        if (status == RK_OK)
            status = backend->event_elapsed(start, trace->events[2 * i + 1], &made.end[i], error);
    }
    if (status != RK_OK)
        goto free_times;
    trace->steps[trace->step_count++] = made;
    return RK_OK;
free_times:
    free(made.begin);
    free(made.end);
    return status;
}

static bool same_account(const struct rk_op_account *account, const struct rk_op *op) {
    return account->phase == op->phase && account->stream == op->stream &&
           rk_op_shape_equal(&account->shape, &op->shape);
}

/* The row of each op of a step; a step has few distinct rows, and neighbours often share one. */
static size_t assign_rows(const struct rk_trace *trace, struct rk_op_account *rows, size_t *row_of) {
    size_t count = 0;
    for (size_t i = 0; i < trace->op_count; i++) {
        size_t row = 0;
        while (row < count && !same_account(&rows[row], trace->ops[i]))
            row++;
        if (row == count)
            rows[count++] = (struct rk_op_account){
                .shape = trace->ops[i]->shape, .phase = trace->ops[i]->phase, .stream = trace->ops[i]->stream};
        row_of[i] = row;
        rows[row].count++;
    }
    return count;
}

static double duration(const struct rk_trace_step *step, size_t op) {
    double seconds = step->end[op] - step->begin[op];
    return seconds > 0 ? seconds : 0;
}

/* Executions and totals of one row over all traced steps. samples has room for all executions. */
static enum rk_status sum_row(const struct rk_trace *trace, const size_t *row_of, size_t row, double *samples,
                              double *totals, struct rk_op_account *account, struct rk_error *error) {
    size_t count = 0;
    double fastest = -1;
    for (size_t s = 0; s < trace->step_count; s++) {
        totals[s] = 0;
        for (size_t i = 0; i < trace->op_count; i++) {
            if (row_of[i] != row)
                continue;
            double seconds = duration(&trace->steps[s], i);
            totals[s] += seconds;
            samples[count++] = seconds;
            fastest = fastest < 0 || seconds < fastest ? seconds : fastest;
        }
    }
    enum rk_status status = rk_statistics_median(samples, count, &account->median_seconds, error);
    if (status == RK_OK)
        status = rk_statistics_median(totals, trace->step_count, &account->total_seconds, error);
    if (status == RK_OK && rk_op_executor(account->shape.kind) == RK_BY_TRANSPORT)
        account->wait_seconds = account->total_seconds - fastest * (double)account->count;
    if (account->wait_seconds < 0)
        account->wait_seconds = 0;
    return status;
}

enum rk_status rk_trace_accounts(const struct rk_trace *trace, struct rk_op_account **accounts, size_t *count,
                                 struct rk_error *error) {
    enum rk_status status = RK_OK;
    *accounts = NULL;
    *count = 0;
    if (trace->step_count == 0)
        return RK_OK;
    struct rk_op_account *rows = calloc(trace->op_count + 1, sizeof *rows);
    size_t *row_of = calloc(trace->op_count + 1, sizeof *row_of);
    double *samples = calloc(trace->op_count * trace->step_count + 1, sizeof *samples);
    double *totals = calloc(trace->step_count, sizeof *totals);
    if (rows == NULL || row_of == NULL || samples == NULL || totals == NULL) {
        status = rk_fail(error, RK_ERROR, "out of memory for the account of traced steps");
        goto free_arrays;
    }
    size_t made = assign_rows(trace, rows, row_of);
    for (size_t row = 0; row < made && status == RK_OK; row++)
        status = sum_row(trace, row_of, row, samples, totals, &rows[row], error);
    if (status == RK_OK) {
        *accounts = rows;
        *count = made;
        rows = NULL;
    }
free_arrays:
    free(rows);
    free(row_of);
    free(samples);
    free(totals);
    return status;
}

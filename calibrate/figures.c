#include "calibrate/figures.h"

#include "base/clock.h"
#include "base/statistics.h"
#include "db/cost_source.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIGURE_SAMPLES = 15, LAUNCHES = 256, STEP_INPUTS = 16, INPUT_BYTES = 4096 };
static const int64_t both_bytes = 16 << 20;

/* Takes one sample of a figure on this rank, in seconds. */
typedef enum rk_status (*figure_sample)(const struct rk_measurer *measurer, void *const *buffers, double *seconds,
                                        struct rk_error *error);

static enum rk_status launch_sample(const struct rk_measurer *measurer, void *const *buffers, double *seconds,
                                    struct rk_error *error) {
    struct rk_op_shape shape = {.kind = RK_OP_ZERO, .dim = {4}};
    struct rk_op_call call = {.shape = &shape, .operand = {buffers[0]}};
    double begin = rk_clock_seconds();
    enum rk_status status = RK_OK;
    for (int i = 0; status == RK_OK && i < LAUNCHES; i++)
        status = rk_kernel_run(measurer->backend, measurer->stream, &call, error);
    *seconds = (rk_clock_seconds() - begin) / LAUNCHES;
    return status == RK_OK
               ? measurer->backend->stream_synchronize(measurer->stream, measurer->job->deadline_seconds, error)
               : status;
}

static enum rk_status host_wait_sample(const struct rk_measurer *measurer, void *const *buffers, double *seconds,
                                       struct rk_error *error) {
    struct rk_op_shape shape = {.kind = RK_OP_ZERO, .dim = {4}};
    struct rk_op_call call = {.shape = &shape, .operand = {buffers[0]}};
    double begin = rk_clock_seconds();
    enum rk_status status = rk_kernel_run(measurer->backend, measurer->stream, &call, error);
    if (status == RK_OK)
        status = measurer->backend->stream_synchronize(measurer->stream, measurer->job->deadline_seconds, error);
    *seconds = rk_clock_seconds() - begin;
    return status;
}

/* Both directions at once, each on a stream of its own; a back end without overlap does one after the other. */
static enum rk_status copy_both_sample(const struct rk_measurer *measurer, void *const *buffers, double *seconds,
                                       struct rk_error *error) {
    const struct rk_backend *backend = measurer->backend;
    struct rk_stream *second = buffers[3];
    double begin = rk_clock_seconds();
    enum rk_status status = backend->copy(measurer->stream, buffers[2], buffers[0], both_bytes, RK_COPY_D2H, error);
    if (status == RK_OK)
        status = backend->copy(second, buffers[1], (char *)buffers[2] + both_bytes, both_bytes, RK_COPY_H2D, error);
    if (status == RK_OK)
        status = backend->stream_synchronize(measurer->stream, measurer->job->deadline_seconds, error);
    if (status == RK_OK)
        status = backend->stream_synchronize(second, measurer->job->deadline_seconds, error);
    *seconds = rk_clock_seconds() - begin;
    return status;
}

/* What a step costs outside its ops: inputs written piece by piece, and every stream waited for once. */
static enum rk_status step_overhead_sample(const struct rk_measurer *measurer, void *const *buffers, double *seconds,
                                           struct rk_error *error) {
    const struct rk_backend *backend = measurer->backend;
    double begin = rk_clock_seconds();
    enum rk_status status = RK_OK;
    for (int i = 0; status == RK_OK && i < STEP_INPUTS; i++)
        status = backend->copy(measurer->stream, (char *)buffers[1] + i * INPUT_BYTES,
                               (char *)buffers[2] + i * INPUT_BYTES, INPUT_BYTES, RK_COPY_H2D, error);
    for (int i = 0; status == RK_OK && i < RK_STREAM_COUNT; i++)
        status = backend->stream_synchronize(measurer->stream, measurer->job->deadline_seconds, error);
    *seconds = rk_clock_seconds() - begin;
    return status;
}

struct figure {
    const char *name;
    figure_sample sample;
    int64_t bytes; /* dim 0 of its case */
};

static const struct figure figures[] = {
    {RK_CASE_LAUNCH, launch_sample, 0},
    {RK_CASE_HOST_WAIT, host_wait_sample, 0},
    {RK_CASE_STEP_OVERHEAD, step_overhead_sample, 0},
    {RK_CASE_COPY_BOTH, copy_both_sample, both_bytes},
};

/* The maximum over ranks of each sample. */
static enum rk_status slowest(const struct rk_measurer *measurer, double samples[FIGURE_SAMPLES],
                              struct rk_error *error) {
    int64_t world = measurer->job->place.world;
    size_t bytes = sizeof(double) * FIGURE_SAMPLES;
    double *all = malloc(bytes * (size_t)world);
    if (!all)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory");
    enum rk_status status = rk_job_all_gather(measurer->job, samples, (int64_t)bytes, all, error);
    for (int64_t i = 0; status == RK_OK && i < world * FIGURE_SAMPLES; i++)
        samples[i % FIGURE_SAMPLES] = fmax(samples[i % FIGURE_SAMPLES], all[i]);
    free(all);
    return status;
}

static enum rk_status store(struct rk_db *db, int64_t campaign, const struct figure *figure, int64_t world,
                            const double samples[FIGURE_SAMPLES], struct rk_error *error) {
    struct rk_case_row case_row = {.group_size = 1, .concurrent_ranks = world, .row_share = 1, .dim = {figure->bytes}};
    snprintf(case_row.op, sizeof case_row.op, "%s", figure->name);
    snprintf(case_row.operands, sizeof case_row.operands, "none");
    snprintf(case_row.mode, sizeof case_row.mode, "sustained");
    struct rk_measurement_row row = rk_measurement_empty();
    double median;
    struct rk_interval interval;
    enum rk_status status = rk_statistics_median_interval(samples, FIGURE_SAMPLES, 0.95, &median, &interval, error);
    if (status == RK_OK)
        status = rk_case_store(db, &case_row, &row.case_id, error);
    if (status != RK_OK)
        return status;
    row.campaign_id = campaign;
    row.started_us = (int64_t)(1e6 * rk_clock_wall());
    row.median_seconds = median;
    row.low_seconds = interval.low;
    row.high_seconds = interval.high;
    row.minimum_seconds = row.maximum_seconds = samples[0];
    for (int i = 1; i < FIGURE_SAMPLES; i++) {
        row.minimum_seconds = fmin(row.minimum_seconds, samples[i]);
        row.maximum_seconds = fmax(row.maximum_seconds, samples[i]);
    }
    row.bytes = (double)(2 * figure->bytes);
    snprintf(row.stop_reason, sizeof row.stop_reason, "time cap");
    return rk_measurement_store(db, &row, samples, NULL, FIGURE_SAMPLES, NULL, error);
}

static enum rk_status measure(const struct rk_measurer *measurer, struct rk_db *db, int64_t campaign,
                              const struct figure *figure, void *const *buffers, struct rk_error *error) {
    double samples[FIGURE_SAMPLES];
    enum rk_status status = figure->sample(measurer, buffers, &samples[0], error); /* warm */
    for (int i = 0; status == RK_OK && i < FIGURE_SAMPLES; i++) {
        status = rk_job_barrier(measurer->job, error);
        if (status == RK_OK)
            status = figure->sample(measurer, buffers, &samples[i], error);
    }
    if (status == RK_OK)
        status = slowest(measurer, samples, error);
    if (status == RK_OK && db)
        status = store(db, campaign, figure, measurer->job->place.world, samples, error);
    return status;
}

enum rk_status rk_figures_measure(const struct rk_measurer *measurer, struct rk_db *db, int64_t campaign,
                                  struct rk_error *error) {
    const struct rk_backend *backend = measurer->backend;
    void *device[2] = {0}, *host = NULL;
    struct rk_stream *second = NULL;
    enum rk_status status = backend->memory_allocate(measurer->device, both_bytes, &device[0], error);
    if (status == RK_OK)
        status = backend->memory_allocate(measurer->device, both_bytes, &device[1], error);
    if (status == RK_OK)
        status = backend->host_allocate(measurer->device, 2 * both_bytes, &host, error);
    if (status == RK_OK)
        status = backend->stream_create(measurer->device, false, &second, error);
    if (status == RK_OK)
        status = backend->fill(measurer->stream, device[0], 1, both_bytes, error);
    void *buffers[] = {device[0], device[1], host, second};
    for (size_t i = 0; status == RK_OK && i < sizeof figures / sizeof *figures; i++)
        status = measure(measurer, db, campaign, &figures[i], buffers, error);
    if (second)
        backend->stream_destroy(second);
    if (host)
        backend->host_free(measurer->device, host);
    for (int i = 0; i < 2; i++)
        if (device[i])
            backend->memory_free(measurer->device, device[i]);
    return status;
}

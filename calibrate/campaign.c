#include "calibrate/campaign.h"

#include "base/clock.h"
#include "base/statistics.h"
#include "calibrate/figures.h"
#include "calibrate/holdout.h"
#include "calibrate/provenance.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mode_row {
    const char *name;
    double seconds_per_case, budget;
    int processes;
    bool isolated, alone;
};

static const struct mode_row mode_rows[RK_CALIBRATION_MODE_COUNT] = {
#define ROW(name, text, seconds, budget, processes, isolated, alone)                                                   \
    {text, seconds, budget, processes, isolated, alone},
    RK_CALIBRATION_MODE_TABLE(ROW)
#undef ROW
};

static const double target_relative = 0.01, batch_seconds = 1e-3;
/* Allocating, filling and checking a case's operands, beside its samples. */
static const double overhead_per_case = 0.02;
/* Between two looks at the devices' clocks, power and temperature. */
static const double telemetry_seconds = 10;

const char *rk_calibration_mode_name(enum rk_calibration_mode mode) {
    return mode_rows[mode].name;
}

int rk_calibration_mode_processes(enum rk_calibration_mode mode) {
    return mode_rows[mode].processes;
}

bool rk_calibration_mode_alone(enum rk_calibration_mode mode) {
    return mode_rows[mode].alone;
}

/* What a running campaign holds on one rank. */
struct campaign {
    struct rk_job *job;
    const struct rk_campaign_request *request;
    struct rk_db *db; /* rank 0 only */
    int64_t id;
    struct rk_case_list list;
    bool *done; /* one for each case; equal on all ranks */
    struct rk_measurer measurer;
    size_t measured, skipped, wrong, planned;
    double begin, next_telemetry;
};

static int64_t now_us(void) {
    return (int64_t)(1e6 * rk_clock_wall());
}

static bool is_first(const struct campaign *campaign) {
    return campaign->job->place.rank == 0;
}

/* ---- the data base, on rank 0 ---- */

static enum rk_status open_campaign(struct campaign *campaign, struct rk_error *error) {
    const struct rk_campaign_request *request = campaign->request;
    struct rk_db_options options = {.access = RK_DB_WRITE, .log = request->log};
    enum rk_status status = rk_db_open(request->database, &options, &campaign->db, error);
    if (status != RK_OK)
        return status;
    if (request->resume || request->process > 0) {
        status = rk_campaign_unfinished(campaign->db, request->identity->fingerprint,
                                        rk_calibration_mode_name(request->mode), request->backend->name, &campaign->id,
                                        error);
        if (status != RK_OK)
            return status;
        if (campaign->id != 0)
            return rk_campaign_resume(campaign->db, campaign->id, error);
        if (request->process > 0)
            return rk_fail(error, RK_ERROR, "%s: the campaign whose anchors are to be repeated is not there",
                           request->database);
        rk_log_write(request->log, RK_LOG_WARNING, "no unfinished calibration to resume; a new one begins");
    }
    struct rk_campaign_row row = {.seed = (int64_t)request->cases.seed,
                                  .world_size = campaign->job->place.world,
                                  .forced_unfit = request->forced_unfit,
                                  .planned_cases = (int64_t)campaign->list.count,
                                  .started_us = now_us()};
    snprintf(row.tool, sizeof row.tool, "reckon");
    snprintf(row.mode, sizeof row.mode, "%s", rk_calibration_mode_name(request->mode));
    snprintf(row.backend, sizeof row.backend, "%s", request->backend->name);
    snprintf(row.git_revision, sizeof row.git_revision, "%s", request->git_revision);
    snprintf(row.command, sizeof row.command, "%s", request->command);
    snprintf(row.unfit_reason, sizeof row.unfit_reason, "%s", request->unfit_reason ? request->unfit_reason : "");
    return rk_campaign_begin(campaign->db, &request->identity->machine, &row, &campaign->id, error);
}

static int compare_ids(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return a < b ? -1 : a > b;
}

/* Marks the cases that a former attempt stored. */
static enum rk_status mark_done(struct campaign *campaign, struct rk_error *error) {
    int64_t *ids = NULL;
    size_t count = 0;
    enum rk_status status =
        rk_campaign_done_cases(campaign->db, campaign->id, campaign->request->process, &ids, &count, error);
    for (size_t i = 0; status == RK_OK && count > 0 && i < campaign->list.count; i++) {
        struct rk_case_row row;
        int64_t id = 0;
        rk_case_from_shape(&campaign->list.cases[i].shape, &campaign->list.cases[i].place, "normal", "sustained", &row);
        status = rk_case_store(campaign->db, &row, &id, error);
        campaign->done[i] = bsearch(&id, ids, count, sizeof *ids, compare_ids) != NULL;
    }
    free(ids);
    return status;
}

static enum rk_status store_result(struct campaign *campaign, const struct rk_calibration_case *item,
                                   enum rk_measure_mode mode, const struct rk_measurement_result *result,
                                   int64_t started_us, struct rk_error *error) {
    struct rk_case_row case_row;
    rk_case_from_shape(&item->shape, &item->place, "normal", mode == RK_MEASURE_SUSTAINED ? "sustained" : "isolated",
                       &case_row);
    struct rk_measurement_row row = rk_measurement_empty();
    enum rk_status status = rk_case_store(campaign->db, &case_row, &row.case_id, error);
    if (status != RK_OK)
        return status;
    row.campaign_id = campaign->id;
    row.process = campaign->request->process;
    row.started_us = started_us;
    row.batch = result->calls_per_sample;
    row.median_seconds = result->median;
    row.low_seconds = result->low;
    row.high_seconds = result->high;
    row.flops = rk_op_flops(&item->shape) * item->place.row_share;
    row.bytes = rk_op_bytes(&item->shape) * item->place.row_share;
    row.remote_bytes = rk_op_remote_bytes(&item->shape);
    row.minimum_seconds = row.maximum_seconds = result->samples[0];
    for (int64_t i = 1; i < result->sample_count; i++) {
        row.minimum_seconds = fmin(row.minimum_seconds, result->samples[i]);
        row.maximum_seconds = fmax(row.maximum_seconds, result->samples[i]);
    }
    snprintf(row.stop_reason, sizeof row.stop_reason, "%s", result->stop == RK_STOP_INTERVAL ? "interval" : "time cap");
    if (!result->verified) {
        snprintf(row.status, sizeof row.status, "wrong result");
        snprintf(row.message, sizeof row.message, "%s left an output unwritten or not a number",
                 rk_op_name(item->shape.kind));
    }
    return rk_measurement_store(campaign->db, &row, result->samples, NULL, (size_t)result->sample_count, NULL, error);
}

/* ---- measuring ---- */

static enum rk_status share_done(struct campaign *campaign, struct rk_error *error) {
    size_t bytes = campaign->list.count * sizeof *campaign->done;
    bool *all = malloc(bytes * (size_t)campaign->job->place.world + 1);
    if (!all)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory");
    enum rk_status status = rk_job_all_gather(campaign->job, campaign->done, (int64_t)bytes, all, error);
    if (status == RK_OK)
        memcpy(campaign->done, all, bytes);
    free(all);
    return status;
}

static bool wanted(const struct campaign *campaign, size_t index) {
    return !campaign->done[index] && (campaign->request->process == 0 || campaign->list.cases[index].anchor);
}

static enum rk_status measure_one(struct campaign *campaign, size_t index, enum rk_measure_mode mode, bool *interrupted,
                                  struct rk_error *error) {
    const struct rk_calibration_case *item = &campaign->list.cases[index];
    int64_t started = now_us();
    struct rk_measurement_result result;
    enum rk_status status =
        rk_measure_case(&campaign->measurer, item, mode, campaign->request->interrupted, &result, interrupted, error);
    if (status != RK_OK) {
        char what[160];
        rk_fail_context(error, "calibrating %s", rk_op_shape_text(&item->shape, what, sizeof what));
        return status;
    }
    if (*interrupted)
        return RK_OK;
    campaign->wrong += !result.verified;
    return is_first(campaign) ? store_result(campaign, item, mode, &result, started, error) : RK_OK;
}

/* Between two cases, when nothing is timed. */
static enum rk_status sample_devices(struct campaign *campaign, struct rk_error *error) {
    if (!is_first(campaign) || rk_clock_seconds() < campaign->next_telemetry)
        return RK_OK;
    campaign->next_telemetry = rk_clock_seconds() + telemetry_seconds;
    return rk_provenance_sample(campaign->job, campaign->db, campaign->id, error);
}

/* Cases [first, end) with one transport (or none). */
static enum rk_status measure_range(struct campaign *campaign, size_t first, size_t end, bool *interrupted,
                                    struct rk_error *error) {
    bool isolated = mode_rows[campaign->request->mode].isolated;
    enum rk_status status = RK_OK;
    for (size_t i = first; status == RK_OK && !*interrupted && i < end; i++) {
        if (!wanted(campaign, i)) {
            campaign->skipped++;
            continue;
        }
        status = measure_one(campaign, i, RK_MEASURE_SUSTAINED, interrupted, error);
        if (status == RK_OK && isolated && !*interrupted)
            status = measure_one(campaign, i, RK_MEASURE_ISOLATED, interrupted, error);
        if (status == RK_OK && !*interrupted)
            campaign->measured++;
        if (status == RK_OK)
            status = sample_devices(campaign, error);
        if (is_first(campaign))
            rk_log_progress(campaign->request->log, "calibrating", (double)campaign->measured,
                            (double)campaign->planned, rk_clock_seconds() - campaign->begin);
    }
    return status;
}

static enum rk_status measure_layout(struct campaign *campaign, size_t layout_index, size_t first, size_t end,
                                     bool *interrupted, struct rk_error *error) {
    const struct rk_campaign_request *request = campaign->request;
    const struct rk_calibration_layout *layout = &campaign->list.layouts[layout_index];
    struct rk_rank_place place = rk_candidate_place(&layout->candidate, campaign->measurer.rank);
    struct rk_program *program = NULL;
    enum rk_status status = rk_program_lower(&request->cases.architectures[layout->architecture], &layout->candidate,
                                             place.stage, &program, error);
    if (status != RK_OK)
        return status;
    status = request->transport->open(campaign->job, request->backend, campaign->measurer.device, program,
                                      campaign->job->deadline_seconds, &campaign->measurer.transport, error);
    if (status == RK_OK) {
        campaign->measurer.candidate = &layout->candidate;
        status = measure_range(campaign, first, end, interrupted, error);
        request->transport->close(campaign->measurer.transport);
        campaign->measurer.transport = NULL;
        campaign->measurer.candidate = NULL;
    }
    rk_program_free(program);
    return status;
}

static enum rk_status measure_all(struct campaign *campaign, bool *interrupted, struct rk_error *error) {
    const struct rk_case_list *list = &campaign->list;
    enum rk_status status = RK_OK;
    for (size_t first = 0, end = 0; status == RK_OK && !*interrupted && first < list->count; first = end) {
        int32_t layout = list->cases[first].layout;
        bool any = false;
        for (end = first; end < list->count && list->cases[end].layout == layout; end++)
            any = any || wanted(campaign, end);
        if (layout < 0 || !any)
            status = measure_range(campaign, first, end, interrupted, error);
        else
            status = measure_layout(campaign, (size_t)layout, first, end, interrupted, error);
    }
    return status;
}

/* ---- the whole ---- */

static enum rk_status open_measurer(struct campaign *campaign, struct rk_error *error) {
    const struct rk_campaign_request *request = campaign->request;
    const struct mode_row *mode = &mode_rows[request->mode];
    struct rk_measurer *measurer = &campaign->measurer;
    *measurer = (struct rk_measurer){.job = campaign->job,
                                     .rank = campaign->job->place.rank,
                                     .backend = request->backend,
                                     .transport_table = request->transport,
                                     .target_relative = target_relative,
                                     .batch_seconds = batch_seconds,
                                     .distribution = RK_DISTRIBUTION_NORMAL,
                                     .seed = request->cases.seed};
    for (size_t i = 0; i < campaign->list.count; i++)
        campaign->planned += wanted(campaign, i);
    measurer->seconds_per_case = mode->seconds_per_case;
    if (mode->budget > 0 && campaign->planned > 0)
        measurer->seconds_per_case = fmin(mode->seconds_per_case, mode->budget / (double)campaign->planned);
    int ordinal = request->backend->kind == RK_BACKEND_CPU ? 0 : (int)campaign->job->place.local_rank;
    enum rk_status status = request->backend->device_open(ordinal, request->spill_folder, &measurer->device, error);
    struct rk_device_facts facts;
    if (status == RK_OK)
        status = request->backend->device_facts(measurer->device, &facts, error);
    if (status != RK_OK)
        return status;
    measurer->l2_bytes = facts.l2_bytes;
    return request->backend->stream_create(measurer->device, false, &measurer->stream, error);
}

static void close_campaign(struct campaign *campaign) {
    const struct rk_backend *backend = campaign->request->backend;
    if (campaign->measurer.stream)
        backend->stream_destroy(campaign->measurer.stream);
    if (campaign->measurer.device)
        backend->device_close(campaign->measurer.device);
    rk_db_close(campaign->db);
    rk_case_list_free(&campaign->list);
    free(campaign->done);
}

static void announce(const struct campaign *campaign) {
    double seconds = (double)campaign->planned * (campaign->measurer.seconds_per_case + overhead_per_case);
    rk_log_write(campaign->request->log, RK_LOG_INFO,
                 "%s calibration of %lld ranks: %zu cases, about %.0f s on a quiet machine; Ctrl-C keeps what is done",
                 rk_calibration_mode_name(campaign->request->mode), (long long)campaign->job->place.world,
                 campaign->planned, ceil(seconds));
}

static enum rk_status begin(struct campaign *campaign, struct rk_error *error) {
    enum rk_status status = rk_case_list_make(&campaign->request->cases, &campaign->list, error);
    if (status != RK_OK)
        return status;
    campaign->done = calloc(campaign->list.count, sizeof *campaign->done);
    if (!campaign->done)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory");
    if (is_first(campaign)) {
        status = open_campaign(campaign, error);
        if (status == RK_OK)
            status = mark_done(campaign, error);
        if (status != RK_OK)
            return status;
    }
    status = share_done(campaign, error);
    if (status == RK_OK)
        status = rk_provenance_ranks(campaign->job, campaign->db, campaign->id, campaign->request->process, error);
    return status == RK_OK ? open_measurer(campaign, error) : status;
}

static enum rk_status finish(struct campaign *campaign, bool interrupted, struct rk_campaign_summary *summary,
                             struct rk_error *error) {
    *summary = (struct rk_campaign_summary){.campaign = campaign->id,
                                            .cases = campaign->list.count,
                                            .measured = campaign->measured,
                                            .skipped = campaign->skipped,
                                            .wrong = campaign->wrong,
                                            .seconds = rk_clock_seconds() - campaign->begin};
    if (!is_first(campaign))
        return RK_OK;
    bool complete = !interrupted && campaign->request->last_process;
    enum rk_status status = RK_OK;
    if (complete)
        status = rk_holdout_store(campaign->db, campaign->id, campaign->request->cases.seed, summary, error);
    if (status != RK_OK)
        return status;
    return rk_campaign_end(campaign->db, campaign->id, complete ? RK_CAMPAIGN_FINISHED : RK_CAMPAIGN_INTERRUPTED,
                           now_us(), error);
}

enum rk_status rk_campaign_run(struct rk_job *job, const struct rk_campaign_request *request,
                               struct rk_campaign_summary *summary, struct rk_error *error) {
    struct campaign campaign = {.job = job, .request = request, .begin = rk_clock_seconds()};
    bool interrupted = false;
    enum rk_status status = begin(&campaign, error);
    if (status == RK_OK) {
        if (is_first(&campaign))
            announce(&campaign);
        status = measure_all(&campaign, &interrupted, error);
    }
    if (status == RK_OK && !interrupted && request->process == 0)
        status = rk_figures_measure(&campaign.measurer, campaign.db, campaign.id, error);
    if (status == RK_OK)
        status = finish(&campaign, interrupted, summary, error);
    close_campaign(&campaign);
    if (status == RK_OK && interrupted)
        return rk_fail(error, RK_INTERRUPTED,
                       "interrupted after %zu of %zu cases; what is done is kept: continue with --resume",
                       campaign.measured, campaign.planned);
    return status;
}

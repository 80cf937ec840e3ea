#include "calibrate/provenance.h"

#include "base/clock.h"
#include "base/host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double known(int64_t value, double unit) {
    return value < 0 ? NAN : unit * (double)value;
}

bool rk_provenance_telemetry(const struct rk_nvml_report *report, const struct rk_job *job, int64_t rank,
                             struct rk_telemetry_row *row) {
    for (int64_t i = 0; i < report->gpu_count; i++) {
        const struct rk_nvml_gpu *gpu = &report->gpus[i];
        if (gpu->uuid[0] == '\0' || strcmp(gpu->uuid, job->peers[rank].device) != 0)
            continue;
        *row = (struct rk_telemetry_row){.rank = rank,
                                         .clock_hz = known(gpu->clock_mhz, 1e6),
                                         .memory_clock_hz = NAN,
                                         .power_watts = known(gpu->power_milliwatts, 1e-3),
                                         .temperature_celsius = known(gpu->temperature_celsius, 1)};
        if (gpu->throttle_reasons >= 0)
            snprintf(row->throttle_reasons, sizeof row->throttle_reasons, "0x%llx",
                     (unsigned long long)gpu->throttle_reasons);
        return true;
    }
    return false;
}

/* Nothing is asked of the library when no rank has a GPU. */
static enum rk_status read_report(const struct rk_job *job, struct rk_nvml_report **report, struct rk_error *error) {
    struct rk_nvml_report *made = calloc(1, sizeof *made);
    if (made == NULL)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory");
    if (job->peers[0].device[0] != '\0')
        rk_nvml_read(NULL, made);
    *report = made;
    return RK_OK;
}

struct processors {
    char list[128];
};

static enum rk_status store_ranks(const struct rk_job *job, struct rk_db *db, int64_t campaign, int64_t process,
                                  const struct processors *all, struct rk_error *error) {
    struct rk_campaign_row of;
    struct rk_nvml_report *report = NULL;
    int64_t stored = 0;
    enum rk_status status = rk_campaign_count_ranks(db, campaign, process, &stored, error);
    if (status != RK_OK || stored > 0)
        return status;
    status = rk_campaign_get(db, campaign, &of, error);
    if (status == RK_OK)
        status = read_report(job, &report, error);
    for (int64_t rank = 0; rank < job->place.world && status == RK_OK; rank++) {
        const char *device = job->peers[rank].device;
        struct rk_telemetry_row now = {.clock_hz = NAN, .power_watts = NAN};
        rk_provenance_telemetry(report, job, rank, &now);
        struct rk_campaign_rank_row row = {.campaign_id = campaign,
                                           .process = process,
                                           .rank = rank,
                                           .host_id = of.host_id,
                                           .numa_node = -1,
                                           .clock_hz = now.clock_hz,
                                           .power_watts = now.power_watts};
        snprintf(row.device, sizeof row.device, "%s", device[0] != '\0' ? device : "cpu");
        snprintf(row.cpu_list, sizeof row.cpu_list, "%s", all[rank].list);
        status = rk_campaign_add_rank(db, &row, error);
    }
    free(report);
    return status;
}

enum rk_status rk_provenance_ranks(const struct rk_job *job, struct rk_db *db, int64_t campaign, int64_t process,
                                   struct rk_error *error) {
    struct processors mine = {""};
    struct processors *all = calloc((size_t)job->place.world, sizeof *all);
    if (all == NULL)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory");
    rk_host_processor_list(mine.list, sizeof mine.list);
    enum rk_status status = rk_job_all_gather(job, &mine, sizeof mine, all, error);
    if (status == RK_OK && job->place.rank == 0)
        status = store_ranks(job, db, campaign, process, all, error);
    free(all);
    return status;
}

enum rk_status rk_provenance_sample(const struct rk_job *job, struct rk_db *db, int64_t campaign,
                                    struct rk_error *error) {
    struct rk_nvml_report *report = NULL;
    if (job->peers[0].device[0] == '\0')
        return RK_OK;
    enum rk_status status = read_report(job, &report, error);
    for (int64_t rank = 0; rank < job->place.world && status == RK_OK; rank++) {
        struct rk_telemetry_row row;
        if (!rk_provenance_telemetry(report, job, rank, &row))
            continue;
        row.campaign_id = campaign;
        row.time_us = (int64_t)(1e6 * rk_clock_wall());
        status = rk_telemetry_store(db, &row, error);
    }
    free(report);
    return status;
}

/* Where the ranks of a campaign ran and what their devices did meanwhile, as rows of the data base. */
#ifndef RK_CALIBRATE_PROVENANCE_H
#define RK_CALIBRATE_PROVENANCE_H

#include "calibrate/nvml.h"
#include "db/calibration.h"
#include "executor/launch.h"

/* Collective. Stores on rank 0 the device, processors, clock and power of every rank of this set of processes. Of a set
 * that is taken up again the first rows stay. db: NULL except on rank 0. */
enum rk_status rk_provenance_ranks(const struct rk_job *job, struct rk_db *db, int64_t campaign, int64_t process,
                                   struct rk_error *error);

/* On rank 0: stores what the management library says now of the GPUs of all ranks of its host; nothing on CPUs. */
enum rk_status rk_provenance_sample(const struct rk_job *job, struct rk_db *db, int64_t campaign,
                                    struct rk_error *error);

/* What the report says of a rank's GPU, which it finds by its UUID. False when it is not there. Campaign and time are
 * not filled in. */
bool rk_provenance_telemetry(const struct rk_nvml_report *report, const struct rk_job *job, int64_t rank,
                             struct rk_telemetry_row *row);

#endif

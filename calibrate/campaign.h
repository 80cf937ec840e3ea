/* A campaign: all cases measured on all ranks, stored as they are done, resumable, with the error of interpolation
 * stated. */
#ifndef RK_CALIBRATE_CAMPAIGN_H
#define RK_CALIBRATE_CAMPAIGN_H

#include "base/log.h"
#include "calibrate/cases.h"
#include "calibrate/identity.h"
#include "calibrate/measure.h"
#include "db/calibration.h"

#include <signal.h>

/* X(name, text, seconds per case, budget in seconds for all cases (0: none), fresh processes, isolated too, one rank
 * alone too) */
#define RK_CALIBRATION_MODE_TABLE(X)                                                                                   \
    X(QUICK, "quick", 0.10, 80, 1, false, false)                                                                       \
    X(DEFAULT, "default", 0.25, 700, 3, false, true)                                                                   \
    X(FULL, "full", 2.0, 0, 3, true, true)

enum rk_calibration_mode {
#define RK_CALIBRATION_MODE_KIND(name, text, seconds, budget, processes, isolated, alone) RK_CALIBRATION_##name,
    RK_CALIBRATION_MODE_TABLE(RK_CALIBRATION_MODE_KIND)
#undef RK_CALIBRATION_MODE_KIND
        RK_CALIBRATION_MODE_COUNT
};
const char *rk_calibration_mode_name(enum rk_calibration_mode mode);
/* Fresh sets of processes that the mode measures anchors in. */
int rk_calibration_mode_processes(enum rk_calibration_mode mode);
/* Whether kernels are also measured with one rank busy. */
bool rk_calibration_mode_alone(enum rk_calibration_mode mode);

struct rk_campaign_request {
    enum rk_calibration_mode mode;
    int process;       /* 0 measures everything, later ones the anchors */
    bool last_process; /* ends the campaign */
    bool resume;       /* take the newest unfinished campaign up again */
    bool forced_unfit;
    const char *unfit_reason;
    const char *command; /* as typed */
    const char *git_revision;
    const char *database;
    const char *spill_folder;
    const struct rk_backend *backend;
    const struct rk_transport_table *transport;
    const struct rk_identity *identity;
    struct rk_case_request cases;
    const struct rk_log *log;
    const volatile sig_atomic_t *interrupted;
};

struct rk_campaign_summary {
    int64_t campaign;
    size_t cases, measured, skipped, wrong; /* skipped: already done before a resume */
    double seconds;
    size_t held_out; /* shapes that the fit did not see; their error of prediction: */
    double held_out_median, held_out_p90;
};

/* Collective over the job's ranks; only rank 0 opens the data base. An interrupt keeps what is done and returns
 * RK_INTERRUPTED. *summary is complete on rank 0. */
enum rk_status rk_campaign_run(struct rk_job *job, const struct rk_campaign_request *request,
                               struct rk_campaign_summary *summary, struct rk_error *error);

#endif

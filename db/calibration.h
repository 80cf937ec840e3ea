/* Calibrations as rows: campaigns, cases, measurements with their raw samples, telemetry, fits; and finding those that
 * hold for a machine.
 *
 * One campaign is one `reckon calibrate`. Writing: begin, then case + measure for each measurement (group them with
 * rk_db_begin / rk_db_commit for speed), then end. What is committed stays, so an interrupted campaign can be resumed.
 * Times are microseconds since 1970 (UTC), given by the caller. Unknown reals are NaN, unknown integers -1. */
#ifndef RK_DB_CALIBRATION_H
#define RK_DB_CALIBRATION_H

#include "db/machine.h"
#include "model/cost.h"
#include "model/ops.h"

enum rk_campaign_state { RK_CAMPAIGN_RUNNING, RK_CAMPAIGN_FINISHED, RK_CAMPAIGN_INTERRUPTED };
const char *rk_campaign_state_name(enum rk_campaign_state state);

enum { RK_UUID_SIZE = 40 };

struct rk_campaign_row {
    int64_t id;
    char uuid[RK_UUID_SIZE]; /* the same in every database it is imported into; empty at begin: one is made */
    bool imported;           /* figures of another tool */
    char tool[64];           /* "reckon" or the tool that measured, with its version */
    enum rk_campaign_state state;
    char mode[16];    /* "quick", "default", "full" */
    char backend[16]; /* "cpu", "cuda" */
    char machine_key[RK_MACHINE_KEY_SIZE], fingerprint[RK_MACHINE_KEY_SIZE];
    int64_t host_id, software_id, topology_id;
    char git_revision[64];
    char command[1024];
    int64_t seed;
    int64_t world_size;
    bool forced_unfit; /* measured although the machine was unfit */
    char unfit_reason[512];
    int64_t planned_cases;        /* -1 unknown */
    int64_t started_us, ended_us; /* ended_us -1 while running */
    int64_t measurements;         /* read only: rows with status ok */
};

/* Stores the machine and a running campaign. row->machine_key, fingerprint, ids, state and ended_us are set here; an
 * empty uuid is filled. *id is its row. */
enum rk_status rk_campaign_begin(struct rk_db *db, const struct rk_machine_identity *machine,
                                 const struct rk_campaign_row *row, int64_t *id, struct rk_error *error);
/* Ends it: RK_CAMPAIGN_FINISHED (fixed from then on) or RK_CAMPAIGN_INTERRUPTED (can be resumed). */
enum rk_status rk_campaign_end(struct rk_db *db, int64_t id, enum rk_campaign_state state, int64_t ended_us,
                               struct rk_error *error);
/* Takes an unfinished campaign up again. RK_USAGE when it is finished or unknown. */
enum rk_status rk_campaign_resume(struct rk_db *db, int64_t id, struct rk_error *error);
enum rk_status rk_campaign_get(struct rk_db *db, int64_t id, struct rk_campaign_row *row, struct rk_error *error);
/* All campaigns, newest first. *rows is the caller's (free). */
enum rk_status rk_campaign_list(struct rk_db *db, struct rk_campaign_row **rows, size_t *count, struct rk_error *error);
/* The newest unfinished campaign of this fingerprint, mode and back end; *id 0 when there is none. */
enum rk_status rk_campaign_unfinished(struct rk_db *db, const char *fingerprint, const char *mode, const char *backend,
                                      int64_t *id, struct rk_error *error);

/* Where a rank of a campaign was pinned and in what state its device was. */
struct rk_campaign_rank_row {
    int64_t campaign_id;
    int64_t process; /* which fresh set of processes: 0, 1, 2 */
    int64_t rank;
    int64_t host_id;
    char device[64];    /* "cpu" or the GPU's UUID */
    char cpu_list[128]; /* "0-7" */
    int64_t numa_node;
    double clock_hz, power_watts;
};
/* How many ranks of that set of processes have a row. */
enum rk_status rk_campaign_count_ranks(struct rk_db *db, int64_t campaign_id, int64_t process, int64_t *count,
                                       struct rk_error *error);
enum rk_status rk_campaign_add_rank(struct rk_db *db, const struct rk_campaign_rank_row *row, struct rk_error *error);

/* What was timed: all that the time depends on. Rows are shared by campaigns. */
struct rk_case_row {
    int64_t id;
    char op[64];   /* rk_op_name, or a figure of the machine: see cost_source.h */
    char type[16]; /* rk_data_type_name, or empty */
    int64_t flags; /* enum rk_op_flag */
    int64_t dim[RK_OP_DIMS];
    char group_kind[32]; /* rk_group_name, or empty */
    int64_t group_size;  /* 1 for local ops */
    bool crosses_hosts;
    int64_t concurrent_ranks; /* ranks of a host that are busy at the same time */
    double row_share;         /* valid rows over those under balance; 1 */
    char operands[16];        /* "normal", "uniform", "sign", "zeros", "constant" */
    char mode[16];            /* "isolated", "sustained" */
    char partner[128];        /* what else runs meanwhile (overlap pairs), or empty */
};
/* The case of an op's shape at a place. */
void rk_case_from_shape(const struct rk_op_shape *shape, const struct rk_cost_place *place, const char *operands,
                        const char *mode, struct rk_case_row *row);
/* And back: false when the case is no op of the table. */
bool rk_case_to_shape(const struct rk_case_row *row, struct rk_op_shape *shape, struct rk_cost_place *place);
/* Finds the case or stores it; *id is its row. */
enum rk_status rk_case_store(struct rk_db *db, const struct rk_case_row *row, int64_t *id, struct rk_error *error);

struct rk_measurement_row {
    int64_t id;
    int64_t campaign_id, case_id;
    int64_t process;      /* which fresh set of processes */
    char status[16];      /* "ok", "wrong result", "failed" */
    char message[512];    /* of a wrong result or a failure */
    char stop_reason[16]; /* "interval", "time cap", "imported", "failed" */
    int64_t started_us;
    double median_seconds, low_seconds,
        high_seconds; /* one execution, over all samples, marked ones too; 95 % interval */
    double minimum_seconds, maximum_seconds;
    int64_t batch;                     /* executions in one sample */
    double flops, bytes, remote_bytes; /* of one execution */
    double largest_error;              /* relative, of the verification */
    int64_t throttled;                 /* samples marked */
    double clock_hz, power_watts, temperature_celsius;
    double library_estimate_seconds;
    char algorithm[128];
    int64_t workspace_bytes;
    int64_t sample_count; /* read only */
};
/* All unknown, status "ok", batch 1: a start for filling in. */
struct rk_measurement_row rk_measurement_empty(void);

/* Stores a measurement and its raw samples: seconds of one execution, in the order taken; throttled may be NULL, else
 * one flag for each sample. sample_count 0 only without samples (failed, imported). *id is the new row (id may be
 * NULL). */
enum rk_status rk_measurement_store(struct rk_db *db, const struct rk_measurement_row *row, const double *samples,
                                    const bool *throttled, size_t sample_count, int64_t *id, struct rk_error *error);
/* The raw samples of a measurement; both arrays are the caller's (free). *count 0 and NULL when there are none. */
enum rk_status rk_sample_get(struct rk_db *db, int64_t measurement_id, double **samples, bool **throttled,
                             size_t *count, struct rk_error *error);

/* Resume: the cases of a campaign that need no further measurement in that process (any status but failed). *ids
 * sorted, the caller's (free). */
enum rk_status rk_campaign_done_cases(struct rk_db *db, int64_t campaign_id, int64_t process, int64_t **ids,
                                      size_t *count, struct rk_error *error);

struct rk_telemetry_row {
    int64_t campaign_id, rank, time_us;
    double clock_hz, memory_clock_hz, power_watts, temperature_celsius;
    char throttle_reasons[128];
};
enum rk_status rk_telemetry_store(struct rk_db *db, const struct rk_telemetry_row *row, struct rk_error *error);

struct rk_fit_row {
    int64_t id, campaign_id;
    char op[64], type[16], group_kind[32];
    int64_t group_size;
    char form[64];
    char parameters[4096];                                                         /* JSON */
    int64_t train_count, held_out_count;                                           /* set from the inputs when stored */
    double leave_one_out_median, leave_one_out_p90, held_out_median, held_out_p90; /* relative errors */
};
struct rk_fit_input {
    int64_t measurement_id;
    bool held_out;
};
enum rk_status rk_fit_store(struct rk_db *db, const struct rk_fit_row *row, const struct rk_fit_input *inputs,
                            size_t input_count, int64_t *id, struct rk_error *error);
/* In the order stored; the caller's (free). */
enum rk_status rk_fit_list(struct rk_db *db, int64_t campaign_id, struct rk_fit_row **rows, size_t *count,
                           struct rk_error *error);

/* A measurement with its case. */
struct rk_measured_case {
    struct rk_case_row bench_case;
    struct rk_measurement_row measurement;
};
/* Every measurement of one campaign, in the order taken; the caller's (free). */
enum rk_status rk_measurement_list(struct rk_db *db, int64_t campaign_id, struct rk_measured_case **rows, size_t *count,
                                   struct rk_error *error);

/* How well stored figures fit the machine that asks, best first. */
enum rk_match_level {
    RK_MATCH_SAME,           /* same fingerprint */
    RK_MATCH_OTHER_SOFTWARE, /* same hardware and topology, other driver or library versions: warn and widen */
    RK_MATCH_TRANSFERRED     /* other hardware; only when asked for */
};
struct rk_match_request {
    char machine_key[RK_MACHINE_KEY_SIZE], fingerprint[RK_MACHINE_KEY_SIZE];
    const char *backend;       /* "cpu", "cuda" */
    bool allow_other_hardware; /* take the newest finished campaign of any machine as transferred */
    int64_t campaign_id;       /* or exactly this campaign, whatever machine (with an empty
                                  fingerprint as if its own); 0: by the ladder */
};
struct rk_matched_row {
    struct rk_case_row bench_case;
    int64_t measurement_id, campaign_id, process;
    double median_seconds, low_seconds, high_seconds;
    double flops, bytes;
};
struct rk_match {
    enum rk_match_level level;
    int64_t campaign_id;         /* the newest that took part */
    int64_t campaigns;           /* how many took part */
    bool forced_unfit;           /* nothing better than figures of an unfit machine */
    char warning[768];           /* for the user; empty when level is same and the machine was fit */
    struct rk_matched_row *rows; /* status ok, measured by Reckon; owned (rk_match_free) */
    size_t count;
};
/* Looks up the measurements that hold for a machine. On one level all unforced campaigns count; where several measured
 * the same case the newest one's rows stand. RK_UNCALIBRATED, with what was found and what to run, when no level
 * matches. */
enum rk_status rk_match_find(struct rk_db *db, const struct rk_match_request *request, struct rk_match *match,
                             struct rk_error *error);
void rk_match_free(struct rk_match *match);

#endif

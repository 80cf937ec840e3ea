/* Runs as rows: each step, each kind of op by stage and phase, each owner's memory on each rank, and the comparisons of
 * prediction and measurement. Append-only, but for the one end of a run. Unknown reals are NaN, unknown integers -1. */
#ifndef RK_DB_RUN_STORE_H
#define RK_DB_RUN_STORE_H

#include "db/plan_store.h"

enum rk_run_state { RK_RUN_RUNNING, RK_RUN_FINISHED, RK_RUN_FAILED, RK_RUN_INTERRUPTED };
const char *rk_run_state_name(enum rk_run_state state);

struct rk_run_row {
    int64_t id;
    char uuid[RK_UUID_SIZE]; /* empty at begin: one is made */
    int64_t plan_id;
    int64_t host_id, software_id, topology_id; /* set at begin */
    char fingerprint[RK_MACHINE_KEY_SIZE];     /* set at begin */
    enum rk_run_state state;
    char message[1024]; /* why it failed, or empty */
    char command[1024];
    char git_revision[64];
    char data[512]; /* token file, or "random" */
    char routing[32];
    int64_t seed, world_size;
    bool forced_unfit;
    double clock_hz, power_watts;
    int64_t started_us, ended_us;
    int64_t steps; /* read only */
};

enum rk_status rk_run_begin(struct rk_db *db, const struct rk_machine_identity *machine, const struct rk_run_row *row,
                            int64_t *id, struct rk_error *error);
/* Ends a run once: finished, failed or interrupted. message may be NULL. */
enum rk_status rk_run_end(struct rk_db *db, int64_t id, enum rk_run_state state, const char *message, int64_t ended_us,
                          struct rk_error *error);
enum rk_status rk_run_get(struct rk_db *db, int64_t id, struct rk_run_row *row, struct rk_error *error);
/* Newest first; the caller's (free), as all lists here. */
enum rk_status rk_run_list(struct rk_db *db, struct rk_run_row **rows, size_t *count, struct rk_error *error);
/* The newest run that took a step (one that was refused or had nothing left to do took none), or of a plan when plan_id is
 * not 0. RK_USAGE when there is none. */
enum rk_status rk_run_newest(struct rk_db *db, int64_t plan_id, int64_t *id, struct rk_error *error);

struct rk_step_row {
    int64_t step;
    bool traced; /* instrumented: never counted as throughput */
    double seconds, host_submit_seconds;
    int64_t tokens;
    double loss, balance_loss, z_loss, grad_norm, learning_rate;
    int64_t dropped_routes, routes;
    double requested_load, kept_load;               /* hottest rank over the mean, largest over layers */
    double requested_expert_load, kept_expert_load; /* hottest expert over the mean */
    double remote_bytes, local_bytes;               /* exchanged by the busiest rank */
    double clock_hz, power_watts;
};
enum rk_status rk_run_add_steps(struct rk_db *db, int64_t run_id, const struct rk_step_row *rows, size_t count,
                                struct rk_error *error);
enum rk_status rk_run_steps(struct rk_db *db, int64_t run_id, struct rk_step_row **rows, size_t *count,
                            struct rk_error *error);

struct rk_run_op_row {
    int64_t rank; /* -1: the median over the ranks of the stage */
    int64_t stage;
    char kind[48];              /* rk_op_name */
    char shape[192];            /* for people: "m 8192 n 4096 k 4096"; empty: all shapes of the kind */
    char phase[32], stream[32]; /* rk_phase_name, rk_stream_name */
    int64_t count;              /* per step */
    double median_seconds;      /* of one execution */
    double total_seconds;       /* per step, median over the traced steps */
    double wait_seconds;        /* of that, waiting for other ranks */
};
/* Numbers the rows after those that the run has. */
enum rk_status rk_run_add_ops(struct rk_db *db, int64_t run_id, const struct rk_run_op_row *rows, size_t count,
                              struct rk_error *error);
enum rk_status rk_run_ops(struct rk_db *db, int64_t run_id, struct rk_run_op_row **rows, size_t *count,
                          struct rk_error *error);

struct rk_run_memory_row {
    int64_t rank;
    char owner[32]; /* rk_owner_name */
    char space[16]; /* "device", "host" */
    int64_t predicted_bytes, allocated_bytes;
};
enum rk_status rk_run_add_memory(struct rk_db *db, int64_t run_id, const struct rk_run_memory_row *rows, size_t count,
                                 struct rk_error *error);
enum rk_status rk_run_memory(struct rk_db *db, int64_t run_id, struct rk_run_memory_row **rows, size_t *count,
                             struct rk_error *error);

struct rk_comparison_row {
    char level[16]; /* "step", "phase", "family", "op", "memory", "share" */
    char name[192];
    int64_t stage; /* -1: all */
    char unit[16]; /* "s", "bytes", "1" */
    double predicted, measured;
    double relative_uncertainty; /* of the prediction */
    char origin[32];
    double tolerance; /* relative; NaN: none */
    bool within;      /* inside the tolerance, or no tolerance */
    char note[512];   /* "would need gemm_forward 1.31 times as slow" */
};
/* Stores one comparison as the run's next series. */
enum rk_status rk_comparison_store(struct rk_db *db, int64_t run_id, int64_t created_us,
                                   const struct rk_comparison_row *rows, size_t count, struct rk_error *error);
/* The newest series of a run; *count 0 when it was never compared. */
enum rk_status rk_comparison_list(struct rk_db *db, int64_t run_id, struct rk_comparison_row **rows, size_t *count,
                                  struct rk_error *error);

#endif

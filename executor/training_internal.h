/* What the files of a training run share. */
#ifndef RK_EXECUTOR_TRAINING_INTERNAL_H
#define RK_EXECUTOR_TRAINING_INTERNAL_H

#include "executor/training.h"

struct rk_training {
    struct rk_job *job;
    const struct rk_architecture *architecture;
    const struct rk_training_options *options;
    struct rk_candidate candidate; /* --dropless raises its capacity */
    struct rk_program *program;
    struct rk_memory_layout layout;
    struct rk_trainer *trainer;
    struct rk_data *data;
    int32_t *windows; /* m windows of T + 1 tokens; NULL on stages that need none */
    bool resumes; /* from a checkpoint: there is one */
    int64_t first_step;
    int64_t load_layers;           /* the most routed layers of any rank */
    int64_t *load_counts;          /* routed layers of each rank */
    int64_t *load_mine, *load_all; /* counters of this rank and of all; NULL without routed layers */
    struct rk_step_share *shares;  /* one of each rank */
};

/* What ranks tell one another after a step. */
struct rk_step_share {
    double submission_seconds, remote_bytes, local_bytes;
    int64_t requested, dropped, interrupted, host_waits, copies_to_host;
};

/* Lowers, lays out and opens the trainer; predicted: hold the layout against the plan's. */
enum rk_status rk_training_open_stage(struct rk_training *training, bool predicted, struct rk_error *error);
void rk_training_close_stage(struct rk_training *training);
/* Makes the receive buffers larger and opens the stage again with the same weights, masters and moments. */
enum rk_status rk_training_grow(struct rk_training *training, struct rk_error *error);

/* Agrees on the load counters' sizes. */
enum rk_status rk_training_open_load(struct rk_training *training, struct rk_error *error);
/* The load of a step that has ended, over all ranks; unknown (NaN) on most steps where telling it would cost more than
 * 64 MiB through rank 0. */
enum rk_status rk_training_share_load(struct rk_training *training, int64_t step, struct rk_load_summary *summary,
                                      struct rk_error *error);

enum rk_status rk_training_report_make(struct rk_training *training, struct rk_training_report *report,
                                       struct rk_error *error);

#endif

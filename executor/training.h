/* A training run: weights, data, steps, checkpoints, and what is reported of them. All functions are collective: every
 * rank calls them with the same options. */
#ifndef RK_EXECUTOR_TRAINING_H
#define RK_EXECUTOR_TRAINING_H

#include "base/log.h"
#include "executor/data.h"
#include "executor/load.h"
#include "executor/optimizer_options.h"
#include "executor/trainer.h"

#include <signal.h>

struct rk_training_options {
    int64_t steps;             /* the run ends when this many steps are done, those before a resume included */
    const char *data;          /* token file, or NULL: synthetic */
    uint64_t seed;             /* of weights and synthetic tokens */
    double standard_deviation; /* of initial weights */
    struct rk_optimizer_options optimizer;
    int64_t trace_steps; /* how many steps are traced; at most a third of the steps are */
    bool dropless;
    const char *checkpoint;   /* directory, or NULL */
    int64_t checkpoint_every; /* steps; 0: only at the end */
    int64_t checkpoint_keep;  /* newest ones that stay; 0: all */
    bool resume;
    /* tensors-1 files, or NULL. Saved: before the first step, and after the last; gradients are those of the last step.
     */
    const char *load_weights, *save_weights, *save_final, *dump_gradients;
    const volatile sig_atomic_t
        *interrupted; /* not 0: end after this step, with a checkpoint if there is a directory */
    const struct rk_log *log;
    const int64_t *predicted_arena_bytes, *predicted_host_bytes; /* by the plan, of each stage; or NULL */
    struct rk_trainer_options trainer;                           /* its predictions and dropless are filled in */
};

/* One step as all ranks together made it. */
struct rk_training_step {
    int64_t step;
    bool traced;
    double seconds;            /* wall time of the step on the slowest rank, from reading its data to its report */
    double submission_seconds; /* the slowest rank's */
    double loss;               /* cross-entropy plus the weighted balance and z losses */
    double cross_entropy, balance, z, gradient_norm, learning_rate;
    int64_t tokens, routes, dropped;
    struct rk_load_summary load;
    double remote_bytes, local_bytes; /* of the busiest rank */
    /* Of all ranks, between the first launch and the last: the host waiting for a device, and copies to host memory. */
    int64_t host_waits, copies_to_host;
};

/* Called on every rank after each step. A failure ends the run. */
struct rk_training_observer {
    enum rk_status (*step)(void *context, const struct rk_training_step *step, struct rk_error *error);
    void *context;
};

/* What one rank held and took. */
struct rk_rank_report {
    int64_t stage;
    int64_t owner_bytes[RK_OWNER_COUNT]; /* device, as laid out in the arena that was allocated */
    int64_t arena_bytes, host_bytes;     /* that the back end gave, as it counted them */
    int64_t driver_bytes;                /* in use as the driver sees it */
    int64_t traced_steps;
    struct rk_stage_time time; /* from the traced steps; zero without any */
    int64_t account_count;
};

struct rk_training_report {
    struct rk_rank_report *ranks;    /* of each world rank; owned */
    struct rk_op_account **accounts; /* [world rank][account_count]; owned */
    int64_t world, first_step, steps_done;
    double capacity_factor; /* at the end: --dropless may have raised it */
};

/* RK_USAGE when options of checkpoints and first weights contradict one another, with the flag's name; rk_training_run
 * asks too. */
enum rk_status rk_training_check_options(const struct rk_training_options *options, struct rk_error *error);

/* Runs the candidate of the job. Every rank gets the same report (free with rk_training_report_free). RK_INTERRUPTED
 * leaves a report too. Options that contradict one another are RK_USAGE. */
enum rk_status rk_training_run(struct rk_job *job, const struct rk_architecture *architecture,
                               const struct rk_candidate *candidate, const struct rk_training_options *options,
                               const struct rk_training_observer *observer, struct rk_training_report *report,
                               struct rk_error *error);
void rk_training_report_free(struct rk_training_report *report);

/* How many of a run's first steps warm it up and count in no figure: a fifth, at most 14. */
int64_t rk_training_warm_up(int64_t steps);

#endif

/* What the optimizer of a run is told: AdamW's constants and the schedule of the learning rate. */
#ifndef RK_EXECUTOR_OPTIMIZER_OPTIONS_H
#define RK_EXECUTOR_OPTIMIZER_OPTIONS_H

#include <stdint.h>

/* X(name, text) */
#define RK_DECAY_TABLE(X)                                                                                              \
    X(CONSTANT, "constant")                                                                                            \
    X(LINEAR, "linear")                                                                                                \
    X(COSINE, "cosine")

enum rk_decay {
#define RK_DECAY_KIND(name, text) RK_DECAY_##name,
    RK_DECAY_TABLE(RK_DECAY_KIND)
#undef RK_DECAY_KIND
    RK_DECAY_COUNT
};
enum rk_decay rk_decay_from_name(const char *name); /* RK_DECAY_COUNT if none */

struct rk_optimizer_options {
    double learning_rate;         /* the highest */
    double minimum_learning_rate; /* at the end of the decay and after it */
    int64_t warmup_steps;         /* linear rise from 1/warmup_steps of the highest; 0: none */
    int64_t decay_steps;          /* the step at which the minimum is reached; used by linear and cosine */
    enum rk_decay decay;
    double beta1, beta2, epsilon;
    double clip_norm; /* 0: no clipping */
};

/* Constant 4e-4, betas 0.9 and 0.95, epsilon 1e-8, clipping at 1. */
struct rk_optimizer_options rk_optimizer_defaults(void);

/* Learning rate of a step, counted from 0. */
double rk_learning_rate(const struct rk_optimizer_options *options, int64_t step);

/* The step state that ADAMW reads (model/ops.h). Bias corrections in double, rounded once; step counts from 0, t = step
 * + 1. */
void rk_optimizer_step_state(const struct rk_optimizer_options *options, int64_t step, float state[8]);

#endif

#include "executor/optimizer_options.h"

#include <math.h>
#include <string.h>

static const char *const decay_names[RK_DECAY_COUNT] = {
#define RK_DECAY_TEXT(name, text) text,
    RK_DECAY_TABLE(RK_DECAY_TEXT)
#undef RK_DECAY_TEXT
};

enum rk_decay rk_decay_from_name(const char *name) {
    int decay = 0;
    while (decay < RK_DECAY_COUNT && strcmp(decay_names[decay], name) != 0)
        decay++;
    return (enum rk_decay)decay;
}

struct rk_optimizer_options rk_optimizer_defaults(void) {
    return (struct rk_optimizer_options){
        .learning_rate = 4e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .clip_norm = 1.0};
}

double rk_learning_rate(const struct rk_optimizer_options *options, int64_t step) {
    double highest = options->learning_rate, lowest = options->minimum_learning_rate;
    if (step < options->warmup_steps)
        return highest * (double)(step + 1) / (double)options->warmup_steps;
    if (options->decay == RK_DECAY_CONSTANT)
        return highest;
    int64_t length = options->decay_steps - options->warmup_steps;
    if (step >= options->decay_steps || length <= 0)
        return lowest;
    double done = (double)(step - options->warmup_steps) / (double)length;
    double left = options->decay == RK_DECAY_LINEAR ? 1.0 - done : 0.5 * (1.0 + cos(acos(-1.0) * done));
    return lowest + (highest - lowest) * left;
}

void rk_optimizer_step_state(const struct rk_optimizer_options *options, int64_t step, float state[8]) {
    double t = (double)(step + 1);
    state[0] = (float)rk_learning_rate(options, step);
    state[1] = (float)(1.0 - pow(options->beta1, t));
    state[2] = (float)(1.0 - pow(options->beta2, t));
    state[3] = (float)options->clip_norm;
    state[4] = (float)options->beta1;
    state[5] = (float)options->beta2;
    state[6] = (float)options->epsilon;
    state[7] = 0.0F;
}

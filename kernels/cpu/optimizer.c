/* Squared gradient norm and AdamW. */
#include "kernels/cpu/cpu.h"

enum { NORM_LANES = 8 };

/* FP64 squares in interleaved sums: rounding is far below FP32's whatever the number of elements. */
RK_CPU_KERNEL(GRAD_NORM) {
    int64_t count = call->shape->dim[0], whole = count - count % NORM_LANES;
    const float *gradient = call->operand[0];
    double *result = call->operand[1];
    double lanes[NORM_LANES] = {0};
    for (int64_t i = 0; i < whole; i += NORM_LANES) {
        for (int lane = 0; lane < NORM_LANES; lane++) {
            double value = (double)gradient[i + lane];
            lanes[lane] += value * value;
        }
    }
    for (int64_t i = whole; i < count; i++) {
        lanes[0] += (double)gradient[i] * (double)gradient[i];
    }
    double sum = 0;
    for (int lane = 0; lane < NORM_LANES; lane++) {
        sum += lanes[lane];
    }
    *result += sum;
}

/* Factors that are the same for every element. */
struct update {
    float clip, rate, first_keep, first_take, second_keep, second_take, first_correction, second_correction, epsilon;
    float decay; /* 1 - rate · weight decay */
};

static struct update update_of(const struct rk_op_call *call) {
    const float *state = call->operand[5];
    double norm = sqrt(*(const double *)call->operand[6]), limit = (double)state[3];
    double clip = limit > 0 ? limit / (norm + 1e-6) : 1;
    return (struct update){
        .clip = clip < 1 ? (float)clip : 1.0f,
        .rate = state[0],
        .first_keep = state[4],
        .first_take = 1.0f - state[4],
        .second_keep = state[5],
        .second_take = 1.0f - state[5],
        .first_correction = 1.0f / state[1],
        .second_correction = 1.0f / state[2],
        .epsilon = state[6],
        .decay = 1.0f - state[0] * call->parameter[0],
    };
}

static RK_CPU_CLONES void update_chunk(const struct update *update, int64_t count, const float *restrict gradient,
                                       float *restrict master, float *restrict first, float *restrict second) {
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * update->clip;
        first[i] = update->first_keep * first[i] + update->first_take * g;
        second[i] = update->second_keep * second[i] + update->second_take * (g * g);
        float root = sqrtf(second[i] * update->second_correction) + update->epsilon;
        master[i] = master[i] * update->decay - update->rate * (first[i] * update->first_correction) / root;
    }
}

RK_CPU_KERNEL(ADAMW) {
    int64_t count = call->shape->dim[0];
    struct update update = update_of(call);
    for (int64_t at = 0; at < count; at += RK_CPU_CHUNK) {
        int64_t some = rk_cpu_smaller(count - at, RK_CPU_CHUNK);
        float *master = (float *)call->operand[1] + at;
        update_chunk(&update, some, (const float *)call->operand[0] + at, master, (float *)call->operand[2] + at,
                     (float *)call->operand[3] + at);
        rk_cpu_store(call->shape->type, call->operand[4], at, some, master);
    }
}

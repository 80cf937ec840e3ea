/* Cross-entropy: the logits of a token give way to their gradient. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exponential.h"

static RK_CPU_CLONES float largest_logit(enum rk_data_type type, const void *logits, int64_t first, int64_t count) {
    float buffer[RK_CPU_CHUNK], largest = -HUGE_VALF;
    for (int64_t done = 0; done < count; done += RK_CPU_CHUNK) {
        int64_t some = rk_cpu_smaller(count - done, RK_CPU_CHUNK);
        float value = rk_cpu_largest(rk_cpu_load(type, logits, first + done, some, buffer), some);
        largest = value > largest ? value : largest;
    }
    return largest;
}

static RK_CPU_CLONES double sum_of_exponentials(enum rk_data_type type, const void *logits, int64_t first,
                                                int64_t count, float largest) {
    float buffer[RK_CPU_CHUNK], power[RK_CPU_CHUNK];
    double sum = 0;
    for (int64_t done = 0; done < count; done += RK_CPU_CHUNK) {
        int64_t some = rk_cpu_smaller(count - done, RK_CPU_CHUNK);
        const float *x = rk_cpu_load(type, logits, first + done, some, buffer);
        for (int64_t i = 0; i < some; i++) {
            power[i] = rk_cpu_exp(x[i] - largest);
        }
        sum += rk_cpu_sum(power, some);
    }
    return sum;
}

/* dlogit = weight · (probability - [is target]); the target's value is corrected before its chunk is stored, so that it
 * is rounded once. */
static RK_CPU_CLONES void write_gradient(enum rk_data_type type, void *logits, int64_t first, int64_t count,
                                         float largest, double sum, float weight, int64_t target) {
    float buffer[RK_CPU_CHUNK], gradient[RK_CPU_CHUNK];
    float factor = (float)((double)weight / sum);
    for (int64_t done = 0; done < count; done += RK_CPU_CHUNK) {
        int64_t some = rk_cpu_smaller(count - done, RK_CPU_CHUNK);
        const float *x = rk_cpu_load(type, logits, first + done, some, buffer);
        for (int64_t i = 0; i < some; i++) {
            gradient[i] = rk_cpu_exp(x[i] - largest) * factor;
        }
        if (target >= done && target < done + some) {
            gradient[target - done] -= weight;
        }
        rk_cpu_store(type, logits, first + done, some, gradient);
    }
}

RK_CPU_KERNEL(CROSS_ENTROPY) {
    enum rk_data_type type = call->shape->type;
    int64_t tokens = call->shape->dim[0], vocabulary = call->shape->dim[1];
    const int32_t *targets = call->operand[1];
    double *loss = call->operand[2];
    float weight = call->parameter[0];
    for (int64_t t = 0; t < tokens; t++) {
        int64_t first = t * vocabulary;
        if (targets[t] < 0 || targets[t] >= vocabulary) {
            memset(rk_cpu_at(type, call->operand[0], first), 0, (size_t)(vocabulary * rk_data_type_bytes(type)));
            *loss += targets[t] < 0 ? 0.0 : (double)NAN;
            continue;
        }
        float buffer;
        float target = *rk_cpu_load(type, call->operand[0], first + targets[t], 1, &buffer);
        float largest = largest_logit(type, call->operand[0], first, vocabulary);
        double sum = sum_of_exponentials(type, call->operand[0], first, vocabulary, largest);
        *loss += (double)weight * (log(sum) + (double)largest - (double)target);
        write_gradient(type, call->operand[0], first, vocabulary, largest, sum, weight, targets[t]);
    }
}

/* RMSNorm. */
#include "kernels/cpu/cpu.h"

#include <math.h>

static RK_CPU_CLONES double sum_of_squares(enum rk_data_type type, const void *base, int64_t first, int64_t count) {
    float buffer[RK_CPU_CHUNK];
    double sum = 0;
    for (int64_t done = 0; done < count; done += RK_CPU_CHUNK) {
        int64_t part = rk_cpu_smaller(count - done, RK_CPU_CHUNK);
        const float *x = rk_cpu_load(type, base, first + done, part, buffer);
        sum += rk_cpu_dot(x, x, part);
    }
    return sum;
}

RK_CPU_KERNEL(RMSNORM_FORWARD) {
    enum rk_data_type type = call->shape->type;
    int64_t rows = call->shape->dim[0], width = call->shape->dim[1];
    float *rstd = call->operand[3];
    float x_buffer[RK_CPU_CHUNK], gain_buffer[RK_CPU_CHUNK], y[RK_CPU_CHUNK];
    for (int64_t row = 0; row < rows; row++) {
        double mean = sum_of_squares(type, call->operand[0], row * width, width) / (double)width;
        float scale = (float)(1.0 / sqrt(mean + (double)call->parameter[0]));
        rstd[row] = scale;
        for (int64_t first = 0; first < width; first += RK_CPU_CHUNK) {
            int64_t count = rk_cpu_smaller(width - first, RK_CPU_CHUNK);
            const float *x = rk_cpu_load(type, call->operand[0], row * width + first, count, x_buffer);
            const float *gain = rk_cpu_load(type, call->operand[1], first, count, gain_buffer);
            for (int64_t i = 0; i < count; i++) {
                y[i] = x[i] * scale * gain[i];
            }
            rk_cpu_store(type, call->operand[2], row * width + first, count, y);
        }
    }
}

/* mean over the row of (dy · gain) · (x · rstd) */
static RK_CPU_CLONES float projection(const struct rk_op_call *call, int64_t row, float rstd) {
    enum rk_data_type type = call->shape->type;
    int64_t width = call->shape->dim[1];
    float x_buffer[RK_CPU_CHUNK], dy_buffer[RK_CPU_CHUNK], gain_buffer[RK_CPU_CHUNK];
    float scaled[RK_CPU_CHUNK];
    double sum = 0;
    for (int64_t first = 0; first < width; first += RK_CPU_CHUNK) {
        int64_t count = rk_cpu_smaller(width - first, RK_CPU_CHUNK);
        const float *dy = rk_cpu_load(type, call->operand[0], row * width + first, count, dy_buffer);
        const float *x = rk_cpu_load(type, call->operand[1], row * width + first, count, x_buffer);
        const float *gain = rk_cpu_load(type, call->operand[2], first, count, gain_buffer);
        for (int64_t i = 0; i < count; i++) {
            scaled[i] = dy[i] * gain[i];
        }
        sum += rk_cpu_dot(scaled, x, count);
    }
    return (float)(sum * (double)rstd / (double)width);
}

/* dx = rstd · (dy·gain - xhat · mean(dy·gain·xhat)) + residual gradient; dgain = Σ over rows of dy · xhat, in FP64. */
RK_CPU_KERNEL(RMSNORM_BACKWARD) {
    enum rk_data_type type = call->shape->type;
    int64_t rows = call->shape->dim[0], width = call->shape->dim[1];
    const float *rstd = call->operand[3];
    float *dgain = call->operand[6];
    double *sum = call->operand[7];
    float x_buffer[RK_CPU_CHUNK], dy_buffer[RK_CPU_CHUNK], gain_buffer[RK_CPU_CHUNK], residual_buffer[RK_CPU_CHUNK];
    float dx[RK_CPU_CHUNK];
    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int64_t row = 0; row < rows; row++) {
        float mean = projection(call, row, rstd[row]), scale = rstd[row];
        for (int64_t first = 0; first < width; first += RK_CPU_CHUNK) {
            int64_t count = rk_cpu_smaller(width - first, RK_CPU_CHUNK), at = row * width + first;
            const float *dy = rk_cpu_load(type, call->operand[0], at, count, dy_buffer);
            const float *x = rk_cpu_load(type, call->operand[1], at, count, x_buffer);
            const float *gain = rk_cpu_load(type, call->operand[2], first, count, gain_buffer);
            for (int64_t i = 0; i < count; i++) {
                float normalised = x[i] * scale;
                dx[i] = scale * (dy[i] * gain[i] - normalised * mean);
                sum[first + i] += (double)(dy[i] * normalised);
            }
            if (call->operand[4] != NULL) {
                const float *residual = rk_cpu_load(type, call->operand[4], at, count, residual_buffer);
                for (int64_t i = 0; i < count; i++) {
                    dx[i] += residual[i];
                }
            }
            rk_cpu_store(type, call->operand[5], at, count, dx);
        }
    }
    for (int64_t i = 0; i < width; i++) {
        dgain[i] += (float)sum[i];
    }
}

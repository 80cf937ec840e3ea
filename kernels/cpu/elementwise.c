/* ZERO, the embedding and SwiGLU. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exponential.h"

RK_CPU_KERNEL(ZERO) {
    if (call->shape->dim[0] > 0) {
        memset(call->operand[0], 0, (size_t)call->shape->dim[0]);
    }
}

RK_CPU_KERNEL(EMBEDDING_FORWARD) {
    int64_t tokens = call->shape->dim[0], vocabulary = call->shape->dim[1], width = call->shape->dim[2];
    const int32_t *token = call->operand[0];
    size_t row_bytes = (size_t)(width * rk_data_type_bytes(call->shape->type));
    for (int64_t t = 0; t < tokens; t++) {
        char *row = (char *)call->operand[2] + (size_t)t * row_bytes;
        if (token[t] >= 0 && token[t] < vocabulary) {
            memcpy(row, (const char *)call->operand[1] + (size_t)token[t] * row_bytes, row_bytes);
        } else {
            memset(row, 0xFF, row_bytes); /* NaN in either type */
        }
    }
}

/* Rows are added in the order of the tokens. */
RK_CPU_KERNEL(EMBEDDING_BACKWARD) {
    int64_t tokens = call->shape->dim[0], vocabulary = call->shape->dim[1], width = call->shape->dim[2];
    const int32_t *token = call->operand[0];
    float buffer[RK_CPU_CHUNK];
    for (int64_t t = 0; t < tokens; t++) {
        if (token[t] < 0 || token[t] >= vocabulary) {
            continue;
        }
        float *row = (float *)call->operand[2] + token[t] * width;
        for (int64_t first = 0; first < width; first += RK_CPU_CHUNK) {
            int64_t count = rk_cpu_smaller(width - first, RK_CPU_CHUNK);
            const float *gradient = rk_cpu_load(call->shape->type, call->operand[1], t * width + first, count, buffer);
            for (int64_t i = 0; i < count; i++) {
                row[first + i] += gradient[i];
            }
        }
    }
}

/* Valid rows of a SwiGLU: offsets[G], or all R without offsets. */
static int64_t valid_rows(const struct rk_op_call *call) {
    const int32_t *offsets = call->operand[2];
    return offsets != NULL ? offsets[call->shape->dim[2]] : call->shape->dim[0];
}

RK_CPU_KERNEL(SWIGLU_FORWARD) {
    enum rk_data_type type = call->shape->type;
    int64_t width = call->shape->dim[1], rows = valid_rows(call);
    const float *weight = call->operand[1];
    float gate_buffer[RK_CPU_CHUNK], up_buffer[RK_CPU_CHUNK], out[RK_CPU_CHUNK];
    for (int64_t row = 0; row < rows; row++) {
        float scale = weight != NULL ? weight[row] : 1.0f;
        for (int64_t first = 0; first < width; first += RK_CPU_CHUNK) {
            int64_t count = rk_cpu_smaller(width - first, RK_CPU_CHUNK);
            int64_t at = row * 2 * width + first;
            const float *gate = rk_cpu_load(type, call->operand[0], at, count, gate_buffer);
            const float *up = rk_cpu_load(type, call->operand[0], at + width, count, up_buffer);
            for (int64_t i = 0; i < count; i++) {
                out[i] = scale * (gate[i] * rk_cpu_sigmoid(gate[i])) * up[i];
            }
            rk_cpu_store(type, call->operand[3], row * width + first, count, out);
        }
    }
}

/* d silu(g)/dg = s + g·s·(1 - s) with s = sigmoid(g). Both halves of a chunk are read before either is written, because
 * the gradients may replace their inputs. */
RK_CPU_KERNEL(SWIGLU_BACKWARD) {
    enum rk_data_type type = call->shape->type;
    int64_t width = call->shape->dim[1], rows = valid_rows(call);
    const float *weight = call->operand[1];
    float *dweight = call->operand[5];
    float gate_buffer[RK_CPU_CHUNK], up_buffer[RK_CPU_CHUNK], dout_buffer[RK_CPU_CHUNK];
    float dgate[RK_CPU_CHUNK], dup[RK_CPU_CHUNK], product[RK_CPU_CHUNK];
    for (int64_t row = 0; row < rows; row++) {
        float scale = weight != NULL ? weight[row] : 1.0f;
        double dscale = 0;
        for (int64_t first = 0; first < width; first += RK_CPU_CHUNK) {
            int64_t count = rk_cpu_smaller(width - first, RK_CPU_CHUNK);
            int64_t at = row * 2 * width + first;
            const float *gate = rk_cpu_load(type, call->operand[0], at, count, gate_buffer);
            const float *up = rk_cpu_load(type, call->operand[0], at + width, count, up_buffer);
            const float *dout = rk_cpu_load(type, call->operand[3], row * width + first, count, dout_buffer);
            for (int64_t i = 0; i < count; i++) {
                float sigmoid = rk_cpu_sigmoid(gate[i]);
                float silu = gate[i] * sigmoid;
                float slope = sigmoid + silu * (1.0f - sigmoid);
                product[i] = silu * up[i];
                dgate[i] = scale * dout[i] * up[i] * slope;
                dup[i] = scale * dout[i] * silu;
            }
            dscale += dweight != NULL ? rk_cpu_dot(dout, product, count) : 0;
            rk_cpu_store(type, call->operand[4], at, count, dgate);
            rk_cpu_store(type, call->operand[4], at + width, count, dup);
        }
        if (dweight != NULL) {
            dweight[row] = (float)dscale;
        }
    }
}

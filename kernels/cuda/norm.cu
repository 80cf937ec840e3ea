/* RMSNorm forward and backward. Memory bound: forward reads and writes each value once (2 · rows · d · bytes), backward
 * reads dy, x and the residual gradient and writes dx (4 · rows · d · bytes). */
#include "kernels/cuda/internal.cuh"

/* The backward has few blocks, one for each row of partial sums: large ones fill the multiprocessors. */
enum { NORM_THREADS = 256, BACKWARD_THREADS = 1024 };

template <typename act>
__global__ void rmsnorm_forward(const act *x, const act *gain, act *y, float *rstd, int64_t d, float epsilon) {
    __shared__ float shared[NORM_THREADS / RK_CUDA_WARP];
    const act *row = x + blockIdx.x * d;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < d; i += NORM_THREADS) {
        float value = rk_load(row + i);
        sum += value * value;
    }
    sum = rk_block_sum(sum, shared);
    float scale = 1.0f / sqrtf(sum / (float)d + epsilon);
    if (threadIdx.x == 0)
        rstd[blockIdx.x] = scale;
    act *out = y + blockIdx.x * d;
    for (int64_t i = threadIdx.x; i < d; i += NORM_THREADS)
        rk_store(out + i, rk_load(row + i) * scale * rk_load(gain + i));
}

RK_CUDA_OP(rmsnorm_forward) {
    int64_t rows = call->shape->dim[0], d = call->shape->dim[1];
    if (rows == 0)
        return RK_OK;
    RK_CUDA_BY_TYPE(call->shape->type, (rmsnorm_forward<act><<<(unsigned)rows, NORM_THREADS, 0, stream->handle>>>(
                                           (const act *)call->operand[0], (const act *)call->operand[1],
                                           (act *)call->operand[2], (float *)call->operand[3], d, call->parameter[0])));
    return rk_cuda_launched(stream, "rmsnorm_forward", error);
}

/* Each block takes rows blockIdx.x, blockIdx.x + gridDim.x, ... and keeps the gain's gradient of its rows in shared
 * memory; a thread owns its columns, so the order of the sum is fixed. */
template <typename act>
__global__ void __launch_bounds__(BACKWARD_THREADS)
    rmsnorm_backward(const act *dy, const act *x, const act *gain, const float *rstd, const act *residual, act *dx,
                     float *partial, int64_t rows, int64_t d) {
    extern __shared__ float dgain[];
    __shared__ float shared[BACKWARD_THREADS / RK_CUDA_WARP];
    for (int64_t i = threadIdx.x; i < d; i += BACKWARD_THREADS)
        dgain[i] = 0;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const act *dy_row = dy + row * d, *x_row = x + row * d;
        float scale = rstd[row], dot = 0;
        for (int64_t i = threadIdx.x; i < d; i += BACKWARD_THREADS) {
            float gradient = rk_load(dy_row + i), normed = rk_load(x_row + i) * scale;
            dot += gradient * rk_load(gain + i) * normed;
            dgain[i] += gradient * normed;
        }
        dot = rk_block_sum(dot, shared) / (float)d;
        for (int64_t i = threadIdx.x; i < d; i += BACKWARD_THREADS) {
            float normed = rk_load(x_row + i) * scale;
            float value = scale * (rk_load(dy_row + i) * rk_load(gain + i) - normed * dot);
            if (residual)
                value += rk_load(residual + row * d + i);
            rk_store(dx + row * d + i, value);
        }
    }
    for (int64_t i = threadIdx.x; i < d; i += BACKWARD_THREADS)
        partial[blockIdx.x * d + i] = dgain[i];
}

/* Adds the blocks' partial sums in block order. */
__global__ void add_partials(const float *partial, int64_t parts, int64_t columns, float *sum) {
    int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns)
        return;
    float total = 0;
    for (int64_t part = 0; part < parts; part++)
        total += partial[part * columns + column];
    sum[column] += total;
}

enum rk_status rk_cuda_add_partials(struct rk_stream *stream, const float *partial, int64_t parts, int64_t columns,
                                    float *sum, struct rk_error *error) {
    add_partials<<<(unsigned)((columns + 255) / 256), 256, 0, stream->handle>>>(partial, parts, columns, sum);
    return rk_cuda_launched(stream, "adding partial sums", error);
}

RK_CUDA_OP(rmsnorm_backward) {
    int64_t rows = call->shape->dim[0], d = call->shape->dim[1];
    if (rows == 0)
        return RK_OK;
    unsigned blocks = (unsigned)(rows < RK_CUDA_PARTIAL_ROWS ? rows : (int64_t)RK_CUDA_PARTIAL_ROWS);
    size_t shared = (size_t)d * sizeof(float);
    RK_CUDA_BY_TYPE(call->shape->type, {
        RK_CUDA_TRY(rk_cuda_allow_shared(rmsnorm_backward<act>, shared), "rmsnorm_backward: shared memory");
        (rmsnorm_backward<act><<<blocks, BACKWARD_THREADS, shared, stream->handle>>>(
            (const act *)call->operand[0], (const act *)call->operand[1], (const act *)call->operand[2],
            (const float *)call->operand[3], (const act *)call->operand[4], (act *)call->operand[5],
            (float *)call->operand[7], rows, d));
    });
    enum rk_status status = rk_cuda_launched(stream, "rmsnorm_backward", error);
    if (status != RK_OK)
        return status;
    return rk_cuda_add_partials(stream, (const float *)call->operand[7], blocks, d, (float *)call->operand[6], error);
}

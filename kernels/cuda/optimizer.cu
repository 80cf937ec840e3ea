/* Cross-entropy, gradient norm and AdamW. Memory bound: logits read and written twice at most, 4 bytes a gradient, and
 * 26 or 28 bytes a parameter for AdamW. Sums over blocks are taken in block order. */
#include "kernels/cuda/internal.cuh"

enum { THREADS = 512, WARPS = THREADS / RK_CUDA_WARP };

__device__ float block_max(float value, float *shared) {
    for (int step = RK_CUDA_WARP / 2; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
    __syncthreads();
    if (threadIdx.x % RK_CUDA_WARP == 0)
        shared[threadIdx.x / RK_CUDA_WARP] = value;
    __syncthreads();
    float most = shared[0];
    for (int i = 1; i < WARPS; i++)
        most = fmaxf(most, shared[i]);
    return most;
}

/* One block a token: the loss of the token goes to losses[token], the logits become their gradient. A negative target
 * is ignored; one past the vocabulary makes the loss NaN. */
template <typename act>
__global__ void cross_entropy(act *logits, const int32_t *targets, float *losses, int64_t vocabulary, float weight) {
    __shared__ float shared[WARPS];
    act *row = logits + (int64_t)blockIdx.x * vocabulary;
    int32_t target = targets[blockIdx.x];
    if (target < 0 || target >= vocabulary) { /* the same for the whole block */
        for (int64_t i = threadIdx.x; i < vocabulary; i += THREADS)
            rk_store(row + i, 0.0f);
        if (threadIdx.x == 0)
            losses[blockIdx.x] = target < 0 ? 0.0f : NAN;
        return;
    }
    float most = -INFINITY;
    for (int64_t i = threadIdx.x; i < vocabulary; i += THREADS)
        most = fmaxf(most, rk_load(row + i));
    most = block_max(most, shared);
    float sum = 0;
    for (int64_t i = threadIdx.x; i < vocabulary; i += THREADS)
        sum += __expf(rk_load(row + i) - most);
    sum = rk_block_sum(sum, shared);
    if (threadIdx.x == 0)
        losses[blockIdx.x] = weight * (logf(sum) + most - rk_load(row + target));
    __syncthreads();
    for (int64_t i = threadIdx.x; i < vocabulary; i += THREADS) {
        float probability = __expf(rk_load(row + i) - most) / sum;
        rk_store(row + i, weight * (probability - (i == target ? 1.0f : 0.0f)));
    }
}

/* sum += values, by one block, in a fixed order, in FP64. */
__global__ void add_to_sum(const float *values, int64_t count, double *sum) {
    __shared__ double parts[THREADS];
    double mine = 0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS)
        mine += (double)values[i];
    parts[threadIdx.x] = mine;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step /= 2) {
        if (threadIdx.x < step)
            parts[threadIdx.x] += parts[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *sum += parts[0];
}

RK_CUDA_OP(cross_entropy) {
    int64_t tokens = call->shape->dim[0], vocabulary = call->shape->dim[1];
    if (tokens == 0)
        return RK_OK;
    float *losses = (float *)call->operand[3];
    RK_CUDA_BY_TYPE(call->shape->type, (cross_entropy<act><<<(unsigned)tokens, THREADS, 0, stream->handle>>>(
                                           (act *)call->operand[0], (const int32_t *)call->operand[1], losses,
                                           vocabulary, call->parameter[0])));
    enum rk_status status = rk_cuda_launched(stream, "cross_entropy", error);
    if (status != RK_OK)
        return status;
    add_to_sum<<<1, THREADS, 0, stream->handle>>>(losses, tokens, (double *)call->operand[2]);
    return rk_cuda_launched(stream, "cross_entropy: sum", error);
}

/* Each block sums the same elements in every run, so that the result does not depend on which blocks run when. */
__global__ void squares(const float *gradient, int64_t elements, float *partial) {
    __shared__ float shared[WARPS];
    float sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < elements; i += (int64_t)gridDim.x * THREADS)
        sum += gradient[i] * gradient[i];
    sum = rk_block_sum(sum, shared);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

RK_CUDA_OP(grad_norm) {
    int64_t elements = call->shape->dim[0];
    if (elements == 0)
        return RK_OK;
    float *partial = (float *)call->operand[2];
    squares<<<RK_CUDA_PARTIAL_ROWS, THREADS, 0, stream->handle>>>((const float *)call->operand[0], elements, partial);
    enum rk_status status = rk_cuda_launched(stream, "grad_norm", error);
    if (status != RK_OK)
        return status;
    add_to_sum<<<1, THREADS, 0, stream->handle>>>(partial, RK_CUDA_PARTIAL_ROWS, (double *)call->operand[1]);
    return rk_cuda_launched(stream, "grad_norm: sum", error);
}

template <typename act>
__global__ void adamw(const float *gradient, float *master, float *first, float *second, act *weight,
                      const float *state, const double *squared_norm, int64_t elements, float decay) {
    float rate = state[0], correction1 = state[1], correction2 = state[2], limit = state[3];
    float beta1 = state[4], beta2 = state[5], epsilon = state[6], clip = 1.0f;
    if (limit > 0.0f)
        clip = fminf(1.0f, limit / ((float)sqrt(*squared_norm) + 1e-6f));
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < elements; i += (int64_t)gridDim.x * THREADS) {
        float g = gradient[i] * clip;
        float m = beta1 * first[i] + (1.0f - beta1) * g;
        float v = beta2 * second[i] + (1.0f - beta2) * g * g;
        float value = master[i];
        value -= rate * decay * value;
        value -= rate * (m / correction1) / (sqrtf(v / correction2) + epsilon);
        first[i] = m;
        second[i] = v;
        master[i] = value;
        rk_store(weight + i, value);
    }
}

RK_CUDA_OP(adamw) {
    int64_t elements = call->shape->dim[0];
    if (elements == 0)
        return RK_OK;
    int64_t most = (int64_t)stream->device->properties.multiProcessorCount * 8;
    int64_t blocks = (elements + THREADS - 1) / THREADS;
    RK_CUDA_BY_TYPE(call->shape->type,
                    (adamw<act><<<(unsigned)(blocks < most ? blocks : most), THREADS, 0, stream->handle>>>(
                        (const float *)call->operand[0], (float *)call->operand[1], (float *)call->operand[2],
                        (float *)call->operand[3], (act *)call->operand[4], (const float *)call->operand[5],
                        (const double *)call->operand[6], elements, call->parameter[0])));
    return rk_cuda_launched(stream, "adamw", error);
}

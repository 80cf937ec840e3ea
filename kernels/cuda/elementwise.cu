/* Embedding and SwiGLU, forward and backward: all memory bound. */
#include "kernels/cuda/internal.cuh"

enum { THREADS = 256 };

/* A token outside the vocabulary becomes NaN. */
template <typename act>
__global__ void embedding_forward(const int32_t *tokens, const act *table, act *x, int64_t vocabulary, int64_t d) {
    int32_t token = tokens[blockIdx.x];
    bool known = token >= 0 && token < vocabulary;
    const act *from = table + (known ? (int64_t)token * d : 0);
    act *to = x + blockIdx.x * d;
    for (int64_t i = threadIdx.x; i < d; i += THREADS)
        if (known)
            to[i] = from[i];
        else
            rk_store(to + i, NAN);
}

RK_CUDA_OP(embedding_forward) {
    const int64_t *dim = call->shape->dim;
    if (dim[0] == 0)
        return RK_OK;
    RK_CUDA_BY_TYPE(call->shape->type, (embedding_forward<act><<<(unsigned)dim[0], THREADS, 0, stream->handle>>>(
                                           (const int32_t *)call->operand[0], (const act *)call->operand[1],
                                           (act *)call->operand[2], dim[1], dim[2])));
    return rk_cuda_launched(stream, "embedding_forward", error);
}

/* The block of a token's first occurrence adds all rows of that token in the order of the tokens: no atomics, so
 * repeatable. The scan for equal tokens reads T 32-bit values for each block, from the L2 cache: T² · 4 bytes. */
template <typename act>
__global__ void embedding_backward(const int32_t *tokens, const act *dx, float *dtable, int64_t count,
                                   int64_t vocabulary, int64_t d) {
    __shared__ int32_t matches[THREADS];
    __shared__ int warp_first[THREADS / RK_CUDA_WARP + 1];
    int32_t token = tokens[blockIdx.x];
    if (token < 0 || token >= vocabulary)
        return;
    bool earlier = false;
    for (int64_t i = threadIdx.x; i < blockIdx.x && !earlier; i += THREADS)
        earlier = tokens[i] == token;
    if (__syncthreads_or(earlier))
        return;
    float *row = dtable + (int64_t)token * d;
    for (int64_t base = blockIdx.x; base < count; base += THREADS) {
        bool equal = base + threadIdx.x < count && tokens[base + threadIdx.x] == token;
        unsigned mask = __ballot_sync(0xffffffffu, equal);
        if (threadIdx.x % RK_CUDA_WARP == 0)
            warp_first[threadIdx.x / RK_CUDA_WARP + 1] = __popc(mask);
        __syncthreads();
        if (threadIdx.x == 0) {
            warp_first[0] = 0;
            for (int warp = 1; warp <= THREADS / RK_CUDA_WARP; warp++)
                warp_first[warp] += warp_first[warp - 1];
        }
        __syncthreads();
        if (equal)
            matches[warp_first[threadIdx.x / RK_CUDA_WARP] + __popc(mask & ((1u << threadIdx.x % RK_CUDA_WARP) - 1))] =
                (int32_t)(base + threadIdx.x);
        __syncthreads();
        int found = warp_first[THREADS / RK_CUDA_WARP];
        for (int64_t i = threadIdx.x; i < d; i += THREADS)
            for (int match = 0; match < found; match++)
                row[i] += rk_load(dx + (int64_t)matches[match] * d + i);
        __syncthreads();
    }
}

RK_CUDA_OP(embedding_backward) {
    const int64_t *dim = call->shape->dim;
    if (dim[0] == 0)
        return RK_OK;
    RK_CUDA_BY_TYPE(call->shape->type, (embedding_backward<act><<<(unsigned)dim[0], THREADS, 0, stream->handle>>>(
                                           (const int32_t *)call->operand[0], (const act *)call->operand[1],
                                           (float *)call->operand[2], dim[0], dim[1], dim[2])));
    return rk_cuda_launched(stream, "embedding_backward", error);
}

__device__ __forceinline__ float sigmoid(float value) {
    return 1.0f / (1.0f + __expf(-value));
}

/* Blocks take rows in turn, up to the valid prefix that is read from the device. */
template <typename act>
__global__ void swiglu_forward(const act *gate_up, const float *row_weight, const int32_t *valid, act *out,
                               int64_t capacity, int64_t h) {
    int64_t rows = valid ? (int64_t)*valid : capacity;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float weight = row_weight ? row_weight[row] : 1.0f;
        const act *gate = gate_up + row * 2 * h, *up = gate + h;
        for (int64_t i = threadIdx.x; i < h; i += THREADS) {
            float g = rk_load(gate + i);
            rk_store(out + row * h + i, weight * (g * sigmoid(g) * rk_load(up + i)));
        }
    }
}

template <typename act>
__global__ void swiglu_backward(const act *gate_up, const float *row_weight, const int32_t *valid, const act *dout,
                                act *dgate_up, float *drow_weight, int64_t capacity, int64_t h) {
    __shared__ float shared[THREADS / RK_CUDA_WARP];
    int64_t rows = valid ? (int64_t)*valid : capacity;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float weight = row_weight ? row_weight[row] : 1.0f, dot = 0;
        const act *gate = gate_up + row * 2 * h, *up = gate + h;
        act *dgate = dgate_up + row * 2 * h, *dup = dgate + h;
        for (int64_t i = threadIdx.x; i < h; i += THREADS) {
            float g = rk_load(gate + i), u = rk_load(up + i), gradient = rk_load(dout + row * h + i);
            float s = sigmoid(g), silu = g * s;
            dot += gradient * silu * u;
            gradient *= weight;
            rk_store(dgate + i, gradient * u * s * (1.0f + g * (1.0f - s)));
            rk_store(dup + i, gradient * silu);
        }
        if (drow_weight) {
            dot = rk_block_sum(dot, shared);
            if (threadIdx.x == 0)
                drow_weight[row] = dot;
        }
    }
}

static unsigned row_blocks(const struct rk_stream *stream, int64_t rows) {
    int64_t most = (int64_t)stream->device->properties.multiProcessorCount * 16;
    return (unsigned)(rows < most ? rows : most);
}

/* The address of offsets[G], the number of valid rows; NULL when all rows are valid. */
static const int32_t *valid_rows(const struct rk_op_call *call, int operand, int64_t groups) {
    const int32_t *offsets = (const int32_t *)call->operand[operand];
    return offsets ? offsets + groups : NULL;
}

RK_CUDA_OP(swiglu_forward) {
    int64_t rows = call->shape->dim[0], h = call->shape->dim[1], groups = call->shape->dim[2];
    if (rows == 0)
        return RK_OK;
    RK_CUDA_BY_TYPE(call->shape->type, (swiglu_forward<act><<<row_blocks(stream, rows), THREADS, 0, stream->handle>>>(
                                           (const act *)call->operand[0], (const float *)call->operand[1],
                                           valid_rows(call, 2, groups), (act *)call->operand[3], rows, h)));
    return rk_cuda_launched(stream, "swiglu_forward", error);
}

RK_CUDA_OP(swiglu_backward) {
    int64_t rows = call->shape->dim[0], h = call->shape->dim[1], groups = call->shape->dim[2];
    if (rows == 0)
        return RK_OK;
    RK_CUDA_BY_TYPE(call->shape->type,
                    (swiglu_backward<act><<<row_blocks(stream, rows), THREADS, 0, stream->handle>>>(
                        (const act *)call->operand[0], (const float *)call->operand[1], valid_rows(call, 2, groups),
                        (const act *)call->operand[3], (act *)call->operand[4], (float *)call->operand[5], rows, h)));
    return rk_cuda_launched(stream, "swiglu_backward", error);
}

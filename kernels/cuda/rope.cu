/* Query/key norm and rotary positions, forward and backward. One block works on one token at a time; the token's
 * queries and keys stand in shared memory as FP32, so that input and output may be the same buffer. Memory bound: reads
 * and writes T · (n_h + 2 n_kv) · d_head values once. */
#include "kernels/cuda/internal.cuh"

enum { ROPE_THREADS = 256, ROPE_WARPS = ROPE_THREADS / RK_CUDA_WARP };

struct rope_shape {
    int64_t tokens, sequence;
    int heads, kv_heads, head_dim;
    float theta, epsilon;
    int norm; /* 0 none, 1 for each head, 2 over all heads */
};

__device__ int qk_width(const rope_shape &shape) {
    return (shape.heads + shape.kv_heads) * shape.head_dim;
}

/* Cosines, then sines, of position · theta^(-2 i / d_head), in FP64 so that long positions lose nothing. */
__device__ void rotations(const rope_shape &shape, int64_t position, float *table) {
    int half = shape.head_dim / 2;
    for (int i = threadIdx.x; i < half; i += ROPE_THREADS) {
        double sine, cosine, frequency = exp(-2.0 * (double)i / (double)shape.head_dim * log((double)shape.theta));
        sincos((double)position * frequency, &sine, &cosine);
        table[i] = (float)cosine;
        table[half + i] = (float)sine;
    }
}

/* Gain of element `column` of q or k: one value for each place in a head, or one for each place in the full width. */
template <typename act>
__device__ float gain_of(const rope_shape &shape, const act *q_gain, const act *k_gain, int column) {
    int q_width = shape.heads * shape.head_dim;
    bool query = column < q_width;
    int inside = query ? column : column - q_width;
    if (shape.norm == 1)
        inside %= shape.head_dim;
    return rk_load((query ? q_gain : k_gain) + inside);
}

/* value[column] -> out[head] = function of sums over each normalised unit of a[column] · b[column]: the sum over the
 * head, or over all of q or all of k. */
__device__ void unit_sums(const rope_shape &shape, const float *a, const float *b, float *out, float *shared) {
    int units = shape.heads + shape.kv_heads;
    int warp = threadIdx.x / RK_CUDA_WARP, lane = threadIdx.x % RK_CUDA_WARP;
    for (int unit = warp; unit < units; unit += ROPE_WARPS) {
        float sum = 0;
        for (int i = lane; i < shape.head_dim; i += RK_CUDA_WARP)
            sum += a[unit * shape.head_dim + i] * b[unit * shape.head_dim + i];
        for (int step = RK_CUDA_WARP / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0)
            shared[unit] = sum;
    }
    __syncthreads();
    for (int unit = threadIdx.x; unit < units; unit += ROPE_THREADS) {
        if (shape.norm == 1) {
            out[unit] = shared[unit] / (float)shape.head_dim;
        } else {
            int first = unit < shape.heads ? 0 : shape.heads;
            int count = unit < shape.heads ? shape.heads : shape.kv_heads;
            float sum = 0;
            for (int i = 0; i < count; i++)
                sum += shared[first + i];
            out[unit] = sum / (float)(count * shape.head_dim);
        }
    }
    __syncthreads();
}

template <typename act>
__global__ void rope_forward(rope_shape shape, const act *qkv, const act *q_gain, const act *k_gain, act *out) {
    extern __shared__ float values[]; /* q and k of the token, two floats for each head, the rotations */
    int width = qk_width(shape), units = shape.heads + shape.kv_heads;
    float *mean = values + width, *shared = mean + units, *table = shared + units;
    int64_t row = (int64_t)(shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    const act *in = qkv + blockIdx.x * row;
    act *to = out + blockIdx.x * row;
    for (int i = threadIdx.x; i < width; i += ROPE_THREADS)
        values[i] = rk_load(in + i);
    rotations(shape, blockIdx.x % shape.sequence, table);
    __syncthreads();
    if (shape.norm) {
        unit_sums(shape, values, values, mean, shared);
        for (int i = threadIdx.x; i < width; i += ROPE_THREADS)
            values[i] *= 1.0f / sqrtf(mean[i / shape.head_dim] + shape.epsilon) * gain_of(shape, q_gain, k_gain, i);
        __syncthreads();
    }
    int half = shape.head_dim / 2;
    for (int i = threadIdx.x; i < units * half; i += ROPE_THREADS) {
        int first = i / half * shape.head_dim + i % half;
        float cosine = table[i % half], sine = table[half + i % half];
        float a = values[first], b = values[first + half];
        rk_store(to + first, a * cosine - b * sine);
        rk_store(to + first + half, a * sine + b * cosine);
    }
    if (to != in)
        for (int64_t i = width + threadIdx.x; i < row; i += ROPE_THREADS)
            to[i] = in[i];
}

/* partial: for each block the gradients of both gains, [q unit width + k unit width]. */
template <typename act>
__global__ void rope_backward(rope_shape shape, const act *dout, const act *qkv, const act *q_gain, const act *k_gain,
                              act *dqkv, float *partial) {
    extern __shared__ float values[]; /* gradient, raw values, sums of the gains' gradients, three floats for each head,
                                         the rotations */
    int width = qk_width(shape), units = shape.heads + shape.kv_heads;
    float *gradient = values, *raw = values + width, *dgain = raw + width;
    float *mean = dgain + width, *dot = mean + units, *shared = dot + units, *table = shared + units;
    int64_t row = (int64_t)(shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    int half = shape.head_dim / 2;
    for (int i = threadIdx.x; i < width; i += ROPE_THREADS)
        dgain[i] = 0;
    for (int64_t token = blockIdx.x; token < shape.tokens; token += gridDim.x) {
        const act *from = dout + token * row;
        act *to = dqkv + token * row;
        __syncthreads();
        rotations(shape, token % shape.sequence, table);
        __syncthreads();
        for (int i = threadIdx.x; i < units * half; i += ROPE_THREADS) {
            int first = i / half * shape.head_dim + i % half;
            float cosine = table[i % half], sine = table[half + i % half];
            float a = rk_load(from + first), b = rk_load(from + first + half);
            gradient[first] = a * cosine + b * sine;
            gradient[first + half] = b * cosine - a * sine;
        }
        if (shape.norm)
            for (int i = threadIdx.x; i < width; i += ROPE_THREADS)
                raw[i] = rk_load(qkv + token * row + i);
        __syncthreads();
        if (shape.norm) {
            unit_sums(shape, raw, raw, mean, shared);
            for (int i = threadIdx.x; i < width; i += ROPE_THREADS) {
                float scale = 1.0f / sqrtf(mean[i / shape.head_dim] + shape.epsilon);
                raw[i] *= scale; /* normed */
                dgain[i] += gradient[i] * raw[i];
                gradient[i] *= gain_of(shape, q_gain, k_gain, i);
            }
            __syncthreads();
            unit_sums(shape, gradient, raw, dot, shared);
            for (int i = threadIdx.x; i < width; i += ROPE_THREADS) {
                float scale = 1.0f / sqrtf(mean[i / shape.head_dim] + shape.epsilon);
                gradient[i] = scale * (gradient[i] - raw[i] * dot[i / shape.head_dim]);
            }
            __syncthreads();
        }
        for (int i = threadIdx.x; i < width; i += ROPE_THREADS)
            rk_store(to + i, gradient[i]);
        if (to != from)
            for (int64_t i = width + threadIdx.x; i < row; i += ROPE_THREADS)
                to[i] = from[i];
    }
    if (!shape.norm)
        return;
    __syncthreads();
    if (shape.norm == 2) {
        for (int i = threadIdx.x; i < width; i += ROPE_THREADS)
            partial[(int64_t)blockIdx.x * width + i] = dgain[i];
        return;
    }
    for (int i = threadIdx.x; i < 2 * shape.head_dim; i += ROPE_THREADS) {
        bool query = i < shape.head_dim;
        int first = query ? 0 : shape.heads, count = query ? shape.heads : shape.kv_heads;
        float sum = 0;
        for (int head = first; head < first + count; head++)
            sum += dgain[head * shape.head_dim + i % shape.head_dim];
        partial[(int64_t)blockIdx.x * 2 * shape.head_dim + i] = sum;
    }
}

/* Adds the blocks' partial gradients of both gains, in block order: columns below q_width belong to the query's gain.
 */
__global__ void add_gain_partials(const float *partial, int parts, int width, int q_width, float *dq_gain,
                                  float *dk_gain) {
    int column = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (column >= width)
        return;
    float sum = 0;
    for (int part = 0; part < parts; part++)
        sum += partial[(int64_t)part * width + column];
    if (column < q_width)
        dq_gain[column] += sum;
    else
        dk_gain[column - q_width] += sum;
}

static rope_shape shape_of(const struct rk_op_call *call) {
    const int64_t *dim = call->shape->dim;
    rope_shape shape = {};
    shape.tokens = dim[0];
    shape.sequence = dim[1];
    shape.heads = (int)dim[2];
    shape.kv_heads = (int)dim[3];
    shape.head_dim = (int)dim[4];
    shape.theta = call->parameter[0];
    shape.epsilon = call->parameter[1];
    if (call->shape->flags & RK_OP_FLAG_QK_NORM_HEAD)
        shape.norm = 1;
    else if (call->shape->flags & RK_OP_FLAG_QK_NORM_FULL)
        shape.norm = 2;
    return shape;
}

RK_CUDA_OP(rope_forward) {
    rope_shape shape = shape_of(call);
    if (shape.tokens == 0)
        return RK_OK;
    int units = shape.heads + shape.kv_heads;
    size_t shared = sizeof(float) * (size_t)(units * shape.head_dim + 2 * units + shape.head_dim);
    RK_CUDA_BY_TYPE(call->shape->type, {
        RK_CUDA_TRY(rk_cuda_allow_shared(rope_forward<act>, shared), "rope_forward: shared memory");
        (rope_forward<act><<<(unsigned)shape.tokens, ROPE_THREADS, shared, stream->handle>>>(
            shape, (const act *)call->operand[0], (const act *)call->operand[1], (const act *)call->operand[2],
            (act *)call->operand[3]));
    });
    return rk_cuda_launched(stream, "rope_forward", error);
}

RK_CUDA_OP(rope_backward) {
    rope_shape shape = shape_of(call);
    if (shape.tokens == 0)
        return RK_OK;
    int units = shape.heads + shape.kv_heads;
    size_t shared = sizeof(float) * (size_t)(3 * units * shape.head_dim + 3 * units + shape.head_dim);
    /* Without gains nothing is summed over tokens, and every token can have a block of its own. */
    int64_t most = shape.norm ? (int64_t)RK_CUDA_PARTIAL_ROWS : shape.tokens;
    unsigned blocks = (unsigned)(shape.tokens < most ? shape.tokens : most);
    RK_CUDA_BY_TYPE(call->shape->type, {
        RK_CUDA_TRY(rk_cuda_allow_shared(rope_backward<act>, shared), "rope_backward: shared memory");
        (rope_backward<act><<<blocks, ROPE_THREADS, shared, stream->handle>>>(
            shape, (const act *)call->operand[0], (const act *)call->operand[1], (const act *)call->operand[2],
            (const act *)call->operand[3], (act *)call->operand[4], (float *)call->operand[7]));
    });
    enum rk_status status = rk_cuda_launched(stream, "rope_backward", error);
    if (status != RK_OK || !shape.norm)
        return status;
    int q_width = shape.norm == 1 ? shape.head_dim : shape.heads * shape.head_dim;
    int width = shape.norm == 1 ? 2 * shape.head_dim : units * shape.head_dim;
    add_gain_partials<<<(unsigned)((width + 255) / 256), 256, 0, stream->handle>>>(
        (const float *)call->operand[7], (int)blocks, width, q_width, (float *)call->operand[5],
        (float *)call->operand[6]);
    return rk_cuda_launched(stream, "rope_backward: gains", error);
}

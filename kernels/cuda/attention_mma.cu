/* Causal attention on tensor cores: BF16, heads of 64 or 128 values, softmax and sums in FP32.
 *
 * Forward: a block holds 128 queries of a head, a warp 16 of them, and walks over tiles of 64 keys. Backward in two
 * kernels without atomics: one holds 128 keys and sums dk and dv over the queries of all heads that share them, with
 * scores transposed so that every product's left factor is already in registers; the other holds 128 queries and sums
 * dq. Scores are computed twice: 7 products where a kernel with atomics needs 5. Compute bound. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

enum {
    WARPS = 8,
    THREADS = WARPS * RK_CUDA_WARP,
    HELD = 16 * WARPS,
    FORWARD_KEYS = 64,
    BACKWARD_QUERIES = 32,
    BACKWARD_KEYS = 64
};
#define LOG2_E 1.44269504088896340736f

template <int width> struct layout {
    static constexpr int stride = width + 8; /* of a row in shared memory: ldmatrix meets no bank twice */
    static constexpr int columns = width / 8;
};

/* Brings `rows` rows into shared memory; rows from `valid` on become 0. */
template <int width, int rows>
__device__ __forceinline__ void load_tile(__nv_bfloat16 *tile, const __nv_bfloat16 *from, int64_t stride,
                                          int64_t valid) {
    constexpr int chunks = width / 8;
#pragma unroll
    for (int part = 0; part < rows * chunks / THREADS; part++) {
        int chunk = part * THREADS + (int)threadIdx.x, row = chunk / chunks, column = chunk % chunks * 8;
        bool real = row < valid;
        rk_copy_async(tile + row * layout<width>::stride + column, from + (real ? row * stride + column : 0), real);
    }
}

/* sums[16 rows][count · 8 columns] += left rows · right rowsᵀ, both tiles with `width` inner values. */
template <int width, int count>
__device__ __forceinline__ void multiply_tiles(const __nv_bfloat16 *left, const __nv_bfloat16 *right,
                                               float sums[count][4]) {
    constexpr int stride = layout<width>::stride;
#pragma unroll
    for (int inner = 0; inner < width; inner += 16) {
        unsigned a[4];
        rk_load_matrices<false>(a, left + inner + rk_left_offset(stride));
#pragma unroll
        for (int pair = 0; pair < count / 2; pair++) {
            unsigned b[4];
            rk_load_matrices<false>(b, right + pair * 16 * stride + inner + rk_right_offset(stride));
            rk_multiply_add(sums[2 * pair], a, b[0], b[1]);
            rk_multiply_add(sums[2 * pair + 1], a, b[2], b[3]);
        }
    }
}

/* out[16 rows][width] += weights[16 rows][count · 8] · right[count · 8][width]. */
template <int width, int count>
__device__ __forceinline__ void multiply_weights(const float weights[count][4], const __nv_bfloat16 *right,
                                                 float out[layout<width>::columns][4]) {
    constexpr int stride = layout<width>::stride;
#pragma unroll
    for (int pair = 0; pair < count / 2; pair++) {
        unsigned a[4];
        rk_as_left(weights[2 * pair], weights[2 * pair + 1], a);
#pragma unroll
        for (int column = 0; column < layout<width>::columns; column += 2) {
            unsigned b[4];
            rk_load_matrices<true>(b, right + pair * 16 * stride + column * 8 + rk_right_offset_transposed(stride));
            rk_multiply_add(out[column], a, b[0], b[1]);
            rk_multiply_add(out[column + 1], a, b[2], b[3]);
        }
    }
}

/* Writes a warp's 16 rows, those before `valid` alone. */
template <int width>
__device__ __forceinline__ void store_rows(__nv_bfloat16 *to, int64_t stride, int64_t valid,
                                           const float values[layout<width>::columns][4], float scale_low,
                                           float scale_high) {
    int lane = threadIdx.x % RK_CUDA_WARP, row = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < layout<width>::columns; i++) {
        if (row < valid)
            *(unsigned *)(to + row * stride + i * 8 + column) =
                rk_pack(values[i][0] * scale_low, values[i][1] * scale_low);
        if (row + 8 < valid)
            *(unsigned *)(to + (row + 8) * stride + i * 8 + column) =
                rk_pack(values[i][2] * scale_high, values[i][3] * scale_high);
    }
}

template <int width> struct pointers {
    const __nv_bfloat16 *query, *key, *value; /* of the sequence and head, token 0 */
};

template <int width>
__device__ __forceinline__ pointers<width> sequence_pointers(const attention_shape &shape, const __nv_bfloat16 *qkv,
                                                             int64_t first, int head, int kv_head) {
    const __nv_bfloat16 *base = qkv + first * shape.row;
    return {base + (int64_t)head * width, base + (int64_t)(shape.heads + kv_head) * width,
            base + (int64_t)(shape.heads + shape.kv_heads + kv_head) * width};
}

__device__ __forceinline__ float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ __forceinline__ float quad_sum(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

template <int width>
__global__ void __launch_bounds__(THREADS, 1)
    forward_mma(attention_shape shape, const __nv_bfloat16 *qkv, __nv_bfloat16 *context, float *lse) {
    extern __shared__ __align__(16) __nv_bfloat16 shared[];
    constexpr int stride = layout<width>::stride, scores = FORWARD_KEYS / 8;
    __nv_bfloat16 *query = shared, *keys = query + HELD * stride, *values = keys + 2 * FORWARD_KEYS * stride;
    int warp = threadIdx.x / RK_CUDA_WARP, lane = threadIdx.x % RK_CUDA_WARP;
    int head = blockIdx.y, kv_head = head / (shape.heads / shape.kv_heads);
    int64_t first = rk_attention_sequence(shape, HELD) * shape.sequence;
    /* The last queries have the most keys: they start first. */
    int64_t tile = (rk_attention_tiles(shape, HELD) - 1 - rk_attention_tile(shape, HELD)) * HELD;
    pointers<width> at = sequence_pointers<width>(shape, qkv, first, head, kv_head);
    load_tile<width, HELD>(query, at.query + tile * shape.row, shape.row, shape.sequence - tile);
    load_tile<width, FORWARD_KEYS>(keys, at.key, shape.row, shape.sequence);
    load_tile<width, FORWARD_KEYS>(values, at.value, shape.row, shape.sequence);
    rk_copy_commit();
    float out[layout<width>::columns][4] = {};
    float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, scale = shape.scale * LOG2_E;
    int64_t end = tile + HELD < shape.sequence ? tile + HELD : shape.sequence;
    int64_t row = tile + warp * 16 + lane / 4;
    int slot = 0;
    for (int64_t base = 0; base < end; base += FORWARD_KEYS, slot ^= 1) {
        int64_t next = base + FORWARD_KEYS;
        if (next < end) {
            load_tile<width, FORWARD_KEYS>(keys + (slot ^ 1) * FORWARD_KEYS * stride, at.key + next * shape.row,
                                           shape.row, shape.sequence - next);
            load_tile<width, FORWARD_KEYS>(values + (slot ^ 1) * FORWARD_KEYS * stride, at.value + next * shape.row,
                                           shape.row, shape.sequence - next);
        }
        rk_copy_commit();
        rk_copy_wait<1>();
        __syncthreads();
        float score[scores][4] = {};
        multiply_tiles<width, scores>(query + warp * 16 * stride, keys + slot * FORWARD_KEYS * stride, score);
        bool edge = base + FORWARD_KEYS > tile + warp * 16; /* some key lies after some query of the warp */
        float high[2] = {most[0], most[1]};
#pragma unroll
        for (int i = 0; i < scores; i++)
#pragma unroll
            for (int v = 0; v < 4; v++) {
                int64_t key = base + i * 8 + lane % 4 * 2 + v % 2;
                if (edge && key > row + v / 2 * 8)
                    score[i][v] = -INFINITY;
                high[v / 2] = fmaxf(high[v / 2], score[i][v]);
            }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            high[half] = quad_max(high[half]);
            float rescale = exp2f((most[half] - high[half]) * scale);
            most[half] = high[half];
            sum[half] *= rescale;
#pragma unroll
            for (int i = 0; i < layout<width>::columns; i++) {
                out[i][2 * half] *= rescale;
                out[i][2 * half + 1] *= rescale;
            }
        }
#pragma unroll
        for (int i = 0; i < scores; i++)
#pragma unroll
            for (int v = 0; v < 4; v++) {
                score[i][v] = exp2f(score[i][v] * scale - most[v / 2] * scale);
                sum[v / 2] += score[i][v];
            }
        multiply_weights<width, scores>(score, values + slot * FORWARD_KEYS * stride, out);
        __syncthreads();
    }
    sum[0] = quad_sum(sum[0]);
    sum[1] = quad_sum(sum[1]);
    int64_t token = tile + warp * 16;
    store_rows<width>(context + ((first + token) * shape.heads + head) * width, (int64_t)shape.heads * width,
                      shape.sequence - token, out, 1.0f / sum[0], 1.0f / sum[1]);
    if (lane % 4 == 0)
        for (int half = 0; half < 2; half++)
            if (row + half * 8 < shape.sequence)
                lse[(first + row + half * 8) * shape.heads + head] = most[half] * shape.scale + logf(sum[half]);
}

/* Brings a tile of queries with their dcontext, lse and delta. */
template <int width, int rows>
__device__ __forceinline__ void load_queries(const attention_shape &shape, const __nv_bfloat16 *query,
                                             const __nv_bfloat16 *dcontext, const float *lse, const float *delta,
                                             int64_t first, int head, int64_t base, __nv_bfloat16 *query_tile,
                                             __nv_bfloat16 *gradient_tile, float *lse_tile, float *delta_tile) {
    int64_t valid = shape.sequence - base;
    load_tile<width, rows>(query_tile, query + base * shape.row, shape.row, valid);
    load_tile<width, rows>(gradient_tile, dcontext + ((first + base) * shape.heads + head) * width,
                           (int64_t)shape.heads * width, valid);
    if (threadIdx.x < rows) {
        int64_t unit = (first + base + threadIdx.x) * shape.heads + head;
        bool real = threadIdx.x < valid;
        lse_tile[threadIdx.x] = real ? lse[unit] * LOG2_E : 0.0f;
        delta_tile[threadIdx.x] = real ? delta[unit] : 0.0f;
    }
}

template <int width>
__global__ void __launch_bounds__(THREADS, 1)
    backward_key_mma(attention_shape shape, const __nv_bfloat16 *qkv, const __nv_bfloat16 *dcontext, const float *lse,
                     const float *delta, __nv_bfloat16 *dqkv) {
    extern __shared__ __align__(16) __nv_bfloat16 shared[];
    constexpr int stride = layout<width>::stride, rows = BACKWARD_QUERIES, scores = rows / 8;
    __nv_bfloat16 *key = shared, *value = key + HELD * stride, *queries = value + HELD * stride;
    __nv_bfloat16 *gradients = queries + 2 * rows * stride;
    float *lses = (float *)(gradients + 2 * rows * stride), *deltas = lses + 2 * rows;
    int warp = threadIdx.x / RK_CUDA_WARP, lane = threadIdx.x % RK_CUDA_WARP;
    int kv_head = blockIdx.y, share = shape.heads / shape.kv_heads;
    int64_t first = rk_attention_sequence(shape, HELD) * shape.sequence, tile = rk_attention_tile(shape, HELD) * HELD;
    pointers<width> at = sequence_pointers<width>(shape, qkv, first, kv_head * share, kv_head);
    load_tile<width, HELD>(key, at.key + tile * shape.row, shape.row, shape.sequence - tile);
    load_tile<width, HELD>(value, at.value + tile * shape.row, shape.row, shape.sequence - tile);
    int64_t tiles = (shape.sequence - tile + rows - 1) / rows, steps = tiles * share;
    load_queries<width, rows>(shape, at.query, dcontext, lse, delta, first, kv_head * share, tile, queries, gradients,
                              lses, deltas);
    rk_copy_commit();
    float dkey[layout<width>::columns][4] = {}, dvalue[layout<width>::columns][4] = {};
    float scale = shape.scale * LOG2_E;
    int64_t key_row = tile + warp * 16 + lane / 4;
    for (int64_t step = 0; step < steps; step++) {
        int slot = (int)(step & 1), other = slot ^ 1;
        if (step + 1 < steps) {
            int head = (int)((step + 1) / tiles);
            load_queries<width, rows>(shape, at.query + (int64_t)head * width, dcontext, lse, delta, first,
                                      kv_head * share + head, tile + (step + 1) % tiles * rows,
                                      queries + other * rows * stride, gradients + other * rows * stride,
                                      lses + other * rows, deltas + other * rows);
        }
        rk_copy_commit();
        rk_copy_wait<1>();
        __syncthreads();
        int64_t base = tile + step % tiles * rows;
        const __nv_bfloat16 *query = queries + slot * rows * stride, *gradient = gradients + slot * rows * stride;
        float weight[scores][4] = {}, dscore[scores][4] = {};
        multiply_tiles<width, scores>(key + warp * 16 * stride, query, weight);
        multiply_tiles<width, scores>(value + warp * 16 * stride, gradient, dscore);
#pragma unroll
        for (int i = 0; i < scores; i++)
#pragma unroll
            for (int v = 0; v < 4; v++) {
                int column = i * 8 + lane % 4 * 2 + v % 2;
                bool seen = key_row + v / 2 * 8 <= base + column && base + column < shape.sequence;
                weight[i][v] = seen ? exp2f(weight[i][v] * scale - lses[slot * rows + column]) : 0.0f;
                dscore[i][v] = weight[i][v] * (dscore[i][v] - deltas[slot * rows + column]);
            }
        multiply_weights<width, scores>(weight, gradient, dvalue);
        multiply_weights<width, scores>(dscore, query, dkey);
        __syncthreads();
    }
    int64_t token = tile + warp * 16;
    __nv_bfloat16 *to = dqkv + (first + token) * shape.row + (int64_t)(shape.heads + kv_head) * width;
    store_rows<width>(to, shape.row, shape.sequence - token, dkey, shape.scale, shape.scale);
    store_rows<width>(to + (int64_t)shape.kv_heads * width, shape.row, shape.sequence - token, dvalue, 1.0f, 1.0f);
}

template <int width>
__global__ void __launch_bounds__(THREADS, 1)
    backward_query_mma(attention_shape shape, const __nv_bfloat16 *qkv, const __nv_bfloat16 *dcontext, const float *lse,
                       const float *delta, __nv_bfloat16 *dqkv) {
    extern __shared__ __align__(16) __nv_bfloat16 shared[];
    constexpr int stride = layout<width>::stride, rows = BACKWARD_KEYS, scores = rows / 8;
    __nv_bfloat16 *query = shared, *gradient = query + HELD * stride, *keys = gradient + HELD * stride;
    __nv_bfloat16 *values = keys + 2 * rows * stride;
    int warp = threadIdx.x / RK_CUDA_WARP, lane = threadIdx.x % RK_CUDA_WARP;
    int head = blockIdx.y, kv_head = head / (shape.heads / shape.kv_heads);
    int64_t first = rk_attention_sequence(shape, HELD) * shape.sequence;
    int64_t tile = (rk_attention_tiles(shape, HELD) - 1 - rk_attention_tile(shape, HELD)) * HELD;
    pointers<width> at = sequence_pointers<width>(shape, qkv, first, head, kv_head);
    int64_t context_stride = (int64_t)shape.heads * width;
    load_tile<width, HELD>(query, at.query + tile * shape.row, shape.row, shape.sequence - tile);
    load_tile<width, HELD>(gradient, dcontext + ((first + tile) * shape.heads + head) * width, context_stride,
                           shape.sequence - tile);
    load_tile<width, rows>(keys, at.key, shape.row, shape.sequence);
    load_tile<width, rows>(values, at.value, shape.row, shape.sequence);
    rk_copy_commit();
    int64_t row = tile + warp * 16 + lane / 4;
    float row_lse[2], row_delta[2], scale = shape.scale * LOG2_E;
    for (int half = 0; half < 2; half++) {
        int64_t unit = (first + row + half * 8) * shape.heads + head;
        bool real = row + half * 8 < shape.sequence;
        row_lse[half] = real ? lse[unit] * LOG2_E : 0.0f;
        row_delta[half] = real ? delta[unit] : 0.0f;
    }
    float dquery[layout<width>::columns][4] = {};
    int64_t end = tile + HELD < shape.sequence ? tile + HELD : shape.sequence;
    int slot = 0;
    for (int64_t base = 0; base < end; base += rows, slot ^= 1) {
        int64_t next = base + rows;
        if (next < end) {
            load_tile<width, rows>(keys + (slot ^ 1) * rows * stride, at.key + next * shape.row, shape.row,
                                   shape.sequence - next);
            load_tile<width, rows>(values + (slot ^ 1) * rows * stride, at.value + next * shape.row, shape.row,
                                   shape.sequence - next);
        }
        rk_copy_commit();
        rk_copy_wait<1>();
        __syncthreads();
        const __nv_bfloat16 *key = keys + slot * rows * stride;
        float weight[scores][4] = {}, dscore[scores][4] = {};
        multiply_tiles<width, scores>(query + warp * 16 * stride, key, weight);
        multiply_tiles<width, scores>(gradient + warp * 16 * stride, values + slot * rows * stride, dscore);
#pragma unroll
        for (int i = 0; i < scores; i++)
#pragma unroll
            for (int v = 0; v < 4; v++) {
                int64_t position = base + i * 8 + lane % 4 * 2 + v % 2;
                bool seen = position <= row + v / 2 * 8;
                float probability = seen ? exp2f(weight[i][v] * scale - row_lse[v / 2]) : 0.0f;
                dscore[i][v] = probability * (dscore[i][v] - row_delta[v / 2]);
            }
        multiply_weights<width, scores>(dscore, key, dquery);
        __syncthreads();
    }
    int64_t token = tile + warp * 16;
    store_rows<width>(dqkv + (first + token) * shape.row + (int64_t)head * width, shape.row, shape.sequence - token,
                      dquery, shape.scale, shape.scale);
}

bool rk_cuda_attention_takes_mma(const struct rk_op_call *call) {
    int64_t width = call->shape->dim[4];
    return call->shape->type == RK_BF16 && (width == 64 || width == 128);
}

template <int width>
static enum rk_status forward(struct rk_stream *stream, const struct rk_op_call *call, struct rk_error *error) {
    attention_shape shape = rk_cuda_attention_shape(call);
    size_t bytes = sizeof(__nv_bfloat16) * (HELD + 4 * FORWARD_KEYS) * layout<width>::stride;
    RK_CUDA_TRY(rk_cuda_allow_shared(forward_mma<width>, bytes), "attention_forward: shared memory");
    forward_mma<width><<<rk_cuda_attention_grid(shape, HELD, shape.heads), THREADS, bytes, stream->handle>>>(
        shape, (const __nv_bfloat16 *)call->operand[0], (__nv_bfloat16 *)call->operand[1], (float *)call->operand[2]);
    return rk_cuda_launched(stream, "attention_forward", error);
}

template <int width>
static enum rk_status backward(struct rk_stream *stream, const struct rk_op_call *call, const float *delta,
                               struct rk_error *error) {
    attention_shape shape = rk_cuda_attention_shape(call);
    const __nv_bfloat16 *qkv = (const __nv_bfloat16 *)call->operand[0];
    const __nv_bfloat16 *dcontext = (const __nv_bfloat16 *)call->operand[3];
    const float *lse = (const float *)call->operand[2];
    __nv_bfloat16 *dqkv = (__nv_bfloat16 *)call->operand[4];
    size_t bytes = sizeof(__nv_bfloat16) * (2 * HELD + 4 * BACKWARD_QUERIES) * layout<width>::stride +
                   sizeof(float) * 4 * BACKWARD_QUERIES;
    RK_CUDA_TRY(rk_cuda_allow_shared(backward_key_mma<width>, bytes), "attention_backward: shared memory");
    backward_key_mma<width><<<rk_cuda_attention_grid(shape, HELD, shape.kv_heads), THREADS, bytes, stream->handle>>>(
        shape, qkv, dcontext, lse, delta, dqkv);
    enum rk_status status = rk_cuda_launched(stream, "attention_backward: keys", error);
    if (status != RK_OK)
        return status;
    bytes = sizeof(__nv_bfloat16) * (2 * HELD + 4 * BACKWARD_KEYS) * layout<width>::stride;
    RK_CUDA_TRY(rk_cuda_allow_shared(backward_query_mma<width>, bytes), "attention_backward: shared memory");
    backward_query_mma<width><<<rk_cuda_attention_grid(shape, HELD, shape.heads), THREADS, bytes, stream->handle>>>(
        shape, qkv, dcontext, lse, delta, dqkv);
    return rk_cuda_launched(stream, "attention_backward: queries", error);
}

enum rk_status rk_cuda_attention_forward_mma(struct rk_stream *stream, const struct rk_op_call *call,
                                             struct rk_error *error) {
    return call->shape->dim[4] == 64 ? forward<64>(stream, call, error) : forward<128>(stream, call, error);
}

enum rk_status rk_cuda_attention_backward_mma(struct rk_stream *stream, const struct rk_op_call *call,
                                              const float *delta, struct rk_error *error) {
    return call->shape->dim[4] == 64 ? backward<64>(stream, call, delta, error)
                                     : backward<128>(stream, call, delta, error);
}

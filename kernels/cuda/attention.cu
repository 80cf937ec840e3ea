/* Causal attention, any type and head width up to 256, with plain arithmetic in FP32: the oracle and the fallback of
 * the tensor core path (attention_mma.cu).
 *
 * Scores never reach device memory: a block holds a tile of queries (or keys) and walks over tiles of the other side.
 * Forward 4 · T · S/2 · n_h · d_head operations, backward 2.5 times that, and the scores once more for dq. No atomics:
 * dq and dk, dv come from two kernels, each of which owns its outputs. */
#include "kernels/cuda/attention.cuh"

enum { ATTENTION_THREADS = 256, SIDE = 16 }; /* threads stand in a SIDE × SIDE square */

/* rows of a tile: as many as shared memory holds */
template <int rows> struct tile_size { static constexpr int each = rows / SIDE; /* rows or columns of a thread */ };

template <typename act>
__device__ void load_rows(float *tile, const act *from, int64_t stride, int64_t valid, int rows, int width) {
    for (int i = threadIdx.x; i < rows * width; i += ATTENTION_THREADS) {
        int row = i / width, column = i % width;
        tile[row * (width + 1) + column] = row < valid ? rk_load(from + row * stride + column) : 0.0f;
    }
}

/* sums[i][j] = left row (y·each + i) · right row (x·each + j), over width. */
template <int each>
__device__ void multiply_rows(const float *left, const float *right, int width, float sums[each][each]) {
    int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    for (int i = 0; i < each; i++)
        for (int j = 0; j < each; j++)
            sums[i][j] = 0;
    for (int k = 0; k < width; k++) {
        float a[each], b[each];
        for (int i = 0; i < each; i++) {
            a[i] = left[(y * each + i) * (width + 1) + k];
            b[i] = right[(x * each + i) * (width + 1) + k];
        }
        for (int i = 0; i < each; i++)
            for (int j = 0; j < each; j++)
                sums[i][j] += a[i] * b[j];
    }
}

enum { COLUMNS_MAX = 256 / SIDE }; /* columns x, x + 16, ... of a head that a thread accumulates */

/* out[i][c] += Σ_j weights(row i, j) · right[j][column c]; transposed: weights(j, row i). */
template <int each, bool transposed>
__device__ void accumulate(const float *weights, const float *right, int rows, int width,
                           float out[each][COLUMNS_MAX]) {
    int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    for (int j = 0; j < rows; j++)
        for (int i = 0; i < each; i++) {
            int row = y * each + i;
            float weight = transposed ? weights[j * (rows + 1) + row] : weights[row * (rows + 1) + j];
            for (int c = 0; c * SIDE + x < width; c++)
                out[i][c] += weight * right[j * (width + 1) + c * SIDE + x];
        }
}

template <typename act, int rows>
__global__ void attention_forward(attention_shape shape, const act *qkv, act *context, float *lse) {
    constexpr int each = tile_size<rows>::each;
    extern __shared__ float shared[];
    int width = shape.head_dim, x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    float *query = shared, *key = query + rows * (width + 1), *value = key + rows * (width + 1);
    float *weights = value + rows * (width + 1);
    int head = blockIdx.y, kv_head = head / (shape.heads / shape.kv_heads);
    int64_t stride = shape.row, first = rk_attention_sequence(shape, rows) * shape.sequence;
    int64_t tile = rk_attention_tile(shape, rows) * (int64_t)rows;
    const act *sequence = qkv + first * stride;
    load_rows(query, sequence + tile * stride + head * width, stride, shape.sequence - tile, rows, width);
    float most[each], sum[each], out[each][COLUMNS_MAX] = {};
    for (int i = 0; i < each; i++) {
        most[i] = -INFINITY;
        sum[i] = 0;
    }
    for (int64_t base = 0; base <= tile && base < shape.sequence; base += rows) {
        __syncthreads();
        load_rows(key, sequence + base * stride + (shape.heads + kv_head) * width, stride, shape.sequence - base, rows,
                  width);
        load_rows(value, sequence + base * stride + (shape.heads + shape.kv_heads + kv_head) * width, stride,
                  shape.sequence - base, rows, width);
        __syncthreads();
        float score[each][each];
        multiply_rows<each>(query, key, width, score);
        for (int i = 0; i < each; i++) {
            int64_t position = tile + y * each + i;
            float high = -INFINITY;
            for (int j = 0; j < each; j++) {
                bool seen = base + x * each + j <= position && base + x * each + j < shape.sequence;
                score[i][j] = seen ? score[i][j] * shape.scale : -INFINITY;
                high = fmaxf(high, score[i][j]);
            }
            for (int step = SIDE / 2; step > 0; step /= 2)
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, step));
            float next = fmaxf(most[i], high), rescale = expf(most[i] - next), total = 0;
            for (int j = 0; j < each; j++) {
                float weight = expf(score[i][j] - next);
                weights[(y * each + i) * (rows + 1) + x * each + j] = weight;
                total += weight;
            }
            for (int step = SIDE / 2; step > 0; step /= 2)
                total += __shfl_xor_sync(0xffffffffu, total, step);
            sum[i] = sum[i] * rescale + total;
            most[i] = next;
            for (int c = 0; c * SIDE + x < width; c++)
                out[i][c] *= rescale;
        }
        __syncthreads();
        accumulate<each, false>(weights, value, rows, width, out);
    }
    for (int i = 0; i < each; i++) {
        int64_t position = tile + y * each + i;
        if (position >= shape.sequence)
            continue;
        act *to = context + ((first + position) * shape.heads + head) * width;
        for (int c = 0; c * SIDE + x < width; c++)
            rk_store(to + c * SIDE + x, out[i][c] / sum[i]);
        if (x == 0)
            lse[(first + position) * shape.heads + head] = most[i] + logf(sum[i]);
    }
}

/* delta[token, head] = Σ dcontext · context: one warp each. */
template <typename act>
__global__ void attention_delta(attention_shape shape, const act *context, const act *dcontext, float *delta) {
    int64_t unit = (int64_t)blockIdx.x * (blockDim.x / RK_CUDA_WARP) + threadIdx.x / RK_CUDA_WARP;
    if (unit >= shape.tokens * shape.heads)
        return;
    float sum = 0;
    for (int i = threadIdx.x % RK_CUDA_WARP; i < shape.head_dim; i += RK_CUDA_WARP)
        sum += rk_load(context + unit * shape.head_dim + i) * rk_load(dcontext + unit * shape.head_dim + i);
    for (int step = RK_CUDA_WARP / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % RK_CUDA_WARP == 0)
        delta[unit] = sum;
}

/* Weights and their gradients of a query tile against a key tile, into shared memory. */
template <int rows>
__device__ void weights_and_gradients(const attention_shape &shape, const float *query, const float *key,
                                      const float *value, const float *dcontext, const float *lse, const float *delta,
                                      int head, int64_t first, int64_t query_base, int64_t key_base, float *weights,
                                      float *dscores) {
    constexpr int each = tile_size<rows>::each;
    int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    float score[each][each], dweight[each][each];
    multiply_rows<each>(query, key, shape.head_dim, score);
    multiply_rows<each>(dcontext, value, shape.head_dim, dweight);
    for (int i = 0; i < each; i++)
        for (int j = 0; j < each; j++) {
            int64_t position = query_base + y * each + i, other = key_base + x * each + j;
            bool seen = other <= position && position < shape.sequence;
            int64_t unit = (first + position) * shape.heads + head;
            float weight = seen ? expf(score[i][j] * shape.scale - lse[unit]) : 0.0f;
            int place = (y * each + i) * (rows + 1) + x * each + j;
            if (weights)
                weights[place] = weight;
            dscores[place] = seen ? weight * (dweight[i][j] - delta[unit]) * shape.scale : 0.0f;
        }
}

template <typename act, int rows>
__global__ void attention_backward_query(attention_shape shape, const act *qkv, const act *dcontext, const float *lse,
                                         const float *delta, act *dqkv) {
    constexpr int each = tile_size<rows>::each;
    extern __shared__ float shared[];
    int width = shape.head_dim, x = threadIdx.x % SIDE, y = threadIdx.x / SIDE, padded = rows * (width + 1);
    float *query = shared, *key = query + padded, *value = key + padded, *gradient = value + padded;
    float *dscores = gradient + padded;
    int head = blockIdx.y, kv_head = head / (shape.heads / shape.kv_heads);
    int64_t stride = shape.row, context_stride = (int64_t)shape.heads * width;
    int64_t first = rk_attention_sequence(shape, rows) * shape.sequence;
    int64_t tile = rk_attention_tile(shape, rows) * (int64_t)rows;
    const act *sequence = qkv + first * stride;
    load_rows(query, sequence + tile * stride + head * width, stride, shape.sequence - tile, rows, width);
    load_rows(gradient, dcontext + (first + tile) * context_stride + head * width, context_stride,
              shape.sequence - tile, rows, width);
    float out[each][COLUMNS_MAX] = {};
    for (int64_t base = 0; base <= tile && base < shape.sequence; base += rows) {
        __syncthreads();
        load_rows(key, sequence + base * stride + (shape.heads + kv_head) * width, stride, shape.sequence - base, rows,
                  width);
        load_rows(value, sequence + base * stride + (shape.heads + shape.kv_heads + kv_head) * width, stride,
                  shape.sequence - base, rows, width);
        __syncthreads();
        weights_and_gradients<rows>(shape, query, key, value, gradient, lse, delta, head, first, tile, base,
                                    (float *)NULL, dscores);
        __syncthreads();
        accumulate<each, false>(dscores, key, rows, width, out);
    }
    for (int i = 0; i < each; i++) {
        int64_t position = tile + y * each + i;
        if (position >= shape.sequence)
            continue;
        act *to = dqkv + (first + position) * stride + head * width;
        for (int c = 0; c * SIDE + x < width; c++)
            rk_store(to + c * SIDE + x, out[i][c]);
    }
}

template <typename act, int rows>
__global__ void attention_backward_key(attention_shape shape, const act *qkv, const act *dcontext, const float *lse,
                                       const float *delta, act *dqkv) {
    constexpr int each = tile_size<rows>::each;
    extern __shared__ float shared[];
    int width = shape.head_dim, x = threadIdx.x % SIDE, y = threadIdx.x / SIDE, padded = rows * (width + 1);
    float *query = shared, *key = query + padded, *value = key + padded, *gradient = value + padded;
    float *dscores = gradient + padded, *weights = dscores + rows * (rows + 1);
    int kv_head = blockIdx.y, share = shape.heads / shape.kv_heads;
    int64_t stride = shape.row, context_stride = (int64_t)shape.heads * width;
    int64_t first = rk_attention_sequence(shape, rows) * shape.sequence;
    int64_t tile = rk_attention_tile(shape, rows) * (int64_t)rows;
    const act *sequence = qkv + first * stride;
    load_rows(key, sequence + tile * stride + (shape.heads + kv_head) * width, stride, shape.sequence - tile, rows,
              width);
    load_rows(value, sequence + tile * stride + (shape.heads + shape.kv_heads + kv_head) * width, stride,
              shape.sequence - tile, rows, width);
    float dkey[each][COLUMNS_MAX] = {}, dvalue[each][COLUMNS_MAX] = {};
    for (int head = kv_head * share; head < (kv_head + 1) * share; head++)
        for (int64_t base = tile; base < shape.sequence; base += rows) {
            __syncthreads();
            load_rows(query, sequence + base * stride + head * width, stride, shape.sequence - base, rows, width);
            load_rows(gradient, dcontext + (first + base) * context_stride + head * width, context_stride,
                      shape.sequence - base, rows, width);
            __syncthreads();
            weights_and_gradients<rows>(shape, query, key, value, gradient, lse, delta, head, first, base, tile,
                                        weights, dscores);
            __syncthreads();
            accumulate<each, true>(weights, gradient, rows, width, dvalue);
            accumulate<each, true>(dscores, query, rows, width, dkey);
        }
    for (int i = 0; i < each; i++) {
        int64_t position = tile + y * each + i;
        if (position >= shape.sequence)
            continue;
        act *to = dqkv + (first + position) * stride + (shape.heads + kv_head) * width;
        for (int c = 0; c * SIDE + x < width; c++) {
            rk_store(to + c * SIDE + x, dkey[i][c]);
            rk_store(to + shape.kv_heads * width + c * SIDE + x, dvalue[i][c]);
        }
    }
}

attention_shape rk_cuda_attention_shape(const struct rk_op_call *call) {
    const int64_t *dim = call->shape->dim;
    attention_shape shape = {};
    shape.tokens = dim[0];
    shape.sequence = dim[1];
    shape.heads = (int)dim[2];
    shape.kv_heads = (int)dim[3];
    shape.head_dim = (int)dim[4];
    shape.row = (dim[2] + 2 * dim[3]) * dim[4];
    shape.scale = 1.0f / sqrtf((float)dim[4]);
    return shape;
}

dim3 rk_cuda_attention_grid(const attention_shape &shape, int rows, int heads) {
    int64_t tiles = (shape.sequence + rows - 1) / rows;
    return dim3((unsigned)(tiles * (shape.tokens / shape.sequence)), (unsigned)heads);
}

static size_t shared_bytes(const attention_shape &shape, int rows, int tiles, int squares) {
    return sizeof(float) * (size_t)rows * (size_t)(tiles * (shape.head_dim + 1) + squares * (rows + 1));
}

template <typename act, int rows>
static enum rk_status forward(struct rk_stream *stream, const struct rk_op_call *call, const attention_shape &shape,
                              struct rk_error *error) {
    size_t shared = shared_bytes(shape, rows, 3, 1);
    RK_CUDA_TRY(rk_cuda_allow_shared(attention_forward<act, rows>, shared), "attention_forward: shared memory");
    attention_forward<act, rows>
        <<<rk_cuda_attention_grid(shape, rows, shape.heads), ATTENTION_THREADS, shared, stream->handle>>>(
            shape, (const act *)call->operand[0], (act *)call->operand[1], (float *)call->operand[2]);
    return rk_cuda_launched(stream, "attention_forward", error);
}

static enum rk_status check_width(const attention_shape &shape, struct rk_error *error) {
    if (shape.head_dim <= 256)
        return RK_OK;
    return rk_fail(error, RK_USAGE, "attention on GPUs: heads of %d values; at most 256 are supported", shape.head_dim);
}

RK_CUDA_OP(attention_forward) {
    attention_shape shape = rk_cuda_attention_shape(call);
    enum rk_status status = check_width(shape, error);
    if (status != RK_OK || shape.tokens == 0)
        return status;
    if (rk_cuda_attention_takes_mma(call))
        return rk_cuda_attention_forward_mma(stream, call, error);
    RK_CUDA_BY_TYPE(call->shape->type, {
        status = shape.head_dim <= 128 ? forward<act, 64>(stream, call, shape, error)
                                       : forward<act, 32>(stream, call, shape, error);
    });
    return status;
}

enum rk_status rk_cuda_attention_delta(struct rk_stream *stream, const struct rk_op_call *call, float *delta,
                                       struct rk_error *error) {
    attention_shape shape = rk_cuda_attention_shape(call);
    int64_t units = shape.tokens * shape.heads, warps = ATTENTION_THREADS / RK_CUDA_WARP;
    RK_CUDA_BY_TYPE(
        call->shape->type,
        (attention_delta<act><<<(unsigned)((units + warps - 1) / warps), ATTENTION_THREADS, 0, stream->handle>>>(
            shape, (const act *)call->operand[1], (const act *)call->operand[3], delta)));
    return rk_cuda_launched(stream, "attention_backward: row sums", error);
}

template <typename act, int rows>
static enum rk_status backward(struct rk_stream *stream, const struct rk_op_call *call, const attention_shape &shape,
                               const float *delta, struct rk_error *error) {
    const act *qkv = (const act *)call->operand[0], *dcontext = (const act *)call->operand[3];
    const float *lse = (const float *)call->operand[2];
    act *dqkv = (act *)call->operand[4];
    size_t shared = shared_bytes(shape, rows, 4, 1);
    RK_CUDA_TRY(rk_cuda_allow_shared(attention_backward_query<act, rows>, shared), "attention_backward: shared memory");
    attention_backward_query<act, rows>
        <<<rk_cuda_attention_grid(shape, rows, shape.heads), ATTENTION_THREADS, shared, stream->handle>>>(
            shape, qkv, dcontext, lse, delta, dqkv);
    enum rk_status status = rk_cuda_launched(stream, "attention_backward: queries", error);
    if (status != RK_OK)
        return status;
    shared = shared_bytes(shape, rows, 4, 2);
    RK_CUDA_TRY(rk_cuda_allow_shared(attention_backward_key<act, rows>, shared), "attention_backward: shared memory");
    attention_backward_key<act, rows>
        <<<rk_cuda_attention_grid(shape, rows, shape.kv_heads), ATTENTION_THREADS, shared, stream->handle>>>(
            shape, qkv, dcontext, lse, delta, dqkv);
    return rk_cuda_launched(stream, "attention_backward: keys", error);
}

RK_CUDA_OP(attention_backward) {
    attention_shape shape = rk_cuda_attention_shape(call);
    enum rk_status status = check_width(shape, error);
    if (status != RK_OK || shape.tokens == 0)
        return status;
    float *delta = (float *)call->operand[5];
    status = rk_cuda_attention_delta(stream, call, delta, error);
    if (status != RK_OK)
        return status;
    if (rk_cuda_attention_takes_mma(call))
        return rk_cuda_attention_backward_mma(stream, call, delta, error);
    RK_CUDA_BY_TYPE(call->shape->type, {
        status = shape.head_dim <= 128 ? backward<act, 64>(stream, call, shape, delta, error)
                                       : backward<act, 32>(stream, call, shape, delta, error);
    });
    return status;
}

/* Routing: scores, top-k, requested counts, the losses' sums, and the maps from routes to rows of the receive buffers.
 * Nothing here is read by the host. Integer atomics only, so every run gives the same bits. */
#include "kernels/cuda/internal.cuh"
#include "kernels/route_random.h"

enum { ROUTE_THREADS = 256, ROUTE_WARPS = ROUTE_THREADS / RK_CUDA_WARP, LANE_EXPERTS = 32 };
/* A lane holds every 32nd expert of a token, and one of its routes. */
static_assert((int)RK_CUDA_EXPERTS_MAX == RK_CUDA_WARP * LANE_EXPERTS && (int)RK_CUDA_ROUTES_MAX == (int)RK_CUDA_WARP,
              "the limits of routing are those of a warp");

struct route_shape {
    int64_t tokens;
    int experts, top_k;
    bool sigmoid, normalise, uniform, random;
    float scaling;
    uint64_t serial;
};

__device__ __forceinline__ float warp_sum(float value) {
    for (int step = RK_CUDA_WARP / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

/* Scores of a token, experts lane, lane + 32, ...; returns the logarithm of the softmax sum. Lanes past the last expert
 * get score 0. sum: of all scores. */
template <int count>
__device__ float token_scores(const float *logits, int experts, bool sigmoid, float score[count], float *sum) {
    int lane = threadIdx.x % RK_CUDA_WARP;
    float most = -INFINITY, total = 0;
#pragma unroll
    for (int i = 0; i < count; i++) {
        int expert = lane + i * RK_CUDA_WARP;
        score[i] = expert < experts ? logits[expert] : -INFINITY;
        most = fmaxf(most, score[i]);
    }
    for (int step = RK_CUDA_WARP / 2; step > 0; step /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    float power[count];
#pragma unroll
    for (int i = 0; i < count; i++) {
        power[i] = lane + i * RK_CUDA_WARP < experts ? expf(score[i] - most) : 0.0f;
        total += power[i];
    }
    total = warp_sum(total);
    float scores = 0;
#pragma unroll
    for (int i = 0; i < count; i++) {
        bool real = lane + i * RK_CUDA_WARP < experts;
        score[i] = !real ? 0.0f : sigmoid ? 1.0f / (1.0f + expf(-score[i])) : power[i] / total;
        scores += score[i];
    }
    *sum = warp_sum(scores);
    return logf(total) + most;
}

/* The score of one expert, known to the lane that holds it, to all lanes. */
template <int count> __device__ float score_of(const float score[count], int expert) {
    float value = 0;
#pragma unroll
    for (int i = 0; i < count; i++)
        if (i == expert / RK_CUDA_WARP)
            value = score[i];
    return __shfl_sync(0xffffffffu, value, expert % RK_CUDA_WARP);
}

template <int count>
__global__ void route_forward(route_shape shape, const float *logits, const float *bias, int32_t *index, float *weight,
                              int32_t *requested, float *partial) {
    int lane = threadIdx.x % RK_CUDA_WARP, warp = threadIdx.x / RK_CUDA_WARP;
    extern __shared__ float sums[]; /* for each warp: experts + 1 */
    float mine[count], squares = 0;
#pragma unroll
    for (int i = 0; i < count; i++)
        mine[i] = 0;
    for (int64_t token = (int64_t)blockIdx.x * ROUTE_WARPS + warp; token < shape.tokens;
         token += (int64_t)gridDim.x * ROUTE_WARPS) {
        float score[count], sum;
        float lse = token_scores<count>(logits + token * shape.experts, shape.experts, shape.sigmoid, score, &sum);
        squares += lse * lse;
        unsigned taken = 0;
        float chosen_sum = 0, own_weight = 0;
        int32_t drawn[RK_ROUTES_MAX];
        if (shape.random)
            rk_route_random_experts(shape.serial, token, shape.top_k, shape.experts, shape.top_k, drawn);
        for (int k = 0; k < shape.top_k; k++) {
            int best = 0;
            if (shape.uniform) {
                best = (int)((token * shape.top_k + k) % shape.experts);
            } else if (shape.random) {
                best = drawn[k];
            } else {
                float best_score = -INFINITY;
                best = RK_CUDA_EXPERTS_MAX;
#pragma unroll
                for (int i = 0; i < count; i++) {
                    int expert = lane + i * RK_CUDA_WARP;
                    if (expert >= shape.experts || (taken >> i & 1u))
                        continue;
                    float value = score[i] + (bias ? bias[expert] : 0.0f);
                    if (!(value >= -INFINITY)) /* NaN ranks below everything */
                        value = -INFINITY;
                    if (value > best_score || best == RK_CUDA_EXPERTS_MAX) {
                        best_score = value;
                        best = expert;
                    }
                }
                for (int step = RK_CUDA_WARP / 2; step > 0; step /= 2) {
                    float other_score = __shfl_xor_sync(0xffffffffu, best_score, step);
                    int other = __shfl_xor_sync(0xffffffffu, best, step);
                    if (other < RK_CUDA_EXPERTS_MAX && (best == RK_CUDA_EXPERTS_MAX || other_score > best_score ||
                                                        (other_score == best_score && other < best))) {
                        best_score = other_score;
                        best = other;
                    }
                }
                if (best % RK_CUDA_WARP == lane)
                    taken |= 1u << best / RK_CUDA_WARP;
            }
            float value = score_of<count>(score, best);
            chosen_sum += value;
            if (lane == k)
                own_weight = value;
            if (lane == 0) {
                index[token * shape.top_k + k] = best;
                atomicAdd(&requested[best], 1);
            }
        }
        float scale = shape.normalise ? shape.scaling / chosen_sum : shape.scaling;
        if (lane < shape.top_k)
            weight[token * shape.top_k + lane] = own_weight * scale;
        float share = shape.sigmoid ? 1.0f / sum : 1.0f;
#pragma unroll
        for (int i = 0; i < count; i++)
            mine[i] += score[i] * share;
    }
    float *own = sums + warp * (shape.experts + 1);
#pragma unroll
    for (int i = 0; i < count; i++)
        if (lane + i * RK_CUDA_WARP < shape.experts)
            own[lane + i * RK_CUDA_WARP] = mine[i];
    if (lane == 0)
        own[shape.experts] = squares;
    __syncthreads();
    for (int i = threadIdx.x; i <= shape.experts; i += ROUTE_THREADS) {
        float sum = 0;
        for (int w = 0; w < ROUTE_WARPS; w++)
            sum += sums[w * (shape.experts + 1) + i];
        partial[(int64_t)blockIdx.x * (shape.experts + 1) + i] = sum;
    }
}

/* One block: adds the partial sums in block order, writes the mean scores and adds to the losses' sums. */
__global__ void route_losses(const float *partial, int parts, int64_t tokens, int experts, int top_k,
                             const int32_t *requested, float *score_mean, double *sums) {
    extern __shared__ double terms[];
    for (int i = threadIdx.x; i <= experts; i += blockDim.x) {
        double sum = 0;
        for (int part = 0; part < parts; part++)
            sum += (double)partial[(int64_t)part * (experts + 1) + i];
        sum /= (double)tokens;
        if (i < experts) {
            score_mean[i] = (float)sum;
            terms[i] = (double)requested[i] / (double)(tokens * top_k) * sum;
        } else {
            terms[i] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && sums) {
        double balance = 0;
        for (int i = 0; i < experts; i++)
            balance += terms[i];
        sums[0] += (double)experts * balance;
        sums[1] += terms[experts];
    }
}

static route_shape shape_of(const struct rk_op_call *call) {
    uint32_t flags = call->shape->flags;
    route_shape shape = {};
    shape.tokens = call->shape->dim[0];
    shape.experts = (int)call->shape->dim[1];
    shape.top_k = (int)call->shape->dim[2];
    shape.sigmoid = (flags & RK_OP_FLAG_SIGMOID) != 0;
    shape.normalise = (flags & RK_OP_FLAG_NORMALIZE_TOP_K) != 0;
    shape.uniform = (flags & RK_OP_FLAG_ROUTE_UNIFORM) != 0;
    shape.random = (flags & RK_OP_FLAG_ROUTE_RANDOM) != 0;
    shape.scaling = call->parameter[0];
    shape.serial = call->serial;
    return shape;
}

static enum rk_status too_many(const route_shape &shape, struct rk_error *error) {
    return rk_fail(error, RK_USAGE,
                   "routing on GPUs: %d experts with %d routes a token; at most %d and %d are supported", shape.experts,
                   shape.top_k, (int)RK_CUDA_EXPERTS_MAX, (int)RK_CUDA_ROUTES_MAX);
}

/* Calls launch with the number of experts that a lane holds. */
#define BY_EXPERTS(experts, launch)                                                                                    \
    do {                                                                                                               \
        if ((experts) <= 2 * RK_CUDA_WARP) {                                                                           \
            constexpr int count = 2;                                                                                   \
            launch;                                                                                                    \
        } else if ((experts) <= 8 * RK_CUDA_WARP) {                                                                    \
            constexpr int count = 8;                                                                                   \
            launch;                                                                                                    \
        } else {                                                                                                       \
            constexpr int count = LANE_EXPERTS;                                                                        \
            launch;                                                                                                    \
        }                                                                                                              \
    } while (0)

RK_CUDA_OP(route_forward) {
    route_shape shape = shape_of(call);
    if (shape.experts > RK_CUDA_EXPERTS_MAX || shape.top_k > RK_CUDA_ROUTES_MAX)
        return too_many(shape, error);
    int32_t *requested = (int32_t *)call->operand[4];
    float *score_mean = (float *)call->operand[5], *partial = (float *)call->operand[7];
    RK_CUDA_TRY(cudaMemsetAsync(requested, 0, (size_t)shape.experts * sizeof *requested, stream->handle),
                "route_forward: clearing counts");
    if (shape.tokens == 0) {
        RK_CUDA_TRY(cudaMemsetAsync(score_mean, 0, (size_t)shape.experts * sizeof *score_mean, stream->handle),
                    "route_forward: clearing means");
        return RK_OK;
    }
    int64_t wanted = (shape.tokens + ROUTE_WARPS - 1) / ROUTE_WARPS;
    int blocks = (int)(wanted < RK_CUDA_PARTIAL_ROWS ? wanted : (int64_t)RK_CUDA_PARTIAL_ROWS);
    size_t shared = sizeof(float) * (size_t)ROUTE_WARPS * (size_t)(shape.experts + 1);
    BY_EXPERTS(shape.experts, (route_forward<count><<<(unsigned)blocks, ROUTE_THREADS, shared, stream->handle>>>(
                                  shape, (const float *)call->operand[0], (const float *)call->operand[1],
                                  (int32_t *)call->operand[2], (float *)call->operand[3], requested, partial)));
    enum rk_status status = rk_cuda_launched(stream, "route_forward", error);
    if (status != RK_OK)
        return status;
    route_losses<<<1, 256, sizeof(double) * (size_t)(shape.experts + 1), stream->handle>>>(
        partial, blocks, shape.tokens, shape.experts, shape.top_k, requested, score_mean, (double *)call->operand[6]);
    return rk_cuda_launched(stream, "route_forward: losses", error);
}

/* One warp a token. With scores s, their sum S, shares p = s / S (softmax: S = 1) and N f_i balance: the loss's
 * derivative by the share is c N f_i / T; by lse, 2 z lse / T. */
template <int count>
__global__ void route_backward(route_shape shape, const float *logits, const int32_t *index, const int32_t *requested,
                               const float *dweight, float *dlogits, float balance, float z) {
    int lane = threadIdx.x % RK_CUDA_WARP;
    int64_t token = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / RK_CUDA_WARP;
    if (token >= shape.tokens)
        return;
    const float *row = logits + token * shape.experts;
    float score[count], sum;
    float lse = token_scores<count>(row, shape.experts, shape.sigmoid, score, &sum);
    float dscore[count];
    float per_token = 1.0f / (float)shape.tokens;
    /* Balance: through the share p_i = s_i / S. */
    float mean = 0;
#pragma unroll
    for (int i = 0; i < count; i++) {
        int expert = lane + i * RK_CUDA_WARP;
        float f = expert < shape.experts ? (float)requested[expert] * per_token / (float)shape.top_k : 0.0f;
        dscore[i] = balance * (float)shape.experts * f * per_token;
        mean += dscore[i] * score[i] / sum;
    }
    mean = warp_sum(mean);
    if (shape.sigmoid)
#pragma unroll
        for (int i = 0; i < count; i++)
            dscore[i] = (dscore[i] - mean) / sum;
    /* The kept weights: w_k = scaling s_k, or scaling s_k / Σ s of the chosen. */
    float chosen = 0, dot = 0;
    if (shape.normalise)
        for (int k = 0; k < shape.top_k; k++) {
            float value = score_of<count>(score, index[token * shape.top_k + k]);
            chosen += value;
            dot += dweight[token * shape.top_k + k] * value;
        }
    for (int k = 0; k < shape.top_k; k++) {
        int expert = index[token * shape.top_k + k];
        float gradient = dweight[token * shape.top_k + k] * shape.scaling;
        if (shape.normalise)
            gradient = (gradient - shape.scaling * dot / chosen) / chosen;
#pragma unroll
        for (int i = 0; i < count; i++)
            if (expert == lane + i * RK_CUDA_WARP)
                dscore[i] += gradient;
    }
    float inner = 0;
    if (!shape.sigmoid) {
#pragma unroll
        for (int i = 0; i < count; i++)
            inner += dscore[i] * score[i];
        inner = warp_sum(inner);
    }
#pragma unroll
    for (int i = 0; i < count; i++) {
        int expert = lane + i * RK_CUDA_WARP;
        if (expert >= shape.experts)
            continue;
        float probability = shape.sigmoid ? expf(row[expert] - lse) : score[i];
        float value = shape.sigmoid ? dscore[i] * score[i] * (1.0f - score[i]) : score[i] * (dscore[i] - inner);
        dlogits[token * shape.experts + expert] = value + z * 2.0f * lse * probability * per_token;
    }
}

RK_CUDA_OP(route_backward) {
    route_shape shape = shape_of(call);
    if (shape.experts > RK_CUDA_EXPERTS_MAX || shape.top_k > RK_CUDA_ROUTES_MAX)
        return too_many(shape, error);
    if (shape.tokens == 0)
        return RK_OK;
    unsigned blocks = (unsigned)((shape.tokens + ROUTE_WARPS - 1) / ROUTE_WARPS);
    BY_EXPERTS(shape.experts, (route_backward<count><<<blocks, ROUTE_THREADS, 0, stream->handle>>>(
                                  shape, (const float *)call->operand[0], (const int32_t *)call->operand[1],
                                  (const int32_t *)call->operand[2], (const float *)call->operand[4],
                                  (float *)call->operand[5], call->parameter[1], call->parameter[2])));
    return rk_cuda_launched(stream, "route_backward", error);
}

/* ---- maps ---- */

struct map_shape {
    int64_t routes;
    int experts, ranks;
    int64_t rows;
    int rank, blocks;
    int64_t routes_per_block;
};

/* One block; thread r decides for destination rank r: kept rows and first rows, experts in order, sources in order.
 * first[e]: the row at which this rank's routes to expert e begin at their destination. */
__global__ void route_keep(map_shape shape, const int32_t *requested, int32_t *kept, int32_t *offsets, int32_t *first,
                           int64_t *load) {
    int local = shape.experts / shape.ranks;
    for (int rank = threadIdx.x; rank < shape.ranks; rank += blockDim.x) {
        int64_t row = 0;
        for (int expert = rank * local; expert < (rank + 1) * local; expert++) {
            if (rank == shape.rank)
                offsets[expert - rank * local] = (int32_t)row;
            for (int source = 0; source < shape.ranks; source++) {
                int64_t wanted = requested[source * shape.experts + expert], room = shape.rows - row;
                int64_t take = wanted < room ? wanted : room;
                if (source == shape.rank)
                    first[expert] = (int32_t)row;
                kept[source * shape.experts + expert] = (int32_t)take;
                row += take;
            }
        }
        if (rank == shape.rank)
            offsets[local] = (int32_t)row;
    }
    __syncthreads();
    if (!load)
        return;
    const int32_t *own_requested = requested + shape.rank * shape.experts;
    const int32_t *own_kept = kept + shape.rank * shape.experts;
    for (int expert = threadIdx.x; expert < shape.experts; expert += blockDim.x) {
        load[expert] += own_requested[expert];
        load[shape.experts + expert] += own_kept[expert];
    }
    if (threadIdx.x == 0) {
        int64_t dropped = 0;
        for (int expert = 0; expert < shape.experts; expert++)
            dropped += own_requested[expert] - own_kept[expert];
        load[2 * shape.experts] += dropped;
    }
}

/* counts[block][expert]: routes of the block's contiguous run to the expert. */
__global__ void route_count(map_shape shape, const int32_t *index, int32_t *counts) {
    extern __shared__ int32_t histogram[];
    for (int i = threadIdx.x; i < shape.experts; i += blockDim.x)
        histogram[i] = 0;
    __syncthreads();
    int64_t begin = blockIdx.x * shape.routes_per_block, end = begin + shape.routes_per_block;
    if (end > shape.routes)
        end = shape.routes;
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
        atomicAdd(&histogram[index[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < shape.experts; i += blockDim.x)
        counts[(int64_t)blockIdx.x * shape.experts + i] = histogram[i];
}

/* counts[block][expert] becomes the number of routes of earlier blocks to the expert; begin[expert]: routes to earlier
 * experts. One block. */
__global__ void route_scan(map_shape shape, int32_t *counts, int32_t *begin) {
    for (int expert = threadIdx.x; expert < shape.experts; expert += blockDim.x) {
        int32_t sum = 0;
        for (int block = 0; block < shape.blocks; block++) {
            int32_t count = counts[(int64_t)block * shape.experts + expert];
            counts[(int64_t)block * shape.experts + expert] = sum;
            sum += count;
        }
        begin[expert] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t sum = 0;
        for (int expert = 0; expert < shape.experts; expert++) {
            int32_t count = begin[expert];
            begin[expert] = sum;
            sum += count;
        }
    }
}

/* Routes take their places in order: a tile of blockDim routes at a time, each counts the earlier ones of the tile with
 * the same expert. */
__global__ void route_place(map_shape shape, const int32_t *index, const int32_t *counts, const int32_t *begin,
                            const int32_t *first, const int32_t *kept, int32_t *row, int32_t *order) {
    extern __shared__ int32_t next[]; /* for each expert: places given so far */
    __shared__ int32_t tile[ROUTE_THREADS];
    for (int i = threadIdx.x; i < shape.experts; i += blockDim.x)
        next[i] = counts[(int64_t)blockIdx.x * shape.experts + i];
    int64_t from = blockIdx.x * shape.routes_per_block, to = from + shape.routes_per_block;
    if (to > shape.routes)
        to = shape.routes;
    for (int64_t base = from; base < to; base += blockDim.x) {
        int64_t route = base + threadIdx.x;
        int32_t expert = route < to ? index[route] : -1;
        __syncthreads();
        tile[threadIdx.x] = expert;
        __syncthreads();
        int32_t place = 0, later = 0;
        if (expert >= 0) {
            for (int i = 0; i < threadIdx.x; i++)
                place += tile[i] == expert;
            for (int i = threadIdx.x + 1; i < blockDim.x; i++)
                later += tile[i] == expert;
            place += next[expert];
        }
        __syncthreads();
        if (expert >= 0 && later == 0)
            next[expert] = place + 1;
        if (expert >= 0) {
            order[begin[expert] + place] = (int32_t)route;
            row[route] = place < kept[shape.rank * shape.experts + expert] ? first[expert] + place : -1;
        }
    }
}

RK_CUDA_OP(route_map) {
    const int64_t *dim = call->shape->dim;
    map_shape shape = {};
    shape.routes = dim[0] * dim[2];
    shape.experts = (int)dim[1];
    shape.ranks = (int)dim[3];
    shape.rows = dim[4];
    shape.rank = call->group_rank;
    int64_t wanted = (shape.routes + ROUTE_THREADS - 1) / ROUTE_THREADS;
    int64_t most = RK_CUDA_PARTIAL_ROWS - 2;
    shape.blocks = (int)(wanted < most ? wanted : most);
    shape.routes_per_block = shape.blocks ? (shape.routes + shape.blocks - 1) / shape.blocks : 0;
    int32_t *first = (int32_t *)call->operand[7], *begin = first + shape.experts, *counts = begin + shape.experts;
    const int32_t *index = (const int32_t *)call->operand[0], *requested = (const int32_t *)call->operand[1];
    int32_t *kept = (int32_t *)call->operand[3];
    size_t shared = (size_t)shape.experts * sizeof(int32_t);
    route_keep<<<1, ROUTE_THREADS, 0, stream->handle>>>(shape, requested, kept, (int32_t *)call->operand[4], first,
                                                        (int64_t *)call->operand[6]);
    enum rk_status status = rk_cuda_launched(stream, "route_map: keep", error);
    if (status != RK_OK || shape.routes == 0)
        return status;
    route_count<<<(unsigned)shape.blocks, ROUTE_THREADS, shared, stream->handle>>>(shape, index, counts);
    if ((status = rk_cuda_launched(stream, "route_map: count", error)) != RK_OK)
        return status;
    route_scan<<<1, ROUTE_THREADS, 0, stream->handle>>>(shape, counts, begin);
    if ((status = rk_cuda_launched(stream, "route_map: scan", error)) != RK_OK)
        return status;
    route_place<<<(unsigned)shape.blocks, ROUTE_THREADS, shared, stream->handle>>>(
        shape, index, counts, begin, first, kept, (int32_t *)call->operand[2], (int32_t *)call->operand[5]);
    return rk_cuda_launched(stream, "route_map: place", error);
}

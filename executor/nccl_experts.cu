/* Exchange with the experts: one copy of a token for each rank that it goes to, stored into that rank's window and
 * spread from there over the rows of its experts; rows come back to the window of the token's rank, which sums them in
 * the order of k. Counts and rows are read on the device only. Memory and link bound: dispatch sends a row for each
 * token and rank, combine a row for each route; locally each kept row is written, then read, once. */
#include "executor/transport_nccl.cuh"
#include "model/routing_limits.h"

#include <cuda_bf16.h>
#include <type_traits>

enum { WARP = 32, THREADS = 256, WARPS = THREADS / WARP, PIECES = 4, ROWS_AT_ONCE = 8 };
enum { MEMBERS_MAX = RK_CUDA_EXPERT_RANKS_MAX };
static_assert((int)RK_CUDA_ROUTES_MAX == (int)WARP, "a lane holds one route of a token");

struct exchange {
    int64_t tokens, width, experts, rows, row_bytes;
    int routes, ranks, held, rank;
    const int32_t *index, *row, *kept;
};

/* Where this rank puts what goes to a member, and where it finds what came from one. */
struct windows {
    char *const *peers; /* of all members; NULL when NCCL moves the stage's slices */
    char *own, *stage;
    int64_t dispatch_slice, tokens_at, combine_slice, scalar_bytes, routes;
};

static struct exchange exchange_of(const struct rk_transport *transport, const struct rk_op_call *call) {
    const int64_t *dim = call->shape->dim;
    struct exchange exchange = {};
    exchange.tokens = dim[0];
    exchange.width = dim[1];
    exchange.experts = dim[3];
    exchange.rows = dim[5];
    exchange.row_bytes = dim[1] * rk_data_type_bytes(call->shape->type);
    exchange.routes = (int)dim[2];
    exchange.ranks = (int)dim[4];
    exchange.held = (int)(dim[3] / dim[4]);
    exchange.rank = (int)transport->group[RK_GROUP_EXPERT_PARALLEL].index;
    exchange.index = (const int32_t *)call->operand[2];
    exchange.row = (const int32_t *)call->operand[3];
    exchange.kept = (const int32_t *)call->operand[4];
    return exchange;
}

static struct windows windows_of(const struct rk_transport *transport) {
    const struct nccl_window *window = &transport->window;
    struct windows windows = {};
    windows.peers = window->direct ? window->peers_on_device : NULL;
    windows.own = window->own;
    windows.stage = window->stage;
    windows.dispatch_slice = window->dispatch_slice;
    windows.tokens_at = window->tokens_at;
    windows.combine_slice = window->combine_slice;
    windows.scalar_bytes = (window->routes * 4 + 255) / 256 * 256;
    windows.routes = window->routes;
    return windows;
}

__device__ __forceinline__ char *dispatch_target(const windows &windows, int rank, int member) {
    return windows.peers ? windows.peers[member] + NCCL_CONTROL_BYTES + rank * windows.dispatch_slice
                         : windows.stage + NCCL_CONTROL_BYTES + member * windows.dispatch_slice;
}

__device__ __forceinline__ char *combine_target(const windows &windows, int member) {
    return windows.peers ? windows.peers[member] + NCCL_CONTROL_BYTES
                         : windows.stage + NCCL_CONTROL_BYTES + member * windows.combine_slice;
}

__device__ __forceinline__ char *combine_source(const windows &windows, int member) {
    return windows.own + NCCL_CONTROL_BYTES + (windows.peers ? 0 : member * windows.combine_slice);
}

/* ---- meetings ---- */

__device__ __forceinline__ uint64_t nanoseconds(void) {
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

/* Looks at a flag between two looks at the host's signals, which are far away. */
enum { FLAG_LOOKS = 4096 };

/* All members come to a meeting before any leaves it. What a member wrote before, the others see after. One thread a
 * member. */
__global__ void meet(char *const *peers, int rank, int members, unsigned long long meeting, uint64_t timeout,
                     nccl_signals *signals) {
    int member = (int)threadIdx.x;
    if (member >= members || member == rank)
        return;
    unsigned long long *theirs = &((nccl_control *)peers[member])->flags[rank];
    const unsigned long long *mine = &((nccl_control *)peers[rank])->flags[member];
    __threadfence_system();
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(theirs), "l"(meeting) : "memory");
    uint64_t begin = nanoseconds();
    for (;;) {
        unsigned long long seen = 0;
        for (int look = 0; look < FLAG_LOOKS && seen < meeting; look++)
            asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(mine) : "memory");
        if (seen >= meeting || signals->stop || signals->missing)
            return;
        if (nanoseconds() - begin > timeout) {
            signals->missing = (uint32_t)member + 1;
            __threadfence_system();
            return;
        }
    }
}

static enum rk_status launched(struct rk_stream *stream, const char *what, struct rk_error *error) {
    rk_cuda_count_launches(rk_cuda_stream_device(stream), 1);
    cudaError_t result = cudaPeekAtLastError();
    if (result == cudaSuccess)
        return RK_OK;
    cudaGetLastError();
    return rk_fail(error, RK_ERROR, "%s: %s", what, cudaGetErrorString(result));
}

static enum rk_status hold_meeting(struct rk_transport *transport, struct rk_stream *stream, struct rk_error *error) {
    struct nccl_window *window = &transport->window;
    const struct nccl_group *group = &transport->group[RK_GROUP_EXPERT_PARALLEL];
    window->meetings++;
    meet<<<1, MEMBERS_MAX, 0, rk_cuda_stream_handle(stream)>>>(
        window->peers_on_device, (int)group->index, (int)group->count, window->meetings,
        (uint64_t)(transport->deadline_seconds * 1e9), transport->signals);
    return launched(stream, "a meeting of the experts' ranks", error);
}

/* Moves every slice of the stage to its member's window. */
static enum rk_status move_slices(struct rk_transport *transport, struct rk_stream *stream, int64_t slice,
                                  struct rk_error *error) {
    const struct nccl_group *group = &transport->group[RK_GROUP_EXPERT_PARALLEL];
    const struct nccl_window *window = &transport->window;
    cudaStream_t handle = rk_cuda_stream_handle(stream);
    ncclResult_t result = ncclGroupStart();
    for (int64_t member = 0; member < group->count && (result == ncclSuccess || result == ncclInProgress); member++) {
        if (member == group->index)
            continue;
        int64_t at = NCCL_CONTROL_BYTES + member * slice;
        result = ncclSend(window->stage + at, (size_t)slice, ncclInt8, (int)member, group->comm, handle);
        if (result == ncclSuccess || result == ncclInProgress)
            result = ncclRecv(window->own + at, (size_t)slice, ncclInt8, (int)member, group->comm, handle);
    }
    ncclResult_t end = ncclGroupEnd();
    rk_cuda_count_launches(transport->device, 1);
    bool begun = result == ncclSuccess || result == ncclInProgress;
    return rk_nccl_settle(transport, group->comm, begun ? end : result, error);
}

/* ---- dispatch ---- */

/* Copies a row from one place to the rows of `mask`'s lanes and to the members of `members`. All lanes of the warp. */
template <typename piece>
__device__ __forceinline__ void spread(const char *from, int64_t row_bytes, unsigned mask, int32_t row, char *rows,
                                       uint64_t members, const windows &windows, int rank, int64_t token) {
    int lane = threadIdx.x % WARP;
    int64_t count = row_bytes / (int64_t)sizeof(piece);
    for (int64_t base = 0; base < count; base += WARP * PIECES) {
        piece values[PIECES];
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            if (base + i * WARP + lane < count)
                values[i] = ((const piece *)from)[base + i * WARP + lane];
        for (unsigned left = mask; left; left &= left - 1) {
            piece *to = (piece *)(rows + __shfl_sync(0xffffffffu, row, __ffs(left) - 1) * row_bytes);
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                if (base + i * WARP + lane < count)
                    to[base + i * WARP + lane] = values[i];
        }
        for (uint64_t left = members; left; left &= left - 1) {
            piece *to = (piece *)(dispatch_target(windows, rank, __ffsll((long long)left) - 1) + windows.tokens_at +
                                  token * row_bytes);
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                if (base + i * WARP + lane < count)
                    to[base + i * WARP + lane] = values[i];
        }
    }
}

/* One warp a token: the token to the windows of the ranks that hold its experts, with the rows it goes to there, and at
 * once to the rows of this rank's own experts. */
template <typename piece>
__global__ void push_tokens(exchange exchange, windows windows, const char *source, const float *weight, char *rows,
                            float *row_weight) {
    int lane = threadIdx.x % WARP;
    unsigned long long remote = 0;
    if (blockIdx.x == 0)
        for (int member = threadIdx.x; member < exchange.ranks; member += THREADS)
            if (member != exchange.rank) {
                nccl_slice *slice = (nccl_slice *)dispatch_target(windows, exchange.rank, member);
                slice->tokens = exchange.tokens;
                slice->weighted = weight != NULL;
            }
    for (int64_t token = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; token < exchange.tokens;
         token += (int64_t)gridDim.x * WARPS) {
        int64_t route = token * exchange.routes + lane;
        int32_t row = lane < exchange.routes ? exchange.row[route] : -1;
        int destination = -1;
        float its_weight = 0;
        if (row >= 0 && row < exchange.rows) {
            destination = exchange.index[route] / exchange.held;
            its_weight = weight ? weight[route] : 0.0f;
        }
        uint64_t members = 0;
        for (int member = 0; member < exchange.ranks; member++) {
            unsigned mask = __ballot_sync(0xffffffffu, destination == member);
            if (member == exchange.rank)
                continue;
            char *slice = dispatch_target(windows, exchange.rank, member) + NCCL_SLICE_HEADER;
            if (lane < exchange.routes) {
                ((int32_t *)slice)[route] = destination == member ? row : -1;
                ((float *)slice)[windows.routes + route] = its_weight;
            }
            if (mask) {
                members |= (uint64_t)1 << member;
                remote +=
                    (unsigned long long)exchange.row_bytes + (weight ? 4ull * (unsigned long long)__popc(mask) : 0ull);
            }
        }
        unsigned local = __ballot_sync(0xffffffffu, destination == exchange.rank);
        if (destination == exchange.rank && weight && row_weight)
            row_weight[row] = its_weight;
        if (local || members)
            spread<piece>(source + token * exchange.row_bytes, exchange.row_bytes, local, row, rows, members, windows,
                          exchange.rank, token);
    }
    if (lane == 0 && remote)
        atomicAdd(&((nccl_control *)windows.own)->remote_bytes, remote);
}

/* One warp a token that came from another rank: from the window to the rows of its experts. */
template <typename piece>
__global__ void spread_tokens(exchange exchange, windows windows, char *rows, float *row_weight) {
    int lane = threadIdx.x % WARP;
    for (int source = 0; source < exchange.ranks; source++) {
        if (source == exchange.rank)
            continue;
        const char *slice = windows.own + NCCL_CONTROL_BYTES + source * windows.dispatch_slice;
        const int32_t *row_of = (const int32_t *)(slice + NCCL_SLICE_HEADER);
        const float *weight_of = (const float *)row_of + windows.routes;
        int64_t tokens = ((const nccl_slice *)slice)->tokens;
        bool weighted = ((const nccl_slice *)slice)->weighted && row_weight;
        if (tokens * exchange.routes > windows.routes)
            tokens = windows.routes / exchange.routes; /* only after a failure: then nothing is harmed */
        for (int64_t token = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; token < tokens;
             token += (int64_t)gridDim.x * WARPS) {
            int32_t row = lane < exchange.routes ? row_of[token * exchange.routes + lane] : -1;
            if (row >= exchange.rows)
                row = -1;
            if (row >= 0 && weighted)
                row_weight[row] = weight_of[token * exchange.routes + lane];
            unsigned mask = __ballot_sync(0xffffffffu, row >= 0);
            if (mask)
                spread<piece>(slice + windows.tokens_at + token * exchange.row_bytes, exchange.row_bytes, mask, row,
                              rows, 0, windows, exchange.rank, token);
        }
    }
}

static unsigned blocks_for(const struct rk_transport *transport, int64_t units) {
    int64_t most = 4 * (int64_t)rk_cuda_device_multiprocessors(transport->device);
    int64_t wanted = (units + WARPS - 1) / WARPS;
    return (unsigned)(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

/* Bytes that are moved at once: 16 where rows and addresses allow it. */
static int piece_bytes(int64_t row_bytes, const void *first, const void *second) {
    uint64_t bits = (uint64_t)row_bytes | (uint64_t)first | (uint64_t)second;
    return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 2;
}

template <typename piece>
static enum rk_status dispatch(struct rk_transport *transport, struct rk_stream *stream, const struct rk_op_call *call,
                               struct rk_error *error) {
    struct exchange exchange = exchange_of(transport, call);
    struct windows windows = windows_of(transport);
    cudaStream_t handle = rk_cuda_stream_handle(stream);
    char *rows = (char *)call->operand[6];
    float *row_weight = (float *)call->operand[7];
    bool direct = transport->window.direct, remote = exchange.ranks > 1;
    enum rk_status status = remote && direct ? hold_meeting(transport, stream, error) : RK_OK;
    if (status != RK_OK)
        return status;
    push_tokens<piece><<<blocks_for(transport, exchange.tokens), THREADS, 0, handle>>>(
        exchange, windows, (const char *)call->operand[0], (const float *)call->operand[1], rows, row_weight);
    status = launched(stream, "dispatch", error);
    if (status != RK_OK || !remote)
        return status;
    status =
        direct ? hold_meeting(transport, stream, error) : move_slices(transport, stream, windows.dispatch_slice, error);
    if (status != RK_OK)
        return status;
    spread_tokens<piece><<<blocks_for(transport, windows.routes / exchange.routes), THREADS, 0, handle>>>(
        exchange, windows, rows, row_weight);
    return launched(stream, "dispatch: rows", error);
}

static enum rk_status check_sizes(const struct rk_transport *transport, const struct rk_op_call *call,
                                  struct rk_error *error) {
    const int64_t *dim = call->shape->dim;
    const struct nccl_window *window = &transport->window;
    if (dim[2] > RK_CUDA_ROUTES_MAX || dim[4] > MEMBERS_MAX)
        return rk_fail(error, RK_USAGE, "%s on GPUs: %lld routes a token and %lld ranks; at most %d and %d",
                       rk_op_name(call->shape->kind), (long long)dim[2], (long long)dim[4], (int)RK_CUDA_ROUTES_MAX,
                       (int)MEMBERS_MAX);
    if (!window->own || (dim[4] > 1 && (dim[0] * dim[2] > window->routes ||
                                        dim[1] * rk_data_type_bytes(call->shape->type) > window->row_bytes)))
        return rk_fail(error, RK_ERROR, "%s: larger than any op of the program that the transport was opened for",
                       rk_op_name(call->shape->kind));
    return RK_OK;
}

enum rk_status rk_nccl_dispatch(struct rk_transport *transport, struct rk_stream *stream, const struct rk_op_call *call,
                                struct rk_error *error) {
    enum rk_status status = check_sizes(transport, call, error);
    if (status != RK_OK)
        return status;
    int64_t row_bytes = call->shape->dim[1] * rk_data_type_bytes(call->shape->type);
    switch (piece_bytes(row_bytes, call->operand[0], call->operand[6])) {
    case 16:
        return dispatch<uint4>(transport, stream, call, error);
    case 4:
        return dispatch<uint32_t>(transport, stream, call, error);
    default:
        return dispatch<uint16_t>(transport, stream, call, error);
    }
}

/* ---- combine ---- */

/* What the kernels of COMBINE look up, all on the device. A segment is what one local expert holds of one source's
 * rows. */
struct tables {
    int32_t *first;       /* [N + 1] first row of each segment, expert by expert, then source by source; the end */
    int32_t *destination; /* [N] where the segment's rows begin in its source's window */
    int32_t *shift;       /* [N] row of the window = row at the owner + shift[expert], for this rank's routes */
};

static struct tables tables_of(const struct rk_transport *transport, const struct exchange *exchange) {
    int32_t *memory = transport->window.tables;
    struct tables tables = {memory, memory + exchange->experts + 1, memory + 2 * exchange->experts + 1};
    return tables;
}

/* One block. compact: the owners' rows lie one after another in a source's window; else every owner has a slice. */
__global__ void make_tables(exchange exchange, tables tables, bool compact) {
    extern __shared__ int32_t
        shared[]; /* for each expert: rows of all sources, of earlier sources, of this rank, begin */
    int experts = (int)exchange.experts, held = exchange.held, ranks = exchange.ranks, rank = exchange.rank;
    int32_t *all = shared, *earlier = all + experts, *own = earlier + experts, *begin = own + experts;
    __shared__ int32_t owner_total[MEMBERS_MAX];
    for (int expert = threadIdx.x; expert < experts; expert += blockDim.x) {
        int32_t sum = 0;
        for (int source = 0; source < ranks; source++) {
            int32_t count = exchange.kept[source * experts + expert];
            if (source == rank) {
                earlier[expert] = sum;
                own[expert] = count;
            }
            sum += count;
        }
        all[expert] = sum;
    }
    __syncthreads();
    for (int owner = threadIdx.x; owner < ranks; owner += blockDim.x) {
        int32_t row = 0, mine = 0;
        for (int expert = owner * held; expert < (owner + 1) * held; expert++) {
            begin[expert] = row;
            tables.shift[expert] = mine - (row + earlier[expert]);
            row += all[expert];
            mine += own[expert];
        }
        owner_total[owner] = mine;
        if (owner == rank)
            tables.first[experts] = row;
    }
    __syncthreads();
    if (compact)
        for (int expert = threadIdx.x; expert < experts; expert += blockDim.x)
            for (int owner = 0; owner < expert / held; owner++)
                tables.shift[expert] += owner_total[owner];
    for (int local = threadIdx.x; local < held; local += blockDim.x) {
        int32_t row = begin[rank * held + local];
        for (int source = 0; source < ranks; source++) {
            tables.first[local * ranks + source] = row;
            row += exchange.kept[source * experts + rank * held + local];
        }
    }
    for (int source = threadIdx.x; source < ranks; source += blockDim.x) {
        int32_t sum = 0;
        for (int expert = compact ? 0 : rank * held; expert < (rank + 1) * held; expert++) {
            if (expert >= rank * held)
                tables.destination[(expert - rank * held) * ranks + source] = sum;
            sum += exchange.kept[source * experts + expert];
        }
    }
}

/* One warp a row that belongs to another rank: into that rank's window. */
template <typename piece>
__global__ void push_rows(exchange exchange, windows windows, tables tables, const char *rows, const float *scalar) {
    extern __shared__ int32_t first[]; /* N + 1 */
    int lane = threadIdx.x % WARP, segments = (int)exchange.experts;
    for (int i = threadIdx.x; i <= segments; i += THREADS)
        first[i] = tables.first[i];
    __syncthreads();
    int64_t valid = first[segments] < exchange.rows ? first[segments] : exchange.rows;
    int64_t count = exchange.row_bytes / (int64_t)sizeof(piece);
    unsigned long long remote = 0;
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; row < valid;
         row += (int64_t)gridDim.x * WARPS) {
        int low = 0, high = segments; /* the last segment that begins at or before the row */
        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (first[middle] <= row)
                low = middle;
            else
                high = middle;
        }
        int source = low % exchange.ranks;
        int64_t to = tables.destination[low] + row - first[low];
        if (source == exchange.rank || to < 0 || to >= windows.routes)
            continue;
        char *target = combine_target(windows, source);
        if (lane == 0 && scalar)
            ((float *)target)[to] = scalar[row];
        remote += (unsigned long long)exchange.row_bytes + (scalar ? 4ull : 0ull);
        const piece *from = (const piece *)(rows + row * exchange.row_bytes);
        piece *into = (piece *)(target + windows.scalar_bytes + to * exchange.row_bytes);
        for (int64_t base = lane; base < count; base += WARP * PIECES) {
            piece values[PIECES];
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                if (base + i * WARP < count)
                    values[i] = from[base + i * WARP];
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                if (base + i * WARP < count)
                    into[base + i * WARP] = values[i];
        }
    }
    if (lane == 0 && remote)
        atomicAdd(&((nccl_control *)windows.own)->remote_bytes, remote);
}

/* A piece as FP32 values. */
template <typename act, int width> struct lanes { act value[width]; };
__device__ __forceinline__ float widen(float value) {
    return value;
}
__device__ __forceinline__ float widen(__nv_bfloat16 value) {
    return __bfloat162float(value);
}
__device__ __forceinline__ void narrow(float value, float *to) {
    *to = value;
}
__device__ __forceinline__ void narrow(float value, __nv_bfloat16 *to) {
    *to = __float2bfloat16_rn(value);
}

/* One warp a token: residual + its kept rows in the order of k, in FP32, rounded once. */
template <typename act, int width>
__global__ void sum_rows(exchange exchange, windows windows, tables tables, const char *rows, const float *scalar,
                         const act *residual, act *out, float *scalar_out) {
    using piece = typename std::conditional<width * sizeof(act) == 16, uint4, act>::type;
    int lane = threadIdx.x % WARP;
    int64_t count = exchange.width / width;
    for (int64_t token = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; token < exchange.tokens;
         token += (int64_t)gridDim.x * WARPS) {
        unsigned long long from = 0;
        if (lane < exchange.routes) {
            int64_t route = token * exchange.routes + lane, row = exchange.row[route];
            int expert = exchange.index[route], owner = expert / exchange.held;
            float its_scalar = 0;
            if (row >= 0 && row < exchange.rows && owner == exchange.rank) {
                from = (unsigned long long)(rows + row * exchange.row_bytes);
                its_scalar = scalar ? scalar[row] : 0.0f;
            } else if (row >= 0 && row < exchange.rows && owner < exchange.ranks) {
                const char *window = combine_source(windows, owner);
                int64_t at = row + tables.shift[expert];
                if (at >= 0 && at < windows.routes) {
                    from = (unsigned long long)(window + windows.scalar_bytes + at * exchange.row_bytes);
                    its_scalar = scalar ? ((const float *)window)[at] : 0.0f;
                }
            }
            if (scalar_out)
                scalar_out[route] = its_scalar;
        }
        for (int64_t base = 0; base < count; base += WARP) {
            int64_t at = base + lane;
            bool real = at < count;
            float sum[width];
#pragma unroll
            for (int v = 0; v < width; v++)
                sum[v] = 0;
            if (residual && real) {
                piece loaded = ((const piece *)(residual + token * exchange.width))[at];
                const act *values = (const act *)&loaded;
#pragma unroll
                for (int v = 0; v < width; v++)
                    sum[v] += widen(values[v]);
            }
            for (int k = 0; k < exchange.routes; k += ROWS_AT_ONCE) {
                piece loaded[ROWS_AT_ONCE];
                bool there[ROWS_AT_ONCE];
#pragma unroll
                for (int i = 0; i < ROWS_AT_ONCE; i++) {
                    unsigned long long row = __shfl_sync(0xffffffffu, from, (k + i) % WARP);
                    there[i] = k + i < exchange.routes && row != 0 && real;
                    if (there[i])
                        loaded[i] = ((const piece *)row)[at];
                }
#pragma unroll
                for (int i = 0; i < ROWS_AT_ONCE; i++)
                    if (there[i]) {
                        const act *values = (const act *)&loaded[i];
#pragma unroll
                        for (int v = 0; v < width; v++)
                            sum[v] += widen(values[v]);
                    }
            }
            if (real) {
                piece stored;
#pragma unroll
                for (int v = 0; v < width; v++)
                    narrow(sum[v], (act *)&stored + v);
                ((piece *)(out + token * exchange.width))[at] = stored;
            }
        }
    }
}

template <typename act, int width>
static enum rk_status launch_sum(struct rk_transport *transport, struct rk_stream *stream,
                                 const struct rk_op_call *call, const struct exchange &exchange,
                                 const struct windows &windows, const struct tables &tables, struct rk_error *error) {
    if (exchange.tokens == 0)
        return RK_OK;
    sum_rows<act, width><<<blocks_for(transport, exchange.tokens), THREADS, 0, rk_cuda_stream_handle(stream)>>>(
        exchange, windows, tables, (const char *)call->operand[0], (const float *)call->operand[1],
        (const act *)call->operand[6], (act *)call->operand[7], (float *)call->operand[8]);
    return launched(stream, "combine: sums", error);
}

static enum rk_status send_rows(struct rk_transport *transport, struct rk_stream *stream, const struct rk_op_call *call,
                                const struct exchange &exchange, const struct windows &windows,
                                const struct tables &tables, struct rk_error *error) {
    cudaStream_t handle = rk_cuda_stream_handle(stream);
    bool direct = transport->window.direct;
    const char *rows = (const char *)call->operand[0];
    const float *scalar = (const float *)call->operand[1];
    size_t experts = (size_t)exchange.experts * sizeof(int32_t);
    make_tables<<<1, THREADS, 4 * experts, handle>>>(exchange, tables, direct);
    enum rk_status status = launched(stream, "combine: tables", error);
    if (status == RK_OK && direct)
        status = hold_meeting(transport, stream, error);
    if (status != RK_OK)
        return status;
    unsigned blocks = blocks_for(transport, exchange.rows);
    size_t shared = experts + sizeof(int32_t);
    switch (piece_bytes(exchange.row_bytes, rows, NULL)) {
    case 16:
        push_rows<uint4><<<blocks, THREADS, shared, handle>>>(exchange, windows, tables, rows, scalar);
        break;
    case 4:
        push_rows<uint32_t><<<blocks, THREADS, shared, handle>>>(exchange, windows, tables, rows, scalar);
        break;
    default:
        push_rows<uint16_t><<<blocks, THREADS, shared, handle>>>(exchange, windows, tables, rows, scalar);
    }
    status = launched(stream, "combine: rows", error);
    if (status != RK_OK)
        return status;
    return direct ? hold_meeting(transport, stream, error)
                  : move_slices(transport, stream, windows.combine_slice, error);
}

enum rk_status rk_nccl_combine(struct rk_transport *transport, struct rk_stream *stream, const struct rk_op_call *call,
                               struct rk_error *error) {
    enum rk_status status = check_sizes(transport, call, error);
    if (status != RK_OK)
        return status;
    struct exchange exchange = exchange_of(transport, call);
    struct windows windows = windows_of(transport);
    struct tables tables = tables_of(transport, &exchange);
    if (exchange.ranks > 1)
        status = send_rows(transport, stream, call, exchange, windows, tables, error);
    if (status != RK_OK)
        return status;
    bool wide = piece_bytes(exchange.row_bytes, call->operand[0], call->operand[7]) == 16 &&
                (uint64_t)call->operand[6] % 16 == 0;
    if (call->shape->type == RK_BF16)
        return wide ? launch_sum<__nv_bfloat16, 8>(transport, stream, call, exchange, windows, tables, error)
                    : launch_sum<__nv_bfloat16, 1>(transport, stream, call, exchange, windows, tables, error);
    return wide ? launch_sum<float, 4>(transport, stream, call, exchange, windows, tables, error)
                : launch_sum<float, 1>(transport, stream, call, exchange, windows, tables, error);
}

int64_t rk_nccl_expert_bytes(const struct rk_transport *transport) {
    unsigned long long bytes = 0;
    if (!transport->window.own || transport->failed)
        return 0;
    if (cudaMemcpy(&bytes, &((nccl_control *)transport->window.own)->remote_bytes, sizeof bytes,
                   cudaMemcpyDeviceToHost) != cudaSuccess)
        return 0;
    return (int64_t)bytes;
}

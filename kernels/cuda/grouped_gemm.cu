/* Grouped matrix products whose group sizes stay on the device: persistent blocks read the offsets and take tiles in
 * turn. Rows past the valid prefix are neither read nor written; an empty group costs nothing and leaves its gradient
 * as it was.
 *
 * Compute bound for large groups: 2 · rows · n · k operations; for small groups the weights' bytes count, G · n · k
 * values. BF16 takes wgmma on Hopper (grouped_gemm_hopper.cu) and mma.sync on other GPUs from sm_80: 128 × 128 × 32
 * tiles, four stages of cp.async deep. FP32, and BF16 with sizes that are not multiples of 8, take a plain tiled
 * kernel. */
#include "kernels/cuda/grouped_gemm.cuh"

enum { TILE_M = 128, TILE_N = 128, TILE_K = 32, STAGES = 4, MMA_THREADS = 256 };
/* Row strides in values, padded so that ldmatrix meets no bank twice. */
enum { INNER_STRIDE = TILE_K + 8, OUTER_STRIDE = TILE_M + 8 };
enum { OPERAND_VALUES = TILE_M * INNER_STRIDE > TILE_K *OUTER_STRIDE ? TILE_M *INNER_STRIDE : TILE_K *OUTER_STRIDE };

/* Brings a 128 × 32 piece of a factor into shared memory. outer: rows of the left, columns of the right.
 * inner_contiguous: the inner dimension lies together in memory; the piece is stored as it lies. Values out of range
 * become 0. */
template <bool inner_contiguous>
__device__ __forceinline__ void load_piece(__nv_bfloat16 *piece, const __nv_bfloat16 *base, int64_t stride,
                                           int64_t outer, int64_t outer_end, int64_t inner, int64_t inner_end) {
#pragma unroll
    for (int part = 0; part < TILE_M * TILE_K / 8 / MMA_THREADS; part++) {
        int chunk = part * MMA_THREADS + (int)threadIdx.x;
        int in_outer, in_inner;
        __nv_bfloat16 *to;
        if (inner_contiguous) {
            in_outer = chunk / (TILE_K / 8);
            in_inner = chunk % (TILE_K / 8) * 8;
            to = piece + in_outer * INNER_STRIDE + in_inner;
        } else {
            in_inner = chunk / (TILE_M / 8);
            in_outer = chunk % (TILE_M / 8) * 8;
            to = piece + in_inner * OUTER_STRIDE + in_outer;
        }
        bool valid = outer + in_outer < outer_end && inner + in_inner < inner_end;
        int64_t offset = inner_contiguous ? (outer + in_outer) * stride + inner + in_inner
                                          : (inner + in_inner) * stride + outer + in_outer;
        rk_copy_async(to, valid ? base + offset : base, valid);
    }
}

template <bool left_inner, bool right_inner>
__device__ __forceinline__ void multiply_piece(const __nv_bfloat16 *left, const __nv_bfloat16 *right, int row,
                                               int column, float sums[4][4][4]) {
    int lane = threadIdx.x % RK_CUDA_WARP;
#pragma unroll
    for (int inner = 0; inner < TILE_K; inner += 16) {
        unsigned a[4][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (left_inner)
                rk_load_matrices<false>(a[i],
                                        left + (row + i * 16) * INNER_STRIDE + inner + rk_left_offset(INNER_STRIDE));
            else
                rk_load_matrices<true>(a[i], left + (inner + lane / 16 * 8 + lane % 8) * OUTER_STRIDE + row + i * 16 +
                                                 lane / 8 % 2 * 8);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (right_inner)
                rk_load_matrices<false>(b[j], right + (column + j * 16) * INNER_STRIDE + inner +
                                                  rk_right_offset(INNER_STRIDE));
            else
                rk_load_matrices<true>(b[j], right + inner * OUTER_STRIDE + column + j * 16 +
                                                 rk_right_offset_transposed(OUTER_STRIDE));
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                rk_multiply_add(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

template <bool left_inner, bool right_inner, bool accumulate>
__global__ void __launch_bounds__(MMA_THREADS, 2) grouped_mma(grouped_shape shape) {
    extern __shared__ __align__(16) __nv_bfloat16 pieces[];
    __nv_bfloat16 *left_pieces = pieces, *right_pieces = pieces + STAGES * OPERAND_VALUES;
    int warp = threadIdx.x / RK_CUDA_WARP, lane = threadIdx.x % RK_CUDA_WARP;
    int warp_row = warp % 2 * 64, warp_column = warp / 2 * 32;
    tile at = {};
    int64_t first = 0;
    while (find_tile(shape, take_tile(shape), TILE_M, TILE_N, &at, &first)) {
        const __nv_bfloat16 *left = (const __nv_bfloat16 *)shape.left;
        const __nv_bfloat16 *right = (const __nv_bfloat16 *)shape.right + at.group * shape.right_group;
        int64_t left_stride = left_inner ? shape.left_row : shape.left_inner;
        int64_t right_stride = right_inner ? shape.right_column : shape.right_inner;
        left += at.first_row * (accumulate ? shape.left_inner : shape.left_row);
        if (accumulate)
            right += at.first_row * shape.right_inner;
        int64_t steps = (at.inner + TILE_K - 1) / TILE_K;
        float sums[4][4][4] = {};
#pragma unroll
        for (int stage = 0; stage < STAGES - 1; stage++) {
            if (stage < steps) {
                load_piece<left_inner>(left_pieces + stage * OPERAND_VALUES, left, left_stride, at.row, at.rows,
                                       (int64_t)stage * TILE_K, at.inner);
                load_piece<right_inner>(right_pieces + stage * OPERAND_VALUES, right, right_stride, at.column,
                                        at.columns, (int64_t)stage * TILE_K, at.inner);
            }
            rk_copy_commit();
        }
        for (int64_t step = 0; step < steps; step++) {
            rk_copy_wait<STAGES - 2>();
            __syncthreads();
            int64_t next = step + STAGES - 1;
            int slot = (int)(next % STAGES);
            if (next < steps) {
                load_piece<left_inner>(left_pieces + slot * OPERAND_VALUES, left, left_stride, at.row, at.rows,
                                       next * TILE_K, at.inner);
                load_piece<right_inner>(right_pieces + slot * OPERAND_VALUES, right, right_stride, at.column,
                                        at.columns, next * TILE_K, at.inner);
            }
            rk_copy_commit();
            int now = (int)(step % STAGES);
            multiply_piece<left_inner, right_inner>(left_pieces + now * OPERAND_VALUES,
                                                    right_pieces + now * OPERAND_VALUES, warp_row, warp_column, sums);
        }
        rk_copy_wait<0>();
        __syncthreads();
        int64_t out_first = accumulate ? (int64_t)at.group * shape.rows : at.first_row;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int64_t row = at.row + warp_row + i * 16 + lane / 4;
                int64_t column = at.column + warp_column + j * 8 + lane % 4 * 2;
                if (column >= at.columns)
                    continue;
                if (row < at.rows)
                    store_pair<accumulate>(shape.out, (out_first + row) * shape.columns + column, sums[i][j][0],
                                           sums[i][j][1]);
                if (row + 8 < at.rows)
                    store_pair<accumulate>(shape.out, (out_first + row + 8) * shape.columns + column, sums[i][j][2],
                                           sums[i][j][3]);
            }
    }
}

/* ---- any type, any sizes: 64 × 64 × 16 tiles, 4 × 4 results a thread ---- */

enum { PLAIN_TILE = 64, PLAIN_INNER = 16, PLAIN_THREADS = 256 };

template <typename act, bool accumulate> __global__ void grouped_plain(grouped_shape shape) {
    __shared__ float left_tile[PLAIN_INNER][PLAIN_TILE + 1], right_tile[PLAIN_INNER][PLAIN_TILE + 1];
    int thread_row = threadIdx.x / 16 * 4, thread_column = threadIdx.x % 16 * 4;
    tile at = {};
    int64_t first = 0;
    while (find_tile(shape, take_tile(shape), PLAIN_TILE, PLAIN_TILE, &at, &first)) {
        const act *left = (const act *)shape.left + at.first_row * (accumulate ? shape.left_inner : shape.left_row);
        const act *right = (const act *)shape.right + at.group * shape.right_group;
        if (accumulate)
            right += at.first_row * shape.right_inner;
        float sums[4][4] = {};
        for (int64_t base = 0; base < at.inner; base += PLAIN_INNER) {
            for (int i = threadIdx.x; i < PLAIN_INNER * PLAIN_TILE; i += PLAIN_THREADS) {
                int inner = i % PLAIN_INNER, outer = i / PLAIN_INNER;
                bool inside = base + inner < at.inner;
                left_tile[inner][outer] =
                    inside && at.row + outer < at.rows
                        ? rk_load(left + (at.row + outer) * shape.left_row + (base + inner) * shape.left_inner)
                        : 0.0f;
                right_tile[inner][outer] =
                    inside && at.column + outer < at.columns
                        ? rk_load(right + (base + inner) * shape.right_inner + (at.column + outer) * shape.right_column)
                        : 0.0f;
            }
            __syncthreads();
            for (int inner = 0; inner < PLAIN_INNER; inner++)
                for (int i = 0; i < 4; i++)
                    for (int j = 0; j < 4; j++)
                        sums[i][j] += left_tile[inner][thread_row + i] * right_tile[inner][thread_column + j];
            __syncthreads();
        }
        int64_t out_first = accumulate ? (int64_t)at.group * shape.rows : at.first_row;
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                int64_t row = at.row + thread_row + i, column = at.column + thread_column + j;
                if (row >= at.rows || column >= at.columns)
                    continue;
                int64_t offset = (out_first + row) * shape.columns + column;
                if (accumulate)
                    ((float *)shape.out)[offset] += sums[i][j];
                else
                    rk_store((act *)shape.out + offset, sums[i][j]);
            }
    }
}

template <bool left_inner, bool right_inner, bool accumulate>
static enum rk_status launch_mma(struct rk_stream *stream, const grouped_shape &shape, const char *name,
                                 struct rk_error *error) {
    bool taken = false;
    RK_CUDA_TRY(cudaMemsetAsync(shape.next_tile, 0, sizeof *shape.next_tile, stream->handle), name);
    enum rk_status status =
        rk_cuda_grouped_wgmma(stream, shape, left_inner, right_inner, accumulate, name, &taken, error);
    if (status != RK_OK || taken)
        return status;
    size_t shared = sizeof(__nv_bfloat16) * 2 * STAGES * OPERAND_VALUES;
    RK_CUDA_TRY(rk_cuda_allow_shared(grouped_mma<left_inner, right_inner, accumulate>, shared), name);
    unsigned blocks = 2u * (unsigned)stream->device->properties.multiProcessorCount;
    grouped_mma<left_inner, right_inner, accumulate><<<blocks, MMA_THREADS, shared, stream->handle>>>(shape);
    return rk_cuda_launched(stream, name, error);
}

template <bool accumulate>
static enum rk_status launch_plain(struct rk_stream *stream, const grouped_shape &shape, enum rk_data_type type,
                                   const char *name, struct rk_error *error) {
    RK_CUDA_TRY(cudaMemsetAsync(shape.next_tile, 0, sizeof *shape.next_tile, stream->handle), name);
    unsigned blocks = 4u * (unsigned)stream->device->properties.multiProcessorCount;
    RK_CUDA_BY_TYPE(type, (grouped_plain<act, accumulate><<<blocks, PLAIN_THREADS, 0, stream->handle>>>(shape)));
    return rk_cuda_launched(stream, name, error);
}

static grouped_shape shape_of(const struct rk_op_call *call) {
    grouped_shape shape = {};
    shape.left = call->operand[0];
    shape.right = call->operand[1];
    shape.offsets = (const int32_t *)call->operand[2];
    shape.out = call->operand[3];
    shape.groups = (int)call->shape->dim[1];
    shape.next_tile = (unsigned *)call->operand[4];
    return shape;
}

/* 16-byte copies need sizes and addresses that are multiples of 8 values. */
static bool takes_mma(const struct rk_op_call *call) {
    uintptr_t addresses = (uintptr_t)call->operand[0] | (uintptr_t)call->operand[1] | (uintptr_t)call->operand[3];
    return call->shape->type == RK_BF16 && call->shape->dim[2] % 8 == 0 && call->shape->dim[3] % 8 == 0 &&
           addresses % 16 == 0;
}

RK_CUDA_OP(grouped_gemm_forward) {
    int64_t n = call->shape->dim[2], k = call->shape->dim[3];
    grouped_shape shape = shape_of(call);
    shape.columns = n;
    shape.inner = k;
    shape.left_row = k;
    shape.left_inner = 1;
    shape.right_inner = 1;
    shape.right_column = k;
    shape.right_group = n * k;
    if (takes_mma(call))
        return launch_mma<true, true, false>(stream, shape, "grouped_gemm_forward", error);
    return launch_plain<false>(stream, shape, call->shape->type, "grouped_gemm_forward", error);
}

RK_CUDA_OP(grouped_gemm_dgrad) {
    int64_t n = call->shape->dim[2], k = call->shape->dim[3];
    grouped_shape shape = shape_of(call);
    shape.columns = k;
    shape.inner = n;
    shape.left_row = n;
    shape.left_inner = 1;
    shape.right_inner = k;
    shape.right_column = 1;
    shape.right_group = n * k;
    if (takes_mma(call))
        return launch_mma<true, false, false>(stream, shape, "grouped_gemm_dgrad", error);
    return launch_plain<false>(stream, shape, call->shape->type, "grouped_gemm_dgrad", error);
}

RK_CUDA_OP(grouped_gemm_wgrad) {
    int64_t n = call->shape->dim[2], k = call->shape->dim[3];
    grouped_shape shape = shape_of(call);
    shape.weight_gradient = true;
    shape.rows = n;
    shape.columns = k;
    shape.left_row = 1;
    shape.left_inner = n;
    shape.right_inner = k;
    shape.right_column = 1;
    if (takes_mma(call))
        return launch_mma<false, false, true>(stream, shape, "grouped_gemm_wgrad", error);
    return launch_plain<true>(stream, shape, call->shape->type, "grouped_gemm_wgrad", error);
}

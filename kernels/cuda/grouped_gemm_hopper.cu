/* Grouped products with Hopper's warpgroup instructions: 128 × 256 tiles of the result, 64 inner values a step, four
 * steps in shared memory. Two warpgroups of 64 rows each read both factors from shared memory, which cp.async fills in
 * the layout that wgmma reads without bank conflicts (128-byte rows, 16-byte chunks exchanged by the row's number
 * modulo 8). Loads mask rows and inner values that are not there, stores mask the tile's edge, so no group is padded.
 * Compute bound. */
#include "kernels/cuda/grouped_gemm.cuh"

enum { WG_TILE_M = 128, WG_TILE_N = 256, WG_TILE_K = 64, WG_STAGES = 4, WG_THREADS = 256 };
enum { ROW_BYTES = 128, BLOCK_BYTES = 64 * ROW_BYTES }; /* a block: 64 rows of 64 values */
enum {
    LEFT_BYTES = WG_TILE_M * ROW_BYTES,
    RIGHT_BYTES = WG_TILE_N * ROW_BYTES,
    STAGE_BYTES = LEFT_BYTES + RIGHT_BYTES
};

/* A matrix in shared memory as wgmma reads it, with 128-byte swizzle. inner_contiguous: rows are outer, 8 of them 1,024
 * bytes apart; else rows are inner values, 8 of them 1,024 bytes apart, and blocks of 64 outer ones BLOCK_BYTES apart.
 */
__device__ __forceinline__ uint64_t matrix(unsigned address, bool inner_contiguous) {
    uint64_t leading = inner_contiguous ? 1 : BLOCK_BYTES >> 4, stride = 1024 >> 4;
    return (uint64_t)((address & 0x3FFFF) >> 4) | leading << 16 | stride << 32 | (uint64_t)1 << 62;
}

/* sum[64 × 128 of the warpgroup] += left[64 × 16] · right[16 × 128]; the last four words: add, signs, which factors are
 * transposed. */
template <int left_transposed, int right_transposed>
__device__ __forceinline__ void warpgroup_multiply(float (&sum)[64], uint64_t left, uint64_t right) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
                 "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
                 "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
                 "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 "
                 "}, %64, %65, 1, 1, 1, %66, %67;\n"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]),
                   "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]), "+f"(sum[12]), "+f"(sum[13]),
                   "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]), "+f"(sum[18]), "+f"(sum[19]),
                   "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]), "+f"(sum[24]), "+f"(sum[25]),
                   "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]), "+f"(sum[30]), "+f"(sum[31]),
                   "+f"(sum[32]), "+f"(sum[33]), "+f"(sum[34]), "+f"(sum[35]), "+f"(sum[36]), "+f"(sum[37]),
                   "+f"(sum[38]), "+f"(sum[39]), "+f"(sum[40]), "+f"(sum[41]), "+f"(sum[42]), "+f"(sum[43]),
                   "+f"(sum[44]), "+f"(sum[45]), "+f"(sum[46]), "+f"(sum[47]), "+f"(sum[48]), "+f"(sum[49]),
                   "+f"(sum[50]), "+f"(sum[51]), "+f"(sum[52]), "+f"(sum[53]), "+f"(sum[54]), "+f"(sum[55]),
                   "+f"(sum[56]), "+f"(sum[57]), "+f"(sum[58]), "+f"(sum[59]), "+f"(sum[60]), "+f"(sum[61]),
                   "+f"(sum[62]), "+f"(sum[63])
                 : "l"(left), "l"(right), "n"(left_transposed), "n"(right_transposed));
#endif
}

__device__ __forceinline__ void warpgroup_fence(void) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#endif
}

__device__ __forceinline__ void warpgroup_commit(void) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#endif
}

template <int pending> __device__ __forceinline__ void warpgroup_wait(void) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(pending) : "memory");
#endif
}

/* Makes what cp.async wrote visible to wgmma. */
__device__ __forceinline__ void shared_fence(void) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}

/* Brings outer × 64 inner values of a factor into shared memory at `to`, zeros for what is out of range. */
template <bool inner_contiguous, int outer_count>
__device__ __forceinline__ void load_factor(char *to, const __nv_bfloat16 *base, int64_t stride, int64_t outer,
                                            int64_t outer_end, int64_t inner, int64_t inner_end) {
    constexpr int chunks = outer_count * WG_TILE_K / 8;
    constexpr int across = inner_contiguous ? WG_TILE_K / 8 : outer_count / 8; /* chunks of a stored row */
#pragma unroll
    for (int part = 0; part < chunks / WG_THREADS; part++) {
        int chunk = part * WG_THREADS + (int)threadIdx.x, row = chunk / across, column = chunk % across;
        int64_t at_outer = outer + (inner_contiguous ? row : column * 8);
        int64_t at_inner = inner + (inner_contiguous ? column * 8 : row);
        bool valid = at_outer < outer_end && at_inner < inner_end;
        int64_t offset = inner_contiguous ? at_outer * stride + at_inner : at_inner * stride + at_outer;
        int block = inner_contiguous ? 0 : column / 8;
        char *place = to + block * BLOCK_BYTES + row * ROW_BYTES + ((column % 8 ^ row % 8) << 4);
        rk_copy_async(place, valid ? base + offset : base, valid);
    }
}

template <bool left_inner, bool right_inner>
__device__ __forceinline__ void multiply_step(unsigned stage, int warpgroup, float (&sums)[2][64]) {
    unsigned left = stage + (unsigned)(warpgroup * BLOCK_BYTES), right = stage + LEFT_BYTES;
    /* 16 inner values further: 32 bytes along a row, or 16 rows. */
    constexpr unsigned left_step = left_inner ? 32 : 16 * ROW_BYTES, right_step = right_inner ? 32 : 16 * ROW_BYTES;
#pragma unroll
    for (int inner = 0; inner < WG_TILE_K / 16; inner++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            warpgroup_multiply<!left_inner, !right_inner>(
                sums[half], matrix(left + inner * left_step, left_inner),
                matrix(right + half * 2 * BLOCK_BYTES + inner * right_step, right_inner));
}

template <bool left_inner, bool right_inner, bool accumulate>
__global__ void __launch_bounds__(WG_THREADS, 1) grouped_wgmma(grouped_shape shape) {
    extern __shared__ char memory[];
    char *stages = memory + (1024 - ((unsigned)__cvta_generic_to_shared(memory) & 1023)) % 1024;
    unsigned stages_address = (unsigned)__cvta_generic_to_shared(stages);
    int warpgroup = threadIdx.x / 128, lane = threadIdx.x % RK_CUDA_WARP, warp = threadIdx.x % 128 / RK_CUDA_WARP;
    int64_t left_stride = left_inner ? shape.left_row : shape.left_inner;
    int64_t right_stride = right_inner ? shape.right_column : shape.right_inner;
    tile at = {};
    int64_t first = 0;
    for (int64_t index = take_tile(shape); find_tile(shape, index, WG_TILE_M, WG_TILE_N, &at, &first);
         index = take_tile(shape)) {
        const __nv_bfloat16 *left =
            (const __nv_bfloat16 *)shape.left + at.first_row * (accumulate ? shape.left_inner : shape.left_row);
        const __nv_bfloat16 *right = (const __nv_bfloat16 *)shape.right + at.group * shape.right_group +
                                     (accumulate ? at.first_row * shape.right_inner : 0);
        int64_t steps = (at.inner + WG_TILE_K - 1) / WG_TILE_K;
        auto load = [&](int64_t step) {
            char *stage = stages + step % WG_STAGES * STAGE_BYTES;
            if (step < steps) {
                load_factor<left_inner, WG_TILE_M>(stage, left, left_stride, at.row, at.rows, step * WG_TILE_K,
                                                   at.inner);
                load_factor<right_inner, WG_TILE_N>(stage + LEFT_BYTES, right, right_stride, at.column, at.columns,
                                                    step * WG_TILE_K, at.inner);
            }
            rk_copy_commit();
        };
        float sums[2][64] = {};
        for (int64_t step = 0; step < WG_STAGES - 2; step++)
            load(step);
        for (int64_t step = 0; step < steps; step++) {
            rk_copy_wait<WG_STAGES - 3>();
            shared_fence();
            __syncthreads();
            warpgroup_fence();
            multiply_step<left_inner, right_inner>(stages_address + (unsigned)(step % WG_STAGES * STAGE_BYTES),
                                                   warpgroup, sums);
            warpgroup_commit();
            /* The products of the step before are done on every warpgroup that passed the barrier, but for its own;
             * they read the stage before last's successor, so the stage of step - 2 is free. */
            warpgroup_wait<1>();
            load(step + WG_STAGES - 2);
        }
        warpgroup_wait<0>();
        rk_copy_wait<0>();
        __syncthreads();
        int64_t out_first = accumulate ? (int64_t)at.group * shape.rows : at.first_row;
        int64_t row = at.row + warpgroup * 64 + warp * 16 + lane / 4;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < 16; j++) {
                int64_t column = at.column + half * 128 + j * 8 + lane % 4 * 2;
                if (column >= at.columns)
                    continue;
                const float *value = &sums[half][j * 4];
                if (row < at.rows)
                    store_pair<accumulate>(shape.out, (out_first + row) * shape.columns + column, value[0], value[1]);
                if (row + 8 < at.rows)
                    store_pair<accumulate>(shape.out, (out_first + row + 8) * shape.columns + column, value[2],
                                           value[3]);
            }
    }
}

template <bool left_inner, bool right_inner, bool accumulate>
static enum rk_status launch(struct rk_stream *stream, const grouped_shape &shape, const char *name,
                             struct rk_error *error) {
    size_t shared = WG_STAGES * STAGE_BYTES + 1024; /* stages begin at a multiple of 1,024 bytes */
    RK_CUDA_TRY(rk_cuda_allow_shared(grouped_wgmma<left_inner, right_inner, accumulate>, shared), name);
    unsigned blocks = (unsigned)stream->device->properties.multiProcessorCount;
    grouped_wgmma<left_inner, right_inner, accumulate><<<blocks, WG_THREADS, shared, stream->handle>>>(shape);
    return rk_cuda_launched(stream, name, error);
}

enum rk_status rk_cuda_grouped_wgmma(struct rk_stream *stream, const grouped_shape &shape, bool left_inner,
                                     bool right_inner, bool accumulate, const char *name, bool *taken,
                                     struct rk_error *error) {
    const cudaDeviceProp &properties = stream->device->properties;
    *taken = properties.major == 9 && properties.minor == 0;
    if (!*taken)
        return RK_OK;
    if (accumulate)
        return launch<false, false, true>(stream, shape, name, error);
    return left_inner && right_inner ? launch<true, true, false>(stream, shape, name, error)
                                     : launch<true, false, false>(stream, shape, name, error);
}

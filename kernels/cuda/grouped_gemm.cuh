/* What the two tensor core paths of grouped products share: the shape, and which tile is a block's next. */
#ifndef RK_KERNELS_CUDA_GROUPED_GEMM_CUH
#define RK_KERNELS_CUDA_GROUPED_GEMM_CUH

#include "kernels/cuda/mma.cuh"

/* out[row, column] of group g = Σ_inner left[row, inner] · right[inner, column]. Which dimension the group's rows are:
 * forward and dgrad: `row` runs over them; wgrad: `inner` does. */
struct grouped_shape {
    const void *left, *right;
    void *out;
    const int32_t *offsets;
    int groups;
    int64_t rows, columns, inner; /* rows unused when they are the group's; inner likewise for wgrad */
    /* Strides in values: of the left by row and inner, of the right by inner and column. One of each pair is 1. */
    int64_t left_row, left_inner, right_inner, right_column;
    int64_t right_group; /* values between two groups' right factors; 0 for wgrad */
    bool weight_gradient;
    unsigned *next_tile; /* on the device, 0 at the launch: see take_tile */
};

struct tile {
    int group;
    int64_t row, column;          /* first of the tile, inside the group's output */
    int64_t rows, columns, inner; /* of the group */
    int64_t first_row;            /* of the group in the buffer */
};

/* Finds tile number `index`, given that *tile.group and *first (the group's first tile) are those of an earlier one. */
__device__ __forceinline__ bool find_tile(const grouped_shape &shape, int64_t index, int tile_m, int tile_n,
                                          tile *found, int64_t *first) {
    int64_t column_tiles = (shape.columns + tile_n - 1) / tile_n;
    for (; found->group < shape.groups; found->group++) {
        int64_t begin = shape.offsets[found->group], count = shape.offsets[found->group + 1] - begin;
        found->first_row = begin;
        found->rows = shape.weight_gradient ? shape.rows : count;
        found->inner = shape.weight_gradient ? count : shape.inner;
        found->columns = shape.columns;
        int64_t row_tiles = count > 0 ? (found->rows + tile_m - 1) / tile_m : 0;
        int64_t tiles = row_tiles * column_tiles;
        if (index < *first + tiles) {
            int64_t inside = index - *first;
            found->row = inside % row_tiles * tile_m;
            found->column = inside / row_tiles * tile_n;
            return true;
        }
        *first += tiles;
    }
    return false;
}

/* The number of the tile that a block works on next; all threads get it, and stand at a barrier. Blocks ask for tiles
 * instead of owning every gridDim-th: where another kernel holds a multiprocessor (a receive of the pipeline waits on
 * one), the block that finds no place begins late, and must not keep a share of the work waiting. Which block computes
 * a tile does not change the tile. */
__device__ __forceinline__ int64_t take_tile(const grouped_shape &shape) {
    __shared__ unsigned taken;
    __syncthreads();
    if (threadIdx.x == 0)
        taken = atomicAdd(shape.next_tile, 1u);
    __syncthreads();
    return taken;
}

/* Two neighbouring results: added to FP32 ones, or stored rounded to BF16. */
template <bool accumulate>
__device__ __forceinline__ void store_pair(void *out, int64_t offset, float first, float second) {
    if (accumulate) {
        float2 *to = (float2 *)((float *)out + offset);
        float2 value = *to;
        value.x += first;
        value.y += second;
        *to = value;
    } else {
        *(unsigned *)((__nv_bfloat16 *)out + offset) = rk_pack(first, second);
    }
}

/* The path of Hopper's own instructions (wgmma). left_inner, right_inner: the inner dimension of the factor lies
 * together in memory; accumulate: FP32 results are added to, as weight gradients are. RK_OK and *taken false where the
 * GPU has no wgmma. */
enum rk_status rk_cuda_grouped_wgmma(struct rk_stream *stream, const grouped_shape &shape, bool left_inner,
                                     bool right_inner, bool accumulate, const char *name, bool *taken,
                                     struct rk_error *error);

#endif

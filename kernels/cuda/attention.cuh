/* What the two attention paths share. */
#ifndef RK_KERNELS_CUDA_ATTENTION_CUH
#define RK_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/internal.cuh"

struct attention_shape {
    int64_t tokens, sequence, row; /* row: values of a token's q, k and v together */
    int heads, kv_heads, head_dim;
    float scale;
};

/* Blocks of a grid: x runs over the tiles of `rows` queries or keys of a sequence, then over the sequences (x has no
 * limit that a batch could meet); y over heads. */
dim3 rk_cuda_attention_grid(const attention_shape &shape, int rows, int heads);

__device__ __forceinline__ int64_t rk_attention_tiles(const attention_shape &shape, int rows) {
    return (shape.sequence + rows - 1) / rows;
}
__device__ __forceinline__ int64_t rk_attention_tile(const attention_shape &shape, int rows) {
    return blockIdx.x % rk_attention_tiles(shape, rows);
}
__device__ __forceinline__ int64_t rk_attention_sequence(const attention_shape &shape, int rows) {
    return blockIdx.x / rk_attention_tiles(shape, rows);
}

attention_shape rk_cuda_attention_shape(const struct rk_op_call *call);

/* delta[token, head] = Σ dcontext · context, f32[T, n_h]. */
enum rk_status rk_cuda_attention_delta(struct rk_stream *stream, const struct rk_op_call *call, float *delta,
                                       struct rk_error *error);

/* The tensor core path: BF16, heads of 64 or 128 values. */
bool rk_cuda_attention_takes_mma(const struct rk_op_call *call);
enum rk_status rk_cuda_attention_forward_mma(struct rk_stream *stream, const struct rk_op_call *call,
                                             struct rk_error *error);
enum rk_status rk_cuda_attention_backward_mma(struct rk_stream *stream, const struct rk_op_call *call,
                                              const float *delta, struct rk_error *error);

#endif

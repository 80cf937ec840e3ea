/* Tensor core building blocks of sm_80 and newer: 16-byte asynchronous copies, ldmatrix, and the m16n8k16 BF16 product.
 *
 * Fragments of a 16 × 8 result in a thread of a warp: values 0, 1 stand in row lane/4, columns 2·(lane mod 4) and the
 * next; values 2, 3 eight rows below. Two results side by side, rounded to BF16, are the left factor of a product over
 * their 16 columns. */
#ifndef RK_KERNELS_CUDA_MMA_CUH
#define RK_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/internal.cuh"

/* Copies 16 bytes to shared memory, or zeros when they are not valid. */
__device__ __forceinline__ void rk_copy_async(void *to, const void *from, bool valid) {
    unsigned address = (unsigned)__cvta_generic_to_shared(to);
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(from), "r"(bytes));
}

__device__ __forceinline__ void rk_copy_commit(void) {
    asm volatile("cp.async.commit_group;\n");
}

/* Waits until at most `pending` of the committed groups are not done. */
template <int pending> __device__ __forceinline__ void rk_copy_wait(void) {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(pending));
}

/* Four 8 × 8 matrices; the address of lane l is row l mod 8 of matrix l/8. */
template <bool transposed> __device__ __forceinline__ void rk_load_matrices(unsigned registers[4], const void *from) {
    unsigned address = (unsigned)__cvta_generic_to_shared(from);
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                     : "r"(address));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                     : "r"(address));
}

/* Where this lane reads for a left fragment of 16 rows × 16 inner values, stored with the inner values together. */
__device__ __forceinline__ int rk_left_offset(int stride) {
    int lane = threadIdx.x % RK_CUDA_WARP;
    return lane % 16 * stride + lane / 16 * 8;
}

/* For two right fragments, 16 columns × 16 inner values: stored with the inner values together (a row for each column)
 * ... */
__device__ __forceinline__ int rk_right_offset(int stride) {
    int lane = threadIdx.x % RK_CUDA_WARP;
    return (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
}

/* ... or with the columns together (a row for each inner value; load transposed). */
__device__ __forceinline__ int rk_right_offset_transposed(int stride) {
    int lane = threadIdx.x % RK_CUDA_WARP;
    return (lane / 8 % 2 * 8 + lane % 8) * stride + lane / 16 * 8;
}

__device__ __forceinline__ void rk_multiply_add(float sum[4], const unsigned left[4], unsigned right0,
                                                unsigned right1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};\n"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

__device__ __forceinline__ unsigned rk_pack(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(unsigned *)&pair;
}

/* Two neighbouring 16 × 8 results as the left factor over their 16 columns. */
__device__ __forceinline__ void rk_as_left(const float first[4], const float second[4], unsigned left[4]) {
    left[0] = rk_pack(first[0], first[1]);
    left[1] = rk_pack(first[2], first[3]);
    left[2] = rk_pack(second[0], second[1]);
    left[3] = rk_pack(second[2], second[3]);
}

#endif

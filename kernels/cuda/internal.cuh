/* What the files of the CUDA back end share: the device's state, checks, and loads and stores by data type. */
#ifndef RK_KERNELS_CUDA_INTERNAL_CUH
#define RK_KERNELS_CUDA_INTERNAL_CUH

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "kernels/cuda/cuda.h"
#include "kernels/kernels.h"
#include "model/ops_workspace.h"
}

/* Matrix products whose algorithm has been chosen: the choice is made once for a shape and kept, so that a run repeats.
 */
struct rk_cuda_gemm_cache;

struct rk_device {
    int ordinal;
    cudaDeviceProp properties;
    cublasLtHandle_t cublas;
    struct rk_cuda_gemm_cache *gemms;
    struct rk_device_counters counters;
    rk_cuda_watch *watch; /* or NULL */
    void *watch_context;
};

struct rk_stream {
    struct rk_device *device;
    cudaStream_t handle;
};

struct rk_event_handle {
    struct rk_device *device;
    cudaEvent_t handle;
    bool recorded;
};

/* Turns a CUDA result into a status; what says what was being done. */
enum rk_status rk_cuda_status(cudaError_t result, const char *what, struct rk_error *error);

#define RK_CUDA_TRY(call, what)                                                                                        \
    do {                                                                                                               \
        cudaError_t rk_result = (call);                                                                                \
        if (rk_result != cudaSuccess)                                                                                  \
            return rk_cuda_status(rk_result, what, error);                                                             \
    } while (0)

/* After a launch: counts it and reports a bad configuration. */
enum rk_status rk_cuda_launched(struct rk_stream *stream, const char *what, struct rk_error *error);

enum { RK_CUDA_WARP = 32 };

/* sum[column] += the partial sums of all parts, in order. partial: [parts][columns]. */
enum rk_status rk_cuda_add_partials(struct rk_stream *stream, const float *partial, int64_t parts, int64_t columns,
                                    float *sum, struct rk_error *error);

/* More than 48 KiB of dynamic shared memory must be asked for, kernel by kernel. */
template <typename kernel_type> cudaError_t rk_cuda_allow_shared(kernel_type *kernel, size_t bytes) {
    if (bytes <= 48 * 1024)
        return cudaSuccess;
    return cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

template <typename T> __device__ __forceinline__ float rk_load(const T *address) {
    return (float)*address;
}
template <> __device__ __forceinline__ float rk_load<__nv_bfloat16>(const __nv_bfloat16 *address) {
    return __bfloat162float(*address);
}
template <typename T> __device__ __forceinline__ void rk_store(T *address, float value) {
    *address = value;
}
template <> __device__ __forceinline__ void rk_store<__nv_bfloat16>(__nv_bfloat16 *address, float value) {
    *address = __float2bfloat16_rn(value);
}

/* Sum over the block in a fixed order: every run gives the same bits. shared: one float for each warp. All threads get
 * it. */
__device__ __forceinline__ float rk_block_sum(float value, float *shared) {
    for (int step = RK_CUDA_WARP / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    int warp = threadIdx.x / RK_CUDA_WARP, warps = (blockDim.x + RK_CUDA_WARP - 1) / RK_CUDA_WARP;
    __syncthreads();
    if (threadIdx.x % RK_CUDA_WARP == 0)
        shared[warp] = value;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < warps; i++)
        sum += shared[i];
    return sum;
}

/* Runs the statement with `act` standing for float or __nv_bfloat16, by the shape's type. */
#define RK_CUDA_BY_TYPE(type, ...)                                                                                     \
    do {                                                                                                               \
        if ((type) == RK_BF16) {                                                                                       \
            using act = __nv_bfloat16;                                                                                 \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            using act = float;                                                                                         \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

/* Kernels, one per op kind; see model/ops.h for shapes and operands. */
#define RK_CUDA_OP(name)                                                                                               \
    enum rk_status rk_cuda_##name(struct rk_stream *stream, const struct rk_op_call *call, struct rk_error *error)
RK_CUDA_OP(zero);
RK_CUDA_OP(embedding_forward);
RK_CUDA_OP(embedding_backward);
RK_CUDA_OP(rmsnorm_forward);
RK_CUDA_OP(rmsnorm_backward);
RK_CUDA_OP(gemm_forward);
RK_CUDA_OP(gemm_dgrad);
RK_CUDA_OP(gemm_wgrad);
RK_CUDA_OP(rope_forward);
RK_CUDA_OP(rope_backward);
RK_CUDA_OP(attention_forward);
RK_CUDA_OP(attention_backward);
RK_CUDA_OP(route_forward);
RK_CUDA_OP(route_backward);
RK_CUDA_OP(route_map);
RK_CUDA_OP(grouped_gemm_forward);
RK_CUDA_OP(grouped_gemm_dgrad);
RK_CUDA_OP(grouped_gemm_wgrad);
RK_CUDA_OP(swiglu_forward);
RK_CUDA_OP(swiglu_backward);
RK_CUDA_OP(cross_entropy);
RK_CUDA_OP(grad_norm);
RK_CUDA_OP(adamw);

/* cuBLASLt state of a device. */
enum rk_status rk_cuda_gemm_open(struct rk_device *device, struct rk_error *error);
void rk_cuda_gemm_close(struct rk_device *device);

#endif

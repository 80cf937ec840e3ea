/* The GPU module's one entry. */
#ifdef RK_HAVE_NCCL
#include "executor/transport_nccl.cuh"
#endif

extern "C" {
#include "kernels/cuda/cuda.h"
#include "kernels/gpu_module.h"
}

extern "C" __attribute__((visibility("default"))) const struct rk_gpu_module *rk_gpu_module_open(void) {
    static struct rk_gpu_module module = {RK_GPU_MODULE_LAYOUT, NULL, NULL};
    module.backend = rk_cuda_backend();
#ifdef RK_HAVE_NCCL
    module.transport = rk_nccl_transport();
#endif
    return &module;
}

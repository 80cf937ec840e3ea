/* The GPU module: the CUDA back end and the transport for GPUs as a shared library beside the program. The program
 * itself is linked with nothing of CUDA: it starts where CUDA's libraries are not, and where they are, without loading
 * hundreds of megabytes of them for a verb that needs no GPU. */
#ifndef RK_KERNELS_GPU_MODULE_H
#define RK_KERNELS_GPU_MODULE_H

#include "kernels/kernels.h"

struct rk_transport_table;

/* What program and module must have in common: sizes of what passes between them. */
#define RK_GPU_MODULE_LAYOUT                                                                                           \
    {sizeof(struct rk_backend),                                                                                        \
     sizeof(struct rk_op_call),                                                                                        \
     sizeof(struct rk_op_shape),                                                                                       \
     sizeof(struct rk_device_facts),                                                                                   \
     sizeof(struct rk_device_counters),                                                                                \
     RK_OP_KIND_COUNT}
enum { RK_GPU_MODULE_LAYOUT_COUNT = 6 };

struct rk_gpu_module {
    size_t layout[RK_GPU_MODULE_LAYOUT_COUNT];
    const struct rk_backend *backend;
    const struct rk_transport_table *transport; /* NULL when built without NCCL */
};

/* Loads the module at the first call: from the program's folder, from ../lib of it, from where it was built, or from
 * the loader's path. NULL when it cannot be loaded, with the reason; NULL and an empty reason when the program was
 * built without CUDA. */
const struct rk_gpu_module *rk_gpu_module(const char **reason);

/* The one symbol of the module. */
typedef const struct rk_gpu_module *rk_gpu_module_entry(void);
#define RK_GPU_MODULE_ENTRY "rk_gpu_module_open"

#endif

#include "executor/transport.h"

#include "kernels/gpu_module.h"

#include <stddef.h>

const struct rk_transport_table *rk_transport_nccl(void) {
    const char *reason;
    const struct rk_gpu_module *module = rk_gpu_module(&reason);
    return module != NULL ? module->transport : NULL;
}

/* Memory of the CPU back end: device memory on the heap, host memory in unlinked files. See kernels.h. */
#ifndef RK_KERNELS_CPU_MEMORY_H
#define RK_KERNELS_CPU_MEMORY_H

#include "kernels/kernels.h"

enum rk_status rk_cpu_memory_allocate(struct rk_device *device, int64_t bytes, void **address, struct rk_error *error);
void rk_cpu_memory_free(struct rk_device *device, void *address);
enum rk_status rk_cpu_host_allocate(struct rk_device *device, int64_t bytes, void **address, struct rk_error *error);
void rk_cpu_host_free(struct rk_device *device, void *address);

/* Writes the touched pages to storage if the range lies in a spill file; other memory is left alone. */
enum rk_status rk_cpu_spill_sync(struct rk_device *device, void *address, int64_t bytes, struct rk_error *error);
/* Unmaps whatever host memory the device still has. */
void rk_cpu_spills_free(struct rk_device *device);

#endif

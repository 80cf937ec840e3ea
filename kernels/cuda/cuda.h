/* What the transports for GPUs need of the CUDA back end beyond kernels.h. Compiles as C and as CUDA C++. */
#ifndef RK_KERNELS_CUDA_CUDA_H
#define RK_KERNELS_CUDA_CUDA_H

#include "kernels/kernels.h"

struct CUstream_st;

/* The back end. */
const struct rk_backend *rk_cuda_backend(void);

/* The CUDA stream behind a stream; the back end's. */
struct CUstream_st *rk_cuda_stream_handle(const struct rk_stream *stream);
/* The device that a stream belongs to, its ordinal, and its number of multiprocessors. */
struct rk_device *rk_cuda_stream_device(const struct rk_stream *stream);
int rk_cuda_device_ordinal(const struct rk_device *device);
int rk_cuda_device_multiprocessors(const struct rk_device *device);

/* Counts launches that a transport makes on the device. */
void rk_cuda_count_launches(struct rk_device *device, int64_t launches);

/* What every wait of the host for the device asks, once in a while and at its end: whether the ranks are still well. A
 * status other than RK_OK ends the wait with it. One watch at a time; NULL takes it away. The context is the caller's.
 */
typedef enum rk_status rk_cuda_watch(void *context, struct rk_error *error);
void rk_cuda_device_watch(struct rk_device *device, rk_cuda_watch *watch, void *context);

#endif

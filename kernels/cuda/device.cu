#include "kernels/cuda/internal.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum rk_status rk_cuda_status(cudaError_t result, const char *what, struct rk_error *error) {
    if (result == cudaErrorMemoryAllocation)
        return rk_fail(
            error, RK_ERROR,
            "%s: the GPU is out of memory; plan with a smaller --memory-limit, or end the other processes on it", what);
    return rk_fail(error, RK_ERROR, "%s: %s (%s)", what, cudaGetErrorString(result), cudaGetErrorName(result));
}

enum rk_status rk_cuda_launched(struct rk_stream *stream, const char *what, struct rk_error *error) {
    stream->device->counters.launches++;
    cudaError_t result = cudaPeekAtLastError();
    return result == cudaSuccess ? RK_OK : rk_cuda_status(cudaGetLastError(), what, error);
}

/* Before CUDA's first call. Ranks wait for one another in kernels: a kernel must not wait behind such a one because
 * their streams share a hardware queue, or because loading its code waits for all kernels to end. What the user set
 * stays. */
static void prepare_environment(void) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0); /* the order of the management library and nvidia-smi */
}

static enum rk_status device_count(int *count, struct rk_error *error) {
    prepare_environment();
    int found = 0;
    cudaError_t result = cudaGetDeviceCount(&found);
    *count = result == cudaSuccess ? found : 0;
    if (result != cudaSuccess) {
        cudaGetLastError();
        (void)rk_cuda_status(result, "no usable GPU", error);
    }
    return RK_OK;
}

static enum rk_status device_open(int ordinal, const char *spill_folder, struct rk_device **opened,
                                  struct rk_error *error) {
    (void)spill_folder;
    prepare_environment();
    RK_CUDA_TRY(cudaSetDevice(ordinal), "opening the GPU");
    struct rk_device *device = (struct rk_device *)calloc(1, sizeof *device);
    if (!device)
        return rk_fail(error, RK_ERROR, "opening the GPU: out of host memory");
    device->ordinal = ordinal;
    enum rk_status status = RK_OK;
    cudaError_t result = cudaGetDeviceProperties(&device->properties, ordinal);
    if (result != cudaSuccess)
        status = rk_cuda_status(result, "reading the GPU's properties", error);
    if (status == RK_OK)
        status = rk_cuda_gemm_open(device, error);
    if (status != RK_OK) {
        free(device);
        return status;
    }
    *opened = device;
    return RK_OK;
}

static void device_close(struct rk_device *device) {
    if (!device)
        return;
    rk_cuda_gemm_close(device);
    free(device);
}

static enum rk_status describe(const cudaDeviceProp *properties, struct rk_device_facts *facts,
                               struct rk_error *error) {
    int driver = 0, runtime = 0;
    RK_CUDA_TRY(cudaDriverGetVersion(&driver), "reading the driver's version");
    RK_CUDA_TRY(cudaRuntimeGetVersion(&runtime), "reading the runtime's version");
    struct rk_device_facts read = {};
    snprintf(read.name, sizeof read.name, "%.95s", properties->name);
    const unsigned char *id = (const unsigned char *)properties->uuid.bytes;
    snprintf(read.uuid, sizeof read.uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7], id[8], id[9], id[10], id[11], id[12], id[13],
             id[14], id[15]);
    read.memory_bytes = (int64_t)properties->totalGlobalMem;
    read.multiprocessors = properties->multiProcessorCount;
    read.l2_bytes = properties->l2CacheSize;
    snprintf(read.driver, sizeof read.driver, "%d.%d", driver / 1000, driver % 1000 / 10);
    snprintf(read.runtime, sizeof read.runtime, "%d.%d", runtime / 1000, runtime % 1000 / 10);
    snprintf(read.libraries, sizeof read.libraries, "cuBLASLt %zu", cublasLtGetVersion());
    *facts = read;
    return RK_OK;
}

static enum rk_status device_facts(struct rk_device *device, struct rk_device_facts *facts, struct rk_error *error) {
    size_t unused = 0, total = 0;
    RK_CUDA_TRY(cudaMemGetInfo(&unused, &total), "reading the GPU's memory");
    enum rk_status status = describe(&device->properties, facts, error);
    if (status == RK_OK)
        facts->used_bytes = (int64_t)(total - unused);
    return status;
}

static enum rk_status device_describe(int ordinal, struct rk_device_facts *facts, struct rk_error *error) {
    cudaDeviceProp properties;
    prepare_environment();
    RK_CUDA_TRY(cudaGetDeviceProperties(&properties, ordinal), "reading the GPU's properties");
    return describe(&properties, facts, error);
}

static enum rk_status memory_allocate(struct rk_device *device, int64_t bytes, void **address, struct rk_error *error) {
    void *allocated = NULL;
    cudaError_t result = cudaMalloc(&allocated, bytes > 0 ? (size_t)bytes : 1);
    if (result != cudaSuccess) {
        cudaGetLastError();
        char what[96];
        snprintf(what, sizeof what, "allocating %.2f GiB on the GPU", (double)bytes / (1 << 30));
        return rk_cuda_status(result, what, error);
    }
    device->counters.allocations++;
    device->counters.device_bytes += bytes;
    *address = allocated;
    return RK_OK;
}

static void memory_free(struct rk_device *device, void *address) {
    (void)device;
    cudaFree(address);
}

static enum rk_status host_allocate(struct rk_device *device, int64_t bytes, void **address, struct rk_error *error) {
    void *allocated = NULL;
    RK_CUDA_TRY(cudaHostAlloc(&allocated, bytes > 0 ? (size_t)bytes : 1, cudaHostAllocDefault),
                "allocating pinned host memory");
    device->counters.allocations++;
    device->counters.host_bytes += bytes;
    *address = allocated;
    return RK_OK;
}

static void host_free(struct rk_device *device, void *address) {
    (void)device;
    cudaFreeHost(address);
}

static enum rk_status stream_create(struct rk_device *device, bool high_priority, struct rk_stream **created,
                                    struct rk_error *error) {
    struct rk_stream *stream = (struct rk_stream *)calloc(1, sizeof *stream);
    if (!stream)
        return rk_fail(error, RK_ERROR, "creating a stream: out of host memory");
    int lowest = 0, highest = 0;
    cudaError_t result = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    if (result == cudaSuccess)
        result = cudaStreamCreateWithPriority(&stream->handle, cudaStreamNonBlocking, high_priority ? highest : lowest);
    if (result != cudaSuccess) {
        free(stream);
        return rk_cuda_status(result, "creating a stream", error);
    }
    stream->device = device;
    *created = stream;
    return RK_OK;
}

static void stream_destroy(struct rk_stream *stream) {
    if (!stream)
        return;
    cudaStreamDestroy(stream->handle);
    free(stream);
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum rk_status ask_watch(struct rk_device *device, struct rk_error *error) {
    return device->watch ? device->watch(device->watch_context, error) : RK_OK;
}

/* Between two questions to the watch, and between two to the driver. */
#define WATCH_SECONDS 0.05
#define POLL_NANOSECONDS 20000

static enum rk_status stream_synchronize(struct rk_stream *stream, double deadline_seconds, struct rk_error *error) {
    struct rk_device *device = stream->device;
    device->counters.host_waits++;
    double start = seconds_now(), next_question = start + WATCH_SECONDS;
    for (;;) {
        cudaError_t result = cudaStreamQuery(stream->handle);
        if (result == cudaSuccess)
            return ask_watch(device, error);
        if (result != cudaErrorNotReady)
            return rk_cuda_status(result, "waiting for the GPU", error);
        double now = seconds_now();
        if (now > next_question) {
            next_question = now + WATCH_SECONDS;
            enum rk_status status = ask_watch(device, error);
            if (status != RK_OK)
                return status;
        }
        if (now - start > deadline_seconds)
            return rk_fail(error, RK_ERROR, "waiting for GPU %d: a stream is not done after %g s", device->ordinal,
                           deadline_seconds);
        struct timespec pause = {0, POLL_NANOSECONDS};
        nanosleep(&pause, NULL);
    }
}

static enum rk_status event_create(struct rk_device *device, bool timed, struct rk_event_handle **created,
                                   struct rk_error *error) {
    struct rk_event_handle *event = (struct rk_event_handle *)calloc(1, sizeof *event);
    if (!event)
        return rk_fail(error, RK_ERROR, "creating an event: out of host memory");
    cudaError_t result = cudaEventCreateWithFlags(&event->handle, timed ? cudaEventDefault : cudaEventDisableTiming);
    if (result != cudaSuccess) {
        free(event);
        return rk_cuda_status(result, "creating an event", error);
    }
    event->device = device;
    *created = event;
    return RK_OK;
}

static void event_destroy(struct rk_event_handle *event) {
    if (!event)
        return;
    cudaEventDestroy(event->handle);
    free(event);
}

static enum rk_status event_record(struct rk_event_handle *event, struct rk_stream *stream, struct rk_error *error) {
    RK_CUDA_TRY(cudaEventRecord(event->handle, stream->handle), "recording an event");
    event->recorded = true;
    return RK_OK;
}

static enum rk_status event_wait(struct rk_stream *stream, struct rk_event_handle *event, struct rk_error *error) {
    if (event->recorded)
        RK_CUDA_TRY(cudaStreamWaitEvent(stream->handle, event->handle, 0), "waiting for an event");
    return RK_OK;
}

static enum rk_status event_done(struct rk_event_handle *event, bool *done, struct rk_error *error) {
    cudaError_t result = event->recorded ? cudaEventQuery(event->handle) : cudaSuccess;
    if (result != cudaSuccess && result != cudaErrorNotReady)
        return rk_cuda_status(result, "asking for an event", error);
    *done = result == cudaSuccess;
    return RK_OK;
}

static enum rk_status event_elapsed(struct rk_event_handle *from, struct rk_event_handle *to, double *seconds,
                                    struct rk_error *error) {
    float milliseconds = 0;
    RK_CUDA_TRY(cudaEventElapsedTime(&milliseconds, from->handle, to->handle), "reading timed events");
    *seconds = 1e-3 * (double)milliseconds;
    return RK_OK;
}

static enum rk_status copy(struct rk_stream *stream, void *to, const void *from, int64_t bytes,
                           enum rk_copy_direction direction, struct rk_error *error) {
    static const cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
    if (direction == RK_COPY_D2H)
        stream->device->counters.copies_to_host++;
    else if (direction == RK_COPY_H2D)
        stream->device->counters.copies_to_device++;
    RK_CUDA_TRY(cudaMemcpyAsync(to, from, (size_t)bytes, kinds[direction], stream->handle), "copying");
    return RK_OK;
}

static enum rk_status fill(struct rk_stream *stream, void *address, int byte, int64_t bytes, struct rk_error *error) {
    RK_CUDA_TRY(cudaMemsetAsync(address, byte, (size_t)bytes, stream->handle), "filling memory");
    return RK_OK;
}

enum rk_status rk_cuda_zero(struct rk_stream *stream, const struct rk_op_call *call, struct rk_error *error) {
    stream->device->counters.launches++;
    return fill(stream, call->operand[0], 0, call->shape->dim[0], error);
}

static void counters_reset(struct rk_device *device) {
    memset(&device->counters, 0, sizeof device->counters);
}

static void counters_read(struct rk_device *device, struct rk_device_counters *counters) {
    *counters = device->counters;
}

extern "C" {

struct CUstream_st *rk_cuda_stream_handle(const struct rk_stream *stream) {
    return stream->handle;
}

struct rk_device *rk_cuda_stream_device(const struct rk_stream *stream) {
    return stream->device;
}

int rk_cuda_device_ordinal(const struct rk_device *device) {
    return device->ordinal;
}

int rk_cuda_device_multiprocessors(const struct rk_device *device) {
    return device->properties.multiProcessorCount;
}

void rk_cuda_count_launches(struct rk_device *device, int64_t launches) {
    device->counters.launches += launches;
}

void rk_cuda_device_watch(struct rk_device *device, rk_cuda_watch *watch, void *context) {
    device->watch = watch;
    device->watch_context = context;
}
}

static struct rk_backend make_backend(void) {
    struct rk_backend backend = {};
    backend.kind = RK_BACKEND_CUDA;
    backend.name = "cuda";
    backend.device_count = device_count;
    backend.device_open = device_open;
    backend.device_close = device_close;
    backend.device_facts = device_facts;
    backend.device_describe = device_describe;
    backend.memory_allocate = memory_allocate;
    backend.memory_free = memory_free;
    backend.host_allocate = host_allocate;
    backend.host_free = host_free;
    backend.stream_create = stream_create;
    backend.stream_destroy = stream_destroy;
    backend.stream_synchronize = stream_synchronize;
    backend.event_create = event_create;
    backend.event_destroy = event_destroy;
    backend.event_record = event_record;
    backend.event_wait = event_wait;
    backend.event_done = event_done;
    backend.event_elapsed = event_elapsed;
    backend.copy = copy;
    backend.fill = fill;
    backend.counters_reset = counters_reset;
    backend.counters_read = counters_read;
    backend.op[RK_OP_ZERO] = rk_cuda_zero;
    backend.op[RK_OP_EMBEDDING_FORWARD] = rk_cuda_embedding_forward;
    backend.op[RK_OP_EMBEDDING_BACKWARD] = rk_cuda_embedding_backward;
    backend.op[RK_OP_RMSNORM_FORWARD] = rk_cuda_rmsnorm_forward;
    backend.op[RK_OP_RMSNORM_BACKWARD] = rk_cuda_rmsnorm_backward;
    backend.op[RK_OP_GEMM_FORWARD] = rk_cuda_gemm_forward;
    backend.op[RK_OP_GEMM_DGRAD] = rk_cuda_gemm_dgrad;
    backend.op[RK_OP_GEMM_WGRAD] = rk_cuda_gemm_wgrad;
    backend.op[RK_OP_ROPE_FORWARD] = rk_cuda_rope_forward;
    backend.op[RK_OP_ROPE_BACKWARD] = rk_cuda_rope_backward;
    backend.op[RK_OP_ATTENTION_FORWARD] = rk_cuda_attention_forward;
    backend.op[RK_OP_ATTENTION_BACKWARD] = rk_cuda_attention_backward;
    backend.op[RK_OP_ROUTE_FORWARD] = rk_cuda_route_forward;
    backend.op[RK_OP_ROUTE_BACKWARD] = rk_cuda_route_backward;
    backend.op[RK_OP_ROUTE_MAP] = rk_cuda_route_map;
    backend.op[RK_OP_GROUPED_GEMM_FORWARD] = rk_cuda_grouped_gemm_forward;
    backend.op[RK_OP_GROUPED_GEMM_DGRAD] = rk_cuda_grouped_gemm_dgrad;
    backend.op[RK_OP_GROUPED_GEMM_WGRAD] = rk_cuda_grouped_gemm_wgrad;
    backend.op[RK_OP_SWIGLU_FORWARD] = rk_cuda_swiglu_forward;
    backend.op[RK_OP_SWIGLU_BACKWARD] = rk_cuda_swiglu_backward;
    backend.op[RK_OP_CROSS_ENTROPY] = rk_cuda_cross_entropy;
    backend.op[RK_OP_GRAD_NORM] = rk_cuda_grad_norm;
    backend.op[RK_OP_ADAMW] = rk_cuda_adamw;
    return backend;
}

extern "C" const struct rk_backend *rk_cuda_backend(void) {
    static const struct rk_backend backend = make_backend();
    return &backend;
}

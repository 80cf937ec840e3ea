/* The op interface of a device back end: streams, events, memory, copies, and one kernel for every op that a kernel executes.
 *
 * Calls enqueue and return; an error found later is returned by the next call that waits. Back ends are process-wide tables
 * without state of their own; all state hangs off the device. The CPU back end runs each call at once on the calling thread:
 * program order is one legal order of every stream program. A wait for an event that was not yet recorded in program order is
 * legal and complete, and counted, so that a lowering that waits before it records shows in a test. A back end never reads
 * routing data on the host: sizes and offsets stay in device memory. */
#ifndef RK_KERNELS_KERNELS_H
#define RK_KERNELS_KERNELS_H

#include "base/status.h"
#include "model/ops.h"

#include <stdbool.h>
#include <stdint.h>

struct rk_device;
struct rk_stream;
struct rk_event_handle;

/* One call of a kernel or a transport: the shape, where the operands lie, and what identifies the visit. */
struct rk_op_call {
    const struct rk_op_shape *shape;
    void *operand[RK_OP_OPERANDS];       /* device addresses; NULL where absent */
    float parameter[RK_OP_PARAMETERS];
    uint64_t serial;     /* identifies (step, layer, micro-batch, data rank): seeds ROUTE_RANDOM, equal in recomputation and
                            under every layout */
    int32_t group_rank;  /* this rank's index in the op's group (ROUTE_MAP: in the EP-MP group) */
};

enum rk_copy_direction { RK_COPY_H2D, RK_COPY_D2H, RK_COPY_D2D };

struct rk_device_facts {
    char name[96];
    char uuid[48];              /* empty where there is none */
    int64_t memory_bytes;       /* of the device */
    int64_t
        used_bytes; /* on a GPU by all processes, as its driver sees it; on a CPU resident, by this one; 0: unknown */
    int32_t multiprocessors;    /* 1 for a CPU rank */
    int64_t l2_bytes;
    char driver[32], runtime[32], libraries[160];
};

/* Counters that tests read: what happened since rk_backend.counters_reset. */
struct rk_device_counters {
    int64_t launches, copies_to_host, copies_to_device, host_waits, allocations;
    int64_t device_bytes, host_bytes; /* asked of memory_allocate and of host_allocate, and given */
    int64_t unrecorded_waits; /* waits for an event that nothing had recorded yet (CPU back end; 0 on others) */
};

struct rk_backend {
    enum rk_backend_kind kind;
    const char *name; /* "cpu", "cuda" */

    /* Number of devices; 0 with RK_OK when the driver or the hardware is missing, the reason in error->text. The CPU back end
     * counts the cores that this process may use, but opens any number: ranks may share them. */
    enum rk_status (*device_count)(int *count, struct rk_error *error);
    /* spill_folder: where the CPU back end keeps offloaded bytes (NULL: /var/tmp); ignored by GPU back ends. */
    enum rk_status (*device_open)(int ordinal, const char *spill_folder, struct rk_device **device,
                                  struct rk_error *error);
    void (*device_close)(struct rk_device *device);
    enum rk_status (*device_facts)(struct rk_device *device, struct rk_device_facts *facts, struct rk_error *error);
    /* The same without used_bytes, and without opening the device: a process takes memory on each GPU that it opens. */
    enum rk_status (*device_describe)(int ordinal, struct rk_device_facts *facts, struct rk_error *error);

    /* Device memory, 256-byte aligned, contents undefined. */
    enum rk_status (*memory_allocate)(struct rk_device *device, int64_t bytes, void **address, struct rk_error *error);
    void (*memory_free)(struct rk_device *device, void *address);
    /* Host memory that copies can run against asynchronously: pinned on GPUs. On the CPU back end, whose device memory is the
     * host's own, the next tier below is storage: an unlinked file in the spill folder, mapped, each copy synced. */
    enum rk_status (*host_allocate)(struct rk_device *device, int64_t bytes, void **address, struct rk_error *error);
    void (*host_free)(struct rk_device *device, void *address);

    enum rk_status (*stream_create)(struct rk_device *device, bool high_priority, struct rk_stream **stream,
                                    struct rk_error *error);
    void (*stream_destroy)(struct rk_stream *stream);
    /* Blocks the host until the stream is empty or the deadline passes (RK_ERROR naming the device). RK_RANK_FAILED
     * when a peer is found gone meanwhile. Counted. */
    enum rk_status (*stream_synchronize)(struct rk_stream *stream, double deadline_seconds, struct rk_error *error);

    enum rk_status (*event_create)(struct rk_device *device, bool timed, struct rk_event_handle **event,
                                   struct rk_error *error);
    void (*event_destroy)(struct rk_event_handle *event);
    enum rk_status (*event_record)(struct rk_event_handle *event, struct rk_stream *stream, struct rk_error *error);
    /* An event that was never recorded is complete. */
    enum rk_status (*event_wait)(struct rk_stream *stream, struct rk_event_handle *event, struct rk_error *error);
    /* Whether the event is complete: all that the stream held when it was last recorded has been done. */
    enum rk_status (*event_done)(struct rk_event_handle *event, bool *done, struct rk_error *error);
    /* Seconds between two timed events; both must be complete. */
    enum rk_status (*event_elapsed)(struct rk_event_handle *from, struct rk_event_handle *to, double *seconds,
                                    struct rk_error *error);

    enum rk_status (*copy)(struct rk_stream *stream, void *to, const void *from, int64_t bytes,
                           enum rk_copy_direction direction, struct rk_error *error);
    /* Fills with a byte: 0xFF makes every FP32 and BF16 value a NaN (the poison of debug runs). */
    enum rk_status (*fill)(struct rk_stream *stream, void *address, int byte, int64_t bytes, struct rk_error *error);

    /* Kernels by kind; NULL for kinds that a transport or a copy engine executes. */
    enum rk_status (*op[RK_OP_KIND_COUNT])(struct rk_stream *stream, const struct rk_op_call *call,
                                           struct rk_error *error);

    void (*counters_reset)(struct rk_device *device);
    void (*counters_read)(struct rk_device *device, struct rk_device_counters *counters);
};

/* Never NULL for the CPU; NULL for CUDA when the program was built without it. */
const struct rk_backend *rk_backend_cpu(void);
const struct rk_backend *rk_backend_cuda(void);
const struct rk_backend *rk_backend_of(enum rk_backend_kind kind);

/* Runs a RK_BY_KERNEL op through the table, after checking that its required operands are there. */
enum rk_status rk_kernel_run(const struct rk_backend *backend, struct rk_stream *stream, const struct rk_op_call *call,
                             struct rk_error *error);

#endif

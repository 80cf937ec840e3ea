/* The GPU transport's own words. Collectives and stage transfers go through NCCL; the exchange with the experts goes
 * through windows: a piece of device memory of every rank that the other ranks of its EP-MP group write to.
 *
 * Where all ranks of a group reach one another's memory (one host, NVLink or PCIe peer access), kernels store straight
 * into the peers' windows and meet at flags in device memory. Elsewhere the same kernels store into a staging copy of
 * the windows, which NCCL then moves, slice by slice and padded to the slice's full size, because the host never knows
 * the counts.
 *
 * Launch order. All ranks of a communicator enqueue its ops in program order, which is the same for all of them. Every
 * group kind has a communicator of its own and every pipeline link two of them, one a direction, so an op never waits
 * on the GPU behind an op of another group, and a send never behind a receive. All connections are made when the
 * transport is opened: later an op of one group never makes the host wait for ranks that stand in an op of another. */
#ifndef RK_EXECUTOR_TRANSPORT_NCCL_CUH
#define RK_EXECUTOR_TRANSPORT_NCCL_CUH

#include <cuda_runtime.h>
#include <nccl.h>

extern "C" {
#include "executor/transport.h"
#include "kernels/cuda/cuda.h"
}

/* Pairs of a rank and a neighbour, one for each direction; the first of the pair sends. */
enum nccl_link {
    NCCL_LINK_FORWARD_OUT,  /* to the next stage */
    NCCL_LINK_FORWARD_IN,   /* from the previous stage */
    NCCL_LINK_BACKWARD_OUT, /* to the previous stage */
    NCCL_LINK_BACKWARD_IN,  /* from the next stage */
    NCCL_LINK_COUNT
};

struct nccl_group {
    int64_t count, index;
    int64_t *ranks;  /* owned */
    int64_t bytes;   /* of the largest op that goes through NCCL, all members together; 0: none does */
    ncclComm_t comm; /* NULL for a group of one, or one that no op uses */
};

/* What kernels and host tell each other, in pinned host memory. */
struct nccl_signals {
    volatile uint32_t missing; /* 1 + member of the EP-MP group that did not come to a meeting within the deadline */
    volatile uint32_t stop;    /* set by the host: kernels that wait return at once */
};

/* The exchange with the experts. A window begins with a control block, then the data. */
struct nccl_window {
    char *own;    /* this rank's window; owned */
    char *stage;  /* as large, where NCCL moves the data; owned or NULL */
    char **peers; /* by member: mapped windows of the peers, own at own index; NULL entries with a stage; owned */
    char **peers_on_device; /* the same, readable by kernels; owned */
    bool direct;            /* kernels store into the peers' windows */
    int64_t bytes;          /* of a window */
    int64_t routes;         /* T · K at most, of any rank */
    int64_t dispatch_slice; /* bytes that one source writes in a dispatch */
    int64_t tokens_at;      /* where the tokens begin in a slice of DISPATCH */
    int64_t combine_slice;  /* bytes that one owner writes in a combine through NCCL */
    int64_t row_bytes;      /* the widest row */
    int32_t *tables;        /* of COMBINE, on the device; owned */
    uint64_t meetings;      /* held so far: the flags' next value */
};

struct rk_transport {
    const struct rk_job *job;
    struct rk_device *device;
    int64_t rank, world;
    double deadline_seconds;
    struct nccl_group group[RK_GROUP_COUNT];
    ncclComm_t link[NCCL_LINK_COUNT];
    struct nccl_window window;
    struct nccl_signals *signals; /* owned */
    int *processes; /* of peers on this host: a descriptor that becomes readable when the peer ends, or -1; owned */
    volatile int failed;  /* 0, or 1 once the job cannot go on; then `failure` tells why */
    volatile int gave_up; /* set by abort */
    struct rk_error failure;
    int64_t remote_bytes[RK_OP_FAMILY_COUNT]; /* what the host knows; the experts' rows are counted on the device */
    /* The op being run, for messages. */
    const struct rk_op_shape *shape;
    const struct rk_transport_position *position;
};

/* The transport. */
extern "C" const struct rk_transport_table *rk_nccl_transport(void);

/* nccl_groups.cu: communicators for the groups and links that the program uses. Collective over the job. */
enum rk_status rk_nccl_groups_open(struct rk_transport *transport, const struct rk_program *program,
                                   struct rk_error *error);
/* Destroys the communicators, or aborts them when the job has failed. */
void rk_nccl_groups_close(struct rk_transport *transport);
void rk_nccl_groups_abort(struct rk_transport *transport);
/* Waits until a call on the communicator has been enqueued: RK_RANK_FAILED after the deadline or when a peer is gone.
 */
enum rk_status rk_nccl_settle(struct rk_transport *transport, ncclComm_t comm, ncclResult_t result,
                              struct rk_error *error);

/* nccl_watch.cu. */
/* Whether the job can go on: looks at the peers' processes, the exchange, NCCL's asynchronous errors and the kernels'
 * signals. The first failure found is kept and told from then on; it stops what waits on the device. */
enum rk_status rk_nccl_look(struct rk_transport *transport, struct rk_error *error);
enum rk_status rk_nccl_fail(struct rk_transport *transport, struct rk_error *error, const char *format, ...)
    RK_PRINTF_LIKE(3, 4);
enum rk_status rk_nccl_watch_open(struct rk_transport *transport, struct rk_error *error);
void rk_nccl_watch_close(struct rk_transport *transport);

/* nccl_window.cu: memory for the exchange with the experts. Collective over the job. */
enum rk_status rk_nccl_window_open(struct rk_transport *transport, const struct rk_program *program,
                                   struct rk_error *error);
void rk_nccl_window_close(struct rk_transport *transport);

/* nccl_experts.cu. */
enum rk_status rk_nccl_dispatch(struct rk_transport *transport, struct rk_stream *stream, const struct rk_op_call *call,
                                struct rk_error *error);
enum rk_status rk_nccl_combine(struct rk_transport *transport, struct rk_stream *stream, const struct rk_op_call *call,
                               struct rk_error *error);
/* Bytes of tokens, rows and weights sent to other ranks so far. Waits for the device. */
int64_t rk_nccl_expert_bytes(const struct rk_transport *transport);

/* The control block at a window's begin. */
struct nccl_control {
    unsigned long long remote_bytes; /* sent by this rank */
    unsigned long long flags[1];     /* by member: the meetings that it has come to; as many as the group has members */
};
enum { NCCL_CONTROL_BYTES = 1 << 16, NCCL_SLICE_HEADER = 256 };
/* What stands at the begin of a slice of DISPATCH. */
struct nccl_slice {
    int64_t tokens;
    int32_t weighted;
};

#define NCCL_CUDA_TRY(call, what)                                                                                      \
    do {                                                                                                               \
        cudaError_t nccl_cuda_result = (call);                                                                         \
        if (nccl_cuda_result != cudaSuccess)                                                                           \
            return rk_fail(error, RK_ERROR, "%s: %s", what, cudaGetErrorString(nccl_cuda_result));                     \
    } while (0)

#endif

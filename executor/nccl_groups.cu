/* Communicators: one for each kind of group that the program uses, two for each pipeline link. */
#include "executor/transport_nccl.cuh"

extern "C" {
#include "base/clock.h"
#include "executor/transport_text.h"
}

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How many times in a row a call looks at once before it sleeps between looks. */
enum { EAGER_LOOKS = 1000, POLL_NANOSECONDS = 20000 };
#define WATCH_SECONDS 0.05

enum rk_status rk_nccl_settle(struct rk_transport *transport, ncclComm_t comm, ncclResult_t result,
                              struct rk_error *error) {
    double start = 0, next_look = 0;
    for (int64_t look = 0; result == ncclInProgress; look++) {
        ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
        if (asked != ncclSuccess)
            result = asked;
        if (look < EAGER_LOOKS || result != ncclInProgress)
            continue;
        double now = rk_clock_seconds();
        if (start == 0) {
            start = now;
            next_look = now + WATCH_SECONDS;
        }
        if (now > next_look) {
            next_look = now + WATCH_SECONDS;
            enum rk_status status = rk_nccl_look(transport, error);
            if (status != RK_OK)
                return status;
        }
        if (now - start > transport->deadline_seconds)
            return rk_nccl_fail(transport, error, "NCCL did not get ready within %g s; a rank of the group is missing",
                                transport->deadline_seconds);
        struct timespec pause = {0, POLL_NANOSECONDS};
        nanosleep(&pause, NULL);
    }
    if (result == ncclSuccess)
        return RK_OK;
    char place[256];
    return rk_nccl_fail(transport, error, "NCCL: %s (%s) in %s", ncclGetErrorString(result), ncclGetLastError(comm),
                        rk_transport_place_text(transport->shape, transport->position, place, sizeof place));
}

/* What every rank tells all others: the identifiers of the groups that it leads and of the links that it sends on. */
struct announcement {
    int64_t bytes[RK_GROUP_COUNT]; /* of the largest op over the group; 0: none */
    ncclUniqueId group[RK_GROUP_COUNT], forward, backward;
};

static bool is_pipeline(int kind) {
    return kind == RK_GROUP_PIPELINE_NEXT || kind == RK_GROUP_PIPELINE_PREVIOUS;
}

static bool is_member(const struct rk_transport *transport, int kind) {
    const struct nccl_group *group = &transport->group[kind];
    return group->count > 0 && group->ranks[group->index] == transport->rank;
}

static bool has_neighbour(const struct rk_transport *transport, int kind) {
    return transport->group[kind].count > 0 && transport->group[kind].ranks[0] != transport->rank;
}

static enum rk_status find_groups(struct rk_transport *transport, const struct rk_candidate *candidate,
                                  struct rk_error *error) {
    for (int kind = RK_GROUP_NONE + 1; kind < RK_GROUP_COUNT; kind++) {
        struct nccl_group *group = &transport->group[kind];
        group->ranks = (int64_t *)calloc((size_t)transport->world, sizeof *group->ranks);
        if (!group->ranks)
            return rk_fail(error, RK_ERROR, "transport: out of memory");
        group->count = rk_candidate_group(candidate, transport->rank, (enum rk_group_kind)kind, group->ranks,
                                          transport->world, &group->index);
    }
    return RK_OK;
}

static enum rk_status new_identifier(ncclUniqueId *identifier, struct rk_error *error) {
    ncclResult_t result = ncclGetUniqueId(identifier);
    if (result == ncclSuccess)
        return RK_OK;
    return rk_fail(error, RK_ERROR,
                   "NCCL cannot open a socket for its ranks to meet: %s; set NCCL_SOCKET_IFNAME to the "
                   "interface that joins the hosts",
                   ncclGetErrorString(result));
}

/* Bytes of an op, all members together, that NCCL moves. Ranks of one host exchange rows with the experts without it.
 */
static int64_t bytes_through_nccl(const struct rk_transport *transport, const struct rk_op_shape *shape) {
    switch (shape->kind) {
    case RK_OP_COUNT_EXCHANGE:
        return shape->dim[0] * shape->dim[1] * 4;
    case RK_OP_DISPATCH:
    case RK_OP_COMBINE:
        return transport->job->one_host
                   ? 1
                   : shape->dim[5] * shape->dim[1] * rk_data_type_bytes(shape->type) * shape->dim[4];
    case RK_OP_ALL_GATHER:
        return shape->dim[0] * rk_data_type_bytes(shape->type);
    default: /* sums */
        return shape->dim[0] * ((shape->flags & RK_OP_FLAG_F64) != 0 ? 8 : 4);
    }
}

static enum rk_status announce(struct rk_transport *transport, const struct rk_program *program,
                               struct announcement *mine, struct rk_error *error) {
    enum rk_status status = RK_OK;
    memset(mine, 0, sizeof *mine);
    for (size_t i = 0; i < program->op_count; i++)
        if (rk_op_executor(program->ops[i].shape.kind) == RK_BY_TRANSPORT) {
            int64_t bytes = bytes_through_nccl(transport, &program->ops[i].shape);
            int64_t *largest = &mine->bytes[program->ops[i].shape.group];
            *largest = bytes > *largest ? bytes : *largest;
        }
    for (int kind = RK_GROUP_NONE + 1; kind < RK_GROUP_COUNT && status == RK_OK; kind++)
        if (!is_pipeline(kind) && transport->group[kind].count > 1 &&
            transport->group[kind].ranks[0] == transport->rank)
            status = new_identifier(&mine->group[kind], error);
    if (status == RK_OK && has_neighbour(transport, RK_GROUP_PIPELINE_NEXT))
        status = new_identifier(&mine->forward, error);
    if (status == RK_OK && has_neighbour(transport, RK_GROUP_PIPELINE_PREVIOUS))
        status = new_identifier(&mine->backward, error);
    return status;
}

/* A communicator for nothing larger needs few channels, each of which has buffers and takes a multiprocessor. */
enum { SMALL_BYTES = 1 << 20, SMALL_CHANNELS = 2 };

/* Begins to make a communicator; the call returns before the others have come. bytes: of its largest op. */
static enum rk_status begin(struct rk_transport *transport, int64_t count, int64_t index, ncclUniqueId identifier,
                            int64_t bytes, ncclComm_t *comm, struct rk_error *error) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (bytes <= SMALL_BYTES) {
        config.minCTAs = 1;
        config.maxCTAs = SMALL_CHANNELS;
    }
    ncclResult_t result = ncclCommInitRankConfig(comm, (int)count, identifier, (int)index, &config);
    if (result == ncclSuccess || result == ncclInProgress)
        return RK_OK;
    return rk_nccl_fail(transport, error, "NCCL cannot join its group: %s", ncclGetErrorString(result));
}

static enum rk_status make_groups(struct rk_transport *transport, const struct announcement *all,
                                  struct rk_error *error) {
    for (int kind = RK_GROUP_NONE + 1; kind < RK_GROUP_COUNT; kind++) {
        struct nccl_group *group = &transport->group[kind];
        for (int64_t rank = 0; rank < transport->world; rank++)
            group->bytes = all[rank].bytes[kind] > group->bytes ? all[rank].bytes[kind] : group->bytes;
        if (group->bytes == 0 || is_pipeline(kind) || group->count < 2 || !is_member(transport, kind))
            continue;
        enum rk_status status = begin(transport, group->count, group->index, all[group->ranks[0]].group[kind],
                                      group->bytes, &group->comm, error);
        if (status == RK_OK)
            status = rk_nccl_settle(transport, group->comm, ncclInProgress, error);
        if (status != RK_OK)
            return status;
    }
    return RK_OK;
}

/* All links of a rank begin together, because its neighbours wait for it in an order that it does not know. */
static enum rk_status make_links(struct rk_transport *transport, const struct announcement *all,
                                 struct rk_error *error) {
    enum rk_status status = RK_OK;
    bool next = has_neighbour(transport, RK_GROUP_PIPELINE_NEXT);
    bool previous = has_neighbour(transport, RK_GROUP_PIPELINE_PREVIOUS);
    if (next) {
        int64_t peer = transport->group[RK_GROUP_PIPELINE_NEXT].ranks[0];
        status = begin(transport, 2, 0, all[transport->rank].forward, INT64_MAX,
                       &transport->link[NCCL_LINK_FORWARD_OUT], error);
        if (status == RK_OK)
            status =
                begin(transport, 2, 1, all[peer].backward, INT64_MAX, &transport->link[NCCL_LINK_BACKWARD_IN], error);
    }
    if (status == RK_OK && previous) {
        int64_t peer = transport->group[RK_GROUP_PIPELINE_PREVIOUS].ranks[0];
        status = begin(transport, 2, 1, all[peer].forward, INT64_MAX, &transport->link[NCCL_LINK_FORWARD_IN], error);
        if (status == RK_OK)
            status = begin(transport, 2, 0, all[transport->rank].backward, INT64_MAX,
                           &transport->link[NCCL_LINK_BACKWARD_OUT], error);
    }
    for (int link = 0; link < NCCL_LINK_COUNT && status == RK_OK; link++)
        if (transport->link[link])
            status = rk_nccl_settle(transport, transport->link[link], ncclInProgress, error);
    return status;
}

/* NCCL connects an algorithm's channels when an op first chooses it, and chooses by size: these sizes, in bytes of all
 * ranks together, meet all that it will choose. */
static const int64_t first_sizes[] = {1 << 10, 1 << 16, 1 << 20, 8 << 20, 64 << 20};
enum { FIRST_SIZES = sizeof first_sizes / sizeof first_sizes[0] };

/* Streams of the first ops: one for each link, because neighbours that send to each other must not wait for themselves.
 */
struct first_ops {
    cudaStream_t stream[NCCL_LINK_COUNT];
    float *scratch; /* as many bytes as the largest of first_sizes, and a value for each rank */
};

/* In place, so that the memory needs to hold but one operand. */
static enum rk_status first_collectives(struct rk_transport *transport, const struct first_ops *ops, int kind,
                                        int64_t bytes, struct rk_error *error) {
    const struct nccl_group *group = &transport->group[kind];
    cudaStream_t stream = ops->stream[0];
    float *all = ops->scratch;
    size_t share = (size_t)((bytes / 4 + group->count - 1) / group->count);
    float *own = all + share * (size_t)group->index;
    enum rk_status status =
        rk_nccl_settle(transport, group->comm,
                       ncclAllReduce(all, all, (size_t)bytes / 4, ncclFloat, ncclSum, group->comm, stream), error);
    if (status == RK_OK)
        status = rk_nccl_settle(transport, group->comm,
                                ncclReduceScatter(all, own, share, ncclFloat, ncclSum, group->comm, stream), error);
    if (status == RK_OK)
        status = rk_nccl_settle(transport, group->comm, ncclAllGather(own, all, share, ncclFloat, group->comm, stream),
                                error);
    return status;
}

/* All in one group: round a ring of stages nobody's link comes first. */
static enum rk_status first_transfers(struct rk_transport *transport, const struct first_ops *ops,
                                      struct rk_error *error) {
    ncclResult_t result = ncclGroupStart();
    for (int link = 0; link < NCCL_LINK_COUNT && result == ncclSuccess; link++) {
        ncclComm_t comm = transport->link[link];
        if (!comm)
            continue;
        bool sends = link == NCCL_LINK_FORWARD_OUT || link == NCCL_LINK_BACKWARD_OUT;
        ncclResult_t one = sends ? ncclSend(ops->scratch, 1, ncclFloat, 1, comm, ops->stream[link])
                                 : ncclRecv(ops->scratch + 1 + link, 1, ncclFloat, 0, comm, ops->stream[link]);
        if (one != ncclInProgress)
            result = one;
    }
    ncclResult_t end = ncclGroupEnd();
    if (result == ncclSuccess)
        result = end;
    if (result != ncclSuccess && result != ncclInProgress)
        return rk_nccl_fail(transport, error, "NCCL cannot join the pipeline's stages: %s", ncclGetErrorString(result));
    enum rk_status status = RK_OK;
    for (int link = 0; link < NCCL_LINK_COUNT && status == RK_OK; link++)
        if (transport->link[link])
            status = rk_nccl_settle(transport, transport->link[link], ncclInProgress, error);
    return status;
}

static enum rk_status wait_for(struct rk_transport *transport, cudaStream_t stream, struct rk_error *error) {
    double end = rk_clock_seconds() + transport->deadline_seconds;
    for (;;) {
        cudaError_t result = cudaStreamQuery(stream);
        if (result == cudaSuccess)
            return RK_OK;
        if (result != cudaErrorNotReady)
            return rk_fail(error, RK_ERROR, "the first NCCL ops: %s", cudaGetErrorString(result));
        enum rk_status status = rk_nccl_look(transport, error);
        if (status != RK_OK)
            return status;
        if (rk_clock_seconds() > end)
            return rk_nccl_fail(transport, error, "the first NCCL ops did not end within %g s",
                                transport->deadline_seconds);
        struct timespec pause = {0, POLL_NANOSECONDS};
        nanosleep(&pause, NULL);
    }
}

/* One small op of each sort on every communicator, so that every connection exists before the first step. */
static enum rk_status connect_all(struct rk_transport *transport, struct rk_error *error) {
    struct first_ops ops = {};
    size_t bytes = (size_t)first_sizes[FIRST_SIZES - 1] + (size_t)transport->world * sizeof *ops.scratch;
    cudaError_t result = cudaMalloc((void **)&ops.scratch, bytes);
    for (int link = 0; link < NCCL_LINK_COUNT && result == cudaSuccess; link++)
        result = cudaStreamCreateWithFlags(&ops.stream[link], cudaStreamNonBlocking);
    if (result == cudaSuccess)
        result = cudaMemset(ops.scratch, 0, bytes);
    enum rk_status status = RK_OK;
    if (result != cudaSuccess)
        status = rk_fail(error, RK_ERROR, "preparing NCCL's first ops: %s", cudaGetErrorString(result));
    for (int kind = 0; kind < RK_GROUP_COUNT; kind++)
        for (int size = 0; size < FIRST_SIZES && status == RK_OK && transport->group[kind].comm; size++)
            if (size == 0 || first_sizes[size - 1] < transport->group[kind].bytes)
                status = first_collectives(transport, &ops, kind, first_sizes[size], error);
    if (status == RK_OK)
        status = first_transfers(transport, &ops, error);
    for (int link = 0; link < NCCL_LINK_COUNT; link++) {
        if (status == RK_OK)
            status = wait_for(transport, ops.stream[link], error);
        if (ops.stream[link])
            cudaStreamDestroy(ops.stream[link]);
    }
    cudaFree(ops.scratch);
    return status;
}

enum rk_status rk_nccl_groups_open(struct rk_transport *transport, const struct rk_program *program,
                                   struct rk_error *error) {
    enum rk_status status = find_groups(transport, &program->candidate, error);
    if (status != RK_OK || transport->world == 1)
        return status;
    struct announcement mine, *all = NULL;
    all = (struct announcement *)calloc((size_t)transport->world, sizeof *all);
    if (!all)
        return rk_fail(error, RK_ERROR, "transport: out of memory");
    status = announce(transport, program, &mine, error);
    if (status == RK_OK)
        status = rk_job_all_gather(transport->job, &mine, sizeof mine, all, error);
    if (status == RK_OK)
        status = make_groups(transport, all, error);
    if (status == RK_OK)
        status = make_links(transport, all, error);
    if (status == RK_OK)
        status = connect_all(transport, error);
    free(all);
    return status;
}

static void each_comm(struct rk_transport *transport, ncclResult_t (*what)(ncclComm_t comm), bool last) {
    for (int kind = 0; kind < RK_GROUP_COUNT; kind++) {
        if (transport->group[kind].comm)
            what(transport->group[kind].comm);
        if (last)
            transport->group[kind].comm = NULL;
    }
    for (int link = 0; link < NCCL_LINK_COUNT; link++) {
        if (transport->link[link])
            what(transport->link[link]);
        if (last)
            transport->link[link] = NULL;
    }
}

void rk_nccl_groups_abort(struct rk_transport *transport) {
    each_comm(transport, ncclCommAbort, true);
}

static ncclResult_t destroy(ncclComm_t comm) {
    ncclResult_t result = ncclInProgress;
    double end = rk_clock_seconds() + 10;
    while (result == ncclInProgress && rk_clock_seconds() < end)
        if (ncclCommGetAsyncError(comm, &result) != ncclSuccess)
            break;
    return result == ncclSuccess ? ncclCommDestroy(comm) : ncclCommAbort(comm);
}

void rk_nccl_groups_close(struct rk_transport *transport) {
    if (transport->failed) {
        rk_nccl_groups_abort(transport);
    } else {
        /* All begin to end before one is waited for: two neighbours may come in another order. */
        each_comm(transport, ncclCommFinalize, false);
        each_comm(transport, destroy, true);
    }
    for (int kind = 0; kind < RK_GROUP_COUNT; kind++)
        free(transport->group[kind].ranks);
}

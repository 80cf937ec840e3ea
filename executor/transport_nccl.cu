#include "executor/transport_nccl.cuh"

extern "C" {
#include "executor/transport_text.h"
}

#include <stdlib.h>
#include <string.h>

static enum rk_status check_version(struct rk_error *error) {
    int version = 0;
    ncclResult_t result = ncclGetVersion(&version);
    if (result == ncclSuccess && version / 100 >= NCCL_VERSION_CODE / 100)
        return RK_OK;
    return rk_fail(
        error, RK_HARDWARE_UNFIT,
        "NCCL's library is version %d, this program was built with %d; put a library of at least that release "
        "first on LD_LIBRARY_PATH, or build with the header of the one that is there",
        version, (int)NCCL_VERSION_CODE);
}

static void transport_close(struct rk_transport *transport) {
    if (!transport)
        return;
    /* A rank that is done may end, and the others would take it for dead while they still wait for their last ops. */
    if (transport->gave_up ||
        (!transport->failed && transport->world > 1 && rk_job_barrier(transport->job, NULL) != RK_OK))
        transport->failed = 1;
    rk_nccl_watch_close(transport);
    rk_nccl_window_close(transport);
    rk_nccl_groups_close(transport);
    free(transport);
}

static enum rk_status transport_open(const struct rk_job *job, const struct rk_backend *backend,
                                     struct rk_device *device, const struct rk_program *program,
                                     double deadline_seconds, struct rk_transport **opened, struct rk_error *error) {
    if (!backend || backend->kind != RK_BACKEND_CUDA)
        return rk_fail(error, RK_USAGE, "transport nccl moves the memory of GPUs only; the back end is %s",
                       backend ? backend->name : "not named");
    if (rk_candidate_world(&program->candidate) != job->place.world)
        return rk_fail(error, RK_USAGE, "the plan is for %lld ranks, the job has %lld",
                       (long long)rk_candidate_world(&program->candidate), (long long)job->place.world);
    enum rk_status status = check_version(error);
    if (status != RK_OK)
        return status;
    /* Multicast over NVLink can take a host's GPUs out of service when a program dies in it. */
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    struct rk_transport *transport = (struct rk_transport *)calloc(1, sizeof *transport);
    if (!transport)
        return rk_fail(error, RK_ERROR, "transport: out of memory");
    transport->job = job;
    transport->device = device;
    transport->rank = job->place.rank;
    transport->world = job->place.world;
    transport->deadline_seconds = deadline_seconds;
    NCCL_CUDA_TRY(cudaSetDevice(rk_cuda_device_ordinal(device)), "choosing the GPU");
    status = rk_nccl_watch_open(transport, error);
    if (status == RK_OK)
        status = rk_nccl_groups_open(transport, program, error);
    if (status == RK_OK)
        status = rk_nccl_window_open(transport, program, error);
    if (status != RK_OK) {
        transport->gave_up = 1;
        transport_close(transport);
        return status;
    }
    *opened = transport;
    return RK_OK;
}

/* What the op says of its group must be what the layout says. */
static enum rk_status check_group(const struct rk_transport *transport, const struct rk_op_shape *shape,
                                  struct rk_error *error) {
    const struct nccl_group *group = &transport->group[shape->group];
    bool pipeline = shape->group == RK_GROUP_PIPELINE_NEXT || shape->group == RK_GROUP_PIPELINE_PREVIOUS;
    bool transfer = shape->kind == RK_OP_SEND || shape->kind == RK_OP_RECEIVE;
    bool experts = shape->kind == RK_OP_DISPATCH || shape->kind == RK_OP_COMBINE;
    int64_t said = transfer ? group->count : shape->dim[experts ? 4 : 1];
    bool member = transfer || (group->count > 0 && group->ranks[group->index] == transport->rank);
    if (said == group->count && member && pipeline == transfer && shape->group != RK_GROUP_NONE)
        return RK_OK;
    return rk_fail(error, RK_ERROR, "%s: the op is for a group of %lld, the %s group of this rank has %lld members",
                   rk_op_name(shape->kind), (long long)said, rk_group_name(shape->group), (long long)group->count);
}

/* A collective of one: the result takes its place. */
static enum rk_status copy_alone(struct rk_transport *transport, cudaStream_t stream, void *to, const void *from,
                                 int64_t bytes, struct rk_error *error) {
    if (to == from || bytes == 0)
        return RK_OK;
    rk_cuda_count_launches(transport->device, 1);
    NCCL_CUDA_TRY(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, stream), "copying");
    return RK_OK;
}

static enum rk_status run_collective(struct rk_transport *transport, struct rk_stream *rk_stream,
                                     const struct rk_op_call *call, struct rk_error *error) {
    const struct rk_op_shape *shape = call->shape;
    const struct nccl_group *group = &transport->group[shape->group];
    cudaStream_t stream = rk_cuda_stream_handle(rk_stream);
    int64_t elements = shape->dim[0], share = elements / group->count, others = group->count - 1;
    int64_t width = rk_data_type_bytes(shape->type), remote = 0;
    const void *in = call->operand[0];
    void *out = call->operand[1];
    bool alone = group->count == 1;
    enum rk_op_family family = rk_op_family(shape->kind);
    ncclResult_t result = ncclSuccess;
    switch (shape->kind) {
    case RK_OP_COUNT_EXCHANGE:
        if (alone)
            return copy_alone(transport, stream, out, in, elements * 4, error);
        result = ncclAllGather(in, out, (size_t)elements, ncclInt32, group->comm, stream);
        remote = others * elements * 4;
        break;
    case RK_OP_REDUCE_SCATTER:
        if (alone)
            return copy_alone(transport, stream, out, in, share * 4, error);
        result = ncclReduceScatter(in, out, (size_t)share, ncclFloat, ncclSum, group->comm, stream);
        remote = others * share * 4;
        break;
    case RK_OP_ALL_GATHER:
        if (alone)
            return copy_alone(transport, stream, out, in, share * width, error);
        result = ncclAllGather(in, out, (size_t)(share * width), ncclInt8, group->comm, stream);
        remote = others * share * width;
        break;
    default: { /* ALL_REDUCE */
        bool wide = (shape->flags & RK_OP_FLAG_F64) != 0;
        if (alone)
            return RK_OK;
        result = ncclAllReduce(in, call->operand[0], (size_t)elements, wide ? ncclDouble : ncclFloat, ncclSum,
                               group->comm, stream);
        remote = others * elements * (wide ? 8 : 4);
    }
    }
    rk_cuda_count_launches(transport->device, 1);
    enum rk_status status = rk_nccl_settle(transport, group->comm, result, error);
    if (status == RK_OK)
        transport->remote_bytes[family] += remote;
    return status;
}

static enum rk_status run_transfer(struct rk_transport *transport, struct rk_stream *rk_stream,
                                   const struct rk_op_call *call, struct rk_error *error) {
    bool sends = call->shape->kind == RK_OP_SEND, next = call->shape->group == RK_GROUP_PIPELINE_NEXT;
    enum nccl_link link = sends ? (next ? NCCL_LINK_FORWARD_OUT : NCCL_LINK_BACKWARD_OUT)
                                : (next ? NCCL_LINK_BACKWARD_IN : NCCL_LINK_FORWARD_IN);
    ncclComm_t comm = transport->link[link];
    cudaStream_t stream = rk_cuda_stream_handle(rk_stream);
    size_t bytes = (size_t)call->shape->dim[0];
    if (!comm)
        return rk_fail(error, RK_USAGE, "%s: a stage cannot send to itself on GPUs; plan with one virtual stage",
                       rk_op_name(call->shape->kind));
    rk_cuda_count_launches(transport->device, 1);
    ncclResult_t result = sends ? ncclSend(call->operand[0], bytes, ncclInt8, 1, comm, stream)
                                : ncclRecv(call->operand[0], bytes, ncclInt8, 0, comm, stream);
    enum rk_status status = rk_nccl_settle(transport, comm, result, error);
    if (status == RK_OK && sends)
        transport->remote_bytes[RK_OP_FAMILY_PIPELINE] += (int64_t)bytes;
    return status;
}

static enum rk_status transport_run(struct rk_transport *transport, struct rk_stream *stream,
                                    const struct rk_op_call *call, enum rk_stream_kind stream_kind,
                                    const struct rk_transport_position *position, struct rk_error *error) {
    (void)stream_kind;
    transport->shape = call->shape;
    transport->position = position;
    /* The kernels' signals lie in host memory: looking at them costs nothing. */
    if (transport->failed || transport->gave_up || transport->signals->missing)
        return rk_nccl_look(transport, error);
    enum rk_status status = check_group(transport, call->shape, error);
    if (status == RK_OK) {
        switch (call->shape->kind) {
        case RK_OP_DISPATCH:
            status = rk_nccl_dispatch(transport, stream, call, error);
            break;
        case RK_OP_COMBINE:
            status = rk_nccl_combine(transport, stream, call, error);
            break;
        case RK_OP_SEND:
        case RK_OP_RECEIVE:
            status = run_transfer(transport, stream, call, error);
            break;
        case RK_OP_COUNT_EXCHANGE:
        case RK_OP_REDUCE_SCATTER:
        case RK_OP_ALL_GATHER:
        case RK_OP_ALL_REDUCE:
            status = run_collective(transport, stream, call, error);
            break;
        default:
            status = rk_fail(error, RK_ERROR, "%s is not an op of a transport", rk_op_name(call->shape->kind));
        }
    }
    /* The caller's position lives no longer than the call; the shape lives with the program. */
    transport->position = NULL;
    return status;
}

static enum rk_status transport_barrier(struct rk_transport *transport, struct rk_error *error) {
    enum rk_status status = rk_nccl_look(transport, error);
    if (status != RK_OK || transport->world == 1)
        return status;
    return rk_job_barrier(transport->job, error);
}

static void transport_abort(struct rk_transport *transport) {
    transport->gave_up = 1;
    if (transport->signals)
        transport->signals->stop = 1;
}

static void transport_traffic(const struct rk_transport *transport, int64_t remote_bytes[RK_OP_FAMILY_COUNT]) {
    memcpy(remote_bytes, transport->remote_bytes, sizeof transport->remote_bytes);
    remote_bytes[RK_OP_FAMILY_EXPERT_EXCHANGE] += rk_nccl_expert_bytes(transport);
}

static struct rk_transport_table make_table(void) {
    struct rk_transport_table table = {};
    table.name = "nccl";
    table.open = transport_open;
    table.close = transport_close;
    table.run = transport_run;
    table.barrier = transport_barrier;
    table.abort = transport_abort;
    table.traffic = transport_traffic;
    return table;
}

extern "C" const struct rk_transport_table *rk_nccl_transport(void) {
    static const struct rk_transport_table table = make_table();
    return &table;
}

#include "executor/transport_shm.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 2000 };

static enum rk_status find_group(struct rk_transport *transport, const struct rk_candidate *candidate,
                                 enum rk_group_kind kind, struct rk_error *error) {
    struct rk_shm_group *group = &transport->group[kind];
    group->ranks = calloc((size_t)transport->world, sizeof *group->ranks);
    if (group->ranks == NULL)
        return rk_fail(error, RK_ERROR, "transport: out of memory");
    group->count = rk_candidate_group(candidate, transport->rank, kind, group->ranks, transport->world, &group->index);
    return RK_OK;
}

static bool is_pipeline(enum rk_group_kind kind) {
    return kind == RK_GROUP_PIPELINE_NEXT || kind == RK_GROUP_PIPELINE_PREVIOUS;
}

/* The barrier publishes nothing but its header; eight bytes make the world's buffers exist. */
static struct rk_shm_needs needs_of(const struct rk_program *program) {
    struct rk_shm_needs needs = {.publish_bytes[RK_GROUP_WORLD] = 8, .messages = 1};
    for (size_t i = 0; i < program->op_count; i++) {
        const struct rk_op_shape *shape = &program->ops[i].shape;
        if (shape->kind == RK_OP_SEND || shape->kind == RK_OP_RECEIVE) {
            if (shape->dim[0] > needs.message_bytes)
                needs.message_bytes = shape->dim[0];
        } else if (rk_op_executor(shape->kind) == RK_BY_TRANSPORT) {
            int64_t bytes = rk_shm_publish_need(shape);
            if (bytes > needs.publish_bytes[shape->group])
                needs.publish_bytes[shape->group] = bytes;
        }
    }
    /* A stage is never further ahead of a neighbour than by its live micro-batches: what it sends forward it keeps a
     * slot for until the gradient is back, and every gradient it owes is for a slot of the neighbour. */
    for (int chunk = 0; chunk < program->candidate.virtual_stages && chunk < RK_VIRTUAL_STAGES_MAX; chunk++)
        needs.messages += program->slots[chunk];
    return needs;
}

static bool cores_for_all(int64_t world) {
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) >= world;
}

static void watch_processes(struct rk_transport *transport) {
    for (int64_t rank = 0; rank < transport->world; rank++) {
        transport->processes[rank] = -1;
        /* Where the kernel has no such descriptors the exchange's connections tell of a death. */
        if (rank != transport->rank)
            transport->processes[rank] = (int)syscall(SYS_pidfd_open, (pid_t)transport->job->peers[rank].process, 0);
    }
}

static void shm_close(struct rk_transport *transport) {
    if (transport == NULL)
        return;
    if (transport->region != NULL)
        atomic_store(&rk_shm_rank(transport, transport->rank)->closed, 1);
    rk_shm_region_close(transport);
    for (int64_t rank = 0; transport->processes != NULL && rank < transport->world; rank++)
        if (transport->processes[rank] >= 0)
            close(transport->processes[rank]);
    free(transport->processes);
    for (int kind = 0; kind < RK_GROUP_COUNT; kind++)
        free(transport->group[kind].ranks);
    free(transport);
}

static enum rk_status shm_open_transport(const struct rk_job *job, const struct rk_backend *backend,
                                         struct rk_device *device, const struct rk_program *program,
                                         double deadline_seconds, struct rk_transport **transport,
                                         struct rk_error *error) {
    (void)device;
    if (backend != NULL && backend->kind != RK_BACKEND_CPU)
        return rk_fail(error, RK_USAGE, "transport shm moves the memory of CPU ranks only; the back end is %s",
                       backend->name);
    if (!job->one_host)
        return rk_fail(error, RK_USAGE, "the ranks stand on several hosts; CPU ranks must share one");
    if (rk_candidate_world(&program->candidate) != job->place.world)
        return rk_fail(error, RK_USAGE, "the plan is for %lld ranks, the job has %lld",
                       (long long)rk_candidate_world(&program->candidate), (long long)job->place.world);
    struct rk_transport *made = calloc(1, sizeof *made);
    if (made == NULL)
        return rk_fail(error, RK_ERROR, "transport: out of memory");
    made->job = job;
    made->rank = job->place.rank;
    made->world = job->place.world;
    made->deadline_seconds = deadline_seconds;
    made->spins = cores_for_all(made->world) ? SPINS : 0;
    enum rk_status status = RK_OK;
    for (int kind = RK_GROUP_NONE + 1; kind < RK_GROUP_COUNT && status == RK_OK; kind++)
        status = find_group(made, &program->candidate, (enum rk_group_kind)kind, error);
    made->processes = malloc((size_t)made->world * sizeof *made->processes);
    if (status == RK_OK && made->processes == NULL)
        status = rk_fail(error, RK_ERROR, "transport: out of memory");
    if (made->processes != NULL)
        watch_processes(made);
    struct rk_shm_needs needs = needs_of(program);
    if (status == RK_OK)
        status = rk_shm_region_open(made, &needs, error);
    if (status != RK_OK) {
        shm_close(made);
        return status;
    }
    *transport = made;
    return RK_OK;
}

/* What the op says of its group must be what the layout says. */
static enum rk_status check_group(const struct rk_transport *transport, const struct rk_op_shape *shape,
                                  struct rk_error *error) {
    const struct rk_shm_group *group = &transport->group[shape->group];
    int64_t members = group->count;
    int64_t said = members;
    if (shape->kind == RK_OP_COUNT_EXCHANGE || shape->kind == RK_OP_REDUCE_SCATTER || shape->kind == RK_OP_ALL_GATHER ||
        shape->kind == RK_OP_ALL_REDUCE)
        said = shape->dim[1];
    else if (shape->kind == RK_OP_DISPATCH || shape->kind == RK_OP_COMBINE)
        said = shape->dim[4];
    bool pipeline = shape->kind == RK_OP_SEND || shape->kind == RK_OP_RECEIVE;
    bool member = pipeline || (members > 0 && group->ranks[group->index] == transport->rank);
    if (said != members || !member || pipeline != is_pipeline(shape->group))
        return rk_fail(error, RK_ERROR, "%s: the op is for a group of %lld, the %s group of this rank has %lld members",
                       rk_op_name(shape->kind), (long long)said, rk_group_name(shape->group), (long long)members);
    int64_t room = transport->publish_bytes[shape->group] - (int64_t)sizeof(struct rk_shm_published);
    if (pipeline ? transport->ring_bytes < 64 : members > 1 && rk_shm_publish_need(shape) > room)
        return rk_fail(error, RK_ERROR, "%s: larger than any op of the program that the transport was opened for",
                       rk_op_name(shape->kind));
    return RK_OK;
}

static enum rk_status check_operands(const struct rk_op_call *call, struct rk_error *error) {
    enum rk_op_kind kind = call->shape->kind;
    for (int operand = 0; operand < rk_op_operand_count(kind); operand++)
        if (call->operand[operand] == NULL && !rk_op_operand_optional(kind, operand) &&
            rk_op_operand_bytes(call->shape, operand) > 0)
            return rk_fail(error, RK_ERROR, "%s: operand %s is missing", rk_op_name(kind),
                           rk_op_operand_name(kind, operand));
    return RK_OK;
}

static enum rk_status run_op(struct rk_transport *transport, const struct rk_op_call *call, struct rk_error *error) {
    switch (call->shape->kind) {
    case RK_OP_COUNT_EXCHANGE:
        return rk_shm_count_exchange(transport, call, error);
    case RK_OP_DISPATCH:
        return rk_shm_dispatch(transport, call, error);
    case RK_OP_COMBINE:
        return rk_shm_combine(transport, call, error);
    case RK_OP_REDUCE_SCATTER:
        return rk_shm_reduce_scatter(transport, call, error);
    case RK_OP_ALL_GATHER:
        return rk_shm_all_gather(transport, call, error);
    case RK_OP_ALL_REDUCE:
        return rk_shm_all_reduce(transport, call, error);
    case RK_OP_SEND:
        return rk_shm_send(transport, call, error);
    case RK_OP_RECEIVE:
        return rk_shm_receive(transport, call, error);
    default:
        return rk_fail(error, RK_ERROR, "%s is not a transport's op", rk_op_name(call->shape->kind));
    }
}

/* Like the CPU back end, which has one thread, the transport runs each op at once: the stream says nothing new. */
static enum rk_status shm_run(struct rk_transport *transport, struct rk_stream *stream, const struct rk_op_call *call,
                              enum rk_stream_kind stream_kind, const struct rk_transport_position *position,
                              struct rk_error *error) {
    (void)stream;
    (void)stream_kind;
    enum rk_status status = check_group(transport, call->shape, error);
    if (status == RK_OK)
        status = check_operands(call, error);
    if (status != RK_OK)
        return status;
    transport->shape = call->shape;
    transport->position = position;
    status = run_op(transport, call, error);
    transport->shape = NULL;
    transport->position = NULL;
    return status;
}

static enum rk_status shm_barrier(struct rk_transport *transport, struct rk_error *error) {
    if (transport->world == 1)
        return RK_OK;
    rk_shm_publish(transport, RK_GROUP_WORLD);
    return rk_shm_round(transport, RK_GROUP_WORLD, error);
}

static void shm_abort(struct rk_transport *transport) {
    rk_shm_fail_all(transport, RK_SHM_GAVE_UP, transport->rank);
}

static void shm_traffic(const struct rk_transport *transport, int64_t remote_bytes[RK_OP_FAMILY_COUNT]) {
    memcpy(remote_bytes, transport->remote_bytes, sizeof transport->remote_bytes);
}

const struct rk_transport_table *rk_transport_shm(void) {
    static const struct rk_transport_table table = {
        .name = "shm",
        .open = shm_open_transport,
        .close = shm_close,
        .run = shm_run,
        .barrier = shm_barrier,
        .abort = shm_abort,
        .traffic = shm_traffic,
    };
    return &table;
}

#include "model/cost_place.h"

/* Ranks of a group of the candidate; 1 for RK_GROUP_NONE. */
static int64_t group_size(const struct rk_candidate *candidate, enum rk_group_kind group) {
    switch (group) {
    case RK_GROUP_EXPERT_PARALLEL:
        return candidate->expert_parallel;
    case RK_GROUP_EXPERT_REPLICA:
        return candidate->data_parallel / candidate->expert_parallel;
    case RK_GROUP_DATA:
        return candidate->data_parallel;
    case RK_GROUP_PIPELINE_NEXT:
    case RK_GROUP_PIPELINE_PREVIOUS:
        return 2;
    case RK_GROUP_EMBEDDING:
        return candidate->pipeline > 1 ? 2 : 1;
    case RK_GROUP_WORLD:
        return (int64_t)candidate->pipeline * candidate->data_parallel;
    case RK_GROUP_NONE:
    case RK_GROUP_COUNT:
        break;
    }
    return 1;
}

static bool other_host(int64_t left, int64_t right, int64_t devices) {
    return left / devices != right / devices;
}

/* Whether any rank of the stage has a peer of the group on another host. World ranks fill hosts in order,
 * devices_per_host on each; the tier follows from that placement, not from the size of the group. False on machines
 * with shared devices, which are one host. */
static bool group_crosses(const struct rk_candidate *candidate, const struct rk_machine *machine, int32_t stage,
                          enum rk_group_kind group) {
    int64_t devices = machine->devices_per_host;
    int64_t ranks = candidate->data_parallel, width = candidate->expert_parallel;
    int64_t world = (int64_t)candidate->pipeline * ranks;
    if (machine->shared_devices || devices <= 0 || world <= devices)
        return false;
    int64_t first = stage * ranks;
    int64_t peer = 0;
    switch (group) {
    case RK_GROUP_NONE:
    case RK_GROUP_COUNT:
        return false;
    case RK_GROUP_WORLD:
        return true;
    case RK_GROUP_DATA:
        return other_host(first, first + ranks - 1, devices);
    case RK_GROUP_EXPERT_PARALLEL:
        for (int64_t base = first; base < first + ranks; base += width)
            if (other_host(base, base + width - 1, devices))
                return true;
        return false;
    case RK_GROUP_EXPERT_REPLICA:
        for (int64_t place = 0; place < width; place++)
            if (other_host(first + place, first + ranks - width + place, devices))
                return true;
        return false;
    case RK_GROUP_PIPELINE_NEXT:
        peer = (stage + 1) % candidate->pipeline;
        break;
    case RK_GROUP_PIPELINE_PREVIOUS:
        peer = (stage + candidate->pipeline - 1) % candidate->pipeline;
        break;
    case RK_GROUP_EMBEDDING:
        peer = stage == 0 ? candidate->pipeline - 1 : 0;
        break;
    }
    for (int64_t rank = 0; rank < ranks; rank++)
        if (other_host(first + rank, peer * ranks + rank, devices))
            return true;
    return false;
}

int64_t rk_cost_routed_rows(const struct rk_program *program) {
    for (size_t i = 0; i < program->op_count; i++) {
        const struct rk_op_shape *shape = &program->ops[i].shape;
        if (shape->kind == RK_OP_DISPATCH || shape->kind == RK_OP_COMBINE)
            return shape->dim[0] * shape->dim[2];
        if (shape->kind == RK_OP_ROUTE_FORWARD)
            return shape->dim[0] * shape->dim[2];
    }
    return 0;
}

/* The operand whose presence says that only a prefix of the rows is valid, or -1. */
static int offsets_operand(enum rk_op_kind kind) {
    switch (kind) {
    case RK_OP_GROUPED_GEMM_FORWARD:
    case RK_OP_GROUPED_GEMM_DGRAD:
    case RK_OP_GROUPED_GEMM_WGRAD:
    case RK_OP_SWIGLU_FORWARD:
    case RK_OP_SWIGLU_BACKWARD:
        return 2;
    default:
        return -1;
    }
}

void rk_cost_place_of(const struct rk_program *program, const struct rk_machine *machine, const struct rk_op *op,
                      int64_t routed_rows, int32_t busy, struct rk_cost_place *place) {
    const struct rk_candidate *candidate = &program->candidate;
    int64_t group = group_size(candidate, op->shape.group);
    int64_t world = (int64_t)candidate->pipeline * candidate->data_parallel;
    int64_t most = world < machine->devices_per_host ? world : machine->devices_per_host;
    /* The CPU transport buffers: the two ends of a transfer copy one after the other, so only one of them is busy. */
    bool one_end = machine->backend == RK_BACKEND_CPU && rk_op_family(op->shape.kind) == RK_OP_FAMILY_PIPELINE;
    int64_t own = one_end ? 1 : group;
    /* Of a group that spans hosts only the ranks of one are busy on it; ranks that share devices may outnumber them. */
    if (!machine->shared_devices && machine->devices_per_host > 0 && own > most)
        own = most;
    int64_t concurrent = own + busy;
    if (concurrent > most)
        concurrent = most > own ? most : own;
    place->group_size = (int32_t)group;
    place->crosses_hosts = group_crosses(candidate, machine, program->stage, op->shape.group);
    place->concurrent = (int32_t)concurrent;
    place->row_share = 1;
    int operand = offsets_operand(op->shape.kind);
    int64_t rows = op->shape.dim[0];
    if (operand >= 0 && op->operand[operand].buffer != RK_NO_BUFFER && routed_rows > 0 && rows > routed_rows)
        place->row_share = (double)routed_rows / (double)rows;
}

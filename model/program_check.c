/* What the readers of a step program rely on, table by table. The order of accesses is in program_check_order.c. */
#include "model/program_check.h"

#include <stdlib.h>
#include <string.h>

/* ---- operands ---- */

/* Bytes that an operand covers, or 0 for one without a fixed size. */
static int64_t operand_bytes(const struct rk_program *program, const struct rk_op *op, int operand) {
    if (operand == rk_op_workspace_operand(op->shape.kind))
        return rk_op_workspace_bytes(&op->shape, program->candidate.backend);
    return rk_op_operand_bytes(&op->shape, operand);
}

int64_t rk_program_operand_range(const struct rk_program *program, const struct rk_op *op, int operand,
                                 int64_t *begin) {
    const struct rk_operand *at = &op->operand[operand];
    int64_t last_rank = 0;
    if (at->shard_group == RK_GROUP_DATA)
        last_rank = program->candidate.data_parallel - 1;
    if (at->shard_group == RK_GROUP_EXPERT_REPLICA)
        last_rank = program->candidate.data_parallel / program->candidate.expert_parallel - 1;
    *begin = at->offset + last_rank * at->shard_bytes;
    return *begin + operand_bytes(program, op, operand);
}

static enum rk_status check_operand(const struct rk_program *program, const struct rk_segment *segment,
                                    const struct rk_op *op, int operand, struct rk_error *error) {
    const struct rk_operand *at = &op->operand[operand];
    const char *name = rk_op_name(op->shape.kind);
    enum rk_access access = rk_op_operand_access(op->shape.kind, operand);
    if (at->buffer == RK_NO_BUFFER) {
        bool needed = access != RK_ACCESS_NONE && !rk_op_operand_optional(op->shape.kind, operand);
        if (operand == rk_op_workspace_operand(op->shape.kind))
            needed = operand_bytes(program, op, operand) > 0;
        return needed ? rk_fail(error, RK_ERROR, "step program: %s in '%s' lacks operand %d (%s)", name, segment->name,
                                operand, rk_op_operand_name(op->shape.kind, operand))
                      : RK_OK;
    }
    if (access == RK_ACCESS_NONE || at->buffer >= program->buffer_count)
        return rk_fail(error, RK_ERROR, "step program: %s in '%s' has a stray operand %d", name, segment->name,
                       operand);
    const struct rk_buffer *buffer = &program->buffers[at->buffer];
    int64_t begin, end = rk_program_operand_range(program, op, operand, &begin);
    if (at->offset < 0 || at->shard_bytes < 0 || end <= begin || end > buffer->bytes)
        return rk_fail(error, RK_ERROR, "step program: %s in '%s' touches bytes %lld to %lld of %s, which has %lld",
                       name, segment->name, (long long)begin, (long long)end, buffer->name, (long long)buffer->bytes);
    bool copy = rk_op_executor(op->shape.kind) == RK_BY_COPY;
    bool host_side = copy && operand == (op->shape.kind == RK_OP_COPY_D2H ? 1 : 0);
    if ((buffer->space == RK_SPACE_HOST) != host_side)
        return rk_fail(error, RK_ERROR, "step program: %s in '%s' finds %s in the wrong memory", name, segment->name,
                       buffer->name);
    return RK_OK;
}

static enum rk_status check_events(const struct rk_program *program, const struct rk_segment *segment,
                                   const struct rk_event_reference *list, int length, struct rk_error *error) {
    bool ended = false;
    for (int i = 0; i < length; i++) {
        ended = ended || list[i].event == RK_NO_EVENT;
        if (ended && list[i].event != RK_NO_EVENT)
            return rk_fail(error, RK_ERROR, "step program: a list of events in '%s' has a hole", segment->name);
        if (!ended && list[i].event >= program->event_count)
            return rk_fail(error, RK_ERROR, "step program: an op in '%s' names event %d of %zu", segment->name,
                           list[i].event, program->event_count);
    }
    return RK_OK;
}

/* Every buffer's last byte must be somebody's: a buffer larger than its operands is memory for nothing. */
static enum rk_status check_waste(const struct rk_program *program, struct rk_error *error) {
    enum rk_status status = RK_OK;
    int64_t *reach = calloc(program->buffer_count + 1, sizeof *reach);
    if (reach == NULL)
        return rk_fail(error, RK_ERROR, "step program: out of memory");
    for (size_t i = 0; i < program->op_count; i++) {
        for (int o = 0; o < RK_OP_OPERANDS; o++) {
            int64_t begin, end;
            uint32_t buffer = program->ops[i].operand[o].buffer;
            if (buffer == RK_NO_BUFFER)
                continue;
            end = rk_program_operand_range(program, &program->ops[i], o, &begin);
            reach[buffer] = end > reach[buffer] ? end : reach[buffer];
        }
    }
    for (size_t i = 0; i < program->buffer_count && status == RK_OK; i++)
        if (reach[i] != program->buffers[i].bytes)
            status = rk_fail(error, RK_ERROR, "step program: %s has %lld bytes, its ops use %lld",
                             program->buffers[i].name, (long long)program->buffers[i].bytes, (long long)reach[i]);
    free(reach);
    return status;
}

static enum rk_status check_ops(const struct rk_program *program, struct rk_error *error) {
    enum rk_status status = RK_OK;
    size_t next = 0;
    for (size_t s = 0; s < program->segment_count; s++) {
        const struct rk_segment *segment = &program->segments[s];
        if (segment->first_op != next || segment->op_count == 0)
            return rk_fail(error, RK_ERROR, "step program: segment '%s' is empty or out of place", segment->name);
        next += segment->op_count;
        for (size_t i = segment->first_op; i < next && i < program->op_count && status == RK_OK; i++) {
            const struct rk_op *op = &program->ops[i];
            for (int o = 0; o < RK_OP_OPERANDS && status == RK_OK; o++)
                status = check_operand(program, segment, op, o, error);
            if (status == RK_OK)
                status = check_events(program, segment, op->wait, RK_OP_WAITS, error);
            if (status == RK_OK)
                status = check_events(program, segment, op->record, RK_OP_RECORDS, error);
        }
        if (status != RK_OK)
            return status;
    }
    if (next != program->op_count)
        return rk_fail(error, RK_ERROR, "step program: %zu ops, but the segments hold %zu", program->op_count, next);
    return check_waste(program, error);
}

/* ---- buffers and visits ---- */

static enum rk_status check_buffers(const struct rk_program *program, struct rk_error *error) {
    for (size_t i = 0; i < program->buffer_count; i++) {
        const struct rk_buffer *buffer = &program->buffers[i];
        for (size_t j = 0; j < i; j++)
            if (strcmp(program->buffers[j].name, buffer->name) == 0)
                return rk_fail(error, RK_ERROR, "step program: two buffers are named %s", buffer->name);
        if (buffer->bytes <= 0 || buffer->instance_count <= 0)
            return rk_fail(error, RK_ERROR, "step program: %s is empty", buffer->name);
        if (buffer->view_of == RK_NO_BUFFER)
            continue;
        const struct rk_buffer *whole =
            buffer->view_of < program->buffer_count ? &program->buffers[buffer->view_of] : buffer;
        if (whole->view_of != RK_NO_BUFFER || whole->scope != RK_SCOPE_STEP)
            return rk_fail(error, RK_ERROR, "step program: %s is not part of a buffer of its own", buffer->name);
        for (int64_t k = 0; k < buffer->instance_count; k++)
            if (buffer->view_offset[k] < 0 || buffer->view_offset[k] + buffer->bytes > whole->bytes)
                return rk_fail(error, RK_ERROR, "step program: %s leaves %s", buffer->name, whole->name);
    }
    return RK_OK;
}

static enum rk_status check_visits(const struct rk_program *program, struct rk_error *error) {
    for (size_t v = 0; v < program->visit_count; v++) {
        const struct rk_visit *visit = &program->schedule[v];
        if (visit->segment >= program->segment_count || visit->ordinal >= program->layer_count ||
            (visit->ordinal >= 0 && visit->layer != program->layers[visit->ordinal]))
            return rk_fail(error, RK_ERROR, "step program: visit %zu is out of range", v);
    }
    return RK_OK;
}

/* ---- tensors and buckets ---- */

static const struct rk_flat_space *space_of(const struct rk_program *program, bool expert) {
    return expert ? &program->expert : &program->dense;
}

static enum rk_status check_buckets(const struct rk_program *program, struct rk_error *error) {
    int64_t end[2] = {0, 0};
    for (size_t i = 0; i < program->bucket_count; i++) {
        const struct rk_bucket *bucket = &program->buckets[i];
        int32_t replicas = space_of(program, bucket->expert)->replicas;
        if (bucket->offset != end[bucket->expert] || bucket->elements <= 0 ||
            bucket->elements % (RK_SHARD_ALIGNMENT * replicas) != 0)
            return rk_fail(error, RK_ERROR, "step program: bucket %zu (%lld elements at %lld) does not fit", i,
                           (long long)bucket->elements, (long long)bucket->offset);
        end[bucket->expert] += bucket->elements;
    }
    if (end[0] != program->dense.elements || end[1] != program->expert.elements)
        return rk_fail(error, RK_ERROR, "step program: the buckets do not cover the flat spaces");
    return RK_OK;
}

static int64_t tensor_elements(const struct rk_tensor *tensor) {
    int64_t elements = 1;
    for (int32_t i = 0; i < tensor->rank; i++)
        elements *= tensor->dim[i];
    return elements;
}

static enum rk_status check_tensor_buffer(const struct rk_program *program, const struct rk_tensor *tensor,
                                          struct rk_error *error) {
    const struct rk_buffer *buffer = &program->buffers[tensor->buffer];
    int64_t type_bytes = tensor->trained ? rk_data_type_bytes(program->type) : 4;
    if (buffer->bytes != tensor_elements(tensor) * type_bytes || tensor->instance >= buffer->instance_count)
        return rk_fail(error, RK_ERROR, "step program: tensor %s does not fill %s", tensor->name, buffer->name);
    if (tensor->trained && buffer->view_offset[tensor->instance] != tensor->offset * type_bytes)
        return rk_fail(error, RK_ERROR, "step program: tensor %s is not where %s is", tensor->name, buffer->name);
    return RK_OK;
}

/* A tensor lies in one bucket of its own kind, touches no other tensor, and its buffer is that place. */
static enum rk_status check_tensor(const struct rk_program *program, size_t index, struct rk_error *error) {
    const struct rk_tensor *tensor = &program->tensors[index];
    int64_t elements = tensor_elements(tensor);
    bool placed = !tensor->trained;
    if (tensor->buffer != RK_NO_BUFFER) {
        enum rk_status status = check_tensor_buffer(program, tensor, error);
        if (status != RK_OK)
            return status;
    }
    for (size_t i = 0; i < program->bucket_count && !placed; i++) {
        const struct rk_bucket *bucket = &program->buckets[i];
        placed = bucket->expert == tensor->expert && bucket->decayed == tensor->decayed &&
                 tensor->offset >= bucket->offset && tensor->offset + elements <= bucket->offset + bucket->elements;
    }
    if (!placed)
        return rk_fail(error, RK_ERROR, "step program: tensor %s lies in no bucket of its kind", tensor->name);
    for (size_t i = 0; i < index && tensor->trained; i++) {
        const struct rk_tensor *other = &program->tensors[i];
        if (other->trained && other->expert == tensor->expert && other->offset < tensor->offset + elements &&
            tensor->offset < other->offset + tensor_elements(other))
            return rk_fail(error, RK_ERROR, "step program: tensors %s and %s overlap", tensor->name, other->name);
    }
    return RK_OK;
}

enum rk_status rk_program_check(const struct rk_program *program, struct rk_error *error) {
    enum rk_status status = check_buffers(program, error);
    if (status == RK_OK)
        status = check_ops(program, error);
    if (status == RK_OK)
        status = check_visits(program, error);
    if (status == RK_OK)
        status = check_buckets(program, error);
    for (size_t i = 0; i < program->tensor_count && status == RK_OK; i++)
        status = check_tensor(program, i, error);
    if (status == RK_OK)
        status = rk_program_check_order(program, error);
    return status;
}

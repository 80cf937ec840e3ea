#include "model/lower.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rk_lower_fail(struct rk_lowering *lowering, enum rk_status status, const char *format, ...) {
    char text[512];
    va_list arguments;
    if (lowering->status != RK_OK)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    lowering->status = rk_fail(lowering->error, status, "%s", text);
}

void *rk_lower_allocate(struct rk_lowering *lowering, size_t count, size_t size) {
    void *memory = lowering->status == RK_OK ? calloc(count > 0 ? count : 1, size) : NULL;
    if (memory == NULL)
        rk_lower_fail(lowering, RK_ERROR, "step program: out of memory");
    return memory;
}

/* Makes room for one more row of a table and returns it zeroed, or NULL after a failure. */
static void *add_row(struct rk_lowering *lowering, void *table, size_t *count, size_t *capacity, size_t size) {
    void **rows = table;
    if (lowering->status != RK_OK)
        return NULL;
    if (*count == *capacity) {
        size_t larger = *capacity == 0 ? 64 : *capacity * 2;
        void *moved = realloc(*rows, larger * size);
        if (moved == NULL) {
            rk_lower_fail(lowering, RK_ERROR, "step program: out of memory");
            return NULL;
        }
        *rows = moved;
        *capacity = larger;
    }
    void *row = (char *)*rows + *count * size;
    (*count)++;
    return memset(row, 0, size);
}

uint32_t rk_lower_buffer(struct rk_lowering *lowering, struct rk_buffer buffer, const char *format, ...) {
    struct rk_program *program = lowering->program;
    struct rk_buffer *row =
        add_row(lowering, &program->buffers, &program->buffer_count, &lowering->buffer_capacity, sizeof *row);
    if (row == NULL) {
        free(buffer.view_offset);
        return 0;
    }
    va_list arguments;
    *row = buffer;
    va_start(arguments, format);
    vsnprintf(row->name, sizeof row->name, format, arguments);
    va_end(arguments);
    if (row->view_offset == NULL)
        row->view_of = RK_NO_BUFFER;
    return (uint32_t)(program->buffer_count - 1);
}

uint16_t rk_lower_event(struct rk_lowering *lowering, const char *name, enum rk_scope scope, int32_t ring_size) {
    struct rk_program *program = lowering->program;
    struct rk_event *row =
        add_row(lowering, &program->events, &program->event_count, &lowering->event_capacity, sizeof *row);
    if (row == NULL)
        return 0;
    snprintf(row->name, sizeof row->name, "%s", name);
    row->scope = scope;
    row->ring_size = ring_size;
    return (uint16_t)(program->event_count - 1);
}

struct rk_tensor *rk_lower_tensor(struct rk_lowering *lowering) {
    struct rk_program *program = lowering->program;
    return add_row(lowering, &program->tensors, &program->tensor_count, &lowering->tensor_capacity,
                   sizeof(struct rk_tensor));
}

struct rk_bucket *rk_lower_bucket(struct rk_lowering *lowering) {
    struct rk_program *program = lowering->program;
    return add_row(lowering, &program->buckets, &program->bucket_count, &lowering->bucket_capacity,
                   sizeof(struct rk_bucket));
}

void rk_lower_visit(struct rk_lowering *lowering, struct rk_visit visit) {
    struct rk_program *program = lowering->program;
    struct rk_visit *row =
        add_row(lowering, &program->schedule, &program->visit_count, &lowering->visit_capacity, sizeof *row);
    if (row != NULL)
        *row = visit;
}

uint32_t rk_lower_segment_begin(struct rk_lowering *lowering, enum rk_phase phase, const char *format, ...) {
    struct rk_program *program = lowering->program;
    struct rk_segment *row =
        add_row(lowering, &program->segments, &program->segment_count, &lowering->segment_capacity, sizeof *row);
    if (row == NULL)
        return 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(row->name, sizeof row->name, format, arguments);
    va_end(arguments);
    row->first_op = program->op_count;
    lowering->phase = phase;
    memset(lowering->workspaces, 0, sizeof lowering->workspaces);
    memset(lowering->staging_awaited, 0, sizeof lowering->staging_awaited);
    lowering->reload_awaited = false;
    return (uint32_t)(program->segment_count - 1);
}

/* Adds a reference unless it is there. */
static void add_reference(struct rk_lowering *lowering, struct rk_event_reference *list, int length, uint16_t event,
                          int layer_shift) {
    for (int i = 0; i < length; i++) {
        if (list[i].event == event && list[i].layer_shift == layer_shift)
            return;
        if (list[i].event == RK_NO_EVENT) {
            list[i] = (struct rk_event_reference){event, (int16_t)layer_shift};
            return;
        }
    }
    rk_lower_fail(lowering, RK_ERROR, "step program: an op of kind %s has more than %d events",
                  rk_op_name(lowering->op->shape.kind), length);
}

/* The segment's last compute op so far, or NULL. */
static struct rk_op *last_compute(const struct rk_lowering *lowering) {
    const struct rk_program *program = lowering->program;
    size_t first = program->segments[program->segment_count - 1].first_op;
    for (size_t i = program->op_count; i > first; i--)
        if (program->ops[i - 1].stream == RK_STREAM_COMPUTE)
            return &program->ops[i - 1];
    return NULL;
}

static bool waits_for(const struct rk_op *op, uint16_t event) {
    for (int i = 0; i < RK_OP_WAITS; i++)
        if (op->wait[i].event == event)
            return true;
    return false;
}

/* The last exchange op of the segment, unless a later compute op waits for it. */
static struct rk_op *trailing_exchange(const struct rk_lowering *lowering, const struct rk_segment *segment) {
    struct rk_op *ops = &lowering->program->ops[segment->first_op], *trailing = NULL;
    for (size_t i = 0; i < segment->op_count; i++) {
        if (ops[i].stream == RK_STREAM_EXCHANGE)
            trailing = &ops[i];
        else if (ops[i].stream == RK_STREAM_COMPUTE && waits_for(&ops[i], lowering->exchange))
            trailing = NULL;
    }
    return trailing;
}

void rk_lower_segment_end(struct rk_lowering *lowering) {
    struct rk_program *program = lowering->program;
    if (lowering->status != RK_OK)
        return;
    struct rk_segment *segment = &program->segments[program->segment_count - 1];
    segment->op_count = program->op_count - segment->first_op;
    struct rk_op *last = last_compute(lowering), *trailing = trailing_exchange(lowering, segment);
    if (trailing != NULL)
        add_reference(lowering, trailing->record, RK_OP_RECORDS, lowering->tail, 0);
    if (last == NULL)
        return;
    add_reference(lowering, last->record, RK_OP_RECORDS, lowering->compute, 0);
    struct rk_op *first = &program->ops[segment->first_op];
    while (first->stream != RK_STREAM_COMPUTE)
        first++;
    add_reference(lowering, first->wait, RK_OP_WAITS, lowering->tail, 0);
}

/* The stream of a stage transfer follows from the peer: what goes to the next stage or comes from the previous one is
 * an activation, the rest gradients. */
static enum rk_stream_kind transfer_stream(enum rk_op_kind kind, enum rk_group_kind peer) {
    if (kind == RK_OP_SEND)
        return peer == RK_GROUP_PIPELINE_NEXT ? RK_STREAM_SEND_FORWARD : RK_STREAM_SEND_BACKWARD;
    return peer == RK_GROUP_PIPELINE_PREVIOUS ? RK_STREAM_RECEIVE_FORWARD : RK_STREAM_RECEIVE_BACKWARD;
}

enum rk_stream_kind rk_op_stream(const struct rk_op_shape *shape) {
    switch (rk_op_family(shape->kind)) {
    case RK_OP_FAMILY_EXPERT_EXCHANGE:
        return RK_STREAM_EXCHANGE;
    case RK_OP_FAMILY_COLLECTIVE:
        return RK_STREAM_REDUCTION;
    case RK_OP_FAMILY_PIPELINE:
        return transfer_stream(shape->kind, shape->group);
    case RK_OP_FAMILY_OFFLOAD:
        return shape->kind == RK_OP_COPY_D2H ? RK_STREAM_D2H : RK_STREAM_H2D;
    default:
        return RK_STREAM_COMPUTE;
    }
}

void rk_lower_op(struct rk_lowering *lowering, enum rk_op_kind kind, const struct rk_op_shape *shape) {
    struct rk_program *program = lowering->program;
    struct rk_op *op = add_row(lowering, &program->ops, &program->op_count, &lowering->op_capacity, sizeof *op);
    if (op == NULL)
        op = &lowering->dropped_op;
    lowering->op = op;
    op->shape = *shape;
    op->shape.kind = kind;
    op->shape.type = program->type;
    op->phase = lowering->phase;
    op->stream = rk_op_stream(&op->shape);
    for (int i = 0; i < RK_OP_OPERANDS; i++)
        op->operand[i] = rk_absent();
    for (int i = 0; i < RK_OP_WAITS; i++)
        op->wait[i].event = RK_NO_EVENT;
    for (int i = 0; i < RK_OP_RECORDS; i++)
        op->record[i].event = RK_NO_EVENT;
    if (op->stream == RK_STREAM_EXCHANGE) {
        rk_lower_after_compute(lowering);
        rk_lower_record(lowering, lowering->exchange, 0);
    }
}

/* A workspace is the n-th of its kind and size in the segment; segments share them. */
static uint32_t workspace(struct rk_lowering *lowering, enum rk_op_kind kind, int64_t bytes) {
    struct rk_workspace wanted = {.kind = kind, .number = lowering->workspaces[kind]++, .bytes = bytes};
    for (size_t i = 0; i < lowering->workspace_count; i++) {
        const struct rk_workspace *known = &lowering->workspace[i];
        if (known->kind == kind && known->number == wanted.number && known->bytes == bytes)
            return known->buffer;
    }
    struct rk_buffer buffer = {.owner = RK_OWNER_WORKSPACE, .scope = RK_SCOPE_VISIT, .bytes = bytes};
    wanted.buffer =
        rk_lower_buffer(lowering, buffer, "workspace.%s.%d.%lld", rk_op_name(kind), wanted.number, (long long)bytes);
    struct rk_workspace *row =
        add_row(lowering, &lowering->workspace, &lowering->workspace_count, &lowering->workspace_capacity, sizeof *row);
    if (row != NULL)
        *row = wanted;
    return wanted.buffer;
}

void rk_lower_operands(struct rk_lowering *lowering, int count, const struct rk_operand *operands) {
    struct rk_op *op = lowering->op;
    for (int i = 0; i < count; i++)
        op->operand[i] = operands[i];
    int64_t bytes = rk_op_workspace_bytes(&op->shape, lowering->candidate->backend);
    if (bytes > 0 && lowering->status == RK_OK)
        op->operand[rk_op_workspace_operand(op->shape.kind)] = rk_at(workspace(lowering, op->shape.kind, bytes));
    rk_lower_offload_waits(lowering);
}

void rk_lower_parameter(struct rk_lowering *lowering, int index, double value) {
    lowering->op->parameter[index] = (float)value;
}

void rk_lower_wait(struct rk_lowering *lowering, uint16_t event, int layer_shift) {
    add_reference(lowering, lowering->op->wait, RK_OP_WAITS, event, layer_shift);
}

void rk_lower_record(struct rk_lowering *lowering, uint16_t event, int layer_shift) {
    add_reference(lowering, lowering->op->record, RK_OP_RECORDS, event, layer_shift);
}

void rk_lower_after_compute(struct rk_lowering *lowering) {
    if (lowering->status != RK_OK)
        return;
    struct rk_op *last = last_compute(lowering);
    if (last != NULL)
        add_reference(lowering, last->record, RK_OP_RECORDS, lowering->compute, 0);
    rk_lower_wait(lowering, lowering->compute, 0);
}

#include "tests/model/synthetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *grow(void *array, size_t count, size_t size) {
    if ((count & (count - 1)) != 0)
        return array;
    void *grown = realloc(array, (count == 0 ? 1 : 2 * count) * size);
    if (grown == NULL)
        abort();
    return grown;
}

struct rk_program *synthetic_make(int32_t pipeline, int32_t data_parallel, int32_t stage) {
    struct rk_program *program = calloc(1, sizeof *program);
    struct rk_event *events = calloc(SYNTHETIC_EVENTS, sizeof *events);
    if (program == NULL || events == NULL)
        abort();
    program->candidate.pipeline = pipeline;
    program->candidate.virtual_stages = 1;
    program->candidate.expert_parallel = 1;
    program->candidate.data_parallel = data_parallel;
    program->stage = stage;
    program->events = events;
    program->event_count = SYNTHETIC_EVENTS;
    for (int i = 0; i < SYNTHETIC_EVENTS; i++)
        events[i].instance_count = 1;
    return program;
}

void synthetic_free(struct rk_program *program) {
    if (program == NULL)
        return;
    free(program->events);
    free(program->ops);
    free(program->segments);
    free(program->schedule);
    free(program);
}

uint32_t synthetic_segment(struct rk_program *program, enum rk_op_kind kind, enum rk_group_kind group,
                           enum rk_stream_kind stream, int64_t ticks) {
    program->ops = grow(program->ops, program->op_count, sizeof *program->ops);
    program->segments = grow(program->segments, program->segment_count, sizeof *program->segments);
    struct rk_op *op = &program->ops[program->op_count];
    memset(op, 0, sizeof *op);
    op->shape = (struct rk_op_shape){.kind = kind, .group = group, .dim = {ticks}};
    op->stream = stream;
    for (int i = 0; i < RK_OP_WAITS; i++)
        op->wait[i].event = RK_NO_EVENT;
    for (int i = 0; i < RK_OP_RECORDS; i++)
        op->record[i].event = RK_NO_EVENT;
    for (int i = 0; i < RK_OP_OPERANDS; i++)
        op->operand[i].buffer = RK_NO_BUFFER;
    struct rk_segment *segment = &program->segments[program->segment_count];
    *segment = (struct rk_segment){.first_op = program->op_count, .op_count = 1};
    snprintf(segment->name, sizeof segment->name, "segment %zu", program->segment_count);
    program->op_count++;
    return (uint32_t)program->segment_count++;
}

struct rk_op *synthetic_op(struct rk_program *program, uint32_t segment) {
    return &program->ops[program->segments[segment].first_op];
}

void synthetic_wait(struct rk_op *op, uint16_t event) {
    for (int i = 0; i < RK_OP_WAITS; i++)
        if (op->wait[i].event == RK_NO_EVENT) {
            op->wait[i].event = event;
            return;
        }
    abort();
}

void synthetic_record(struct rk_op *op, uint16_t event) {
    for (int i = 0; i < RK_OP_RECORDS; i++)
        if (op->record[i].event == RK_NO_EVENT) {
            op->record[i].event = event;
            return;
        }
    abort();
}

void synthetic_visit(struct rk_program *program, uint32_t segment, int32_t micro_batch) {
    program->schedule = grow(program->schedule, program->visit_count, sizeof *program->schedule);
    program->schedule[program->visit_count++] = (struct rk_visit){
        .segment = segment, .layer = -1, .micro_batch = micro_batch, .virtual_stage = -1, .slot = -1, .ordinal = -1};
}

static enum rk_status price(void *context, const struct rk_op_shape *shape, const struct rk_cost_place *place,
                            struct rk_cost *cost, struct rk_error *error) {
    (void)place;
    (void)error;
    double scale = context == NULL ? 1 : *(double *)context;
    *cost = (struct rk_cost){.seconds = scale * (double)shape->dim[0] / 1000, .relative_uncertainty = 0.1};
    return RK_OK;
}

struct rk_cost_source synthetic_costs(double *scale) {
    return (struct rk_cost_source){.price = price, .context = scale};
}

struct rk_machine synthetic_gpu(void) {
    return (struct rk_machine){.name = "test GPU", .backend = RK_BACKEND_CUDA, .devices_per_host = 8};
}

struct rk_machine synthetic_cpu(int32_t devices) {
    return (struct rk_machine){.name = "test CPU",
                               .backend = RK_BACKEND_CPU,
                               .devices_per_host = devices,
                               .shared_devices = true,
                               .serial_streams = true};
}

#include "model/program.h"

#include <stdlib.h>

static const char *const owner_names[RK_OWNER_COUNT] = {
    [RK_OWNER_WEIGHTS] = "weights",     [RK_OWNER_GRADIENTS] = "gradients",
    [RK_OWNER_OPTIMIZER] = "optimizer", [RK_OWNER_ACTIVATIONS] = "activations",
    [RK_OWNER_ROUTES] = "routes",       [RK_OWNER_EXCHANGE] = "exchange",
    [RK_OWNER_LOSS] = "loss",           [RK_OWNER_TRANSIENT] = "transient",
    [RK_OWNER_WORKSPACE] = "workspace", [RK_OWNER_OFFLOAD] = "offload",
    [RK_OWNER_DATA] = "data",
};

const char *rk_owner_name(enum rk_owner owner) {
    return owner_names[owner];
}

void rk_program_free(struct rk_program *program) {
    if (program == NULL)
        return;
    for (size_t i = 0; i < program->buffer_count; i++)
        free(program->buffers[i].view_offset);
    for (int kinds = 0; kinds < 4; kinds++) {
        free(program->layer_instance[kinds]);
        free(program->layer_slot_instance[kinds]);
    }
    free(program->layers);
    free(program->layer_kinds);
    free(program->layer_virtual_stage);
    free(program->buffers);
    free(program->events);
    free(program->ops);
    free(program->segments);
    free(program->schedule);
    free(program->tensors);
    free(program->buckets);
    free(program);
}

/* Number of the first slot of a virtual stage; of one behind the last, the number of all slots. */
static int64_t first_slot(const struct rk_program *program, int32_t virtual_stage) {
    int64_t count = 0;
    for (int32_t v = 0; v < virtual_stage && program->slot_pool == 0; v++)
        count += program->slots[v];
    return virtual_stage == RK_VIRTUAL_STAGES_MAX ? count + program->slot_pool : count;
}

static int64_t instance_count(const struct rk_program *program, enum rk_scope scope, int32_t ring_size,
                              uint8_t layer_kinds) {
    switch (scope) {
    case RK_SCOPE_STEP:
    case RK_SCOPE_VISIT:
        return 1;
    case RK_SCOPE_LAYER:
        return program->layer_instance[layer_kinds & 3][program->layer_count];
    case RK_SCOPE_LAYER_SLOT:
        return program->layer_slot_instance[layer_kinds & 3][program->layer_count];
    case RK_SCOPE_SLOT:
        return first_slot(program, RK_VIRTUAL_STAGES_MAX);
    case RK_SCOPE_LAYER_RING:
    case RK_SCOPE_MICRO_BATCH_RING:
        return ring_size;
    case RK_SCOPE_MICRO_BATCH:
        return rk_candidate_micro_batches(&program->candidate);
    }
    return 0;
}

/* Events have an instance for layers of every kind. */
enum { ALL_KINDS = 3 };

/* Instances of LAYER_SLOT scope: layers one after another, or, from a pool, the places of a chunk one after another. */
static void count_layer_slots(struct rk_program *program, int kinds) {
    int64_t *first = program->layer_slot_instance[kinds], own = 0, place = 0, most = 0;
    for (int32_t i = 0; i < program->layer_count; i++) {
        bool has = (kinds >> program->layer_kinds[i] & 1) != 0;
        if (i > 0 && program->layer_virtual_stage[i] != program->layer_virtual_stage[i - 1])
            place = 0;
        first[i] = program->slot_pool > 0 ? place * program->slot_pool : own;
        place += has;
        most = place > most ? place : most;
        own += has ? program->slots[program->layer_virtual_stage[i]] : 0;
    }
    first[program->layer_count] = program->slot_pool > 0 ? most * program->slot_pool : own;
}

static enum rk_status count_layers(struct rk_program *program, struct rk_error *error) {
    for (int kinds = 0; kinds < 4; kinds++) {
        size_t entries = (size_t)program->layer_count + 1;
        int64_t *layers = calloc(entries, sizeof *layers), *layer_slots = calloc(entries, sizeof *layer_slots);
        program->layer_instance[kinds] = layers;
        program->layer_slot_instance[kinds] = layer_slots;
        if (layers == NULL || layer_slots == NULL)
            return rk_fail(error, RK_ERROR, "step program: out of memory");
        for (int32_t i = 0; i < program->layer_count; i++)
            layers[i + 1] = layers[i] + (kinds >> program->layer_kinds[i] & 1);
        count_layer_slots(program, kinds);
    }
    return RK_OK;
}

enum rk_status rk_program_finish(struct rk_program *program, struct rk_error *error) {
    enum rk_status status = count_layers(program, error);
    for (size_t i = 0; i < program->buffer_count && status == RK_OK; i++) {
        struct rk_buffer *buffer = &program->buffers[i];
        buffer->instance_count = instance_count(program, buffer->scope, buffer->ring_size, buffer->layer_kinds);
        if (buffer->instance_count < 1)
            status = rk_fail(error, RK_ERROR, "step program: buffer %s has no instance", buffer->name);
    }
    for (size_t i = 0; i < program->event_count && status == RK_OK; i++) {
        struct rk_event *event = &program->events[i];
        event->instance_count = instance_count(program, event->scope, event->ring_size, ALL_KINDS);
        if (event->instance_count < 1)
            status = rk_fail(error, RK_ERROR, "step program: event %s has no instance", event->name);
    }
    return status;
}

static int64_t instance_of(const struct rk_program *program, enum rk_scope scope, int32_t ring_size,
                           uint8_t layer_kinds, int32_t layer_shift, const struct rk_visit *visit) {
    int32_t ordinal = visit->ordinal + layer_shift;
    bool has_layer = visit->ordinal >= 0 && ordinal >= 0 && ordinal < program->layer_count &&
                     (layer_kinds >> program->layer_kinds[ordinal] & 1) != 0;
    bool has_slot = visit->slot >= 0 && visit->virtual_stage >= 0;
    switch (scope) {
    case RK_SCOPE_STEP:
    case RK_SCOPE_VISIT:
        return 0;
    case RK_SCOPE_LAYER:
        return has_layer ? program->layer_instance[layer_kinds & 3][ordinal] : -1;
    case RK_SCOPE_LAYER_SLOT:
        if (!has_layer || !has_slot || program->layer_virtual_stage[ordinal] != visit->virtual_stage)
            return -1;
        return program->layer_slot_instance[layer_kinds & 3][ordinal] + visit->slot;
    case RK_SCOPE_SLOT:
        return has_slot ? first_slot(program, visit->virtual_stage) + visit->slot : -1;
    case RK_SCOPE_LAYER_RING:
        return visit->ordinal >= 0 && ordinal >= 0 ? ordinal % ring_size : -1;
    case RK_SCOPE_MICRO_BATCH_RING:
        return visit->micro_batch >= 0 ? visit->micro_batch % ring_size : -1;
    case RK_SCOPE_MICRO_BATCH:
        return visit->micro_batch;
    }
    return -1;
}

int64_t rk_program_instance(const struct rk_program *program, const struct rk_operand *operand,
                            const struct rk_visit *visit) {
    const struct rk_buffer *buffer = &program->buffers[operand->buffer];
    return instance_of(program, buffer->scope, buffer->ring_size, buffer->layer_kinds, operand->layer_shift, visit);
}

int64_t rk_program_event_instance(const struct rk_program *program, const struct rk_event_reference *reference,
                                  const struct rk_visit *visit) {
    const struct rk_event *event = &program->events[reference->event];
    return instance_of(program, event->scope, event->ring_size, ALL_KINDS, reference->layer_shift, visit);
}

#include "executor/trainer_internal.h"

#include <stdlib.h>

/* The handle of an event in a visit, or NULL: no event, or a neighbour that the stage does not have. */
static struct rk_event_handle *resolve_event(const struct rk_trainer *trainer,
                                             const struct rk_event_reference *reference, const struct rk_visit *visit) {
    if (reference->event == RK_NO_EVENT)
        return NULL;
    int64_t instance = rk_program_event_instance(trainer->program, reference, visit);
    return instance < 0 ? NULL : trainer->event[trainer->event_first[reference->event] + (size_t)instance];
}

static enum rk_status resolve_operands(const struct rk_trainer *trainer, const struct rk_visit *visit,
                                       const struct rk_op *op, struct rk_op_call *call, struct rk_error *error) {
    const struct rk_program *program = trainer->program;
    for (int i = 0; i < RK_OP_OPERANDS; i++) {
        const struct rk_operand *operand = &op->operand[i];
        if (operand->buffer == RK_NO_BUFFER)
            continue;
        int64_t instance = rk_program_instance(program, operand, visit);
        if (instance < 0)
            return rk_fail(error, RK_ERROR, "%s, layer %d: operand %d of %s has no instance of %s",
                           program->segments[visit->segment].name, visit->layer, i, rk_op_name(op->shape.kind),
                           program->buffers[operand->buffer].name);
        int64_t shard = trainer->group_index[operand->shard_group] * operand->shard_bytes;
        call->operand[i] = (char *)rk_trainer_address(trainer, operand->buffer, instance) + operand->offset + shard;
    }
    return RK_OK;
}

static enum rk_status resolve_op(const struct rk_trainer *trainer, const struct rk_visit *visit, const struct rk_op *op,
                                 struct rk_resolved_op *resolved, struct rk_error *error) {
    enum rk_group_kind group = op->shape.kind == RK_OP_ROUTE_MAP ? RK_GROUP_EXPERT_PARALLEL : op->shape.group;
    resolved->op = op;
    resolved->call.shape = &op->shape;
    resolved->call.group_rank = (int32_t)trainer->group_index[group];
    for (int i = 0; i < RK_OP_PARAMETERS; i++)
        resolved->call.parameter[i] = op->parameter[i];
    for (int i = 0; i < RK_OP_WAITS; i++)
        resolved->wait[i] = resolve_event(trainer, &op->wait[i], visit);
    for (int i = 0; i < RK_OP_RECORDS; i++)
        resolved->record[i] = resolve_event(trainer, &op->record[i], visit);
    return resolve_operands(trainer, visit, op, &resolved->call, error);
}

enum rk_status rk_trainer_resolve(struct rk_trainer *trainer, struct rk_error *error) {
    const struct rk_program *program = trainer->program;
    trainer->visit_first = calloc(program->visit_count + 1, sizeof *trainer->visit_first);
    if (trainer->visit_first == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for %zu visits", program->visit_count);
    for (size_t v = 0; v < program->visit_count; v++)
        trainer->visit_first[v + 1] =
            trainer->visit_first[v] + program->segments[program->schedule[v].segment].op_count;
    size_t count = trainer->visit_first[program->visit_count];
    trainer->resolved = calloc(count + 1, sizeof *trainer->resolved);
    if (trainer->resolved == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for %zu ops", count);
    trainer->first_update = count;
    for (size_t v = 0; v < program->visit_count; v++) {
        const struct rk_visit *visit = &program->schedule[v];
        const struct rk_op *ops = program->ops + program->segments[visit->segment].first_op;
        for (size_t i = trainer->visit_first[v]; i < trainer->visit_first[v + 1]; i++) {
            const struct rk_op *op = &ops[i - trainer->visit_first[v]];
            enum rk_status status = resolve_op(trainer, visit, op, &trainer->resolved[i], error);
            if (status != RK_OK)
                return status;
            if (op->shape.kind == RK_OP_ADAMW && i < trainer->first_update)
                trainer->first_update = i;
        }
    }
    return RK_OK;
}

void rk_trainer_resolve_free(struct rk_trainer *trainer) {
    free(trainer->resolved);
    free(trainer->visit_first);
    free(trainer->poison);
}

/* Ranges found in any order; brought into the order of the ops at the end. */
struct found_range {
    size_t op;
    struct rk_poison_range range;
};

struct found_ranges {
    struct found_range *items;
    size_t count, capacity;
};

static bool add_range(struct found_ranges *found, size_t op, void *address, int64_t bytes) {
    if (found->count == found->capacity) {
        size_t wanted = found->capacity == 0 ? 256 : 2 * found->capacity;
        struct found_range *items = realloc(found->items, wanted * sizeof *items);
        if (items == NULL)
            return false;
        found->items = items;
        found->capacity = wanted;
    }
    found->items[found->count++] = (struct found_range){op, {address, bytes}};
    return true;
}

/* Buffers of visit scope: after the last op of the visit that touches them. */
static enum rk_status find_visit_ranges(const struct rk_trainer *trainer, struct found_ranges *found,
                                        struct rk_error *error) {
    const struct rk_program *program = trainer->program;
    struct rk_release_list list = {0};
    enum rk_status status = rk_memory_release_make(program, &list, error);
    if (status != RK_OK)
        return status;
    for (size_t v = 0; v < program->visit_count && status == RK_OK; v++) {
        const struct rk_visit *visit = &program->schedule[v];
        for (size_t i = trainer->visit_first[v]; i < trainer->visit_first[v + 1]; i++) {
            size_t op = program->segments[visit->segment].first_op + i - trainer->visit_first[v];
            for (size_t r = list.first[op]; r < list.first[op + 1]; r++) {
                struct rk_operand operand = {.buffer = list.buffer[r]};
                int64_t instance = rk_program_instance(program, &operand, visit);
                if (instance < 0 || !add_range(found, i, rk_trainer_address(trainer, operand.buffer, instance),
                                               program->buffers[operand.buffer].bytes))
                    status = rk_fail(error, RK_ERROR, "cannot list the releases of %s",
                                     program->buffers[operand.buffer].name);
            }
        }
    }
    rk_memory_release_free(&list);
    return status;
}

/* The last op that touched an instance of a slot's buffer, and for which micro-batch. */
struct slot_touch {
    size_t op_plus_1;
    int32_t micro_batch;
};

static bool is_slot(const struct rk_buffer *buffer) {
    return (buffer->scope == RK_SCOPE_SLOT || buffer->scope == RK_SCOPE_LAYER_SLOT) &&
           buffer->space == RK_SPACE_DEVICE && buffer->view_of == RK_NO_BUFFER;
}

static enum rk_status end_slot(const struct rk_trainer *trainer, const struct slot_touch *touch, uint32_t buffer,
                               int64_t instance, struct found_ranges *found, struct rk_error *error) {
    if (touch->op_plus_1 == 0 || add_range(found, touch->op_plus_1 - 1, rk_trainer_address(trainer, buffer, instance),
                                           trainer->program->buffers[buffer].bytes))
        return RK_OK;
    return rk_fail(error, RK_ERROR, "out of memory for the list of releases");
}

/* Buffers of slots: after the last op of the micro-batch that touches them. */
static enum rk_status walk_slots(const struct rk_trainer *trainer, const size_t *first, struct slot_touch *touches,
                                 struct found_ranges *found, struct rk_error *error) {
    const struct rk_program *program = trainer->program;
    enum rk_status status = RK_OK;
    for (size_t v = 0; v < program->visit_count; v++) {
        const struct rk_visit *visit = &program->schedule[v];
        for (size_t i = trainer->visit_first[v]; i < trainer->visit_first[v + 1]; i++) {
            for (int o = 0; o < RK_OP_OPERANDS; o++) {
                const struct rk_operand *operand = &trainer->resolved[i].op->operand[o];
                if (operand->buffer == RK_NO_BUFFER || !is_slot(&program->buffers[operand->buffer]))
                    continue;
                int64_t instance = rk_program_instance(program, operand, visit);
                struct slot_touch *touch = &touches[first[operand->buffer] + (size_t)instance];
                if (touch->micro_batch != visit->micro_batch)
                    status = end_slot(trainer, touch, operand->buffer, instance, found, error);
                if (status != RK_OK)
                    return status;
                *touch = (struct slot_touch){i + 1, visit->micro_batch};
            }
        }
    }
    for (uint32_t b = 0; b < program->buffer_count; b++)
        for (size_t t = first[b]; t < first[b + 1] && status == RK_OK; t++)
            status = end_slot(trainer, &touches[t], b, (int64_t)(t - first[b]), found, error);
    return status;
}

static enum rk_status find_slot_ranges(const struct rk_trainer *trainer, struct found_ranges *found,
                                       struct rk_error *error) {
    const struct rk_program *program = trainer->program;
    enum rk_status status = RK_OK;
    struct slot_touch *touches = NULL;
    size_t *first = calloc(program->buffer_count + 1, sizeof *first);
    if (first == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the list of releases");
    for (size_t b = 0; b < program->buffer_count; b++)
        first[b + 1] = first[b] + (is_slot(&program->buffers[b]) ? (size_t)program->buffers[b].instance_count : 0);
    touches = calloc(first[program->buffer_count] + 1, sizeof *touches);
    if (touches == NULL) {
        status = rk_fail(error, RK_ERROR, "out of memory for the list of releases");
        goto free_first;
    }
    status = walk_slots(trainer, first, touches, found, error);
    free(touches);
free_first:
    free(first);
    return status;
}

static int compare_ranges(const void *left, const void *right) {
    const struct found_range *a = left, *b = right;
    return (a->op > b->op) - (a->op < b->op);
}

enum rk_status rk_trainer_resolve_poison(struct rk_trainer *trainer, struct rk_error *error) {
    struct found_ranges found = {0};
    enum rk_status status = find_visit_ranges(trainer, &found, error);
    if (status == RK_OK)
        status = find_slot_ranges(trainer, &found, error);
    if (status != RK_OK)
        goto free_found;
    trainer->poison = calloc(found.count + 1, sizeof *trainer->poison);
    if (trainer->poison == NULL) {
        status = rk_fail(error, RK_ERROR, "out of memory for the list of releases");
        goto free_found;
    }
    if (found.count > 0)
        qsort(found.items, found.count, sizeof *found.items, compare_ranges);
    for (size_t i = 0; i < found.count; i++) {
        struct rk_resolved_op *resolved = &trainer->resolved[found.items[i].op];
        if (resolved->poison_count++ == 0)
            resolved->poison_first = i;
        trainer->poison[i] = found.items[i].range;
    }
free_found:
    free(found.items);
    return status;
}

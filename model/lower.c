/* rk_program_lower: checks the candidate, gives the stage its layers and slots, and has the parts written in turn. */
#include "model/lower.h"
#include "model/memory.h"

#include <stdlib.h>
#include <string.h>

/* Which layers of the model are this stage's: chunk c of the model is virtual stage c / PP of stage c mod PP. */
static void assign_layers(struct rk_lowering *lowering) {
    const struct rk_candidate *candidate = lowering->candidate;
    struct rk_program *program = lowering->program;
    int32_t chunks = candidate->pipeline * candidate->virtual_stages, layer = 0;
    size_t layers = (size_t)lowering->architecture->layers;
    program->layers = rk_lower_allocate(lowering, layers, sizeof *program->layers);
    program->layer_kinds = rk_lower_allocate(lowering, layers, sizeof *program->layer_kinds);
    program->layer_virtual_stage = rk_lower_allocate(lowering, layers, sizeof *program->layer_virtual_stage);
    for (int32_t chunk = 0; chunk < chunks && lowering->status == RK_OK; chunk++) {
        int32_t end = layer + candidate->chunk_layers[chunk];
        for (; layer < end; layer++) {
            if (chunk % candidate->pipeline != program->stage)
                continue;
            int32_t ordinal = program->layer_count++;
            program->layers[ordinal] = layer;
            program->layer_kinds[ordinal] = lowering->architecture->block[layer];
            program->layer_virtual_stage[ordinal] = chunk / candidate->pipeline;
            lowering->kinds |= (uint8_t)(1 << program->layer_kinds[ordinal]);
        }
    }
}

/* ---- slots ---- */

static int32_t layers_of_kinds(const struct rk_program *program, uint8_t kinds, int32_t virtual_stage) {
    int32_t count = 0;
    for (int32_t i = 0; i < program->layer_count; i++)
        count += program->layer_virtual_stage[i] == virtual_stage && (kinds >> program->layer_kinds[i] & 1) != 0;
    return count;
}

/* One pool of slots for all virtual stages, where that keeps fewer bytes than slots of their own; see
 * rk_program.slot_pool. */
static void choose_slot_pool(struct rk_lowering *lowering, const struct rk_chunk_visit *order, int64_t count) {
    struct rk_program *program = lowering->program;
    int32_t live = rk_schedule_live_all(order, count);
    int64_t pooled = 0, own = 0;
    for (size_t i = 0; i < program->buffer_count; i++) {
        const struct rk_buffer *buffer = &program->buffers[i];
        int64_t bytes = rk_memory_aligned(buffer->bytes);
        int32_t most = 0;
        for (int32_t v = 0; v < lowering->candidate->virtual_stages && buffer->scope == RK_SCOPE_LAYER_SLOT; v++) {
            int32_t layers = layers_of_kinds(program, buffer->layer_kinds, v);
            own += bytes * layers * program->slots[v];
            most = layers > most ? layers : most;
        }
        pooled += bytes * most * live;
    }
    program->slot_pool = pooled < own ? live : 0;
}

/* Which live micro-batch (of which virtual stage) holds each slot: [virtual stage][slot], or [0][slot] of the pool. */
struct slot_table {
    int64_t *holder[RK_VIRTUAL_STAGES_MAX]; /* micro-batch · virtual stages + virtual stage, -1 free */
    int32_t count[RK_VIRTUAL_STAGES_MAX];
};

static int32_t find_slot(const struct slot_table *slots, int32_t table, int64_t holder) {
    for (int32_t slot = 0; slot < slots->count[table]; slot++)
        if (slots->holder[table][slot] == holder)
            return slot;
    return -1;
}

/* Takes a slot at a chunk's forward and gives it back at its backward. */
static int32_t turn_slot(const struct rk_lowering *lowering, struct slot_table *slots,
                         const struct rk_chunk_visit *visit) {
    int32_t table = lowering->program->slot_pool > 0 ? 0 : visit->virtual_stage;
    int64_t holder = (int64_t)visit->micro_batch * lowering->candidate->virtual_stages + visit->virtual_stage;
    int32_t slot = find_slot(slots, table, visit->backward ? holder : -1);
    slots->holder[table][slot] = visit->backward ? -1 : holder;
    return slot;
}

/* The slot of every chunk visit. */
static void assign_slots(struct rk_lowering *lowering, const struct rk_chunk_visit *order, int64_t count,
                         int32_t *slots) {
    const struct rk_program *program = lowering->program;
    struct slot_table table = {.holder = {NULL}};
    for (int32_t v = 0; v < lowering->candidate->virtual_stages; v++) {
        table.count[v] = v == 0 && program->slot_pool > 0 ? program->slot_pool : program->slots[v];
        table.holder[v] = rk_lower_allocate(lowering, (size_t)table.count[v], sizeof(int64_t));
        if (table.holder[v] != NULL)
            memset(table.holder[v], 0xFF, (size_t)table.count[v] * sizeof(int64_t));
    }
    for (int64_t i = 0; i < count && lowering->status == RK_OK; i++)
        slots[i] = turn_slot(lowering, &table, &order[i]);
    for (int32_t v = 0; v < lowering->candidate->virtual_stages; v++)
        free(table.holder[v]);
}

/* ---- the whole ---- */

static void lower_stage(struct rk_lowering *lowering) {
    const struct rk_candidate *candidate = lowering->candidate;
    struct rk_program *program = lowering->program;
    int64_t count = 2 * candidate->virtual_stages * lowering->micro_batches;
    struct rk_chunk_visit *order = rk_lower_allocate(lowering, (size_t)count, sizeof *order);
    int32_t *slots = rk_lower_allocate(lowering, (size_t)count, sizeof *slots);
    if (lowering->status == RK_OK)
        lowering->status = rk_schedule_order(candidate->pipeline, candidate->virtual_stages, lowering->micro_batches,
                                             program->stage, order, lowering->error);
    for (int32_t v = 0; v < candidate->virtual_stages && lowering->status == RK_OK; v++)
        program->slots[v] = rk_schedule_live(order, count, v);
    assign_layers(lowering);
    if (lowering->status == RK_OK) {
        rk_lower_shapes(lowering);
        rk_lower_parameters(lowering);
        rk_lower_buffers(lowering);
    }
    if (lowering->status == RK_OK) {
        choose_slot_pool(lowering, order, count);
        assign_slots(lowering, order, count, slots);
    }
    if (lowering->status == RK_OK)
        rk_lower_step(lowering, order, slots, count);
    free(slots);
    free(order);
}

static enum rk_status check_input(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                  int32_t stage, struct rk_error *error) {
    enum rk_status status = rk_candidate_check(architecture, candidate, error);
    if (status == RK_OK && (stage < 0 || stage >= candidate->pipeline))
        return rk_fail(error, RK_USAGE, "stage %d of %d", stage, candidate->pipeline);
    if (status == RK_OK)
        status = rk_candidate_check_sizes(architecture, candidate, error);
    return status;
}

enum rk_status rk_program_lower(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                int32_t stage, struct rk_program **program, struct rk_error *error) {
    enum rk_status status = check_input(architecture, candidate, stage, error);
    if (status != RK_OK)
        return status;
    struct rk_program *made = calloc(1, sizeof *made);
    if (made == NULL)
        return rk_fail(error, RK_ERROR, "step program: out of memory");
    made->candidate = *candidate;
    made->stage = stage;
    made->type = candidate->type;
    struct rk_lowering lowering = {.architecture = architecture,
                                   .candidate = &made->candidate,
                                   .program = made,
                                   .error = error,
                                   .tokens = candidate->micro_batch_tokens,
                                   .hidden = architecture->hidden,
                                   .vocabulary = architecture->vocabulary,
                                   .micro_batches = rk_candidate_micro_batches(candidate),
                                   .act_bytes = rk_data_type_bytes(candidate->type),
                                   .first_stage = stage == 0,
                                   .last_stage = stage == candidate->pipeline - 1,
                                   .route_bias = RK_NO_BUFFER};
    made->windows = lowering.micro_batches * candidate->data_parallel;
    lowering.op = &lowering.dropped_op;
    memset(lowering.block_segment, 0xFF, sizeof lowering.block_segment);
    memset(lowering.reload_segment, 0xFF, sizeof lowering.reload_segment);
    lower_stage(&lowering);
    free(lowering.bucket_ready);
    free(lowering.workspace);
    if (lowering.status == RK_OK)
        lowering.status = rk_program_finish(made, error);
    if (lowering.status != RK_OK) {
        rk_program_free(made);
        return lowering.status;
    }
    *program = made;
    return RK_OK;
}

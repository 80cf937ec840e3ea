/* What many candidates share: splits of the layers, stage classes, templates, live slots. */
#include "model/cost_place.h"
#include "model/schedule.h"
#include "model/search_internal.h"
#include "model/segment_time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALL_KINDS = RK_LAYER_KIND_SETS - 1, TEMPLATE_LAYERS = 3 };

static enum rk_status no_memory(struct rk_searching *searching) {
    return rk_fail(searching->error, RK_ERROR, "out of memory while searching");
}

/* ---- splits ---- */

static size_t split_number(const struct rk_searching *searching, const struct rk_search_index *index) {
    return (size_t)(index->pipeline * searching->space.virtual_count + index->virtual_stages);
}

static void fill_stages(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                        struct rk_split *split) {
    int32_t layer = 0;
    for (int32_t chunk = 0; chunk < candidate->pipeline * candidate->virtual_stages; chunk++) {
        struct rk_split_stage *stage = &split->stages[chunk % candidate->pipeline];
        int32_t virtual_stage = chunk / candidate->pipeline;
        for (int32_t i = 0; i < candidate->chunk_layers[chunk]; i++, layer++) {
            int kind = architecture->block[layer];
            stage->layers[kind][virtual_stage]++;
            stage->layer_count[kind]++;
            stage->kinds |= (uint8_t)(1 << kind);
        }
    }
    split->stages[0].role |= 1;
    split->stages[candidate->pipeline - 1].role |= 2;
}

const struct rk_split *rk_search_split(struct rk_searching *searching, const struct rk_search_index *index) {
    struct rk_split *split = &searching->splits[split_number(searching, index)];
    if (split->made)
        return split;
    struct rk_candidate candidate;
    rk_search_candidate(searching, index, &candidate);
    split->possible =
        (int64_t)candidate.pipeline * candidate.virtual_stages <= searching->request->architecture->layers;
    split->stages = calloc((size_t)candidate.pipeline, sizeof *split->stages);
    if (split->stages == NULL) {
        no_memory(searching);
        return NULL;
    }
    if (split->possible)
        fill_stages(searching->request->architecture, &candidate, split);
    split->made = true;
    return split;
}

/* ---- prices of a program's ops ---- */

struct priced_ops {
    double *seconds; /* copies to and from the host: 0 */
    double *copy_seconds;
    struct rk_cost *costs;
};

static void free_prices(struct priced_ops *priced) {
    free(priced->seconds);
    free(priced->copy_seconds);
    free(priced->costs);
}

static enum rk_status price_op(struct rk_searching *searching, const struct rk_program *program, const struct rk_op *op,
                               int64_t routed_rows, struct rk_cost *cost, char *missing, size_t missing_size) {
    struct rk_cost_place place;
    struct rk_error refused = {0};
    rk_cost_place_of(program, searching->request->machine, op, routed_rows, RK_BUSY_ALL, &place);
    enum rk_status status = searching->costs.price(searching->costs.context, &op->shape, &place, cost, &refused);
    if (status == RK_UNCALIBRATED) {
        if (missing[0] == '\0')
            snprintf(missing, missing_size, "%.*s", (int)missing_size - 1, refused.text);
        return RK_OK;
    }
    if (status != RK_OK)
        *searching->error = refused;
    return status;
}

/* Prices the ops of all visited segments. RK_UNCALIBRATED is not a failure here: *missing then holds its text. */
static enum rk_status price_ops(struct rk_searching *searching, const struct rk_program *program,
                                struct priced_ops *priced, char *missing, size_t missing_size) {
    size_t count = program->op_count + 1;
    priced->seconds = calloc(count, sizeof *priced->seconds);
    priced->copy_seconds = calloc(count, sizeof *priced->copy_seconds);
    priced->costs = calloc(count, sizeof *priced->costs);
    bool *visited = calloc(program->segment_count + 1, sizeof *visited);
    if (!priced->seconds || !priced->copy_seconds || !priced->costs || !visited) {
        free(visited);
        return no_memory(searching);
    }
    for (size_t v = 0; v < program->visit_count; v++)
        visited[program->schedule[v].segment] = true;
    enum rk_status status = RK_OK;
    int64_t routed_rows = rk_cost_routed_rows(program);
    for (size_t s = 0; status == RK_OK && s < program->segment_count; s++) {
        const struct rk_segment *segment = &program->segments[s];
        size_t end = segment->first_op + segment->op_count;
        for (size_t i = segment->first_op; visited[s] && status == RK_OK && i < end; i++) {
            status =
                price_op(searching, program, &program->ops[i], routed_rows, &priced->costs[i], missing, missing_size);
            bool copy = rk_op_executor(program->ops[i].shape.kind) == RK_BY_COPY;
            (copy ? priced->copy_seconds : priced->seconds)[i] = priced->costs[i].seconds;
        }
    }
    free(visited);
    return status;
}

/* Adds `times` visits of a segment: its makespan, spread over the origins by its ops' own seconds. */
static void add_segment(const struct rk_searching *searching, const struct rk_program *program, uint32_t segment_index,
                        const struct priced_ops *priced, double times, struct rk_search_seconds *sum) {
    const struct rk_segment *segment = &program->segments[segment_index];
    double busy = 0;
    sum->ops += times * (double)segment->op_count;
    for (size_t i = segment->first_op; i < segment->first_op + segment->op_count; i++)
        busy += priced->seconds[i];
    if (busy <= 0)
        return;
    double whole = times * rk_segment_seconds(program, segment_index, priced->seconds,
                                              searching->request->machine->serial_streams);
    sum->total += whole;
    for (size_t i = segment->first_op; i < segment->first_op + segment->op_count; i++) {
        double share = whole * priced->seconds[i] / busy;
        sum->origin[priced->costs[i].origin] += share;
        sum->doubt += share * priced->costs[i].relative_uncertainty;
    }
}

/* ---- stage classes ---- */

static bool in_flat_space(const struct rk_program *program, uint32_t buffer) {
    const struct rk_flat_space *spaces[2] = {&program->dense, &program->expert};
    for (int i = 0; i < 2; i++)
        if (spaces[i]->elements > 0 &&
            (buffer == spaces[i]->weights || buffer == spaces[i]->gradients || buffer == spaces[i]->master ||
             buffer == spaces[i]->first_moment || buffer == spaces[i]->second_moment))
            return true;
    return false;
}

static enum rk_status measure_class(struct rk_searching *searching, const struct rk_program *program,
                                    struct rk_stage_class *made) {
    struct rk_memory_layout layout = {0};
    enum rk_status status = rk_memory_layout_make(program, &layout, searching->error);
    if (status != RK_OK)
        return status;
    made->visit_bytes = layout.visit_bytes;
    rk_memory_layout_free(&layout);
    for (uint32_t i = 0; i < program->buffer_count; i++)
        if (in_flat_space(program, i))
            made->flat_bytes += rk_memory_aligned(program->buffers[i].bytes);
    struct priced_ops priced = {0};
    status = price_ops(searching, program, &priced, made->uncalibrated, sizeof made->uncalibrated);
    made->priced = made->uncalibrated[0] == '\0';
    for (size_t v = 0; status == RK_OK && made->priced && v < program->visit_count; v++) {
        uint32_t segment = program->schedule[v].segment;
        if (program->schedule[v].micro_batch >= 0 || program->segments[segment].op_count == 0)
            continue;
        bool reduction = program->ops[program->segments[segment].first_op].phase == RK_PHASE_REDUCTION;
        add_segment(searching, program, segment, &priced, 1, reduction ? &made->reduction : &made->end);
    }
    free_prices(&priced);
    return status;
}

static bool same_stage(const struct rk_program *left, const struct rk_split_stage *left_stage,
                       const struct rk_program *right, const struct rk_split_stage *right_stage) {
    size_t layers = (size_t)left->layer_count;
    return left_stage->role == right_stage->role && left->layer_count == right->layer_count &&
           memcmp(left->layer_kinds, right->layer_kinds, layers) == 0;
}

static enum rk_status make_classes(struct rk_searching *searching, const struct rk_search_index *index,
                                   const struct rk_split *split, struct rk_stage_class *classes) {
    struct rk_candidate candidate;
    rk_search_candidate(searching, index, &candidate);
    int64_t micro_batches = candidate.virtual_stages > 1 ? candidate.pipeline : 1;
    candidate.micro_batch_tokens = candidate.sequence;
    candidate.global_batch_tokens = candidate.sequence * candidate.data_parallel * micro_batches;
    candidate.recompute = RK_RECOMPUTE_NONE;
    candidate.offload_percent = 0;
    rk_candidate_defaults(&candidate);
    struct rk_program *programs[RK_STAGES_MAX] = {NULL};
    enum rk_status status = RK_OK;
    for (int32_t s = 0; status == RK_OK && s < candidate.pipeline; s++) {
        status = rk_program_lower(searching->request->architecture, &candidate, s, &programs[s], searching->error);
        int32_t same = 0;
        while (status == RK_OK && same < s &&
               !same_stage(programs[same], &split->stages[same], programs[s], &split->stages[s]))
            same++;
        if (status == RK_OK && same < s)
            classes[s] = classes[same];
        else if (status == RK_OK)
            status = measure_class(searching, programs[s], &classes[s]);
    }
    for (int32_t s = 0; s < candidate.pipeline; s++)
        rk_program_free(programs[s]);
    return status;
}

const struct rk_stage_class *rk_search_classes(struct rk_searching *searching, const struct rk_search_index *index) {
    size_t number = split_number(searching, index) * (size_t)searching->space.expert_count + (size_t)index->expert;
    if (searching->classes[number] != NULL)
        return searching->classes[number];
    const struct rk_split *split = rk_search_split(searching, index);
    if (split == NULL)
        return NULL;
    size_t stages = (size_t)searching->space.pipeline[index->pipeline];
    struct rk_stage_class *classes = calloc(stages, sizeof *classes);
    if (classes == NULL) {
        no_memory(searching);
        return NULL;
    }
    if (make_classes(searching, index, split, classes) != RK_OK) {
        free(classes);
        return NULL;
    }
    searching->classes[number] = classes;
    return classes;
}

/* ---- templates ---- */

/* A model with the same blocks and a few layers: TEMPLATE_LAYERS of each kind on every chunk of the stage, one on
 * others. */
static int32_t template_model(const struct rk_searching *searching, const struct rk_split_stage *stage,
                              bool virtual_stages, struct rk_architecture *architecture,
                              struct rk_candidate *candidate) {
    *architecture = *searching->request->architecture;
    candidate->pipeline = stage->role == 3 ? 1 : 3;
    candidate->virtual_stages = virtual_stages ? 2 : 1;
    int32_t own = stage->role == 3 || stage->role == 1 ? 0 : stage->role == 2 ? 2 : 1;
    int32_t layer = 0;
    int other = architecture->moe_layers > 0 ? RK_BLOCK_MOE : RK_BLOCK_DENSE;
    memset(candidate->chunk_layers, 0, sizeof candidate->chunk_layers);
    for (int32_t chunk = 0; chunk < candidate->pipeline * candidate->virtual_stages; chunk++) {
        int32_t first = layer;
        for (int kind = 0; kind < 2 && chunk % candidate->pipeline == own; kind++)
            for (int i = 0; i < TEMPLATE_LAYERS && (stage->kinds >> kind & 1) != 0; i++)
                architecture->block[layer++] = (uint8_t)kind;
        if (layer == first)
            architecture->block[layer++] = (uint8_t)other;
        candidate->chunk_layers[chunk] = (int16_t)(layer - first);
    }
    architecture->layers = layer;
    architecture->moe_layers = 0;
    for (int32_t i = 0; i < layer; i++)
        architecture->moe_layers += architecture->block[i] == RK_BLOCK_MOE;
    architecture->dense_layers = layer - architecture->moe_layers;
    return own;
}

static void add_scope(const struct rk_buffer *buffer, struct rk_search_template *made) {
    struct rk_scope_bytes *bytes = buffer->space == RK_SPACE_HOST ? &made->host : &made->device;
    int64_t size = rk_memory_aligned(buffer->bytes);
    switch (buffer->scope) {
    case RK_SCOPE_STEP:
        bytes->step += size;
        return;
    case RK_SCOPE_MICRO_BATCH_RING:
        bytes->step += size * buffer->ring_size;
        return;
    case RK_SCOPE_LAYER_RING: /* a ring has no more instances than there are layers; the template has enough */
        bytes->layer_ring[buffer->layer_kinds & ALL_KINDS] += size;
        made->layer_ring_size = buffer->ring_size;
        return;
    case RK_SCOPE_LAYER:
        bytes->layer[buffer->layer_kinds & ALL_KINDS] += size;
        return;
    case RK_SCOPE_LAYER_SLOT:
        bytes->layer_slot[buffer->layer_kinds & ALL_KINDS] += size;
        return;
    case RK_SCOPE_MICRO_BATCH:
        bytes->micro_batch += size;
        return;
    case RK_SCOPE_SLOT:
        bytes->slot += size;
        return;
    case RK_SCOPE_VISIT:
        return;
    }
}

/* Seconds and copied bytes of the visits of one micro-batch. */
static void add_visits(const struct rk_searching *searching, const struct rk_program *program,
                       const struct priced_ops *priced, struct rk_search_template *made) {
    double micro_batches = (double)rk_candidate_micro_batches(&program->candidate);
    double blocks[2] = {0};
    for (int32_t i = 0; i < program->layer_count; i++)
        blocks[program->layer_kinds[i]] += micro_batches;
    for (size_t v = 0; v < program->visit_count; v++) {
        const struct rk_visit *visit = &program->schedule[v];
        const struct rk_segment *segment = &program->segments[visit->segment];
        if (visit->micro_batch < 0 || segment->op_count == 0)
            continue;
        bool forward = program->ops[segment->first_op].phase == RK_PHASE_FORWARD;
        bool block = visit->ordinal >= 0 && rk_segment_is_block(program, visit->segment, !forward);
        int kind = visit->ordinal >= 0 ? program->layer_kinds[visit->ordinal] : 0;
        double times = 1 / (block ? blocks[kind] : micro_batches * program->candidate.virtual_stages);
        struct rk_search_seconds *sum = forward ? &made->extra_forward : &made->extra_backward;
        if (block)
            sum = forward ? &made->forward[kind] : &made->backward[kind];
        add_segment(searching, program, visit->segment, priced, times, sum);
        for (size_t i = segment->first_op; i < segment->first_op + segment->op_count; i++) {
            double *copies = program->ops[i].shape.kind == RK_OP_COPY_D2H ? made->to_host : made->to_device;
            copies[kind] += priced->copy_seconds[i] / blocks[kind];
        }
    }
}

/* The template's prices are those of the real world of ranks: only the two degrees and the stage decide the places. */
static enum rk_status price_template(struct rk_searching *searching, const struct rk_search_index *index,
                                     const struct rk_split_stage *stage, struct rk_program *program,
                                     struct rk_search_template *made) {
    struct rk_candidate small = program->candidate;
    int32_t own = program->stage, pipeline = searching->space.pipeline[index->pipeline];
    program->candidate.pipeline = pipeline;
    program->candidate.data_parallel = (int32_t)(searching->request->world / pipeline);
    program->stage = (stage->role & 2) != 0 ? pipeline - 1 : (stage->role & 1) != 0 ? 0 : 1;
    struct priced_ops priced = {0};
    enum rk_status status = price_ops(searching, program, &priced, made->uncalibrated, sizeof made->uncalibrated);
    program->candidate = small;
    program->stage = own;
    made->priced = made->uncalibrated[0] == '\0';
    if (status == RK_OK && made->priced)
        add_visits(searching, program, &priced, made);
    free_prices(&priced);
    return status;
}

static enum rk_status fill_template(struct rk_searching *searching, const struct rk_search_index *index,
                                    int32_t percent, const struct rk_split_stage *stage,
                                    struct rk_search_template *made) {
    struct rk_architecture *architecture = malloc(sizeof *architecture);
    if (architecture == NULL)
        return no_memory(searching);
    struct rk_candidate candidate;
    rk_search_candidate(searching, index, &candidate);
    int32_t own =
        template_model(searching, stage, candidate.virtual_stages > 1 && stage->role != 0, architecture, &candidate);
    candidate.data_parallel = candidate.expert_parallel;
    candidate.offload_percent = percent;
    candidate.global_batch_tokens = candidate.micro_batch_tokens * candidate.data_parallel *
                                    (candidate.virtual_stages > 1 ? candidate.pipeline : 1);
    struct rk_program *program = NULL;
    struct rk_memory_layout layout = {0};
    enum rk_status status = rk_program_lower(architecture, &candidate, own, &program, searching->error);
    if (status == RK_OK)
        status = rk_memory_layout_make(program, &layout, searching->error);
    if (status == RK_OK) {
        made->visit_bytes = layout.visit_bytes;
        for (uint32_t i = 0; i < program->buffer_count; i++)
            if (program->buffers[i].view_of == RK_NO_BUFFER && !in_flat_space(program, i))
                add_scope(&program->buffers[i], made);
        for (int kind = 0; kind < 2; kind++) {
            made->kept_bytes[kind] = (double)program->kept_bytes[kind];
            made->offloaded_bytes[kind] = (double)program->offloaded_bytes[kind];
        }
        status = price_template(searching, index, stage, program, made);
    }
    rk_memory_layout_free(&layout);
    rk_program_free(program);
    free(architecture);
    return status;
}

/* Offload percentages have a place of their own each: 0 to 100. */
enum { PERCENTS = 101 };

static size_t template_count(const struct rk_search_space *space) {
    return (size_t)space->micro_batch_count * (size_t)space->expert_count * (size_t)space->recompute_count * PERCENTS *
           RK_ROLES * RK_LAYER_KIND_SETS * 2;
}

const struct rk_search_template *rk_search_template(struct rk_searching *searching, const struct rk_search_index *index,
                                                    int32_t percent, const struct rk_split_stage *stage) {
    const struct rk_search_space *space = &searching->space;
    /* A stage in the middle has the same segments with and without virtual stages. */
    bool virtual_stages = space->virtual_stages[index->virtual_stages] > 1 && stage->role != 0;
    size_t number = (size_t)index->micro_batch;
    number = number * (size_t)space->expert_count + (size_t)index->expert;
    number = number * (size_t)space->recompute_count + (size_t)index->recompute;
    number = number * PERCENTS + (size_t)percent;
    number = number * RK_ROLES + stage->role;
    number = number * RK_LAYER_KIND_SETS + stage->kinds;
    number = number * 2 + virtual_stages;
    if (searching->templates[number] != NULL)
        return searching->templates[number];
    struct rk_search_template *made = calloc(1, sizeof *made);
    if (made == NULL) {
        no_memory(searching);
        return NULL;
    }
    if (fill_template(searching, index, percent, stage, made) != RK_OK) {
        free(made);
        return NULL;
    }
    searching->templates[number] = made;
    return made;
}

/* ---- live slots ---- */

static enum rk_status count_slots(struct rk_searching *searching, int32_t pipeline, int32_t virtual_stages,
                                  int64_t micro_batches, int32_t *slots) {
    if (virtual_stages == 1) {
        for (int32_t s = 0; s < pipeline; s++)
            slots[2 * s] = slots[2 * s + 1] = (int32_t)(pipeline - s < micro_batches ? pipeline - s : micro_batches);
        return RK_OK;
    }
    /* The highest number of live chunks is reached in the warm-up and the first rounds of the steady state. */
    int64_t rounds = 4LL * pipeline * virtual_stages;
    if (micro_batches > rounds)
        micro_batches = rounds;
    int64_t count = 2 * virtual_stages * micro_batches;
    struct rk_chunk_visit *visits = calloc((size_t)count, sizeof *visits);
    if (visits == NULL)
        return no_memory(searching);
    enum rk_status status = RK_OK;
    for (int32_t s = 0; status == RK_OK && s < pipeline; s++) {
        status = rk_schedule_order(pipeline, virtual_stages, micro_batches, s, visits, searching->error);
        int32_t live[RK_VIRTUAL_STAGES_MAX] = {0}, *most = &slots[s * (virtual_stages + 1)];
        for (int64_t i = 0; status == RK_OK && i < count; i++) {
            int32_t v = visits[i].virtual_stage;
            live[v] += visits[i].backward ? -1 : 1;
            most[v] = live[v] > most[v] ? live[v] : most[v];
        }
        most[virtual_stages] = rk_schedule_live_all(visits, count);
    }
    free(visits);
    return status;
}

const int32_t *rk_search_slots(struct rk_searching *searching, const struct rk_search_index *index) {
    const struct rk_search_space *space = &searching->space;
    size_t number = split_number(searching, index) * (size_t)space->micro_batch_count + (size_t)index->micro_batch;
    struct rk_live_slots *live = &searching->live[number];
    if (live->slots != NULL)
        return live->slots;
    int32_t pipeline = space->pipeline[index->pipeline];
    int32_t virtual_stages = space->virtual_stages[index->virtual_stages];
    int64_t ranks = searching->request->world / pipeline;
    int64_t micro_batches = searching->request->global_batch_tokens / (space->micro_batch[index->micro_batch] * ranks);
    int32_t *slots = calloc((size_t)pipeline * (size_t)(virtual_stages + 1), sizeof *slots);
    if (slots == NULL) {
        no_memory(searching);
        return NULL;
    }
    if (count_slots(searching, pipeline, virtual_stages, micro_batches, slots) != RK_OK) {
        free(slots);
        return NULL;
    }
    live->slots = slots;
    return slots;
}

/* ---- opening and closing ---- */

static size_t split_count(const struct rk_search_space *space) {
    return (size_t)space->pipeline_count * (size_t)space->virtual_count;
}

enum rk_status rk_searching_open(const struct rk_search_request *request, struct rk_searching *searching,
                                 struct rk_error *error) {
    *searching = (struct rk_searching){.request = request, .capacity_factor = request->capacity_factor, .error = error};
    searching->limit_bytes = request->memory_limit_bytes > 0
                                 ? request->memory_limit_bytes
                                 : request->machine->memory_bytes - request->machine->reserved_bytes;
    struct rk_search_space *space = &searching->space;
    enum rk_status status = rk_search_space_make(request, space, error);
    if (status == RK_OK)
        status = rk_cost_cache_make(request->costs, &searching->cache, error);
    if (status != RK_OK)
        return status;
    searching->costs = rk_cost_cache_source(searching->cache);
    searching->splits = calloc(split_count(space), sizeof *searching->splits);
    searching->classes = calloc(split_count(space) * (size_t)space->expert_count, sizeof *searching->classes);
    searching->templates = calloc(template_count(space), sizeof *searching->templates);
    searching->live = calloc(split_count(space) * (size_t)space->micro_batch_count, sizeof *searching->live);
    if (!searching->splits || !searching->classes || !searching->templates || !searching->live) {
        rk_searching_close(searching);
        return rk_fail(error, RK_ERROR, "out of memory while searching");
    }
    return RK_OK;
}

void rk_searching_close(struct rk_searching *searching) {
    const struct rk_search_space *space = &searching->space;
    for (size_t i = 0; searching->splits != NULL && i < split_count(space); i++)
        free(searching->splits[i].stages);
    for (size_t i = 0; searching->classes != NULL && i < split_count(space) * (size_t)space->expert_count; i++)
        free(searching->classes[i]);
    for (size_t i = 0; searching->templates != NULL && i < template_count(space); i++)
        free(searching->templates[i]);
    for (size_t i = 0; searching->live != NULL && i < split_count(space) * (size_t)space->micro_batch_count; i++)
        free(searching->live[i].slots);
    free(searching->splits);
    free(searching->classes);
    free(searching->templates);
    free(searching->live);
    rk_cost_cache_free(searching->cache);
}

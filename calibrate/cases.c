#include "calibrate/cases.h"

#include "base/random.h"
#include "model/cost_place.h"

#include <stdlib.h>
#include <string.h>

/* Kernel cases that are measured again in fresh processes. */
enum { ANCHORS = 12 };

struct case_collector {
    const struct rk_case_request *request;
    struct rk_case_list *list;
    size_t capacity, layout_capacity;
    /* Open addressing: index + 1 into cases, 0 empty. */
    size_t *table;
    size_t table_size;
};

static size_t case_hash(const struct rk_calibration_case *item) {
    uint64_t hash = rk_op_shape_hash(&item->shape);
    hash = hash * 0x9E3779B97F4A7C15u + (uint64_t)item->place.group_size;
    hash = hash * 0x9E3779B97F4A7C15u + (uint64_t)item->place.concurrent;
    hash = hash * 0x9E3779B97F4A7C15u + (uint64_t)(1e6 * item->place.row_share);
    return (size_t)(hash ^ hash >> 31);
}

static bool same_case(const struct rk_calibration_case *left, const struct rk_calibration_case *right) {
    return left->place.group_size == right->place.group_size && left->place.concurrent == right->place.concurrent &&
           !(left->place.row_share < right->place.row_share) && !(left->place.row_share > right->place.row_share) &&
           rk_op_shape_equal(&left->shape, &right->shape);
}

static bool grow_table(struct case_collector *collector) {
    size_t size = collector->table_size ? 2 * collector->table_size : 1024;
    size_t *table = calloc(size, sizeof *table);
    if (!table)
        return false;
    for (size_t i = 0; i < collector->list->count; i++) {
        size_t slot = case_hash(&collector->list->cases[i]) & (size - 1);
        while (table[slot])
            slot = (slot + 1) & (size - 1);
        table[slot] = i + 1;
    }
    free(collector->table);
    collector->table = table;
    collector->table_size = size;
    return true;
}

/* Adds a case unless an equal one is there. False: out of memory. */
static bool add_case(struct case_collector *collector, const struct rk_calibration_case *item) {
    struct rk_case_list *list = collector->list;
    if (2 * (list->count + 1) > collector->table_size && !grow_table(collector))
        return false;
    size_t slot = case_hash(item) & (collector->table_size - 1);
    while (collector->table[slot]) {
        if (same_case(&list->cases[collector->table[slot] - 1], item))
            return true;
        slot = (slot + 1) & (collector->table_size - 1);
    }
    if (list->count == collector->capacity) {
        size_t capacity = collector->capacity ? 2 * collector->capacity : 256;
        struct rk_calibration_case *cases = realloc(list->cases, capacity * sizeof *cases);
        if (!cases)
            return false;
        list->cases = cases;
        collector->capacity = capacity;
    }
    list->cases[list->count++] = *item;
    collector->table[slot] = list->count;
    return true;
}

/* The places that the simulator asks for: as many ranks busy as the host has devices for, and the op's own ranks alone.
 */
static bool add_op(struct case_collector *collector, const struct rk_program *program, const struct rk_op *op,
                   int64_t routed_rows, int32_t layout) {
    const struct rk_case_request *request = collector->request;
    bool transport = rk_op_executor(op->shape.kind) == RK_BY_TRANSPORT;
    struct rk_calibration_case item = {.shape = op->shape, .layout = transport ? layout : -1};
    rk_cost_place_of(program, request->machine, op, routed_rows, RK_BUSY_ALL, &item.place);
    if (rk_op_executor(op->shape.kind) == RK_BY_COPY) {
        /* Ranks of a host share the link: what counts is what one gets while all copy. */
        struct rk_calibration_case all = item;
        all.place.concurrent = (int32_t)request->world;
        if (!add_case(collector, &all))
            return false;
    }
    if (!add_case(collector, &item))
        return false;
    if (!request->alone)
        return true;
    rk_cost_place_of(program, request->machine, op, routed_rows, 0, &item.place);
    return add_case(collector, &item);
}

static enum rk_status collect_programs(struct case_collector *collector, const struct rk_architecture *architecture,
                                       const struct rk_candidate *candidate, int32_t layout, struct rk_error *error) {
    for (int32_t stage = 0; stage < candidate->pipeline; stage++) {
        struct rk_program *program = NULL;
        enum rk_status status = rk_program_lower(architecture, candidate, stage, &program, error);
        if (status != RK_OK)
            return status;
        bool added = true;
        int64_t routed_rows = rk_cost_routed_rows(program);
        for (size_t i = 0; added && i < program->op_count; i++)
            added = add_op(collector, program, &program->ops[i], routed_rows, layout);
        rk_program_free(program);
        if (!added)
            return rk_fail(error, RK_ERROR, "calibrate: out of memory while collecting cases");
    }
    return RK_OK;
}

/* The index of the layout of a candidate, added when new; -1 without memory. */
static int32_t layout_of(struct case_collector *collector, const struct rk_candidate *candidate, size_t architecture) {
    struct rk_case_list *list = collector->list;
    for (size_t i = 0; i < list->layout_count; i++) {
        struct rk_calibration_layout *known = &list->layouts[i];
        if (known->pipeline != candidate->pipeline || known->data_parallel != candidate->data_parallel ||
            known->expert_parallel != candidate->expert_parallel || known->architecture != architecture)
            continue;
        /* The largest micro-batch sizes the transport's buffers. */
        if (candidate->micro_batch_tokens > known->candidate.micro_batch_tokens)
            known->candidate = *candidate;
        return (int32_t)i;
    }
    if (list->layout_count == collector->layout_capacity) {
        size_t capacity = collector->layout_capacity ? 2 * collector->layout_capacity : 16;
        struct rk_calibration_layout *layouts = realloc(list->layouts, capacity * sizeof *layouts);
        if (!layouts)
            return -1;
        list->layouts = layouts;
        collector->layout_capacity = capacity;
    }
    list->layouts[list->layout_count] = (struct rk_calibration_layout){.pipeline = candidate->pipeline,
                                                                       .data_parallel = candidate->data_parallel,
                                                                       .expert_parallel = candidate->expert_parallel,
                                                                       .candidate = *candidate,
                                                                       .architecture = architecture};
    return (int32_t)list->layout_count++;
}

static struct rk_candidate first_candidate(const struct rk_case_request *request,
                                           const struct rk_architecture *architecture, int32_t pipeline, int32_t expert,
                                           int64_t micro_batch) {
    struct rk_candidate candidate = {.pipeline = pipeline,
                                     .virtual_stages = 1,
                                     .expert_parallel = expert,
                                     .data_parallel = (int32_t)(request->world / pipeline),
                                     .micro_batch_tokens = micro_batch,
                                     .sequence = request->sequence,
                                     .global_batch_tokens = request->global_batch_tokens,
                                     .type = request->type,
                                     .backend = request->machine->backend,
                                     .capacity_factor = expert,
                                     .routing = RK_ROUTING_LEARNED};
    rk_candidate_defaults(&candidate);
    rk_candidate_even_chunks(architecture, &candidate);
    return candidate;
}

static enum rk_status collect_layout(struct case_collector *collector, size_t architecture_index, int32_t pipeline,
                                     int32_t expert, struct rk_error *error) {
    const struct rk_case_request *request = collector->request;
    const struct rk_architecture *architecture = &request->architectures[architecture_index];
    for (size_t i = 0; i < request->micro_batch_count; i++) {
        struct rk_candidate candidate =
            first_candidate(request, architecture, pipeline, expert, request->micro_batches[i]);
        struct rk_error refused;
        if (rk_candidate_check(architecture, &candidate, &refused) != RK_OK)
            continue;
        int32_t layout = layout_of(collector, &candidate, architecture_index);
        if (layout < 0)
            return rk_fail(error, RK_ERROR, "calibrate: out of memory while collecting layouts");
        /* Recomputation adds no shapes; offload adds the copies of the buffers that it moves. */
        for (int32_t percent = 0; percent <= 100; percent += 100) {
            candidate.offload_percent = percent;
            enum rk_status status = collect_programs(collector, architecture, &candidate, layout, error);
            if (status != RK_OK)
                return status;
        }
    }
    return RK_OK;
}

/* Kernels before layouts, and a seeded random order inside each part. */
struct ordered_case {
    struct rk_calibration_case item;
    uint64_t key;
};

static int compare_ordered(const void *left, const void *right) {
    const struct ordered_case *a = left, *b = right;
    if (a->item.layout != b->item.layout)
        return a->item.layout < b->item.layout ? -1 : 1;
    return a->key < b->key ? -1 : a->key > b->key;
}

static enum rk_status shuffle(struct rk_case_list *list, uint64_t seed, struct rk_error *error) {
    struct ordered_case *ordered = calloc(list->count ? list->count : 1, sizeof *ordered);
    if (!ordered)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory while ordering cases");
    for (size_t i = 0; i < list->count; i++) {
        ordered[i].item = list->cases[i];
        ordered[i].key = rk_random_bits(seed, case_hash(&list->cases[i]));
    }
    qsort(ordered, list->count, sizeof *ordered, compare_ordered);
    for (size_t i = 0; i < list->count; i++) {
        list->cases[i] = ordered[i].item;
        list->cases[i].anchor = i < ANCHORS && list->cases[i].layout < 0;
    }
    free(ordered);
    return RK_OK;
}

enum rk_status rk_case_list_make(const struct rk_case_request *request, struct rk_case_list *list,
                                 struct rk_error *error) {
    struct rk_case_list made = {0};
    struct case_collector collector = {.request = request, .list = &made};
    enum rk_status status = RK_OK;
    for (size_t a = 0; status == RK_OK && a < request->architecture_count; a++)
        for (int32_t pipeline = 1; status == RK_OK && pipeline <= request->world; pipeline++)
            for (int32_t expert = 1;
                 status == RK_OK && request->world % pipeline == 0 && expert <= request->world / pipeline; expert++)
                if (request->world / pipeline % expert == 0)
                    status = collect_layout(&collector, a, pipeline, expert, error);
    free(collector.table);
    if (status == RK_OK && made.count == 0)
        status =
            rk_fail(error, RK_USAGE,
                    "calibrate: no division of %lld ranks fits the model, sequence %lld and global batch %lld; "
                    "change --ranks, --seq or --global-batch",
                    (long long)request->world, (long long)request->sequence, (long long)request->global_batch_tokens);
    if (status == RK_OK)
        status = shuffle(&made, request->seed, error);
    if (status != RK_OK) {
        rk_case_list_free(&made);
        return status;
    }
    *list = made;
    return RK_OK;
}

void rk_case_list_free(struct rk_case_list *list) {
    free(list->cases);
    free(list->layouts);
    *list = (struct rk_case_list){0};
}

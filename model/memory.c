#include "model/memory.h"

#include "model/program_clock.h"

#include <stdlib.h>
#include <string.h>

/* A visit-scope buffer inside the shared region. */
struct visit_buffer {
    uint32_t buffer;
    int64_t bytes;  /* aligned */
    int64_t offset; /* inside the region, -1 not yet placed */
};

/* How a segment uses a visit buffer: the last op that touches it on each stream, and what is certainly over before any
 * op that touches it starts. Numbers count the segment's ops of the stream from 1. */
struct visit_use {
    bool used;
    int64_t last[RK_STREAM_COUNT];
    int64_t over_before[RK_STREAM_COUNT];
};

struct layout_work {
    const struct rk_program *program;
    struct rk_memory_layout *layout;
    struct visit_buffer *visits; /* owned */
    int32_t *visit_index;        /* [buffer] → visits, or -1; owned */
    size_t visit_count;
    bool *conflict;        /* [visit][visit]; owned */
    struct visit_use *use; /* [visit], of one segment; owned */
    size_t *used;          /* visits that the segment uses; owned */
};

static bool is_view(const struct rk_buffer *buffer) {
    return buffer->view_of != RK_NO_BUFFER;
}

static bool is_slot_scope(enum rk_scope scope) {
    return scope == RK_SCOPE_SLOT || scope == RK_SCOPE_LAYER_SLOT;
}

/* ---- buffers that keep their place: one after another ---- */

static enum rk_status allocate_offsets(struct rk_memory_layout *layout, const struct rk_program *program,
                                       struct rk_error *error) {
    layout->offset = calloc(program->buffer_count + 1, sizeof *layout->offset);
    layout->buffer_count = layout->offset != NULL ? program->buffer_count : 0;
    for (size_t i = 0; i < layout->buffer_count; i++) {
        layout->offset[i] = calloc((size_t)program->buffers[i].instance_count, sizeof **layout->offset);
        if (layout->offset[i] == NULL)
            return rk_fail(error, RK_ERROR, "memory layout: out of memory");
    }
    if (layout->offset == NULL)
        return rk_fail(error, RK_ERROR, "memory layout: out of memory");
    return RK_OK;
}

static void place_fixed(struct rk_memory_layout *layout, const struct rk_program *program, bool slots) {
    for (size_t i = 0; i < program->buffer_count; i++) {
        const struct rk_buffer *buffer = &program->buffers[i];
        bool host = buffer->space == RK_SPACE_HOST;
        if (is_view(buffer) || buffer->scope == RK_SCOPE_VISIT || is_slot_scope(buffer->scope) != slots)
            continue;
        int64_t *end = host ? &layout->host_bytes : &layout->arena_bytes, bytes = rk_memory_aligned(buffer->bytes);
        for (int64_t instance = 0; instance < buffer->instance_count; instance++) {
            layout->offset[i][instance] = *end;
            *end += bytes;
        }
        int64_t *part = slots ? &layout->slot_bytes : &layout->persistent_bytes;
        *part += host ? 0 : bytes * buffer->instance_count;
        layout->owner_bytes[buffer->owner] += host ? 0 : bytes * buffer->instance_count;
    }
}

static void place_views(struct rk_memory_layout *layout, const struct rk_program *program) {
    for (size_t i = 0; i < program->buffer_count; i++) {
        const struct rk_buffer *buffer = &program->buffers[i];
        for (int64_t instance = 0; is_view(buffer) && instance < buffer->instance_count; instance++)
            layout->offset[i][instance] = layout->offset[buffer->view_of][0] + buffer->view_offset[instance];
    }
}

/* ---- visit scope: who may share ---- */

static enum rk_status find_visits(struct layout_work *work, struct rk_error *error) {
    const struct rk_program *program = work->program;
    work->visits = calloc(program->buffer_count + 1, sizeof *work->visits);
    work->visit_index = malloc((program->buffer_count + 1) * sizeof *work->visit_index);
    if (work->visits == NULL || work->visit_index == NULL)
        return rk_fail(error, RK_ERROR, "memory layout: out of memory");
    for (size_t i = 0; i < program->buffer_count; i++) {
        const struct rk_buffer *buffer = &program->buffers[i];
        work->visit_index[i] = -1;
        if (buffer->scope != RK_SCOPE_VISIT || is_view(buffer))
            continue;
        work->visit_index[i] = (int32_t)work->visit_count;
        work->visits[work->visit_count++] = (struct visit_buffer){(uint32_t)i, rk_memory_aligned(buffer->bytes), -1};
    }
    work->conflict = calloc(work->visit_count * work->visit_count + 1, sizeof *work->conflict);
    work->use = calloc(work->visit_count + 1, sizeof *work->use);
    work->used = calloc(work->visit_count + 1, sizeof *work->used);
    if (work->conflict == NULL || work->use == NULL || work->used == NULL)
        return rk_fail(error, RK_ERROR, "memory layout: out of memory");
    return RK_OK;
}

/* The visit buffer of an operand, or -1. */
static int32_t visit_of(const struct layout_work *work, const struct rk_operand *operand) {
    return operand->buffer == RK_NO_BUFFER ? -1 : work->visit_index[operand->buffer];
}

static void note_use(struct layout_work *work, const struct rk_op *op, int64_t number, const struct rk_clock *before) {
    for (int i = 0; i < RK_OP_OPERANDS; i++) {
        int32_t index = visit_of(work, &op->operand[i]);
        if (index < 0)
            continue;
        struct visit_use *use = &work->use[index];
        for (int s = 0; s < RK_STREAM_COUNT; s++)
            if (!use->used || before->over[s] < use->over_before[s])
                use->over_before[s] = before->over[s];
        use->used = true;
        use->last[op->stream] = number;
    }
}

/* Collects the uses in a segment. Only order inside the segment counts: an event recorded before it says nothing. */
static enum rk_status collect_uses(struct layout_work *work, const struct rk_segment *segment, struct rk_error *error) {
    const struct rk_program *program = work->program;
    const struct rk_visit anywhere = {.layer = 0, .ordinal = 0, .slot = 0, .micro_batch = 0, .virtual_stage = 0};
    struct rk_clocks clocks;
    enum rk_status status = rk_clocks_open(program, &clocks, error);
    if (status != RK_OK)
        return status;
    memset(work->use, 0, work->visit_count * sizeof *work->use);
    for (size_t i = 0; i < segment->op_count; i++) {
        const struct rk_op *op = &program->ops[segment->first_op + i];
        struct rk_clock before;
        int64_t number = rk_clocks_next(&clocks, op, &anywhere, &before);
        note_use(work, op, number, &before);
    }
    rk_clocks_close(&clocks);
    return RK_OK;
}

/* Every op that touches `first` is over before any that touches `second` starts. */
static bool precedes(const struct visit_use *first, const struct visit_use *second) {
    for (int s = 0; s < RK_STREAM_COUNT; s++)
        if (first->last[s] > second->over_before[s])
            return false;
    return true;
}

static void note_conflicts(struct layout_work *work) {
    size_t count = 0;
    for (size_t i = 0; i < work->visit_count; i++)
        if (work->use[i].used)
            work->used[count++] = i;
    for (size_t a = 0; a < count; a++) {
        for (size_t b = a + 1; b < count; b++) {
            size_t i = work->used[a], j = work->used[b];
            if (precedes(&work->use[i], &work->use[j]) || precedes(&work->use[j], &work->use[i]))
                continue;
            work->conflict[i * work->visit_count + j] = true;
            work->conflict[j * work->visit_count + i] = true;
        }
    }
}

/* ---- visit scope: places ---- */

static int compare_sizes(const void *left, const void *right) {
    const struct visit_buffer *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->buffer < b->buffer ? -1 : 1;
}

static int compare_offsets(const void *left, const void *right) {
    const struct visit_buffer *const *a = left, *const *b = right;
    return ((*a)->offset > (*b)->offset) - ((*a)->offset < (*b)->offset);
}

/* The lowest place in the tightest gap between the already placed buffers that must not be shared, or behind them all.
 */
static int64_t best_place(struct layout_work *work, const struct visit_buffer *wanted, struct visit_buffer **placed,
                          size_t placed_count, size_t wanted_row) {
    struct visit_buffer **others = placed + work->visit_count;
    size_t count = 0;
    for (size_t i = 0; i < placed_count; i++) {
        size_t row = (size_t)work->visit_index[placed[i]->buffer];
        if (work->conflict[wanted_row * work->visit_count + row])
            others[count++] = placed[i];
    }
    qsort(others, count, sizeof *others, compare_offsets);
    int64_t end = 0, best = -1, best_gap = INT64_MAX;
    for (size_t i = 0; i < count; i++) {
        int64_t gap = others[i]->offset - end;
        if (gap >= wanted->bytes && gap < best_gap) {
            best = end;
            best_gap = gap;
        }
        if (others[i]->offset + others[i]->bytes > end)
            end = others[i]->offset + others[i]->bytes;
    }
    return best >= 0 ? best : end;
}

static enum rk_status place_visits(struct layout_work *work, struct rk_error *error) {
    struct visit_buffer *by_size = malloc((work->visit_count + 1) * sizeof *by_size);
    struct visit_buffer **placed = malloc((2 * work->visit_count + 1) * sizeof *placed);
    if (by_size == NULL || placed == NULL) {
        free(by_size);
        free(placed);
        return rk_fail(error, RK_ERROR, "memory layout: out of memory");
    }
    memcpy(by_size, work->visits, work->visit_count * sizeof *by_size);
    qsort(by_size, work->visit_count, sizeof *by_size, compare_sizes);
    for (size_t i = 0; i < work->visit_count; i++) {
        size_t row = (size_t)work->visit_index[by_size[i].buffer];
        struct visit_buffer *buffer = &work->visits[row];
        buffer->offset = best_place(work, buffer, placed, i, row);
        placed[i] = buffer;
        if (buffer->offset + buffer->bytes > work->layout->visit_bytes)
            work->layout->visit_bytes = buffer->offset + buffer->bytes;
    }
    for (size_t i = 0; i < work->visit_count; i++)
        work->layout->offset[work->visits[i].buffer][0] = work->layout->arena_bytes + work->visits[i].offset;
    free(by_size);
    free(placed);
    return RK_OK;
}

/* ---- accounts ---- */

/* What a segment uses of the shared region: how far it reaches, and the bytes of all its buffers. */
struct segment_need {
    int64_t extent, bytes;
};

static struct segment_need segment_need(struct layout_work *work, const struct rk_segment *segment, bool *used) {
    struct segment_need need = {0, 0};
    memset(used, 0, work->visit_count * sizeof *used);
    for (size_t i = 0; i < segment->op_count; i++) {
        for (int o = 0; o < RK_OP_OPERANDS; o++) {
            int32_t index = visit_of(work, &work->program->ops[segment->first_op + i].operand[o]);
            if (index < 0 || used[index])
                continue;
            used[index] = true;
            int64_t end = work->visits[index].offset + work->visits[index].bytes;
            need.extent = end > need.extent ? end : need.extent;
            need.bytes += work->visits[index].bytes;
        }
    }
    return need;
}

/* Bytes of the shared region by owner, as the peak segment uses them: where its buffers take turns, the largest counts;
 * what it leaves between them is transient. */
static void account_visits(struct layout_work *work, const bool *used) {
    int64_t begin = 0, region = work->layout->visit_bytes;
    while (begin < region) {
        int64_t end = region, largest = -1;
        enum rk_owner owner = RK_OWNER_TRANSIENT;
        for (size_t i = 0; i < work->visit_count; i++) {
            const struct visit_buffer *visit = &work->visits[i];
            int64_t edges[2] = {visit->offset, visit->offset + visit->bytes};
            for (int e = 0; e < 2; e++)
                if (edges[e] > begin && edges[e] < end)
                    end = edges[e];
            if (used[i] && edges[0] <= begin && edges[1] > begin && visit->bytes > largest) {
                largest = visit->bytes;
                owner = work->program->buffers[visit->buffer].owner;
            }
        }
        work->layout->owner_bytes[owner] += end - begin;
        begin = end;
    }
}

/* The peak is the segment that reaches furthest; of several, the one whose own buffers are the most bytes. */
static enum rk_status find_peak(struct layout_work *work, struct rk_error *error) {
    const struct rk_program *program = work->program;
    struct segment_need highest = {-1, -1};
    bool *used = calloc(work->visit_count + 1, sizeof *used);
    if (used == NULL)
        return rk_fail(error, RK_ERROR, "memory layout: out of memory");
    for (size_t i = 0; i < program->segment_count; i++) {
        struct segment_need need = segment_need(work, &program->segments[i], used);
        if (need.extent > highest.extent || (need.extent == highest.extent && need.bytes > highest.bytes)) {
            highest = need;
            work->layout->peak_segment = (uint32_t)i;
        }
    }
    segment_need(work, &program->segments[work->layout->peak_segment], used);
    account_visits(work, used);
    free(used);
    return RK_OK;
}

/* ---- borders between segments ---- */

static bool touches_visit(const struct layout_work *work, const struct rk_op *op) {
    for (int i = 0; i < RK_OP_OPERANDS; i++)
        if (visit_of(work, &op->operand[i]) >= 0)
            return true;
    return false;
}

/* Every op that touches the shared region must be over before any op of a later visit touches it. */
static enum rk_status check_borders(struct layout_work *work, struct rk_error *error) {
    const struct rk_program *program = work->program;
    int64_t earlier[RK_STREAM_COUNT] = {0}, current[RK_STREAM_COUNT] = {0};
    struct rk_clocks clocks;
    enum rk_status status = rk_clocks_open(program, &clocks, error);
    for (size_t v = 0; v < program->visit_count && status == RK_OK; v++) {
        const struct rk_visit *visit = &program->schedule[v];
        const struct rk_segment *segment = &program->segments[visit->segment];
        memcpy(earlier, current, sizeof earlier);
        for (size_t i = 0; i < segment->op_count && status == RK_OK; i++) {
            const struct rk_op *op = &program->ops[segment->first_op + i];
            struct rk_clock before;
            int64_t number = rk_clocks_next(&clocks, op, visit, &before);
            if (!touches_visit(work, op))
                continue;
            current[op->stream] = number;
            for (int s = 0; s < RK_STREAM_COUNT && status == RK_OK; s++)
                if (before.over[s] < earlier[s])
                    status = rk_fail(error, RK_ERROR,
                                     "memory layout: %s in '%s' may start while the %s stream still uses values of an "
                                     "earlier visit; the segments lack a join",
                                     rk_op_name(op->shape.kind), segment->name, rk_stream_name((enum rk_stream_kind)s));
        }
    }
    rk_clocks_close(&clocks);
    return status;
}

static enum rk_status lay_out_visits(struct layout_work *work, struct rk_error *error) {
    enum rk_status status = find_visits(work, error);
    for (size_t i = 0; i < work->program->segment_count && status == RK_OK; i++) {
        status = collect_uses(work, &work->program->segments[i], error);
        if (status == RK_OK)
            note_conflicts(work);
    }
    if (status == RK_OK)
        status = place_visits(work, error);
    if (status == RK_OK)
        status = find_peak(work, error);
    if (status == RK_OK)
        status = check_borders(work, error);
    return status;
}

enum rk_status rk_memory_layout_make(const struct rk_program *program, struct rk_memory_layout *layout,
                                     struct rk_error *error) {
    struct rk_memory_layout made = {0};
    struct layout_work work = {.program = program, .layout = &made};
    enum rk_status status = allocate_offsets(&made, program, error);
    if (status == RK_OK) {
        place_fixed(&made, program, false);
        place_fixed(&made, program, true);
        place_views(&made, program);
        status = lay_out_visits(&work, error);
        made.arena_bytes += made.visit_bytes;
    }
    free(work.visits);
    free(work.visit_index);
    free(work.conflict);
    free(work.use);
    free(work.used);
    if (status != RK_OK) {
        rk_memory_layout_free(&made);
        return status;
    }
    *layout = made;
    return RK_OK;
}

void rk_memory_layout_free(struct rk_memory_layout *layout) {
    for (size_t i = 0; i < layout->buffer_count; i++)
        free(layout->offset[i]);
    free(layout->offset);
    *layout = (struct rk_memory_layout){0};
}

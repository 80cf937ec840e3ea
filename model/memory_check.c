/* The proof of a layout: plays the whole schedule over the arena's bytes. Each stretch of the shared region remembers
 * to whom it belongs and who touched it last on which stream. A buffer may take a stretch over only when every earlier
 * access is certainly over, and only its owner may read. This knows nothing of lifetimes, segments' borders or
 * conflicts. */
#include "model/memory.h"

#include "model/program_clock.h"

#include <stdlib.h>
#include <string.h>

/* An instance's bytes in a space. */
struct extent {
    uint32_t buffer;
    int64_t instance, begin, end;
};

static int compare_extents(const void *left, const void *right) {
    const struct extent *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->buffer > b->buffer) - (a->buffer < b->buffer);
}

/* ---- instances that never share ---- */

static enum rk_status check_place(const struct rk_program *program, const struct rk_memory_layout *layout, size_t index,
                                  int64_t instance, struct rk_error *error) {
    const struct rk_buffer *buffer = &program->buffers[index];
    int64_t begin = layout->offset[index][instance], end = begin + buffer->bytes;
    int64_t space = buffer->space == RK_SPACE_HOST ? layout->host_bytes : layout->arena_bytes;
    bool view = buffer->view_of != RK_NO_BUFFER;
    if (view) {
        int64_t parent = layout->offset[buffer->view_of][0];
        if (begin < parent || end > parent + program->buffers[buffer->view_of].bytes)
            return rk_fail(error, RK_ERROR, "memory layout: %s leaves the buffer that it is a part of", buffer->name);
    }
    if (begin < 0 || end > space || (!view && begin % RK_MEMORY_ALIGNMENT != 0))
        return rk_fail(error, RK_ERROR, "memory layout: %s lies at %lld to %lld of %lld bytes", buffer->name,
                       (long long)begin, (long long)end, (long long)space);
    return RK_OK;
}

/* Fixed instances of a space and, as one, each visit buffer: the former overlap nothing, the latter only one another.
 */
static enum rk_status check_overlaps(const struct rk_program *program, struct extent *extents, size_t count,
                                     struct rk_error *error) {
    size_t last_fixed = SIZE_MAX;
    int64_t visit_end = 0;
    uint32_t visit = RK_NO_BUFFER;
    qsort(extents, count, sizeof *extents, compare_extents);
    for (size_t i = 0; i < count; i++) {
        bool fixed = program->buffers[extents[i].buffer].scope != RK_SCOPE_VISIT;
        uint32_t other = RK_NO_BUFFER;
        if (last_fixed != SIZE_MAX && extents[last_fixed].end > extents[i].begin)
            other = extents[last_fixed].buffer;
        if (fixed && visit_end > extents[i].begin)
            other = visit;
        if (other != RK_NO_BUFFER)
            return rk_fail(error, RK_ERROR, "memory layout: %s and %s overlap, though one of them keeps its bytes",
                           program->buffers[other].name, program->buffers[extents[i].buffer].name);
        if (fixed && (last_fixed == SIZE_MAX || extents[i].end > extents[last_fixed].end))
            last_fixed = i;
        if (!fixed && extents[i].end > visit_end) {
            visit_end = extents[i].end;
            visit = extents[i].buffer;
        }
    }
    return RK_OK;
}

static enum rk_status check_space(const struct rk_program *program, const struct rk_memory_layout *layout,
                                  enum rk_space space, struct rk_error *error) {
    size_t count = 0, capacity = 0;
    enum rk_status status = RK_OK;
    for (size_t i = 0; i < program->buffer_count; i++)
        capacity += (size_t)program->buffers[i].instance_count;
    struct extent *extents = malloc((capacity + 1) * sizeof *extents);
    if (extents == NULL)
        return rk_fail(error, RK_ERROR, "memory layout: out of memory");
    for (size_t i = 0; i < program->buffer_count && status == RK_OK; i++) {
        const struct rk_buffer *buffer = &program->buffers[i];
        for (int64_t k = 0; k < buffer->instance_count && buffer->space == space && status == RK_OK; k++) {
            int64_t begin = layout->offset[i][k];
            status = check_place(program, layout, i, k, error);
            if (buffer->view_of == RK_NO_BUFFER)
                extents[count++] = (struct extent){(uint32_t)i, k, begin, begin + buffer->bytes};
        }
    }
    if (status == RK_OK)
        status = check_overlaps(program, extents, count, error);
    free(extents);
    return status;
}

/* ---- the shared region, byte stretch by byte stretch ---- */

struct stretch {
    int64_t begin, end;
    uint32_t owner;                /* RK_NO_BUFFER: nobody wrote yet */
    int64_t last[RK_STREAM_COUNT]; /* number of the last op that touched it */
};

struct region {
    const struct rk_program *program;
    const struct rk_memory_layout *layout;
    struct stretch *stretches;
    size_t count;
};

static bool is_shared(const struct rk_program *program, uint32_t buffer) {
    return buffer != RK_NO_BUFFER && program->buffers[buffer].scope == RK_SCOPE_VISIT &&
           program->buffers[buffer].view_of == RK_NO_BUFFER;
}

static int compare_positions(const void *left, const void *right) {
    const int64_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

/* Cuts the region at every border of a visit buffer. */
static enum rk_status cut_region(struct region *region, struct rk_error *error) {
    const struct rk_program *program = region->program;
    size_t count = 0;
    int64_t *borders = malloc((2 * program->buffer_count + 1) * sizeof *borders);
    region->stretches = calloc(2 * program->buffer_count + 1, sizeof *region->stretches);
    if (borders == NULL || region->stretches == NULL) {
        free(borders);
        return rk_fail(error, RK_ERROR, "memory layout: out of memory");
    }
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        if (!is_shared(program, i))
            continue;
        borders[count++] = region->layout->offset[i][0];
        borders[count++] = region->layout->offset[i][0] + program->buffers[i].bytes;
    }
    qsort(borders, count, sizeof *borders, compare_positions);
    for (size_t i = 1; i < count; i++)
        if (borders[i] > borders[i - 1])
            region->stretches[region->count++] =
                (struct stretch){.begin = borders[i - 1], .end = borders[i], .owner = RK_NO_BUFFER};
    free(borders);
    return RK_OK;
}

/* Where an access happens, for messages. */
struct access {
    const struct rk_segment *segment;
    const struct rk_op *op;
    uint32_t buffer;
    bool needs_content; /* reads what was written before */
    int64_t number;     /* of the op on its stream */
    struct rk_clock before;
};

static enum rk_status take_over(const struct region *region, struct stretch *stretch, const struct access *access,
                                struct rk_error *error) {
    const struct rk_buffer *buffers = region->program->buffers;
    const char *owner = stretch->owner == RK_NO_BUFFER ? "nobody" : buffers[stretch->owner].name;
    const char *wanted = buffers[access->buffer].name, *op = rk_op_name(access->op->shape.kind);
    if (access->needs_content)
        return rk_fail(error, RK_ERROR, "memory layout: %s in '%s' reads %s, whose bytes %s has written over", op,
                       access->segment->name, wanted, owner);
    for (int s = 0; s < RK_STREAM_COUNT; s++)
        if (stretch->last[s] > access->before.over[s])
            return rk_fail(error, RK_ERROR,
                           "memory layout: %s in '%s' writes %s over %s, which the %s stream may still use", op,
                           access->segment->name, wanted, owner, rk_stream_name((enum rk_stream_kind)s));
    memset(stretch->last, 0, sizeof stretch->last);
    stretch->owner = access->buffer;
    return RK_OK;
}

static enum rk_status touch(struct region *region, const struct access *access, struct rk_error *error) {
    int64_t begin = region->layout->offset[access->buffer][0];
    int64_t end = begin + region->program->buffers[access->buffer].bytes;
    enum rk_status status = RK_OK;
    for (size_t i = 0; i < region->count && status == RK_OK; i++) {
        struct stretch *stretch = &region->stretches[i];
        if (stretch->begin < begin || stretch->end > end)
            continue;
        if (stretch->owner != access->buffer)
            status = take_over(region, stretch, access, error);
        stretch->last[access->op->stream] = access->number;
    }
    return status;
}

/* An operand that is written from its first byte to its last needs nothing of what was there; workspaces never do. */
static bool replaces(const struct region *region, const struct rk_op *op, int operand) {
    const struct rk_operand *at = &op->operand[operand];
    if (rk_op_operand_access(op->shape.kind, operand) != RK_ACCESS_WRITE)
        return false;
    return operand == rk_op_workspace_operand(op->shape.kind) ||
           rk_op_operand_bytes(&op->shape, operand) == region->program->buffers[at->buffer].bytes;
}

/* Reads of an op come before its writes: a result may take the place of an input only where the op table says so, and
 * then both are the same buffer. */
static enum rk_status play_op(struct region *region, struct access *access, struct rk_error *error) {
    enum rk_status status = RK_OK;
    for (int writes = 0; writes < 2; writes++) {
        for (int i = 0; i < RK_OP_OPERANDS && status == RK_OK; i++) {
            access->buffer = access->op->operand[i].buffer;
            if (!is_shared(region->program, access->buffer))
                continue;
            access->needs_content = !replaces(region, access->op, i);
            if (access->needs_content == (writes == 0))
                status = touch(region, access, error);
        }
    }
    /* All of an op's operands are alive together: what it wrote must not have taken what it read. */
    for (int i = 0; i < RK_OP_OPERANDS && status == RK_OK; i++) {
        access->buffer = access->op->operand[i].buffer;
        access->needs_content = true;
        if (is_shared(region->program, access->buffer))
            status = touch(region, access, error);
    }
    return status;
}

static enum rk_status play_schedule(struct region *region, struct rk_error *error) {
    const struct rk_program *program = region->program;
    struct rk_clocks clocks;
    enum rk_status status = rk_clocks_open(program, &clocks, error);
    for (size_t v = 0; v < program->visit_count && status == RK_OK; v++) {
        const struct rk_visit *visit = &program->schedule[v];
        struct access access = {.segment = &program->segments[visit->segment]};
        for (size_t i = 0; i < access.segment->op_count && status == RK_OK; i++) {
            access.op = &program->ops[access.segment->first_op + i];
            access.number = rk_clocks_next(&clocks, access.op, visit, &access.before);
            status = play_op(region, &access, error);
        }
    }
    rk_clocks_close(&clocks);
    return status;
}

enum rk_status rk_memory_layout_check(const struct rk_program *program, const struct rk_memory_layout *layout,
                                      struct rk_error *error) {
    struct region region = {.program = program, .layout = layout};
    enum rk_status status = check_space(program, layout, RK_SPACE_DEVICE, error);
    if (status == RK_OK)
        status = check_space(program, layout, RK_SPACE_HOST, error);
    if (status == RK_OK)
        status = cut_region(&region, error);
    if (status == RK_OK)
        status = play_schedule(&region, error);
    free(region.stretches);
    return status;
}

#include "model/memory.h"

#include "model/program_clock.h"

#include <stdlib.h>
#include <string.h>

/* Per buffer, while a segment is read: the last op that touches it in program order, and whether all others are over
 * then. */
struct last_touch {
    size_t op_plus_1;                /* index into the program's ops; 0: not touched */
    int64_t number[RK_STREAM_COUNT]; /* of the last op on each stream that touches it */
    bool ordered;                    /* every op that touches it is over when the last one is */
};

struct release_work {
    const struct rk_program *program;
    struct last_touch *touch; /* [buffer] */
    struct rk_release_list *list;
};

static bool is_visit(const struct rk_program *program, uint32_t buffer) {
    return buffer != RK_NO_BUFFER && program->buffers[buffer].scope == RK_SCOPE_VISIT &&
           program->buffers[buffer].view_of == RK_NO_BUFFER;
}

static void note_touches(struct release_work *work, size_t index, int64_t number, const struct rk_clock *before) {
    const struct rk_op *op = &work->program->ops[index];
    for (int i = 0; i < RK_OP_OPERANDS; i++) {
        if (!is_visit(work->program, op->operand[i].buffer))
            continue;
        struct last_touch *touch = &work->touch[op->operand[i].buffer];
        touch->op_plus_1 = index + 1;
        touch->number[op->stream] = number;
        touch->ordered = true;
        for (int s = 0; s < RK_STREAM_COUNT; s++)
            if (s != (int)op->stream && touch->number[s] > before->over[s])
                touch->ordered = false;
    }
}

static enum rk_status read_segment(struct release_work *work, const struct rk_segment *segment,
                                   struct rk_error *error) {
    const struct rk_program *program = work->program;
    const struct rk_visit anywhere = {.layer = 0, .ordinal = 0, .slot = 0, .micro_batch = 0, .virtual_stage = 0};
    struct rk_clocks clocks;
    enum rk_status status = rk_clocks_open(program, &clocks, error);
    if (status != RK_OK)
        return status;
    memset(work->touch, 0, program->buffer_count * sizeof *work->touch);
    for (size_t i = segment->first_op; i < segment->first_op + segment->op_count; i++) {
        struct rk_clock before;
        int64_t number = rk_clocks_next(&clocks, &program->ops[i], &anywhere, &before);
        note_touches(work, i, number, &before);
    }
    rk_clocks_close(&clocks);
    return RK_OK;
}

/* Appends the segment's releases; ops and segments follow one another in the same order. */
static size_t list_segment(struct release_work *work, const struct rk_segment *segment, size_t count) {
    for (size_t i = segment->first_op; i < segment->first_op + segment->op_count; i++) {
        work->list->first[i] = count;
        for (size_t b = 0; b < work->program->buffer_count; b++)
            if (work->touch[b].op_plus_1 == i + 1 && work->touch[b].ordered)
                work->list->buffer[count++] = (uint32_t)b;
    }
    return count;
}

enum rk_status rk_memory_release_make(const struct rk_program *program, struct rk_release_list *list,
                                      struct rk_error *error) {
    struct rk_release_list made = {0};
    struct release_work work = {.program = program, .list = &made};
    enum rk_status status = RK_OK;
    size_t count = 0;
    made.first = calloc(program->op_count + 1, sizeof *made.first);
    made.buffer = calloc(program->op_count * RK_OP_OPERANDS + 1, sizeof *made.buffer);
    work.touch = calloc(program->buffer_count + 1, sizeof *work.touch);
    if (made.first == NULL || made.buffer == NULL || work.touch == NULL)
        status = rk_fail(error, RK_ERROR, "memory layout: out of memory");
    for (size_t i = 0; i < program->segment_count && status == RK_OK; i++) {
        status = read_segment(&work, &program->segments[i], error);
        if (status == RK_OK)
            count = list_segment(&work, &program->segments[i], count);
    }
    free(work.touch);
    if (status != RK_OK) {
        rk_memory_release_free(&made);
        return status;
    }
    made.first[program->op_count] = count;
    *list = made;
    return RK_OK;
}

void rk_memory_release_free(struct rk_release_list *list) {
    free(list->first);
    free(list->buffer);
    *list = (struct rk_release_list){0};
}

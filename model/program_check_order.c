#include "model/program_check.h"

#include "model/program_clock.h"

#include <stdlib.h>
#include <string.h>

/* A run of bytes of one instance that has always been touched as a whole. */
struct run {
    int64_t begin, end;
    bool written;
    size_t written_in; /* visit, counted over the steps */
    enum rk_stream_kind write_stream;
    int64_t write_number;          /* of the last write on its stream, 0 none */
    int64_t read[RK_STREAM_COUNT]; /* number of the last read on each stream since then */
};

struct run_list {
    struct run *runs; /* by position, without gaps; owned */
    size_t count, capacity;
};

struct order_work {
    const struct rk_program *program;
    struct run_list *lists; /* of every instance of every buffer that is no view; owned */
    size_t *first_list;     /* [buffer] */
    struct rk_clocks clocks;
    size_t step, visit;
    const struct rk_op *op;
    int64_t number; /* of the op */
    struct rk_clock before;
};

/* What the host or an earlier step has filled. */
static bool filled_before(const struct rk_program *program, uint32_t index) {
    enum rk_owner owner = program->buffers[index].owner;
    return owner == RK_OWNER_WEIGHTS || owner == RK_OWNER_OPTIMIZER || index == program->tokens ||
           index == program->targets || index == program->step_state;
}

static enum rk_status open_lists(struct order_work *work, struct rk_error *error) {
    const struct rk_program *program = work->program;
    size_t count = 0;
    work->first_list = calloc(program->buffer_count + 1, sizeof *work->first_list);
    for (size_t i = 0; i < program->buffer_count && work->first_list != NULL; i++) {
        work->first_list[i] = count;
        count += program->buffers[i].view_of == RK_NO_BUFFER ? (size_t)program->buffers[i].instance_count : 0;
        work->first_list[i + 1] = count;
    }
    work->lists = calloc(count + 1, sizeof *work->lists);
    if (work->first_list == NULL || work->lists == NULL)
        return rk_fail(error, RK_ERROR, "step program: out of memory");
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        for (size_t k = work->first_list[i]; k < work->first_list[i + 1]; k++) {
            struct run_list *list = &work->lists[k];
            list->runs = calloc(4, sizeof *list->runs);
            if (list->runs == NULL)
                return rk_fail(error, RK_ERROR, "step program: out of memory");
            list->runs[0] = (struct run){.end = program->buffers[i].bytes, .written = filled_before(program, i)};
            list->count = 1;
            list->capacity = 4;
        }
    }
    return RK_OK;
}

static void close_lists(struct order_work *work) {
    size_t count = work->first_list != NULL ? work->first_list[work->program->buffer_count] : 0;
    for (size_t i = 0; i < count && work->lists != NULL; i++)
        free(work->lists[i].runs);
    free(work->lists);
    free(work->first_list);
}

/* Makes position a border between runs and returns the index of the run that begins there; SIZE_MAX without memory. */
static size_t cut(struct run_list *list, int64_t position) {
    size_t low = 0, high = list->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (list->runs[middle].end <= position)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == list->count || list->runs[low].begin == position)
        return low;
    if (list->count == list->capacity) {
        struct run *runs = realloc(list->runs, 2 * list->capacity * sizeof *runs);
        if (runs == NULL)
            return SIZE_MAX;
        list->runs = runs;
        list->capacity *= 2;
    }
    memmove(&list->runs[low + 1], &list->runs[low], (list->count - low) * sizeof *list->runs);
    list->count++;
    list->runs[low].end = position;
    list->runs[low + 1].begin = position;
    return low + 1;
}

static size_t visit_number(const struct order_work *work) {
    return work->step * work->program->visit_count + work->visit;
}

/* The runs of an operand in the current visit: list and [*first, *last). */
static enum rk_status find_runs(struct order_work *work, int operand, struct run_list **list, size_t *first,
                                size_t *last, struct rk_error *error) {
    const struct rk_program *program = work->program;
    const struct rk_operand *at = &work->op->operand[operand];
    const struct rk_visit *visit = &program->schedule[work->visit];
    const struct rk_buffer *buffer = &program->buffers[at->buffer];
    int64_t begin, end = rk_program_operand_range(program, work->op, operand, &begin);
    int64_t instance = rk_program_instance(program, at, visit);
    if (instance < 0 || instance >= buffer->instance_count)
        return rk_fail(error, RK_ERROR, "step program: %s has no instance in '%s'", buffer->name,
                       program->segments[visit->segment].name);
    uint32_t whole = at->buffer;
    if (buffer->view_of != RK_NO_BUFFER) {
        begin += buffer->view_offset[instance];
        end += buffer->view_offset[instance];
        whole = buffer->view_of;
        instance = 0;
    }
    *list = &work->lists[work->first_list[whole] + (size_t)instance];
    *first = cut(*list, begin);
    *last = *first == SIZE_MAX ? SIZE_MAX : cut(*list, end);
    return *last == SIZE_MAX ? rk_fail(error, RK_ERROR, "step program: out of memory") : RK_OK;
}

static enum rk_status fail_order(const struct order_work *work, int operand, const char *what,
                                 enum rk_stream_kind stream, struct rk_error *error) {
    const struct rk_program *program = work->program;
    return rk_fail(error, RK_ERROR, "step program: %s in '%s' %s %s (stream %s)", rk_op_name(work->op->shape.kind),
                   program->segments[program->schedule[work->visit].segment].name, what,
                   program->buffers[work->op->operand[operand].buffer].name, rk_stream_name(stream));
}

static enum rk_status check_run(const struct order_work *work, int operand, const struct run *run,
                                struct rk_error *error) {
    const struct rk_buffer *buffer = &work->program->buffers[work->op->operand[operand].buffer];
    enum rk_access access = rk_op_operand_access(work->op->shape.kind, operand);
    bool stale = buffer->scope == RK_SCOPE_VISIT && run->written_in != visit_number(work);
    if (access != RK_ACCESS_WRITE && (!run->written || stale))
        return fail_order(work, operand, "reads, before it was written,", work->op->stream, error);
    if (run->write_number > work->before.over[run->write_stream])
        return fail_order(work, operand, "may start before the write is over of", run->write_stream, error);
    for (int s = 0; s < RK_STREAM_COUNT && access != RK_ACCESS_READ; s++)
        if (run->read[s] > work->before.over[s])
            return fail_order(work, operand, "may write before the read is over of", (enum rk_stream_kind)s, error);
    return RK_OK;
}

static void update_run(const struct order_work *work, int operand, struct run *run) {
    if (rk_op_operand_access(work->op->shape.kind, operand) == RK_ACCESS_READ) {
        run->read[work->op->stream] = work->number;
        return;
    }
    memset(run->read, 0, sizeof run->read);
    run->written = true;
    run->written_in = visit_number(work);
    run->write_stream = work->op->stream;
    run->write_number = work->number;
}

/* All operands are checked before any is noted: an op may write what it reads. */
static enum rk_status play_op(struct order_work *work, struct rk_error *error) {
    enum rk_status status = RK_OK;
    for (int noting = 0; noting < 2; noting++) {
        for (int o = 0; o < RK_OP_OPERANDS && status == RK_OK; o++) {
            struct run_list *list = NULL;
            size_t first = 0, last = 0;
            if (work->op->operand[o].buffer == RK_NO_BUFFER)
                continue;
            status = find_runs(work, o, &list, &first, &last, error);
            for (size_t i = first; i < last && status == RK_OK; i++) {
                if (noting == 1)
                    update_run(work, o, &list->runs[i]);
                else
                    status = check_run(work, o, &list->runs[i], error);
            }
        }
    }
    return status;
}

static enum rk_status check_references(const struct order_work *work, struct rk_error *error) {
    const struct rk_visit *visit = &work->program->schedule[work->visit];
    for (int i = 0; i < RK_OP_WAITS + RK_OP_RECORDS; i++) {
        const struct rk_event_reference *reference =
            i < RK_OP_WAITS ? &work->op->wait[i] : &work->op->record[i - RK_OP_WAITS];
        if (reference->event == RK_NO_EVENT)
            continue;
        const struct rk_event *event = &work->program->events[reference->event];
        int64_t instance = rk_program_event_instance(work->program, reference, visit);
        if (instance < 0 || instance >= event->instance_count)
            return rk_fail(error, RK_ERROR, "step program: event %s has no instance in '%s'", event->name,
                           work->program->segments[visit->segment].name);
    }
    return RK_OK;
}

static enum rk_status play_visit(struct order_work *work, struct rk_error *error) {
    const struct rk_visit *visit = &work->program->schedule[work->visit];
    const struct rk_segment *segment = &work->program->segments[visit->segment];
    enum rk_status status = RK_OK;
    for (size_t i = 0; i < segment->op_count && status == RK_OK; i++) {
        work->op = &work->program->ops[segment->first_op + i];
        status = check_references(work, error);
        if (status != RK_OK)
            break;
        work->number = rk_clocks_next(&work->clocks, work->op, visit, &work->before);
        status = play_op(work, error);
    }
    return status;
}

/* Two steps, because a step begins while the one before may not be over on every stream. */
enum rk_status rk_program_check_order(const struct rk_program *program, struct rk_error *error) {
    struct order_work work = {.program = program};
    enum rk_status status = rk_clocks_open(program, &work.clocks, error);
    if (status == RK_OK)
        status = open_lists(&work, error);
    for (; work.step < 2 && status == RK_OK; work.step++)
        for (work.visit = 0; work.visit < program->visit_count && status == RK_OK; work.visit++)
            status = play_visit(&work, error);
    close_lists(&work);
    rk_clocks_close(&work.clocks);
    return status;
}

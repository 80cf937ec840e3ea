#include "executor/trainer_internal.h"

#include "base/clock.h"

#include <math.h>
#include <string.h>

static enum rk_status send_input(struct rk_trainer *trainer, uint32_t buffer, int64_t instance, const void *from,
                                 int64_t bytes, struct rk_error *error) {
    if (buffer == RK_NO_BUFFER)
        return RK_OK;
    return trainer->backend->copy(trainer->stream[RK_STREAM_COMPUTE], rk_trainer_address(trainer, buffer, instance),
                                  from, bytes, RK_COPY_H2D, error);
}

/* Tokens and targets of every micro-batch and the optimizer's state: the only writes of the host, before the first
 * launch. Only compute ops read them, so nothing is waited for; the caller's arrays stand until the step has ended. */
static enum rk_status write_inputs(struct rk_trainer *trainer, const struct rk_step_inputs *inputs,
                                   struct rk_error *error) {
    const struct rk_program *program = trainer->program;
    int64_t tokens = program->candidate.micro_batch_tokens;
    int64_t bytes = tokens * (int64_t)sizeof(int32_t);
    enum rk_status status = send_input(trainer, program->step_state, 0, inputs->state, sizeof inputs->state, error);
    for (int64_t micro = 0; inputs->windows != NULL && micro < trainer->micro_batches && status == RK_OK; micro++) {
        const int32_t *window = inputs->windows + micro * (tokens + 1);
        status = send_input(trainer, program->tokens, micro, window, bytes, error);
        if (status == RK_OK)
            status = send_input(trainer, program->targets, micro, window + 1, bytes, error);
    }
    return status;
}

/* Identifies (step, micro-batch, data rank, layer) alike under every layout: the window's number tells the first three.
 */
static uint64_t call_serial(const struct rk_trainer *trainer, int64_t step, const struct rk_visit *visit) {
    if (visit->layer < 0 || visit->micro_batch < 0)
        return 0;
    int64_t window = (step * trainer->micro_batches + visit->micro_batch) * trainer->program->candidate.data_parallel +
                     trainer->data_rank;
    return (uint64_t)window * RK_LAYERS_MAX + (uint64_t)visit->layer;
}

static enum rk_status run_call(struct rk_trainer *trainer, struct rk_stream *stream, const struct rk_op *op,
                               const struct rk_op_call *call, const struct rk_transport_position *position,
                               struct rk_error *error) {
    const struct rk_backend *backend = trainer->backend;
    switch (rk_op_executor(op->shape.kind)) {
    case RK_BY_KERNEL:
        return rk_kernel_run(backend, stream, call, error);
    case RK_BY_TRANSPORT:
        return trainer->options.transport->run(trainer->transport, stream, call, op->stream, position, error);
    case RK_BY_COPY:
        break;
    }
    return backend->copy(stream, call->operand[1], call->operand[0], op->shape.dim[0],
                         op->shape.kind == RK_OP_COPY_D2H ? RK_COPY_D2H : RK_COPY_H2D, error);
}

static enum rk_status fill_poison(struct rk_trainer *trainer, struct rk_stream *stream,
                                  const struct rk_resolved_op *resolved, struct rk_error *error) {
    for (size_t i = 0; i < resolved->poison_count; i++) {
        const struct rk_poison_range *range = &trainer->poison[resolved->poison_first + i];
        enum rk_status status = trainer->backend->fill(stream, range->address, 0xFF, range->bytes, error);
        if (status != RK_OK)
            return status;
    }
    return RK_OK;
}

/* Waits for the op's events, runs it on its stream, records its events. */
static enum rk_status run_op(struct rk_trainer *trainer, size_t index, const struct rk_step_inputs *inputs,
                             const struct rk_visit *visit, struct rk_error *error) {
    const struct rk_backend *backend = trainer->backend;
    const struct rk_resolved_op *resolved = &trainer->resolved[index];
    const struct rk_op *op = resolved->op;
    struct rk_stream *stream = trainer->stream[op->stream];
    struct rk_transport_position position = {inputs->step, visit->layer, visit->micro_batch,
                                             trainer->program->segments[visit->segment].name};
    struct rk_op_call call = resolved->call;
    enum rk_status status = RK_OK;
    call.serial = call_serial(trainer, inputs->step, visit);

    for (int i = 0; i < RK_OP_WAITS && status == RK_OK; i++)
        if (resolved->wait[i] != NULL)
            status = backend->event_wait(stream, resolved->wait[i], error);
    if (status == RK_OK && inputs->traced)
        status = backend->event_record(trainer->trace.events[2 * index], stream, error);
    if (status == RK_OK)
        status = run_call(trainer, stream, op, &call, &position, error);
    if (status == RK_OK && inputs->traced)
        status = backend->event_record(trainer->trace.events[2 * index + 1], stream, error);
    if (status == RK_OK)
        status = fill_poison(trainer, stream, resolved, error);
    for (int i = 0; i < RK_OP_RECORDS && status == RK_OK; i++)
        if (resolved->record[i] != NULL)
            status = backend->event_record(resolved->record[i], stream, error);
    return status;
}

static enum rk_status open_trace(struct rk_trainer *trainer, struct rk_error *error) {
    size_t count = trainer->visit_first[trainer->program->visit_count];
    enum rk_status status = rk_trace_open(trainer->backend, trainer->device, count, &trainer->trace, error);
    for (size_t i = 0; i < count && status == RK_OK; i++)
        trainer->trace.ops[i] = trainer->resolved[i].op;
    return status;
}

void rk_trainer_take_traced(struct rk_trainer *trainer, struct rk_trace *taken) {
    struct rk_trace *trace = &trainer->trace;
    *taken = (struct rk_trace){.op_count = trace->op_count, .steps = trace->steps, .step_count = trace->step_count};
    trace->steps = NULL;
    trace->step_count = 0;
}

enum rk_status rk_trainer_give_traced(struct rk_trainer *trainer, struct rk_trace *taken, struct rk_error *error) {
    if (taken->step_count == 0)
        return RK_OK;
    enum rk_status status = open_trace(trainer, error);
    if (status == RK_OK && trainer->trace.op_count != taken->op_count)
        status = rk_fail(error, RK_ERROR, "--dropless: the program with larger buffers has %zu ops and not %zu",
                         trainer->trace.op_count, taken->op_count);
    if (status != RK_OK)
        return status;
    trainer->trace.steps = taken->steps;
    trainer->trace.step_count = taken->step_count;
    taken->steps = NULL;
    taken->step_count = 0;
    return RK_OK;
}

static enum rk_status begin_trace(struct rk_trainer *trainer, struct rk_error *error) {
    size_t count = trainer->visit_first[trainer->program->visit_count];
    enum rk_status status = open_trace(trainer, error);
    if (status != RK_OK)
        return status;
    return trainer->backend->event_record(trainer->trace.events[2 * count], trainer->stream[RK_STREAM_COMPUTE], error);
}

static enum rk_status count_done(const struct rk_trainer *trainer, size_t *count, struct rk_error *error) {
    size_t events = trainer->event_first[trainer->program->event_count], found = 0;
    for (size_t i = 0; i < events; i++) {
        bool done = false;
        enum rk_status status = trainer->backend->event_done(trainer->event[i], &done, error);
        if (status != RK_OK)
            return status;
        found += done;
    }
    *count = found;
    return RK_OK;
}

/* Waits until the stream is empty. The deadline is not that of the whole step, which takes as long as it takes, but of
 * the time in which no further event comes: then another rank does not come, or the device stands still. */
static enum rk_status drain(struct rk_trainer *trainer, int64_t step, struct rk_stream *stream,
                            struct rk_error *error) {
    enum { LOOKS = 8 }; /* in a deadline */
    double deadline = trainer->options.deadline_seconds, last_progress = rk_clock_seconds();
    size_t done = 0, before = 0;
    for (;;) {
        enum rk_status status = trainer->backend->stream_synchronize(stream, deadline / LOOKS, error);
        if (status != RK_ERROR)
            return status;
        /* On a device that has failed this fails too, and says why. */
        status = count_done(trainer, &done, error);
        if (status != RK_OK)
            return status;
        if (done != before)
            last_progress = rk_clock_seconds();
        before = done;
        if (rk_clock_seconds() - last_progress > deadline)
            return rk_fail(
                error, RK_RANK_FAILED,
                "rank %lld: nothing has ended on its device for %g s, in step %lld: another rank does not come, "
                "or one op takes longer; then raise --deadline",
                (long long)trainer->job->place.rank, deadline, (long long)step);
    }
}

static enum rk_status synchronize(struct rk_trainer *trainer, int64_t step, struct rk_error *error) {
    enum rk_status status = RK_OK;
    for (int i = 0; i < RK_STREAM_COUNT && status == RK_OK; i++)
        status = drain(trainer, step, trainer->stream[i], error);
    return status;
}

static enum rk_status fetch(struct rk_trainer *trainer, uint32_t buffer, int64_t instance, void *to, int64_t bytes,
                            struct rk_error *error) {
    return trainer->backend->copy(trainer->stream[RK_STREAM_COMPUTE], to, rk_trainer_address(trainer, buffer, instance),
                                  bytes, RK_COPY_D2H, error);
}

/* The one read of a step: loss sums and load counters, all copies enqueued and waited for once. All streams are empty.
 */
static enum rk_status read_back(struct rk_trainer *trainer, double sums[RK_SUM_COUNT], struct rk_step_result *result,
                                struct rk_error *error) {
    const struct rk_program *program = trainer->program;
    int64_t bytes = program->load == RK_NO_BUFFER ? 0 : program->buffers[program->load].bytes;
    int64_t values = bytes / (int64_t)sizeof(int64_t), experts = values / 2;
    enum rk_status status = fetch(trainer, program->sums, 0, sums, RK_SUM_COUNT * (int64_t)sizeof *sums, error);
    for (int32_t layer = 0; layer < trainer->load_layers && status == RK_OK; layer++)
        status = fetch(trainer, program->load, layer, trainer->load + layer * values, bytes, error);
    if (status == RK_OK)
        status = trainer->backend->stream_synchronize(trainer->stream[RK_STREAM_COMPUTE],
                                                      trainer->options.deadline_seconds, error);
    result->requested = 0;
    result->dropped = 0;
    for (int32_t layer = 0; layer < trainer->load_layers && status == RK_OK; layer++) {
        const int64_t *load = trainer->load + layer * values;
        for (int64_t expert = 0; expert < experts; expert++)
            result->requested += load[expert];
        result->dropped += load[2 * experts];
    }
    return status;
}

/* Before the first update of a dropless step: did any rank drop a route? All ranks stand between the same two
 * collectives. */
static enum rk_status agree_on_overflow(struct rk_trainer *trainer, int64_t step, struct rk_step_result *result,
                                        bool *overflow, struct rk_error *error) {
    int64_t total = 0;
    double sums[RK_SUM_COUNT];
    enum rk_status status = synchronize(trainer, step, error);
    if (status == RK_OK)
        status = read_back(trainer, sums, result, error);
    if (status == RK_OK)
        status = rk_job_all_gather(trainer->job, &result->dropped, sizeof result->dropped, trainer->agreement, error);
    if (status != RK_OK)
        return status;
    for (int64_t rank = 0; rank < trainer->job->place.world; rank++)
        total += trainer->agreement[rank];
    *overflow = total > 0;
    return RK_OK;
}

/* Routes of this rank that its own experts kept, all layers. */
static int64_t local_routes(const struct rk_trainer *trainer) {
    const struct rk_program *program = trainer->program;
    if (program->load == RK_NO_BUFFER)
        return 0;
    int64_t experts = program->buffers[program->load].bytes / (int64_t)sizeof(int64_t) / 2, routes = 0;
    int64_t held = experts / program->candidate.expert_parallel;
    int64_t first = trainer->group_index[RK_GROUP_EXPERT_PARALLEL] * held;
    for (int32_t layer = 0; layer < trainer->load_layers; layer++)
        for (int64_t expert = first; expert < first + held; expert++)
            routes += trainer->load[layer * (2 * experts + 1) + experts + expert];
    return routes;
}

static void count_traffic(struct rk_trainer *trainer, struct rk_step_result *result) {
    int64_t traffic[RK_OP_FAMILY_COUNT];
    trainer->options.transport->traffic(trainer->transport, traffic);
    result->remote_bytes = 0;
    for (int family = 0; family < RK_OP_FAMILY_COUNT; family++)
        result->remote_bytes += (double)(traffic[family] - trainer->traffic[family]);
    result->local_bytes = (double)local_routes(trainer) * trainer->exchange_bytes_per_route;
    memcpy(trainer->traffic, traffic, sizeof traffic);
}

static enum rk_status read_results(struct rk_trainer *trainer, struct rk_step_result *result, struct rk_error *error) {
    double sums[RK_SUM_COUNT];
    enum rk_status status = read_back(trainer, sums, result, error);
    if (status != RK_OK)
        return status;
    result->cross_entropy = sums[RK_SUM_CROSS_ENTROPY];
    result->balance = sums[RK_SUM_BALANCE] / (double)trainer->program->windows;
    result->z = sums[RK_SUM_Z] / (double)trainer->program->windows;
    result->gradient_norm = sqrt(sums[RK_SUM_SQUARED_NORM]);
    count_traffic(trainer, result);
    if (trainer->options.poison &&
        !isfinite(result->cross_entropy + result->balance + result->z + result->gradient_norm))
        return rk_fail(error, RK_ERROR,
                       "the loss or the gradient norm is not finite while released buffers are poisoned: a buffer was "
                       "read after its release or before its first write, or the run diverged; repeat without "
                       "poisoning to tell the two apart");
    return RK_OK;
}

enum rk_status rk_trainer_step(struct rk_trainer *trainer, const struct rk_step_inputs *inputs,
                               struct rk_step_result *result, struct rk_error *error) {
    const struct rk_program *program = trainer->program;
    const struct rk_backend *backend = trainer->backend;
    struct rk_step_result made = {.updated = true};
    enum rk_status status = RK_OK;
    double begin = rk_clock_seconds();

    status = write_inputs(trainer, inputs, error);
    if (status == RK_OK && inputs->traced)
        status = begin_trace(trainer, error);
    trainer->device_bytes = rk_trainer_arena_bytes(trainer);
    trainer->host_bytes = rk_trainer_host_bytes(trainer);
    backend->counters_reset(trainer->device);

    for (size_t v = 0; v < program->visit_count && status == RK_OK; v++) {
        const struct rk_visit *visit = &program->schedule[v];
        for (size_t i = trainer->visit_first[v]; i < trainer->visit_first[v + 1] && status == RK_OK; i++) {
            if (trainer->options.dropless && i == trainer->first_update) {
                bool overflow = false;
                status = agree_on_overflow(trainer, inputs->step, &made, &overflow, error);
                if (status == RK_OK && overflow) {
                    made.updated = false;
                    *result = made;
                    return RK_OK;
                }
            }
            if (status == RK_OK)
                status = run_op(trainer, i, inputs, visit, error);
        }
    }
    backend->counters_read(trainer->device, &made.counters);
    made.submission_seconds = rk_clock_seconds() - begin;

    if (status == RK_OK)
        status = synchronize(trainer, inputs->step, error);
    made.seconds = rk_clock_seconds() - begin;
    if (status == RK_OK)
        status = read_results(trainer, &made, error);
    if (status == RK_OK && inputs->traced)
        status = rk_trace_collect(backend, &trainer->trace, inputs->step, made.seconds, error);
    if (status == RK_OK)
        *result = made;
    return status;
}

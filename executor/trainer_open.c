#include "executor/trainer_internal.h"

#include <stdlib.h>
#include <string.h>

bool rk_trainer_default_poison(void) {
#ifdef RK_POISON
    return true;
#else
    return false;
#endif
}

static enum rk_status check_prediction(const char *what, int64_t predicted, int64_t laid_out, int32_t stage,
                                       struct rk_error *error) {
    if (predicted < 0 || predicted == laid_out)
        return RK_OK;
    return rk_fail(error, RK_ERROR,
                   "stage %d: the plan predicts %lld bytes of %s, this program lays out %lld; the plan was made by "
                   "another version: plan again",
                   stage, (long long)predicted, what, (long long)laid_out);
}

static enum rk_status open_memory(struct rk_trainer *trainer, struct rk_error *error) {
    const struct rk_backend *backend = trainer->backend;
    const struct rk_memory_layout *layout = trainer->layout;
    int32_t stage = trainer->program->stage;
    void *address = NULL;
    enum rk_status status =
        check_prediction("device memory", trainer->options.predicted_arena_bytes, layout->arena_bytes, stage, error);
    if (status == RK_OK)
        status =
            check_prediction("host memory", trainer->options.predicted_host_bytes, layout->host_bytes, stage, error);
    if (status == RK_OK)
        status = backend->memory_allocate(trainer->device, layout->arena_bytes, &address, error);
    if (status != RK_OK)
        return status;
    trainer->arena = address;
    if (layout->host_bytes > 0) {
        status = backend->host_allocate(trainer->device, layout->host_bytes, &address, error);
        if (status != RK_OK)
            return status;
        trainer->host_pool = address;
    }
    return RK_OK;
}

static enum rk_status open_streams(struct rk_trainer *trainer, struct rk_error *error) {
    for (int i = 0; i < RK_STREAM_COUNT; i++) {
        bool urgent = i != RK_STREAM_COMPUTE;
        enum rk_status status = trainer->backend->stream_create(trainer->device, urgent, &trainer->stream[i], error);
        if (status != RK_OK)
            return status;
    }
    return RK_OK;
}

static enum rk_status open_events(struct rk_trainer *trainer, struct rk_error *error) {
    const struct rk_program *program = trainer->program;
    trainer->event_first = calloc(program->event_count + 1, sizeof *trainer->event_first);
    if (trainer->event_first == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for %zu events", program->event_count);
    for (size_t i = 0; i < program->event_count; i++)
        trainer->event_first[i + 1] = trainer->event_first[i] + (size_t)program->events[i].instance_count;
    size_t count = trainer->event_first[program->event_count];
    trainer->event = calloc(count + 1, sizeof(struct rk_event_handle *));
    if (trainer->event == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for %zu events", count);
    for (size_t i = 0; i < count; i++) {
        enum rk_status status = trainer->backend->event_create(trainer->device, false, &trainer->event[i], error);
        if (status != RK_OK)
            return status;
    }
    return RK_OK;
}

/* Rows that a kept route sends in a step, in bytes: its dispatches and combines in forward, recomputation and backward.
 */
static double exchange_bytes_per_route(const struct rk_trainer *trainer) {
    const struct rk_program *program = trainer->program;
    double bytes = 0;
    for (size_t v = 0; v < program->visit_count; v++) {
        if (program->schedule[v].micro_batch != 0)
            continue;
        for (size_t i = trainer->visit_first[v]; i < trainer->visit_first[v + 1]; i++) {
            const struct rk_op_shape *shape = &trainer->resolved[i].op->shape;
            if (shape->kind == RK_OP_DISPATCH || shape->kind == RK_OP_COMBINE)
                bytes += (double)(shape->dim[1] * rk_data_type_bytes(shape->type));
        }
    }
    return trainer->load_layers > 0 ? bytes / trainer->load_layers : 0;
}

static enum rk_status open_host_side(struct rk_trainer *trainer, struct rk_error *error) {
    const struct rk_program *program = trainer->program;
    const struct rk_candidate *candidate = &program->candidate;
    int64_t rank = trainer->job->place.rank;
    for (int group = 0; group < RK_GROUP_COUNT; group++)
        if (group != RK_GROUP_NONE)
            rk_candidate_group(candidate, rank, (enum rk_group_kind)group, NULL, 0, &trainer->group_index[group]);
    trainer->data_rank = trainer->group_index[RK_GROUP_DATA];
    trainer->micro_batches = rk_candidate_micro_batches(candidate);
    trainer->agreement = calloc((size_t)trainer->job->place.world, sizeof *trainer->agreement);
    if (program->load != RK_NO_BUFFER) {
        trainer->load_layers = (int32_t)program->buffers[program->load].instance_count;
        trainer->load = calloc((size_t)trainer->load_layers + 1, (size_t)program->buffers[program->load].bytes);
    }
    if (trainer->agreement == NULL || (program->load != RK_NO_BUFFER && trainer->load == NULL))
        return rk_fail(error, RK_ERROR, "out of memory for the load counters");
    return rk_shards_make(program, rank, &trainer->shards, error);
}

static enum rk_status open_device_side(struct rk_trainer *trainer, struct rk_error *error) {
    const struct rk_trainer_options *options = &trainer->options;
    enum rk_status status =
        trainer->backend->device_open(options->device, options->spill_folder, &trainer->device, error);
    if (status == RK_OK)
        status = open_memory(trainer, error);
    if (status == RK_OK)
        status = open_streams(trainer, error);
    if (status == RK_OK)
        status = open_events(trainer, error);
    if (status == RK_OK)
        status = options->transport->open(trainer->job, trainer->backend, trainer->device, trainer->program,
                                          options->deadline_seconds, &trainer->transport, error);
    if (status == RK_OK && options->poison)
        status = trainer->backend->fill(trainer->stream[RK_STREAM_COMPUTE], trainer->arena, 0xFF,
                                        trainer->layout->arena_bytes, error);
    return status;
}

enum rk_status rk_trainer_open(struct rk_job *job, const struct rk_program *program,
                               const struct rk_memory_layout *layout, const struct rk_trainer_options *options,
                               struct rk_trainer **trainer, struct rk_error *error) {
    int64_t world = rk_candidate_world(&program->candidate);
    if (world != job->place.world)
        return rk_fail(error, RK_USAGE, "the plan is for %lld ranks and the job has %lld", (long long)world,
                       (long long)job->place.world);
    struct rk_trainer *opened = calloc(1, sizeof *opened);
    if (opened == NULL)
        return rk_fail(error, RK_ERROR, "out of memory");
    opened->program = program;
    opened->layout = layout;
    opened->options = *options;
    opened->job = job;
    opened->backend = options->backend;
    enum rk_status status = open_host_side(opened, error);
    if (status == RK_OK)
        status = open_device_side(opened, error);
    if (status == RK_OK)
        status = rk_trainer_resolve(opened, error);
    if (status == RK_OK && options->poison)
        status = rk_trainer_resolve_poison(opened, error);
    if (status != RK_OK) {
        rk_trainer_close(opened);
        return status;
    }
    opened->exchange_bytes_per_route = exchange_bytes_per_route(opened);
    *trainer = opened;
    return RK_OK;
}

void rk_trainer_abort(struct rk_trainer *trainer) {
    trainer->options.transport->abort(trainer->transport);
}

static void close_events(struct rk_trainer *trainer) {
    size_t count = trainer->event == NULL ? 0 : trainer->event_first[trainer->program->event_count];
    for (size_t i = 0; i < count; i++)
        if (trainer->event[i] != NULL)
            trainer->backend->event_destroy(trainer->event[i]);
    free(trainer->event);
    free(trainer->event_first);
}

void rk_trainer_close(struct rk_trainer *trainer) {
    if (trainer == NULL)
        return;
    if (trainer->device != NULL) {
        rk_trace_close(trainer->backend, &trainer->trace);
        if (trainer->transport != NULL)
            trainer->options.transport->close(trainer->transport);
        close_events(trainer);
        for (int i = 0; i < RK_STREAM_COUNT; i++)
            if (trainer->stream[i] != NULL)
                trainer->backend->stream_destroy(trainer->stream[i]);
        if (trainer->host_pool != NULL)
            trainer->backend->host_free(trainer->device, trainer->host_pool);
        if (trainer->arena != NULL)
            trainer->backend->memory_free(trainer->device, trainer->arena);
        trainer->backend->device_close(trainer->device);
    }
    rk_trainer_resolve_free(trainer);
    rk_shards_free(&trainer->shards);
    free(trainer->agreement);
    free(trainer->load);
    free(trainer);
}

void *rk_trainer_address(const struct rk_trainer *trainer, uint32_t buffer, int64_t instance) {
    char *base = trainer->program->buffers[buffer].space == RK_SPACE_HOST ? trainer->host_pool : trainer->arena;
    return base + trainer->layout->offset[buffer][instance];
}

/* Outside steps everything moves on the compute stream, which every step leaves empty. */
static enum rk_status move(struct rk_trainer *trainer, void *to, const void *from, int64_t bytes,
                           enum rk_copy_direction direction, struct rk_error *error) {
    struct rk_stream *stream = trainer->stream[RK_STREAM_COMPUTE];
    enum rk_status status = trainer->backend->copy(stream, to, from, bytes, direction, error);
    if (status != RK_OK)
        return status;
    return trainer->backend->stream_synchronize(stream, trainer->options.deadline_seconds, error);
}

enum rk_status rk_trainer_write(struct rk_trainer *trainer, uint32_t buffer, int64_t instance, int64_t offset,
                                const void *from, int64_t bytes, struct rk_error *error) {
    char *to = (char *)rk_trainer_address(trainer, buffer, instance) + offset;
    return move(trainer, to, from, bytes, RK_COPY_H2D, error);
}

enum rk_status rk_trainer_read(struct rk_trainer *trainer, uint32_t buffer, int64_t instance, int64_t offset, void *to,
                               int64_t bytes, struct rk_error *error) {
    const char *from = (char *)rk_trainer_address(trainer, buffer, instance) + offset;
    return move(trainer, to, from, bytes, RK_COPY_D2H, error);
}

enum rk_status rk_trainer_zero(struct rk_trainer *trainer, uint32_t buffer, int64_t instance, struct rk_error *error) {
    struct rk_stream *stream = trainer->stream[RK_STREAM_COMPUTE];
    enum rk_status status = trainer->backend->fill(stream, rk_trainer_address(trainer, buffer, instance), 0,
                                                   trainer->program->buffers[buffer].bytes, error);
    if (status != RK_OK)
        return status;
    return trainer->backend->stream_synchronize(stream, trainer->options.deadline_seconds, error);
}

const struct rk_program *rk_trainer_program(const struct rk_trainer *trainer) {
    return trainer->program;
}

struct rk_job *rk_trainer_job(const struct rk_trainer *trainer) {
    return trainer->job;
}

const struct rk_shards *rk_trainer_shards(const struct rk_trainer *trainer) {
    return &trainer->shards;
}

int64_t rk_trainer_data_rank(const struct rk_trainer *trainer) {
    return trainer->data_rank;
}

const int64_t *rk_trainer_load(const struct rk_trainer *trainer, int32_t *layers) {
    *layers = trainer->load_layers;
    return trainer->load;
}

const struct rk_trace *rk_trainer_trace(const struct rk_trainer *trainer) {
    return &trainer->trace;
}

enum rk_status rk_trainer_device_facts(struct rk_trainer *trainer, struct rk_device_facts *facts,
                                       struct rk_error *error) {
    return trainer->backend->device_facts(trainer->device, facts, error);
}

int64_t rk_trainer_arena_bytes(const struct rk_trainer *trainer) {
    struct rk_device_counters counters;
    trainer->backend->counters_read(trainer->device, &counters);
    return trainer->device_bytes + counters.device_bytes;
}

int64_t rk_trainer_host_bytes(const struct rk_trainer *trainer) {
    struct rk_device_counters counters;
    trainer->backend->counters_read(trainer->device, &counters);
    return trainer->host_bytes + counters.host_bytes;
}

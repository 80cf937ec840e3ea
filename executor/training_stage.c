#include "executor/training_internal.h"

#include <stdlib.h>
#include <string.h>

enum rk_status rk_training_open_stage(struct rk_training *training, bool predicted, struct rk_error *error) {
    const struct rk_training_options *options = training->options;
    int32_t stage = rk_candidate_place(&training->candidate, training->job->place.rank).stage;
    struct rk_trainer_options trainer = options->trainer;
    trainer.dropless = options->dropless;
    trainer.predicted_arena_bytes =
        predicted && options->predicted_arena_bytes != NULL ? options->predicted_arena_bytes[stage] : -1;
    trainer.predicted_host_bytes =
        predicted && options->predicted_host_bytes != NULL ? options->predicted_host_bytes[stage] : -1;
    enum rk_status status =
        rk_program_lower(training->architecture, &training->candidate, stage, &training->program, error);
    if (status == RK_OK)
        status = rk_memory_layout_make(training->program, &training->layout, error);
    if (status == RK_OK)
        status =
            rk_trainer_open(training->job, training->program, &training->layout, &trainer, &training->trainer, error);
    if (status != RK_OK)
        rk_training_close_stage(training);
    return status;
}

void rk_training_close_stage(struct rk_training *training) {
    rk_trainer_close(training->trainer);
    rk_memory_layout_free(&training->layout);
    rk_program_free(training->program);
    training->trainer = NULL;
    training->program = NULL;
    memset(&training->layout, 0, sizeof training->layout);
}

/* A copy in host memory of a buffer that outlives a change of capacity. */
struct kept_buffer {
    uint32_t buffer;
    int64_t instance, bytes;
    void *copy;
};

static size_t add_space(const struct rk_flat_space *space, struct kept_buffer *list) {
    if (space->elements == 0)
        return 0;
    const uint32_t buffers[] = {space->weights, space->master, space->first_moment, space->second_moment};
    for (size_t i = 0; i < 4; i++)
        list[i].buffer = buffers[i];
    return 4;
}

/* The state of a run. The same places in the same order whatever the capacity. list has room for 8 + tensor_count. */
static size_t list_state(const struct rk_program *program, struct kept_buffer *list) {
    size_t count = add_space(&program->dense, list);
    count += add_space(&program->expert, list + count);
    for (size_t i = 0; i < program->tensor_count; i++) {
        if (program->tensors[i].trained)
            continue;
        list[count].buffer = program->tensors[i].buffer;
        list[count++].instance = program->tensors[i].instance;
    }
    return count;
}

static enum rk_status keep_state(struct rk_training *training, struct kept_buffer *list, size_t count,
                                 struct rk_error *error) {
    enum rk_status status = RK_OK;
    for (size_t i = 0; i < count && status == RK_OK; i++) {
        list[i].bytes = training->program->buffers[list[i].buffer].bytes;
        list[i].copy = malloc((size_t)list[i].bytes);
        if (list[i].copy == NULL)
            return rk_fail(error, RK_ERROR, "--dropless: out of host memory for a copy of the state");
        status =
            rk_trainer_read(training->trainer, list[i].buffer, list[i].instance, 0, list[i].copy, list[i].bytes, error);
    }
    return status;
}

static enum rk_status restore_state(struct rk_training *training, const struct kept_buffer *list, size_t count,
                                    struct rk_error *error) {
    const struct rk_program *program = training->program;
    enum rk_status status = RK_OK;
    struct kept_buffer *places = calloc(8 + program->tensor_count, sizeof *places);
    if (places == NULL)
        return rk_fail(error, RK_ERROR, "out of memory");
    if (list_state(program, places) != count)
        status = rk_fail(error, RK_ERROR, "--dropless: the program with larger buffers holds another state");
    if (status == RK_OK && program->dense.elements > 0)
        status = rk_trainer_zero(training->trainer, program->dense.gradients, 0, error);
    if (status == RK_OK && program->expert.elements > 0)
        status = rk_trainer_zero(training->trainer, program->expert.gradients, 0, error);
    for (size_t i = 0; i < count && status == RK_OK; i++)
        status = rk_trainer_write(training->trainer, places[i].buffer, places[i].instance, 0, list[i].copy,
                                  list[i].bytes, error);
    free(places);
    return status;
}

enum rk_status rk_training_grow(struct rk_training *training, struct rk_error *error) {
    double largest = (double)training->candidate.expert_parallel;
    double wanted = 1.5 * training->candidate.capacity_factor;
    struct kept_buffer *list = calloc(8 + training->program->tensor_count, sizeof *list);
    if (list == NULL)
        return rk_fail(error, RK_ERROR, "out of memory");
    struct rk_trace traced = {0};
    size_t count = list_state(training->program, list);
    enum rk_status status = keep_state(training, list, count, error);
    if (status != RK_OK)
        goto free_list;
    rk_trainer_take_traced(training->trainer, &traced);
    rk_training_close_stage(training);
    training->candidate.capacity_factor = wanted < largest ? wanted : largest;
    if (training->job->place.rank == 0)
        rk_log_write(
            training->options->log, RK_LOG_WARNING,
            "routes were dropped: the step is repeated with capacity factor %.4g; memory and time are no longer "
            "those of the plan",
            training->candidate.capacity_factor);
    status = rk_training_open_stage(training, false, error);
    if (status == RK_OK)
        status = restore_state(training, list, count, error);
    if (status == RK_OK)
        status = rk_trainer_give_traced(training->trainer, &traced, error);
    rk_trace_close(training->options->trainer.backend, &traced);
free_list:
    for (size_t i = 0; i < count; i++)
        free(list[i].copy);
    free(list);
    return status;
}

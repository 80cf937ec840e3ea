#include "executor/training_internal.h"

#include "base/clock.h"
#include "executor/agreement.h"
#include "executor/checkpoint.h"
#include "executor/initialise.h"
#include "executor/save_tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_WARM_UP = 14 };

int64_t rk_training_warm_up(int64_t steps) {
    return steps / 5 < LONGEST_WARM_UP ? steps / 5 : LONGEST_WARM_UP;
}

/* The traced steps are spread over those after the warm-up. */
static bool step_traced(const struct rk_training_options *options, int64_t first_step, int64_t step) {
    int64_t total = options->steps - first_step;
    int64_t warm_up = rk_training_warm_up(total);
    int64_t traced = options->trace_steps < total / 3 ? options->trace_steps : total / 3;
    for (int64_t i = 0; i < traced; i++)
        if (step - first_step == warm_up + (2 * i + 1) * (total - warm_up) / (2 * traced))
            return true;
    return false;
}

enum rk_status rk_training_check_options(const struct rk_training_options *options, struct rk_error *error) {
    if (options->resume && options->checkpoint == NULL)
        return rk_fail(error, RK_USAGE, "--resume: needs --checkpoint DIR, the directory to resume from");
    if (options->checkpoint_every > 0 && options->checkpoint == NULL)
        return rk_fail(error, RK_USAGE, "--checkpoint-every: needs --checkpoint DIR, the directory to write to");
    if (options->resume && options->load_weights != NULL)
        return rk_fail(error, RK_USAGE, "--resume and --load-weights exclude each other");
    return RK_OK;
}

/* All ranks go by what rank 0 sees: a rank that began anew while the others resume would train another model. */
static enum rk_status find_checkpoint(struct rk_training *training, struct rk_error *error) {
    const struct rk_training_options *options = training->options;
    bool exists = false;
    if (options->checkpoint == NULL)
        return RK_OK;
    enum rk_status status = rk_checkpoint_find(training->job, options->checkpoint, &exists, error);
    if (status != RK_OK)
        return status;
    if (exists && !options->resume)
        return rk_fail(error, RK_USAGE,
                       "%s: holds a checkpoint already; add --resume to go on from it, or give another directory",
                       options->checkpoint);
    training->resumes = exists;
    return RK_OK;
}

static enum rk_status open_data(struct rk_training *training, struct rk_error *error) {
    const struct rk_program *program = training->program;
    int64_t tokens = training->candidate.micro_batch_tokens;
    struct rk_data_options options = {
        .path = training->options->data,
        .vocabulary = training->architecture->vocabulary,
        .window_tokens = tokens,
        .seed = training->options->seed,
    };
    enum rk_status status = rk_data_open(&options, &training->data, error);
    if (status != RK_OK || (program->tokens == RK_NO_BUFFER && program->targets == RK_NO_BUFFER))
        return status;
    int64_t micro_batches = rk_candidate_micro_batches(&training->candidate);
    training->windows = calloc((size_t)(micro_batches * (tokens + 1)), sizeof *training->windows);
    return training->windows == NULL ? rk_fail(error, RK_ERROR, "out of memory for the tokens of a step") : RK_OK;
}

static void describe_run(const struct rk_training *training, int64_t steps_done, struct rk_checkpoint_facts *facts) {
    *facts = (struct rk_checkpoint_facts){
        .step = steps_done,
        .global_batch_tokens = training->candidate.global_batch_tokens,
        .seed = training->options->seed,
    };
    rk_data_describe(training->data, facts->data, sizeof facts->data);
}

static enum rk_status resume(struct rk_training *training, struct rk_error *error) {
    const struct rk_training_options *options = training->options;
    const struct rk_log *log = training->job->place.rank == 0 ? options->log : NULL;
    struct rk_checkpoint_facts saved, now;
    enum rk_status status =
        rk_checkpoint_load(training->trainer, training->architecture, options->checkpoint, &saved, error);
    if (status != RK_OK)
        return status;
    training->first_step = saved.step;
    describe_run(training, saved.step, &now);
    if (saved.seed != now.seed || strcmp(saved.data, now.data) != 0)
        rk_log_write(log, RK_LOG_WARNING,
                     "%s: was written with other data (%s, seed %llu): this run is not its continuation",
                     options->checkpoint, saved.data, (unsigned long long)saved.seed);
    if (saved.step >= options->steps)
        rk_log_write(log, RK_LOG_WARNING, "%s: %lld steps are done already, of the %lld that --steps asks for: nothing to do",
                     options->checkpoint, (long long)saved.step, (long long)options->steps);
    else
        rk_log_write(log, RK_LOG_INFO, "resumed from %s after step %lld", options->checkpoint, (long long)saved.step);
    return RK_OK;
}

static enum rk_status first_weights(struct rk_training *training, struct rk_error *error) {
    const struct rk_training_options *options = training->options;
    if (training->resumes)
        return resume(training, error);
    if (options->resume && training->job->place.rank == 0)
        rk_log_write(options->log, RK_LOG_WARNING, "%s: holds no checkpoint yet: starting with step 0",
                     options->checkpoint);
    enum rk_status status = options->load_weights != NULL
                                ? rk_initialise_from_file(training->trainer, options->load_weights, error)
                                : rk_initialise(training->trainer, options->seed, options->standard_deviation, error);
    return rk_job_agree(training->job, status, error);
}

static enum rk_status read_windows(struct rk_training *training, int64_t step, struct rk_error *error) {
    int64_t micro_batches = rk_candidate_micro_batches(&training->candidate);
    int64_t ranks = training->candidate.data_parallel, length = training->candidate.micro_batch_tokens + 1;
    enum rk_status status = RK_OK;
    for (int64_t micro = 0; training->windows != NULL && micro < micro_batches && status == RK_OK; micro++) {
        int64_t window = (step * micro_batches + micro) * ranks + rk_trainer_data_rank(training->trainer);
        status = rk_data_window(training->data, window, training->windows + micro * length, error);
    }
    return status;
}

/* What all ranks say of the step, added up. Every rank gets the same sums. */
static enum rk_status share_step(struct rk_training *training, const struct rk_step_result *result,
                                 struct rk_training_step *step, bool *interrupted, struct rk_error *error) {
    const struct rk_training_options *options = training->options;
    struct rk_step_share mine = {
        .submission_seconds = result->submission_seconds,
        .remote_bytes = result->remote_bytes,
        .local_bytes = result->local_bytes,
        .requested = result->requested,
        .dropped = result->dropped,
        .interrupted = options->interrupted != NULL && *options->interrupted != 0,
        .host_waits = result->counters.host_waits,
        .copies_to_host = result->counters.copies_to_host,
    };
    enum rk_status status = rk_job_all_gather(training->job, &mine, sizeof mine, training->shares, error);
    if (status == RK_OK)
        status = rk_training_share_load(training, step->step, &step->load, error);
    if (status != RK_OK)
        return status;
    for (int64_t rank = 0; rank < training->job->place.world; rank++) {
        const struct rk_step_share *share = &training->shares[rank];
        bool busier = share->remote_bytes > step->remote_bytes;
        step->routes += share->requested;
        step->dropped += share->dropped;
        step->host_waits += share->host_waits;
        step->copies_to_host += share->copies_to_host;
        step->remote_bytes = busier ? share->remote_bytes : step->remote_bytes;
        step->local_bytes = share->local_bytes > step->local_bytes ? share->local_bytes : step->local_bytes;
        step->submission_seconds =
            share->submission_seconds > step->submission_seconds ? share->submission_seconds : step->submission_seconds;
        *interrupted = *interrupted || share->interrupted != 0;
    }
    return RK_OK;
}

static void describe_step(const struct rk_training *training, const struct rk_step_inputs *inputs,
                          const struct rk_step_result *result, struct rk_training_step *step) {
    const struct rk_candidate *candidate = &training->candidate;
    *step = (struct rk_training_step){
        .step = inputs->step,
        .traced = inputs->traced,
        .loss = result->cross_entropy + candidate->balance_coefficient * result->balance +
                candidate->z_coefficient * result->z,
        .cross_entropy = result->cross_entropy,
        .balance = result->balance,
        .z = result->z,
        .gradient_norm = result->gradient_norm,
        .learning_rate = rk_learning_rate(&training->options->optimizer, inputs->step),
        .tokens = candidate->global_batch_tokens,
    };
}

/* One step of all ranks: data, the step itself (again with larger buffers while routes are dropped), and its report. */
static enum rk_status take_step(struct rk_training *training, int64_t number, struct rk_training_step *step,
                                bool *interrupted, struct rk_error *error) {
    struct rk_step_inputs inputs = {
        .step = number,
        .windows = training->windows,
        .traced = step_traced(training->options, training->first_step, number),
    };
    struct rk_step_result result;
    double begin = rk_clock_seconds();
    rk_optimizer_step_state(&training->options->optimizer, number, inputs.state);
    enum rk_status status = read_windows(training, number, error);
    if (status == RK_OK)
        status = rk_trainer_step(training->trainer, &inputs, &result, error);
    while (status == RK_OK && !result.updated) {
        status = rk_training_grow(training, error);
        if (status == RK_OK)
            status = rk_trainer_step(training->trainer, &inputs, &result, error);
    }
    if (status != RK_OK)
        return status;
    describe_step(training, &inputs, &result, step);
    status = share_step(training, &result, step, interrupted, error);
    step->seconds = rk_clock_seconds() - begin;
    return status;
}

/* All ranks have the same sums, so all stop here, before a checkpoint could keep what is lost. */
static enum rk_status check_finite(const struct rk_training *training, const struct rk_training_step *step,
                                   struct rk_error *error) {
    if (isfinite(step->loss) && isfinite(step->gradient_norm))
        return RK_OK;
    return rk_fail(
        error, RK_ERROR, "step %lld: loss %g, gradient norm %g: the run has diverged and its weights are lost; %s",
        (long long)step->step, step->loss, step->gradient_norm,
        training->options->checkpoint != NULL ? "resume from the checkpoint with a lower learning rate"
                                              : "start again with a lower learning rate, and with --checkpoint");
}

static enum rk_status save_checkpoint(struct rk_training *training, int64_t steps_done, struct rk_error *error) {
    const struct rk_training_options *options = training->options;
    struct rk_checkpoint_facts facts;
    describe_run(training, steps_done, &facts);
    return rk_checkpoint_save(training->trainer, training->architecture, options->checkpoint, options->checkpoint_keep,
                              &facts, error);
}

static enum rk_status take_steps(struct rk_training *training, const struct rk_training_observer *observer,
                                 int64_t *steps_done, bool *interrupted, struct rk_error *error) {
    const struct rk_training_options *options = training->options;
    int64_t saved = training->first_step;
    enum rk_status status = RK_OK;
    for (int64_t number = training->first_step; number < options->steps && !*interrupted; number++) {
        struct rk_training_step step;
        status = take_step(training, number, &step, interrupted, error);
        if (status == RK_OK && observer != NULL)
            status = observer->step(observer->context, &step, error);
        if (status == RK_OK)
            status = check_finite(training, &step, error);
        if (status != RK_OK)
            return status;
        *steps_done = number + 1;
        if (options->checkpoint_every > 0 && *steps_done % options->checkpoint_every == 0) {
            status = save_checkpoint(training, *steps_done, error);
            saved = *steps_done;
        }
        if (status != RK_OK)
            return status;
    }
    if (options->checkpoint != NULL && saved != *steps_done)
        status = save_checkpoint(training, *steps_done, error);
    return status;
}

static enum rk_status save_files(struct rk_training *training, bool at_end, struct rk_error *error) {
    const struct rk_training_options *options = training->options;
    enum rk_status status = RK_OK;
    if (!at_end && options->save_weights != NULL)
        status =
            rk_save_tensors(training->trainer, training->architecture, RK_SAVED_MASTERS, options->save_weights, error);
    if (at_end && options->save_final != NULL)
        status =
            rk_save_tensors(training->trainer, training->architecture, RK_SAVED_MASTERS, options->save_final, error);
    if (status == RK_OK && at_end && options->dump_gradients != NULL)
        status = rk_save_tensors(training->trainer, training->architecture, RK_SAVED_GRADIENTS, options->dump_gradients,
                                 error);
    return status;
}

static void close_training(struct rk_training *training) {
    rk_training_close_stage(training);
    rk_data_close(training->data);
    free(training->windows);
    free(training->load_counts);
    free(training->load_mine);
    free(training->load_all);
    free(training->shares);
}

static enum rk_status open_training(struct rk_training *training, struct rk_error *error) {
    enum rk_status status = rk_training_open_stage(training, true, error);
    if (status != RK_OK)
        return status;
    /* A rank that cannot read the data must not leave the others waiting in the first step. */
    status = rk_job_agree(training->job, open_data(training, error), error);
    if (status == RK_OK)
        status = rk_training_open_load(training, error);
    if (status == RK_OK)
        status = first_weights(training, error);
    if (status == RK_OK)
        status = save_files(training, false, error);
    return status;
}

enum rk_status rk_training_run(struct rk_job *job, const struct rk_architecture *architecture,
                               const struct rk_candidate *candidate, const struct rk_training_options *options,
                               const struct rk_training_observer *observer, struct rk_training_report *report,
                               struct rk_error *error) {
    struct rk_training training = {
        .job = job, .architecture = architecture, .options = options, .candidate = *candidate};
    bool interrupted = false;
    enum rk_status status = rk_training_check_options(options, error);
    if (status == RK_OK)
        status = find_checkpoint(&training, error);
    if (status != RK_OK)
        return status;
    status = open_training(&training, error);
    int64_t steps_done = training.first_step;
    if (status == RK_OK)
        status = take_steps(&training, observer, &steps_done, &interrupted, error);
    if (status == RK_OK)
        status = save_files(&training, true, error);
    if (status == RK_OK)
        status = rk_training_report_make(&training, report, error);
    if (status == RK_OK)
        report->steps_done = steps_done;
    else if (training.trainer != NULL)
        rk_trainer_abort(training.trainer);
    close_training(&training);
    if (status == RK_OK && interrupted)
        status = rk_fail(error, RK_INTERRUPTED, "interrupted after step %lld%s", (long long)steps_done,
                         options->checkpoint != NULL ? "; a checkpoint was written" : "");
    return status;
}

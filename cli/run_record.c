#include "cli/run_record.h"

#include "base/clock.h"
#include "base/statistics.h"
#include "base/version.h"
#include "db/plan_store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double STORE_EVERY_SECONDS = 2.0, RETRY_SECONDS = 60.0;

static int64_t now_microseconds(void) {
    return (int64_t)(rk_clock_wall() * 1e6);
}

static enum rk_status begin_row(struct rk_run_record *record, const struct rk_run_origin *origin,
                                struct rk_error *error) {
    struct rk_plan_row plan;
    struct rk_run_row run = {
        .state = RK_RUN_RUNNING,
        .seed = origin->seed,
        .world_size = rk_candidate_world(&record->plan->candidate),
        .clock_hz = NAN,
        .power_watts = NAN,
        .started_us = now_microseconds(),
        .ended_us = -1,
    };
    snprintf(run.command, sizeof run.command, "%s", origin->command);
    snprintf(run.git_revision, sizeof run.git_revision, "%s", rk_revision());
    snprintf(run.data, sizeof run.data, "%s", origin->data);
    snprintf(run.routing, sizeof run.routing, "%s", origin->routing);
    struct rk_db_options options = {
        .access = RK_DB_WRITE, .busy_timeout_ms = (int64_t)(1e3 * origin->lock_seconds), .log = &record->cli->log};
    rk_plan_row_make(record->plan, &plan);
    enum rk_status status = rk_db_open(record->cli->database, &options, &record->db, error);
    if (status == RK_OK)
        status = rk_plan_find_or_store(record->db, &plan, origin->document, &run.plan_id, error);
    if (status == RK_OK)
        status = rk_run_begin(record->db, origin->machine, &run, &record->run, error);
    return status;
}

static enum rk_status open_losses(struct rk_run_record *record, const char *path, struct rk_error *error) {
    static const char head[] = "# step loss ce balance router_lse2 grad_norm\n";
    enum rk_status status = rk_atomic_file_open(path, &record->losses, error);
    if (status != RK_OK)
        return status;
    record->losses_open = true;
    return rk_atomic_file_write(&record->losses, head, sizeof head - 1, error);
}

enum rk_status rk_run_record_open(struct rk_run_record *record, struct rk_cli *cli, const struct rk_plan *plan,
                                  const struct rk_run_origin *origin, bool store, const char *losses,
                                  struct rk_error *error) {
    *record = (struct rk_run_record){.cli = cli, .plan = plan, .next_store = rk_clock_seconds() + STORE_EVERY_SECONDS};
    enum rk_status status = RK_OK;
    if (losses != NULL)
        status = open_losses(record, losses, error);
    if (status == RK_OK && store)
        status = begin_row(record, origin, error);
    return status;
}

static enum rk_status store_rows(struct rk_run_record *record, struct rk_error *error) {
    size_t count = record->row_count - record->rows_stored;
    record->next_store = rk_clock_seconds() + STORE_EVERY_SECONDS;
    if (record->run == 0 || count == 0)
        return RK_OK;
    enum rk_status status = rk_run_add_steps(record->db, record->run, record->rows + record->rows_stored, count, error);
    if (status == RK_OK)
        record->rows_stored = record->row_count;
    return status;
}

/* A data base that cannot be written must not end a long run: the rows stay here, and the end of the run tries last. */
static void try_store(struct rk_run_record *record) {
    struct rk_error error = {0};
    if (store_rows(record, &error) == RK_OK)
        return;
    rk_log_write(&record->cli->log, RK_LOG_WARNING, "steps cannot be stored now and are kept in memory: %s",
                 error.text);
    record->next_store = rk_clock_seconds() + RETRY_SECONDS;
}

static enum rk_status keep_row(struct rk_run_record *record, const struct rk_training_step *step,
                               struct rk_error *error) {
    if (record->row_count == record->row_capacity) {
        size_t wanted = record->row_capacity == 0 ? 256 : 2 * record->row_capacity;
        struct rk_step_row *rows = realloc(record->rows, wanted * sizeof *rows);
        if (rows == NULL)
            return rk_fail(error, RK_ERROR, "out of memory for the rows of %zu steps", wanted);
        record->rows = rows;
        record->row_capacity = wanted;
    }
    record->rows[record->row_count++] = (struct rk_step_row){
        .step = step->step,
        .traced = step->traced,
        .seconds = step->seconds,
        .host_submit_seconds = step->submission_seconds,
        .tokens = step->tokens,
        .loss = step->loss,
        .balance_loss = step->balance,
        .z_loss = step->z,
        .grad_norm = step->gradient_norm,
        .learning_rate = step->learning_rate,
        .dropped_routes = step->dropped,
        .routes = step->routes,
        .requested_load = step->load.requested_rank,
        .kept_load = step->load.kept_rank,
        .requested_expert_load = step->load.requested_expert,
        .kept_expert_load = step->load.kept_expert,
        .remote_bytes = step->remote_bytes,
        .local_bytes = step->local_bytes,
        .clock_hz = NAN,
        .power_watts = NAN,
    };
    return RK_OK;
}

static void print_step(struct rk_run_record *record, const struct rk_training_step *step) {
    if (record->row_count == 1)
        fprintf(record->cli->out, "%6s %10s %10s %10s %12s %9s %10s %9s\n", "step", "loss", "ce", "grad norm",
                "tokens/s", "dropped", "ms", "load");
    fprintf(record->cli->out, "%6lld %10.5f %10.5f %10.4f %12.0f %9lld %10.2f ", (long long)step->step, step->loss,
            step->cross_entropy, step->gradient_norm, (double)step->tokens / step->seconds, (long long)step->dropped,
            1e3 * step->seconds);
    if (isnan(step->load.requested_rank))
        fprintf(record->cli->out, "%9s", "-");
    else
        fprintf(record->cli->out, "%9.3f", step->load.requested_rank);
    fprintf(record->cli->out, "%s\n", step->traced ? "  traced" : "");
    fflush(record->cli->out);
}

enum rk_status rk_run_record_step(void *context, const struct rk_training_step *step, struct rk_error *error) {
    struct rk_run_record *record = context;
    if (record->cli == NULL)
        return RK_OK;
    enum rk_status status = keep_row(record, step, error);
    if (status == RK_OK && record->losses_open) {
        char line[256];
        int length = snprintf(line, sizeof line, "%lld %.9g %.9g %.9g %.9g %.9g\n", (long long)step->step, step->loss,
                              step->cross_entropy, step->balance, step->z, step->gradient_norm);
        status = rk_atomic_file_write(&record->losses, line, (size_t)length, error);
    }
    if (status != RK_OK)
        return status;
    if (!record->cli->json)
        print_step(record, step);
    if (rk_clock_seconds() >= record->next_store)
        try_store(record);
    return RK_OK;
}

/* Account rows are the medians over the ranks of a stage, whose programs and so rows are alike. */
static double rank_median(const struct rk_training_report *report, int64_t stage,
                          double (*value)(const struct rk_training_report *report, int64_t rank, size_t index),
                          size_t index, double *scratch) {
    size_t count = 0;
    for (int64_t rank = 0; rank < report->world; rank++)
        if (report->ranks[rank].stage == stage)
            scratch[count++] = value(report, rank, index);
    rk_statistics_sort(scratch, count);
    return rk_statistics_median_sorted(scratch, count);
}

static double median_of(const struct rk_training_report *report, int64_t rank, size_t index) {
    return report->accounts[rank][index].median_seconds;
}

static double total_of(const struct rk_training_report *report, int64_t rank, size_t index) {
    return report->accounts[rank][index].total_seconds;
}

static double wait_of(const struct rk_training_report *report, int64_t rank, size_t index) {
    return report->accounts[rank][index].wait_seconds;
}

static double stage_account_of(const struct rk_training_report *report, int64_t rank, size_t index) {
    return rk_stage_account_seconds(&report->ranks[rank].time, (int)index);
}

static void describe_shape(const struct rk_op_shape *shape, char *text, size_t size) {
    const char *names = rk_op_dimensions(shape->kind);
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < RK_OP_DIMS && *names != '\0' && used < size; i++) {
        size_t length = strcspn(names, " ");
        used += (size_t)snprintf(text + used, size - used, "%s%.*s %lld", i == 0 ? "" : " ", (int)length, names,
                                 (long long)shape->dim[i]);
        names += length + (names[length] == ' ');
    }
    if (used < size)
        snprintf(text + used, size - used, "%s%s", used == 0 ? "" : " ", rk_data_type_name(shape->type));
}

static void op_row(const struct rk_training_report *report, int64_t stage, int64_t first_rank, size_t index,
                   double *scratch, struct rk_run_op_row *row) {
    const struct rk_op_account *account = &report->accounts[first_rank][index];
    *row = (struct rk_run_op_row){
        .rank = -1,
        .stage = stage,
        .count = account->count,
        .median_seconds = rank_median(report, stage, median_of, index, scratch),
        .total_seconds = rank_median(report, stage, total_of, index, scratch),
        .wait_seconds = rank_median(report, stage, wait_of, index, scratch),
    };
    snprintf(row->kind, sizeof row->kind, "%s", rk_op_name(account->shape.kind));
    snprintf(row->phase, sizeof row->phase, "%s", rk_phase_name(account->phase));
    snprintf(row->stream, sizeof row->stream, "%s", rk_stream_name(account->stream));
    describe_shape(&account->shape, row->shape, sizeof row->shape);
}

static void account_row(const struct rk_training_report *report, int64_t stage, int account, double *scratch,
                        struct rk_run_op_row *row) {
    double seconds = rank_median(report, stage, stage_account_of, (size_t)account, scratch);
    *row = (struct rk_run_op_row){
        .rank = -1, .stage = stage, .count = 1, .median_seconds = seconds, .total_seconds = seconds};
    snprintf(row->kind, sizeof row->kind, "%s", rk_stage_account_name(account));
    snprintf(row->phase, sizeof row->phase, "account");
    snprintf(row->stream, sizeof row->stream, "all");
}

static enum rk_status store_stage_ops(struct rk_run_record *record, const struct rk_training_report *report,
                                      int64_t stage, double *scratch, struct rk_error *error) {
    int64_t first = stage * record->plan->candidate.data_parallel;
    size_t ops = (size_t)report->ranks[first].account_count;
    if (ops == 0)
        return RK_OK;
    size_t count = ops + RK_STAGE_ACCOUNT_COUNT;
    struct rk_run_op_row *rows = calloc(count, sizeof *rows);
    if (rows == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the rows of ops");
    for (size_t i = 0; i < ops; i++)
        op_row(report, stage, first, i, scratch, &rows[i]);
    for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++)
        account_row(report, stage, account, scratch, &rows[ops + (size_t)account]);
    enum rk_status status = rk_run_add_ops(record->db, record->run, rows, count, error);
    free(rows);
    return status;
}

static void memory_row(int64_t rank, const char *owner, const char *space, int64_t predicted, int64_t allocated,
                       struct rk_run_memory_row *row) {
    *row = (struct rk_run_memory_row){.rank = rank, .predicted_bytes = predicted, .allocated_bytes = allocated};
    snprintf(row->owner, sizeof row->owner, "%s", owner);
    snprintf(row->space, sizeof row->space, "%s", space);
}

static enum rk_status store_memory(struct rk_run_record *record, const struct rk_training_report *report,
                                   struct rk_error *error) {
    const struct rk_plan *plan = record->plan;
    enum rk_status status = RK_OK;
    for (int64_t rank = 0; rank < report->world && status == RK_OK; rank++) {
        struct rk_run_memory_row rows[RK_OWNER_COUNT + 3];
        const struct rk_rank_report *of = &report->ranks[rank];
        for (int owner = 0; owner < RK_OWNER_COUNT; owner++)
            memory_row(rank, rk_owner_name((enum rk_owner)owner), "device", plan->owner_bytes[of->stage][owner],
                       of->owner_bytes[owner], &rows[owner]);
        memory_row(rank, "all", "device", plan->arena_bytes[of->stage], of->arena_bytes, &rows[RK_OWNER_COUNT]);
        memory_row(rank, "all", "host", plan->host_bytes[of->stage], of->host_bytes, &rows[RK_OWNER_COUNT + 1]);
        memory_row(rank, "driver", "device", -1, of->driver_bytes, &rows[RK_OWNER_COUNT + 2]);
        status = rk_run_add_memory(record->db, record->run, rows, RK_OWNER_COUNT + 3, error);
    }
    return status;
}

static enum rk_status store_report(struct rk_run_record *record, const struct rk_training_report *report,
                                   struct rk_error *error) {
    double *scratch = calloc((size_t)report->world, sizeof *scratch);
    if (scratch == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the rows of ops");
    enum rk_status status = store_rows(record, error);
    for (int64_t stage = 0; stage < record->plan->candidate.pipeline && status == RK_OK; stage++)
        status = store_stage_ops(record, report, stage, scratch, error);
    if (status == RK_OK)
        status = store_memory(record, report, error);
    free(scratch);
    return status;
}

/* Median of the untraced steps after the warm-up, NaN without any. */
static double median_step(const struct rk_run_record *record, size_t *counted) {
    double median = NAN;
    size_t count = 0, first = (size_t)rk_training_warm_up((int64_t)record->row_count);
    double *samples = calloc(record->row_count + 1, sizeof *samples);
    for (size_t i = first; samples != NULL && i < record->row_count; i++)
        if (!record->rows[i].traced)
            samples[count++] = record->rows[i].seconds;
    if (count > 0)
        rk_statistics_median(samples, count, &median, NULL);
    free(samples);
    *counted = count;
    return median;
}

static void print_json(const struct rk_run_record *record, const struct rk_training_report *report, double median,
                       struct rk_text *text) {
    rk_text_format(text, "{\n  \"run\": %lld,\n  \"steps\": [", (long long)record->run);
    for (size_t i = 0; i < record->row_count; i++) {
        const struct rk_step_row *row = &record->rows[i];
        rk_text_format(text,
                       "%s\n    {\"step\": %lld, \"traced\": %s, \"seconds\": %.9g, \"tokens\": %lld, \"loss\": %.9g, "
                       "\"grad_norm\": %.9g, \"learning_rate\": %.9g, \"routes\": %lld, \"dropped\": %lld}",
                       i == 0 ? "" : ",", (long long)row->step, row->traced ? "true" : "false", row->seconds,
                       (long long)row->tokens, row->loss, row->grad_norm, row->learning_rate, (long long)row->routes,
                       (long long)row->dropped_routes);
    }
    rk_text_add(text, "\n  ],\n");
    if (isnan(median))
        rk_text_add(text, "  \"median_step_seconds\": null,\n");
    else
        rk_text_format(text, "  \"median_step_seconds\": %.9g,\n", median);
    rk_text_format(text, "  \"predicted_step_seconds\": %.9g,\n  \"capacity_factor\": %.9g,\n  \"ranks\": [",
                   record->plan->seconds, report->capacity_factor);
    for (int64_t rank = 0; rank < report->world; rank++) {
        const struct rk_rank_report *of = &report->ranks[rank];
        rk_text_format(
            text,
            "%s\n    {\"rank\": %lld, \"stage\": %lld, \"arena_bytes\": %lld, \"predicted_arena_bytes\": %lld, "
            "\"host_bytes\": %lld, \"driver_bytes\": %lld}",
            rank == 0 ? "" : ",", (long long)rank, (long long)of->stage, (long long)of->arena_bytes,
            (long long)record->plan->arena_bytes[of->stage], (long long)of->host_bytes, (long long)of->driver_bytes);
    }
    rk_text_add(text, "\n  ]\n}\n");
}

/* The first rank whose memory is not what the plan says; -1: none. */
static int64_t surprised_rank(const struct rk_run_record *record, const struct rk_training_report *report) {
    for (int64_t rank = 0; rank < report->world; rank++) {
        const struct rk_rank_report *of = &report->ranks[rank];
        if (of->arena_bytes != record->plan->arena_bytes[of->stage] ||
            of->host_bytes != record->plan->host_bytes[of->stage])
            return rank;
    }
    return -1;
}

static void print_summary(const struct rk_run_record *record, const struct rk_training_report *report, double median,
                          size_t counted) {
    FILE *out = record->cli->out;
    char text[64];
    int64_t largest = 0;
    for (int64_t rank = 0; rank < report->world; rank++)
        largest = report->ranks[rank].arena_bytes > largest ? report->ranks[rank].arena_bytes : largest;
    if (counted > 0) {
        fprintf(out, "step: %s median of %zu untraced steps after warm-up",
                rk_format_seconds(median, text, sizeof text), counted);
        if (record->plan->seconds > 0)
            fprintf(out, ", predicted %s (%+.1f %%)", rk_format_seconds(record->plan->seconds, text, sizeof text),
                    100 * (record->plan->seconds / median - 1));
        fprintf(out, "; %.0f tokens/s\n", (double)record->plan->candidate.global_batch_tokens / median);
    }
    bool grown = report->capacity_factor != record->plan->candidate.capacity_factor;
    int64_t surprised = surprised_rank(record, report);
    fprintf(out, "memory: %s on the fullest rank, ", rk_format_bytes(largest, text, sizeof text));
    if (grown)
        fprintf(out, "more than planned: dropped routes made the receive buffers grow\n");
    else if (surprised < 0)
        fprintf(out, "as predicted to the byte on every rank\n");
    else
        fprintf(out, "which the plan does not say: rank %lld allocated %lld bytes and %lld of host memory\n",
                (long long)surprised, (long long)report->ranks[surprised].arena_bytes,
                (long long)report->ranks[surprised].host_bytes);
    if (record->run != 0)
        fprintf(out, "run %lld is stored; `reckon compare %lld` holds it against the plan\n", (long long)record->run,
                (long long)record->run);
}

enum rk_status rk_run_record_report(struct rk_run_record *record, const struct rk_training_report *report,
                                    struct rk_error *error) {
    size_t counted = 0;
    if (record->cli == NULL)
        return RK_OK;
    enum rk_status status = record->run != 0 ? store_report(record, report, error) : RK_OK;
    if (status != RK_OK)
        return status;
    double median = median_step(record, &counted);
    if (!record->cli->json) {
        print_summary(record, report, median, counted);
        return RK_OK;
    }
    struct rk_text text = {0};
    print_json(record, report, median, &text);
    if (text.failed)
        status = rk_fail(error, RK_ERROR, "out of memory for the summary");
    else
        fputs(text.data, record->cli->out);
    rk_text_free(&text);
    return status;
}

enum rk_status rk_run_record_close(struct rk_run_record *record, enum rk_status status, struct rk_error *error) {
    enum rk_status stored = RK_OK;
    struct rk_error *first = status == RK_OK ? error : NULL;
    if (record->run != 0) {
        enum rk_run_state state = status == RK_OK            ? RK_RUN_FINISHED
                                  : status == RK_INTERRUPTED ? RK_RUN_INTERRUPTED
                                                             : RK_RUN_FAILED;
        stored = store_rows(record, first);
        enum rk_status ended = rk_run_end(record->db, record->run, state, status == RK_OK ? NULL : error->text,
                                          now_microseconds(), stored == RK_OK ? first : NULL);
        stored = stored == RK_OK ? ended : stored;
    }
    if (record->losses_open && (status == RK_OK || status == RK_INTERRUPTED)) {
        enum rk_status written = rk_atomic_file_commit(&record->losses, stored == RK_OK ? first : NULL);
        stored = stored == RK_OK ? written : stored;
    } else if (record->losses_open) {
        rk_atomic_file_abandon(&record->losses);
    }
    if (record->db != NULL)
        rk_db_close(record->db);
    free(record->rows);
    *record = (struct rk_run_record){0};
    return status == RK_OK ? stored : status;
}

#include "executor/training_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t load_values(const struct rk_training *training) {
    return 2 * training->architecture->experts + 1;
}

enum rk_status rk_training_open_load(struct rk_training *training, struct rk_error *error) {
    int64_t world = training->job->place.world;
    int32_t layers = 0;
    rk_trainer_load(training->trainer, &layers);
    int64_t mine = layers;
    training->load_counts = calloc((size_t)world, sizeof *training->load_counts);
    training->shares = calloc((size_t)world, sizeof *training->shares);
    if (training->load_counts == NULL || training->shares == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the reports of %lld ranks", (long long)world);
    enum rk_status status = rk_job_all_gather(training->job, &mine, sizeof mine, training->load_counts, error);
    if (status != RK_OK)
        return status;
    for (int64_t rank = 0; rank < world; rank++)
        if (training->load_counts[rank] > training->load_layers)
            training->load_layers = training->load_counts[rank];
    if (training->load_layers == 0)
        return RK_OK;
    size_t values = (size_t)(training->load_layers * load_values(training));
    training->load_mine = calloc(values, sizeof(int64_t));
    training->load_all = calloc(values * (size_t)world, sizeof(int64_t));
    if (training->load_mine == NULL || training->load_all == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the load counters of %lld ranks", (long long)world);
    return RK_OK;
}

enum rk_status rk_training_share_load(struct rk_training *training, int64_t step, struct rk_load_summary *summary,
                                      struct rk_error *error) {
    enum { TRAFFIC_MIB = 64 };
    int32_t layers = 0;
    int64_t world = training->job->place.world, bytes = load_values(training) * (int64_t)sizeof(int64_t);
    int64_t every = 1 + (training->load_layers * bytes * world * world >> 20) / TRAFFIC_MIB;
    *summary = (struct rk_load_summary){NAN, NAN, NAN, NAN};
    if (training->load_layers == 0 || step % every != 0)
        return RK_OK;
    const int64_t *load = rk_trainer_load(training->trainer, &layers);
    if (layers > 0)
        memcpy(training->load_mine, load, (size_t)(layers * bytes));
    enum rk_status status =
        rk_job_all_gather(training->job, training->load_mine, training->load_layers * bytes, training->load_all, error);
    if (status == RK_OK)
        *summary = rk_load_summarise(&training->candidate, training->architecture->experts, training->load_all,
                                     training->load_counts, training->load_layers);
    return status;
}

static enum rk_status report_own(struct rk_training *training, struct rk_rank_report *mine,
                                 struct rk_op_account **accounts, struct rk_error *error) {
    struct rk_device_facts facts;
    size_t count = 0;
    mine->stage = training->program->stage;
    memcpy(mine->owner_bytes, training->layout.owner_bytes, sizeof mine->owner_bytes);
    mine->arena_bytes = rk_trainer_arena_bytes(training->trainer);
    mine->host_bytes = rk_trainer_host_bytes(training->trainer);
    enum rk_status status = rk_trainer_device_facts(training->trainer, &facts, error);
    if (status == RK_OK)
        status = rk_trace_stage_time(rk_trainer_trace(training->trainer), &mine->time, error);
    if (status == RK_OK)
        status = rk_trace_accounts(rk_trainer_trace(training->trainer), accounts, &count, error);
    if (status != RK_OK)
        return status;
    mine->driver_bytes = facts.used_bytes;
    mine->account_count = (int64_t)count;
    mine->traced_steps = (int64_t)rk_trainer_trace(training->trainer)->step_count;
    return RK_OK;
}

/* Accounts of all ranks: padded to the longest list for the exchange, then cut apart. */
static enum rk_status gather_accounts(struct rk_training *training, const struct rk_op_account *mine,
                                      struct rk_training_report *report, struct rk_error *error) {
    enum rk_status status = RK_OK;
    int64_t longest = 0, world = report->world;
    for (int64_t rank = 0; rank < world; rank++)
        if (report->ranks[rank].account_count > longest)
            longest = report->ranks[rank].account_count;
    report->accounts = calloc((size_t)world, sizeof *report->accounts);
    struct rk_op_account *padded = calloc((size_t)longest + 1, sizeof *padded);
    struct rk_op_account *all = calloc((size_t)(longest * world) + 1, sizeof *all);
    if (report->accounts == NULL || padded == NULL || all == NULL) {
        status = rk_fail(error, RK_ERROR, "out of memory for the accounts of %lld ranks", (long long)world);
        goto free_arrays;
    }
    int64_t own = report->ranks[training->job->place.rank].account_count;
    if (own > 0)
        memcpy(padded, mine, (size_t)own * sizeof *padded);
    if (longest > 0)
        status = rk_job_all_gather(training->job, padded, longest * (int64_t)sizeof *padded, all, error);
    for (int64_t rank = 0; rank < world && status == RK_OK; rank++) {
        size_t count = (size_t)report->ranks[rank].account_count;
        report->accounts[rank] = malloc((count + 1) * sizeof *all);
        if (report->accounts[rank] == NULL)
            status = rk_fail(error, RK_ERROR, "out of memory for the accounts of %lld ranks", (long long)world);
        else
            memcpy(report->accounts[rank], all + rank * longest, count * sizeof *all);
    }
free_arrays:
    free(padded);
    free(all);
    return status;
}

enum rk_status rk_training_report_make(struct rk_training *training, struct rk_training_report *report,
                                       struct rk_error *error) {
    struct rk_rank_report mine = {0};
    struct rk_op_account *accounts = NULL;
    struct rk_training_report made = {.world = training->job->place.world,
                                      .first_step = training->first_step,
                                      .capacity_factor = training->candidate.capacity_factor};
    made.ranks = calloc((size_t)made.world, sizeof *made.ranks);
    if (made.ranks == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the reports of %lld ranks", (long long)made.world);
    enum rk_status status = report_own(training, &mine, &accounts, error);
    if (status == RK_OK)
        status = rk_job_all_gather(training->job, &mine, sizeof mine, made.ranks, error);
    if (status == RK_OK)
        status = gather_accounts(training, accounts, &made, error);
    free(accounts);
    if (status != RK_OK) {
        rk_training_report_free(&made);
        return status;
    }
    *report = made;
    return RK_OK;
}

void rk_training_report_free(struct rk_training_report *report) {
    for (int64_t rank = 0; report->accounts != NULL && rank < report->world; rank++)
        free(report->accounts[rank]);
    free(report->accounts);
    free(report->ranks);
    memset(report, 0, sizeof *report);
}

#include "executor/agreement.h"

#include <stdlib.h>

/* The text of the lowest rank that failed, told by all to all: failures are rare, so the size does not matter. */
static enum rk_status share_text(struct rk_job *job, int64_t failed, enum rk_status status, struct rk_error *error) {
    struct rk_error mine = {.status = status};
    if (status != RK_OK && error != NULL)
        mine = *error;
    struct rk_error *all = calloc((size_t)job->place.world, sizeof *all);
    if (all == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the answers of %lld ranks", (long long)job->place.world);
    enum rk_status agreed = rk_job_all_gather(job, &mine, sizeof mine, all, status == RK_OK ? error : NULL);
    if (agreed == RK_OK) {
        agreed = all[failed].status;
        all[failed].text[sizeof all[failed].text - 1] = '\0';
        if (failed != job->place.rank)
            rk_fail(error, agreed, "rank %lld: %s", (long long)failed, all[failed].text);
    }
    free(all);
    return agreed;
}

enum rk_status rk_job_agree(struct rk_job *job, enum rk_status status, struct rk_error *error) {
    int64_t mine = status, failed = -1;
    /* A rank that has lost a peer asks nobody: its exchange may stand elsewhere, and its end tells the others. */
    if (status == RK_RANK_FAILED)
        return status;
    int64_t *all = calloc((size_t)job->place.world, sizeof *all);
    if (all == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the answers of %lld ranks", (long long)job->place.world);
    enum rk_status gathered = rk_job_all_gather(job, &mine, sizeof mine, all, status == RK_OK ? error : NULL);
    for (int64_t rank = job->place.world - 1; rank >= 0 && gathered == RK_OK; rank--)
        failed = all[rank] != RK_OK ? rank : failed;
    free(all);
    if (gathered != RK_OK)
        return status == RK_OK ? gathered : status;
    return failed < 0 ? RK_OK : share_text(job, failed, status, error);
}

#include "executor/agreement.h"

#include <stdlib.h>
#include <string.h>

enum rk_status rk_job_agree(struct rk_job *job, enum rk_status status, struct rk_error *error) {
    struct rk_error mine = {.status = status};
    enum rk_status agreed = RK_OK;
    /* A rank that has lost a peer asks nobody: its exchange may stand elsewhere, and its end tells the others. */
    if (status == RK_RANK_FAILED)
        return status;
    if (status != RK_OK && error != NULL)
        mine = *error;
    struct rk_error *all = calloc((size_t)job->place.world, sizeof *all);
    if (all == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the answers of %lld ranks", (long long)job->place.world);
    enum rk_status gathered = rk_job_all_gather(job, &mine, sizeof mine, all, status == RK_OK ? error : NULL);
    if (gathered != RK_OK) {
        agreed = status == RK_OK ? gathered : status;
        goto free_all;
    }
    for (int64_t rank = 0; rank < job->place.world && agreed == RK_OK; rank++) {
        if (all[rank].status == RK_OK)
            continue;
        agreed = all[rank].status;
        all[rank].text[sizeof all[rank].text - 1] = '\0';
        if (rank != job->place.rank)
            rk_fail(error, agreed, "rank %lld: %s", (long long)rank, all[rank].text);
    }
free_all:
    free(all);
    return agreed;
}

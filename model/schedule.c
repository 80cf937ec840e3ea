#include "model/schedule.h"

/* The k-th forward (or backward) of every stage: micro-batches go through the virtual stages in groups of `pipeline`,
 * the backward through the virtual stages in reverse. */
static struct rk_chunk_visit nth_visit(int64_t pipeline, int64_t virtual_stages, int64_t k, bool backward) {
    int64_t in_group = k % (pipeline * virtual_stages);
    int64_t virtual_stage = in_group / pipeline;
    int64_t micro_batch = k / (pipeline * virtual_stages) * pipeline + in_group % pipeline;
    return (struct rk_chunk_visit){.backward = backward,
                                   .virtual_stage =
                                       (int32_t)(backward ? virtual_stages - 1 - virtual_stage : virtual_stage),
                                   .micro_batch = (int32_t)micro_batch};
}

enum rk_status rk_schedule_order(int32_t pipeline, int32_t virtual_stages, int64_t micro_batches, int32_t stage,
                                 struct rk_chunk_visit *visits, struct rk_error *error) {
    if (virtual_stages > 1 && micro_batches % pipeline != 0)
        return rk_fail(
            error, RK_USAGE,
            "%lld micro-batches with %d virtual stages: the number of micro-batches must be a multiple of PP "
            "(%d)",
            (long long)micro_batches, virtual_stages, pipeline);
    if (micro_batches > INT32_MAX / virtual_stages)
        return rk_fail(error, RK_USAGE, "%lld micro-batches per step are too many; enlarge the micro-batch",
                       (long long)micro_batches);
    int64_t total = micro_batches * virtual_stages, behind = pipeline - 1 - stage;
    int64_t warmup = virtual_stages == 1 ? behind : 2 * behind + (int64_t)(virtual_stages - 1) * pipeline;
    if (warmup > total)
        warmup = total;
    /* With one virtual stage any number of micro-batches is one group after another of a single one. */
    int64_t group = virtual_stages == 1 ? 1 : pipeline;
    for (int64_t k = 0; k < warmup; k++)
        *visits++ = nth_visit(group, virtual_stages, k, false);
    for (int64_t k = warmup; k < total; k++) {
        *visits++ = nth_visit(group, virtual_stages, k, false);
        *visits++ = nth_visit(group, virtual_stages, k - warmup, true);
    }
    for (int64_t k = total - warmup; k < total; k++)
        *visits++ = nth_visit(group, virtual_stages, k, true);
    return RK_OK;
}

static int32_t highest_live(const struct rk_chunk_visit *visits, int64_t count, int32_t virtual_stage) {
    int32_t live = 0, highest = 0;
    for (int64_t i = 0; i < count; i++) {
        if (virtual_stage >= 0 && visits[i].virtual_stage != virtual_stage)
            continue;
        live += visits[i].backward ? -1 : 1;
        if (live > highest)
            highest = live;
    }
    return highest;
}

int32_t rk_schedule_live(const struct rk_chunk_visit *visits, int64_t count, int32_t virtual_stage) {
    return highest_live(visits, count, virtual_stage);
}

int32_t rk_schedule_live_all(const struct rk_chunk_visit *visits, int64_t count) {
    return highest_live(visits, count, -1);
}

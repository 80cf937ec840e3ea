#include "model/search_internal.h"

#include <string.h>

enum { VIRTUAL_STAGES_TRIED = 4 };

static enum rk_status check_request(const struct rk_search_request *request, struct rk_error *error) {
    int64_t batch = request->global_batch_tokens;
    if (request->world < 1 || request->world > RK_RANKS_MAX)
        return rk_fail(error, RK_USAGE, "ranks: %lld is no number of ranks", (long long)request->world);
    if (request->sequence < 1 || request->sequence > RK_TOKENS_MAX || batch < 1 || batch > RK_GLOBAL_TOKENS_MAX)
        return rk_fail(error, RK_USAGE,
                       "sequence length %lld and global batch %lld must be positive, at most %lld and %lld",
                       (long long)request->sequence, (long long)batch, (long long)RK_TOKENS_MAX,
                       (long long)RK_GLOBAL_TOKENS_MAX);
    if (request->micro_batch_tokens > RK_TOKENS_MAX)
        return rk_fail(error, RK_USAGE, "micro-batch: %lld tokens, at most %lld",
                       (long long)request->micro_batch_tokens, (long long)RK_TOKENS_MAX);
    if (batch % request->sequence != 0)
        return rk_fail(error, RK_USAGE, "global batch: %lld tokens are not whole sequences of %lld; use %lld",
                       (long long)batch, (long long)request->sequence,
                       (long long)(batch < request->sequence ? request->sequence : batch - batch % request->sequence));
    if (request->pipeline > 0 && request->world % request->pipeline != 0)
        return rk_fail(error, RK_USAGE, "PP %d does not divide %lld ranks", request->pipeline,
                       (long long)request->world);
    if (request->micro_batch_tokens > 0 && request->micro_batch_tokens % request->sequence != 0)
        return rk_fail(error, RK_USAGE, "micro-batch: %lld tokens are not whole sequences of %lld",
                       (long long)request->micro_batch_tokens, (long long)request->sequence);
    if (request->offload_percent > 100 || request->recompute >= RK_RECOMPUTE_COUNT ||
        request->virtual_stages > RK_VIRTUAL_STAGES_MAX || request->pipeline > RK_STAGES_MAX)
        return rk_fail(error, RK_USAGE, "a fixed variable is out of range: offload %d %%, PP %d, %d virtual stages",
                       request->offload_percent, request->pipeline, request->virtual_stages);
    return RK_OK;
}

/* The divisors of a number up to a limit, ascending; the smallest when there are too many. */
static int32_t divisors(int64_t number, int64_t limit, int32_t *values) {
    int32_t count = 0;
    for (int64_t value = 1; value <= number && value <= limit && count < RK_AXIS_MAX; value++)
        if (number % value == 0)
            values[count++] = (int32_t)value;
    return count;
}

static int32_t one(int32_t value, int32_t *values) {
    values[0] = value;
    return 1;
}

static void micro_batches(const struct rk_search_request *request, struct rk_search_space *space) {
    if (request->micro_batch_tokens > 0) {
        space->micro_batch[0] = request->micro_batch_tokens;
        space->micro_batch_count = 1;
        return;
    }
    int32_t most = space->pipeline[space->pipeline_count - 1];
    int64_t ranks = request->world / most;
    int64_t limit = request->global_batch_tokens / ranks;
    for (int64_t tokens = request->sequence; space->micro_batch_count < RK_MICRO_BATCH_SIZES; tokens *= 2) {
        if (tokens > limit && space->micro_batch_count > 0)
            break;
        space->micro_batch[space->micro_batch_count++] = tokens;
    }
}

enum rk_status rk_search_space_make(const struct rk_search_request *request, struct rk_search_space *space,
                                    struct rk_error *error) {
    enum rk_status status = check_request(request, error);
    if (status != RK_OK)
        return status;
    const struct rk_architecture *architecture = request->architecture;
    struct rk_search_space made = {0};
    int64_t stages = architecture->layers < RK_STAGES_MAX ? architecture->layers : RK_STAGES_MAX;
    made.pipeline_count =
        request->pipeline > 0 ? one(request->pipeline, made.pipeline) : divisors(request->world, stages, made.pipeline);
    int64_t experts = architecture->moe_layers > 0 ? architecture->experts : 1;
    made.expert_count = request->expert_parallel > 0 ? one(request->expert_parallel, made.expert_parallel)
                                                     : divisors(request->world, experts, made.expert_parallel);
    bool stages_possible = made.pipeline[made.pipeline_count - 1] > 1;
    if (request->virtual_stages > 0)
        made.virtual_count = one(request->virtual_stages, made.virtual_stages);
    for (int32_t v = 1; request->virtual_stages <= 0 && v <= (stages_possible ? VIRTUAL_STAGES_TRIED : 1); v *= 2)
        made.virtual_stages[made.virtual_count++] = v;
    micro_batches(request, &made);
    for (int32_t policy = 0; policy < RK_RECOMPUTE_COUNT; policy++)
        if (request->recompute < 0 || request->recompute == policy)
            made.recompute[made.recompute_count++] = policy;
    if (request->offload_percent >= 0) {
        made.offload_count = one(request->offload_percent, made.offload);
    } else {
        static const int32_t grid[RK_OFFLOAD_GRID] = {0, 25, 50, 75, 100, -1};
        memcpy(made.offload, grid, sizeof grid);
        made.offload_count = RK_OFFLOAD_GRID;
    }
    *space = made;
    return RK_OK;
}

void rk_search_candidate(struct rk_searching *searching, const struct rk_search_index *index,
                         struct rk_candidate *candidate) {
    const struct rk_search_request *request = searching->request;
    const struct rk_search_space *space = &searching->space;
    int32_t percent = space->offload[index->offload];
    int32_t pipeline = space->pipeline[index->pipeline], experts = space->expert_parallel[index->expert];
    *candidate = (struct rk_candidate){
        .pipeline = pipeline,
        .virtual_stages = space->virtual_stages[index->virtual_stages],
        .expert_parallel = experts,
        .data_parallel = (int32_t)(request->world / pipeline),
        .micro_batch_tokens = space->micro_batch[index->micro_batch],
        .sequence = request->sequence,
        .global_batch_tokens = request->global_batch_tokens,
        .recompute = (enum rk_recompute)space->recompute[index->recompute],
        .offload_percent = percent < 0 ? 0 : percent,
        .type = request->type,
        .backend = request->machine->backend,
        .capacity_factor = searching->capacity_factor > 0 ? searching->capacity_factor : experts,
        .routing = request->routing,
    };
    rk_candidate_defaults(candidate);
    rk_candidate_even_chunks(request->architecture, candidate);
}

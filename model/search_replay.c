/* A candidate for real: its programs lowered, laid out and, for the best, played. */
#include "model/search_internal.h"

#include <math.h>
#include <stdlib.h>

struct replayed {
    struct rk_program *programs[RK_STAGES_MAX];
    int32_t stages;
};

static void free_programs(struct replayed *replayed) {
    for (int32_t s = 0; s < replayed->stages; s++)
        rk_program_free(replayed->programs[s]);
}

static enum rk_status lower_stages(struct rk_searching *searching, const struct rk_candidate *candidate,
                                   struct replayed *replayed) {
    enum rk_status status = RK_OK;
    replayed->stages = candidate->pipeline;
    for (int32_t s = 0; status == RK_OK && s < candidate->pipeline; s++)
        status =
            rk_program_lower(searching->request->architecture, candidate, s, &replayed->programs[s], searching->error);
    return status;
}

static void take_layout(const struct rk_memory_layout *layout, int32_t stage, struct rk_verdict *verdict) {
    if (layout->arena_bytes > verdict->bytes[1]) {
        verdict->bytes[0] = layout->persistent_bytes;
        verdict->bytes[1] = layout->arena_bytes;
        verdict->heaviest_stage = stage;
    }
    if (layout->host_bytes > verdict->host_bytes)
        verdict->host_bytes = layout->host_bytes;
}

static void judge_bytes(const struct rk_searching *searching, struct rk_verdict *verdict) {
    const struct rk_machine *machine = searching->request->machine;
    if (verdict->bytes[1] > searching->limit_bytes) {
        verdict->refusal = RK_REFUSAL_MEMORY;
        verdict->need = (double)verdict->bytes[1] / RK_GIB;
        verdict->have = (double)searching->limit_bytes / RK_GIB;
    } else if (verdict->host_bytes > machine->host_memory_bytes) {
        verdict->refusal = RK_REFUSAL_HOST_MEMORY;
        verdict->need = (double)verdict->host_bytes / RK_GIB;
        verdict->have = (double)machine->host_memory_bytes / RK_GIB;
    }
}

static enum rk_status lay_out(struct rk_searching *searching, const struct replayed *replayed,
                              struct rk_verdict *verdict) {
    verdict->bytes[0] = verdict->bytes[1] = verdict->host_bytes = 0;
    for (int32_t s = 0; s < replayed->stages; s++) {
        struct rk_memory_layout layout = {0};
        enum rk_status status = rk_memory_layout_make(replayed->programs[s], &layout, searching->error);
        if (status != RK_OK)
            return status;
        take_layout(&layout, s, verdict);
        rk_memory_layout_free(&layout);
    }
    verdict->exact = true;
    judge_bytes(searching, verdict);
    return RK_OK;
}

static int64_t count_ops(const struct replayed *replayed) {
    int64_t ops = 0;
    for (int32_t s = 0; s < replayed->stages; s++)
        for (size_t v = 0; v < replayed->programs[s]->visit_count; v++)
            ops += (int64_t)replayed->programs[s]->segments[replayed->programs[s]->schedule[v].segment].op_count;
    return ops;
}

static enum rk_status simulate(struct rk_searching *searching, const struct replayed *replayed,
                               struct rk_verdict *verdict, int64_t *ops) {
    struct rk_simulation simulation;
    enum rk_status status =
        rk_simulate((const struct rk_program *const *)replayed->programs, searching->request->machine,
                    &searching->costs, false, &simulation, searching->error);
    if (status != RK_OK)
        return status;
    verdict->seconds = simulation.step_seconds;
    verdict->low = simulation.low;
    verdict->high = simulation.high;
    verdict->simulated = true;
    *ops += count_ops(replayed);
    rk_simulation_free(&simulation);
    return RK_OK;
}

enum rk_status rk_search_replay(struct rk_searching *searching, bool with_simulation, struct rk_verdict *verdict,
                                int64_t *ops) {
    struct rk_candidate candidate;
    struct replayed replayed = {0};
    rk_search_verdict_candidate(searching, verdict, &candidate);
    enum rk_status status = lower_stages(searching, &candidate, &replayed);
    if (status == RK_OK)
        status = lay_out(searching, &replayed, verdict);
    if (status == RK_OK && with_simulation && verdict->refusal == RK_REFUSAL_NONE)
        status = simulate(searching, &replayed, verdict, ops);
    free_programs(&replayed);
    return status;
}

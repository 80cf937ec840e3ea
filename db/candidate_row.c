/* A plan's head and a judged candidate as rows. */
#include "base/clock.h"
#include "base/version.h"
#include "db/plan_store.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

void rk_plan_row_make(const struct rk_plan *plan, struct rk_plan_row *row) {
    const struct rk_candidate *candidate = &plan->candidate;
    *row = (struct rk_plan_row){
        .created_us = (int64_t)(rk_clock_wall() * 1e6),
        .campaign_id = plan->calibration,
        .ranks = rk_candidate_world(candidate),
        .sequence_tokens = candidate->sequence,
        .global_batch_tokens = candidate->global_batch_tokens,
        .considered = plan->candidates,
        .refused = plan->candidates - plan->feasible,
        .predicted_seconds = plan->seconds,
        .predicted_low_seconds = plan->low,
        .predicted_high_seconds = plan->high,
        .predicted_tokens_per_second =
            plan->seconds > 0 ? (double)candidate->global_batch_tokens / plan->seconds : (double)NAN,
        .predicted_peak_bytes = -1,
    };
    for (int32_t stage = 0; stage < candidate->pipeline; stage++)
        if (plan->arena_bytes[stage] > row->predicted_peak_bytes)
            row->predicted_peak_bytes = plan->arena_bytes[stage];
    snprintf(row->reckon, sizeof row->reckon, "%s", rk_version());
    snprintf(row->git_revision, sizeof row->git_revision, "%s", rk_revision());
    snprintf(row->model, sizeof row->model, "%s", plan->architecture.name);
    snprintf(row->hardware, sizeof row->hardware, "%s", plan->machine);
}

static void label_candidate(const struct rk_candidate *candidate, char *label, size_t size) {
    char interleaved[24] = "";
    if (candidate->virtual_stages > 1)
        snprintf(interleaved, sizeof(interleaved), " x %" PRId32 " virtual", candidate->virtual_stages);
    snprintf(label, size,
             "PP %" PRId32 "%s, EP %" PRId32 ", D %" PRId32 ", T %" PRId64 ", recompute %s, offload %" PRId32 " %%",
             candidate->pipeline, interleaved, candidate->expert_parallel, candidate->data_parallel,
             candidate->micro_batch_tokens, rk_recompute_name(candidate->recompute), candidate->offload_percent);
}

/* The variables that the search decides; the layers per chunk only where they are uneven. */
static void describe_candidate(const struct rk_candidate *candidate, char *settings, size_t size) {
    struct rk_text text = {0};
    rk_text_format(&text,
                   "{\"pp\":%" PRId32 ",\"virtual_stages\":%" PRId32 ",\"ep_mp\":%" PRId32 ",\"ep_dp\":%" PRId32
                   ",\"d\":%" PRId32 ",\"micro_batch_tokens\":%" PRId64
                   ",\"recompute\":\"%s\",\"offload_percent\":%" PRId32 ",\"type\":\"%s\",\"capacity_factor\":%.17g",
                   candidate->pipeline, candidate->virtual_stages, candidate->expert_parallel,
                   candidate->expert_parallel > 0 ? candidate->data_parallel / candidate->expert_parallel : 0,
                   candidate->data_parallel, candidate->micro_batch_tokens, rk_recompute_name(candidate->recompute),
                   candidate->offload_percent, rk_data_type_name(candidate->type), candidate->capacity_factor);
    int chunks = candidate->pipeline * candidate->virtual_stages;
    if (chunks > 0 && chunks <= 64) {
        rk_text_add(&text, ",\"chunk_layers\":[");
        for (int i = 0; i < chunks; i++) {
            rk_text_format(&text, "%s%d", i == 0 ? "" : ",", candidate->chunk_layers[i]);
        }
        rk_text_add(&text, "]");
    }
    rk_text_add(&text, "}");
    bool fits = !text.failed && text.length < size;
    snprintf(settings, size, "%s", fits ? text.data : "{}");
    rk_text_free(&text);
}

char *rk_candidate_row_reason(const struct rk_candidate_row *row, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "%s", row->reason);
    if (row->reason[0] == '\0')
        return text;
    if (used < size && row->unit[0] != '\0')
        used +=
            (size_t)snprintf(text + used, size - used, ": need %.4g, have %.4g %s", row->need, row->have, row->unit);
    if (used < size && row->remedy[0] != '\0')
        snprintf(text + used, size - used, "; %s", row->remedy);
    return text;
}

void rk_candidate_row_make(const struct rk_judgement *judgement, int64_t ordinal, bool chosen,
                           struct rk_candidate_row *row) {
    bool refused = judgement->refusal != RK_REFUSAL_NONE;
    bool counted = refused && rk_refusal_unit(judgement->refusal)[0] != '\0';
    *row = (struct rk_candidate_row){.ordinal = ordinal,
                                     .need = counted ? judgement->need : (double)NAN,
                                     .have = counted ? judgement->have : (double)NAN,
                                     .simulated = judgement->simulated,
                                     .seconds = judgement->seconds > 0 ? judgement->seconds : (double)NAN,
                                     .low_seconds = judgement->seconds > 0 ? judgement->low : (double)NAN,
                                     .high_seconds = judgement->seconds > 0 ? judgement->high : (double)NAN,
                                     .peak_bytes = judgement->arena_bytes[1] > 0 ? judgement->arena_bytes[1] : -1};
    label_candidate(&judgement->candidate, row->label, sizeof(row->label));
    describe_candidate(&judgement->candidate, row->settings, sizeof(row->settings));
    snprintf(row->verdict, sizeof(row->verdict), "%s", refused ? "refused" : chosen ? "chosen" : "feasible");
    snprintf(row->reason, sizeof(row->reason), "%s", refused ? rk_refusal_name(judgement->refusal) : "");
    snprintf(row->unit, sizeof(row->unit), "%s", refused ? rk_refusal_unit(judgement->refusal) : "");
    snprintf(row->remedy, sizeof(row->remedy), "%s", judgement->remedy);
}

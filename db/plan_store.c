#include "db/plan_store.h"
#include "db/internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void label_candidate(const struct rk_candidate *candidate, char *label, size_t size)
{
    snprintf(label, size,
             "PP %" PRId32 "%s, EP %" PRId32 ", D %" PRId32 ", T %" PRId64 ", recompute %s, offload %" PRId32 " %%",
             candidate->pipeline, candidate->virtual_stages > 1 ? " interleaved" : "", candidate->expert_parallel,
             candidate->data_parallel, candidate->micro_batch_tokens, rk_recompute_name(candidate->recompute),
             candidate->offload_percent);
}

/* The variables that the search decides; the layers per chunk only where they are uneven. */
static void describe_candidate(const struct rk_candidate *candidate, char *settings, size_t size)
{
    struct rk_text text = {0};
    rk_text_format(&text,
                   "{\"pp\":%" PRId32 ",\"virtual_stages\":%" PRId32 ",\"ep_mp\":%" PRId32 ",\"ep_dp\":%" PRId32
                   ",\"d\":%" PRId32 ",\"micro_batch_tokens\":%" PRId64 ",\"recompute\":\"%s\",\"offload_percent\":%" PRId32
                   ",\"type\":\"%s\",\"capacity_factor\":%.17g",
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

void rk_candidate_row_make(const struct rk_judgement *judgement, int64_t ordinal, bool chosen,
                           struct rk_candidate_row *row)
{
    bool refused = judgement->refusal != RK_REFUSAL_NONE;
    *row = (struct rk_candidate_row){.ordinal = ordinal,
                                     .need = refused ? judgement->need : (double)NAN,
                                     .have = refused ? judgement->have : (double)NAN,
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

static enum rk_status insert_plan(struct rk_db *db, const struct rk_plan_row *row, const char *document, int64_t *id,
                                  struct rk_error *error)
{
    static const char sql[] =
        "INSERT INTO plan (uuid, created_us, campaign_id, reckon, git_revision, model, hardware, ranks, sequence_tokens,"
        " global_batch_tokens, considered, refused, predicted_seconds, predicted_low_seconds, predicted_high_seconds,"
        " predicted_tokens_per_second, predicted_peak_bytes, document)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    char uuid[RK_UUID_SIZE];
    struct rk_query query;
    enum rk_status status = RK_OK;
    snprintf(uuid, sizeof(uuid), "%s", row->uuid);
    if (uuid[0] == '\0') {
        status = rk_uuid_make(uuid, error);
    }
    if (status == RK_OK) {
        status = rk_query_open(db, sql, "storing a plan", &query, error);
    }
    if (status != RK_OK) {
        return status;
    }
    rk_bind_text(&query, uuid);
    rk_bind_integer(&query, row->created_us);
    rk_bind_reference(&query, row->campaign_id);
    rk_bind_text(&query, row->reckon);
    rk_bind_text(&query, row->git_revision);
    rk_bind_text(&query, row->model);
    rk_bind_text(&query, row->hardware);
    rk_bind_integer(&query, row->ranks);
    rk_bind_integer(&query, row->sequence_tokens);
    rk_bind_integer(&query, row->global_batch_tokens);
    rk_bind_integer(&query, row->considered);
    rk_bind_integer(&query, row->refused);
    rk_bind_real(&query, row->predicted_seconds);
    rk_bind_real(&query, row->predicted_low_seconds);
    rk_bind_real(&query, row->predicted_high_seconds);
    rk_bind_real(&query, row->predicted_tokens_per_second);
    rk_bind_known(&query, row->predicted_peak_bytes);
    rk_bind_text(&query, document);
    status = rk_query_run(&query, error);
    rk_query_close(&query);
    if (status == RK_OK) {
        *id = rk_db_last_id(db);
    }
    return status;
}

static enum rk_status insert_candidate(struct rk_db *db, int64_t plan_id, const struct rk_candidate_row *row,
                                       struct rk_error *error)
{
    static const char sql[] = "INSERT INTO candidate (plan_id, ordinal, label, settings, verdict, reason, need, have,"
                              " unit, remedy, simulated, seconds, low_seconds, high_seconds, peak_bytes)"
                              " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    struct rk_query query;
    enum rk_status status = rk_query_open(db, sql, "storing a candidate", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, plan_id);
    rk_bind_integer(&query, row->ordinal);
    rk_bind_text(&query, row->label);
    rk_bind_text(&query, row->settings);
    rk_bind_text(&query, row->verdict);
    rk_bind_text(&query, row->reason);
    rk_bind_real(&query, row->need);
    rk_bind_real(&query, row->have);
    rk_bind_text(&query, row->unit);
    rk_bind_text(&query, row->remedy);
    rk_bind_integer(&query, row->simulated);
    rk_bind_real(&query, row->seconds);
    rk_bind_real(&query, row->low_seconds);
    rk_bind_real(&query, row->high_seconds);
    rk_bind_known(&query, row->peak_bytes);
    status = rk_query_run(&query, error);
    rk_query_close(&query);
    return status;
}

static enum rk_status insert_term(struct rk_db *db, int64_t plan_id, const struct rk_term_row *row,
                                  struct rk_error *error)
{
    static const char sql[] = "INSERT INTO term_source (plan_id, ordinal, term, family, phase, count, seconds,"
                              " relative_uncertainty, origin, source) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    struct rk_query query;
    enum rk_status status = rk_query_open(db, sql, "storing the source of a term", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, plan_id);
    rk_bind_integer(&query, row->ordinal);
    rk_bind_text(&query, row->term);
    rk_bind_text(&query, row->family);
    rk_bind_text(&query, row->phase);
    rk_bind_integer(&query, row->count);
    rk_bind_real(&query, row->seconds);
    rk_bind_real(&query, row->relative_uncertainty);
    rk_bind_text(&query, rk_origin_name(row->origin));
    rk_bind_text(&query, row->source);
    status = rk_query_run(&query, error);
    rk_query_close(&query);
    return status;
}

static enum rk_status check_candidates(struct rk_db *db, const struct rk_candidate_row *candidates, size_t count,
                                       struct rk_error *error)
{
    size_t chosen = 0;
    for (size_t i = 0; i < count; i++) {
        chosen += strcmp(candidates[i].verdict, "chosen") == 0 ? 1 : 0;
    }
    if (chosen > 1) {
        return rk_fail(error, RK_USAGE, "%s: a plan with %zu chosen candidates cannot be stored", db->path, chosen);
    }
    return RK_OK;
}

enum rk_status rk_plan_store(struct rk_db *db, const struct rk_plan_row *row, const char *document,
                             const struct rk_candidate_row *candidates, size_t candidate_count,
                             const struct rk_term_row *terms, size_t term_count, int64_t *id, struct rk_error *error)
{
    int64_t inserted = 0;
    enum rk_status status = check_candidates(db, candidates, candidate_count, error);
    if (status == RK_OK) {
        status = rk_db_begin(db, error);
    }
    if (status != RK_OK) {
        return status;
    }
    status = insert_plan(db, row, document, &inserted, error);
    for (size_t i = 0; status == RK_OK && i < candidate_count; i++) {
        status = insert_candidate(db, inserted, &candidates[i], error);
    }
    for (size_t i = 0; status == RK_OK && i < term_count; i++) {
        status = insert_term(db, inserted, &terms[i], error);
    }
    status = rk_db_end(db, status, error);
    if (status == RK_OK && id != NULL) {
        *id = inserted;
    }
    return status;
}

enum rk_status rk_plan_find(struct rk_db *db, const char *document, int64_t *id, struct rk_error *error)
{
    struct rk_query query;
    bool found = false;
    enum rk_status status = rk_query_open(db, "SELECT id FROM plan WHERE document = ? ORDER BY id DESC LIMIT 1",
                                          "looking for a plan", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_text(&query, document);
    status = rk_query_next(&query, &found, error);
    if (status == RK_OK) {
        *id = found ? rk_read_integer(&query) : 0;
    }
    rk_query_close(&query);
    return status;
}

enum rk_status rk_plan_find_or_store(struct rk_db *db, const struct rk_plan_row *row, const char *document, int64_t *id,
                                     struct rk_error *error)
{
    int64_t found = 0;
    enum rk_status status = rk_plan_find(db, document, &found, error);
    if (status == RK_OK && found != 0) {
        *id = found;
        return RK_OK;
    }
    return status == RK_OK ? rk_plan_store(db, row, document, NULL, 0, NULL, 0, id, error) : status;
}

#define PLAN_COLUMNS                                                                                                   \
    "id, uuid, created_us, campaign_id, reckon, git_revision, model, hardware, ranks, sequence_tokens,"               \
    " global_batch_tokens, considered, refused, predicted_seconds, predicted_low_seconds, predicted_high_seconds,"    \
    " predicted_tokens_per_second, predicted_peak_bytes"

static bool read_plan(struct rk_query *query, void *place)
{
    struct rk_plan_row *row = place;
    row->id = rk_read_integer(query);
    rk_read_text(query, row->uuid, sizeof(row->uuid));
    row->created_us = rk_read_integer(query);
    row->campaign_id = rk_read_reference(query);
    rk_read_text(query, row->reckon, sizeof(row->reckon));
    rk_read_text(query, row->git_revision, sizeof(row->git_revision));
    rk_read_text(query, row->model, sizeof(row->model));
    rk_read_text(query, row->hardware, sizeof(row->hardware));
    row->ranks = rk_read_integer(query);
    row->sequence_tokens = rk_read_integer(query);
    row->global_batch_tokens = rk_read_integer(query);
    row->considered = rk_read_integer(query);
    row->refused = rk_read_integer(query);
    row->predicted_seconds = rk_read_real(query);
    row->predicted_low_seconds = rk_read_real(query);
    row->predicted_high_seconds = rk_read_real(query);
    row->predicted_tokens_per_second = rk_read_real(query);
    row->predicted_peak_bytes = rk_read_known(query);
    return true;
}

enum rk_status rk_plan_get(struct rk_db *db, int64_t id, struct rk_plan_row *row, struct rk_error *error)
{
    struct rk_query query;
    enum rk_status status =
        rk_query_open(db, "SELECT " PLAN_COLUMNS " FROM plan WHERE id = ?", "reading a plan", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, id);
    status = rk_query_only(&query, "plan", id, error);
    if (status == RK_OK) {
        read_plan(&query, row);
        rk_query_close(&query);
    }
    return status;
}

enum rk_status rk_plan_document(struct rk_db *db, int64_t id, char **document, struct rk_error *error)
{
    struct rk_query query;
    enum rk_status status =
        rk_query_open(db, "SELECT document FROM plan WHERE id = ?", "reading a plan's text", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, id);
    status = rk_query_only(&query, "plan", id, error);
    if (status != RK_OK) {
        return status;
    }
    char *copy = rk_read_text_copy(&query);
    rk_query_close(&query);
    if (copy == NULL) {
        return rk_fail(error, RK_ERROR, "%s: out of memory while reading a plan's text", db->path);
    }
    *document = copy;
    return RK_OK;
}

enum rk_status rk_plan_list(struct rk_db *db, struct rk_plan_row **rows, size_t *count, struct rk_error *error)
{
    struct rk_query query;
    void *found = NULL;
    enum rk_status status = rk_query_open(db, "SELECT " PLAN_COLUMNS " FROM plan ORDER BY created_us DESC, id DESC",
                                          "listing plans", &query, error);
    if (status == RK_OK) {
        status = rk_query_list(&query, sizeof(**rows), read_plan, &found, count, error);
    }
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

static bool read_candidate(struct rk_query *query, void *place)
{
    struct rk_candidate_row *row = place;
    row->ordinal = rk_read_integer(query);
    rk_read_text(query, row->label, sizeof(row->label));
    rk_read_text(query, row->settings, sizeof(row->settings));
    rk_read_text(query, row->verdict, sizeof(row->verdict));
    rk_read_text(query, row->reason, sizeof(row->reason));
    row->need = rk_read_real(query);
    row->have = rk_read_real(query);
    rk_read_text(query, row->unit, sizeof(row->unit));
    rk_read_text(query, row->remedy, sizeof(row->remedy));
    row->simulated = rk_read_integer(query) != 0;
    row->seconds = rk_read_real(query);
    row->low_seconds = rk_read_real(query);
    row->high_seconds = rk_read_real(query);
    row->peak_bytes = rk_read_known(query);
    return true;
}

enum rk_status rk_candidate_list(struct rk_db *db, int64_t plan_id, struct rk_candidate_row **rows, size_t *count,
                                 struct rk_error *error)
{
    static const char sql[] = "SELECT ordinal, label, settings, verdict, reason, need, have, unit, remedy, simulated,"
                              " seconds, low_seconds, high_seconds, peak_bytes FROM candidate WHERE plan_id = ?"
                              " ORDER BY ordinal";
    void *found = NULL;
    enum rk_status status = rk_query_children(db, sql, "listing candidates", plan_id, sizeof(**rows), read_candidate,
                                              &found, count, error);
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

static bool read_term(struct rk_query *query, void *place)
{
    struct rk_term_row *row = place;
    char origin[32];
    row->ordinal = rk_read_integer(query);
    rk_read_text(query, row->term, sizeof(row->term));
    rk_read_text(query, row->family, sizeof(row->family));
    rk_read_text(query, row->phase, sizeof(row->phase));
    row->count = rk_read_integer(query);
    row->seconds = rk_read_real(query);
    row->relative_uncertainty = rk_read_real(query);
    rk_read_text(query, origin, sizeof(origin));
    row->origin = rk_origin_from_name(origin);
    rk_read_text(query, row->source, sizeof(row->source));
    return true;
}

enum rk_status rk_term_list(struct rk_db *db, int64_t plan_id, struct rk_term_row **rows, size_t *count,
                            struct rk_error *error)
{
    static const char sql[] = "SELECT ordinal, term, family, phase, count, seconds, relative_uncertainty, origin, source"
                              " FROM term_source WHERE plan_id = ? ORDER BY ordinal";
    void *found = NULL;
    enum rk_status status =
        rk_query_children(db, sql, "listing terms", plan_id, sizeof(**rows), read_term, &found, count, error);
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

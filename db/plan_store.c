#include "db/plan_store.h"
#include "base/json.h"
#include "db/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum rk_status insert_plan(struct rk_db *db, const struct rk_plan_row *row, const char *document, int64_t *id,
                                  struct rk_error *error) {
    static const char sql[] =
        "INSERT INTO plan (uuid, created_us, campaign_id, reckon, git_revision, model, hardware, ranks, "
        "sequence_tokens,"
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
    return rk_query_insert(&query, id, error);
}

static enum rk_status insert_candidate(struct rk_db *db, int64_t plan_id, const struct rk_candidate_row *row,
                                       struct rk_error *error) {
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
    return rk_query_insert(&query, NULL, error);
}

static enum rk_status insert_term(struct rk_db *db, int64_t plan_id, const struct rk_term_row *row,
                                  struct rk_error *error) {
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
    return rk_query_insert(&query, NULL, error);
}

static enum rk_status check_json(const char *what, const char *text, struct rk_error *error) {
    cJSON *root = NULL;
    enum rk_status status = rk_json_parse(what, text, strlen(text), &root, error);
    cJSON_Delete(root);
    return status;
}

static enum rk_status check_candidates(struct rk_db *db, const struct rk_candidate_row *candidates, size_t count,
                                       struct rk_error *error) {
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
                             const struct rk_term_row *terms, size_t term_count, int64_t *id, struct rk_error *error) {
    int64_t inserted = 0;
    enum rk_status status = check_json("plan.json", document, error);
    if (status == RK_OK) {
        status = check_candidates(db, candidates, candidate_count, error);
    }
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

enum rk_status rk_plan_find(struct rk_db *db, const char *document, int64_t *id, struct rk_error *error) {
    struct rk_query query;
    enum rk_status status = rk_query_open(db, "SELECT id FROM plan WHERE document = ? ORDER BY id DESC LIMIT 1",
                                          "looking for a plan", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_text(&query, document);
    return rk_query_find(&query, id, error);
}

enum rk_status rk_plan_find_or_store(struct rk_db *db, const struct rk_plan_row *row, const char *document, int64_t *id,
                                     struct rk_error *error) {
    int64_t found = 0;
    enum rk_status status = rk_plan_find(db, document, &found, error);
    if (status == RK_OK && found != 0) {
        *id = found;
        return RK_OK;
    }
    return status == RK_OK ? rk_plan_store(db, row, document, NULL, 0, NULL, 0, id, error) : status;
}

#define PLAN_COLUMNS                                                                                                   \
    "id, uuid, created_us, campaign_id, reckon, git_revision, model, hardware, ranks, sequence_tokens,"                \
    " global_batch_tokens, considered, refused, predicted_seconds, predicted_low_seconds, predicted_high_seconds,"     \
    " predicted_tokens_per_second, predicted_peak_bytes"

static bool read_plan(struct rk_query *query, void *place) {
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

enum rk_status rk_plan_get(struct rk_db *db, int64_t id, struct rk_plan_row *row, struct rk_error *error) {
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

enum rk_status rk_plan_document(struct rk_db *db, int64_t id, char **document, struct rk_error *error) {
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

enum rk_status rk_plan_list(struct rk_db *db, struct rk_plan_row **rows, size_t *count, struct rk_error *error) {
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

static bool read_candidate(struct rk_query *query, void *place) {
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
                                 struct rk_error *error) {
    static const char sql[] = "SELECT ordinal, label, settings, verdict, reason, need, have, unit, remedy, simulated,"
                              " seconds, low_seconds, high_seconds, peak_bytes FROM candidate WHERE plan_id = ?"
                              " ORDER BY ordinal";
    void *found = NULL;
    enum rk_status status =
        rk_query_children(db, sql, "listing candidates", plan_id, sizeof(**rows), read_candidate, &found, count, error);
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

static bool read_term(struct rk_query *query, void *place) {
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
                            struct rk_error *error) {
    static const char sql[] =
        "SELECT ordinal, term, family, phase, count, seconds, relative_uncertainty, origin, source"
        " FROM term_source WHERE plan_id = ? ORDER BY ordinal";
    void *found = NULL;
    enum rk_status status =
        rk_query_children(db, sql, "listing terms", plan_id, sizeof(**rows), read_term, &found, count, error);
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

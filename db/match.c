/* The match ladder: which stored measurements hold for the machine that asks. */
#include "db/calibration.h"
#include "db/columns.h"
#include "db/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What there is on one step of the ladder, forced and unforced apart. */
struct rung {
    int64_t newest[2]; /* campaign, [0] of a fit machine, [1] forced */
    int64_t campaigns[2];
};

enum { RUNG_CAMPAIGN, RUNG_FINGERPRINT, RUNG_MACHINE, RUNG_ANY, RUNG_COUNT };

/* A campaign counts when Reckon measured something in it; an interrupted one counts with what it has. */
#define USABLE                                                                                                         \
    " k.origin = 'measured' AND EXISTS (SELECT 1 FROM measurement m WHERE m.campaign_id = k.id AND m.status = 'ok')"
#define COUNT_SQL "SELECT k.forced_unfit, count(*), max(k.id) FROM campaign k WHERE"
#define ROWS_SQL                                                                                                       \
    "SELECT " RK_CASE_COLUMNS ", m.id, m.campaign_id, m.process, m.median_seconds, m.low_seconds,"                     \
    " m.high_seconds, m.flops, m.bytes FROM campaign k JOIN measurement m ON m.campaign_id = k.id"                     \
    " JOIN bench_case c ON c.id = m.bench_case_id WHERE m.status = 'ok' AND k.forced_unfit = ? AND"
#define ROWS_ORDER " ORDER BY c.id, k.id DESC, m.id"

/* One place for the four conditions: parameters are bound by bind_rung. */
static const char *const count_sql[RUNG_COUNT] = {
    COUNT_SQL " k.id = ? AND EXISTS (SELECT 1 FROM measurement m WHERE m.campaign_id = k.id AND m.status = 'ok')"
              " GROUP BY k.forced_unfit",
    COUNT_SQL " k.fingerprint = ? AND k.backend = ? AND" USABLE " GROUP BY k.forced_unfit",
    COUNT_SQL " k.machine_key = ? AND k.backend = ? AND" USABLE " GROUP BY k.forced_unfit",
    COUNT_SQL " k.state = 'finished' AND k.backend = ? AND" USABLE " GROUP BY k.forced_unfit"};
static const char *const rows_sql[RUNG_COUNT] = {
    ROWS_SQL " k.id = ?" ROWS_ORDER,
    ROWS_SQL " k.origin = 'measured' AND k.fingerprint = ? AND k.backend = ?" ROWS_ORDER,
    ROWS_SQL " k.origin = 'measured' AND k.machine_key = ? AND k.backend = ?" ROWS_ORDER,
    ROWS_SQL " k.id = ?" ROWS_ORDER};

static void bind_rung(struct rk_query *query, const struct rk_match_request *request, int rung) {
    if (rung == RUNG_CAMPAIGN) {
        rk_bind_integer(query, request->campaign_id);
    } else if (rung == RUNG_FINGERPRINT) {
        rk_bind_text(query, request->fingerprint);
    } else if (rung == RUNG_MACHINE) {
        rk_bind_text(query, request->machine_key);
    }
    if (rung != RUNG_CAMPAIGN) {
        rk_bind_text(query, request->backend);
    }
}

static enum rk_status look(struct rk_db *db, const struct rk_match_request *request, int rung, struct rung *found,
                           struct rk_error *error) {
    struct rk_query query;
    bool more = false;
    *found = (struct rung){{0, 0}, {0, 0}};
    enum rk_status status = rk_query_open(db, count_sql[rung], "looking for a calibration", &query, error);
    if (status != RK_OK) {
        return status;
    }
    bind_rung(&query, request, rung);
    while ((status = rk_query_next(&query, &more, error)) == RK_OK && more) {
        int forced = rk_read_integer(&query) != 0;
        found->campaigns[forced] = rk_read_integer(&query);
        found->newest[forced] = rk_read_integer(&query);
    }
    rk_query_close(&query);
    return status;
}

static void read_row(struct rk_query *query, struct rk_matched_row *row) {
    rk_read_case(query, &row->bench_case);
    row->measurement_id = rk_read_integer(query);
    row->campaign_id = rk_read_integer(query);
    row->process = rk_read_integer(query);
    row->median_seconds = rk_read_real(query);
    row->low_seconds = rk_read_real(query);
    row->high_seconds = rk_read_real(query);
    row->flops = rk_read_real(query);
    row->bytes = rk_read_real(query);
}

/* The rows come by case, newest campaign first; the older campaigns of a case are passed over. */
static enum rk_status read_rows(struct rk_db *db, const struct rk_match_request *request, int rung,
                                struct rk_match *match, struct rk_error *error) {
    struct rk_query query;
    struct rk_rows found = {0};
    bool more = false;
    enum rk_status status = rk_query_open(db, rows_sql[rung], "reading a calibration", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, match->forced_unfit);
    if (rung == RUNG_ANY) {
        rk_bind_integer(&query, match->campaign_id);
    } else {
        bind_rung(&query, request, rung);
    }
    while ((status = rk_query_next(&query, &more, error)) == RK_OK && more) {
        struct rk_matched_row row;
        read_row(&query, &row);
        const struct rk_matched_row *last =
            found.count == 0 ? NULL : (const struct rk_matched_row *)found.data + found.count - 1;
        if (last != NULL && last->bench_case.id == row.bench_case.id && last->campaign_id != row.campaign_id) {
            continue;
        }
        struct rk_matched_row *place = rk_rows_add(&found, sizeof(*place));
        if (place == NULL) {
            status = rk_fail(error, RK_ERROR, "%s: out of memory", db->path);
            break;
        }
        *place = row;
    }
    rk_query_close(&query);
    if (status != RK_OK) {
        free(found.data);
        return status;
    }
    match->rows = found.data;
    match->count = found.count;
    return RK_OK;
}

static enum rk_status describe_other_software(struct rk_db *db, struct rk_match *match, struct rk_text *text,
                                              struct rk_error *error) {
    struct rk_campaign_row campaign;
    struct rk_software_row software;
    enum rk_status status = rk_campaign_get(db, match->campaign_id, &campaign, error);
    if (status == RK_OK) {
        status = rk_software_get(db, campaign.software_id, &software, error);
    }
    if (status == RK_OK) {
        rk_text_format(
            text,
            "calibration %" PRId64 " was measured on this hardware with other software (reckon %s, driver %s,"
            " CUDA %s, NCCL %s, BLAS %s): intervals are widened; run `reckon calibrate` for figures of now. ",
            match->campaign_id, software.reckon, software.driver, software.cuda, software.nccl, software.blas);
    }
    return status;
}

static enum rk_status warn(struct rk_db *db, const struct rk_match_request *request, struct rk_match *match,
                           struct rk_error *error) {
    struct rk_text text = {0};
    enum rk_status status = RK_OK;
    if (match->level == RK_MATCH_OTHER_SOFTWARE) {
        status = describe_other_software(db, match, &text, error);
    } else if (match->level == RK_MATCH_TRANSFERRED) {
        rk_text_format(&text, "calibration %" PRId64 " was measured on other hardware%s: every figure is transferred. ",
                       match->campaign_id, request->campaign_id != 0 ? " than this machine" : "");
    }
    if (match->forced_unfit) {
        rk_text_format(&text, "calibration %" PRId64 " was forced on a machine that the check calls unfit. ",
                       match->campaign_id);
    }
    if (text.length > 0) {
        snprintf(match->warning, sizeof(match->warning), "%.*s", (int)(text.length - 1), text.data);
    }
    rk_text_free(&text);
    return status;
}

/* The campaign that was asked for by number: its level says how near its machine is. */
static enum rk_status level_of_campaign(struct rk_db *db, const struct rk_match_request *request,
                                        struct rk_match *match, struct rk_error *error) {
    struct rk_campaign_row campaign;
    enum rk_status status = rk_campaign_get(db, request->campaign_id, &campaign, error);
    if (status != RK_OK) {
        return status;
    }
    bool same = request->fingerprint[0] == '\0' || strcmp(campaign.fingerprint, request->fingerprint) == 0;
    bool hardware = strcmp(campaign.machine_key, request->machine_key) == 0;
    match->level = same ? RK_MATCH_SAME : hardware ? RK_MATCH_OTHER_SOFTWARE : RK_MATCH_TRANSFERRED;
    return RK_OK;
}

static enum rk_status refuse(struct rk_db *db, const struct rk_match_request *request, const struct rung *any,
                             struct rk_error *error) {
    if (request->campaign_id != 0) {
        return rk_fail(error, RK_UNCALIBRATED,
                       "%s: campaign %" PRId64 " holds no sound measurement; `reckon db list` shows others", db->path,
                       request->campaign_id);
    }
    int64_t others = any->campaigns[0] + any->campaigns[1];
    if (others > 0) {
        return rk_fail(error, RK_UNCALIBRATED,
                       "%s: no calibration of this machine (%s back end), though %" PRId64
                       " of other hardware; run `reckon calibrate`, or plan with --transfer to take those",
                       db->path, request->backend, others);
    }
    return rk_fail(error, RK_UNCALIBRATED, "%s: no calibration of this machine (%s back end); run `reckon calibrate`",
                   db->path, request->backend);
}

enum rk_status rk_match_find(struct rk_db *db, const struct rk_match_request *request, struct rk_match *match,
                             struct rk_error *error) {
    static const enum rk_match_level levels[RUNG_COUNT] = {RK_MATCH_SAME, RK_MATCH_SAME, RK_MATCH_OTHER_SOFTWARE,
                                                           RK_MATCH_TRANSFERRED};
    int first = request->campaign_id != 0 ? RUNG_CAMPAIGN : RUNG_FINGERPRINT;
    int last = request->campaign_id != 0 ? RUNG_CAMPAIGN : RUNG_ANY;
    struct rung found = {{0, 0}, {0, 0}};
    int rung = first;
    enum rk_status status = look(db, request, rung, &found, error);
    while (status == RK_OK && found.campaigns[0] + found.campaigns[1] == 0 && rung < last) {
        status = look(db, request, ++rung, &found, error);
    }
    if (status != RK_OK) {
        return status;
    }
    if (found.campaigns[0] + found.campaigns[1] == 0 || (rung == RUNG_ANY && !request->allow_other_hardware)) {
        return refuse(db, request, &found, error);
    }
    bool forced = found.campaigns[0] == 0;
    struct rk_match result = {.level = levels[rung],
                              .campaign_id = found.newest[forced],
                              .campaigns = rung == RUNG_ANY ? 1 : found.campaigns[forced],
                              .forced_unfit = forced};
    if (rung == RUNG_CAMPAIGN) {
        status = level_of_campaign(db, request, &result, error);
    }
    if (status == RK_OK) {
        status = warn(db, request, &result, error);
    }
    if (status == RK_OK) {
        status = read_rows(db, request, rung, &result, error);
    }
    if (status == RK_OK) {
        *match = result;
    }
    return status;
}

void rk_match_free(struct rk_match *match) {
    free(match->rows);
    *match = (struct rk_match){0};
}

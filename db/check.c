/* `reckon db check`: damage that SQLite finds, and broken promises that only Reckon knows. */
#include "base/statistics.h"
#include "db/calibration.h"
#include "db/internal.h"
#include "db/schema.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FINDINGS_PER_RULE = 20 };

struct check {
    struct rk_db *db;
    struct rk_text *findings;
    int64_t count;
};

/* A promise: sql selects the rows that break it, an identifying text in the first column. */
struct rule {
    const char *sql;
    const char *finding; /* after the identifying text */
};

static const struct rule rules[] = {
    {"SELECT 'measurement ' || m.id FROM measurement m JOIN sample s ON s.measurement_id = m.id"
     " WHERE NOT (m.low_seconds <= m.median_seconds AND m.median_seconds <= m.high_seconds)",
     "the median lies outside its own interval"},
    {"SELECT 'measurement ' || m.id FROM measurement m JOIN sample s ON s.measurement_id = m.id"
     " WHERE m.throttled > s.count",
     "more throttled samples than samples"},
    {"SELECT 'measurement ' || m.id FROM measurement m JOIN campaign k ON k.id = m.campaign_id"
     " WHERE m.status = 'ok' AND k.origin = 'measured' AND NOT EXISTS"
     " (SELECT 1 FROM sample s WHERE s.measurement_id = m.id)",
     "measured, but its raw samples are missing"},
    {"SELECT 'campaign ' || id FROM campaign WHERE ended_us < started_us", "ended before it began"},
    {"SELECT 'fit ' || f.id FROM fit f WHERE f.train_count <>"
     " (SELECT count(*) FROM fit_input i WHERE i.fit_id = f.id AND i.role = 'train')",
     "its number of inputs is not that of its rows"},
    {"SELECT 'plan ' || plan_id FROM candidate WHERE verdict = 'chosen' GROUP BY plan_id HAVING count(*) > 1",
     "more than one candidate is chosen"},
    {"SELECT 'plan ' || p.id FROM plan p WHERE p.refused > p.considered OR p.refused <"
     " (SELECT count(*) FROM candidate c WHERE c.plan_id = p.id AND c.verdict = 'refused')",
     "its count of refused candidates cannot be right"},
    {"SELECT 'candidate ' || plan_id || '/' || ordinal FROM candidate WHERE verdict <> 'refused' AND"
     " (seconds IS NULL OR seconds <= 0)",
     "feasible, but without a predicted time"},
    {"SELECT 'plan ' || id FROM plan WHERE NOT json_valid(document)", "its document is not JSON"},
    {"SELECT 'candidate ' || plan_id || '/' || ordinal FROM candidate WHERE NOT json_valid(settings)",
     "its settings are not JSON"},
    {"SELECT 'fit ' || id FROM fit WHERE NOT json_valid(parameters)", "its parameters are not JSON"},
    {"SELECT 'run ' || run_id FROM run_step GROUP BY run_id HAVING max(step) - min(step) + 1 <> count(*)",
     "steps are missing"},
    {"SELECT 'run ' || run_id || ' step ' || step FROM run_step WHERE dropped_routes > routes",
     "more routes dropped than routed"},
    {"SELECT 'run ' || id FROM run WHERE ended_us < started_us", "ended before it began"},
};

static void add(struct check *check, const char *where, const char *what) {
    rk_text_format(check->findings, "%s: %s\n", where, what);
    check->count++;
}

static enum rk_status check_rule(struct check *check, const struct rule *rule, struct rk_error *error) {
    struct rk_query query;
    bool more = false;
    char where[128];
    enum rk_status status = rk_query_open_text(check->db, rule->sql, "checking it", &query, error);
    int64_t found = 0;
    while (status == RK_OK && (status = rk_query_next(&query, &more, error)) == RK_OK && more) {
        if (found++ < FINDINGS_PER_RULE) {
            rk_read_text(&query, where, sizeof(where));
            add(check, where, rule->finding);
        }
    }
    rk_query_close(&query);
    if (status == RK_OK && found > FINDINGS_PER_RULE) {
        check->count += found - FINDINGS_PER_RULE;
        rk_text_format(check->findings, "... and %" PRId64 " more of these\n", found - FINDINGS_PER_RULE);
    }
    return status;
}

/* Damage is what is looked for here: an error of the query is a finding too. */
static void check_integrity(struct check *check) {
    struct rk_query query;
    struct rk_error failure = {RK_OK, ""};
    bool more = false;
    char text[512];
    enum rk_status status =
        rk_query_open_text(check->db, "PRAGMA integrity_check(20)", "checking its pages", &query, &failure);
    while (status == RK_OK && (status = rk_query_next(&query, &more, &failure)) == RK_OK && more) {
        rk_read_text(&query, text, sizeof(text));
        if (strcmp(text, "ok") != 0) {
            add(check, "damage", text);
        }
    }
    rk_query_close(&query);
    if (status != RK_OK) {
        add(check, "damage", failure.text);
    }
}

static enum rk_status check_foreign_keys(struct check *check, struct rk_error *error) {
    struct rk_query query;
    bool more = false;
    enum rk_status status =
        rk_query_open_text(check->db, "PRAGMA foreign_key_check", "checking references", &query, error);
    int64_t found = 0;
    while (status == RK_OK && (status = rk_query_next(&query, &more, error)) == RK_OK && more) {
        char table[64];
        char parent[64];
        char what[128];
        rk_read_text(&query, table, sizeof(table));
        rk_read_integer(&query);
        rk_read_text(&query, parent, sizeof(parent));
        snprintf(what, sizeof(what), "a row refers to a row of %s that is not there", parent);
        if (found++ < FINDINGS_PER_RULE) {
            add(check, table, what);
        }
    }
    rk_query_close(&query);
    return status;
}

/* The medians and ranges of the rows must be those of their samples. */
static enum rk_status check_samples(struct check *check, struct rk_error *error) {
    static const char sql[] = "SELECT m.id, m.median_seconds, m.minimum_seconds, m.maximum_seconds FROM measurement m"
                              " JOIN sample s ON s.measurement_id = m.id ORDER BY m.id";
    struct rk_query query;
    bool more = false;
    enum rk_status status = rk_query_open_text(check->db, sql, "checking samples", &query, error);
    while (status == RK_OK && (status = rk_query_next(&query, &more, error)) == RK_OK && more) {
        int64_t id = rk_read_integer(&query);
        double stored[3];
        for (int i = 0; i < 3; i++) {
            stored[i] = rk_read_real(&query);
        }
        double *samples = NULL;
        bool *throttled = NULL;
        size_t count = 0;
        status = rk_sample_get(check->db, id, &samples, &throttled, &count, error);
        if (status == RK_OK && count > 0) {
            rk_statistics_sort(samples, count);
            double found[3] = {rk_statistics_median_sorted(samples, count), samples[0], samples[count - 1]};
            for (int i = 0; i < 3; i++) {
                static const char *const names[] = {"median", "minimum", "maximum"};
                if (!isnan(stored[i]) && fabs(stored[i] - found[i]) > 1e-9 * found[i]) {
                    char where[64];
                    char what[160];
                    snprintf(where, sizeof(where), "measurement %" PRId64, id);
                    snprintf(what, sizeof(what), "the %s is %.9g s, that of its samples is %.9g s", names[i], stored[i],
                             found[i]);
                    add(check, where, what);
                }
            }
        }
        free(samples);
        free(throttled);
    }
    rk_query_close(&query);
    return status;
}

enum rk_status rk_db_check(struct rk_db *db, struct rk_text *findings, int64_t *count, struct rk_error *error) {
    struct check check = {db, findings, 0};
    check_integrity(&check);
    enum rk_status status = RK_OK;
    if (check.count == 0) {
        status = check_foreign_keys(&check, error);
        for (size_t i = 0; status == RK_OK && i < sizeof(rules) / sizeof(rules[0]); i++) {
            status = check_rule(&check, &rules[i], error);
        }
        if (status == RK_OK) {
            status = check_samples(&check, error);
        }
    }
    if (status == RK_OK && findings->failed) {
        status = rk_fail(error, RK_ERROR, "%s: out of memory while checking it", db->path);
    }
    if (status == RK_OK) {
        *count = check.count;
    }
    return status;
}

enum rk_status rk_db_table_sizes(struct rk_db *db, struct rk_db_table_size **tables, size_t *count,
                                 struct rk_error *error) {
    struct rk_db_table_size *sizes = calloc(rk_db_table_count, sizeof(*sizes));
    if (sizes == NULL) {
        return rk_fail(error, RK_ERROR, "%s: out of memory", db->path);
    }
    enum rk_status status = RK_OK;
    for (size_t i = 0; status == RK_OK && i < rk_db_table_count; i++) {
        char sql[96];
        snprintf(sql, sizeof(sql), "SELECT count(*) FROM %s", rk_db_tables[i].name);
        sizes[i].name = rk_db_tables[i].name;
        status = rk_db_integer(db, sql, "counting rows", &sizes[i].rows, error);
    }
    if (status != RK_OK) {
        free(sizes);
        return status;
    }
    *tables = sizes;
    *count = rk_db_table_count;
    return RK_OK;
}

/* Cases, measurements and their samples. */
#include "db/calibration.h"
#include "db/columns.h"
#include "db/internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rk_case_from_shape(const struct rk_op_shape *shape, const struct rk_cost_place *place, const char *operands,
                        const char *mode, struct rk_case_row *row) {
    *row = (struct rk_case_row){.flags = shape->flags,
                                .group_size = place->group_size,
                                .crosses_hosts = place->crosses_hosts,
                                .concurrent_ranks = place->concurrent,
                                .row_share = place->row_share};
    snprintf(row->op, sizeof(row->op), "%s", rk_op_name(shape->kind));
    snprintf(row->type, sizeof(row->type), "%s", rk_data_type_name(shape->type));
    snprintf(row->group_kind, sizeof(row->group_kind), "%s", rk_group_name(shape->group));
    snprintf(row->operands, sizeof(row->operands), "%s", operands);
    snprintf(row->mode, sizeof(row->mode), "%s", mode);
    memcpy(row->dim, shape->dim, sizeof(row->dim));
}

static bool find_type(const char *name, enum rk_data_type *type) {
    for (int i = 0; i < RK_DATA_TYPE_COUNT; i++) {
        if (strcmp(rk_data_type_name((enum rk_data_type)i), name) == 0) {
            *type = (enum rk_data_type)i;
            return true;
        }
    }
    return false;
}

static bool find_group(const char *name, enum rk_group_kind *group) {
    for (int i = 0; i < RK_GROUP_COUNT; i++) {
        if (strcmp(rk_group_name((enum rk_group_kind)i), name) == 0) {
            *group = (enum rk_group_kind)i;
            return true;
        }
    }
    return false;
}

bool rk_case_to_shape(const struct rk_case_row *row, struct rk_op_shape *shape, struct rk_cost_place *place) {
    struct rk_op_shape found = {.kind = rk_op_from_name(row->op), .flags = (uint32_t)row->flags};
    if (found.kind == RK_OP_KIND_COUNT || row->flags < 0 || row->flags > UINT32_MAX || row->group_size > INT32_MAX ||
        row->concurrent_ranks > INT32_MAX || !find_type(row->type, &found.type) ||
        !find_group(row->group_kind, &found.group)) {
        return false;
    }
    memcpy(found.dim, row->dim, sizeof(found.dim));
    *shape = found;
    *place = (struct rk_cost_place){.group_size = (int32_t)row->group_size,
                                    .crosses_hosts = row->crosses_hosts,
                                    .concurrent = (int32_t)row->concurrent_ranks,
                                    .row_share = row->row_share};
    return true;
}

static void bind_case(struct rk_query *query, const struct rk_case_row *row) {
    rk_bind_text(query, row->op);
    rk_bind_text(query, row->type);
    rk_bind_integer(query, row->flags);
    for (int i = 0; i < RK_OP_DIMS; i++) {
        rk_bind_integer(query, row->dim[i]);
    }
    rk_bind_text(query, row->group_kind);
    rk_bind_integer(query, row->group_size);
    rk_bind_integer(query, row->crosses_hosts);
    rk_bind_integer(query, row->concurrent_ranks);
    rk_bind_real(query, row->row_share);
    rk_bind_text(query, row->operands);
    rk_bind_text(query, row->mode);
    rk_bind_text(query, row->partner);
}

void rk_read_case(struct rk_query *query, struct rk_case_row *row) {
    row->id = rk_read_integer(query);
    rk_read_text(query, row->op, sizeof(row->op));
    rk_read_text(query, row->type, sizeof(row->type));
    row->flags = rk_read_integer(query);
    for (int i = 0; i < RK_OP_DIMS; i++) {
        row->dim[i] = rk_read_integer(query);
    }
    rk_read_text(query, row->group_kind, sizeof(row->group_kind));
    row->group_size = rk_read_integer(query);
    row->crosses_hosts = rk_read_integer(query) != 0;
    row->concurrent_ranks = rk_read_integer(query);
    row->row_share = rk_read_real(query);
    rk_read_text(query, row->operands, sizeof(row->operands));
    rk_read_text(query, row->mode, sizeof(row->mode));
    rk_read_text(query, row->partner, sizeof(row->partner));
}

static enum rk_status find_case(struct rk_db *db, const struct rk_case_row *row, int64_t *id, struct rk_error *error) {
    static const char sql[] =
        "SELECT id FROM bench_case WHERE op = ? AND type = ? AND flags = ? AND dim0 = ? AND dim1 = ? AND dim2 = ? AND"
        " dim3 = ? AND dim4 = ? AND dim5 = ? AND dim6 = ? AND dim7 = ? AND group_kind = ? AND group_size = ? AND"
        " crosses_hosts = ? AND concurrent_ranks = ? AND row_share = ? AND operands = ? AND mode = ? AND partner = ?";
    struct rk_query query;
    enum rk_status status = rk_query_open(db, sql, "looking for a case", &query, error);
    if (status != RK_OK) {
        return status;
    }
    bind_case(&query, row);
    return rk_query_find(&query, id, error);
}

enum rk_status rk_case_store(struct rk_db *db, const struct rk_case_row *row, int64_t *id, struct rk_error *error) {
    static const char sql[] = "INSERT INTO bench_case (op, type, flags, dim0, dim1, dim2, dim3, dim4, dim5, dim6, dim7,"
                              " group_kind, group_size, crosses_hosts, concurrent_ranks, row_share, operands, mode,"
                              " partner) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    int64_t found = 0;
    enum rk_status status = rk_db_require_writable(db, error);
    if (status == RK_OK) {
        status = find_case(db, row, &found, error);
    }
    if (status != RK_OK || found != 0) {
        *id = found != 0 ? found : *id;
        return status;
    }
    struct rk_query query;
    status = rk_query_open(db, sql, "storing a case", &query, error);
    if (status != RK_OK) {
        return status;
    }
    bind_case(&query, row);
    return rk_query_insert(&query, id, error);
}

struct rk_measurement_row rk_measurement_empty(void) {
    return (struct rk_measurement_row){.status = "ok",
                                       .stop_reason = "interval",
                                       .batch = 1,
                                       .workspace_bytes = -1,
                                       .median_seconds = NAN,
                                       .low_seconds = NAN,
                                       .high_seconds = NAN,
                                       .minimum_seconds = NAN,
                                       .maximum_seconds = NAN,
                                       .flops = NAN,
                                       .bytes = NAN,
                                       .remote_bytes = NAN,
                                       .largest_error = NAN,
                                       .clock_hz = NAN,
                                       .power_watts = NAN,
                                       .temperature_celsius = NAN,
                                       .library_estimate_seconds = NAN};
}

static enum rk_status insert_measurement(struct rk_db *db, const struct rk_measurement_row *row, int64_t *id,
                                         struct rk_error *error) {
    static const char sql[] =
        "INSERT INTO measurement (campaign_id, bench_case_id, process, status, message, stop_reason,"
        " started_us, median_seconds, low_seconds, high_seconds, minimum_seconds, maximum_seconds, batch, flops, bytes,"
        " remote_bytes, largest_error, throttled, clock_hz, power_watts, temperature_celsius,"
        " library_estimate_seconds, algorithm, workspace_bytes)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    struct rk_query query;
    enum rk_status status = rk_query_open(db, sql, "storing a measurement", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, row->campaign_id);
    rk_bind_integer(&query, row->case_id);
    rk_bind_integer(&query, row->process);
    rk_bind_text(&query, row->status);
    rk_bind_text(&query, row->message);
    rk_bind_text(&query, row->stop_reason);
    rk_bind_integer(&query, row->started_us);
    rk_bind_real(&query, row->median_seconds);
    rk_bind_real(&query, row->low_seconds);
    rk_bind_real(&query, row->high_seconds);
    rk_bind_real(&query, row->minimum_seconds);
    rk_bind_real(&query, row->maximum_seconds);
    rk_bind_integer(&query, row->batch);
    rk_bind_real(&query, row->flops);
    rk_bind_real(&query, row->bytes);
    rk_bind_real(&query, row->remote_bytes);
    rk_bind_real(&query, row->largest_error);
    rk_bind_integer(&query, row->throttled);
    rk_bind_real(&query, row->clock_hz);
    rk_bind_real(&query, row->power_watts);
    rk_bind_real(&query, row->temperature_celsius);
    rk_bind_real(&query, row->library_estimate_seconds);
    rk_bind_text(&query, row->algorithm);
    rk_bind_known(&query, row->workspace_bytes);
    return rk_query_insert(&query, id, error);
}

void rk_pack_seconds(const double *values, size_t count, unsigned char *bytes) {
    for (size_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        for (unsigned int byte = 0; byte < 8; byte++) {
            bytes[8 * i + byte] = (unsigned char)(bits >> (8 * byte));
        }
    }
}

void rk_unpack_seconds(const unsigned char *bytes, size_t count, double *values) {
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        for (unsigned int byte = 0; byte < 8; byte++) {
            bits |= (uint64_t)bytes[8 * i + byte] << (8 * byte);
        }
        memcpy(&values[i], &bits, sizeof(bits));
    }
}

enum rk_status rk_sample_store(struct rk_db *db, int64_t measurement_id, const double *samples, const bool *throttled,
                               size_t count, struct rk_error *error) {
    struct rk_query query;
    size_t flag_bytes = (count + 7) / 8;
    unsigned char *packed = malloc(8 * count + flag_bytes);
    if (packed == NULL) {
        return rk_fail(error, RK_ERROR, "%s: out of memory for %zu samples", db->path, count);
    }
    unsigned char *flags = packed + 8 * count;
    rk_pack_seconds(samples, count, packed);
    memset(flags, 0, flag_bytes);
    for (size_t i = 0; throttled != NULL && i < count; i++) {
        flags[i / 8] = (unsigned char)(flags[i / 8] | (throttled[i] ? 1U << (i % 8) : 0U));
    }
    enum rk_status status =
        rk_query_open(db, "INSERT INTO sample (measurement_id, count, seconds, throttled) VALUES (?, ?, ?, ?)",
                      "storing samples", &query, error);
    if (status == RK_OK) {
        rk_bind_integer(&query, measurement_id);
        rk_bind_integer(&query, (int64_t)count);
        rk_bind_blob(&query, packed, 8 * count);
        rk_bind_blob(&query, throttled == NULL ? NULL : flags, throttled == NULL ? 0 : flag_bytes);
        status = rk_query_run(&query, error);
        rk_query_close(&query);
    }
    free(packed);
    return status;
}

enum rk_status rk_measurement_store(struct rk_db *db, const struct rk_measurement_row *row, const double *samples,
                                    const bool *throttled, size_t sample_count, int64_t *id, struct rk_error *error) {
    for (size_t i = 0; i < sample_count; i++) {
        if (!isfinite(samples[i]) || samples[i] < 0) {
            return rk_fail(error, RK_USAGE,
                           "%s: sample %zu of a measurement is %g s; times are finite and not negative", db->path, i,
                           samples[i]);
        }
    }
    int64_t inserted = 0;
    enum rk_status status = rk_db_begin(db, error);
    if (status != RK_OK) {
        return status;
    }
    status = insert_measurement(db, row, &inserted, error);
    if (status == RK_OK && sample_count > 0) {
        status = rk_sample_store(db, inserted, samples, throttled, sample_count, error);
    }
    status = rk_db_end(db, status, error);
    if (status == RK_OK && id != NULL) {
        *id = inserted;
    }
    return status;
}

static enum rk_status unpack_row(struct rk_db *db, int64_t measurement_id, struct rk_query *query, double **samples,
                                 bool **throttled, size_t *count, struct rk_error *error) {
    size_t number = (size_t)sqlite3_column_int64(query->statement, 0);
    const unsigned char *seconds = sqlite3_column_blob(query->statement, 1);
    const unsigned char *flags = sqlite3_column_blob(query->statement, 2);
    if (seconds == NULL || (size_t)sqlite3_column_bytes(query->statement, 1) != 8 * number ||
        (flags != NULL && (size_t)sqlite3_column_bytes(query->statement, 2) != (number + 7) / 8)) {
        return rk_fail(error, RK_DATABASE, "%s: damaged: the samples of measurement %" PRId64 " have the wrong length",
                       db->path, measurement_id);
    }
    double *values = malloc(number * sizeof(*values));
    bool *marks = calloc(number, sizeof(*marks));
    if (values == NULL || marks == NULL) {
        free(values);
        free(marks);
        return rk_fail(error, RK_ERROR, "%s: out of memory for %zu samples", db->path, number);
    }
    rk_unpack_seconds(seconds, number, values);
    for (size_t i = 0; flags != NULL && i < number; i++) {
        marks[i] = (flags[i / 8] >> (i % 8) & 1) != 0;
    }
    *samples = values;
    *throttled = marks;
    *count = number;
    return RK_OK;
}

enum rk_status rk_sample_get(struct rk_db *db, int64_t measurement_id, double **samples, bool **throttled,
                             size_t *count, struct rk_error *error) {
    struct rk_query query;
    bool found = false;
    enum rk_status status = rk_query_open(db, "SELECT count, seconds, throttled FROM sample WHERE measurement_id = ?",
                                          "reading samples", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, measurement_id);
    status = rk_query_next(&query, &found, error);
    if (status == RK_OK && found) {
        status = unpack_row(db, measurement_id, &query, samples, throttled, count, error);
    } else if (status == RK_OK) {
        *samples = NULL;
        *throttled = NULL;
        *count = 0;
    }
    rk_query_close(&query);
    return status;
}

static bool read_id(struct rk_query *query, void *row) {
    *(int64_t *)row = rk_read_integer(query);
    return true;
}

enum rk_status rk_campaign_done_cases(struct rk_db *db, int64_t campaign_id, int64_t process, int64_t **ids,
                                      size_t *count, struct rk_error *error) {
    struct rk_query query;
    void *found = NULL;
    enum rk_status status = rk_query_open(db,
                                          "SELECT DISTINCT bench_case_id FROM measurement WHERE campaign_id = ? AND"
                                          " process = ? AND status <> 'failed' ORDER BY bench_case_id",
                                          "listing the cases that are done", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, campaign_id);
    rk_bind_integer(&query, process);
    status = rk_query_list(&query, sizeof(**ids), read_id, &found, count, error);
    if (status == RK_OK) {
        *ids = found;
    }
    return status;
}

static void read_measurement(struct rk_query *query, struct rk_measurement_row *row) {
    row->id = rk_read_integer(query);
    row->campaign_id = rk_read_integer(query);
    row->case_id = rk_read_integer(query);
    row->process = rk_read_integer(query);
    rk_read_text(query, row->status, sizeof(row->status));
    rk_read_text(query, row->message, sizeof(row->message));
    rk_read_text(query, row->stop_reason, sizeof(row->stop_reason));
    row->started_us = rk_read_integer(query);
    double *const reals[] = {&row->median_seconds, &row->low_seconds, &row->high_seconds, &row->minimum_seconds,
                             &row->maximum_seconds};
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++) {
        *reals[i] = rk_read_real(query);
    }
    row->batch = rk_read_integer(query);
    row->flops = rk_read_real(query);
    row->bytes = rk_read_real(query);
    row->remote_bytes = rk_read_real(query);
    row->largest_error = rk_read_real(query);
    row->throttled = rk_read_integer(query);
    row->clock_hz = rk_read_real(query);
    row->power_watts = rk_read_real(query);
    row->temperature_celsius = rk_read_real(query);
    row->library_estimate_seconds = rk_read_real(query);
    rk_read_text(query, row->algorithm, sizeof(row->algorithm));
    row->workspace_bytes = rk_read_known(query);
    row->sample_count = rk_read_integer(query);
}

static bool read_measured_case(struct rk_query *query, void *row) {
    struct rk_measured_case *measured = row;
    rk_read_case(query, &measured->bench_case);
    read_measurement(query, &measured->measurement);
    return true;
}

enum rk_status rk_measurement_list(struct rk_db *db, int64_t campaign_id, struct rk_measured_case **rows, size_t *count,
                                   struct rk_error *error) {
    static const char sql[] =
        "SELECT " RK_CASE_COLUMNS ", m.id, m.campaign_id, m.bench_case_id, m.process, m.status, m.message,"
        " m.stop_reason, m.started_us, m.median_seconds, m.low_seconds, m.high_seconds, m.minimum_seconds,"
        " m.maximum_seconds, m.batch, m.flops, m.bytes, m.remote_bytes, m.largest_error, m.throttled, m.clock_hz,"
        " m.power_watts, m.temperature_celsius, m.library_estimate_seconds, m.algorithm, m.workspace_bytes,"
        " coalesce(s.count, 0) FROM measurement m JOIN bench_case c ON c.id = m.bench_case_id"
        " LEFT JOIN sample s ON s.measurement_id = m.id WHERE m.campaign_id = ? ORDER BY m.id";
    void *found = NULL;
    enum rk_status status = rk_query_children(db, sql, "listing measurements", campaign_id, sizeof(**rows),
                                              read_measured_case, &found, count, error);
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

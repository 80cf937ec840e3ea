/* Export: JSONL to a sink, CSV into a folder. One read transaction, so that all tables are of one moment. */
#include "base/atomic_file.h"
#include "base/json.h"
#include "db/calibration.h"
#include "db/columns.h"
#include "db/exchange_internal.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FLUSH_BYTES = 1 << 16, LARGEST_EXACT_INTEGER_LOG2 = 53 };

/* The writers of the two formats. */
struct exporter {
    struct rk_db *db;
    const struct rk_export_sink *sink;
    bool csv;
    struct rk_text text;             /* what was not written yet */
    struct rk_table_columns columns; /* of the table under way */
    int64_t rows[32];                /* written, by table */
};

static enum rk_status flush(struct exporter *exporter, size_t limit, struct rk_error *error) {
    if (exporter->text.failed) {
        return rk_fail(error, RK_ERROR, "%s: out of memory while exporting", exporter->db->path);
    }
    if (exporter->text.length <= limit) {
        return RK_OK;
    }
    enum rk_status status =
        exporter->sink->write(exporter->sink->context, exporter->text.data, exporter->text.length, error);
    exporter->text.length = 0;
    return status;
}

/* The fewest digits that read back to the same double. */
static void add_real(struct rk_text *text, double value, bool quote) {
    if (isinf(value)) {
        rk_text_format(text, quote ? "\"%sInfinity\"" : "%sInfinity", value < 0 ? "-" : "");
        return;
    }
    char digits[32];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof(digits), "%.*g", precision, value);
        if (strtod(digits, NULL) == value) {
            break;
        }
    }
    rk_text_add(text, digits);
}

static void add_csv_text(struct rk_text *text, const char *value) {
    if (value[0] != '\0' && strpbrk(value, ",\"\r\n") == NULL) {
        rk_text_add(text, value);
        return;
    }
    rk_text_add(text, "\"");
    for (const char *byte = value; *byte != '\0'; byte++) {
        rk_text_add_bytes(text, *byte == '"' ? "\"\"" : byte, *byte == '"' ? 2 : 1);
    }
    rk_text_add(text, "\"");
}

static void add_value(struct exporter *exporter, sqlite3_stmt *statement, int column) {
    struct rk_text *text = &exporter->text;
    switch (sqlite3_column_type(statement, column)) {
    case SQLITE_INTEGER: {
        int64_t value = sqlite3_column_int64(statement, column);
        bool exact =
            value <= INT64_C(1) << LARGEST_EXACT_INTEGER_LOG2 && value >= -(INT64_C(1) << LARGEST_EXACT_INTEGER_LOG2);
        rk_text_format(text, exporter->csv || exact ? "%" PRId64 : "\"%" PRId64 "\"", value);
        break;
    }
    case SQLITE_FLOAT:
        add_real(text, sqlite3_column_double(statement, column), !exporter->csv);
        break;
    case SQLITE_TEXT: {
        const char *value = (const char *)sqlite3_column_text(statement, column);
        if (exporter->csv) {
            add_csv_text(text, value);
        } else {
            rk_json_add_quoted(text, value);
        }
        break;
    }
    default:
        rk_text_add(text, exporter->csv ? "" : "null");
    }
}

static void add_row(struct exporter *exporter, sqlite3_stmt *statement) {
    const struct rk_table_columns *columns = &exporter->columns;
    struct rk_text *text = &exporter->text;
    if (!exporter->csv) {
        rk_text_format(text, "{\"table\":\"%s\",\"row\":{", columns->table->name);
    }
    for (int i = 0; i < columns->count; i++) {
        rk_text_add(text, i == 0 ? "" : ",");
        if (!exporter->csv) {
            rk_text_format(text, "\"%s\":", columns->column[i].name);
        }
        add_value(exporter, statement, i);
    }
    rk_text_add(text, exporter->csv ? "\n" : "}}\n");
}

static void add_samples_jsonl(struct rk_text *text, int64_t id, const double *seconds, const bool *throttled,
                              size_t count) {
    rk_text_format(text, "{\"table\":\"sample\",\"row\":{\"measurement_id\":%" PRId64 ",\"seconds\":[", id);
    for (size_t i = 0; i < count; i++) {
        rk_text_add(text, i == 0 ? "" : ",");
        add_real(text, seconds[i], true);
    }
    rk_text_add(text, throttled == NULL ? "],\"throttled\":null}}\n" : "],\"throttled\":[");
    for (size_t i = 0; throttled != NULL && i < count; i++) {
        rk_text_format(text, "%s%d", i == 0 ? "" : ",", throttled[i]);
    }
    rk_text_add(text, throttled == NULL ? "" : "]}}\n");
}

/* An empty last field where the measurement marked nothing at all. */
static void add_samples_csv(struct rk_text *text, int64_t id, const double *seconds, const bool *throttled,
                            size_t count) {
    for (size_t i = 0; i < count; i++) {
        rk_text_format(text, "%" PRId64 ",%zu,", id, i);
        add_real(text, seconds[i], false);
        rk_text_add(text, throttled == NULL ? ",\n" : throttled[i] ? ",1\n" : ",0\n");
    }
}

static enum rk_status add_samples(struct exporter *exporter, sqlite3_stmt *statement, struct rk_error *error) {
    int64_t id = sqlite3_column_int64(statement, 0);
    bool marked = sqlite3_column_type(statement, 3) != SQLITE_NULL;
    double *seconds = NULL;
    bool *throttled = NULL;
    size_t count = 0;
    enum rk_status status = rk_sample_get(exporter->db, id, &seconds, &throttled, &count, error);
    if (status != RK_OK) {
        return status;
    }
    if (exporter->csv) {
        add_samples_csv(&exporter->text, id, seconds, marked ? throttled : NULL, count);
    } else {
        add_samples_jsonl(&exporter->text, id, seconds, marked ? throttled : NULL, count);
    }
    free(seconds);
    free(throttled);
    return RK_OK;
}

static void add_csv_header(struct exporter *exporter) {
    const struct rk_table_columns *columns = &exporter->columns;
    if (rk_is_sample_table(columns->table)) {
        rk_text_add(&exporter->text, RK_SAMPLE_CSV_HEADER "\n");
        return;
    }
    for (int i = 0; i < columns->count; i++) {
        rk_text_format(&exporter->text, "%s%s", i == 0 ? "" : ",", columns->column[i].name);
    }
    rk_text_add(&exporter->text, "\n");
}

static enum rk_status export_table(struct exporter *exporter, size_t table, struct rk_error *error) {
    struct rk_query query;
    char sql[96];
    bool more = false;
    bool samples = rk_is_sample_table(&rk_db_tables[table]);
    enum rk_status status = rk_table_columns_read(exporter->db, table, &exporter->columns, error);
    if (status != RK_OK) {
        return status;
    }
    if (exporter->csv) {
        add_csv_header(exporter);
    }
    snprintf(sql, sizeof(sql), "SELECT * FROM %s ORDER BY %s", rk_db_tables[table].name, rk_db_tables[table].order);
    status = rk_query_open_text(exporter->db, sql, "exporting", &query, error);
    while (status == RK_OK && (status = rk_query_next(&query, &more, error)) == RK_OK && more) {
        if (samples) {
            status = add_samples(exporter, query.statement, error);
        } else {
            add_row(exporter, query.statement);
        }
        exporter->rows[table]++;
        if (status == RK_OK) {
            status = flush(exporter, FLUSH_BYTES, error);
        }
    }
    rk_query_close(&query);
    return status;
}

static void add_counts(struct exporter *exporter) {
    for (size_t i = 0; i < rk_db_table_count; i++) {
        rk_text_format(&exporter->text, "%s\"%s\":%" PRId64, i == 0 ? "" : ",", rk_db_tables[i].name,
                       exporter->rows[i]);
    }
}

enum rk_status rk_db_export_jsonl(struct rk_db *db, const struct rk_export_sink *sink, struct rk_error *error) {
    struct exporter exporter = {.db = db, .sink = sink};
    rk_text_format(&exporter.text, "{\"reckon_export\":%d,\"schema_version\":%" PRId64 "}\n", RK_EXCHANGE_VERSION,
                   db->version);
    enum rk_status status = rk_db_execute(db, "SAVEPOINT export", "exporting", error);
    if (status != RK_OK) {
        goto free_text;
    }
    for (size_t i = 0; status == RK_OK && i < rk_db_table_count; i++) {
        status = export_table(&exporter, i, error);
    }
    rk_db_execute(db, "RELEASE export", "exporting", NULL);
    if (status == RK_OK) {
        rk_text_add(&exporter.text, "{\"end\":true,\"rows\":{");
        add_counts(&exporter);
        rk_text_add(&exporter.text, "}}\n");
        status = flush(&exporter, 0, error);
    }
free_text:
    rk_text_free(&exporter.text);
    return status;
}

static enum rk_status write_file(void *context, const void *data, size_t length, struct rk_error *error) {
    return rk_atomic_file_write(context, data, length, error);
}

/* One file of the folder; whole or not there. */
static enum rk_status export_csv_file(struct exporter *exporter, const char *folder, size_t table,
                                      struct rk_error *error) {
    struct rk_text path = {0};
    struct rk_atomic_file file;
    struct rk_export_sink sink = {write_file, &file};
    bool manifest = table == rk_db_table_count;
    rk_text_format(&path, "%s/%s", folder, manifest ? "manifest.json" : rk_db_tables[table].name);
    rk_text_add(&path, manifest ? "" : ".csv");
    if (path.failed) {
        return rk_fail(error, RK_ERROR, "%s: out of memory while exporting", folder);
    }
    enum rk_status status = rk_atomic_file_open(path.data, &file, error);
    rk_text_free(&path);
    if (status != RK_OK) {
        return status;
    }
    exporter->sink = &sink;
    if (manifest) {
        rk_text_format(&exporter->text, "{\"reckon_export\":%d,\"schema_version\":%" PRId64 ",\"rows\":{",
                       RK_EXCHANGE_VERSION, exporter->db->version);
        add_counts(exporter);
        rk_text_add(&exporter->text, "}}\n");
    } else {
        status = export_table(exporter, table, error);
    }
    if (status == RK_OK) {
        status = flush(exporter, 0, error);
    }
    if (status != RK_OK) {
        rk_atomic_file_abandon(&file);
        return status;
    }
    return rk_atomic_file_commit(&file, error);
}

static enum rk_status make_empty_folder(const char *folder, struct rk_error *error) {
    if (mkdir(folder, 0777) == 0) {
        return RK_OK;
    }
    DIR *stream = errno == EEXIST ? opendir(folder) : NULL;
    if (stream == NULL) {
        return rk_fail(error, RK_USAGE, "%s: cannot be made or opened as a folder: %s; give another folder with --out",
                       folder, strerror(errno));
    }
    int entries = 0;
    while (readdir(stream) != NULL) {
        entries++;
    }
    closedir(stream);
    if (entries > 2) {
        return rk_fail(error, RK_USAGE, "%s: is not empty; give a new folder with --out", folder);
    }
    return RK_OK;
}

enum rk_status rk_db_export_csv(struct rk_db *db, const char *folder, struct rk_error *error) {
    struct exporter exporter = {.db = db, .csv = true};
    enum rk_status status = make_empty_folder(folder, error);
    if (status == RK_OK) {
        status = rk_db_execute(db, "SAVEPOINT export", "exporting", error);
    }
    if (status != RK_OK) {
        return status;
    }
    for (size_t i = 0; status == RK_OK && i <= rk_db_table_count; i++) {
        status = export_csv_file(&exporter, folder, i, error);
    }
    rk_db_execute(db, "RELEASE export", "exporting", NULL);
    rk_text_free(&exporter.text);
    return status;
}

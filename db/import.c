/* Import: one transaction in which every row finds its new number, its references and, for machines and cases, the row
 * that is there already. */
#include "base/json.h"
#include "db/calibration.h"
#include "db/columns.h"
#include "db/exchange_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TABLES = 32, LARGEST_ID_LOG2 = 53, DETECT_BYTES = 64, TOOL_FILE_BYTES = 1 << 28 };

struct id_pair {
    int64_t old_id, new_id;
};

struct table_import {
    struct rk_table_columns columns;
    struct rk_rows ids; /* struct id_pair, ascending old_id */
    int64_t offset;     /* new numbers are old ones plus this */
    int64_t count;      /* rows that came */
    char *insert_sql, *find_sql;
    sqlite3_stmt *insert, *find; /* find: by identity; NULL without one */
};

struct rk_import {
    struct rk_db *db;
    struct table_import tables[TABLES];
    int64_t known;
};

static bool has_id(const struct rk_db_table *table) {
    return strcmp(table->order, "id") == 0;
}

const struct rk_table_columns *rk_import_columns(const struct rk_import *import, size_t table) {
    return &import->tables[table].columns;
}

/* Whether the space-separated list names the column. */
static bool names_column(const char *list, const char *column) {
    size_t length = strlen(column);
    for (const char *found = list; (found = strstr(found, column)) != NULL; found += length) {
        if ((found == list || found[-1] == ' ') && (found[length] == ' ' || found[length] == '\0')) {
            return true;
        }
    }
    return false;
}

static enum rk_status prepare_table(struct rk_import *import, size_t index, struct rk_error *error) {
    struct table_import *table = &import->tables[index];
    const struct rk_db_table *description = &rk_db_tables[index];
    struct rk_text insert = {0};
    struct rk_text find = {0};
    enum rk_status status = rk_table_columns_read(import->db, index, &table->columns, error);
    if (status != RK_OK) {
        return status;
    }
    rk_text_format(&insert, "INSERT INTO %s VALUES (", description->name);
    rk_text_format(&find, "SELECT id FROM %s WHERE true", description->name);
    for (int i = 0; i < table->columns.count; i++) {
        const char *column = table->columns.column[i].name;
        rk_text_add(&insert, i == 0 ? "?" : ", ?");
        if (description->identity != NULL && names_column(description->identity, column)) {
            rk_text_format(&find, " AND %s IS ?%d", column, i + 1);
        }
    }
    rk_text_add(&insert, ")");
    table->insert_sql = insert.data;
    table->find_sql = find.data;
    sqlite3 *connection = import->db->connection;
    if (insert.failed || find.failed) {
        status = rk_fail(error, RK_ERROR, "%s: out of memory while importing", import->db->path);
    } else if (sqlite3_prepare_v2(connection, insert.data, -1, &table->insert, NULL) != SQLITE_OK ||
               (description->identity != NULL &&
                sqlite3_prepare_v2(connection, find.data, -1, &table->find, NULL) != SQLITE_OK)) {
        status = rk_db_fail(import->db, "importing", error);
    }
    if (status == RK_OK && has_id(description)) {
        char sql[96];
        snprintf(sql, sizeof(sql), "SELECT coalesce(max(id), 0) FROM %s", description->name);
        status = rk_db_integer(import->db, sql, "importing", &table->offset, error);
    }
    return status;
}

static void release(struct rk_import *import) {
    for (size_t i = 0; i < rk_db_table_count; i++) {
        struct table_import *table = &import->tables[i];
        sqlite3_finalize(table->insert);
        sqlite3_finalize(table->find);
        free(table->insert_sql);
        free(table->find_sql);
        free(table->ids.data);
    }
}

static int compare_pairs(const void *key, const void *element) {
    int64_t wanted = *(const int64_t *)key;
    int64_t old_id = ((const struct id_pair *)element)->old_id;
    return (wanted > old_id) - (wanted < old_id);
}

static enum rk_status translate(const struct rk_import *import, int parent, int64_t old_id, int64_t *new_id,
                                struct rk_error *error) {
    const struct rk_rows *ids = &import->tables[parent].ids;
    const struct id_pair *pair =
        ids->count == 0 ? NULL : bsearch(&old_id, ids->data, ids->count, sizeof(*pair), compare_pairs);
    if (pair == NULL) {
        return rk_fail(error, RK_USAGE, "refers to %s %" PRId64 ", which did not come before it",
                       rk_db_tables[parent].name, old_id);
    }
    *new_id = pair->new_id;
    return RK_OK;
}

static void bind_value(sqlite3_stmt *statement, int parameter, const struct rk_value *value) {
    switch (value->kind) {
    case RK_VALUE_INTEGER:
        sqlite3_bind_int64(statement, parameter, value->integer);
        break;
    case RK_VALUE_REAL:
        sqlite3_bind_double(statement, parameter, value->real);
        break;
    case RK_VALUE_TEXT:
        sqlite3_bind_text(statement, parameter, value->text, -1, SQLITE_STATIC);
        break;
    case RK_VALUE_NULL:
        sqlite3_bind_null(statement, parameter);
    }
}

/* The row with the same identity; 0: none. */
static enum rk_status find_same(struct rk_import *import, struct table_import *table, const struct rk_value *values,
                                int64_t *id, struct rk_error *error) {
    sqlite3_reset(table->find);
    for (int i = 0; i < table->columns.count && i < sqlite3_bind_parameter_count(table->find); i++) {
        bind_value(table->find, i + 1, &values[i]);
    }
    int result = sqlite3_step(table->find);
    enum rk_status status = RK_OK;
    if (result == SQLITE_ROW) {
        *id = sqlite3_column_int64(table->find, 0);
    } else if (result == SQLITE_DONE) {
        *id = 0;
    } else {
        status = rk_db_fail(import->db, "importing", error);
    }
    sqlite3_reset(table->find);
    return status;
}

static enum rk_status insert(struct rk_import *import, struct table_import *table, const struct rk_value *values,
                             struct rk_error *error) {
    enum rk_status status = RK_OK;
    for (int i = 0; i < table->columns.count; i++) {
        bind_value(table->insert, i + 1, &values[i]);
    }
    if (sqlite3_step(table->insert) != SQLITE_DONE) {
        status = rk_db_fail(import->db, "importing", error);
    }
    sqlite3_reset(table->insert);
    return status;
}

/* Checks the row's own number and where it belongs in the order. */
static enum rk_status check_id(const struct table_import *table, const struct rk_value *value, struct rk_error *error) {
    if (value->kind != RK_VALUE_INTEGER || value->integer < 1 || value->integer > INT64_C(1) << LARGEST_ID_LOG2) {
        return rk_fail(error, RK_USAGE, "column id: a number from 1 on is needed");
    }
    const struct id_pair *last =
        table->ids.count == 0 ? NULL : (const struct id_pair *)table->ids.data + table->ids.count - 1;
    if (last != NULL && last->old_id >= value->integer) {
        return rk_fail(error, RK_USAGE, "column id: %" PRId64 " comes after %" PRId64 "; rows come in ascending order",
                       value->integer, last->old_id);
    }
    return RK_OK;
}

/* A row with a number of its own: used again when known, else inserted under a new number. */
static enum rk_status import_numbered(struct rk_import *import, struct table_import *table, struct rk_value *values,
                                      struct rk_error *error) {
    int64_t old_id = values[0].integer;
    int64_t new_id = 0;
    enum rk_status status = RK_OK;
    if (table->find != NULL) {
        status = find_same(import, table, values, &new_id, error);
    }
    if (status == RK_OK && new_id != 0 && table->columns.table->identity_is_unit) {
        return rk_fail(error, RK_USAGE, "this %s is already in %s as number %" PRId64 "; nothing was imported",
                       table->columns.table->name, import->db->path, new_id);
    }
    if (status == RK_OK && new_id == 0) {
        new_id = old_id + table->offset;
        values[0].integer = new_id;
        status = insert(import, table, values, error);
    } else {
        import->known++;
    }
    if (status != RK_OK) {
        return status;
    }
    struct id_pair *pair = rk_rows_add(&table->ids, sizeof(*pair));
    if (pair == NULL) {
        return rk_fail(error, RK_ERROR, "%s: out of memory while importing", import->db->path);
    }
    *pair = (struct id_pair){old_id, new_id};
    return RK_OK;
}

enum rk_status rk_import_row(struct rk_import *import, size_t index, const struct rk_value *values,
                             struct rk_error *error) {
    struct table_import *table = &import->tables[index];
    struct rk_value row[RK_TABLE_COLUMNS];
    enum rk_status status = RK_OK;
    memcpy(row, values, (size_t)table->columns.count * sizeof(*row));
    if (has_id(table->columns.table)) {
        status = check_id(table, &row[0], error);
    }
    for (int i = 0; status == RK_OK && i < table->columns.count; i++) {
        int parent = table->columns.column[i].parent;
        if (parent >= 0 && row[i].kind == RK_VALUE_INTEGER) {
            status = translate(import, parent, row[i].integer, &row[i].integer, error);
        }
    }
    if (status == RK_OK) {
        status = has_id(table->columns.table) ? import_numbered(import, table, row, error)
                                              : insert(import, table, row, error);
    }
    table->count += status == RK_OK ? 1 : 0;
    return status;
}

enum rk_status rk_import_samples(struct rk_import *import, int64_t measurement_id, const double *seconds,
                                 const bool *throttled, size_t count, struct rk_error *error) {
    size_t sample = rk_db_table_find("sample");
    int parent = (int)rk_db_table_find("measurement");
    int64_t new_id = 0;
    if (count == 0) {
        return rk_fail(error, RK_USAGE, "column seconds: at least one sample is needed");
    }
    enum rk_status status = translate(import, parent, measurement_id, &new_id, error);
    if (status == RK_OK) {
        status = rk_sample_store(import->db, new_id, seconds, throttled, count, error);
    }
    import->tables[sample].count += status == RK_OK ? 1 : 0;
    return status;
}

enum rk_status rk_import_check_version(const char *where, const cJSON *header, struct rk_error *error) {
    struct rk_json_object object;
    int64_t exchange = 0;
    int64_t schema = 0;
    enum rk_status status = rk_json_open(where, "", header, &object, error);
    if (status == RK_OK) {
        status = rk_json_integer(&object, "reckon_export", 1, INT32_MAX, &exchange, error);
    }
    if (status == RK_OK) {
        status = rk_json_integer(&object, "schema_version", 1, INT32_MAX, &schema, error);
    }
    if (status == RK_OK && (exchange > RK_EXCHANGE_VERSION || schema > rk_db_migration_count)) {
        status = rk_fail(error, RK_USAGE,
                         "%s: was exported by a newer reckon (format %" PRId64 ", schema %" PRId64
                         "); import it with that version",
                         where, exchange, schema);
    }
    return status;
}

enum rk_status rk_import_check_counts(const struct rk_import *import, const char *where, const cJSON *counts,
                                      struct rk_error *error) {
    struct rk_json_object object;
    struct rk_text unknown = {0};
    enum rk_status status = rk_json_open(where, "rows", counts, &object, error);
    for (size_t i = 0; status == RK_OK && i < rk_db_table_count; i++) {
        int64_t count = 0;
        status =
            rk_json_optional_integer(&object, rk_db_tables[i].name, 0, INT64_C(1) << LARGEST_ID_LOG2, &count, error);
        if (status == RK_OK && count != import->tables[i].count) {
            status =
                rk_fail(error, RK_USAGE, "%s: says %" PRId64 " rows of %s, %" PRId64 " came: the export is incomplete",
                        where, count, rk_db_tables[i].name, import->tables[i].count);
        }
    }
    if (status == RK_OK && rk_json_unknown(&object, &unknown) > 0) {
        status = rk_fail(error, RK_USAGE, "%s: unknown tables: %s", where, unknown.data);
    }
    rk_text_free(&unknown);
    return status;
}

enum source { SOURCE_JSONL, SOURCE_CSV, SOURCE_NCCL_TESTS, SOURCE_NVBANDWIDTH };
static const char *const source_names[] = {"jsonl", "csv", "nccl-tests", "nvbandwidth"};

/* Tells the format from the first bytes; a whole JSON document is read and left in *root. */
static enum rk_status detect(const char *path, enum source *source, cJSON **root, struct rk_error *error) {
    struct stat information;
    char start[DETECT_BYTES] = "";
    if (stat(path, &information) != 0) {
        return rk_fail(error, RK_USAGE, "%s: cannot be read: %s", path, strerror(errno));
    }
    if (S_ISDIR(information.st_mode)) {
        *source = SOURCE_CSV;
        return RK_OK;
    }
    if (!S_ISREG(information.st_mode)) { /* it is read twice */
        return rk_fail(error, RK_USAGE, "%s: is a pipe or a device; save it as a file first", path);
    }
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return rk_fail(error, RK_USAGE, "%s: cannot be read: %s", path, strerror(errno));
    }
    size_t got = fread(start, 1, sizeof(start) - 1, file);
    fclose(file);
    if (got > 0 && strncmp(start, "{\"reckon_export\"", 16) == 0) {
        *source = SOURCE_JSONL;
        return RK_OK;
    }
    char *data = NULL;
    size_t length = 0;
    enum rk_status status = rk_read_file(path, TOOL_FILE_BYTES, &data, &length, error);
    if (status == RK_OK) {
        status = rk_json_parse(path, data, length, root, error);
        free(data);
    }
    if (status != RK_OK) {
        return status;
    }
    if (cJSON_HasObjectItem(*root, "nvbandwidth")) {
        *source = SOURCE_NVBANDWIDTH;
    } else if (cJSON_HasObjectItem(*root, "nccl_version")) {
        *source = SOURCE_NCCL_TESTS;
    } else {
        return rk_fail(
            error, RK_USAGE,
            "%s: is neither an export of reckon (JSONL file or CSV folder) nor the JSON of nccl-tests (-J) or "
            "nvbandwidth (-j)",
            path);
    }
    return RK_OK;
}

static enum rk_status feed(struct rk_import *import, enum source source, const char *path, const cJSON *root,
                           const struct rk_import_options *options, int64_t *rows, struct rk_error *error) {
    enum rk_status status = RK_OK;
    if (source == SOURCE_NCCL_TESTS) {
        return rk_import_nccl_tests(import->db, path, root, options, rows, error);
    }
    if (source == SOURCE_NVBANDWIDTH) {
        return rk_import_nvbandwidth(import->db, path, root, options, rows, error);
    }
    for (size_t i = 0; status == RK_OK && i < rk_db_table_count; i++) {
        status = prepare_table(import, i, error);
    }
    if (status == RK_OK) {
        status = source == SOURCE_CSV ? rk_import_csv(import, path, error) : rk_import_jsonl(import, path, error);
    }
    for (size_t i = 0; i < rk_db_table_count; i++) {
        *rows += import->tables[i].count;
    }
    return status;
}

/* What came must keep Reckon's promises before it is kept. */
static enum rk_status check_promises(struct rk_db *db, const char *path, struct rk_error *error) {
    struct rk_text findings = {0};
    int64_t count = 0;
    enum rk_status status = rk_db_check(db, &findings, &count, error);
    if (status == RK_OK && count > 0) {
        char *line_end = strchr(findings.data, '\n');
        *line_end = '\0';
        status = rk_fail(error, RK_USAGE,
                         "%s: with its rows the database would break %" PRId64 " promise%s (%s); nothing was imported",
                         path, count, count == 1 ? "" : "s", findings.data);
    }
    rk_text_free(&findings);
    return status;
}

enum rk_status rk_db_import(struct rk_db *db, const char *path, const struct rk_import_options *options,
                            struct rk_import_result *result, struct rk_error *error) {
    cJSON *root = NULL;
    enum source source = SOURCE_JSONL;
    int64_t rows = 0;
    struct rk_import *import = calloc(1, sizeof(*import));
    if (import == NULL) {
        return rk_fail(error, RK_ERROR, "%s: out of memory while importing", path);
    }
    import->db = db;
    enum rk_status status = detect(path, &source, &root, error);
    if (status == RK_OK) {
        status = rk_db_begin(db, error);
    }
    if (status != RK_OK) {
        goto free_import;
    }
    status = feed(import, source, path, root, options, &rows, error);
    release(import); /* a statement that is still open would keep the transaction from ending */
    if (status == RK_OK) {
        status = check_promises(db, path, error);
    }
    status = rk_db_end(db, status, error);
    if (status == RK_OK) {
        result->rows = rows;
        result->known = import->known;
        snprintf(result->format, sizeof(result->format), "%s", source_names[source]);
    }
free_import:
    cJSON_Delete(root);
    free(import);
    return status;
}

/* Reads an export of lines of JSON. */
#include "base/json.h"
#include "db/exchange_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double LARGEST_EXACT = 9007199254740992.0; /* 2^53 */

static enum rk_status convert(const struct rk_column *column, const cJSON *item, struct rk_value *value,
                              struct rk_error *error) {
    *value = (struct rk_value){.kind = RK_VALUE_NULL};
    if (item == NULL) {
        return rk_fail(error, RK_USAGE, "column %s is missing", column->name);
    }
    if (cJSON_IsNull(item)) {
        return RK_OK;
    }
    if (cJSON_IsString(item)) {
        return rk_value_parse(column, item->valuestring, value, error);
    }
    if (!cJSON_IsNumber(item) || column->type == RK_COLUMN_TEXT) {
        return rk_fail(error, RK_USAGE, "column %s: not a %s", column->name,
                       column->type == RK_COLUMN_TEXT ? "text" : "number");
    }
    value->real = item->valuedouble;
    value->kind = RK_VALUE_REAL;
    if (column->type == RK_COLUMN_INTEGER) {
        if (floor(value->real) != value->real || fabs(value->real) > LARGEST_EXACT) {
            return rk_fail(error, RK_USAGE, "column %s: %g is not a whole number", column->name, value->real);
        }
        value->kind = RK_VALUE_INTEGER;
        value->integer = (int64_t)value->real;
    }
    return RK_OK;
}

static enum rk_status import_plain(struct rk_import *import, size_t table, const cJSON *row, struct rk_error *error) {
    const struct rk_table_columns *columns = rk_import_columns(import, table);
    struct rk_value values[RK_TABLE_COLUMNS];
    if (cJSON_GetArraySize(row) > columns->count) {
        return rk_fail(error, RK_USAGE, "more columns than %s has", columns->table->name);
    }
    for (int i = 0; i < columns->count; i++) {
        const struct rk_column *column = &columns->column[i];
        enum rk_status status = convert(column, cJSON_GetObjectItemCaseSensitive(row, column->name), &values[i], error);
        if (status != RK_OK) {
            return status;
        }
    }
    return rk_import_row(import, table, values, error);
}

static enum rk_status read_samples(const cJSON *seconds, const cJSON *throttled, double *values, bool *marks,
                                   struct rk_error *error) {
    size_t i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, seconds) {
        if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble) || item->valuedouble < 0) {
            return rk_fail(error, RK_USAGE, "column seconds: sample %zu is no time", i);
        }
        values[i++] = item->valuedouble;
    }
    size_t count = i;
    i = 0;
    cJSON_ArrayForEach(item, throttled) {
        if (i == count || !cJSON_IsNumber(item) || (item->valuedouble != 0 && item->valuedouble != 1)) {
            return rk_fail(error, RK_USAGE, "column throttled: 0 or 1 is needed for each sample");
        }
        marks[i++] = item->valuedouble != 0;
    }
    if (cJSON_IsArray(throttled) && i != count) {
        return rk_fail(error, RK_USAGE, "column throttled: %zu values for %zu samples", i, count);
    }
    return RK_OK;
}

static enum rk_status import_expanded(struct rk_import *import, const cJSON *row, struct rk_error *error) {
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(row, "measurement_id");
    const cJSON *seconds = cJSON_GetObjectItemCaseSensitive(row, "seconds");
    const cJSON *throttled = cJSON_GetObjectItemCaseSensitive(row, "throttled");
    static const struct rk_column column = {.name = "measurement_id", .type = RK_COLUMN_INTEGER};
    struct rk_value measurement;
    enum rk_status status = convert(&column, id, &measurement, error);
    if (status != RK_OK) {
        return status;
    }
    if (measurement.kind != RK_VALUE_INTEGER || !cJSON_IsArray(seconds) || cJSON_GetArraySize(row) != 3 ||
        (!cJSON_IsArray(throttled) && !cJSON_IsNull(throttled))) {
        return rk_fail(error, RK_USAGE,
                       "a sample row has measurement_id, an array seconds, and an array throttled or null");
    }
    size_t count = (size_t)cJSON_GetArraySize(seconds);
    double *values = malloc((count + 1) * sizeof(*values));
    bool *marks = calloc(count + 1, sizeof(*marks));
    if (values == NULL || marks == NULL) {
        status = rk_fail(error, RK_ERROR, "out of memory for %zu samples", count);
    } else {
        status = read_samples(seconds, throttled, values, marks, error);
    }
    if (status == RK_OK) {
        status = rk_import_samples(import, measurement.integer, values, cJSON_IsNull(throttled) ? NULL : marks, count,
                                   error);
    }
    free(values);
    free(marks);
    return status;
}

static enum rk_status import_line(struct rk_import *import, const char *where, const cJSON *line, bool *ended,
                                  struct rk_error *error) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(line, "table");
    const cJSON *row = cJSON_GetObjectItemCaseSensitive(line, "row");
    if (*ended) {
        return rk_fail(error, RK_USAGE, "lines after the last one");
    }
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(line, "end"))) {
        *ended = true;
        return rk_import_check_counts(import, where, cJSON_GetObjectItemCaseSensitive(line, "rows"), error);
    }
    if (!cJSON_IsString(name) || !cJSON_IsObject(row)) {
        return rk_fail(error, RK_USAGE, "neither a row with its table nor the last line");
    }
    size_t table = rk_db_table_find(name->valuestring);
    if (table == rk_db_table_count) {
        return rk_fail(error, RK_USAGE, "unknown table \"%.40s\"", name->valuestring);
    }
    return rk_is_sample_table(&rk_db_tables[table]) ? import_expanded(import, row, error)
                                                    : import_plain(import, table, row, error);
}

static enum rk_status import_text(struct rk_import *import, const char *where, const char *text, size_t length,
                                  bool first, bool *ended, struct rk_error *error) {
    cJSON *line = NULL;
    enum rk_status status = rk_json_parse(where, text, length, &line, error);
    if (status != RK_OK) {
        return status;
    }
    if (first) {
        status = rk_import_check_version(where, line, error);
    } else {
        status = import_line(import, where, line, ended, error);
        if (status != RK_OK) {
            rk_fail_context(error, "%s", where);
        }
    }
    cJSON_Delete(line);
    return status;
}

enum rk_status rk_import_jsonl(struct rk_import *import, const char *path, struct rk_error *error) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return rk_fail(error, RK_USAGE, "%s: cannot be read: %s", path, strerror(errno));
    }
    char *text = NULL;
    size_t room = 0;
    bool ended = false;
    int64_t number = 0;
    enum rk_status status = RK_OK;
    ssize_t length;
    while (status == RK_OK && (length = getline(&text, &room, file)) > 0) {
        char where[512];
        snprintf(where, sizeof(where), "%.480s:%" PRId64, path, ++number);
        status = import_text(import, where, text, (size_t)length, number == 1, &ended, error);
    }
    if (status == RK_OK && ferror(file)) {
        status = rk_fail(error, RK_ERROR, "%s: cannot be read to its end: %s", path, strerror(errno));
    }
    if (status == RK_OK && !ended) {
        status = rk_fail(error, RK_USAGE, "%s: cut short after line %" PRId64 ": the last line of an export is missing",
                         path, number);
    }
    free(text);
    fclose(file);
    return status;
}

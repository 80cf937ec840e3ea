/* Reads an export of CSV files in a folder. */
#include "base/json.h"
#include "db/exchange_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A record: its fields end to end, each NUL-terminated. */
struct record {
    struct rk_text bytes;
    size_t start[RK_TABLE_COLUMNS];
    bool quoted[RK_TABLE_COLUMNS];
    int count;
};

struct reader {
    FILE *file;
    char name[512]; /* for messages */
    int64_t line;   /* of the record under way */
    int64_t next_line;
};

static enum rk_status broken(const struct reader *reader, const char *what, struct rk_error *error) {
    return rk_fail(error, RK_USAGE, "%s:%" PRId64 ": %s", reader->name, reader->line, what);
}

/* Reads the rest of a field in quotes, up to the byte after the closing quote. */
static int read_quoted(struct reader *reader, struct rk_text *bytes) {
    int byte;
    while ((byte = getc(reader->file)) != EOF) {
        if (byte == '"' && (byte = getc(reader->file)) != '"') {
            return byte == EOF ? '\n' : byte;
        }
        if (byte == '\0') {
            return byte;
        }
        reader->next_line += byte == '\n' ? 1 : 0;
        char one = (char)byte;
        rk_text_add_bytes(bytes, &one, 1);
    }
    return EOF; /* the closing quote is missing */
}

static int read_bare(struct reader *reader, struct rk_text *bytes, int byte) {
    while (byte != ',' && byte != '\n' && byte != '\r' && byte != '"' && byte != '\0' && byte != EOF) {
        char one = (char)byte;
        rk_text_add_bytes(bytes, &one, 1);
        byte = getc(reader->file);
    }
    return byte == EOF ? '\n' : byte;
}

/* Reads one record; *more false at the end of the file. */
static enum rk_status read_record(struct reader *reader, struct record *record, bool *more, struct rk_error *error) {
    record->bytes.length = 0;
    record->count = 0;
    reader->line = reader->next_line;
    int byte = getc(reader->file);
    *more = byte != EOF;
    while (*more) {
        if (record->count == RK_TABLE_COLUMNS) {
            return broken(reader, "too many fields", error);
        }
        bool quoted = byte == '"';
        record->start[record->count] = record->bytes.length;
        record->quoted[record->count++] = quoted;
        byte = quoted ? read_quoted(reader, &record->bytes) : read_bare(reader, &record->bytes, byte);
        rk_text_add_bytes(&record->bytes, "", 1);
        if (byte == '\r') {
            byte = getc(reader->file);
        }
        if (byte == '\n') {
            reader->next_line++;
            break;
        }
        if (byte != ',') {
            return broken(
                reader, byte == EOF ? "a quoted field does not end" : "a stray quote or a zero byte in a field", error);
        }
        byte = getc(reader->file);
        byte = byte == EOF ? '\n' : byte;
    }
    return record->bytes.failed ? rk_fail(error, RK_ERROR, "%s: out of memory", reader->name) : RK_OK;
}

static const char *field(const struct record *record, int i) {
    return record->bytes.data + record->start[i];
}

/* The first line must name the columns as the table has them. */
static enum rk_status check_header(const struct reader *reader, const struct record *record,
                                   const struct rk_table_columns *columns, struct rk_error *error) {
    bool same = record->count == columns->count;
    for (int i = 0; same && i < columns->count; i++) {
        same = strcmp(field(record, i), columns->column[i].name) == 0;
    }
    return same ? RK_OK : broken(reader, "the columns are not those of this table", error);
}

static enum rk_status import_record(struct rk_import *import, size_t table, const struct reader *reader,
                                    const struct record *record, struct rk_error *error) {
    const struct rk_table_columns *columns = rk_import_columns(import, table);
    struct rk_value values[RK_TABLE_COLUMNS];
    enum rk_status status = RK_OK;
    if (record->count != columns->count) {
        return broken(reader, "not as many fields as columns", error);
    }
    for (int i = 0; status == RK_OK && i < columns->count; i++) {
        const char *text = field(record, i);
        if (text[0] == '\0' && !record->quoted[i]) {
            values[i] = (struct rk_value){.kind = RK_VALUE_NULL};
        } else {
            status = rk_value_parse(&columns->column[i], text, &values[i], error);
        }
    }
    if (status == RK_OK) {
        status = rk_import_row(import, table, values, error);
    }
    return status == RK_OK ? RK_OK : rk_fail_context(error, "%s:%" PRId64, reader->name, reader->line);
}

/* The samples of one measurement, gathered line by line. */
struct gathered {
    int64_t measurement_id;
    struct rk_rows seconds, marks;
    bool marked;
};

static enum rk_status hand_over(struct rk_import *import, struct gathered *gathered, struct rk_error *error) {
    enum rk_status status = RK_OK;
    if (gathered->seconds.count > 0) {
        status = rk_import_samples(import, gathered->measurement_id, gathered->seconds.data,
                                   gathered->marked ? gathered->marks.data : NULL, gathered->seconds.count, error);
    }
    gathered->seconds.count = 0;
    gathered->marks.count = 0;
    return status;
}

static enum rk_status gather(struct rk_import *import, struct gathered *gathered, const struct record *record,
                             struct rk_error *error) {
    static const struct rk_column columns[] = {{.name = "measurement_id", .type = RK_COLUMN_INTEGER},
                                               {.name = "ordinal", .type = RK_COLUMN_INTEGER},
                                               {.name = "seconds", .type = RK_COLUMN_REAL}};
    struct rk_value values[3];
    enum rk_status status = RK_OK;
    if (record->count != 4) {
        return rk_fail(error, RK_USAGE, "four fields are needed");
    }
    for (int i = 0; status == RK_OK && i < 3; i++) {
        status = rk_value_parse(&columns[i], field(record, i), &values[i], error);
    }
    if (status == RK_OK && values[0].integer != gathered->measurement_id) {
        status = hand_over(import, gathered, error);
        gathered->measurement_id = values[0].integer;
        gathered->marked = field(record, 3)[0] != '\0';
    }
    if (status != RK_OK) {
        return status;
    }
    const char *mark = field(record, 3);
    bool mark_fits = gathered->marked ? strcmp(mark, "0") == 0 || strcmp(mark, "1") == 0 : mark[0] == '\0';
    if (values[1].integer != (int64_t)gathered->seconds.count || !mark_fits || !isfinite(values[2].real) ||
        values[2].real < 0) {
        return rk_fail(error, RK_USAGE,
                       "ordinals count from 0, seconds are times, throttled is 0 or 1 for all or none");
    }
    double *second = rk_rows_add(&gathered->seconds, sizeof(*second));
    bool *flag = rk_rows_add(&gathered->marks, sizeof(*flag));
    if (second == NULL || flag == NULL) {
        return rk_fail(error, RK_ERROR, "out of memory");
    }
    *second = values[2].real;
    *flag = mark[0] == '1';
    return RK_OK;
}

static enum rk_status check_sample_header(const struct reader *reader, const struct record *record,
                                          struct rk_error *error) {
    char header[128] = "";
    for (int i = 0; i < record->count; i++) {
        size_t length = strlen(header);
        snprintf(header + length, sizeof(header) - length, "%s%s", i == 0 ? "" : ",", field(record, i));
    }
    return strcmp(header, RK_SAMPLE_CSV_HEADER) == 0
               ? RK_OK
               : broken(reader, "the columns must be " RK_SAMPLE_CSV_HEADER, error);
}

static enum rk_status import_records(struct rk_import *import, size_t table, struct reader *reader,
                                     struct record *record, struct gathered *gathered, struct rk_error *error) {
    bool more = false;
    bool samples = rk_is_sample_table(&rk_db_tables[table]);
    enum rk_status status = read_record(reader, record, &more, error);
    if (status == RK_OK && !more) {
        return broken(reader, "empty: the line of columns is missing", error);
    }
    if (status == RK_OK) {
        status = samples ? check_sample_header(reader, record, error)
                         : check_header(reader, record, rk_import_columns(import, table), error);
    }
    while (status == RK_OK && (status = read_record(reader, record, &more, error)) == RK_OK && more) {
        if (!samples) {
            status = import_record(import, table, reader, record, error);
        } else if ((status = gather(import, gathered, record, error)) != RK_OK) {
            rk_fail_context(error, "%s:%" PRId64, reader->name, reader->line);
        }
    }
    return status == RK_OK ? hand_over(import, gathered, error) : status;
}

static enum rk_status import_file(struct rk_import *import, const char *folder, size_t table, struct rk_error *error) {
    struct reader reader = {.next_line = 1};
    struct record record = {0};
    struct gathered gathered = {0};
    snprintf(reader.name, sizeof(reader.name), "%.440s/%s.csv", folder, rk_db_tables[table].name);
    reader.file = fopen(reader.name, "re");
    if (reader.file == NULL) {
        return rk_fail(error, RK_USAGE, "%s: cannot be read: %s", reader.name, strerror(errno));
    }
    enum rk_status status = import_records(import, table, &reader, &record, &gathered, error);
    if (status == RK_OK && ferror(reader.file)) {
        status = rk_fail(error, RK_ERROR, "%s: cannot be read to its end", reader.name);
    }
    fclose(reader.file);
    rk_text_free(&record.bytes);
    free(gathered.seconds.data);
    free(gathered.marks.data);
    return status;
}

enum rk_status rk_import_csv(struct rk_import *import, const char *folder, struct rk_error *error) {
    char name[512];
    cJSON *manifest = NULL;
    snprintf(name, sizeof(name), "%.480s/manifest.json", folder);
    enum rk_status status = rk_json_read_file(name, &manifest, error);
    if (status != RK_OK) {
        return rk_fail_context(error, "a CSV export has a manifest, written last");
    }
    status = rk_import_check_version(name, manifest, error);
    for (size_t i = 0; status == RK_OK && i < rk_db_table_count; i++) {
        status = import_file(import, folder, i, error);
    }
    if (status == RK_OK) {
        status = rk_import_check_counts(import, name, cJSON_GetObjectItemCaseSensitive(manifest, "rows"), error);
    }
    cJSON_Delete(manifest);
    return status;
}

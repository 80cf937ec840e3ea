/* Tables as the open file declares them, and values as text. */
#include "db/exchange_internal.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t rk_db_table_find(const char *name) {
    for (size_t i = 0; i < rk_db_table_count; i++) {
        if (strcmp(rk_db_tables[i].name, name) == 0) {
            return i;
        }
    }
    return rk_db_table_count;
}

bool rk_is_sample_table(const struct rk_db_table *table) {
    return strcmp(table->name, "sample") == 0;
}

static enum rk_column_type column_type(const char *name) {
    static const char *const names[] = {"INTEGER", "REAL", "TEXT", "BLOB"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(names[i], name) == 0) {
            return (enum rk_column_type)i;
        }
    }
    return RK_COLUMN_TEXT;
}

static enum rk_status read_columns(struct rk_db *db, struct rk_table_columns *columns, struct rk_error *error) {
    char sql[96];
    struct rk_query query;
    bool more = false;
    snprintf(sql, sizeof(sql), "SELECT name, type FROM pragma_table_info('%s') ORDER BY cid", columns->table->name);
    enum rk_status status = rk_query_open_text(db, sql, "reading its schema", &query, error);
    while (status == RK_OK && (status = rk_query_next(&query, &more, error)) == RK_OK && more &&
           columns->count < RK_TABLE_COLUMNS) {
        struct rk_column *column = &columns->column[columns->count++];
        char type[16];
        rk_read_text(&query, column->name, sizeof(column->name));
        rk_read_text(&query, type, sizeof(type));
        column->type = column_type(type);
        column->parent = -1;
    }
    rk_query_close(&query);
    return status;
}

static enum rk_status read_references(struct rk_db *db, struct rk_table_columns *columns, struct rk_error *error) {
    char sql[112];
    struct rk_query query;
    bool more = false;
    snprintf(sql, sizeof(sql), "SELECT \"from\", \"table\" FROM pragma_foreign_key_list('%s')", columns->table->name);
    enum rk_status status = rk_query_open_text(db, sql, "reading its schema", &query, error);
    while (status == RK_OK && (status = rk_query_next(&query, &more, error)) == RK_OK && more) {
        char name[RK_COLUMN_NAME];
        char parent[RK_COLUMN_NAME];
        rk_read_text(&query, name, sizeof(name));
        rk_read_text(&query, parent, sizeof(parent));
        for (int i = 0; i < columns->count; i++) {
            if (strcmp(columns->column[i].name, name) == 0) {
                columns->column[i].parent = (int)rk_db_table_find(parent);
            }
        }
    }
    rk_query_close(&query);
    return status;
}

enum rk_status rk_table_columns_read(struct rk_db *db, size_t table, struct rk_table_columns *columns,
                                     struct rk_error *error) {
    *columns = (struct rk_table_columns){.table = &rk_db_tables[table]};
    enum rk_status status = read_columns(db, columns, error);
    return status == RK_OK ? read_references(db, columns, error) : status;
}

static enum rk_status parse_real(const struct rk_column *column, const char *text, struct rk_value *value,
                                 struct rk_error *error) {
    char *end = NULL;
    if (strcmp(text, "Infinity") == 0 || strcmp(text, "-Infinity") == 0) {
        value->real = text[0] == '-' ? -HUGE_VAL : HUGE_VAL;
        return RK_OK;
    }
    bool plain = text[0] != '\0' && strspn(text, "+-.0123456789eE") == strlen(text);
    value->real = plain ? strtod(text, &end) : 0;
    if (!plain || *end != '\0' || isinf(value->real)) {
        return rk_fail(error, RK_USAGE, "column %s: \"%.40s\" is not a number", column->name, text);
    }
    return RK_OK;
}

enum rk_status rk_value_parse(const struct rk_column *column, const char *text, struct rk_value *value,
                              struct rk_error *error) {
    *value = (struct rk_value){.kind = RK_VALUE_TEXT, .text = text};
    if (column->type == RK_COLUMN_REAL) {
        value->kind = RK_VALUE_REAL;
        return parse_real(column, text, value, error);
    }
    if (column->type == RK_COLUMN_INTEGER) {
        char *end = NULL;
        value->kind = RK_VALUE_INTEGER;
        errno = 0;
        value->integer = strtoll(text, &end, 10);
        if (text[0] == '\0' || isspace((unsigned char)text[0]) || *end != '\0' || errno == ERANGE) {
            return rk_fail(error, RK_USAGE, "column %s: \"%.40s\" is not a whole number that fits 64 bits",
                           column->name, text);
        }
    }
    return RK_OK;
}

#include "db/internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum rk_status rk_sqlite_fail(const char *path, int code, const char *message, const char *action, int64_t waited_ms,
                              struct rk_error *error) {
    switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:
        return rk_fail(error, RK_DATABASE,
                       "%s: locked by another process (waited %.3g s) while %s; let it end, or find it with "
                       "`fuser -v %s`, and try again",
                       path, (double)waited_ms / 1e3, action, path);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return rk_fail(error, RK_DATABASE,
                       "%s: damaged (%s), found while %s; keep it, restore a backup, or save what is readable with "
                       "`sqlite3 %s .recover | sqlite3 saved.db`",
                       path, message, action, path);
    case SQLITE_READONLY:
    case SQLITE_PERM:
        return rk_fail(
            error, RK_DATABASE,
            "%s: cannot be written (%s) while %s; give yourself write permission on the file and its folder, "
            "or copy it and use --db COPY",
            path, message, action);
    case SQLITE_CANTOPEN:
        return rk_fail(error, RK_DATABASE,
                       "%s: cannot be opened (%s) while %s; check that the folder exists and can be written, or give "
                       "another file with --db",
                       path, message, action);
    case SQLITE_FULL:
        return rk_fail(
            error, RK_ERROR,
            "%s: no space left while %s; nothing of this unit was stored. Free some space on its file system, "
            "or move it and use --db",
            path, action);
    case SQLITE_IOERR:
        return rk_fail(error, RK_ERROR,
                       "%s: input/output error (%s) while %s; check the disk, its free space and quota", path, message,
                       action);
    case SQLITE_NOMEM:
        return rk_fail(error, RK_ERROR, "%s: out of memory while %s", path, action);
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
        return rk_fail(error, RK_USAGE, "%s: refused while %s: %s", path, action, message);
    default:
        return rk_fail(error, RK_ERROR, "%s: %s while %s", path, message, action);
    }
}

enum rk_status rk_db_fail(struct rk_db *db, const char *action, struct rk_error *error) {
    int code = sqlite3_extended_errcode(db->connection);
    if ((code & 0xff) == SQLITE_READONLY && db->read_only_reason[0] != '\0') {
        return rk_db_require_writable(db, error);
    }
    return rk_sqlite_fail(db->path, code, sqlite3_errmsg(db->connection), action, db->busy_timeout_ms, error);
}

enum rk_status rk_db_require_writable(struct rk_db *db, struct rk_error *error) {
    if (db->read_only_reason[0] == '\0') {
        return RK_OK;
    }
    return rk_fail(error, RK_DATABASE, "%s: cannot be written: %s", db->path, db->read_only_reason);
}

enum rk_status rk_db_execute(struct rk_db *db, const char *sql, const char *action, struct rk_error *error) {
    if (sqlite3_exec(db->connection, sql, NULL, NULL, NULL) != SQLITE_OK) {
        return rk_db_fail(db, action, error);
    }
    return RK_OK;
}

enum rk_status rk_db_integer(struct rk_db *db, const char *sql, const char *action, int64_t *value,
                             struct rk_error *error) {
    struct rk_query query;
    enum rk_status status = rk_query_open_text(db, sql, action, &query, error);
    if (status != RK_OK) {
        return status;
    }
    return rk_query_find(&query, value, error);
}

static enum rk_status prepare(struct rk_db *db, const char *sql, bool keep, struct rk_query *query,
                              struct rk_error *error) {
    unsigned int flags = keep ? SQLITE_PREPARE_PERSISTENT : 0;
    if (sqlite3_prepare_v3(db->connection, sql, -1, flags, &query->statement, NULL) != SQLITE_OK) {
        return rk_db_fail(db, query->action, error);
    }
    return RK_OK;
}

enum rk_status rk_query_open_text(struct rk_db *db, const char *sql, const char *action, struct rk_query *query,
                                  struct rk_error *error) {
    *query = (struct rk_query){.db = db, .action = action, .next = 1};
    return prepare(db, sql, false, query, error);
}

enum rk_status rk_query_open(struct rk_db *db, const char *sql, const char *action, struct rk_query *query,
                             struct rk_error *error) {
    *query = (struct rk_query){.db = db, .action = action, .next = 1};
    for (size_t i = 0; i < db->kept_count; i++) {
        struct rk_kept_statement *kept = &db->kept[i];
        if (kept->sql == sql && !kept->busy) {
            kept->busy = true;
            query->kept = kept;
            query->statement = kept->statement;
            return RK_OK;
        }
    }
    bool keep = db->kept_count < RK_DB_STATEMENTS;
    enum rk_status status = prepare(db, sql, keep, query, error);
    if (status == RK_OK && keep) {
        query->kept = &db->kept[db->kept_count++];
        *query->kept = (struct rk_kept_statement){sql, query->statement, true};
    }
    return status;
}

void rk_query_again(struct rk_query *query) {
    sqlite3_reset(query->statement);
    query->next = 1;
    query->failure = SQLITE_OK;
}

void rk_query_close(struct rk_query *query) {
    if (query->statement == NULL) {
        return;
    }
    sqlite3_reset(query->statement);
    sqlite3_clear_bindings(query->statement);
    if (query->kept != NULL) {
        query->kept->busy = false;
    } else {
        sqlite3_finalize(query->statement);
    }
    query->statement = NULL;
}

static void note(struct rk_query *query, int result) {
    if (query->failure == SQLITE_OK) {
        query->failure = result;
    }
}

void rk_bind_integer(struct rk_query *query, int64_t value) {
    note(query, sqlite3_bind_int64(query->statement, query->next++, value));
}

void rk_bind_known(struct rk_query *query, int64_t value) {
    if (value < 0) {
        note(query, sqlite3_bind_null(query->statement, query->next++));
    } else {
        rk_bind_integer(query, value);
    }
}

void rk_bind_reference(struct rk_query *query, int64_t value) {
    if (value == 0) {
        note(query, sqlite3_bind_null(query->statement, query->next++));
    } else {
        rk_bind_integer(query, value);
    }
}

void rk_bind_real(struct rk_query *query, double value) {
    if (isnan(value)) {
        note(query, sqlite3_bind_null(query->statement, query->next++));
    } else {
        note(query, sqlite3_bind_double(query->statement, query->next++, value));
    }
}

void rk_bind_text(struct rk_query *query, const char *value) {
    note(query, sqlite3_bind_text64(query->statement, query->next++, value, value == NULL ? 0 : strlen(value),
                                    SQLITE_STATIC, SQLITE_UTF8));
}

void rk_bind_blob(struct rk_query *query, const void *value, size_t length) {
    note(query, sqlite3_bind_blob64(query->statement, query->next++, value, length, SQLITE_STATIC));
}

static enum rk_status step(struct rk_query *query, int *result, struct rk_error *error) {
    if (query->failure != SQLITE_OK) {
        return rk_sqlite_fail(query->db->path, query->failure, sqlite3_errstr(query->failure), query->action, 0, error);
    }
    *result = sqlite3_step(query->statement);
    if (*result != SQLITE_ROW && *result != SQLITE_DONE) {
        return rk_db_fail(query->db, query->action, error);
    }
    return RK_OK;
}

enum rk_status rk_query_run(struct rk_query *query, struct rk_error *error) {
    int result = SQLITE_ROW;
    enum rk_status status = RK_OK;
    while (status == RK_OK && result == SQLITE_ROW) {
        status = step(query, &result, error);
    }
    return status;
}

enum rk_status rk_query_next(struct rk_query *query, bool *row, struct rk_error *error) {
    int result = SQLITE_DONE;
    enum rk_status status = step(query, &result, error);
    if (status == RK_OK) {
        *row = result == SQLITE_ROW;
        query->next = 0;
    }
    return status;
}

enum rk_status rk_query_insert(struct rk_query *query, int64_t *id, struct rk_error *error) {
    enum rk_status status = rk_query_run(query, error);
    rk_query_close(query);
    if (status == RK_OK && id != NULL) {
        *id = sqlite3_last_insert_rowid(query->db->connection);
    }
    return status;
}

enum rk_status rk_query_find(struct rk_query *query, int64_t *value, struct rk_error *error) {
    bool row = false;
    enum rk_status status = rk_query_next(query, &row, error);
    if (status == RK_OK) {
        *value = row ? rk_read_integer(query) : 0;
    }
    rk_query_close(query);
    return status;
}

int64_t rk_read_integer(struct rk_query *query) {
    return sqlite3_column_int64(query->statement, query->next++);
}

int64_t rk_read_known(struct rk_query *query) {
    bool unknown = sqlite3_column_type(query->statement, query->next) == SQLITE_NULL;
    int64_t value = rk_read_integer(query);
    return unknown ? -1 : value;
}

int64_t rk_read_reference(struct rk_query *query) {
    return rk_read_integer(query);
}

double rk_read_real(struct rk_query *query) {
    bool unknown = sqlite3_column_type(query->statement, query->next) == SQLITE_NULL;
    double value = sqlite3_column_double(query->statement, query->next++);
    return unknown ? (double)NAN : value;
}

void rk_read_text(struct rk_query *query, char *buffer, size_t size) {
    const unsigned char *text = sqlite3_column_text(query->statement, query->next++);
    snprintf(buffer, size, "%s", text == NULL ? "" : (const char *)text);
}

char *rk_read_text_copy(struct rk_query *query) {
    const unsigned char *text = sqlite3_column_text(query->statement, query->next++);
    return text == NULL ? NULL : strdup((const char *)text);
}

void *rk_rows_add(struct rk_rows *rows, size_t row_size) {
    if (rows->count == rows->capacity) {
        size_t capacity = rows->capacity == 0 ? 16 : rows->capacity * 2;
        void *data = realloc(rows->data, capacity * row_size);
        if (data == NULL) {
            return NULL;
        }
        rows->data = data;
        rows->capacity = capacity;
    }
    void *row = (char *)rows->data + rows->count++ * row_size;
    memset(row, 0, row_size);
    return row;
}

enum rk_status rk_query_list(struct rk_query *query, size_t row_size, bool (*read)(struct rk_query *query, void *row),
                             void **rows, size_t *count, struct rk_error *error) {
    struct rk_rows found = {0};
    bool more = false;
    enum rk_status status;
    while ((status = rk_query_next(query, &more, error)) == RK_OK && more) {
        void *row = rk_rows_add(&found, row_size);
        if (row == NULL || !read(query, row)) {
            status = rk_fail(error, RK_ERROR, "%s: out of memory while %s", query->db->path, query->action);
            break;
        }
    }
    rk_query_close(query);
    if (status != RK_OK) {
        free(found.data);
        return status;
    }
    *rows = found.data;
    *count = found.count;
    return RK_OK;
}

enum rk_status rk_query_only(struct rk_query *query, const char *what, int64_t id, struct rk_error *error) {
    bool row = false;
    enum rk_status status = rk_query_next(query, &row, error);
    if (status == RK_OK && !row) {
        status = rk_fail(error, RK_USAGE, "%s: no %s %" PRId64 "; `reckon db list` shows what there is",
                         query->db->path, what, id);
    }
    if (status != RK_OK) {
        rk_query_close(query);
    }
    return status;
}

enum rk_status rk_query_children(struct rk_db *db, const char *sql, const char *action, int64_t id, size_t row_size,
                                 bool (*read)(struct rk_query *query, void *row), void **rows, size_t *count,
                                 struct rk_error *error) {
    struct rk_query query;
    enum rk_status status = rk_query_open(db, sql, action, &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, id);
    return rk_query_list(&query, row_size, read, rows, count, error);
}

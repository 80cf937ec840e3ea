/* What the files of db/ share: the connection, prepared statements, errors. Private to db/ and its tests. */
#ifndef RK_DB_INTERNAL_H
#define RK_DB_INTERNAL_H

#include "db/database.h"

#include <sqlite3.h>

enum { RK_DB_STATEMENTS = 64 };

/* A statement kept prepared, found again by the address of its text (a literal). */
struct rk_kept_statement {
    const char *sql;
    sqlite3_stmt *statement;
    bool busy;
};

struct rk_db {
    sqlite3 *connection;
    char *path;
    int64_t version;
    int64_t busy_timeout_ms;
    char read_only_reason[512]; /* empty: writable */
    int depth;                  /* of nested transactions */
    struct rk_kept_statement kept[RK_DB_STATEMENTS];
    size_t kept_count;
};

/* Turns the connection's last failure, met while doing `action` ("storing a measurement"), into a status and a text
 * with the path and the remedy. Returns the status. */
enum rk_status rk_db_fail(struct rk_db *db, const char *action, struct rk_error *error);
/* The same before there is a struct rk_db: code is an SQLite result. */
enum rk_status rk_sqlite_fail(const char *path, int code, const char *message, const char *action, int64_t waited_ms,
                              struct rk_error *error);

/* RK_DATABASE with the reason when the connection is read-only. */
enum rk_status rk_db_require_writable(struct rk_db *db, struct rk_error *error);

/* Brings an open, writable connection from its version to the newest: backup beside the file, then all steps in one
 * transaction. limit: the version to stop at (tests), 0 for the newest. */
enum rk_status rk_db_migrate(struct rk_db *db, int64_t limit, const struct rk_log *log, struct rk_error *error);

/* Runs statements without results. */
enum rk_status rk_db_execute(struct rk_db *db, const char *sql, const char *action, struct rk_error *error);
/* One integer result; 0 when there is no row. */
enum rk_status rk_db_integer(struct rk_db *db, const char *sql, const char *action, int64_t *value,
                             struct rk_error *error);

/* Ends a group of writes: commits when status is RK_OK, else rolls back. Returns the first failure. */
enum rk_status rk_db_end(struct rk_db *db, enum rk_status status, struct rk_error *error);

/* A statement being used. Values are bound and columns read from left to right, so that a list of columns is written
 * down once in the SQL and once in C, in the same order. */
struct rk_query {
    struct rk_db *db;
    sqlite3_stmt *statement;
    struct rk_kept_statement *kept; /* NULL: finalized on close */
    const char *action;             /* for messages */
    int next;                       /* next parameter, then next column */
    int failure;                    /* first result other than SQLITE_OK of a bind */
};

/* sql must be a literal (its address identifies the prepared statement). Close even after a failed step. */
enum rk_status rk_query_open(struct rk_db *db, const char *sql, const char *action, struct rk_query *query,
                             struct rk_error *error);
/* For text made at run time: prepared anew each time. */
enum rk_status rk_query_open_text(struct rk_db *db, const char *sql, const char *action, struct rk_query *query,
                                  struct rk_error *error);
void rk_query_close(struct rk_query *query);
/* Makes the statement ready for the next set of values. */
void rk_query_again(struct rk_query *query);

void rk_bind_integer(struct rk_query *query, int64_t value);
void rk_bind_known(struct rk_query *query, int64_t value);     /* a negative value is unknown: NULL */
void rk_bind_reference(struct rk_query *query, int64_t value); /* 0 refers to nothing: NULL */
void rk_bind_real(struct rk_query *query, double value);       /* NaN is unknown: NULL */
void rk_bind_text(struct rk_query *query,
                  const char *value); /* copied by the statement's next step: must live till then */
void rk_bind_blob(struct rk_query *query, const void *value, size_t length); /* NULL: NULL */

/* Steps a statement that has no rows to its end. */
enum rk_status rk_query_run(struct rk_query *query, struct rk_error *error);
/* Runs a statement that changes rows and closes it; *id (may be NULL) is the row that was inserted. */
enum rk_status rk_query_insert(struct rk_query *query, int64_t *id, struct rk_error *error);
/* Closes the query with the integer in its first row, 0 without a row. */
enum rk_status rk_query_find(struct rk_query *query, int64_t *value, struct rk_error *error);
/* Steps to the next row and points at its first column; *row false at the end. */
enum rk_status rk_query_next(struct rk_query *query, bool *row, struct rk_error *error);

int64_t rk_read_integer(struct rk_query *query);
int64_t rk_read_known(struct rk_query *query);     /* NULL: -1 */
int64_t rk_read_reference(struct rk_query *query); /* NULL: 0 */
double rk_read_real(struct rk_query *query);       /* NULL: NaN */
/* Copies into buffer. The schema bounds every text that is read this way. */
void rk_read_text(struct rk_query *query, char *buffer, size_t size);
/* A fresh copy; NULL without memory or for NULL. */
char *rk_read_text_copy(struct rk_query *query);

/* Reads all rows that are left into one array of row_size each and closes the query, also on failure. read fills one
 * zeroed row from the first column on and returns false without memory. *rows is the caller's (free); NULL when *count
 * is 0. */
enum rk_status rk_query_list(struct rk_query *query, size_t row_size, bool (*read)(struct rk_query *query, void *row),
                             void **rows, size_t *count, struct rk_error *error);
/* Opens sql, binds id as its first parameter and lists the rows. */
enum rk_status rk_query_children(struct rk_db *db, const char *sql, const char *action, int64_t id, size_t row_size,
                                 bool (*read)(struct rk_query *query, void *row), void **rows, size_t *count,
                                 struct rk_error *error);
/* A growing array for readers that skip rows. */
struct rk_rows {
    void *data;
    size_t count, capacity;
};
/* Space for one more row, zeroed; NULL without memory. */
void *rk_rows_add(struct rk_rows *rows, size_t row_size);

/* Steps to the only row of a query; RK_USAGE with "no <what> <id>" when there is none. Closes the query on failure. */
enum rk_status rk_query_only(struct rk_query *query, const char *what, int64_t id, struct rk_error *error);

/* Begins a group of writes with what campaigns and runs have in common: a UUID (buffer of RK_UUID_SIZE) unless there is
 * one, and the machine. On failure nothing was begun. */
struct rk_machine_identity;
struct rk_machine_ids;
enum rk_status rk_begin_on_machine(struct rk_db *db, const struct rk_machine_identity *machine, char *uuid,
                                   struct rk_machine_ids *ids, struct rk_error *error);

/* A random version 4 UUID as text of 36 characters; buffer of RK_UUID_SIZE (calibration.h). */
enum rk_status rk_uuid_make(char *uuid, struct rk_error *error);

#endif

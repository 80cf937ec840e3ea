/* The store of calibrations, plans and runs: one SQLite file, opened, brought up to date, checked.
 *
 * Rooms above speak to it in rows (calibration.h, plan_store.h, run_store.h); SQL stands in db/ only. One connection is
 * used by one thread. Only rank 0 of a job writes. Measured rows are append-only: triggers refuse changes and
 * deletions.
 *
 * Failures: RK_DATABASE for a database that is locked, damaged, newer than this program or not writable;
 * RK_UNCALIBRATED for one that does not exist yet and is only to be read; RK_ERROR for a full disk or an I/O error;
 * RK_USAGE for rows that break the rules. Every text names the file and the remedy. */
#ifndef RK_DB_DATABASE_H
#define RK_DB_DATABASE_H

#include "base/log.h"
#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

struct rk_db;

enum rk_db_access {
    RK_DB_READ, /* the file must exist; nothing in it changes, except that an older version is brought up to date */
    RK_DB_WRITE /* made with its folders when absent */
};

enum rk_db_journal {
    RK_DB_JOURNAL_AUTO,    /* WAL on a local file system, rollback journal on a network one or an unknown one */
    RK_DB_JOURNAL_ROLLBACK /* as if on a network file system */
};

/* Zero-initialised options mean: read, 60 s, automatic journal, no limit, silence. */
struct rk_db_options {
    enum rk_db_access access;
    int64_t busy_timeout_ms; /* how long a lock held by another process is waited for; 0 means 60,000 */
    enum rk_db_journal journal;
    int64_t page_limit;       /* most pages of 4,096 bytes that the file may grow to; 0: no limit */
    const struct rk_log *log; /* told of migrations, backups and read-only openings; may be NULL */
};

/* Opens path; *db is the caller's (rk_db_close). options may be NULL. A file of a newer version opens read-only
 * whatever was asked for: a later write is refused with the version and the remedy. A file of an older version is
 * copied to "PATH.vN.backup" and migrated, one transaction for all steps; when that fails the old file stands as it
 * was. */
enum rk_status rk_db_open(const char *path, const struct rk_db_options *options, struct rk_db **db,
                          struct rk_error *error);
void rk_db_close(struct rk_db *db);

const char *rk_db_path(const struct rk_db *db);
/* Version of the open file's schema; rk_db_newest_version() unless the file is newer. */
int64_t rk_db_version(const struct rk_db *db);
int64_t rk_db_newest_version(void);
/* Of SQLite: "3.40.1". */
const char *rk_db_library_version(void);
/* NULL, or why this connection cannot write. */
const char *rk_db_read_only_reason(const struct rk_db *db);

/* Groups writes: all of them are stored or none. May be nested; only the outermost commit makes rows last. Each write
 * function of the rooms' interfaces is atomic by itself; grouping is for speed and for larger units. */
enum rk_status rk_db_begin(struct rk_db *db, struct rk_error *error);
enum rk_status rk_db_commit(struct rk_db *db, struct rk_error *error);
void rk_db_rollback(struct rk_db *db);

/* Looks for damage: SQLite's integrity check, foreign keys, and what Reckon promises (sample counts and intervals, the
 * medians recomputed from the samples, steps without holes, one chosen candidate, refusals with a reason). One line for
 * each finding is appended to findings; *count is their number, 0 for a sound file. The status tells only whether the
 * check could be done. */
enum rk_status rk_db_check(struct rk_db *db, struct rk_text *findings, int64_t *count, struct rk_error *error);

/* A table and its number of rows, for `db list` and for people. */
struct rk_db_table_size {
    const char *name; /* static */
    int64_t rows;
};
/* *tables is the caller's (free); *count of them, in the order of the schema. */
enum rk_status rk_db_table_sizes(struct rk_db *db, struct rk_db_table_size **tables, size_t *count,
                                 struct rk_error *error);

#endif

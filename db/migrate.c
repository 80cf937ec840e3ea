/* Schema versions: the backup beside the file, then every step in one transaction. */
#include "db/internal.h"
#include "db/schema.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum rk_status sync_file(const char *path, int flags, struct rk_error *error) {
    int file = open(path, flags | O_CLOEXEC);
    if (file < 0) {
        return rk_fail(error, RK_ERROR, "%s: cannot be opened: %s", path, strerror(errno));
    }
    int result = fsync(file);
    int code = errno;
    close(file);
    if (result != 0) {
        return rk_fail(error, RK_ERROR, "%s: cannot be written to the disk: %s", path, strerror(code));
    }
    return RK_OK;
}

/* A second connection copies the file as committed while db holds the write lock, so the copy and the file that the
 * migration changes are the same. */
static enum rk_status vacuum_into(struct rk_db *db, const char *copy, struct rk_error *error) {
    sqlite3 *reader = NULL;
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_open_v2(db->path, &reader, SQLITE_OPEN_READONLY, NULL);
    if (code == SQLITE_OK) {
        sqlite3_busy_timeout(reader, (int)db->busy_timeout_ms);
        code = sqlite3_prepare_v2(reader, "VACUUM INTO ?", -1, &statement, NULL);
    }
    if (code == SQLITE_OK) {
        code = sqlite3_bind_text(statement, 1, copy, -1, SQLITE_STATIC);
    }
    if (code == SQLITE_OK) {
        code = sqlite3_step(statement);
    }
    enum rk_status status = RK_OK;
    if (code != SQLITE_DONE) {
        status = rk_sqlite_fail(db->path, code, reader == NULL ? sqlite3_errstr(code) : sqlite3_errmsg(reader),
                                "copying it before a migration", db->busy_timeout_ms, error);
    }
    sqlite3_finalize(statement);
    sqlite3_close(reader);
    return status;
}

static enum rk_status back_up(struct rk_db *db, int64_t version, struct rk_text *backup, struct rk_error *error) {
    struct rk_text partial = {0};
    struct rk_text folder = {0};
    rk_text_format(backup, "%s.v%" PRId64 ".backup", db->path, version);
    rk_text_format(&partial, "%s.partial-%ld", backup->data == NULL ? "" : backup->data, (long)getpid());
    const char *slash = strrchr(db->path, '/');
    rk_text_add_bytes(&folder, slash == NULL ? "." : db->path, slash == NULL ? 1 : (size_t)(slash - db->path) + 1);
    enum rk_status status;
    if (backup->failed || partial.failed || folder.failed) {
        status = rk_fail(error, RK_ERROR, "%s: out of memory", db->path);
        goto free_texts;
    }
    unlink(partial.data); /* left by a process of the same number that was killed */
    status = vacuum_into(db, partial.data, error);
    if (status == RK_OK) {
        status = sync_file(partial.data, O_RDWR, error);
    }
    if (status == RK_OK && rename(partial.data, backup->data) != 0) {
        status =
            rk_fail(error, RK_ERROR, "%s: cannot be renamed to %s: %s", partial.data, backup->data, strerror(errno));
    }
    if (status != RK_OK) {
        unlink(partial.data);
        goto free_texts;
    }
    status = sync_file(folder.data, O_RDONLY | O_DIRECTORY, error);
free_texts:
    rk_text_free(&partial);
    rk_text_free(&folder);
    return status;
}

static enum rk_status protect(struct rk_db *db, const char *table, const char *action, struct rk_error *error) {
    static const char *const events[] = {"UPDATE", "DELETE"};
    enum rk_status status = RK_OK;
    for (size_t i = 0; status == RK_OK && i < 2; i++) {
        struct rk_text sql = {0};
        rk_text_format(&sql,
                       "CREATE TRIGGER %s_no_%s BEFORE %s ON %s BEGIN"
                       " SELECT RAISE(ABORT, 'rows of %s are append-only'); END",
                       table, i == 0 ? "update" : "delete", events[i], table, table);
        status = sql.failed ? rk_fail(error, RK_ERROR, "%s: out of memory", db->path)
                            : rk_db_execute(db, sql.data, action, error);
        rk_text_free(&sql);
    }
    return status;
}

static enum rk_status apply(struct rk_db *db, const struct rk_db_migration *migration, struct rk_error *error) {
    static const char action[] = "bringing its schema up to date";
    enum rk_status status = RK_OK;
    for (const char *const *statement = migration->statements; status == RK_OK && *statement != NULL; statement++) {
        status = rk_db_execute(db, *statement, action, error);
    }
    for (const char *const *table = migration->append_only; status == RK_OK && *table != NULL; table++) {
        status = protect(db, *table, action, error);
    }
    return status;
}

static enum rk_status apply_all(struct rk_db *db, int64_t from, int64_t to, struct rk_error *error) {
    enum rk_status status = RK_OK;
    for (int64_t version = from; status == RK_OK && version < to; version++) {
        status = apply(db, &rk_db_migrations[version], error);
    }
    char header[128];
    snprintf(header, sizeof(header), "PRAGMA application_id = %d; PRAGMA user_version = %" PRId64, RK_DB_APPLICATION_ID,
             to);
    if (status == RK_OK) {
        status = rk_db_execute(db, header, "numbering its version", error);
    }
    return status;
}

enum rk_status rk_db_migrate(struct rk_db *db, int64_t limit, const struct rk_log *log, struct rk_error *error) {
    int64_t to = limit == 0 ? rk_db_migration_count : limit;
    int64_t from = 0;
    struct rk_text backup = {0};
    enum rk_status status = rk_db_execute(db, "BEGIN IMMEDIATE", "starting a migration", error);
    if (status != RK_OK) {
        return status;
    }
    /* Read again under the lock: another process may have done it meanwhile. */
    status = rk_db_integer(db, "PRAGMA user_version", "reading its version", &from, error);
    if (status != RK_OK || from >= to) {
        rk_db_execute(db, "ROLLBACK", "ending a migration", NULL);
        db->version = status == RK_OK ? from : db->version;
        return status;
    }
    if (from > 0) {
        status = back_up(db, from, &backup, error);
    }
    if (status == RK_OK) {
        status = apply_all(db, from, to, error);
    }
    if (status == RK_OK) {
        status = rk_db_execute(db, "COMMIT", "ending a migration", error);
    }
    if (status != RK_OK) {
        rk_db_execute(db, "ROLLBACK", "ending a migration", NULL);
    } else {
        db->version = to;
        if (from > 0) {
            rk_log_write(log, RK_LOG_INFO,
                         "%s: brought from version %" PRId64 " to %" PRId64 "; the old file is kept as %s", db->path,
                         from, to, backup.data);
        }
    }
    rk_text_free(&backup);
    return status;
}

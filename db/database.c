/* Opening and closing: what kind of file it is, on what file system, of which version, and how it may be used. */
#include "db/database.h"

#include "base/host.h"
#include "db/internal.h"
#include "db/schema.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { BUSY_TIMEOUT_MS = 60000, HEADER_BYTES = 100, WRITE_VERSION_BYTE = 18, WAL_WRITE_VERSION = 2 };

/* Makes the folders that path lies in. */
static enum rk_status make_folders(const char *path, struct rk_error *error) {
    char *copy = strdup(path);
    if (copy == NULL) {
        return rk_fail(error, RK_ERROR, "%s: out of memory", path);
    }
    enum rk_status status = RK_OK;
    for (char *slash = strchr(copy + 1, '/'); status == RK_OK && slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            status =
                rk_fail(error, RK_DATABASE, "%s: the folder cannot be made for %s: %s; give another file with --db",
                        copy, path, strerror(errno));
        }
        *slash = '/';
    }
    free(copy);
    return status;
}

/* Tells what stands at path before SQLite touches it. *exists false: nothing. *wal: in WAL mode. */
static enum rk_status inspect(const char *path, bool *exists, bool *wal, struct rk_error *error) {
    struct stat information;
    *exists = false;
    *wal = false;
    if (stat(path, &information) != 0) {
        if (errno == ENOENT) {
            return RK_OK;
        }
        return rk_fail(error, RK_DATABASE, "%s: cannot be reached: %s; give another file with --db", path,
                       strerror(errno));
    }
    if (!S_ISREG(information.st_mode)) {
        return rk_fail(error, RK_DATABASE, "%s: is a %s, not a file; give the database's file with --db", path,
                       S_ISDIR(information.st_mode) ? "folder" : "device");
    }
    if (information.st_size == 0) {
        return RK_OK;
    }
    unsigned char header[HEADER_BYTES] = {0};
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return rk_fail(error, RK_DATABASE, "%s: cannot be read: %s; give yourself permission or another file with --db",
                       path, strerror(errno));
    }
    ssize_t got = pread(file, header, sizeof(header), 0);
    close(file);
    if (got < HEADER_BYTES || memcmp(header, "SQLite format 3", 16) != 0) {
        return rk_fail(error, RK_DATABASE, "%s: is not a Reckon database%s; give another file with --db", path,
                       got >= 0 && got < HEADER_BYTES ? " or was cut short" : "");
    }
    *exists = true;
    *wal = header[WRITE_VERSION_BYTE] == WAL_WRITE_VERSION;
    return RK_OK;
}

/* The folder cannot be written, so WAL's shared memory cannot be made there; without a log the file alone is the whole
 * database and may be read as an immutable file. */
static bool must_be_immutable(const char *path) {
    struct rk_text folder = {0};
    struct rk_text log = {0};
    const char *slash = strrchr(path, '/');
    rk_text_add_bytes(&folder, slash == NULL ? "." : path, slash == NULL ? 1 : (size_t)(slash - path) + 1);
    rk_text_format(&log, "%s-wal", path);
    struct stat information;
    bool immutable = !folder.failed && !log.failed && faccessat(AT_FDCWD, folder.data, W_OK, AT_EACCESS) != 0 &&
                     (stat(log.data, &information) != 0 || information.st_size == 0);
    rk_text_free(&folder);
    rk_text_free(&log);
    return immutable;
}

static void uri(const char *path, struct rk_text *text) {
    rk_text_add(text, "file:");
    for (const char *byte = path; *byte != '\0'; byte++) {
        bool plain = isalnum((unsigned char)*byte) || strchr("/._-~", *byte) != NULL;
        rk_text_format(text, plain ? "%c" : "%%%02X", (unsigned char)*byte);
    }
    rk_text_add(text, "?immutable=1");
}

/* WAL's shared memory may be there (a writer is at work) or not; only then is the file read as immutable. */
static int connect_reading(struct rk_db *db) {
    struct rk_text name = {0};
    int code = sqlite3_open_v2(db->path, &db->connection, SQLITE_OPEN_READONLY, NULL);
    if (code == SQLITE_OK) {
        sqlite3_busy_timeout(db->connection, (int)db->busy_timeout_ms);
        code = sqlite3_exec(db->connection, "PRAGMA schema_version", NULL, NULL, NULL);
    }
    if (db->connection == NULL) {
        return code;
    }
    if ((code & 0xff) != SQLITE_CANTOPEN && (code & 0xff) != SQLITE_READONLY) {
        return SQLITE_OK; /* what else may be wrong is met again, and named, when the header is read */
    }
    if (!must_be_immutable(db->path)) {
        return code;
    }
    sqlite3_close(db->connection);
    db->connection = NULL;
    uri(db->path, &name);
    code = name.failed ? SQLITE_NOMEM
                       : sqlite3_open_v2(name.data, &db->connection, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL);
    rk_text_free(&name);
    return code;
}

static enum rk_status connect(struct rk_db *db, bool write, struct rk_error *error) {
    int code = write ? sqlite3_open_v2(db->path, &db->connection, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL)
                     : connect_reading(db);
    if (code != SQLITE_OK) {
        return rk_sqlite_fail(db->path, code,
                              db->connection == NULL ? sqlite3_errstr(code) : sqlite3_errmsg(db->connection),
                              "opening it", db->busy_timeout_ms, error);
    }
    sqlite3_extended_result_codes(db->connection, 1);
    sqlite3_busy_timeout(db->connection, (int)db->busy_timeout_ms);
    sqlite3_db_config(db->connection, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(db->connection, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    /* Recursive triggers make INSERT OR REPLACE fire the triggers that keep rows append-only. */
    return rk_db_execute(db, "PRAGMA foreign_keys = ON; PRAGMA recursive_triggers = ON; PRAGMA cell_size_check = ON",
                         "opening it", error);
}

static void disconnect(struct rk_db *db) {
    for (size_t i = 0; i < db->kept_count; i++) {
        sqlite3_finalize(db->kept[i].statement);
    }
    db->kept_count = 0;
    sqlite3_close(db->connection);
    db->connection = NULL;
}

/* WAL lets readers and the writer work at once, but needs shared memory: never across hosts. */
static enum rk_status choose_journal(struct rk_db *db, const struct rk_db_options *options, bool wal, bool fresh,
                                     struct rk_error *error) {
    struct statfs file_system;
    bool local = options->journal == RK_DB_JOURNAL_AUTO && statfs(db->path, &file_system) == 0 &&
                 rk_file_system_is_local((int64_t)file_system.f_type);
    if (local && fresh) {
        /* Another process that makes the same file at the same moment may hold it: then its choice stands. */
        rk_db_execute(db, "PRAGMA journal_mode = WAL", "choosing its journal", NULL);
    }
    if (!local && wal) {
        return rk_db_execute(db,
                             "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = DELETE;"
                             "PRAGMA locking_mode = NORMAL; SELECT count(*) FROM sqlite_schema;"
                             "PRAGMA synchronous = FULL",
                             "leaving WAL mode, which is unsafe on this file system", error);
    }
    return rk_db_execute(db, local ? "PRAGMA synchronous = NORMAL" : "PRAGMA synchronous = FULL", "opening it", error);
}

/* Whose file it is and of which version. *fresh: it holds nothing yet. */
static enum rk_status identify(struct rk_db *db, bool *fresh, struct rk_error *error) {
    static const char action[] = "reading its header";
    int64_t application = 0;
    int64_t objects = 0;
    enum rk_status status = rk_db_integer(db, "SELECT count(*) FROM sqlite_schema", action, &objects, error);
    if (status == RK_OK) {
        status = rk_db_integer(db, "PRAGMA application_id", action, &application, error);
    }
    if (status == RK_OK) {
        status = rk_db_integer(db, "PRAGMA user_version", action, &db->version, error);
    }
    if (status != RK_OK) {
        return status;
    }
    *fresh = objects == 0 && application == 0 && db->version == 0;
    if (*fresh) {
        return RK_OK;
    }
    if (application != RK_DB_APPLICATION_ID) {
        return rk_fail(error, RK_DATABASE,
                       "%s: is a database of another program (application id %" PRId64
                       "), left untouched; give another "
                       "file with --db",
                       db->path, application);
    }
    if (db->version < 1) {
        return rk_fail(error, RK_DATABASE, "%s: damaged: its header has version %" PRId64 "; restore a backup",
                       db->path, db->version);
    }
    return RK_OK;
}

static enum rk_status become_read_only(struct rk_db *db, const struct rk_log *log, struct rk_error *error) {
    snprintf(db->read_only_reason, sizeof(db->read_only_reason),
             "it has version %" PRId64 " and this reckon writes version %" PRId64
             " (opened read-only); use the newer reckon that wrote it, or give another file with --db",
             db->version, rk_db_migration_count);
    rk_log_write(log, RK_LOG_WARNING, "%s: %s", db->path, db->read_only_reason);
    disconnect(db);
    return connect(db, false, error);
}

static enum rk_status bring_up_to_date(struct rk_db *db, bool write, const struct rk_log *log, struct rk_error *error) {
    if (write) {
        return rk_db_migrate(db, 0, log, error);
    }
    disconnect(db);
    enum rk_status status = connect(db, true, error);
    if (status == RK_OK) {
        status = rk_db_migrate(db, 0, log, error);
    }
    if (status != RK_OK) {
        return rk_fail_context(error, "an older version must be brought up to date before it is read");
    }
    disconnect(db);
    return connect(db, false, error);
}

static enum rk_status open_connected(struct rk_db *db, const struct rk_db_options *options, bool wal,
                                     struct rk_error *error) {
    bool write = options->access == RK_DB_WRITE;
    bool fresh = false;
    enum rk_status status = connect(db, write, error);
    if (status == RK_OK) {
        status = identify(db, &fresh, error);
    }
    if (status != RK_OK) {
        return status;
    }
    if (fresh && !write) {
        return rk_fail(error, RK_UNCALIBRATED, "%s: holds nothing yet; run `reckon calibrate --db %s`", db->path,
                       db->path);
    }
    if (db->version > rk_db_migration_count) {
        return become_read_only(db, options->log, error);
    }
    if (write && sqlite3_db_readonly(db->connection, "main") == 1) {
        return rk_sqlite_fail(db->path, SQLITE_READONLY, "the file is read-only", "opening it for writing", 0, error);
    }
    if (write) {
        status = choose_journal(db, options, wal, fresh, error);
    } else {
        snprintf(db->read_only_reason, sizeof(db->read_only_reason), "it was opened for reading only");
    }
    if (status == RK_OK && options->page_limit > 0) {
        char limit[64];
        snprintf(limit, sizeof(limit), "PRAGMA max_page_count = %" PRId64, options->page_limit);
        status = rk_db_execute(db, limit, "opening it", error);
    }
    if (status == RK_OK && db->version < rk_db_migration_count) {
        status = bring_up_to_date(db, write, options->log, error);
    }
    return status;
}

enum rk_status rk_db_open(const char *path, const struct rk_db_options *options, struct rk_db **db,
                          struct rk_error *error) {
    static const struct rk_db_options defaults = {.access = RK_DB_READ};
    options = options == NULL ? &defaults : options;
    bool exists = false;
    bool wal = false;
    enum rk_status status = inspect(path, &exists, &wal, error);
    if (status != RK_OK) {
        return status;
    }
    if (!exists && options->access == RK_DB_READ) {
        return rk_fail(error, RK_UNCALIBRATED,
                       "%s: no database there; run `reckon calibrate` first, or name the file with --db", path);
    }
    if (!exists) {
        status = make_folders(path, error);
    }
    if (status != RK_OK) {
        return status;
    }
    struct rk_db *opened = calloc(1, sizeof(*opened));
    char *copy = strdup(path);
    if (opened == NULL || copy == NULL) {
        free(opened);
        free(copy);
        return rk_fail(error, RK_ERROR, "%s: out of memory", path);
    }
    opened->path = copy;
    opened->busy_timeout_ms = options->busy_timeout_ms > 0 ? options->busy_timeout_ms : BUSY_TIMEOUT_MS;
    status = open_connected(opened, options, wal, error);
    if (status != RK_OK) {
        rk_db_close(opened);
        return status;
    }
    *db = opened;
    return RK_OK;
}

void rk_db_close(struct rk_db *db) {
    if (db == NULL) {
        return;
    }
    disconnect(db);
    free(db->path);
    free(db);
}

const char *rk_db_path(const struct rk_db *db) {
    return db->path;
}

int64_t rk_db_version(const struct rk_db *db) {
    return db->version;
}

int64_t rk_db_newest_version(void) {
    return rk_db_migration_count;
}

const char *rk_db_library_version(void) {
    return sqlite3_libversion();
}

const char *rk_db_read_only_reason(const struct rk_db *db) {
    return db->read_only_reason[0] == '\0' ? NULL : db->read_only_reason;
}

enum rk_status rk_db_begin(struct rk_db *db, struct rk_error *error) {
    enum rk_status status = rk_db_require_writable(db, error);
    if (status == RK_OK) {
        status = rk_db_execute(db, db->depth == 0 ? "BEGIN IMMEDIATE" : "SAVEPOINT nested", "starting to write", error);
    }
    if (status == RK_OK) {
        db->depth++;
    }
    return status;
}

enum rk_status rk_db_commit(struct rk_db *db, struct rk_error *error) {
    enum rk_status status = rk_db_execute(db, db->depth == 1 ? "COMMIT" : "RELEASE nested", "storing rows", error);
    if (status != RK_OK) {
        rk_db_rollback(db);
        return status;
    }
    db->depth--;
    return RK_OK;
}

void rk_db_rollback(struct rk_db *db) {
    /* A full disk may have rolled everything back already; then these statements fail and that is all right. */
    sqlite3_exec(db->connection, db->depth == 1 ? "ROLLBACK" : "ROLLBACK TO nested; RELEASE nested", NULL, NULL, NULL);
    db->depth--;
}

enum rk_status rk_db_end(struct rk_db *db, enum rk_status status, struct rk_error *error) {
    if (status == RK_OK) {
        return rk_db_commit(db, error);
    }
    rk_db_rollback(db);
    return status;
}

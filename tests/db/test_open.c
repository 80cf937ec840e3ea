/* Opening what is not a sound, current, writable database of ours; other processes; migrations. */
#include "tests/db/fixture.h"

#include "base/host.h"
#include "base/random.h"
#include "base/text.h"
#include "db/internal.h"
#include "db/schema.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static enum rk_status try_open(struct fixture *fixture, enum rk_db_access access, struct rk_db **db) {
    struct rk_db_options options = {.access = access, .busy_timeout_ms = 200};
    *db = NULL;
    return rk_db_open(fixture->path, &options, db, &fixture->error);
}

static void write_bytes(const char *path, const void *bytes, size_t length) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* A closed database with a campaign of count cases. */
static void make_database(struct fixture *fixture, size_t count) {
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_machine_identity machine = cpu_machine("none");
    store_campaign(fixture, db, &machine, count);
    rk_db_close(db);
}

static size_t count_measurements(struct fixture *fixture, struct rk_db *db, int64_t campaign) {
    struct rk_measured_case *rows = NULL;
    size_t count = 0;
    expect_status(fixture, rk_measurement_list(db, campaign, &rows, &count, &fixture->error), RK_OK);
    free(rows);
    return count;
}

static void a_missing_file_says_what_to_do(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db;
    expect_status(fixture, try_open(fixture, RK_DB_READ, &db), RK_UNCALIBRATED);
    expect_text(fixture, fixture->path);
    expect_text(fixture, "reckon calibrate");
    write_bytes(fixture->path, "", 0);
    expect_status(fixture, try_open(fixture, RK_DB_READ, &db), RK_UNCALIBRATED);
}

static void folders_are_made(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db;
    snprintf(fixture->path, sizeof(fixture->path), "%s/a/b c/ü%%20.db", fixture->folder);
    expect_status(fixture, try_open(fixture, RK_DB_WRITE, &db), RK_OK);
    assert_int_equal(rk_db_version(db), rk_db_newest_version());
    assert_null(rk_db_read_only_reason(db));
    rk_db_close(db);
    snprintf(fixture->path, sizeof(fixture->path), "%s/a/b c/ü%%20.db/x.db", fixture->folder);
    expect_status(fixture, try_open(fixture, RK_DB_WRITE, &db), RK_DATABASE);
}

static void what_is_no_database_is_refused(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db;
    char text[4096];
    memset(text, 'x', sizeof(text));
    for (int access = RK_DB_READ; access <= RK_DB_WRITE; access++) {
        write_bytes(fixture->path, text, sizeof(text));
        expect_status(fixture, try_open(fixture, (enum rk_db_access)access, &db), RK_DATABASE);
        expect_text(fixture, "is not a Reckon database");
        write_bytes(fixture->path, "SQLite format 3", 16);
        expect_status(fixture, try_open(fixture, (enum rk_db_access)access, &db), RK_DATABASE);
        expect_text(fixture, "cut short");
        assert_int_equal(unlink(fixture->path), 0);
        assert_int_equal(mkdir(fixture->path, 0777), 0);
        expect_status(fixture, try_open(fixture, (enum rk_db_access)access, &db), RK_DATABASE);
        expect_text(fixture, "folder");
        assert_int_equal(rmdir(fixture->path), 0);
    }
}

static void another_programs_database_is_left_alone(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db;
    sqlite3 *other = NULL;
    assert_int_equal(sqlite3_open(fixture->path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "PRAGMA application_id = 42; CREATE TABLE t (a); INSERT INTO t VALUES (1)",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(other);
    expect_status(fixture, try_open(fixture, RK_DB_WRITE, &db), RK_DATABASE);
    expect_text(fixture, "another program");
    assert_int_equal(sqlite3_open(fixture->path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "SELECT a FROM t", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(other);
}

static void a_truncated_file_is_damage(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db;
    make_database(fixture, 200);
    struct stat information;
    assert_int_equal(stat(fixture->path, &information), 0);
    assert_int_equal(truncate(fixture->path, information.st_size / 2 / 4096 * 4096), 0);
    expect_status(fixture, try_open(fixture, RK_DB_READ, &db), RK_DATABASE);
    expect_text(fixture, "damaged");
    expect_text(fixture, ".recover");
    expect_status(fixture, try_open(fixture, RK_DB_WRITE, &db), RK_DATABASE);
}

static void damaged_pages_are_found(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db;
    make_database(fixture, 2000);
    struct stat information;
    assert_int_equal(stat(fixture->path, &information), 0);
    int file = open(fixture->path, O_RDWR);
    assert_true(file >= 0);
    char garbage[4096];
    memset(garbage, 0xA5, sizeof(garbage));
    /* The schema (the first pages) is kept: the damage is met only when rows are read. */
    for (off_t page = information.st_size / 4096 * 3 / 4; page < information.st_size / 4096; page++) {
        assert_int_equal(pwrite(file, garbage, sizeof(garbage), page * 4096), sizeof(garbage));
    }
    close(file);
    expect_status(fixture, try_open(fixture, RK_DB_READ, &db), RK_OK);
    struct rk_measured_case *rows = NULL;
    size_t count = 0;
    expect_status(fixture, rk_measurement_list(db, 1, &rows, &count, &fixture->error), RK_DATABASE);
    expect_text(fixture, "damaged");
    struct rk_text findings = {0};
    int64_t found = 0;
    expect_status(fixture, rk_db_check(db, &findings, &found, &fixture->error), RK_OK);
    assert_true(found > 0);
    assert_non_null(strstr(findings.data, "damage: "));
    rk_text_free(&findings);
    rk_db_close(db);
}

/* Reads whatever can be read; every failure has the right status and a text. */
static void read_all(struct fixture *fixture) {
    struct rk_db *db;
    struct rk_campaign_row *campaigns = NULL;
    struct rk_plan_row *plans = NULL;
    struct rk_run_row *runs = NULL;
    struct rk_measured_case *rows = NULL;
    struct rk_text findings = {0};
    size_t count = 0;
    int64_t found = 0;
    enum rk_status status = try_open(fixture, RK_DB_READ, &db);
    if (status != RK_OK) {
        if (status != RK_DATABASE && status != RK_ERROR) {
            fail_msg("%s: %s", rk_status_name(status), fixture->error.text);
        }
        expect_text(fixture, fixture->path);
        return;
    }
    const enum rk_status results[] = {
        rk_campaign_list(db, &campaigns, &count, &fixture->error), rk_plan_list(db, &plans, &count, &fixture->error),
        rk_run_list(db, &runs, &count, &fixture->error), rk_measurement_list(db, 1, &rows, &count, &fixture->error)};
    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        assert_true(results[i] == RK_OK || results[i] == RK_DATABASE || results[i] == RK_ERROR);
    }
    if (rk_db_check(db, &findings, &found, &fixture->error) != RK_OK) {
        expect_text(fixture, fixture->path);
    }
    free(campaigns);
    free(plans);
    free(runs);
    free(rows);
    rk_text_free(&findings);
    rk_db_close(db);
}

static void any_flipped_bytes_end_in_a_message(void **state) {
    struct fixture *fixture = *state;
    enum { ROUNDS = 150, FLIPS = 24 };
    struct rk_db *made = fixture_open(fixture, RK_DB_WRITE);
    struct rk_machine_identity machine = gpu_machine();
    store_campaign(fixture, made, &machine, 30);
    store_run(fixture, made, store_plan(fixture, made, "{}"));
    rk_db_close(made);
    char *sound = NULL;
    size_t length = 0;
    expect_status(fixture, rk_read_file(fixture->path, 1 << 24, &sound, &length, &fixture->error), RK_OK);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        char *changed = malloc(length);
        assert_non_null(changed);
        memcpy(changed, sound, length);
        for (uint64_t flip = 0; flip < FLIPS; flip++) {
            uint64_t at = 100 + rk_random_below(round, 2 * flip, length - 100); /* the header has tests of its own */
            changed[at] = (char)rk_random_bits(round, 2 * flip + 1);
        }
        write_bytes(fixture->path, changed, length);
        free(changed);
        read_all(fixture);
    }
    free(sound);
}

static void a_newer_version_is_read_only(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db;
    make_database(fixture, 2);
    sqlite3 *raw = NULL;
    assert_int_equal(sqlite3_open(fixture->path, &raw), SQLITE_OK);
    assert_int_equal(sqlite3_exec(raw, "PRAGMA user_version = 99", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(raw);
    expect_status(fixture, try_open(fixture, RK_DB_WRITE, &db), RK_OK);
    assert_int_equal(rk_db_version(db), 99);
    assert_non_null(rk_db_read_only_reason(db));
    assert_int_equal(count_measurements(fixture, db, 1), 2);
    int64_t id = 0;
    struct rk_case_row bench_case = gemm_case(5, 5, 5);
    struct rk_telemetry_row telemetry = {.campaign_id = 1};
    expect_status(fixture, rk_case_store(db, &bench_case, &id, &fixture->error), RK_DATABASE);
    expect_text(fixture, "version 99");
    expect_text(fixture, "newer reckon");
    expect_status(fixture, rk_telemetry_store(db, &telemetry, &fixture->error), RK_DATABASE);
    expect_text(fixture, "version 99");
    expect_status(fixture, rk_db_begin(db, &fixture->error), RK_DATABASE);
    rk_db_close(db);
}

/* Runs body in a child without root's rights; the test fails when the child does. */
static void in_child(struct fixture *fixture, bool unprivileged, void (*body)(struct fixture *fixture)) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (unprivileged && geteuid() == 0 && (setegid(NOBODY) != 0 || seteuid(NOBODY) != 0)) {
            _exit(99);
        }
        body(fixture);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Child exits with the line of the first broken expectation. */
#define CHILD_EXPECT(condition)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, fixture->error.text);                   \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static void read_but_not_write(struct fixture *fixture) {
    struct rk_db *db;
    struct rk_campaign_row row;
    CHILD_EXPECT(try_open(fixture, RK_DB_READ, &db) == RK_OK);
    CHILD_EXPECT(rk_campaign_get(db, 1, &row, &fixture->error) == RK_OK && row.measurements == 2);
    CHILD_EXPECT(rk_db_begin(db, &fixture->error) == RK_DATABASE);
    rk_db_close(db);
    CHILD_EXPECT(try_open(fixture, RK_DB_WRITE, &db) == RK_DATABASE);
    CHILD_EXPECT(strstr(fixture->error.text, "permission") != NULL);
}

static void refuse_to_read(struct fixture *fixture) {
    struct rk_db *db;
    CHILD_EXPECT(try_open(fixture, RK_DB_READ, &db) == RK_DATABASE);
    CHILD_EXPECT(strstr(fixture->error.text, fixture->path) != NULL);
}

static void a_read_only_file_and_folder_can_be_read(void **state) {
    struct fixture *fixture = *state;
    make_database(fixture, 2);
    assert_int_equal(chmod(fixture->path, 0444), 0);
    assert_int_equal(chmod(fixture->folder, 0555), 0);
    in_child(fixture, true, read_but_not_write);
    assert_int_equal(chmod(fixture->folder, 0777), 0);
    in_child(fixture, true, read_but_not_write);
    assert_int_equal(chmod(fixture->path, 0000), 0);
    in_child(fixture, true, refuse_to_read);
    assert_int_equal(chmod(fixture->folder, 0755), 0);
}

static void follow_a_writer(struct fixture *fixture) {
    struct rk_db *db;
    struct rk_campaign_row row;
    CHILD_EXPECT(try_open(fixture, RK_DB_READ, &db) == RK_OK);
    CHILD_EXPECT(rk_campaign_get(db, 1, &row, &fixture->error) == RK_OK && row.measurements == 3);
    rk_db_close(db);
}

/* The newest rows lie in the writer's log, which an immutable reading would miss. */
static void a_reader_without_rights_follows_a_writer(void **state) {
    struct fixture *fixture = *state;
    make_database(fixture, 2);
    struct rk_db *writer = fixture_open(fixture, RK_DB_WRITE);
    const double samples[] = {1e-3, 2e-3, 3e-3};
    struct rk_measurement_row row = measurement_of(1, 1, samples, 3);
    expect_status(fixture, rk_measurement_store(writer, &row, samples, NULL, 3, NULL, &fixture->error), RK_OK);
    assert_int_equal(chmod(fixture->folder, 0555), 0);
    in_child(fixture, true, follow_a_writer);
    assert_int_equal(chmod(fixture->folder, 0755), 0);
    rk_db_close(writer);
}

/* Starts a child that takes the lock of an open transaction and holds it until it is killed. */
static pid_t hold_lock(struct fixture *fixture, const char *begin) {
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        sqlite3 *raw = NULL;
        if (sqlite3_open(fixture->path, &raw) != SQLITE_OK || sqlite3_exec(raw, begin, NULL, NULL, NULL) != SQLITE_OK ||
            write(ready[1], "x", 1) != 1) {
            _exit(1);
        }
        for (;;) {
            pause();
        }
    }
    char byte;
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

static void end_child(pid_t child) {
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void a_lock_is_waited_for_and_named(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db;
    make_database(fixture, 1);
    pid_t child = hold_lock(fixture, "BEGIN IMMEDIATE");
    expect_status(fixture, try_open(fixture, RK_DB_WRITE, &db), RK_OK);
    assert_int_equal(count_measurements(fixture, db, 1), 1); /* readers go on beside a writer */
    expect_status(fixture, rk_db_begin(db, &fixture->error), RK_DATABASE);
    expect_text(fixture, "locked by another process (waited 0.2 s)");
    expect_text(fixture, fixture->path);
    end_child(child);
    expect_status(fixture, rk_db_begin(db, &fixture->error), RK_OK);
    rk_db_rollback(db);
    rk_db_close(db);
}

static void an_exclusive_lock_stops_readers_too(void **state) {
    struct fixture *fixture = *state;
    struct rk_db_options options = {.access = RK_DB_WRITE, .journal = RK_DB_JOURNAL_ROLLBACK, .busy_timeout_ms = 100};
    struct rk_db *db = NULL;
    expect_status(fixture, rk_db_open(fixture->path, &options, &db, &fixture->error), RK_OK);
    rk_db_close(db);
    pid_t child = hold_lock(fixture, "BEGIN EXCLUSIVE");
    expect_status(fixture, try_open(fixture, RK_DB_READ, &db), RK_DATABASE);
    expect_text(fixture, "locked");
    end_child(child);
    expect_status(fixture, try_open(fixture, RK_DB_READ, &db), RK_OK);
    rk_db_close(db);
}

/* Stores campaigns of 20 cases until it fails. Returns how many were stored. */
static int fill(struct fixture *fixture, struct rk_db *db, enum rk_status *status) {
    struct rk_machine_identity machine = cpu_machine("none");
    struct rk_campaign_row campaign = campaign_row();
    double samples[2000];
    for (size_t i = 0; i < 2000; i++) {
        samples[i] = 1e-3 + 1e-6 * (double)(i % 7);
    }
    int64_t id = 0;
    int64_t case_id = 0;
    struct rk_case_row bench_case = gemm_case(1, 2, 3);
    if ((*status = rk_campaign_begin(db, &machine, &campaign, &id, &fixture->error)) != RK_OK ||
        (*status = rk_case_store(db, &bench_case, &case_id, &fixture->error)) != RK_OK) {
        return 0;
    }
    struct rk_measurement_row row = measurement_of(id, case_id, samples, 2000);
    int stored = 0;
    while (stored < 10000 &&
           (*status = rk_measurement_store(db, &row, samples, NULL, 2000, NULL, &fixture->error)) == RK_OK) {
        stored++;
    }
    return stored;
}

static void what_was_stored_stays(struct fixture *fixture, struct rk_db *db, int stored) {
    struct rk_text findings = {0};
    int64_t found = 0;
    assert_true(stored > 0);
    assert_int_equal(count_measurements(fixture, db, 1), stored);
    expect_status(fixture, rk_db_check(db, &findings, &found, &fixture->error), RK_OK);
    if (found != 0) {
        fail_msg("%s", findings.data);
    }
    rk_text_free(&findings);
}

static void a_full_file_keeps_what_it_has(void **state) {
    struct fixture *fixture = *state;
    struct rk_db_options options = {.access = RK_DB_WRITE, .page_limit = 200};
    struct rk_db *db = NULL;
    enum rk_status status = RK_OK;
    expect_status(fixture, rk_db_open(fixture->path, &options, &db, &fixture->error), RK_OK);
    int stored = fill(fixture, db, &status);
    expect_status(fixture, status, RK_ERROR);
    expect_text(fixture, "no space left");
    expect_text(fixture, fixture->path);
    what_was_stored_stays(fixture, db, stored);
    rk_db_close(db);
}

static void a_full_file_system_keeps_what_it_has(void **state) {
    struct fixture *fixture = *state;
    if (geteuid() != 0 || mount("tmpfs", fixture->folder, "tmpfs", 0, "size=1m") != 0) {
        skip();
    }
    struct rk_db *db = NULL;
    enum rk_status status = RK_OK;
    expect_status(fixture, try_open(fixture, RK_DB_WRITE, &db), RK_OK);
    int stored = fill(fixture, db, &status);
    expect_status(fixture, status, RK_ERROR);
    expect_text(fixture, "space");
    what_was_stored_stays(fixture, db, stored);
    rk_db_close(db);
    expect_status(fixture, try_open(fixture, RK_DB_READ, &db), RK_OK);
    what_was_stored_stays(fixture, db, stored);
    rk_db_close(db);
    assert_int_equal(umount(fixture->folder), 0);
}

static void fill_under_a_size_limit(struct fixture *fixture) {
    struct rk_db *db;
    enum rk_status status = RK_OK;
    struct rlimit limit = {1 << 20, 1 << 20};
    signal(SIGXFSZ, SIG_IGN);
    CHILD_EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHILD_EXPECT(try_open(fixture, RK_DB_WRITE, &db) == RK_OK);
    int stored = fill(fixture, db, &status);
    CHILD_EXPECT(status == RK_ERROR && stored > 0);
    CHILD_EXPECT(strstr(fixture->error.text, "space") != NULL);
    rk_db_close(db);
}

static void a_limit_on_file_size_keeps_what_it_has(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db;
    in_child(fixture, false, fill_under_a_size_limit);
    expect_status(fixture, try_open(fixture, RK_DB_READ, &db), RK_OK);
    what_was_stored_stays(fixture, db, (int)count_measurements(fixture, db, 1));
    rk_db_close(db);
}

/* Writes measurements, one transaction each, telling their number through a pipe, until it is killed. */
static void write_for_ever(struct fixture *fixture, int tell, enum rk_db_journal journal) {
    struct rk_db_options options = {.access = RK_DB_WRITE, .journal = journal};
    struct rk_db *db = NULL;
    const double samples[] = {1e-3, 2e-3, 3e-3};
    CHILD_EXPECT(rk_db_open(fixture->path, &options, &db, &fixture->error) == RK_OK);
    struct rk_measurement_row row = measurement_of(1, 1, samples, 3);
    for (int i = 1;; i++) {
        CHILD_EXPECT(rk_measurement_store(db, &row, samples, NULL, 3, NULL, &fixture->error) == RK_OK);
        CHILD_EXPECT(write(tell, &i, sizeof(i)) == sizeof(i));
        if (i % 3 == 0) { /* something unfinished for the kill to meet */
            CHILD_EXPECT(rk_db_begin(db, &fixture->error) == RK_OK);
            CHILD_EXPECT(rk_measurement_store(db, &row, samples, NULL, 3, NULL, &fixture->error) == RK_OK);
            usleep(300);
            rk_db_rollback(db);
        }
    }
}

static void kill_a_writer(struct fixture *fixture, enum rk_db_journal journal, useconds_t after) {
    int tell[2];
    assert_int_equal(pipe(tell), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(tell[0]);
        write_for_ever(fixture, tell[1], journal);
    }
    close(tell[1]);
    int told = 0;
    int last = 0;
    assert_int_equal(read(tell[0], &last, sizeof(last)), sizeof(last));
    usleep(after);
    end_child(child);
    while (read(tell[0], &told, sizeof(told)) == sizeof(told)) {
        last = told;
    }
    close(tell[0]);
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    size_t found = count_measurements(fixture, db, 1);
    struct rk_text findings = {0};
    int64_t count = 0;
    expect_status(fixture, rk_db_check(db, &findings, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 0);
    /* One more may have been stored without having been told. */
    if (found < (size_t)last + 1 || found > (size_t)last + 2) {
        fail_msg("%zu measurements, %d were told besides the first", found, last);
    }
    rk_text_free(&findings);
    rk_db_close(db);
}

static void a_killed_writer_loses_nothing_committed(void **state) {
    struct fixture *fixture = *state;
    for (int i = 0; i < 12; i++) {
        make_database(fixture, 1);
        kill_a_writer(fixture, i % 2 == 0 ? RK_DB_JOURNAL_AUTO : RK_DB_JOURNAL_ROLLBACK, (useconds_t)(1700 * i));
        assert_int_equal(unlink(fixture->path), 0);
    }
}

static void readers_and_a_writer_work_at_once(void **state) {
    struct fixture *fixture = *state;
    make_database(fixture, 1);
    pid_t readers[3];
    fflush(NULL);
    for (int i = 0; i < 3; i++) {
        readers[i] = fork();
        assert_true(readers[i] >= 0);
        if (readers[i] == 0) {
            size_t last = 1;
            for (int round = 0; round < 200; round++) {
                struct rk_db *db;
                struct rk_campaign_row row;
                CHILD_EXPECT(try_open(fixture, RK_DB_READ, &db) == RK_OK);
                CHILD_EXPECT(rk_campaign_get(db, 1, &row, &fixture->error) == RK_OK);
                CHILD_EXPECT(row.measurements >= (int64_t)last);
                last = (size_t)row.measurements;
                rk_db_close(db);
            }
            _exit(0);
        }
    }
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    const double samples[] = {1e-3, 2e-3, 3e-3};
    struct rk_measurement_row row = measurement_of(1, 1, samples, 3);
    for (int i = 0; i < 500; i++) {
        expect_status(fixture, rk_measurement_store(db, &row, samples, NULL, 3, NULL, &fixture->error), RK_OK);
    }
    rk_db_close(db);
    for (int i = 0; i < 3; i++) {
        int status = 0;
        assert_int_equal(waitpid(readers[i], &status, 0), readers[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void many_processes_create_one_database(void **state) {
    struct fixture *fixture = *state;
    pid_t children[6];
    fflush(NULL);
    for (int i = 0; i < 6; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            struct rk_db_options options = {.access = RK_DB_WRITE, .busy_timeout_ms = 20000};
            struct rk_db *db = NULL;
            struct rk_machine_identity machine = cpu_machine("none");
            struct rk_campaign_row campaign = campaign_row();
            int64_t id = 0;
            CHILD_EXPECT(rk_db_open(fixture->path, &options, &db, &fixture->error) == RK_OK);
            CHILD_EXPECT(rk_campaign_begin(db, &machine, &campaign, &id, &fixture->error) == RK_OK);
            rk_db_close(db);
            _exit(0);
        }
    }
    for (int i = 0; i < 6; i++) {
        int status = 0;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    struct rk_db *db = fixture_open(fixture, RK_DB_READ);
    struct rk_campaign_row *rows = NULL;
    size_t count = 0;
    expect_status(fixture, rk_campaign_list(db, &rows, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 6);
    assert_int_equal(rows[0].host_id, rows[5].host_id);
    free(rows);
    rk_db_close(db);
}

/* A connection as rk_db_open makes it, before any migration. */
static void connect_raw(struct fixture *fixture, struct rk_db *db) {
    *db = (struct rk_db){.path = fixture->path, .busy_timeout_ms = 2000};
    assert_int_equal(sqlite3_open(fixture->path, &db->connection), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db->connection, "PRAGMA foreign_keys = ON", NULL, NULL, NULL), SQLITE_OK);
}

static void make_version_1(struct fixture *fixture) {
    struct rk_db db;
    connect_raw(fixture, &db);
    expect_status(fixture, rk_db_migrate(&db, 1, NULL, &fixture->error), RK_OK);
    assert_int_equal(db.version, 1);
    struct rk_machine_identity machine = cpu_machine("none");
    assert_int_equal(store_campaign(fixture, &db, &machine, 3), 1);
    for (size_t i = 0; i < db.kept_count; i++) {
        sqlite3_finalize(db.kept[i].statement);
    }
    sqlite3_close(db.connection);
}

static int64_t version_on_disk(const char *path) {
    sqlite3 *raw = NULL;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open_v2(path, &raw, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(raw, "PRAGMA user_version", -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int64_t version = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(raw);
    return version;
}

static void an_old_version_is_migrated_with_a_backup(void **state) {
    struct fixture *fixture = *state;
    char backup[PATH_MAX + 16];
    snprintf(backup, sizeof(backup), "%s.v1.backup", fixture->path);
    for (int access = RK_DB_READ; access <= RK_DB_WRITE; access++) {
        make_version_1(fixture);
        struct rk_db *db;
        expect_status(fixture, try_open(fixture, (enum rk_db_access)access, &db), RK_OK);
        assert_int_equal(rk_db_version(db), rk_db_newest_version());
        assert_int_equal(count_measurements(fixture, db, 1), 3);
        struct rk_plan_row *plans = NULL;
        size_t count = 1;
        expect_status(fixture, rk_plan_list(db, &plans, &count, &fixture->error), RK_OK);
        assert_int_equal(count, 0);
        free(plans);
        if (access == RK_DB_WRITE) {
            store_run(fixture, db, store_plan(fixture, db, "{}"));
        }
        rk_db_close(db);
        assert_int_equal(version_on_disk(fixture->path), rk_db_newest_version());
        assert_int_equal(version_on_disk(backup), 1);
        assert_int_equal(unlink(fixture->path), 0);
        assert_int_equal(rename(backup, fixture->path), 0); /* the backup is a sound version 1 file itself */
        expect_status(fixture, try_open(fixture, RK_DB_WRITE, &db), RK_OK);
        assert_int_equal(count_measurements(fixture, db, 1), 3);
        rk_db_close(db);
        assert_int_equal(unlink(fixture->path), 0);
    }
}

static int die(void *unused) {
    (void)unused;
    raise(SIGKILL);
    return 1;
}

static void a_killed_migration_leaves_the_old_file(void **state) {
    struct fixture *fixture = *state;
    make_version_1(fixture);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rk_db db;
        connect_raw(fixture, &db);
        sqlite3_commit_hook(db.connection, die, NULL);
        rk_db_migrate(&db, 0, NULL, &fixture->error);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(version_on_disk(fixture->path), 1);
    struct rk_db *db;
    expect_status(fixture, try_open(fixture, RK_DB_WRITE, &db), RK_OK);
    assert_int_equal(rk_db_version(db), rk_db_newest_version());
    assert_int_equal(count_measurements(fixture, db, 1), 3);
    rk_db_close(db);
}

static void a_failed_migration_leaves_the_old_file(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db;
    make_version_1(fixture);
    sqlite3 *raw = NULL;
    assert_int_equal(sqlite3_open(fixture->path, &raw), SQLITE_OK);
    assert_int_equal(sqlite3_exec(raw, "CREATE TABLE run_memory (a)", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(raw);
    expect_status(fixture, try_open(fixture, RK_DB_WRITE, &db), RK_ERROR);
    expect_text(fixture, "already exists");
    assert_int_equal(version_on_disk(fixture->path), 1);
    expect_status(fixture, try_open(fixture, RK_DB_READ, &db), RK_ERROR);
    expect_text(fixture, "brought up to date");
}

static void wal_is_left_where_it_is_unsafe(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db;
    struct rk_db_options remote = {.access = RK_DB_WRITE, .journal = RK_DB_JOURNAL_ROLLBACK, .busy_timeout_ms = 200};
    make_database(fixture, 2);
    unsigned char version[2];
    for (int round = 0; round < 2; round++) {
        int file = open(fixture->path, O_RDONLY);
        assert_int_equal(pread(file, version, 2, 18), 2);
        close(file);
        assert_int_equal(version[0], round == 0 ? 2 : 1); /* WAL, then rollback journal */
        expect_status(fixture, rk_db_open(fixture->path, &remote, &db, &fixture->error), RK_OK);
        assert_int_equal(count_measurements(fixture, db, 1), 2);
        char log[PATH_MAX + 8];
        snprintf(log, sizeof(log), "%s-wal", fixture->path);
        assert_int_not_equal(access(log, F_OK), 0);
        rk_db_close(db);
    }
    assert_true(rk_file_system_is_local(0xEF53));
    assert_true(rk_file_system_is_local(0x9123683E));
    assert_true(rk_file_system_is_local((int64_t)(int32_t)0x9123683E)); /* sign-extended on some machines */
    assert_false(rk_file_system_is_local(0x6969));                      /* NFS */
    assert_false(rk_file_system_is_local(0xFF534D42));                  /* CIFS */
    assert_false(rk_file_system_is_local(0x0BD00BD0));                  /* Lustre */
    assert_false(rk_file_system_is_local(0x65735546));                  /* FUSE */
}

int main(void) {
#define OPEN_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        OPEN_TEST(a_missing_file_says_what_to_do),
        OPEN_TEST(folders_are_made),
        OPEN_TEST(what_is_no_database_is_refused),
        OPEN_TEST(another_programs_database_is_left_alone),
        OPEN_TEST(a_truncated_file_is_damage),
        OPEN_TEST(damaged_pages_are_found),
        OPEN_TEST(any_flipped_bytes_end_in_a_message),
        OPEN_TEST(a_newer_version_is_read_only),
        OPEN_TEST(a_read_only_file_and_folder_can_be_read),
        OPEN_TEST(a_reader_without_rights_follows_a_writer),
        OPEN_TEST(a_lock_is_waited_for_and_named),
        OPEN_TEST(an_exclusive_lock_stops_readers_too),
        OPEN_TEST(a_full_file_keeps_what_it_has),
        OPEN_TEST(a_full_file_system_keeps_what_it_has),
        OPEN_TEST(a_limit_on_file_size_keeps_what_it_has),
        OPEN_TEST(a_killed_writer_loses_nothing_committed),
        OPEN_TEST(readers_and_a_writer_work_at_once),
        OPEN_TEST(many_processes_create_one_database),
        OPEN_TEST(an_old_version_is_migrated_with_a_backup),
        OPEN_TEST(a_killed_migration_leaves_the_old_file),
        OPEN_TEST(a_failed_migration_leaves_the_old_file),
        OPEN_TEST(wal_is_left_where_it_is_unsafe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "base/atomic_file.h"
#include "base/text.h"
#include "tests/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/reckon-test-XXXXXX";

static char *in_folder(const char *name) {
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int count_files(void) {
    DIR *open_folder = opendir(folder);
    int count = 0;
    for (struct dirent *entry = readdir(open_folder); entry != NULL; entry = readdir(open_folder))
        count += entry->d_name[0] != '.';
    closedir(open_folder);
    return count;
}

static void assert_holds(const char *path, const char *expected) {
    struct rk_error error;
    char *data = NULL;
    size_t length = 0;
    assert_ok(rk_read_file(path, 1000, &data, &length, &error), error);
    assert_string_equal(data, expected);
    free(data);
}

static void appears_at_commit(void **state) {
    (void)state;
    struct rk_atomic_file file;
    struct rk_error error;
    const char *path = in_folder("a");
    assert_ok(rk_atomic_file_open(path, &file, &error), error);
    assert_ok(rk_atomic_file_write(&file, "????tail", 8, &error), error);
    assert_ok(rk_atomic_file_rewrite(&file, 0, "head", 4, &error), error);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_ok(rk_atomic_file_commit(&file, &error), error);
    assert_holds(path, "headtail");
    rk_atomic_file_abandon(&file);
    assert_holds(path, "headtail");
    assert_int_equal(count_files(), 1);
    unlink(path);
}

static void abandoned_leaves_the_old(void **state) {
    (void)state;
    struct rk_atomic_file file;
    struct rk_error error;
    const char *path = in_folder("a");
    assert_ok(rk_write_file(path, "old", 3, &error), error);
    assert_ok(rk_atomic_file_open(path, &file, &error), error);
    assert_ok(rk_atomic_file_write(&file, "new", 3, &error), error);
    rk_atomic_file_abandon(&file);
    assert_holds(path, "old");
    assert_int_equal(count_files(), 1);
    unlink(path);
}

static void a_database_is_not_replaced(void **state) {
    (void)state;
    struct rk_error error;
    static const char database[] = "SQLite format 3\0and its pages";
    const char *path = in_folder("a");
    int descriptor = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, database, sizeof database), sizeof database);
    close(descriptor);
    assert_int_equal(rk_write_file(path, "new", 3, &error), RK_USAGE);
    assert_non_null(strstr(error.text, path));
    struct stat status;
    stat(path, &status);
    assert_int_equal(status.st_size, sizeof database);
    assert_int_equal(count_files(), 1);
    unlink(path);
}

static void keeps_permissions_and_links(void **state) {
    (void)state;
    struct rk_error error;
    struct stat status;
    char target[300], link[300];
    snprintf(target, sizeof target, "%s", in_folder("target"));
    snprintf(link, sizeof link, "%s", in_folder("link"));
    umask(022);
    assert_ok(rk_write_file(target, "1", 1, &error), error);
    stat(target, &status);
    assert_int_equal(status.st_mode & 0777, 0644);
    chmod(target, 0600);
    assert_int_equal(symlink(target, link), 0);
    assert_ok(rk_write_file(link, "2", 1, &error), error);
    lstat(link, &status);
    assert_true(S_ISLNK(status.st_mode));
    stat(target, &status);
    assert_int_equal(status.st_mode & 0777, 0600);
    assert_holds(target, "2");
    unlink(link);
    unlink(target);
}

/* A full disk, as a limit on the size of files. */
static void full_disk_leaves_the_old(void **state) {
    (void)state;
    struct rk_error error;
    const char *path = in_folder("a");
    assert_ok(rk_write_file(path, "old", 3, &error), error);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 1000;
    setrlimit(RLIMIT_FSIZE, &small);
    char large[5000] = {0};
    enum rk_status status = rk_write_file(path, large, sizeof large, &error);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, RK_ERROR);
    assert_non_null(strstr(error.text, path));
    assert_holds(path, "old");
    assert_int_equal(count_files(), 1);
    unlink(path);
}

static void devices_are_written_directly(void **state) {
    (void)state;
    struct rk_error error;
    struct stat status;
    assert_ok(rk_write_file("/dev/null", "x", 1, &error), error);
    stat("/dev/null", &status);
    assert_true(S_ISCHR(status.st_mode));
    assert_fails(rk_write_file("/dev/full", "x", 1, &error), RK_ERROR, error, "/dev/full");
}

static void bad_places_are_named(void **state) {
    (void)state;
    struct rk_error error;
    assert_fails(rk_write_file(folder, "x", 1, &error), RK_ERROR, error, "is a folder");
    assert_fails(rk_write_file("", "x", 1, &error), RK_ERROR, error, "not a usable");
    assert_fails(rk_write_file("/nonexistent/x", "x", 1, &error), RK_ERROR, error, "create its folder");
    assert_fails(rk_write_file("/proc/x", "x", 1, &error), RK_ERROR, error, "/proc/x");
    char longer[PATH_MAX + 10];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_fails(rk_write_file(longer, "x", 1, &error), RK_ERROR, error, "not a usable");
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appears_at_commit),          cmocka_unit_test(abandoned_leaves_the_old),
        cmocka_unit_test(a_database_is_not_replaced), cmocka_unit_test(keeps_permissions_and_links),
        cmocka_unit_test(full_disk_leaves_the_old),   cmocka_unit_test(devices_are_written_directly),
        cmocka_unit_test(bad_places_are_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

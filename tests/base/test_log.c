#include "base/log.h"
#include "tests/test.h"

#include <string.h>

struct fixture {
    char *data;
    size_t length;
    double progress;
    struct rk_log log;
};

static int open_stream(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->log = (struct rk_log){.level = RK_LOG_INFO, .rank = -1, .progress_seconds = &fixture->progress};
    fixture->log.stream = open_memstream(&fixture->data, &fixture->length);
    *state = fixture;
    return fixture->log.stream == NULL;
}

static int close_stream(void **state) {
    struct fixture *fixture = *state;
    fclose(fixture->log.stream);
    free(fixture->data);
    free(fixture);
    return 0;
}

static void one_line_each(void **state) {
    struct fixture *fixture = *state;
    rk_log_write(&fixture->log, RK_LOG_INFO, "plain %d", 1);
    rk_log_write(&fixture->log, RK_LOG_WARNING, "ends\n");
    rk_log_write(&fixture->log, RK_LOG_DEBUG, "not shown");
    fixture->log.rank = 3;
    rk_log_write(&fixture->log, RK_LOG_ERROR, "a\nb\033[2J");
    assert_string_equal(fixture->data, "plain 1\nwarning: ends\n[rank 3] error: a b [2J\n");
    rk_log_write(NULL, RK_LOG_ERROR, "swallowed");
}

static void long_lines_are_cut(void **state) {
    struct fixture *fixture = *state;
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    rk_log_write(&fixture->log, RK_LOG_INFO, "%s", text);
    assert_true(fixture->length > 2000 && fixture->length < 3000);
    assert_int_equal(fixture->data[fixture->length - 1], '\n');
}

static void progress_in_a_file_is_rare(void **state) {
    struct fixture *fixture = *state;
    for (int second = 1; second <= 25; second++)
        rk_log_progress(&fixture->log, "work", second, 26, second);
    rk_log_progress(&fixture->log, "work", 26, 26, 26);
    int lines = 0;
    for (const char *at = fixture->data; *at != '\0'; at++)
        lines += *at == '\n';
    assert_int_equal(lines, 4); /* at 1, 11 and 21 seconds, and the end */
    assert_non_null(strstr(fixture->data, "work: 4 %, 25 s left\n"));
    assert_non_null(strstr(fixture->data, "work: 100 %, done\n"));
    assert_null(strchr(fixture->data, '\r'));
}

static void progress_on_a_terminal_redraws(void **state) {
    struct fixture *fixture = *state;
    fixture->log.terminal = true;
    rk_log_progress(&fixture->log, "work", 0, 10, 0);
    rk_log_progress(&fixture->log, "work", 5, 10, 100);
    assert_non_null(strstr(fixture->data, "unknown"));
    assert_non_null(strstr(fixture->data, "[###############---------------]  50 %, 2 min left"));
    assert_null(strchr(fixture->data, '\n'));
    rk_log_progress(&fixture->log, "work", 10, 10, 200);
    assert_int_equal(fixture->data[fixture->length - 1], '\n');
}

static void quiet_logs_have_no_progress(void **state) {
    struct fixture *fixture = *state;
    fixture->log.level = RK_LOG_WARNING;
    rk_log_progress(&fixture->log, "work", 10, 10, 1);
    rk_log_progress(&fixture->log, "work", 1, 0, 1);
    fflush(fixture->log.stream);
    assert_int_equal(fixture->length, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_line_each, open_stream, close_stream),
        cmocka_unit_test_setup_teardown(long_lines_are_cut, open_stream, close_stream),
        cmocka_unit_test_setup_teardown(progress_in_a_file_is_rare, open_stream, close_stream),
        cmocka_unit_test_setup_teardown(progress_on_a_terminal_redraws, open_stream, close_stream),
        cmocka_unit_test_setup_teardown(quiet_logs_have_no_progress, open_stream, close_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

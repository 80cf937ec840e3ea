#include "tests/test.h"

#include <string.h>

static void failure_is_one_statement(void **state) {
    (void)state;
    struct rk_error error;
    assert_int_equal(rk_fail(&error, RK_USAGE, "%s: %d", "file", 7), RK_USAGE);
    assert_int_equal(error.status, RK_USAGE);
    assert_string_equal(error.text, "file: 7");
    assert_int_equal(rk_fail(NULL, RK_DATABASE, "ignored"), RK_DATABASE);
}

static void long_text_is_cut(void **state) {
    (void)state;
    struct rk_error error;
    char longer[3000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    rk_fail(&error, RK_ERROR, "%s", longer);
    assert_int_equal(strlen(error.text), sizeof error.text - 1);
    assert_string_equal(error.text + sizeof error.text - 5, "x...");
}

static void exact_length_is_not_cut(void **state) {
    (void)state;
    struct rk_error error;
    char exact[sizeof error.text];
    memset(exact, 'y', sizeof exact - 1);
    exact[sizeof exact - 1] = '\0';
    rk_fail(&error, RK_ERROR, "%s", exact);
    assert_string_equal(error.text, exact);
}

static void cut_keeps_characters_whole(void **state) {
    (void)state;
    struct rk_error error;
    for (size_t shift = 0; shift < 4; shift++) {
        char text[2001] = {0};
        memset(text, 'a', shift);
        for (size_t i = shift; i + 2 < sizeof text; i += 2)
            memcpy(text + i, "\xC3\xA9", 2);
        rk_fail(&error, RK_ERROR, "%s", text);
        const char *dots = strstr(error.text, "...");
        assert_non_null(dots);
        assert_string_equal(dots, "...");
        assert_int_equal((dots - error.text - (long)shift) % 2, 0);
    }
}

static void own_text_may_be_an_argument(void **state) {
    (void)state;
    struct rk_error error;
    rk_fail(&error, RK_USAGE, "inner");
    rk_fail(&error, RK_ERROR, "outer: %s", error.text);
    assert_string_equal(error.text, "outer: inner");
}

static void context_goes_before(void **state) {
    (void)state;
    struct rk_error error;
    rk_fail(&error, RK_RANK_FAILED, "no answer");
    assert_int_equal(rk_fail_context(&error, "rank %d", 3), RK_RANK_FAILED);
    assert_string_equal(error.text, "rank 3: no answer");
    assert_int_equal(rk_fail_context(NULL, "x"), RK_ERROR);
}

static void every_status_has_a_name(void **state) {
    (void)state;
    static const enum rk_status all[] = {RK_OK,
                                         RK_ERROR,
                                         RK_USAGE,
                                         RK_INFEASIBLE,
                                         RK_UNCALIBRATED,
                                         RK_OUTSIDE_TOLERANCE,
                                         RK_HARDWARE_UNFIT,
                                         RK_RANK_FAILED,
                                         RK_DATABASE,
                                         RK_INTERRUPTED};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(rk_status_name(all[i]), rk_status_name(all[j]));
    assert_string_equal(rk_status_name(RK_OK), "ok");
    assert_string_equal(rk_status_name(RK_RANK_FAILED), "rank failed");
    assert_string_equal(rk_status_name((enum rk_status)77), "unknown status");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failure_is_one_statement),    cmocka_unit_test(long_text_is_cut),
        cmocka_unit_test(exact_length_is_not_cut),     cmocka_unit_test(cut_keeps_characters_whole),
        cmocka_unit_test(own_text_may_be_an_argument), cmocka_unit_test(context_goes_before),
        cmocka_unit_test(every_status_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

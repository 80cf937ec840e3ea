#include "base/text.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void text_grows(void **state) {
    (void)state;
    struct rk_text text = {0};
    char expected[20001] = {0};
    for (int i = 0; i < 2000; i++) {
        rk_text_format(&text, "%04d", i);
        rk_text_add(&text, "+");
        rk_text_add_bytes(&text, "abcdefgh", 5);
        char part[24];
        snprintf(part, sizeof part, "%04d+abcde", i);
        memcpy(expected + 10 * i, part, 10);
    }
    assert_false(text.failed);
    assert_int_equal(text.length, 20000);
    assert_string_equal(text.data, expected);
    rk_text_free(&text);
    assert_null(text.data);
    assert_int_equal(text.length, 0);
}

static void text_may_be_empty_and_hold_zeros(void **state) {
    (void)state;
    struct rk_text text = {0};
    rk_text_add_bytes(&text, NULL, 0);
    assert_string_equal(text.data, "");
    rk_text_add_bytes(&text, "a\0b", 3);
    assert_int_equal(text.length, 3);
    assert_memory_equal(text.data, "a\0b", 4);
    rk_text_free(&text);
}

static void text_that_cannot_grow_keeps_what_it_has(void **state) {
    (void)state;
    struct rk_text text = {0};
    rk_text_add(&text, "kept");
    rk_text_add_bytes(&text, "x", SIZE_MAX / 2);
    assert_true(text.failed);
    rk_text_add(&text, "more");
    assert_string_equal(text.data, "kept");
    rk_text_free(&text);
}

static void counts_are_exact(void **state) {
    (void)state;
    static const struct {
        const char *string;
        int64_t value;
    } good[] = {
        {"0", 0},
        {"64", 64},
        {"64Ki", 65536},
        {"64Mi", 67108864},
        {"2Gi", 2147483648},
        {"64K", 64000},
        {"64k", 64000},
        {"64M", 64000000},
        {"1G", 1000000000},
        {"1e6", 1000000},
        {"1E6", 1000000},
        {"1.5Ki", 1536},
        {"1.5e3", 1500},
        {"2.50e1", 25},
        {"0.5Ki", 512},
        {".5Ki", 512},
        {"1.", 1},
        {"007", 7},
        {"9223372036854775807", INT64_MAX},
        {"8191Pi", 8191LL << 50},
        {"1000000000000000000", 1000000000000000000},
        {"1.000000000000000000000000", 1},
        {"10e-1", 1},
        {"0.0009765625Ki", 1},
        {"1e18", 1000000000000000000},
        {"0e999999999999", 0},
        {"00000000000000000000000000000005", 5},
        {"9007199254740993", 9007199254740993},
    };
    struct rk_error error;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t value = -1;
        assert_ok(rk_parse_count("--x", good[i].string, &value, &error), error);
        if (value != good[i].value)
            fail_msg("%s is %lld, not %lld", good[i].string, (long long)value, (long long)good[i].value);
    }
}

static void wrong_counts_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *string, *message;
    } bad[] = {
        {"", "is not a count"},
        {"-1", "negative"},
        {"+1", "is not a count"},
        {" 1", "is not a count"},
        {"1 ", "no unit"},
        {"1.5", "whole"},
        {"0.1Ki", "whole"},
        {"1e-1", "whole"},
        {"1e", "is not a count"},
        {"e5", "is not a count"},
        {".", "is not a count"},
        {"1.2.3", "no unit"},
        {"0x10", "no unit"},
        {"64KiB", "no unit"},
        {"64i", "no unit"},
        {"64m", "no unit"},
        {"64Kix", "no unit"},
        {"9223372036854775808", "too large"},
        {"8192Pi", "too large"},
        {"1e19", "too large"},
        {"1e999999999999999999999", "too large"},
        {"99999999999999999999999999", "is not a count"},
        {"1e-99999999999999", "whole"},
        {"nan", "is not a count"},
        {"inf", "is not a count"},
        {"1,000", "no unit"},
    };
    struct rk_error error;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t value = 42;
        assert_fails(rk_parse_count("--x", bad[i].string, &value, &error), RK_USAGE, error, bad[i].message);
        assert_non_null(strstr(error.text, "--x"));
        assert_int_equal(value, 42);
    }
}

static void bytes_take_a_b(void **state) {
    (void)state;
    struct rk_error error;
    int64_t value = 0;
    assert_ok(rk_parse_bytes("memory", "96MiB", &value, &error), error);
    assert_int_equal(value, 96 << 20);
    assert_ok(rk_parse_bytes("memory", "1.5GiB", &value, &error), error);
    assert_int_equal(value, 1610612736);
    assert_ok(rk_parse_bytes("memory", "500MB", &value, &error), error);
    assert_int_equal(value, 500000000);
    assert_ok(rk_parse_bytes("memory", "12B", &value, &error), error);
    assert_int_equal(value, 12);
    assert_ok(rk_parse_bytes("memory", "3Mi", &value, &error), error);
    assert_int_equal(value, 3 << 20);
    assert_fails(rk_parse_bytes("memory", "3MiBB", &value, &error), RK_USAGE, error, "no unit");
    assert_fails(rk_parse_bytes("memory", "0.3B", &value, &error), RK_USAGE, error, "whole number of bytes");
}

static void numbers_are_decimal_and_in_range(void **state) {
    (void)state;
    struct rk_error error;
    double value = 0;
    assert_ok(rk_parse_number("c", "1.25", 0, 2, &value, &error), error);
    assert_true(value == 1.25);
    assert_ok(rk_parse_number("c", "-1e-3", -1, 2, &value, &error), error);
    assert_true(value == -1e-3);
    static const char *const bad[] = {"", "nan", "inf", "-inf", "0x1p3", " 1", "1 ", "1e", "1.2.3", "--1", "e", "1,5"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_fails(rk_parse_number("c", bad[i], -10, 10, &value, &error), RK_USAGE, error, "not a number");
    assert_fails(rk_parse_number("c", "1e999", -10, INFINITY, &value, &error), RK_USAGE, error, "too large");
    assert_fails(rk_parse_number("c", "2.1", 0, 2, &value, &error), RK_USAGE, error, "outside 0 to 2");
    assert_true(value == -1e-3);
}

static void endings(void **state) {
    (void)state;
    assert_true(rk_ends_in("a.npy", ".npy"));
    assert_false(rk_ends_in(".npy", ".npy"));
    assert_false(rk_ends_in("npy", ".npy"));
    assert_false(rk_ends_in("a.npy.gz", ".npy"));
}

static void formats_are_readable(void **state) {
    (void)state;
    static const struct {
        int64_t bytes;
        const char *text;
    } bytes[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {96 << 20, "96.0 MiB"},
        {14227079168, "13.25 GiB"},
        {(1LL << 20) - 1, "1.0 MiB"},
        {(1LL << 30) - 1, "1.00 GiB"},
        {INT64_MAX, "8192.00 PiB"},
        {-2048, "-2.0 KiB"},
        {INT64_MIN, "-8192.00 PiB"},
    };
    static const struct {
        double seconds;
        const char *text;
    } seconds[] = {{0, "0 s"},           {1.234e-3, "1.234 ms"}, {5e-9, "5.000 ns"},
                   {2.5e-6, "2.500 µs"}, {1, "1.000 s"},         {0.9999999, "1.000 s"},
                   {99.5, "99.500 s"},   {-2e-3, "-2.000 ms"},   {NAN, "unknown"}};
    char buffer[64];
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++)
        assert_string_equal(rk_format_bytes(bytes[i].bytes, buffer, sizeof buffer), bytes[i].text);
    for (size_t i = 0; i < sizeof seconds / sizeof seconds[0]; i++)
        assert_string_equal(rk_format_seconds(seconds[i].seconds, buffer, sizeof buffer), seconds[i].text);
}

static void files_are_read_whole(void **state) {
    const char *folder = *state;
    char path[300];
    struct rk_error error;
    char *data = NULL;
    size_t length = 0;
    snprintf(path, sizeof path, "%s/file", folder);
    char *content = malloc(100000);
    for (size_t i = 0; i < 100000; i++)
        content[i] = (char)(i * 7);
    assert_ok(rk_write_file(path, content, 100000, &error), error);
    assert_ok(rk_read_file(path, 100000, &data, &length, &error), error);
    assert_int_equal(length, 100000);
    assert_memory_equal(data, content, 100000);
    assert_int_equal(data[length], 0);
    free(data);
    free(content);
    assert_fails(rk_read_file(path, 99999, &data, &length, &error), RK_USAGE, error, "larger than");
    assert_ok(rk_write_file(path, "", 0, &error), error);
    assert_ok(rk_read_file(path, 10, &data, &length, &error), error);
    assert_int_equal(length, 0);
    free(data);
    /* Files whose size is not known before they are read. */
    assert_ok(rk_read_file("/proc/self/maps", 1 << 20, &data, &length, &error), error);
    assert_true(length > 0);
    free(data);
}

static void unreadable_files_are_named(void **state) {
    const char *folder = *state;
    struct rk_error error;
    char *data = NULL;
    size_t length = 0;
    assert_fails(rk_read_file(folder, 10, &data, &length, &error), RK_USAGE, error, "is a folder");
    assert_fails(rk_read_file("/nonexistent/x", 10, &data, &length, &error), RK_USAGE, error, "/nonexistent/x");
    assert_fails(rk_read_file("/dev/zero", 100000, &data, &length, &error), RK_USAGE, error, "larger than");
    assert_null(data);
}

static int make_folder(void **state) {
    static char folder[] = "/tmp/reckon-test-XXXXXX";
    *state = mkdtemp(folder);
    return *state == NULL;
}

static int remove_folder(void **state) {
    char path[300];
    snprintf(path, sizeof path, "%s/file", (char *)*state);
    unlink(path);
    return rmdir(*state); /* fails when a temporary file was left */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_grows),
        cmocka_unit_test(text_may_be_empty_and_hold_zeros),
        cmocka_unit_test(text_that_cannot_grow_keeps_what_it_has),
        cmocka_unit_test(counts_are_exact),
        cmocka_unit_test(wrong_counts_are_refused),
        cmocka_unit_test(bytes_take_a_b),
        cmocka_unit_test(numbers_are_decimal_and_in_range),
        cmocka_unit_test(endings),
        cmocka_unit_test(formats_are_readable),
        cmocka_unit_test(files_are_read_whole),
        cmocka_unit_test(unreadable_files_are_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

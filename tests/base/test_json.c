#include "base/json.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static cJSON *parse(const char *text) {
    cJSON *root = NULL;
    struct rk_error error;
    assert_ok(rk_json_parse("file", text, strlen(text), &root, &error), error);
    return root;
}

static void bad_text_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "is empty"},
        {" \n", "is empty"},
        {"{", "cut short"},
        {"{\"a\": 1", "cut short"},
        {"{\"a", "cut short"},
        {"[1, 2", "cut short"},
        {"{\"a\" 1}", "not valid JSON"},
        {"{\"a\": }", "not valid JSON"},
        {"[1,]", "not valid JSON"},
        {"{\"a\": 1,}", "not valid JSON"},
        {"{a: 1}", "neither a value"},
        {"{'a': 1}", "neither a value"},
        {"{} {}", "not valid JSON"},
        {"{}x", "neither a value"},
        {"[1] 2", "not valid JSON"},
        {"]", "not valid JSON"},
        {"[01]", "neither a value"},
        {"[1.]", "neither a value"},
        {"[.5]", "neither a value"},
        {"[+1]", "neither a value"},
        {"[1e]", "neither a value"},
        {"[0x10]", "neither a value"},
        {"[nan]", "neither a value"},
        {"[inf]", "neither a value"},
        {"[-]", "neither a value"},
        {"[--1]", "neither a value"},
        {"[- 1]", "neither a value"},
        {"[True]", "neither a value"},
        {"[nulll]", "neither a value"},
        {"[1e999]", "too large"},
        {"{\"big\": -1e999}", "'big'"},
        {"[1111111111111111111111111111111111111111111111111111111111111111]", "63 characters"},
        {"{\"a\": 1, \"b\": 2, \"a\": 3}", "'a' stands twice"},
        {"[{\"x\": {\"k\": 1, \"k\": 1}}]", "'k' stands twice"},
        {"[\"\x01\"]", "control character"},
        {"[\"a\nb\"]", "control character"},
        {"[\x01]", "control character"},
        {"[\"\\u0000\"]", "zero character"},
        {"[\"\\x\"]", "not valid JSON"},
        {"[\"\\ud800\"]", "not valid JSON"},
        {"[\"\xFF\"]", "UTF-8"},
        {"[\"\xC0\x80\"]", "UTF-8"},
        {"[\"\xED\xA0\x80\"]", "UTF-8"},
        {"[\"\xF4\x90\x80\x80\"]", "UTF-8"},
        {"[\"\xE2\x82\"]", "UTF-8"},
        {"// comment\n{}", "neither a value"},
        {"\x7F", "control character"},
        {"{\n  \"a\": 1\n  \"b\": 2}", "line 3, column 3"},
    };
    struct rk_error error;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cJSON *root = NULL;
        enum rk_status status = rk_json_parse("some.json", bad[i].text, strlen(bad[i].text), &root, &error);
        if (status != RK_USAGE || strstr(error.text, bad[i].message) == NULL || strstr(error.text, "some.json") == NULL)
            fail_msg("case %zu, <%s>: status %d, %s", i, bad[i].text, (int)status, status ? error.text : "");
        assert_null(root);
    }
    cJSON *root = NULL;
    assert_fails(rk_json_parse("f", "[1]\0[2]", 7, &root, &error), RK_USAGE, error, "control character");
    assert_fails(rk_json_parse("f", "[1\0]", 4, &root, &error), RK_USAGE, error, "control character");
}

/* Every cut of a valid text is an error, and none reads past the end (the copies are exact, for the sanitizers). */
static void every_truncation_is_refused(void **state) {
    (void)state;
    static const char whole[] =
        "{\"name\": \"x\\n\\u00e9\xC3\xA9\", \"list\": [1, -2.5e-3, true, null, Infinity, NaN], \"o\": {\"k\": {}}}";
    cJSON *root = parse(whole);
    cJSON_Delete(root);
    for (size_t length = 0; length < sizeof whole - 1; length++) {
        char *cut = malloc(length > 0 ? length : 1);
        memcpy(cut, whole, length);
        struct rk_error error;
        root = NULL;
        if (rk_json_parse("cut", cut, length, &root, &error) != RK_USAGE)
            fail_msg("the first %zu bytes were taken", length);
        free(cut);
    }
}

static void bare_words_become_null(void **state) {
    (void)state;
    cJSON *root = parse("[Infinity, -Infinity, NaN, \"Infinity NaN\", [NaN], \"\\u0001\", {\"NaN\":NaN}]");
    assert_true(cJSON_IsNull(cJSON_GetArrayItem(root, 0)));
    assert_true(cJSON_IsNull(cJSON_GetArrayItem(root, 1)));
    assert_true(cJSON_IsNull(cJSON_GetArrayItem(root, 2)));
    assert_string_equal(cJSON_GetArrayItem(root, 3)->valuestring, "Infinity NaN");
    assert_true(cJSON_IsNull(cJSON_GetArrayItem(root, 4)->child));
    assert_string_equal(cJSON_GetArrayItem(root, 5)->valuestring, "\x01");
    assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(root, 6), "NaN")));
    cJSON_Delete(root);
    struct rk_error error;
    root = NULL;
    assert_fails(rk_json_parse("f", "{NaN: 1}", 8, &root, &error), RK_USAGE, error, "in quotes");
}

static char *nested(size_t depth, const char *open, const char *close) {
    struct rk_text text = {0};
    for (size_t i = 0; i < depth; i++)
        rk_text_add(&text, open);
    rk_text_add(&text, "1");
    for (size_t i = 0; i < depth; i++)
        rk_text_add(&text, close);
    return text.data;
}

static void nesting_is_limited(void **state) {
    (void)state;
    struct rk_error error;
    cJSON *root = NULL;
    char *text = nested(64, "[", "]");
    assert_ok(rk_json_parse("f", text, strlen(text), &root, &error), error);
    cJSON_Delete(root);
    free(text);
    static const size_t depths[] = {65, 1000000};
    for (size_t i = 0; i < 2; i++) {
        text = nested(depths[i], "[", "]");
        assert_fails(rk_json_parse("f", text, strlen(text), &root, &error), RK_USAGE, error, "deeper than 64");
        free(text);
        text = nested(depths[i], "{\"a\":", "}");
        assert_fails(rk_json_parse("f", text, strlen(text), &root, &error), RK_USAGE, error, "deeper than 64");
        free(text);
    }
    /* Brackets in strings do not nest. */
    text = nested(30, "[\"[[[[\",", "]");
    root = NULL;
    assert_ok(rk_json_parse("f", text, strlen(text), &root, &error), error);
    cJSON_Delete(root);
    free(text);
}

static void many_keys_are_fast(void **state) {
    (void)state;
    struct rk_text text = {0};
    rk_text_add(&text, "{");
    for (int i = 0; i < 200000; i++)
        rk_text_format(&text, "\"k%d\": %d, ", i, i);
    rk_text_add(&text, "\"k199999\": 0}");
    struct rk_error error;
    cJSON *root = NULL;
    assert_fails(rk_json_parse("f", text.data, text.length, &root, &error), RK_USAGE, error, "k199999");
    rk_text_free(&text);
}

static void members_are_checked(void **state) {
    (void)state;
    cJSON *root =
        parse("{\"n\": 5, \"half\": 0.5, \"huge\": 1e300, \"odd\": 9007199254740993, \"s\": \"text\", \"b\": true,"
              " \"z\": null, \"a\": [1], \"o\": {\"in\": {\"x\": \"y\"}}, \"negative\": -3}");
    struct rk_json_object object, child, inner;
    struct rk_error error;
    int64_t n = -1;
    double d = -1;
    bool b = false;
    char s[8] = "old";
    const cJSON *array = NULL;
    assert_ok(rk_json_open("m.json", "", root, &object, &error), error);
    assert_ok(rk_json_integer(&object, "n", 1, 10, &n, &error), error);
    assert_int_equal(n, 5);
    assert_ok(rk_json_integer(&object, "negative", INT64_MIN, INT64_MAX, &n, &error), error);
    assert_int_equal(n, -3);
    n = -1;
    assert_fails(rk_json_integer(&object, "n", 6, 10, &n, &error), RK_USAGE, error,
                 "m.json: n is 5; it must be from 6");
    assert_fails(rk_json_integer(&object, "half", 0, 10, &n, &error), RK_USAGE, error, "whole number");
    assert_fails(rk_json_integer(&object, "huge", 0, INT64_MAX, &n, &error), RK_USAGE, error, "2^53");
    assert_fails(rk_json_integer(&object, "odd", 0, 100, &n, &error), RK_USAGE, error, "odd");
    assert_fails(rk_json_integer(&object, "s", 0, 10, &n, &error), RK_USAGE, error, "not a string");
    assert_fails(rk_json_integer(&object, "none", 0, 10, &n, &error), RK_USAGE, error, "none is missing");
    assert_fails(rk_json_integer(&object, "z", 0, 10, &n, &error), RK_USAGE, error, "z is null");
    assert_int_equal(n, -1);
    assert_ok(rk_json_number(&object, "half", 0, 1, &d, &error), error);
    assert_true(d == 0.5);
    assert_fails(rk_json_number(&object, "huge", 0, 1, &d, &error), RK_USAGE, error, "from 0 to 1");
    assert_fails(rk_json_number(&object, "b", 0, 1, &d, &error), RK_USAGE, error, "not a boolean");
    assert_ok(rk_json_boolean(&object, "b", &b, &error), error);
    assert_true(b);
    assert_fails(rk_json_boolean(&object, "n", &b, &error), RK_USAGE, error, "true or false");
    assert_ok(rk_json_string(&object, "s", s, 5, &error), error);
    assert_string_equal(s, "text");
    assert_fails(rk_json_string(&object, "s", s, 4, &error), RK_USAGE, error, "at most 3");
    assert_ok(rk_json_array(&object, "a", &array, &error), error);
    assert_int_equal(cJSON_GetArraySize(array), 1);
    assert_fails(rk_json_array(&object, "o", &array, &error), RK_USAGE, error, "not an object");
    assert_ok(rk_json_child(&object, "o", &child, &error), error);
    assert_ok(rk_json_child(&child, "in", &inner, &error), error);
    assert_fails(rk_json_integer(&inner, "x", 0, 1, &n, &error), RK_USAGE, error, "m.json: o.in.x must be");
    assert_fails(rk_json_child(&object, "a", &child, &error), RK_USAGE, error, "not an array");
    assert_fails(rk_json_open("m.json", "o[3]", array, &child, &error), RK_USAGE, error,
                 "m.json: o[3] must be an object");
    assert_fails(rk_json_open("m.json", "o", NULL, &child, &error), RK_USAGE, error, "not absent");
    cJSON_Delete(root);
}

static void optional_members_keep_the_default(void **state) {
    (void)state;
    cJSON *root = parse("{\"z\": null, \"n\": 7, \"s\": \"new\", \"bad\": []}");
    struct rk_json_object object;
    struct rk_error error;
    int64_t n = 3;
    double d = 2.5;
    bool b = true;
    char s[8] = "old";
    assert_ok(rk_json_open("f", "", root, &object, &error), error);
    assert_ok(rk_json_optional_integer(&object, "none", 0, 9, &n, &error), error);
    assert_ok(rk_json_optional_integer(&object, "z", 0, 9, &n, &error), error);
    assert_int_equal(n, 3);
    assert_ok(rk_json_optional_integer(&object, "n", 0, 9, &n, &error), error);
    assert_int_equal(n, 7);
    assert_ok(rk_json_optional_number(&object, "z", 0, 9, &d, &error), error);
    assert_true(d == 2.5);
    assert_ok(rk_json_optional_boolean(&object, "none", &b, &error), error);
    assert_true(b);
    assert_ok(rk_json_optional_string(&object, "none", s, sizeof s, &error), error);
    assert_string_equal(s, "old");
    assert_ok(rk_json_optional_string(&object, "s", s, sizeof s, &error), error);
    assert_string_equal(s, "new");
    assert_fails(rk_json_optional_integer(&object, "bad", 0, 9, &n, &error), RK_USAGE, error, "not an array");
    assert_fails(rk_json_optional_number(&object, "bad", 0, 9, &d, &error), RK_USAGE, error, "bad");
    assert_fails(rk_json_optional_boolean(&object, "bad", &b, &error), RK_USAGE, error, "bad");
    assert_fails(rk_json_optional_string(&object, "bad", s, sizeof s, &error), RK_USAGE, error, "bad");
    cJSON_Delete(root);
}

static void unknown_keys_are_listed(void **state) {
    (void)state;
    cJSON *root = parse("{\"known\": 1, \"odd\": 2, \"null\": null, \"other\": 3}");
    struct rk_json_object object;
    struct rk_error error;
    struct rk_text names = {0};
    assert_ok(rk_json_open("f", "", root, &object, &error), error);
    assert_true(rk_json_has(&object, "known"));
    assert_false(rk_json_has(&object, "null"));
    assert_false(rk_json_has(&object, "none"));
    assert_int_equal(rk_json_unknown(&object, &names), 2);
    assert_string_equal(names.data, "odd, other");
    rk_text_free(&names);
    cJSON_Delete(root);

    /* More members than the marks have room for: those past it count as unknown, and nothing is overrun. */
    struct rk_text text = {0};
    rk_text_add(&text, "{");
    for (int i = 0; i < 1100; i++)
        rk_text_format(&text, "%s\"k%d\": %d", i > 0 ? ", " : "", i, i);
    rk_text_add(&text, "}");
    root = parse(text.data);
    assert_ok(rk_json_open("f", "", root, &object, &error), error);
    assert_true(rk_json_has(&object, "k1023"));
    assert_true(rk_json_has(&object, "k1099"));
    assert_int_equal(rk_json_unknown(&object, &names), 1099);
    rk_text_free(&names);
    rk_text_free(&text);
    cJSON_Delete(root);
}

static void long_paths_are_cut(void **state) {
    (void)state;
    char key[400], text[1000];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    snprintf(text, sizeof text, "{\"%s\": {\"x\": {\"y\": 1}}}", key);
    cJSON *root = parse(text);
    struct rk_json_object object, child, inner;
    struct rk_error error;
    assert_ok(rk_json_open("f", "", root, &object, &error), error);
    assert_ok(rk_json_child(&object, key, &child, &error), error);
    assert_ok(rk_json_child(&child, "x", &inner, &error), error);
    assert_int_equal(strlen(inner.path), sizeof inner.path - 1);
    cJSON_Delete(root);
}

static void canonical_text_round_trips(void **state) {
    (void)state;
    static const char canonical[] =
        "{\n"
        "  \"name\": \"a \\\"b\\\" \\\\ \\n\\t\\u0001 \xC3\xA9 \xF0\x9F\x98\x80 /\",\n"
        "  \"empty\": {},\n"
        "  \"none\": [],\n"
        "  \"numbers\": [0, -0, 1, -5, 0.1, 1e-07, 3.0000000000000004, 9007199254740992, 1e+300, "
        "5e-324, 1.7976931348623157e+308, 123456789.125],\n"
        "  \"mixed\": [\n"
        "    1,\n"
        "    {\n"
        "      \"x\": null\n"
        "    },\n"
        "    [true, false, \"\"]\n"
        "  ],\n"
        "  \"\": 1\n"
        "}\n";
    cJSON *root = parse(canonical);
    struct rk_text text = {0};
    struct rk_error error;
    assert_ok(rk_json_print(root, &text, &error), error);
    assert_string_equal(text.data, canonical);
    rk_text_free(&text);
    cJSON_Delete(root);
}

/* Any double comes back as itself, with the fewest digits. */
static void doubles_round_trip(void **state) {
    (void)state;
    uint64_t bits = 88172645463325252;
    for (int i = 0; i < 20000; i++) {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value))
            continue;
        cJSON *number = cJSON_CreateNumber(value);
        struct rk_text text = {0};
        struct rk_error error;
        assert_ok(rk_json_print(number, &text, &error), error);
        double back = strtod(text.data, NULL);
        assert_memory_equal(&back, &value, sizeof value);
        rk_text_free(&text);
        cJSON_Delete(number);
    }
}

static void unwritable_values_are_errors(void **state) {
    (void)state;
    struct rk_text text = {0};
    struct rk_error error;
    cJSON *number = cJSON_CreateNumber(NAN);
    assert_fails(rk_json_print(number, &text, &error), RK_ERROR, error, "not finite");
    cJSON_Delete(number);
    cJSON *root = cJSON_CreateArray(), *at = root;
    for (int i = 0; i < 70; i++) {
        cJSON *inner = cJSON_CreateArray();
        cJSON_AddItemToArray(at, inner);
        at = inner;
    }
    assert_fails(rk_json_print(root, &text, &error), RK_ERROR, error, "deeper");
    cJSON_Delete(root);
    rk_text_free(&text);
}

static void files_are_read(void **state) {
    (void)state;
    struct rk_error error;
    cJSON *root = NULL;
    char path[] = "/tmp/reckon-test-XXXXXX";
    int descriptor = mkstemp(path);
    assert_int_equal(write(descriptor, "\xEF\xBB\xBF{\"a\": 1}\r\n", 13), 13);
    close(descriptor);
    assert_ok(rk_json_read_file(path, &root, &error), error);
    assert_non_null(cJSON_GetObjectItemCaseSensitive(root, "a"));
    cJSON_Delete(root);
    unlink(path);
    root = NULL;
    assert_fails(rk_json_read_file(path, &root, &error), RK_USAGE, error, path);
    assert_fails(rk_json_read_file("/dev/zero", &root, &error), RK_USAGE, error, "larger than");
    assert_null(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_text_is_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(bare_words_become_null),
        cmocka_unit_test(nesting_is_limited),
        cmocka_unit_test(many_keys_are_fast),
        cmocka_unit_test(members_are_checked),
        cmocka_unit_test(optional_members_keep_the_default),
        cmocka_unit_test(unknown_keys_are_listed),
        cmocka_unit_test(long_paths_are_cut),
        cmocka_unit_test(canonical_text_round_trips),
        cmocka_unit_test(doubles_round_trip),
        cmocka_unit_test(unwritable_values_are_errors),
        cmocka_unit_test(files_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "base/arguments.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

struct values {
    bool flag;
    const char *model, *overlap;
    struct rk_string_list labels;
    int64_t batch, memory, rank;
    double factor;
};

struct shared {
    bool json;
    const char *database;
};

static const struct rk_option own[] = {
    {.name = "flag", .letter = 'f', .type = RK_OPTION_FLAG, .offset = offsetof(struct values, flag), .help = "a flag"},
    {.name = "model",
     .letter = 'm',
     .type = RK_OPTION_STRING,
     .offset = offsetof(struct values, model),
     .value = "FILE",
     .help =
         "a file whose description is long enough that it has to be broken into more than one line of the help text"},
    {.name = "overlap",
     .type = RK_OPTION_STRING,
     .offset = offsetof(struct values, overlap),
     .choices = "none|two-batch",
     .help = "a choice"},
    {.name = "label",
     .type = RK_OPTION_LIST,
     .offset = offsetof(struct values, labels),
     .value = "TEXT",
     .help = "labels"},
    {.name = "global-batch",
     .type = RK_OPTION_COUNT,
     .offset = offsetof(struct values, batch),
     .value = "TOKENS",
     .help = "tokens",
     .minimum = 1,
     .maximum = 1e15},
    {.name = "memory",
     .type = RK_OPTION_BYTES,
     .offset = offsetof(struct values, memory),
     .value = "BYTES",
     .help = "bytes"},
    {.name = "rank",
     .type = RK_OPTION_INTEGER,
     .offset = offsetof(struct values, rank),
     .value = "N",
     .help = "a rank"},
    {.name = "factor",
     .type = RK_OPTION_NUMBER,
     .offset = offsetof(struct values, factor),
     .value = "X",
     .help = "a factor",
     .minimum = 1,
     .maximum = 8},
};
static const struct rk_arguments verb = {.name = "plan",
                                         .summary = "Plan a run",
                                         .operands = "PLAN [MORE]",
                                         .minimum_operands = 1,
                                         .maximum_operands = 2,
                                         .options = own,
                                         .option_count = sizeof own / sizeof own[0],
                                         .description = ".starts with a dot",
                                         .examples = "  reckon plan x"};
static const struct rk_option shared_options[] = {
    {.name = "json", .type = RK_OPTION_FLAG, .offset = offsetof(struct shared, json), .help = "JSON"},
    {.name = "db",
     .type = RK_OPTION_STRING,
     .offset = offsetof(struct shared, database),
     .value = "FILE",
     .help = "data"},
};
static const struct rk_arguments common = {.name = "reckon", .options = shared_options, .option_count = 2};

/* Parses a line of words. */
static enum rk_status parse(const char *line, struct values *values, struct shared *shared,
                            struct rk_string_list *operands, struct rk_error *error) {
    static char copy[500];
    char *argv[40] = {(char[]){"plan"}};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    return rk_arguments_parse(&verb, values, &common, shared, argc, argv, operands, error);
}

static void all_types_are_read(void **state) {
    (void)state;
    struct values values = {0};
    struct shared shared = {0};
    struct rk_string_list operands = {0};
    struct rk_error error;
    assert_ok(parse("-f first -m a.json --overlap=two-batch --label x --db=y.db --label y --global-batch 64Mi --memory "
                    "1.5GiB --rank -3 --json --factor 1.25 -- --last",
                    &values, &shared, &operands, &error),
              error);
    assert_true(values.flag);
    assert_string_equal(values.model, "a.json");
    assert_string_equal(values.overlap, "two-batch");
    assert_int_equal(values.labels.count, 2);
    assert_string_equal(values.labels.items[1], "y");
    assert_int_equal(values.batch, 64 << 20);
    assert_int_equal(values.memory, 1610612736);
    assert_int_equal(values.rank, -3);
    assert_true(values.factor == 1.25);
    assert_true(shared.json);
    assert_string_equal(shared.database, "y.db");
    assert_int_equal(operands.count, 2);
    assert_string_equal(operands.items[0], "first");
    assert_string_equal(operands.items[1], "--last");
    assert_ok(rk_arguments_check_operands(&verb, &operands, &error), error);
    rk_string_list_free(&values.labels);
    rk_string_list_free(&operands);
}

static void defaults_stand_and_prefixes_count(void **state) {
    (void)state;
    struct values values = {.batch = 7, .factor = 2};
    struct rk_error error;
    assert_ok(parse("--glob 9", &values, NULL, NULL, &error), error);
    assert_int_equal(values.batch, 9);
    assert_true(values.factor == 2);
    assert_false(values.flag);
}

static void nothing_is_stored_without_a_place(void **state) {
    (void)state;
    struct rk_error error;
    assert_ok(parse("--label x --factor 3 --json x", NULL, NULL, NULL, &error), error);
    assert_fails(parse("--factor 9", NULL, NULL, NULL, &error), RK_USAGE, error, "--factor: 9 is outside 1 to 8");
}

static void parsing_twice_gives_the_same(void **state) {
    (void)state;
    char *argv[] = {(char[]){"plan"}, (char[]){"a"}, (char[]){"--factor"}, (char[]){"2"}, (char[]){"--"},
                    (char[]){"-b"},   NULL};
    struct rk_error error;
    for (int i = 0; i < 3; i++) {
        struct values values = {0};
        struct rk_string_list operands = {0};
        assert_ok(rk_arguments_parse(&verb, &values, NULL, NULL, 6, argv, &operands, &error), error);
        assert_true(values.factor == 2);
        assert_int_equal(operands.count, 2);
        assert_string_equal(operands.items[1], "-b");
        rk_string_list_free(&operands);
    }
}

static void mistakes_are_named(void **state) {
    (void)state;
    static const struct {
        const char *line, *message;
    } bad[] = {
        {"--modle x", "did you mean --model?"},
        {"--gobal-batch=3", "did you mean --global-batch?"},
        {"--jsn", "did you mean --json?"},
        {"--zzzzzz", "--zzzzzz: unknown option of 'plan'; see 'plan --help'"},
        {"-z", "-z: unknown option"},
        {"-fz", "-z: unknown option"},
        {"--model", "--model: needs a value (FILE)"},
        {"-m", "--model: needs a value"},
        {"--flag=3", "--flag: takes no value"},
        {"--json=3", "--json: takes no value"},
        {"--overlap three", "'three' is not one of none|two-batch"},
        {"--overlap two", "not one of"},
        {"--overlap none|two-batch", "not one of"},
        {"--global-batch 0", "outside 1"},
        {"--global-batch 9999999999999999999", "too large"},
        {"--global-batch 1.5", "whole"},
        {"--memory -5", "negative"},
        {"--memory 5Q", "no unit"},
        {"--rank 1.5", "not a whole number"},
        {"--rank 99999999999999999999", "too large"},
        {"--rank 5x", "not a whole number"},
        {"--rank --", "not a whole number"},
        {"--factor nan", "not a number"},
        {"--factor 0.5", "outside 1 to 8"},
        {"--m x", "may mean several"},
    };
    struct rk_error error;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct values values = {0};
        struct shared shared = {0};
        enum rk_status status = parse(bad[i].line, &values, &shared, NULL, &error);
        if (status != RK_USAGE || strstr(error.text, bad[i].message) == NULL)
            fail_msg("<%s>: status %d, %s", bad[i].line, (int)status, status ? error.text : "");
    }
}

static void operands_are_counted(void **state) {
    (void)state;
    struct rk_error error;
    const char *items[] = {"a", "b", "extra"};
    struct rk_string_list operands = {items, 0};
    assert_fails(rk_arguments_check_operands(&verb, &operands, &error), RK_USAGE, error,
                 "usage: reckon plan [options] PLAN [MORE]");
    operands.count = 3;
    assert_fails(rk_arguments_check_operands(&verb, &operands, &error), RK_USAGE, error, "unexpected argument 'extra'");
    operands.count = 2;
    assert_ok(rk_arguments_check_operands(&verb, &operands, &error), error);
}

static void nearest_names(void **state) {
    (void)state;
    const char *names[] = {"plan", "run", "report", "compare", "calibrate"};
    assert_string_equal(rk_nearest_name("plna", names, 5), "plan");
    assert_string_equal(rk_nearest_name("comp", names, 5), "compare");
    assert_string_equal(rk_nearest_name("calbrate", names, 5), "calibrate");
    assert_string_equal(rk_nearest_name("rum", names, 5), "run");
    assert_null(rk_nearest_name("zebra", names, 5));
    assert_null(rk_nearest_name("", names, 5));
    char longer[200];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_null(rk_nearest_name(longer, names, 5));
}

static void texts_hold_every_option(void **state) {
    (void)state;
    const struct rk_arguments *verbs[] = {&verb};
    struct rk_text help = {0}, completion = {0}, manual = {0};
    rk_arguments_help("reckon", &verb, &common, &help);
    rk_arguments_completion("reckon", verbs, 1, &common, &completion);
    rk_arguments_manual("reckon", "1.0", "a summary", verbs, 1, &common, &manual);
    for (size_t i = 0; i < verb.option_count; i++) {
        char option[40];
        snprintf(option, sizeof option, "--%s", own[i].name);
        assert_non_null(strstr(help.data, option));
        assert_non_null(strstr(completion.data, option));
        assert_non_null(strstr(manual.data, own[i].help));
    }
    assert_non_null(strstr(help.data, "Usage: reckon plan [options] PLAN [MORE]\n"));
    assert_non_null(strstr(help.data, "--overlap none|two-batch"));
    assert_non_null(strstr(completion.data, "'plan --overlap') words='none two-batch' ;;"));
    assert_non_null(strstr(manual.data, "\n\\&.starts with a dot"));
    for (const char *line = help.data; *line != '\0'; line = strchr(line, '\n') + 1)
        assert_true(strcspn(line, "\n") <= 100);
    rk_text_free(&help);
    rk_text_free(&completion);
    rk_text_free(&manual);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_types_are_read),
        cmocka_unit_test(defaults_stand_and_prefixes_count),
        cmocka_unit_test(nothing_is_stored_without_a_place),
        cmocka_unit_test(parsing_twice_gives_the_same),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(operands_are_counted),
        cmocka_unit_test(nearest_names),
        cmocka_unit_test(texts_hold_every_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

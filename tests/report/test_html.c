/* The report page: well formed, complete, without script, and deaf to hostile names. */
#include "tests/report/html_case.h"

#include "report/chart.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct rk_text write_page(const struct html_case *made) {
    struct rk_text html = {0};
    struct rk_error error = {RK_OK, ""};
    if (rk_html_write(&made->input, &html, &error) != RK_OK)
        fail_msg("%s", error.text);
    return html;
}

static bool is_void(const char *name) {
    return strcmp(name, "meta") == 0 || strcmp(name, "!DOCTYPE") == 0;
}

/* Every element that opens closes, in order; attributes are quoted; no bare & and no control characters. */
static void expect_well_formed(const char *html) {
    enum { DEPTH = 64 };
    char open[DEPTH][24];
    int depth = 0;
    for (const char *at = strchr(html, '<'); at != NULL; at = strchr(at + 1, '<')) {
        char name[24] = "";
        bool closes = at[1] == '/';
        size_t length = strcspn(at + 1 + closes, " />\n");
        assert_true(length < sizeof name);
        memcpy(name, at + 1 + closes, length);
        const char *end = strchr(at, '>');
        assert_non_null(end);
        int quotes = 0;
        for (const char *byte = at; byte < end; byte++)
            quotes += *byte == '"';
        assert_int_equal(quotes % 2, 0);
        if (closes) {
            assert_true(depth > 0);
            assert_string_equal(open[--depth], name);
        } else if (end[-1] != '/' && !is_void(name)) {
            assert_true(depth < DEPTH);
            memcpy(open[depth++], name, sizeof name);
        }
    }
    assert_int_equal(depth, 0);
    for (const char *at = strchr(html, '&'); at != NULL; at = strchr(at + 1, '&')) {
        size_t length = strspn(at + 1, "abcdefghijklmnopqrstuvwxyz#0123456789");
        assert_true(length > 1 && at[1 + length] == ';');
    }
    for (const char *byte = html; *byte != '\0'; byte++)
        assert_true((unsigned char)*byte >= ' ' || *byte == '\n');
}

static void expect(const char *html, const char *part) {
    if (strstr(html, part) == NULL)
        fail_msg("the page does not hold \"%s\"", part);
}

static void expect_not(const char *html, const char *part) {
    const char *found = strstr(html, part);
    if (found != NULL)
        fail_msg("the page holds \"%.80s\"", found);
}

static void a_run_has_every_section(void **state) {
    (void)state;
    struct html_case *made = calloc(1, sizeof *made);
    assert_int_equal(html_case_make(made, "tiny"), 0);
    struct rk_text html = write_page(made);
    static const char *const parts[] = {
        "<title>Reckon: run 12 against tiny</title>",
        "Where the time of a step goes",
        "From the predicted to the measured step",
        "Op families of stage 0",
        "Every kind of op, predicted against measured",
        "rank correlation 0.",
        "Memory by owner",
        "rank 3, weights",
        "Loss and time of each step",
        "Timeline of the predicted step",
        "stage 1 exchange",
        "264 configurations were judged, 180 are feasible",
        "memory: need 3.4, have 2 GiB; tiny",
        "Where the prices come from",
        "prefers-color-scheme:dark",
        "1.62 s",
        "-6.2 %",
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        expect(html.data, parts[i]);
    expect_well_formed(html.data);
    expect_not(html.data, "<script");
    expect_not(html.data, "http");
    expect_not(html.data, "nan");
    expect_not(html.data, "inf,");
    size_t charts = 0, tables = 0;
    for (const char *at = html.data; (at = strstr(at, "<svg")) != NULL; at++)
        charts++;
    for (const char *at = html.data; (at = strstr(at, "<table")) != NULL; at++)
        tables++;
    assert_int_equal(charts, 10); /* loss and time share a table */
    assert_int_equal(tables, 9);
    rk_text_free(&html);
    html_case_free(made);
    free(made);
}

static void a_plan_alone_has_what_it_can(void **state) {
    (void)state;
    struct html_case *made = calloc(1, sizeof *made);
    assert_int_equal(html_case_make(made, "tiny"), 0);
    made->input.run = NULL;
    made->input.step_count = 0;
    made->input.memory_count = 0;
    made->input.comparison = NULL;
    made->input.simulation = NULL;
    made->input.plan_row = NULL;
    made->input.candidate_count = 0;
    struct rk_text html = write_page(made);
    expect(html.data, "<title>Reckon: tiny</title>");
    expect(html.data, "What the predicted step is made of");
    expect(html.data, "stage 1, each rank");
    expect_not(html.data, "Timeline");
    expect_not(html.data, "measured step");
    expect_not(html.data, "Loss and time");
    expect_well_formed(html.data);
    rk_text_free(&html);
    html_case_free(made);
    free(made);
}

static void hostile_names_stay_text(void **state) {
    (void)state;
    struct html_case *made = calloc(1, sizeof *made);
    assert_int_equal(html_case_make(made, "</title></script><script>alert('1')</script>\"&\x01\x1b[31m"), 0);
    struct rk_text html = write_page(made);
    expect_well_formed(html.data);
    expect_not(html.data, "<script");
    expect_not(html.data, "</script");
    expect_not(html.data, "\x1b");
    expect(html.data, "&lt;/script&gt;&lt;script&gt;alert(&#39;1&#39;)");
    rk_text_free(&html);
    html_case_free(made);
    free(made);
}

static void broken_numbers_are_gaps(void **state) {
    (void)state;
    struct html_case *made = calloc(1, sizeof *made);
    assert_int_equal(html_case_make(made, "tiny"), 0);
    for (int i = 5; i < CASE_STEPS; i++) {
        made->steps[i].loss = i % 2 == 0 ? NAN : INFINITY;
        made->steps[i].grad_norm = NAN;
        made->steps[i].seconds = NAN;
    }
    made->plan.low = made->plan.high = NAN;
    for (size_t i = 0; i < made->comparison.row_count; i++)
        made->comparison.rows[i].measured = NAN;
    struct rk_text html = write_page(made);
    expect_well_formed(html.data);
    expect_not(html.data, "nan");
    expect_not(html.data, "inf,");
    expect_not(html.data, "\"inf");
    rk_text_free(&html);

    for (int i = 0; i < CASE_STEPS; i++) {
        made->steps[i].loss = i % 2 == 0 ? 1e308 : -1e308;
        made->steps[i].seconds = 1 + 1e-16 * i;
        made->steps[i].step = INT64_C(9007199254740000) + i;
    }
    html = write_page(made);
    expect_well_formed(html.data);
    expect_not(html.data, "nan");
    expect_not(html.data, "inf,");
    assert_true(html.length < 200000);
    rk_text_free(&html);

    made->input.step_count = 1; /* one point has no extent */
    html = write_page(made);
    expect_well_formed(html.data);
    expect_not(html.data, "nan");
    rk_text_free(&html);
    html_case_free(made);
    free(made);
}

static void long_runs_give_small_pages(void **state) {
    (void)state;
    enum { STEPS = 200000 };
    struct html_case *made = calloc(1, sizeof *made);
    struct rk_step_row *steps = calloc(STEPS, sizeof *steps);
    assert_int_equal(html_case_make(made, "tiny"), 0);
    for (int i = 0; i < STEPS; i++)
        steps[i] = (struct rk_step_row){.step = i, .seconds = 1, .loss = 3, .grad_norm = 1};
    made->input.steps = steps;
    made->input.step_count = STEPS;
    struct rk_text html = write_page(made);
    assert_true(html.length < 400000);
    expect(html.data, "200000 steps, evenly thinned here");
    rk_text_free(&html);
    free(steps);
    html_case_free(made);
    free(made);
}

static struct rk_comparison_row op_row(const char *level, double predicted, double measured) {
    struct rk_comparison_row row = {.predicted = predicted, .measured = measured};
    snprintf(row.level, sizeof row.level, "%s", level);
    return row;
}

static void statistics_are_those_of_the_rows(void **state) {
    (void)state;
    struct rk_comparison_row rows[] = {op_row("op", 1.1, 1), op_row("op", 1.6, 2), op_row("op", 3, 3),
                                       op_row("op", 5, 4),   op_row("op", 0, 4),   op_row("op", 4, NAN),
                                       op_row("step", 9, 1)};
    struct rk_comparison comparison = {.rows = rows, .row_count = sizeof rows / sizeof rows[0]};
    struct rk_error_statistics statistics;
    assert_int_equal(rk_error_statistics_make(&comparison, "op", &statistics, NULL), RK_OK);
    assert_int_equal(statistics.count, 4); /* errors 0.1, -0.2, 0, 0.25 */
    assert_true(fabs(statistics.median - 0.15) < 1e-12);
    assert_true(fabs(statistics.p90 - (0.2 + 0.7 * 0.05)) < 1e-12);
    assert_true(fabs(statistics.largest - 0.25) < 1e-12);
    assert_true(fabs(statistics.signed_mean - 0.0375) < 1e-12);
    assert_true(fabs(statistics.rank_correlation - 1) < 1e-12);
    assert_int_equal(rk_error_statistics_make(&comparison, "none", &statistics, NULL), RK_OK);
    assert_int_equal(statistics.count, 0);
    assert_true(isnan(statistics.median) && isnan(statistics.rank_correlation));
}

static void values_read_well(void **state) {
    (void)state;
    static const struct {
        enum rk_chart_unit unit;
        double value;
        const char *text;
    } cases[] = {{RK_CHART_SECONDS, 1.52, "1.52 s"},
                 {RK_CHART_SECONDS, 0.0009999999, "1 ms"},
                 {RK_CHART_SECONDS, -3.5e-6, "-3.5 µs"},
                 {RK_CHART_SECONDS, 0, "0"},
                 {RK_CHART_SECONDS, 56789, "56789 s"},
                 {RK_CHART_BYTES, 1024, "1 KiB"},
                 {RK_CHART_BYTES, 1536.0 * 1048576, "1.5 GiB"},
                 {RK_CHART_BYTES, 12, "12 B"},
                 {RK_CHART_PLAIN, 5.5123, "5.512"},
                 {RK_CHART_PLAIN, NAN, "–"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[32];
        assert_string_equal(rk_chart_value(cases[i].unit, cases[i].value, text, sizeof text), cases[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_has_every_section),    cmocka_unit_test(a_plan_alone_has_what_it_can),
        cmocka_unit_test(hostile_names_stay_text),    cmocka_unit_test(broken_numbers_are_gaps),
        cmocka_unit_test(long_runs_give_small_pages), cmocka_unit_test(statistics_are_those_of_the_rows),
        cmocka_unit_test(values_read_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "model/hardware.h"
#include "model/memory_estimate.h"
#include "model/offload_budget.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_close(double value, double expected, double tolerance) {
    if (!(fabs(value - expected) <= tolerance)) {
        fail_msg("%.17g expected, got %.17g", expected, value);
    }
}

static struct rk_hardware read_profile(const char *path) {
    struct rk_hardware hardware;
    struct rk_error error = {.text = ""};
    if (rk_hardware_read_file(path, &hardware, &error) != RK_OK) {
        fail_msg("%s", error.text);
    }
    return hardware;
}

/* Every profile that comes with reckon: readable, canonical, enough for a plan, and each figure has its source. */
static void shipped_profiles(void **state) {
    (void)state;
    DIR *folder = opendir("hardware");
    assert_non_null(folder);
    int profiles = 0;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char path[300];
        char *text = NULL;
        size_t length = 0;
        struct rk_error error = {.text = ""};
        struct rk_text written = {0};
        struct rk_machine machine;
        if (strstr(entry->d_name, ".json") == NULL) {
            continue;
        }
        profiles++;
        snprintf(path, sizeof path, "hardware/%s", entry->d_name);
        struct rk_hardware hardware = read_profile(path);
        assert_int_equal(rk_read_file(path, 1 << 20, &text, &length, &error), RK_OK);
        assert_int_equal(rk_hardware_write(&hardware, &written, &error), RK_OK);
        assert_int_equal(written.length, length);
        assert_memory_equal(written.data, text, length);
        assert_int_equal(rk_hardware_machine(&hardware, &machine, &error), RK_OK);
        assert_true(machine.memory_bytes > 0 && machine.dense_peak.value > 0 && machine.d2h.value > 0);
        assert_true(machine.d2h.value <= machine.d2h_specification.value);
        assert_true(machine.dense_peak.relative_uncertainty > 0);
        for (int i = 0; i < RK_HARDWARE_FIGURE_COUNT; i++) {
            const struct rk_profile_figure *figure = rk_hardware_figure(&hardware, (enum rk_hardware_figure)i);
            assert_true(figure == NULL ||
                        (figure->source[0] != '\0' && figure->low <= figure->value && figure->value <= figure->high));
        }
        rk_text_free(&written);
        free(text);
    }
    closedir(folder);
    assert_true(profiles >= 4);
}

static void b300_holds_the_report(void **state) {
    (void)state;
    struct rk_hardware b300 = read_profile("hardware/b300.json");
    struct rk_machine machine;
    assert_int_equal(rk_hardware_machine(&b300, &machine, NULL), RK_OK);
    assert_string_equal(machine.name, "b300");
    assert_int_equal(machine.memory_bytes, (int64_t)275040 * 1048576);
    assert_int_equal(machine.devices_per_host, 8);
    assert_close(machine.d2h_specification.value, 63e9, 0);
    assert_int_equal(machine.d2h_specification.origin, RK_ORIGIN_SPECIFICATION);
    assert_close(machine.d2h.value, 53e9, 0);
    assert_int_equal(machine.d2h.origin, RK_ORIGIN_MEASURED);
    assert_close(machine.both_directions.value, 0.8, 0);
    assert_close(machine.both_directions.relative_uncertainty, 0.0625, 1e-12);
    assert_close(machine.dense_peak.value, 2250e12, 0);
    assert_close(b300.figures[RK_HARDWARE_NODE_LINK].value, 18 * 53.125e9, 0);
}

/* Claim 4 of the report, from its model, its profiled times and its link. */
static void offload_budget_of_the_report(void **state) {
    (void)state;
    struct rk_hardware b300 = read_profile("hardware/b300.json");
    struct rk_architecture model;
    struct rk_error error = {.text = ""};
    assert_int_equal(rk_architecture_read_file("examples/models/report-8l-n32.json", &model, NULL, &error), RK_OK);
    const struct rk_published_time *forward =
        rk_hardware_published(&b300, RK_PUBLISHED_MOE_BLOCK_FORWARD, &model, 16384);
    const struct rk_published_time *backward =
        rk_hardware_published(&b300, RK_PUBLISHED_MOE_BLOCK_BACKWARD, &model, 16384);
    const struct rk_published_time *whole = rk_hardware_published(&b300, RK_PUBLISHED_MICRO_BATCH, &model, 16384);
    assert_true(forward != NULL && backward != NULL && whole != NULL);
    const struct rk_offload_demand block = {rk_moe_block_activation_bytes(&model, 16384, 2), forward->seconds.value,
                                            backward->seconds.value};
    assert_close(block.activation_bytes, 3.959e9, 0.0005e9);
    struct rk_offload_budget budget;
    const struct rk_offload_link specification = {63e9, 63e9};
    const struct rk_offload_link measured = {53e9, 53e9};
    rk_offload_budget(&block, &specification, &budget);
    assert_close(budget.need_device_to_host, 384e9, 0.5e9);
    assert_close(budget.need_host_to_device, 180e9, 0.5e9);
    assert_close(budget.excess_device_to_host, 6.1, 0.05);
    assert_close(budget.fraction, 63e9 * 0.0103 / block.activation_bytes, 1e-12);
    rk_offload_budget(&block, &measured, &budget);
    /* The report divides its printed need, 384: 7.245, not 7.253. */
    assert_close(round(budget.need_device_to_host / 1e9) / 53.0, 7.2, 0.05);
    assert_close(budget.excess_device_to_host, 7.253, 0.0005);
    assert_close(budget.fraction, 1 / budget.excess_device_to_host, 1e-12);
    const double all = 7 * block.activation_bytes + rk_dense_block_activation_bytes(&model, 16384, 2);
    assert_close(all / whole->seconds.value, 104e9, 0.5e9);
}

static void offload_budget_limits(void **state) {
    (void)state;
    struct rk_offload_budget budget;
    const struct rk_offload_link link = {10, 5};
    /* Neither direction, the forward direction, and the backward direction decide. */
    rk_offload_budget(&(struct rk_offload_demand){100, 20, 40}, &link, &budget);
    assert_true(budget.fraction == 1.0);
    rk_offload_budget(&(struct rk_offload_demand){100, 2, 40}, &link, &budget);
    assert_close(budget.fraction, 0.2, 1e-15);
    rk_offload_budget(&(struct rk_offload_demand){100, 20, 2}, &link, &budget);
    assert_close(budget.fraction, 0.1, 1e-15);
    assert_close(budget.excess_host_to_device, 10, 1e-12);
    rk_offload_budget(&(struct rk_offload_demand){0, 1, 1}, &link, &budget);
    assert_true(budget.fraction == 1.0 && budget.need_device_to_host == 0.0);
}

static void published_rows_match_by_shape(void **state) {
    (void)state;
    struct rk_hardware b300 = read_profile("hardware/b300.json");
    struct rk_architecture model;
    assert_int_equal(rk_architecture_read_file("examples/models/report-8l-n128.json", &model, NULL, NULL), RK_OK);
    assert_non_null(rk_hardware_published(&b300, RK_PUBLISHED_MOE_BLOCK_FORWARD, &model, 16384));
    assert_null(rk_hardware_published(&b300, RK_PUBLISHED_MOE_BLOCK_FORWARD, &model, 8192));
    model.layers = 9;
    assert_non_null(rk_hardware_published(&b300, RK_PUBLISHED_MOE_BLOCK_FORWARD, &model, 16384));
    assert_null(rk_hardware_published(&b300, RK_PUBLISHED_MICRO_BATCH, &model, 16384));
    model.top_k = 2;
    assert_null(rk_hardware_published(&b300, RK_PUBLISHED_MOE_BLOCK_FORWARD, &model, 16384));
}

#define HEAD "{\"format\":\"reckon-hardware\",\"version\":1,\"name\":\"x\",\"figures\":{"
#define GOOD_MEMORY "\"memory\":{\"value\":8e10,\"unit\":\"B\",\"origin\":\"specification\",\"source\":\"s\"}"

static void hostile_profiles(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
    } rows[] = {
        {"", ""},
        {"[]", "object"},
        {"{\"format\":\"other\"}", "format"},
        {"{\"format\":\"reckon-hardware\",\"version\":2,\"name\":\"x\",\"figures\":{}}", "version"},
        {"{\"format\":\"reckon-hardware\",\"version\":1,\"figures\":{}}", "name"},
        {"{\"format\":\"reckon-hardware\",\"version\":1,\"name\":\"x\"}", "figures"},
        {"{\"format\":\"reckon-hardware\",\"version\":1,\"name\":\"x\",\"figures\":{},\"extra\":1}", "extra"},
        {HEAD "\"memmory\":{}}}", "memmory"},
        {HEAD "\"memory\":8e10}}", "memory"},
        {HEAD "\"memory\":{\"unit\":\"B\",\"origin\":\"specification\",\"source\":\"s\"}}}", "value"},
        {HEAD "\"memory\":{\"value\":-1,\"unit\":\"B\",\"origin\":\"specification\",\"source\":\"s\"}}}",
         "memory.value"},
        {HEAD "\"memory\":{\"value\":NaN,\"unit\":\"B\",\"origin\":\"specification\",\"source\":\"s\"}}}",
         "memory.value"},
        {HEAD "\"memory\":{\"value\":1e99,\"unit\":\"B\",\"origin\":\"specification\",\"source\":\"s\"}}}",
         "memory.value"},
        {HEAD "\"memory\":{\"value\":80,\"unit\":\"GB\",\"origin\":\"specification\",\"source\":\"s\"}}}", "'B'"},
        {HEAD "\"memory\":{\"value\":80,\"unit\":\"B\",\"origin\":\"guess\",\"source\":\"s\"}}}", "guess"},
        {HEAD "\"memory\":{\"value\":80,\"unit\":\"B\",\"origin\":\"specification\"}}}", "source"},
        {HEAD "\"memory\":{\"value\":80,\"unit\":\"B\",\"origin\":\"specification\",\"source\":\"\"}}}", "source"},
        {HEAD "\"memory\":{\"value\":80,\"unit\":\"B\",\"origin\":\"measured\",\"source\":\"s\"}}}", "condition"},
        {HEAD "\"memory\":{\"value\":80,\"low\":90,\"unit\":\"B\",\"origin\":\"measured\",\"source\":\"s\"}}}", "low"},
        {HEAD "\"memory\":{\"value\":80,\"unit\":\"B\",\"origin\":\"specification\",\"source\":\"s\",\"note\":1}}}",
         "note"},
        {HEAD "\"both_directions\":{\"value\":1.5,\"unit\":\"factor\",\"origin\":\"published\",\"source\":\"s\"}}}",
         "both_directions"},
        {HEAD GOOD_MEMORY "},\"published\":{}}", "published"},
        {HEAD GOOD_MEMORY "},\"published\":[1]}", "published"},
        {HEAD GOOD_MEMORY "},\"published\":[{\"kind\":\"moon\"}]}", "moon"},
        {HEAD GOOD_MEMORY "},\"published\":[{\"kind\":\"micro_batch\",\"tokens\":-1}]}", "tokens"},
        {HEAD GOOD_MEMORY "," GOOD_MEMORY "}}", "memory"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rk_hardware hardware = {.name = "untouched"};
        struct rk_error error = {.text = ""};
        enum rk_status status = rk_hardware_parse("bad.json", rows[i].text, strlen(rows[i].text), &hardware, &error);
        if (status != RK_USAGE || strstr(error.text, "bad.json") == NULL ||
            strstr(error.text, rows[i].expected) == NULL) {
            fail_msg("%s: status %d, '%s', wanted '%s'", rows[i].text, status, error.text, rows[i].expected);
        }
        assert_string_equal(hardware.name, "untouched");
    }
}

static void too_little_for_a_plan(void **state) {
    (void)state;
    static const char text[] = HEAD GOOD_MEMORY "}}";
    struct rk_hardware hardware;
    struct rk_machine machine;
    struct rk_error error = {.text = ""};
    assert_int_equal(rk_hardware_parse("x.json", text, strlen(text), &hardware, &error), RK_OK);
    assert_null(rk_hardware_figure(&hardware, RK_HARDWARE_LAUNCH));
    assert_int_equal(rk_hardware_machine(&hardware, &machine, &error), RK_USAGE);
    assert_non_null(strstr(error.text, "peak_bf16, gpus_per_node"));
    assert_true(rk_hardware_term(NULL, "x").value == 0.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped_profiles),
        cmocka_unit_test(b300_holds_the_report),
        cmocka_unit_test(offload_budget_of_the_report),
        cmocka_unit_test(offload_budget_limits),
        cmocka_unit_test(published_rows_match_by_shape),
        cmocka_unit_test(hostile_profiles),
        cmocka_unit_test(too_little_for_a_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Export and import: nothing lost on the way round, nothing broken let in. */
#include "tests/db/fixture.h"

#include "base/text.h"
#include "db/exchange.h"
#include "db/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct rk_import_options import_options = {.now_us = INT64_C(1790001000000000)};

static enum rk_status add_to_text(void *context, const void *data, size_t length, struct rk_error *error) {
    (void)error;
    rk_text_add_bytes(context, data, length);
    return RK_OK;
}

static struct rk_text export_text(struct fixture *fixture, struct rk_db *db) {
    struct rk_text text = {0};
    struct rk_export_sink sink = {add_to_text, &text};
    expect_status(fixture, rk_db_export_jsonl(db, &sink, &fixture->error), RK_OK);
    assert_false(text.failed);
    return text;
}

static const char *in_folder(const struct fixture *fixture, const char *name) {
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", fixture->folder, name);
    return path;
}

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    assert_int_equal(fclose(file), 0);
}

/* A database with a row of every table, awkward texts and numbers among them. */
static struct rk_db *make_full(struct fixture *fixture) {
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_machine_identity cpu = cpu_machine("none");
    struct rk_machine_identity gpu = gpu_machine();
    strcpy(cpu.host.hostname, "a \"quoted\", comma\nand newline \\ \x01 é");
    int64_t campaign = store_campaign(fixture, db, &gpu, 5);
    store_campaign(fixture, db, &cpu, 3);
    double samples[9];
    bool throttled[9];
    for (size_t i = 0; i < 9; i++) {
        samples[i] = 1.0 / 3.0 / (double)(i + 1);
        throttled[i] = i % 4 == 1;
    }
    struct rk_measurement_row row = measurement_of(campaign, 1, samples, 9);
    row.throttled = 2;
    row.workspace_bytes = INT64_MAX; /* past 2^53 */
    expect_status(fixture, rk_measurement_store(db, &row, samples, throttled, 9, NULL, &fixture->error), RK_OK);
    strcpy(row.status, "failed");
    strcpy(row.stop_reason, "failed");
    row.median_seconds = NAN;
    expect_status(fixture, rk_measurement_store(db, &row, NULL, NULL, 0, NULL, &fixture->error), RK_OK);
    struct rk_campaign_rank_row rank = {.campaign_id = campaign,
                                        .host_id = 1,
                                        .device = "GPU-0",
                                        .cpu_list = "0-7",
                                        .numa_node = -1,
                                        .clock_hz = 1.98e9,
                                        .power_watts = NAN};
    struct rk_telemetry_row telemetry = {.campaign_id = campaign,
                                         .time_us = 17,
                                         .clock_hz = 1.1e9,
                                         .memory_clock_hz = NAN,
                                         .power_watts = 5e-324,
                                         .temperature_celsius = -0.0,
                                         .throttle_reasons = "power cap"};
    struct rk_fit_row fit = {.campaign_id = campaign,
                             .op = "gemm_forward",
                             .type = "f32",
                             .group_size = 1,
                             .form = "log-log",
                             .parameters = "{}",
                             .held_out_median = 0.1};
    struct rk_fit_input inputs[2] = {{1, false}, {3, true}};
    expect_status(fixture, rk_campaign_add_rank(db, &rank, &fixture->error), RK_OK);
    expect_status(fixture, rk_telemetry_store(db, &telemetry, &fixture->error), RK_OK);
    expect_status(fixture, rk_fit_store(db, &fit, inputs, 2, NULL, &fixture->error), RK_OK);
    store_run(fixture, db, store_plan(fixture, db, "{\n  \"a\": \"b\\n\"\n}\n"));
    return db;
}

static struct rk_db *open_other(struct fixture *fixture, const char *name) {
    struct rk_db_options options = {.access = RK_DB_WRITE};
    struct rk_db *db = NULL;
    expect_status(fixture, rk_db_open(in_folder(fixture, name), &options, &db, &fixture->error), RK_OK);
    return db;
}

static void jsonl_goes_round_without_loss(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = make_full(fixture);
    struct rk_text before = export_text(fixture, db);
    struct rk_db_table_size *sizes = NULL;
    size_t tables = 0;
    expect_status(fixture, rk_db_table_sizes(db, &sizes, &tables, &fixture->error), RK_OK);
    for (size_t i = 0; i < tables; i++) {
        if (sizes[i].rows == 0) {
            fail_msg("the test has no row of %s", sizes[i].name);
        }
    }
    free(sizes);
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s", in_folder(fixture, "export.jsonl"));
    write_text(path, before.data);
    struct rk_db *other = open_other(fixture, "other.db");
    struct rk_import_result result;
    expect_status(fixture, rk_db_import(other, path, &import_options, &result, &fixture->error), RK_OK);
    assert_string_equal(result.format, "jsonl");
    assert_int_equal(result.known, 0);
    struct rk_text after = export_text(fixture, other);
    assert_string_equal(before.data, after.data);

    /* Once more into the same: every unit is there already, and nothing changes. */
    expect_status(fixture, rk_db_import(other, path, &import_options, &result, &fixture->error), RK_USAGE);
    expect_text(fixture, "already in");
    struct rk_text again = export_text(fixture, other);
    assert_string_equal(after.data, again.data);
    rk_text_free(&before);
    rk_text_free(&after);
    rk_text_free(&again);
    rk_db_close(db);
    rk_db_close(other);
}

static void csv_goes_round_without_loss(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = make_full(fixture);
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", in_folder(fixture, "csv"));
    expect_status(fixture, rk_db_export_csv(db, folder, &fixture->error), RK_OK);
    expect_status(fixture, rk_db_export_csv(db, folder, &fixture->error), RK_USAGE);
    expect_text(fixture, "not empty");
    struct rk_db *other = open_other(fixture, "other.db");
    struct rk_import_result result;
    expect_status(fixture, rk_db_import(other, folder, &import_options, &result, &fixture->error), RK_OK);
    assert_string_equal(result.format, "csv");
    struct rk_text before = export_text(fixture, db);
    struct rk_text after = export_text(fixture, other);
    assert_string_equal(before.data, after.data);
    rk_text_free(&before);
    rk_text_free(&after);
    rk_db_close(db);
    rk_db_close(other);
}

static void rows_get_new_numbers_beside_others(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = make_full(fixture);
    struct rk_text text = export_text(fixture, db);
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s", in_folder(fixture, "export.jsonl"));
    write_text(path, text.data);
    rk_text_free(&text);
    rk_db_close(db);

    struct rk_db *other = open_other(fixture, "other.db");
    struct rk_machine_identity gpu = gpu_machine();
    store_campaign(fixture, other, &gpu, 4);
    struct rk_import_result result;
    expect_status(fixture, rk_db_import(other, path, &import_options, &result, &fixture->error), RK_OK);
    assert_int_equal(result.known, 10); /* one host, two GPUs, software, topology, link, four cases */
    struct rk_campaign_row *campaigns = NULL;
    size_t count = 0;
    expect_status(fixture, rk_campaign_list(other, &campaigns, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 3);
    free(campaigns);
    struct rk_measured_case *rows = NULL;
    expect_status(fixture, rk_measurement_list(other, 2, &rows, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 7);
    assert_int_equal(rows[0].measurement.id, 5);
    assert_int_equal(rows[0].bench_case.id, 1);
    double *samples = NULL;
    bool *throttled = NULL;
    size_t samples_count = 0;
    expect_status(fixture,
                  rk_sample_get(other, rows[5].measurement.id, &samples, &throttled, &samples_count, &fixture->error),
                  RK_OK);
    assert_int_equal(samples_count, 9);
    assert_true(samples[1] == 1.0 / 3.0 / 2.0 && throttled[1] && !throttled[0]);
    free(samples);
    free(throttled);
    free(rows);
    rk_db_close(other);
}

/* Imports text after one change and expects a refusal that holds part and leaves nothing behind. */
static void expect_refusal(struct fixture *fixture, const char *text, const char *from, const char *to,
                           const char *part) {
    const char *place = strstr(text, from);
    if (place == NULL) {
        fail_msg("the export does not hold %s", from);
        return;
    }
    struct rk_text changed = {0};
    rk_text_add_bytes(&changed, text, (size_t)(place - text));
    rk_text_add(&changed, to);
    rk_text_add(&changed, place + strlen(from));
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s", in_folder(fixture, "changed.jsonl"));
    write_text(path, changed.data);
    struct rk_db *other = open_other(fixture, "refuse.db");
    struct rk_import_result result;
    enum rk_status status = rk_db_import(other, path, &import_options, &result, &fixture->error);
    if (status != RK_USAGE || strstr(fixture->error.text, part) == NULL) {
        fail_msg("'%s' -> '%s': %s: %s", from, to, rk_status_name(status), fixture->error.text);
    }
    struct rk_db_table_size *sizes = NULL;
    size_t tables = 0;
    expect_status(fixture, rk_db_table_sizes(other, &sizes, &tables, &fixture->error), RK_OK);
    for (size_t i = 0; i < tables; i++) {
        assert_int_equal(sizes[i].rows, 0);
    }
    free(sizes);
    rk_db_close(other);
    rk_text_free(&changed);
}

static void broken_exports_are_refused_whole(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = make_full(fixture);
    struct rk_text text = export_text(fixture, db);
    static const struct {
        const char *from, *to, *part;
    } cases[] = {
        {"{\"reckon_export\":1", "{\"reckon_export\":9", "newer reckon"},
        {"\"schema_version\":2", "\"schema_version\":3", "newer reckon"},
        {"\"schema_version\":2", "\"schema_version\":\"2\"", "changed.jsonl:1"},
        {"{\"end\":true", "{\"fin\":true", "neither a row"},
        {"{\"table\":\"gpu\"", "{\"table\":\"gpus\"", "unknown table"},
        {"\"host_id\":1", "\"host_id\":9", "refers to host 9"},
        {"\"ordinal\":0", "\"ordinal\":0.5", "not a whole number"},
        {"\"ordinal\":0", "\"ordinal\":\"x\"", "whole number"},
        {"\"ordinal\":0", "\"ordinal\":[]", "not a number"},
        {"\"ordinal\":0,", "", "column ordinal is missing"},
        {"\"ordinal\":0,", "\"ordinal\":0,\"extra\":1,", "more columns"},
        {"\"ordinal\":0,", "\"ordinal\":null,", "NOT NULL"},
        {"\"state\":\"finished\"", "\"state\":\"done\"", "CHECK"},
        {"\"power_limit_watts\":700", "\"power_limit_watts\":\"nan\"", "not a number"},
        {"\"seconds\":[", "\"seconds\":[-1,", "no time"},
        {"\"seconds\":[", "\"seconds\":[null,", "no time"},
        {"\"throttled\":[0,1", "\"throttled\":[0,2", "0 or 1"},
        {"\"throttled\":[0,1", "\"throttled\":[0", "values for 9 samples"},
        {"\"median_seconds\":", "\"median_seconds\":1", "the median"},
        {"\"hostname\":\"node-1\"", "\"hostname\":\"node-1\",\"hostname\":\"b\"", "changed.jsonl:2"},
        {"\"document\":\"{", "\"document\":\"", "not JSON"},
        {"\"id\":1", "\"id\":0", "a number from 1 on"},
        {"{\"table\":\"gpu\",\"row\":{\"id\":2", "{\"table\":\"gpu\",\"row\":{\"id\":1", "ascending order"},
        {"\"rows\":{\"host\":3", "\"rows\":{\"host\":4", "incomplete"},
        {"\"rows\":{\"host\":3", "\"rows\":{\"hosts\":0,\"host\":3", "unknown tables"},
        {"\"dropped_routes\":4", "\"dropped_routes\":400000", "more routes dropped"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        expect_refusal(fixture, text.data, cases[i].from, cases[i].to, cases[i].part);
    }
    char *last = strstr(text.data, "{\"end\"");
    *last = '\0';
    expect_refusal(fixture, text.data, "{", "{", "cut short");
    text.data[text.length / 2] = '\0';
    expect_refusal(fixture, text.data, "{", "{", "changed.jsonl:");
    rk_text_free(&text);
    rk_db_close(db);
}

static void broken_csv_is_refused(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = make_full(fixture);
    static const struct {
        const char *file, *text, *part;
    } cases[] = {
        {"host.csv", "", "line of columns is missing"},
        {"host.csv", "id,name\n1,2\n", "not those of this table"},
        {"gpu.csv", "\"id", "does not end"},
        {"fit_input.csv", "fit_id,measurement_id,role\n1,1\n", "not as many fields"},
        {"fit_input.csv", "fit_id,measurement_id,role\n1,x,train\n", "whole number"},
        {"fit_input.csv", "fit_id,measurement_id,role\n1,1,\"tr\"ain\n", "stray quote"},
        {"fit_input.csv", "fit_id,measurement_id,role\n1,1,train\n", "incomplete"},
        {"sample.csv", "a,b,c\n", "columns must be"},
        {"sample.csv", "measurement_id,ordinal,seconds,throttled\n1,1,0.5,\n", "ordinals count from 0"},
        {"sample.csv", "measurement_id,ordinal,seconds,throttled\n99,0,0.5,\n", "refers to measurement 99"},
        {"manifest.json", "{", "manifest"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char folder[PATH_MAX];
        char name[32];
        char path[PATH_MAX + 64];
        snprintf(name, sizeof(name), "csv%zu", i);
        snprintf(folder, sizeof(folder), "%s", in_folder(fixture, name));
        expect_status(fixture, rk_db_export_csv(db, folder, &fixture->error), RK_OK);
        snprintf(path, sizeof(path), "%s/%s", folder, cases[i].file);
        write_text(path, cases[i].text);
        struct rk_db *other = open_other(fixture, "other.db");
        struct rk_import_result result;
        expect_status(fixture, rk_db_import(other, folder, &import_options, &result, &fixture->error), RK_USAGE);
        expect_text(fixture, cases[i].part);
        struct rk_campaign_row *rows = NULL;
        size_t count = 1;
        expect_status(fixture, rk_campaign_list(other, &rows, &count, &fixture->error), RK_OK);
        assert_int_equal(count, 0);
        free(rows);
        rk_db_close(other);
    }
    rk_db_close(db);
}

static const char nccl_text[] =
    "{\"version\":2,\"start_time\":\"2026-05-04 10:11:12\",\"args\":[\"build\\/all_reduce_perf_mpi\",\"-b\",\"8\"],"
    "\"env\":[\"A=B\"],\"nccl_version\":22903,\"config\":{\"nthreads\":1,\"ngpus\":4,\"minimum_bytes\":8,"
    "\"devices\":[{\"rank\":0,\"group\":0,\"pid\":7,\"hostname\":\"n1\",\"device\":0,\"device_hex\":\"0000:01:00\","
    "\"device_info\":\"NVIDIA H200\"}]},\"results\":["
    "{\"size\":1048576,\"count\":262144,\"type\":\"float\",\"redop\":\"sum\",\"root\":\"    -1\","
    "\"out_of_place\":{\"time\":31.5,\"alg_bw\":33.3,\"bus_bw\":49.9,\"nwrong\":0.000000},"
    "\"in_place\":{\"time\":30.25,\"alg_bw\":34.6,\"bus_bw\":51.9,\"nwrong\":3.000000},"
    "\"in_place_per_iter\":{\"min_us\":30.0,\"times_us\":[30.0,30.5,31.0,30.2]},"
    "\"actual_iterations\":20,\"experiment_name\":\"x\"},"
    "{\"size\":0,\"count\":0,\"type\":\"float\",\"redop\":\"sum\",\"root\":\"-1\",\"out_of_place\":null}"
    "],\"end_time\":\"x\"}";

static void nccl_tests_are_imported(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_import_result result;
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s", in_folder(fixture, "nccl.json"));
    write_text(path, nccl_text);
    expect_status(fixture, rk_db_import(db, path, &import_options, &result, &fixture->error), RK_OK);
    assert_string_equal(result.format, "nccl-tests");
    assert_int_equal(result.rows, 2);
    struct rk_campaign_row campaign;
    expect_status(fixture, rk_campaign_get(db, 1, &campaign, &fixture->error), RK_OK);
    assert_true(campaign.imported);
    assert_string_equal(campaign.tool, "nccl-tests all_reduce_perf");
    assert_int_equal(campaign.world_size, 4);
    struct rk_measured_case *rows = NULL;
    size_t count = 0;
    expect_status(fixture, rk_measurement_list(db, 1, &rows, &count, &fixture->error), RK_OK);
    assert_string_equal(rows[0].bench_case.op, "all_reduce");
    assert_int_equal(rows[0].bench_case.dim[0], 262144);
    assert_int_equal(rows[0].bench_case.group_size, 4);
    assert_true(rows[0].measurement.median_seconds == 31.5e-6);
    assert_string_equal(rows[1].measurement.status, "wrong result");
    assert_int_equal(rows[1].measurement.sample_count, 4);
    assert_true(fabs(rows[1].measurement.median_seconds - 30.35e-6) < 1e-12);
    free(rows);
    rk_db_close(db);
}

static void nvbandwidth_is_imported(void **state) {
    struct fixture *fixture = *state;
    static const char text[] =
        "{\"nvbandwidth\":{\"CUDA Runtime Version\":13000,\"Driver Version\":\"580.1\",\"version\":\"v0.8\","
        "\"testcases\":[{\"name\":\"host_to_device_memcpy_ce\",\"status\":\"Passed\",\"sum\":110.0,"
        "\"bandwidth_description\":\"memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\","
        "\"bandwidth_matrix\":[[\"55.5\",\"54.5\"]]},"
        "{\"name\":\"device_to_device_memcpy_read_ce\",\"status\":\"Passed\","
        "\"bandwidth_matrix\":[[\"N/A\",\"400\"],[\"401\",\"N/A\"]]},"
        "{\"name\":\"host_device_latency_sm\",\"status\":\"Passed\","
        "\"bandwidth_description\":\"memory latency SM CPU(row) <-> GPU(column) (ns)\","
        "\"bandwidth_matrix\":[[\"800\"]]},{\"name\":\"multinode_x\",\"status\":\"Waived\"}]}}";
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_import_options options = import_options;
    struct rk_import_result result;
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s", in_folder(fixture, "nv.json"));
    write_text(path, text);
    expect_status(fixture, rk_db_import(db, path, &options, &result, &fixture->error), RK_USAGE);
    expect_text(fixture, "--buffer-size");
    options.nvbandwidth_bytes = 512 << 20;
    expect_status(fixture, rk_db_import(db, path, &options, &result, &fixture->error), RK_OK);
    assert_int_equal(result.rows, 5);
    struct rk_measured_case *rows = NULL;
    size_t count = 0;
    expect_status(fixture, rk_measurement_list(db, 1, &rows, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 5);
    assert_true(fabs(rows[1].measurement.bytes / rows[1].measurement.median_seconds / 1e9 - 54.5) < 1e-9);
    assert_int_equal(rows[3].bench_case.dim[1], 1);
    assert_true(fabs(rows[4].measurement.median_seconds - 800e-9) < 1e-18);
    free(rows);
    rk_db_close(db);
}

static void broken_tool_files_are_refused(void **state) {
    struct fixture *fixture = *state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "tool.json"},
        {"[]", "neither"},
        {"{}", "neither"},
        {"{\"nvbandwidth\":{\"error\":\"no GPU\"}}", "no GPU"},
        {"{\"nvbandwidth\":{\"testcases\":[]}}", "--buffer-size"},
        {"{\"nvbandwidth\":{\"bufferSize\":64,\"testcases\":[]}}", "no test"},
        {"{\"nvbandwidth\":{\"bufferSize\":64,\"testcases\":[{\"name\":\"a\",\"bandwidth_matrix\":[[\"-1\"]]}]}}",
         "no number"},
        {"{\"nvbandwidth\":{\"bufferSize\":64,\"testcases\":[{\"name\":\"a\",\"bandwidth_matrix\":[[\"0\"]]}]}}",
         "is 0"},
        {"{\"nccl_version\":1,\"args\":[\"rm\"],\"results\":[]}", "no collective"},
        {"{\"nccl_version\":1,\"args\":[\"all_reduce_perf\"],\"results\":[]}", "config"},
        {"{\"nccl_version\":1,\"args\":[\"all_reduce_perf\"],\"config\":{},\"results\":[]}", "no result"},
        {"{\"nccl_version\":1,\"args\":[\"all_reduce_perf\"],\"config\":{},\"results\":[{\"size\":8,\"count\":2,"
         "\"type\":\"float\",\"out_of_place\":{\"time\":\"nan\"}}]}",
         "without a device time"},
        {"{\"nccl_version\":1,\"args\":[\"all_reduce_perf\"],\"config\":{},\"results\":[{\"size\":-8,\"count\":2}]}",
         "size"},
    };
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s", in_folder(fixture, "tool.json"));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rk_import_result result;
        write_text(path, cases[i].text);
        expect_status(fixture, rk_db_import(db, path, &import_options, &result, &fixture->error), RK_USAGE);
        expect_text(fixture, cases[i].part);
    }
    struct rk_import_result result;
    expect_status(fixture, rk_db_import(db, in_folder(fixture, "none"), &import_options, &result, &fixture->error),
                  RK_USAGE);
    struct rk_campaign_row *rows = NULL;
    size_t count = 1;
    expect_status(fixture, rk_campaign_list(db, &rows, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 0);
    free(rows);
    rk_db_close(db);
}

int main(void) {
#define EXCHANGE_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        EXCHANGE_TEST(jsonl_goes_round_without_loss),
        EXCHANGE_TEST(csv_goes_round_without_loss),
        EXCHANGE_TEST(rows_get_new_numbers_beside_others),
        EXCHANGE_TEST(broken_exports_are_refused_whole),
        EXCHANGE_TEST(broken_csv_is_refused),
        EXCHANGE_TEST(nccl_tests_are_imported),
        EXCHANGE_TEST(nvbandwidth_is_imported),
        EXCHANGE_TEST(broken_tool_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

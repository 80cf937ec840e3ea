/* Rows in, rows out: what is stored comes back the same, and what may not change does not. */
#include "tests/db/fixture.h"

#include "base/statistics.h"
#include "db/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void a_campaign_comes_back(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_machine_identity machine = gpu_machine();
    int64_t id = store_campaign(fixture, db, &machine, 3);
    struct rk_campaign_row row;
    expect_status(fixture, rk_campaign_get(db, id, &row, &fixture->error), RK_OK);
    assert_int_equal(row.state, RK_CAMPAIGN_FINISHED);
    assert_int_equal(row.measurements, 3);
    assert_int_equal(strlen(row.uuid), 36);
    assert_string_equal(row.command, "reckon calibrate --quick");
    char machine_key[RK_MACHINE_KEY_SIZE];
    char fingerprint[RK_MACHINE_KEY_SIZE];
    rk_machine_keys(&machine, machine_key, fingerprint);
    assert_string_equal(row.machine_key, machine_key);
    assert_string_equal(row.fingerprint, fingerprint);

    struct rk_host_row host;
    expect_status(fixture, rk_host_get(db, row.host_id, &host, &fixture->error), RK_OK);
    assert_string_equal(host.cpu_model, "Example CPU");
    assert_int_equal(host.memory_bytes, INT64_C(24) << 30);
    struct rk_gpu_row *gpus = NULL;
    size_t gpu_count = 0;
    expect_status(fixture, rk_gpu_list(db, row.host_id, &gpus, &gpu_count, &fixture->error), RK_OK);
    assert_int_equal(gpu_count, 2);
    assert_string_equal(gpus[1].uuid, "GPU-1");
    assert_int_equal(gpus[1].numa_node, -1);
    assert_true(isnan(gpus[1].clock_maximum_hz));
    free(gpus);

    struct rk_measured_case *rows = NULL;
    size_t count = 0;
    expect_status(fixture, rk_measurement_list(db, id, &rows, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 3);
    assert_string_equal(rows[2].bench_case.op, "gemm_forward");
    assert_int_equal(rows[2].bench_case.dim[0], 192);
    assert_int_equal(rows[2].measurement.sample_count, 11);
    assert_true(isnan(rows[2].measurement.power_watts));
    assert_int_equal(rows[2].measurement.workspace_bytes, -1);
    free(rows);
    rk_db_close(db);
}

static void samples_come_back_bit_for_bit(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_machine_identity machine = cpu_machine("none");
    int64_t campaign = store_campaign(fixture, db, &machine, 1);
    double samples[19];
    bool throttled[19];
    for (size_t i = 0; i < 19; i++) {
        samples[i] = 1.0 / (3.0 + (double)i) + 1e-17 * (double)i;
        throttled[i] = i % 3 == 0;
    }
    samples[7] = 5e-324;
    struct rk_measurement_row row = measurement_of(campaign, 1, samples, 19);
    row.throttled = 7;
    int64_t id = 0;
    expect_status(fixture, rk_measurement_store(db, &row, samples, throttled, 19, &id, &fixture->error), RK_OK);
    double *back = NULL;
    bool *marks = NULL;
    size_t count = 0;
    expect_status(fixture, rk_sample_get(db, id, &back, &marks, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 19);
    assert_memory_equal(back, samples, sizeof(samples));
    assert_memory_equal(marks, throttled, sizeof(throttled));
    free(back);
    free(marks);
    expect_status(fixture, rk_sample_get(db, 12345, &back, &marks, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 0);

    samples[3] = NAN;
    expect_status(fixture, rk_measurement_store(db, &row, samples, NULL, 19, &id, &fixture->error), RK_USAGE);
    expect_text(fixture, "sample 3");
    rk_db_close(db);
}

static void a_campaign_is_resumed(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_machine_identity machine = cpu_machine("none");
    struct rk_campaign_row row = campaign_row();
    int64_t id = 0;
    expect_status(fixture, rk_campaign_begin(db, &machine, &row, &id, &fixture->error), RK_OK);
    const double samples[] = {1e-3, 1.1e-3, 0.9e-3, 1e-3, 1e-3, 1e-3};
    int64_t cases[3];
    const char *const outcomes[] = {"ok", "wrong result", "failed"};
    for (int i = 0; i < 3; i++) {
        struct rk_case_row bench_case = gemm_case(10 + i, 8, 8);
        expect_status(fixture, rk_case_store(db, &bench_case, &cases[i], &fixture->error), RK_OK);
        struct rk_measurement_row measurement = measurement_of(id, cases[i], samples, 6);
        strcpy(measurement.status, outcomes[i]);
        strcpy(measurement.stop_reason, i == 2 ? "failed" : "time cap");
        expect_status(fixture,
                      rk_measurement_store(db, &measurement, samples, NULL, i == 2 ? 0 : 6, NULL, &fixture->error),
                      RK_OK);
    }
    int64_t again = 0;
    struct rk_case_row same = gemm_case(11, 8, 8);
    expect_status(fixture, rk_case_store(db, &same, &again, &fixture->error), RK_OK);
    assert_int_equal(again, cases[1]);

    expect_status(fixture, rk_campaign_end(db, id, RK_CAMPAIGN_INTERRUPTED, row.started_us + 5, &fixture->error),
                  RK_OK);
    char machine_key[RK_MACHINE_KEY_SIZE];
    char fingerprint[RK_MACHINE_KEY_SIZE];
    rk_machine_keys(&machine, machine_key, fingerprint);
    int64_t found = 0;
    expect_status(fixture, rk_campaign_unfinished(db, fingerprint, "quick", "cpu", &found, &fixture->error), RK_OK);
    assert_int_equal(found, id);
    expect_status(fixture, rk_campaign_unfinished(db, fingerprint, "full", "cpu", &found, &fixture->error), RK_OK);
    assert_int_equal(found, 0);
    expect_status(fixture, rk_campaign_resume(db, id, &fixture->error), RK_OK);
    int64_t *done = NULL;
    size_t count = 0;
    expect_status(fixture, rk_campaign_done_cases(db, id, 0, &done, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 2);
    assert_int_equal(done[0], cases[0]);
    assert_int_equal(done[1], cases[1]);
    free(done);
    expect_status(fixture, rk_campaign_end(db, id, RK_CAMPAIGN_FINISHED, row.started_us + 9, &fixture->error), RK_OK);
    expect_status(fixture, rk_campaign_resume(db, id, &fixture->error), RK_USAGE);
    expect_text(fixture, "finished");
    rk_db_close(db);
}

static void plans_and_runs_come_back(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    static const char document[] = "{\n  \"version\": 1\n}\n";
    int64_t plan = store_plan(fixture, db, document);
    int64_t run = store_run(fixture, db, plan);

    char *text = NULL;
    expect_status(fixture, rk_plan_document(db, plan, &text, &fixture->error), RK_OK);
    assert_string_equal(text, document);
    free(text);
    int64_t found = 0;
    expect_status(fixture, rk_plan_find(db, document, &found, &fixture->error), RK_OK);
    assert_int_equal(found, plan);
    expect_status(fixture, rk_plan_find(db, "{}", &found, &fixture->error), RK_OK);
    assert_int_equal(found, 0);

    struct rk_candidate_row *candidates = NULL;
    size_t count = 0;
    expect_status(fixture, rk_candidate_list(db, plan, &candidates, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 3);
    assert_string_equal(candidates[2].reason, "memory");
    assert_true(candidates[2].need == 3.5 && candidates[2].have == 2.25);
    assert_string_equal(candidates[2].unit, "GiB");
    assert_true(isnan(candidates[0].need) && isnan(candidates[2].seconds));
    free(candidates);
    struct rk_term_row *terms = NULL;
    expect_status(fixture, rk_term_list(db, plan, &terms, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 2);
    assert_int_equal(terms[1].origin, RK_ORIGIN_PUBLISHED);
    free(terms);

    struct rk_run_row row;
    expect_status(fixture, rk_run_get(db, run, &row, &fixture->error), RK_OK);
    assert_int_equal(row.state, RK_RUN_FINISHED);
    assert_int_equal(row.steps, 5);
    assert_int_equal(row.seed, -3);
    struct rk_step_row *steps = NULL;
    expect_status(fixture, rk_run_steps(db, run, &steps, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 5);
    assert_true(isnan(steps[3].loss) && isinf(steps[2].grad_norm) && steps[4].traced);
    free(steps);
    struct rk_run_op_row *ops = NULL;
    expect_status(fixture, rk_run_ops(db, run, &ops, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 2);
    assert_string_equal(ops[1].kind, "dispatch");
    free(ops);
    struct rk_run_memory_row *memory = NULL;
    expect_status(fixture, rk_run_memory(db, run, &memory, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 2);
    free(memory);
    struct rk_comparison_row again = {.level = "step",
                                      .name = "step",
                                      .stage = -1,
                                      .unit = "s",
                                      .predicted = 1,
                                      .measured = 3,
                                      .relative_uncertainty = NAN,
                                      .tolerance = 0.15};
    expect_status(fixture, rk_comparison_store(db, run, 1, &again, 1, &fixture->error), RK_OK);
    struct rk_comparison_row *comparison = NULL;
    expect_status(fixture, rk_comparison_list(db, run, &comparison, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 1);
    assert_false(comparison[0].within);
    free(comparison);
    expect_status(fixture, rk_run_newest(db, 0, &found, &fixture->error), RK_OK);
    assert_int_equal(found, run);
    expect_status(fixture, rk_run_end(db, run, RK_RUN_FAILED, "late", 1, &fixture->error), RK_USAGE);
    expect_text(fixture, "ended already");
    rk_db_close(db);
}

static void a_judgement_becomes_a_row(void **state) {
    (void)state;
    struct rk_judgement judgement = {.candidate = {.pipeline = 2,
                                                   .virtual_stages = 3,
                                                   .expert_parallel = 4,
                                                   .data_parallel = 8,
                                                   .micro_batch_tokens = 8192,
                                                   .recompute = RK_RECOMPUTE_BLOCK,
                                                   .offload_percent = 16,
                                                   .capacity_factor = 1.25,
                                                   .chunk_layers = {1, 2, 1, 1, 2, 1}},
                                     .refusal = RK_REFUSAL_OFFLOAD_D2H,
                                     .need = 384,
                                     .have = 53,
                                     .remedy = "offload at most 13 %"};
    struct rk_candidate_row row;
    rk_candidate_row_make(&judgement, 7, false, &row);
    assert_int_equal(row.ordinal, 7);
    assert_string_equal(row.label, "PP 2 x 3 virtual, EP 4, D 8, T 8192, recompute block, offload 16 %");
    assert_string_equal(row.verdict, "refused");
    assert_string_equal(row.reason, rk_refusal_name(RK_REFUSAL_OFFLOAD_D2H));
    assert_string_equal(row.unit, "GB/s");
    assert_string_equal(row.remedy, "offload at most 13 %");
    assert_true(row.need == 384 && row.have == 53 && isnan(row.seconds));
    assert_non_null(strstr(row.settings, "\"ep_dp\":2"));
    assert_non_null(strstr(row.settings, "\"chunk_layers\":[1,2,1,1,2,1]}"));
    char reason[200];
    assert_string_equal(rk_candidate_row_reason(&row, reason, sizeof(reason)),
                        "offload bandwidth, device to host: need 384, have 53 GB/s; offload at most 13 %");
    assert_int_equal(strlen(rk_candidate_row_reason(&row, reason, 20)), 19);
    judgement.refusal = RK_REFUSAL_DIVISIBILITY;
    rk_candidate_row_make(&judgement, 7, false, &row);
    assert_true(isnan(row.need) && isnan(row.have));
    assert_string_equal(rk_candidate_row_reason(&row, reason, sizeof(reason)), "divisibility; offload at most 13 %");
    judgement.refusal = RK_REFUSAL_NONE;
    judgement.seconds = 1.5;
    judgement.low = 1.4;
    judgement.high = 1.7;
    judgement.arena_bytes[1] = 99;
    rk_candidate_row_make(&judgement, 0, true, &row);
    assert_string_equal(row.verdict, "chosen");
    assert_string_equal(row.reason, "");
    assert_string_equal(rk_candidate_row_reason(&row, reason, sizeof(reason)), "");
    assert_true(isnan(row.need) && row.seconds == 1.5 && row.high_seconds == 1.7);
    assert_int_equal(row.peak_bytes, 99);
}

static void a_plan_with_two_choices_is_refused(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_plan_row plan = {.ranks = 1};
    struct rk_candidate_row candidates[2] = {{.ordinal = 0, .settings = "{}", .verdict = "chosen"},
                                             {.ordinal = 1, .settings = "{}", .verdict = "chosen"}};
    expect_status(fixture, rk_plan_store(db, &plan, "{}", candidates, 2, NULL, 0, NULL, &fixture->error), RK_USAGE);
    strcpy(candidates[1].verdict, "refused"); /* without a reason: the schema refuses it and nothing stays */
    expect_status(fixture, rk_plan_store(db, &plan, "{}", candidates, 2, NULL, 0, NULL, &fixture->error), RK_USAGE);
    struct rk_plan_row *rows = NULL;
    size_t count = 1;
    expect_status(fixture, rk_plan_list(db, &rows, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 0);
    expect_status(fixture, rk_plan_store(db, &plan, "not json", candidates, 0, NULL, 0, NULL, &fixture->error),
                  RK_USAGE);
    free(rows);
    rk_db_close(db);
}

static void stored_rows_cannot_change(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_machine_identity machine = gpu_machine();
    store_campaign(fixture, db, &machine, 2);
    store_run(fixture, db, store_plan(fixture, db, "{}"));
    static const char *const statements[] = {
        "UPDATE measurement SET median_seconds = 1",
        "DELETE FROM measurement",
        "DELETE FROM sample",
        "UPDATE sample SET seconds = zeroblob(8 * count)",
        "REPLACE INTO sample VALUES (1, 1, zeroblob(8), NULL)",
        "UPDATE host SET hostname = 'x'",
        "UPDATE bench_case SET dim0 = 1",
        "UPDATE campaign SET seed = 1",
        "UPDATE campaign SET state = 'running'",
        "DELETE FROM campaign",
        "UPDATE plan SET document = '{}'",
        "DELETE FROM candidate",
        "UPDATE term_source SET seconds = 0",
        "UPDATE run SET data = 'other'",
        "UPDATE run SET state = 'failed'",
        "DELETE FROM run",
        "UPDATE run_step SET loss = 0",
        "DELETE FROM run_op",
        "UPDATE run_memory SET allocated_bytes = predicted_bytes",
        "UPDATE comparison SET within = 1",
        "INSERT INTO measurement (campaign_id, bench_case_id, process, status, message, stop_reason, "
        "started_us,"
        " batch, throttled, algorithm, median_seconds) VALUES (999, 1, 0, 'ok', '', 'interval', 0, 1, 0, '', 1)",
    };
    for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++) {
        if (rk_db_execute(db, statements[i], "trying", &fixture->error) == RK_OK) {
            fail_msg("accepted: %s", statements[i]);
        }
    }
    rk_db_close(db);
}

static void hostile_names_are_only_names(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_machine_identity machine = cpu_machine("none");
    static const char hostile[] = "'); DROP TABLE measurement; -- \"%s\" \x01\xc3\xa9";
    strcpy(machine.host.hostname, hostile);
    strcpy(machine.software.blas, "x' OR '1'='1");
    int64_t id = store_campaign(fixture, db, &machine, 1);
    struct rk_campaign_row row;
    struct rk_host_row host;
    expect_status(fixture, rk_campaign_get(db, id, &row, &fixture->error), RK_OK);
    expect_status(fixture, rk_host_get(db, row.host_id, &host, &fixture->error), RK_OK);
    assert_string_equal(host.hostname, hostile);
    assert_int_equal(row.measurements, 1);
    int64_t found = 1;
    expect_status(fixture, rk_campaign_unfinished(db, "' OR 1=1 --", "quick", "cpu", &found, &fixture->error), RK_OK);
    assert_int_equal(found, 0);
    rk_db_close(db);
}

static void the_check_finds_broken_promises(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_machine_identity machine = cpu_machine("none");
    struct rk_text findings = {0};
    int64_t count = -1;
    int64_t campaign = store_campaign(fixture, db, &machine, 2);
    store_run(fixture, db, store_plan(fixture, db, "{}"));
    expect_status(fixture, rk_db_check(db, &findings, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 0);

    const double samples[] = {1, 2, 3, 4, 5, 6, 7};
    struct rk_measurement_row row = measurement_of(campaign, 1, samples, 7);
    row.median_seconds = 4.5;
    expect_status(fixture, rk_measurement_store(db, &row, samples, NULL, 7, NULL, &fixture->error), RK_OK);
    expect_status(fixture, rk_measurement_store(db, &row, NULL, NULL, 0, NULL, &fixture->error), RK_OK);
    struct rk_step_row step = {.step = 9, .routes = 1, .dropped_routes = 2, .seconds = 1};
    expect_status(fixture, rk_run_add_steps(db, 1, &step, 1, &fixture->error), RK_OK);
    expect_status(fixture, rk_db_check(db, &findings, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 4);
    assert_non_null(strstr(findings.data, "measurement 3: the median is 4.5 s, that of its samples is 4 s"));
    assert_non_null(strstr(findings.data, "measurement 4: measured, but its raw samples are missing"));
    assert_non_null(strstr(findings.data, "run 1: steps are missing"));
    assert_non_null(strstr(findings.data, "run 1 step 9: more routes dropped than routed"));
    rk_text_free(&findings);
    rk_db_close(db);
}

static void groups_of_writes_are_all_or_nothing(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_machine_identity machine = cpu_machine("none");
    expect_status(fixture, rk_db_begin(db, &fixture->error), RK_OK);
    store_campaign(fixture, db, &machine, 1);
    expect_status(fixture, rk_db_begin(db, &fixture->error), RK_OK);
    store_campaign(fixture, db, &machine, 1);
    rk_db_rollback(db);
    struct rk_campaign_row *rows = NULL;
    size_t count = 0;
    expect_status(fixture, rk_campaign_list(db, &rows, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 1);
    free(rows);
    rk_db_rollback(db);
    expect_status(fixture, rk_campaign_list(db, &rows, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 0);
    free(rows);
    rk_db_close(db);
}

static void fits_and_telemetry_come_back(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_machine_identity machine = cpu_machine("none");
    int64_t campaign = store_campaign(fixture, db, &machine, 3);
    struct rk_fit_row fit = {.campaign_id = campaign,
                             .op = "gemm_forward",
                             .type = "f32",
                             .group_size = 1,
                             .form = "log-log",
                             .parameters = "{\"a\":[1,2]}",
                             .leave_one_out_median = 0.02,
                             .leave_one_out_p90 = 0.1,
                             .held_out_median = NAN,
                             .held_out_p90 = NAN};
    struct rk_fit_input inputs[3] = {{1, false}, {2, true}, {3, false}};
    expect_status(fixture, rk_fit_store(db, &fit, inputs, 3, NULL, &fixture->error), RK_OK);
    struct rk_fit_row *fits = NULL;
    size_t count = 0;
    expect_status(fixture, rk_fit_list(db, campaign, &fits, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 1);
    assert_int_equal(fits[0].train_count, 2);
    assert_int_equal(fits[0].held_out_count, 1);
    assert_string_equal(fits[0].parameters, "{\"a\":[1,2]}");
    free(fits);
    inputs[0].measurement_id = 77;
    expect_status(fixture, rk_fit_store(db, &fit, inputs, 3, NULL, &fixture->error), RK_USAGE);
    struct rk_telemetry_row telemetry = {.campaign_id = campaign,
                                         .rank = 0,
                                         .time_us = 5,
                                         .clock_hz = 1e9,
                                         .memory_clock_hz = NAN,
                                         .power_watts = 100,
                                         .temperature_celsius = NAN};
    expect_status(fixture, rk_telemetry_store(db, &telemetry, &fixture->error), RK_OK);
    struct rk_campaign_rank_row rank = {.campaign_id = campaign,
                                        .host_id = 1,
                                        .device = "cpu",
                                        .cpu_list = "0-1",
                                        .numa_node = 0,
                                        .clock_hz = NAN,
                                        .power_watts = NAN};
    int64_t ranks = -1;
    expect_status(fixture, rk_campaign_count_ranks(db, campaign, 0, &ranks, &fixture->error), RK_OK);
    assert_int_equal(ranks, 0);
    expect_status(fixture, rk_campaign_add_rank(db, &rank, &fixture->error), RK_OK);
    expect_status(fixture, rk_campaign_count_ranks(db, campaign, 0, &ranks, &fixture->error), RK_OK);
    assert_int_equal(ranks, 1);
    expect_status(fixture, rk_campaign_count_ranks(db, campaign, 1, &ranks, &fixture->error), RK_OK);
    assert_int_equal(ranks, 0);
    expect_status(fixture, rk_campaign_add_rank(db, &rank, &fixture->error), RK_USAGE);
    rk_db_close(db);
}

int main(void) {
#define ROW_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        ROW_TEST(a_campaign_comes_back),           ROW_TEST(samples_come_back_bit_for_bit),
        ROW_TEST(a_campaign_is_resumed),           ROW_TEST(plans_and_runs_come_back),
        ROW_TEST(a_judgement_becomes_a_row),       ROW_TEST(a_plan_with_two_choices_is_refused),
        ROW_TEST(stored_rows_cannot_change),       ROW_TEST(hostile_names_are_only_names),
        ROW_TEST(the_check_finds_broken_promises), ROW_TEST(groups_of_writes_are_all_or_nothing),
        ROW_TEST(fits_and_telemetry_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

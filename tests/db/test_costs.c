/* The match ladder, and a calibration as costs. */
#include "tests/db/fixture.h"

#include "db/cost_source.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct rk_match_request request_of(const struct rk_machine_identity *machine) {
    struct rk_match_request request = {.backend = "cpu"};
    rk_machine_keys(machine, request.machine_key, request.fingerprint);
    return request;
}

static void keys_tell_hardware_and_software_apart(void **state) {
    (void)state;
    struct rk_machine_identity machine = gpu_machine();
    struct rk_match_request first = request_of(&machine);
    strcpy(machine.host.hostname, "another name");
    machine.host.memory_bytes -= 4096;
    struct rk_match_request renamed = request_of(&machine);
    assert_string_equal(first.fingerprint, renamed.fingerprint);
    strcpy(machine.software.nccl, "2.99");
    struct rk_match_request updated = request_of(&machine);
    assert_string_equal(first.machine_key, updated.machine_key);
    assert_string_not_equal(first.fingerprint, updated.fingerprint);
    struct rk_gpu_row capped[2] = {machine.gpus[0], machine.gpus[1]};
    capped[1].power_limit_watts = 500;
    machine.gpus = capped;
    struct rk_match_request slower = request_of(&machine);
    assert_string_not_equal(first.machine_key, slower.machine_key);
}

static void the_ladder_is_climbed_down(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    struct rk_machine_identity old_driver = cpu_machine("1");
    struct rk_machine_identity new_driver = cpu_machine("2");
    struct rk_machine_identity gpus = gpu_machine();
    struct rk_match match;
    struct rk_match_request request = request_of(&new_driver);
    expect_status(fixture, rk_match_find(db, &request, &match, &fixture->error), RK_UNCALIBRATED);
    expect_text(fixture, "reckon calibrate");

    int64_t other = store_campaign(fixture, db, &gpus, 2);
    expect_status(fixture, rk_match_find(db, &request, &match, &fixture->error), RK_UNCALIBRATED);
    expect_text(fixture, "1 of other hardware");
    expect_text(fixture, "--transfer");
    request.allow_other_hardware = true;
    expect_status(fixture, rk_match_find(db, &request, &match, &fixture->error), RK_OK);
    assert_int_equal(match.level, RK_MATCH_TRANSFERRED);
    assert_int_equal(match.campaign_id, other);
    assert_int_equal(match.count, 2);
    assert_non_null(strstr(match.warning, "transferred"));
    rk_match_free(&match);

    int64_t older = store_campaign(fixture, db, &old_driver, 3);
    expect_status(fixture, rk_match_find(db, &request, &match, &fixture->error), RK_OK);
    assert_int_equal(match.level, RK_MATCH_OTHER_SOFTWARE);
    assert_int_equal(match.campaign_id, older);
    assert_int_equal(match.count, 3);
    assert_non_null(strstr(match.warning, "driver 1"));
    rk_match_free(&match);

    int64_t same = store_campaign(fixture, db, &new_driver, 1);
    expect_status(fixture, rk_match_find(db, &request, &match, &fixture->error), RK_OK);
    assert_int_equal(match.level, RK_MATCH_SAME);
    assert_int_equal(match.campaign_id, same);
    assert_string_equal(match.warning, "");
    rk_match_free(&match);

    request.campaign_id = other;
    expect_status(fixture, rk_match_find(db, &request, &match, &fixture->error), RK_OK);
    assert_int_equal(match.level, RK_MATCH_TRANSFERRED);
    rk_match_free(&match);
    request.campaign_id = 99;
    expect_status(fixture, rk_match_find(db, &request, &match, &fixture->error), RK_UNCALIBRATED);
    request.campaign_id = 0;
    request.backend = "cuda";
    request.allow_other_hardware = false;
    expect_status(fixture, rk_match_find(db, &request, &match, &fixture->error), RK_UNCALIBRATED);
    rk_db_close(db);
}

static void add_measurement(struct fixture *fixture, struct rk_db *db, int64_t campaign, struct rk_case_row bench_case,
                            int64_t process, double seconds) {
    int64_t case_id = 0;
    const double samples[] = {seconds * 0.99, seconds,         seconds * 1.01, seconds,
                              seconds,        seconds * 1.005, seconds * 0.995};
    expect_status(fixture, rk_case_store(db, &bench_case, &case_id, &fixture->error), RK_OK);
    struct rk_measurement_row row = measurement_of(campaign, case_id, samples, 7);
    row.process = process;
    row.flops = 1e9;
    expect_status(fixture, rk_measurement_store(db, &row, samples, NULL, 7, NULL, &fixture->error), RK_OK);
}

static int64_t begin(struct fixture *fixture, struct rk_db *db, bool forced) {
    struct rk_machine_identity machine = cpu_machine("1");
    struct rk_campaign_row campaign = campaign_row();
    int64_t id = 0;
    campaign.forced_unfit = forced;
    expect_status(fixture, rk_campaign_begin(db, &machine, &campaign, &id, &fixture->error), RK_OK);
    return id;
}

static struct rk_match find(struct fixture *fixture, struct rk_db *db, const char *driver) {
    struct rk_machine_identity machine = cpu_machine(driver);
    struct rk_match_request request = request_of(&machine);
    struct rk_match match;
    expect_status(fixture, rk_match_find(db, &request, &match, &fixture->error), RK_OK);
    return match;
}

static void the_newest_campaign_of_a_case_stands(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    int64_t first = begin(fixture, db, false);
    add_measurement(fixture, db, first, gemm_case(1, 1, 1), 0, 1e-3);
    add_measurement(fixture, db, first, gemm_case(2, 1, 1), 0, 2e-3);
    int64_t second = begin(fixture, db, false);
    add_measurement(fixture, db, second, gemm_case(1, 1, 1), 0, 5e-3);
    add_measurement(fixture, db, second, gemm_case(1, 1, 1), 1, 6e-3);
    int64_t forced = begin(fixture, db, true);
    add_measurement(fixture, db, forced, gemm_case(1, 1, 1), 0, 9e-3);
    struct rk_match match = find(fixture, db, "1");
    assert_int_equal(match.campaigns, 2);
    assert_int_equal(match.campaign_id, second);
    assert_false(match.forced_unfit);
    assert_int_equal(match.count, 3);
    struct rk_cost_row *rows = NULL;
    size_t count = 0;
    expect_status(fixture, rk_cost_rows_make(&match, &rows, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 2);
    assert_true(fabs(rows[0].seconds - 5.5e-3) < 1e-12);
    assert_true(fabs(rows[0].process_spread - 1.0 / 5.5) < 1e-9);
    assert_true(fabs(rows[0].low - 4.95e-3) < 1e-9 && fabs(rows[0].high - 6.06e-3) < 1e-9);
    assert_int_equal(rows[0].origin, RK_ORIGIN_MEASURED);
    assert_true(fabs(rows[1].seconds - 2e-3) < 1e-12);
    free(rows);
    rk_match_free(&match);

    struct rk_match widened = find(fixture, db, "7");
    expect_status(fixture, rk_cost_rows_make(&widened, &rows, &count, &fixture->error), RK_OK);
    assert_true(fabs(rows[1].low - 2e-3 * 0.89) < 1e-9 && fabs(rows[1].high - 2e-3 * 1.11) < 1e-9);
    free(rows);
    /* A noisy interval that is widened ends at 0: no time is negative. */
    struct rk_cost_table *table = NULL;
    for (size_t i = 0; i < widened.count; i++)
        widened.rows[i].low_seconds = 0.01 * widened.rows[i].median_seconds;
    expect_status(fixture, rk_cost_source_make(&widened, &table, &fixture->error), RK_OK);
    rk_cost_table_free(table);
    rk_match_free(&widened);
    rk_db_close(db);
}

static void a_forced_campaign_serves_alone_and_warns(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    int64_t forced = begin(fixture, db, true);
    add_measurement(fixture, db, forced, gemm_case(1, 1, 1), 0, 9e-3);
    struct rk_match match = find(fixture, db, "1");
    assert_true(match.forced_unfit);
    assert_non_null(strstr(match.warning, "unfit"));
    assert_int_equal(match.count, 1);
    rk_match_free(&match);
    rk_db_close(db);
}

static void only_rows_of_real_training_become_costs(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    int64_t campaign = begin(fixture, db, false);
    struct rk_case_row row = gemm_case(8, 8, 8);
    add_measurement(fixture, db, campaign, row, 0, 1e-3);
    strcpy(row.mode, "isolated"); /* a sustained row exists: left out */
    add_measurement(fixture, db, campaign, row, 0, 0.5e-3);
    row = gemm_case(8, 8, 8);
    strcpy(row.operands, "zeros");
    add_measurement(fixture, db, campaign, row, 0, 0.1e-3);
    row = gemm_case(8, 8, 8);
    strcpy(row.partner, "all_reduce");
    add_measurement(fixture, db, campaign, row, 0, 7e-3);
    row = gemm_case(16, 8, 8); /* only isolated: better than nothing */
    strcpy(row.mode, "isolated");
    add_measurement(fixture, db, campaign, row, 0, 3e-3);
    strcpy(row.op, "unknown_op");
    add_measurement(fixture, db, campaign, row, 0, 4e-3);
    struct rk_match match = find(fixture, db, "1");
    struct rk_cost_row *rows = NULL;
    size_t count = 0;
    expect_status(fixture, rk_cost_rows_make(&match, &rows, &count, &fixture->error), RK_OK);
    assert_int_equal(count, 2);
    assert_true(fabs(rows[0].seconds - 1e-3) < 1e-12);
    assert_true(fabs(rows[1].seconds - 3e-3) < 1e-12);
    free(rows);
    struct rk_cost_table *table = NULL;
    expect_status(fixture, rk_cost_source_make(&match, &table, &fixture->error), RK_OK);
    struct rk_cost_source source = rk_cost_table_source(table);
    struct rk_op_shape shape = {.kind = RK_OP_GEMM_FORWARD, .type = RK_F32, .dim = {8, 8, 8}};
    struct rk_cost_place place = {.group_size = 1, .concurrent = 1, .row_share = 1};
    struct rk_cost cost;
    expect_status(fixture, source.price(source.context, &shape, &place, &cost, &fixture->error), RK_OK);
    assert_int_equal(cost.origin, RK_ORIGIN_MEASURED);
    assert_true(fabs(cost.seconds - 1e-3) < 1e-9);
    shape.dim[0] = 12;
    expect_status(fixture, source.price(source.context, &shape, &place, &cost, &fixture->error), RK_OK);
    assert_int_equal(cost.origin, RK_ORIGIN_INTERPOLATED);
    assert_true(cost.seconds > 1e-3 && cost.seconds < 3e-3);
    double inside = cost.relative_uncertainty;
    shape.dim[0] = 4096;
    expect_status(fixture, source.price(source.context, &shape, &place, &cost, &fixture->error), RK_OK);
    assert_int_equal(cost.origin, RK_ORIGIN_EXTRAPOLATED);
    assert_true(cost.relative_uncertainty > inside);
    rk_cost_table_free(table);
    rk_match_free(&match);
    rk_db_close(db);
}

static struct rk_case_row figure_case(const char *op, int64_t bytes, int64_t ranks) {
    struct rk_case_row row = {.dim = {bytes},
                              .group_size = 1,
                              .concurrent_ranks = ranks,
                              .row_share = 1,
                              .operands = "none",
                              .mode = "sustained"};
    snprintf(row.op, sizeof(row.op), "%s", op);
    return row;
}

static void figures_of_the_machine_are_filled(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    int64_t campaign = begin(fixture, db, false);
    add_measurement(fixture, db, campaign, gemm_case(64, 8, 8), 0, 1e-3);
    add_measurement(fixture, db, campaign, figure_case("copy_d2h", 1 << 20, 1), 0, 1e-5);
    add_measurement(fixture, db, campaign, figure_case("copy_d2h", 1 << 20, 2), 0, 2e-5);
    add_measurement(fixture, db, campaign, figure_case("copy_d2h", 1 << 24, 2), 0, 3.2e-4);
    add_measurement(fixture, db, campaign, figure_case("copy_h2d", 1 << 24, 2), 0, 1.6e-4);
    add_measurement(fixture, db, campaign, figure_case(RK_CASE_COPY_BOTH, 1 << 24, 2), 0, 4e-4);
    add_measurement(fixture, db, campaign, figure_case(RK_CASE_LAUNCH, 0, 1), 0, 3e-6);
    add_measurement(fixture, db, campaign, figure_case(RK_CASE_HOST_WAIT, 0, 1), 0, 2e-5);
    struct rk_match match = find(fixture, db, "1");
    struct rk_machine machine = {.step_overhead = {.value = 0.25}};
    rk_machine_figures(&match, &machine);
    assert_true(fabs(machine.d2h.value - 16777216 / 3.2e-4) < 1);
    assert_true(fabs(machine.h2d.value - 16777216 / 1.6e-4) < 1);
    assert_true(fabs(machine.both_directions.value - 0.8) < 1e-9);
    assert_true(fabs(machine.launch.value - 3e-6) < 1e-12);
    assert_true(fabs(machine.host_wait.value - 2e-5) < 1e-12);
    assert_true(machine.step_overhead.value == 0.25);
    assert_true(fabs(machine.dense_peak.value - 1e12) < 1);
    assert_int_equal(machine.d2h.origin, RK_ORIGIN_MEASURED);
    assert_non_null(strstr(machine.d2h.source, "calibration 1"));
    rk_match_free(&match);
    rk_db_close(db);
}

static void a_calibration_without_ops_is_no_cost_source(void **state) {
    struct fixture *fixture = *state;
    struct rk_db *db = fixture_open(fixture, RK_DB_WRITE);
    add_measurement(fixture, db, begin(fixture, db, false), figure_case(RK_CASE_LAUNCH, 0, 1), 0, 3e-6);
    struct rk_match match = find(fixture, db, "1");
    struct rk_cost_table *table = NULL;
    expect_status(fixture, rk_cost_source_make(&match, &table, &fixture->error), RK_UNCALIBRATED);
    rk_match_free(&match);
    rk_db_close(db);
}

int main(void) {
#define COST_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
    const struct CMUnitTest tests[] = {
        COST_TEST(keys_tell_hardware_and_software_apart),       COST_TEST(the_ladder_is_climbed_down),
        COST_TEST(the_newest_campaign_of_a_case_stands),        COST_TEST(a_forced_campaign_serves_alone_and_warns),
        COST_TEST(only_rows_of_real_training_become_costs),     COST_TEST(figures_of_the_machine_are_filled),
        COST_TEST(a_calibration_without_ops_is_no_cost_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

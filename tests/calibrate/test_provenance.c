/* What the management library says of a rank's GPU, found by its UUID. */
#include "calibrate/provenance.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void a_rank_is_found_by_its_gpu(void **state) {
    (void)state;
    struct rk_peer peers[3] = {{.device = "GPU-b"}, {.device = "GPU-a"}, {.device = ""}};
    const struct rk_job job = {.place = {.world = 3}, .peers = peers};
    static struct rk_nvml_report report = {.loaded = true, .gpu_count = 3};
    struct rk_telemetry_row row;
    report.gpus[0] = (struct rk_nvml_gpu){.uuid = "GPU-a",
                                          .clock_mhz = 1980,
                                          .power_milliwatts = 345600,
                                          .temperature_celsius = 51,
                                          .throttle_reasons = 0x24};
    report.gpus[1] = (struct rk_nvml_gpu){
        .uuid = "GPU-b", .clock_mhz = -1, .power_milliwatts = -1, .temperature_celsius = -1, .throttle_reasons = -1};
    assert_true(rk_provenance_telemetry(&report, &job, 1, &row));
    assert_int_equal(row.rank, 1);
    assert_true(fabs(row.clock_hz - 1.98e9) < 1 && fabs(row.power_watts - 345.6) < 1e-9);
    assert_true(row.temperature_celsius == 51 && isnan(row.memory_clock_hz));
    assert_string_equal(row.throttle_reasons, "0x24");
    assert_true(rk_provenance_telemetry(&report, &job, 0, &row));
    assert_true(isnan(row.clock_hz) && isnan(row.power_watts) && isnan(row.temperature_celsius));
    assert_string_equal(row.throttle_reasons, "");
    assert_false(rk_provenance_telemetry(&report, &job, 2, &row));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_is_found_by_its_gpu),
    };
    return cmocka_run_group_tests_name("provenance", tests, NULL, NULL);
}

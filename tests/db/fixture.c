#include "tests/db/fixture.h"

#include "base/statistics.h"

#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int fixture_setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof(*fixture));
    const char *base = getenv("TMPDIR");
    snprintf(fixture->folder, sizeof(fixture->folder), "%s/reckon-db-XXXXXX", base == NULL ? "/tmp" : base);
    if (mkdtemp(fixture->folder) == NULL) {
        free(fixture);
        return -1;
    }
    snprintf(fixture->path, sizeof(fixture->path), "%s/test.db", fixture->folder);
    *state = fixture;
    return 0;
}

static int remove_entry(const char *path, const struct stat *information, int type, struct FTW *walk) {
    (void)information;
    (void)type;
    (void)walk;
    return remove(path);
}

int fixture_teardown(void **state) {
    struct fixture *fixture = *state;
    int result = nftw(fixture->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(fixture);
    return result;
}

void expect_status(const struct fixture *fixture, enum rk_status status, enum rk_status wanted) {
    if (status != wanted) {
        fail_msg("status %s, wanted %s: %s", rk_status_name(status), rk_status_name(wanted), fixture->error.text);
    }
}

void expect_text(const struct fixture *fixture, const char *part) {
    if (strstr(fixture->error.text, part) == NULL) {
        fail_msg("\"%s\" does not hold \"%s\"", fixture->error.text, part);
    }
}

struct rk_db *fixture_open(struct fixture *fixture, enum rk_db_access access) {
    struct rk_db_options options = {.access = access, .busy_timeout_ms = 5000};
    struct rk_db *db = NULL;
    expect_status(fixture, rk_db_open(fixture->path, &options, &db, &fixture->error), RK_OK);
    return db;
}

struct rk_machine_identity cpu_machine(const char *driver) {
    struct rk_machine_identity machine = {
        .host = {.hostname = "node-1",
                 .cpu_model = "Example CPU",
                 .sockets = 1,
                 .cores = 2,
                 .threads = 2,
                 .numa_nodes = 1,
                 .memory_bytes = INT64_C(24) << 30,
                 .kernel = "6.1",
                 .operating_system = "Debian 12"},
        .software = {.reckon = "0.1.0", .compiler = "GNU 12", .blas = "OpenBLAS 0.3.21"},
        .topology = {.hosts = 1, .devices_per_host = 2, .summary = "1 host, 2 cores"}};
    snprintf(machine.software.driver, sizeof(machine.software.driver), "%s", driver);
    return machine;
}

struct rk_machine_identity gpu_machine(void) {
    static const struct rk_gpu_row gpus[] = {{.ordinal = 0,
                                              .uuid = "GPU-0",
                                              .name = "Example GPU",
                                              .pci_address = "0000:01:00.0",
                                              .compute_capability = "9.0",
                                              .memory_bytes = INT64_C(141) << 30,
                                              .multiprocessors = 132,
                                              .l2_bytes = 50 << 20,
                                              .numa_node = 0,
                                              .power_limit_watts = 700,
                                              .clock_maximum_hz = 1.98e9},
                                             {.ordinal = 1,
                                              .uuid = "GPU-1",
                                              .name = "Example GPU",
                                              .pci_address = "0000:02:00.0",
                                              .compute_capability = "9.0",
                                              .memory_bytes = INT64_C(141) << 30,
                                              .multiprocessors = 132,
                                              .l2_bytes = 50 << 20,
                                              .numa_node = -1,
                                              .power_limit_watts = 700,
                                              .clock_maximum_hz = NAN}};
    static const struct rk_link_row links[] = {{.source = "gpu0",
                                                .destination = "gpu1",
                                                .kind = "nvlink",
                                                .lanes = 18,
                                                .specification_bytes_per_second = 450e9}};
    struct rk_machine_identity machine = cpu_machine("580.1");
    machine.gpus = gpus;
    machine.gpu_count = 2;
    machine.links = links;
    machine.link_count = 1;
    machine.topology.devices_per_host = 2;
    return machine;
}

struct rk_campaign_row campaign_row(void) {
    return (struct rk_campaign_row){.tool = "reckon",
                                    .mode = "quick",
                                    .backend = "cpu",
                                    .git_revision = "abc123",
                                    .command = "reckon calibrate --quick",
                                    .seed = 7,
                                    .world_size = 1,
                                    .planned_cases = 10,
                                    .started_us = INT64_C(1790000000000000)};
}

struct rk_case_row gemm_case(int64_t m, int64_t n, int64_t k) {
    struct rk_op_shape shape = {.kind = RK_OP_GEMM_FORWARD, .type = RK_F32, .dim = {m, n, k}};
    struct rk_cost_place place = {.group_size = 1, .concurrent = 1, .row_share = 1};
    struct rk_case_row row;
    rk_case_from_shape(&shape, &place, "normal", "sustained", &row);
    return row;
}

struct rk_measurement_row measurement_of(int64_t campaign, int64_t bench_case, const double *samples, size_t count) {
    struct rk_measurement_row row = rk_measurement_empty();
    struct rk_interval interval = {0, 0};
    row.campaign_id = campaign;
    row.case_id = bench_case;
    row.started_us = INT64_C(1790000000000001);
    assert_int_equal(rk_statistics_median_interval(samples, count, 0.95, &row.median_seconds, &interval, NULL), RK_OK);
    row.low_seconds = interval.low;
    row.high_seconds = interval.high;
    row.minimum_seconds = row.maximum_seconds = samples[0];
    for (size_t i = 0; i < count; i++) {
        row.minimum_seconds = fmin(row.minimum_seconds, samples[i]);
        row.maximum_seconds = fmax(row.maximum_seconds, samples[i]);
    }
    return row;
}

int64_t store_campaign(struct fixture *fixture, struct rk_db *db, const struct rk_machine_identity *machine,
                       size_t count) {
    struct rk_campaign_row campaign = campaign_row();
    int64_t id = 0;
    expect_status(fixture, rk_campaign_begin(db, machine, &campaign, &id, &fixture->error), RK_OK);
    for (size_t i = 0; i < count; i++) {
        struct rk_case_row bench_case = gemm_case(64 * ((int64_t)i + 1), 128, 256);
        int64_t case_id = 0;
        double samples[11];
        for (size_t j = 0; j < 11; j++) {
            samples[j] = 1e-3 * (double)(i + 1) * (1 + 0.01 * (double)((j * 7) % 11)) / 3;
        }
        expect_status(fixture, rk_case_store(db, &bench_case, &case_id, &fixture->error), RK_OK);
        struct rk_measurement_row row = measurement_of(id, case_id, samples, 11);
        row.flops = 2.0 * 64 * ((double)i + 1) * 128 * 256;
        expect_status(fixture, rk_measurement_store(db, &row, samples, NULL, 11, NULL, &fixture->error), RK_OK);
    }
    expect_status(fixture, rk_campaign_end(db, id, RK_CAMPAIGN_FINISHED, INT64_C(1790000100000000), &fixture->error),
                  RK_OK);
    return id;
}

int64_t store_plan(struct fixture *fixture, struct rk_db *db, const char *document) {
    struct rk_plan_row plan = {.created_us = INT64_C(1790000200000000),
                               .reckon = "0.1.0",
                               .git_revision = "abc123",
                               .model = "tiny",
                               .hardware = "this",
                               .ranks = 4,
                               .sequence_tokens = 128,
                               .global_batch_tokens = 4096,
                               .considered = 60,
                               .refused = 20,
                               .predicted_seconds = 1.5,
                               .predicted_low_seconds = 1.4,
                               .predicted_high_seconds = 1.7,
                               .predicted_tokens_per_second = 2730.6666666666665,
                               .predicted_peak_bytes = 123456789};
    struct rk_candidate_row candidates[3] = {{.ordinal = 0,
                                              .label = "PP 1, EP 4",
                                              .settings = "{\"pp\":1}",
                                              .verdict = "chosen",
                                              .need = NAN,
                                              .have = NAN,
                                              .simulated = true,
                                              .seconds = 1.5,
                                              .low_seconds = 1.4,
                                              .high_seconds = 1.7,
                                              .peak_bytes = 123456789},
                                             {.ordinal = 1,
                                              .label = "PP 2, EP 2",
                                              .settings = "{\"pp\":2}",
                                              .verdict = "feasible",
                                              .need = NAN,
                                              .have = NAN,
                                              .seconds = 1.8,
                                              .low_seconds = NAN,
                                              .high_seconds = NAN,
                                              .peak_bytes = 99},
                                             {.ordinal = 2,
                                              .label = "PP 4, EP 1",
                                              .settings = "{\"pp\":4}",
                                              .verdict = "refused",
                                              .reason = "memory",
                                              .need = 3.5,
                                              .have = 2.25,
                                              .unit = "GiB",
                                              .remedy = "PP 8",
                                              .seconds = NAN,
                                              .low_seconds = NAN,
                                              .high_seconds = NAN,
                                              .peak_bytes = INT64_C(3758096384)}};
    struct rk_term_row terms[2] = {{.ordinal = 0,
                                    .term = "gemm_forward",
                                    .family = "gemm",
                                    .phase = "forward",
                                    .count = 96,
                                    .seconds = 0.7,
                                    .relative_uncertainty = 0.02,
                                    .origin = RK_ORIGIN_INTERPOLATED,
                                    .source = "calibration 1, 4 rows"},
                                   {.ordinal = 1,
                                    .term = "dispatch",
                                    .family = "expert exchange",
                                    .phase = "",
                                    .count = 8,
                                    .seconds = 0.1,
                                    .relative_uncertainty = 0.2,
                                    .origin = RK_ORIGIN_PUBLISHED,
                                    .source = "hardware/b300.json"}};
    int64_t id = 0;
    expect_status(fixture, rk_plan_store(db, &plan, document, candidates, 3, terms, 2, &id, &fixture->error), RK_OK);
    return id;
}

int64_t store_run(struct fixture *fixture, struct rk_db *db, int64_t plan_id) {
    struct rk_machine_identity machine = cpu_machine("none");
    struct rk_run_row run = {.plan_id = plan_id,
                             .command = "reckon run plan.json",
                             .git_revision = "abc123",
                             .data = "text.bin",
                             .routing = "learned",
                             .seed = -3,
                             .world_size = 4,
                             .clock_hz = NAN,
                             .power_watts = NAN,
                             .started_us = INT64_C(1790000300000000)};
    int64_t id = 0;
    expect_status(fixture, rk_run_begin(db, &machine, &run, &id, &fixture->error), RK_OK);
    struct rk_step_row steps[5];
    for (int i = 0; i < 5; i++) {
        steps[i] = (struct rk_step_row){.step = i,
                                        .traced = i == 4,
                                        .seconds = 1.5 + 0.01 * i,
                                        .host_submit_seconds = NAN,
                                        .tokens = 4096,
                                        .loss = i == 3 ? (double)NAN : 5.5 - 0.3 * i,
                                        .balance_loss = 1.01,
                                        .z_loss = 0.5,
                                        .grad_norm = i == 2 ? (double)INFINITY : 1.25,
                                        .learning_rate = 1e-3,
                                        .dropped_routes = i,
                                        .routes = 8192,
                                        .requested_load = 1.2,
                                        .kept_load = 1.1,
                                        .requested_expert_load = 1.5,
                                        .kept_expert_load = 1.4,
                                        .remote_bytes = 1e6,
                                        .local_bytes = 2e6,
                                        .clock_hz = NAN,
                                        .power_watts = NAN};
    }
    struct rk_run_op_row ops[2] = {{.rank = -1,
                                    .stage = 0,
                                    .kind = "gemm_forward",
                                    .shape = "m 8 n 8 k 8",
                                    .phase = "forward",
                                    .stream = "compute",
                                    .count = 96,
                                    .median_seconds = 7e-3,
                                    .total_seconds = 0.72,
                                    .wait_seconds = 0},
                                   {.rank = -1,
                                    .stage = 0,
                                    .kind = "dispatch",
                                    .phase = "forward",
                                    .stream = "exchange",
                                    .count = 8,
                                    .median_seconds = 1e-2,
                                    .total_seconds = 0.08,
                                    .wait_seconds = 0.01}};
    struct rk_run_memory_row memory[2] = {
        {.rank = 0, .owner = "weights", .space = "device", .predicted_bytes = 1000, .allocated_bytes = 1000},
        {.rank = 0, .owner = "activations", .space = "device", .predicted_bytes = 5000, .allocated_bytes = 5000}};
    struct rk_comparison_row comparison[2] = {{.level = "step",
                                               .name = "step",
                                               .stage = -1,
                                               .unit = "s",
                                               .predicted = 1.5,
                                               .measured = 1.52,
                                               .relative_uncertainty = 0.1,
                                               .origin = "interpolated",
                                               .tolerance = 0.15,
                                               .within = true,
                                               .note = ""},
                                              {.level = "op",
                                               .name = "dispatch",
                                               .stage = 0,
                                               .unit = "s",
                                               .predicted = 0.1,
                                               .measured = 0.08,
                                               .relative_uncertainty = 0.2,
                                               .origin = "published",
                                               .tolerance = NAN,
                                               .within = true,
                                               .note = "n"}};
    expect_status(fixture, rk_run_add_steps(db, id, steps, 5, &fixture->error), RK_OK);
    expect_status(fixture, rk_run_add_ops(db, id, ops, 1, &fixture->error), RK_OK);
    expect_status(fixture, rk_run_add_ops(db, id, ops + 1, 1, &fixture->error), RK_OK);
    expect_status(fixture, rk_run_add_memory(db, id, memory, 2, &fixture->error), RK_OK);
    expect_status(fixture, rk_run_end(db, id, RK_RUN_FINISHED, NULL, INT64_C(1790000400000000), &fixture->error),
                  RK_OK);
    expect_status(fixture, rk_comparison_store(db, id, INT64_C(1790000500000000), comparison, 2, &fixture->error),
                  RK_OK);
    return id;
}

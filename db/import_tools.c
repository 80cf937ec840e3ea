/* Figures of other tools as campaigns with origin imported: nccl-tests (-J FILE) and nvbandwidth (-j). */
#include "base/json.h"
#include "base/statistics.h"
#include "db/calibration.h"
#include "db/exchange_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double SECONDS_PER_MICROSECOND = 1e-6;
static const double SECONDS_PER_NANOSECOND = 1e-9;
static const double BYTES_PER_GB = 1e9;

/* A name of nccl-tests and ours. */
struct translation {
    const char *theirs, *ours;
};

static const struct translation collectives[] = {
    {"all_reduce_perf", "all_reduce"}, {"all_gather_perf", "all_gather"}, {"reduce_scatter_perf", "reduce_scatter"},
    {"sendrecv_perf", "send"},         {"alltoall_perf", "all_to_all"},   {"broadcast_perf", "broadcast"},
    {"reduce_perf", "reduce"},         {"gather_perf", "gather"},         {"scatter_perf", "scatter"},
    {"hypercube_perf", "hypercube"},   {"alltoallv_perf", "all_to_all_v"}};
static const struct translation types[] = {{"float", "f32"}, {"bfloat16", "bf16"}};

static const char *translate(const struct translation *table, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(table[i].theirs, name) == 0) {
            return table[i].ours;
        }
    }
    return NULL;
}

/* The program's name without its folder; MPI builds have a suffix. */
static void program_name(const char *path, char *name, size_t size) {
    const char *slash = strrchr(path, '/');
    snprintf(name, size, "%s", slash == NULL ? path : slash + 1);
    char *suffix = strstr(name, "_perf");
    if (suffix != NULL) {
        suffix[strlen("_perf")] = '\0';
    }
}

/* What a campaign of a tool has in common. machine->gpus is the caller's. */
static enum rk_status begin(struct rk_db *db, const struct rk_machine_identity *machine, const char *tool,
                            const char *command, int64_t ranks, const struct rk_import_options *options, int64_t *id,
                            struct rk_error *error) {
    struct rk_campaign_row campaign = {.imported = true,
                                       .mode = "imported",
                                       .backend = "cuda",
                                       .world_size = ranks,
                                       .planned_cases = -1,
                                       .started_us = options->now_us};
    snprintf(campaign.tool, sizeof(campaign.tool), "%s", tool);
    snprintf(campaign.command, sizeof(campaign.command), "%s", command);
    return rk_campaign_begin(db, machine, &campaign, id, error);
}

static struct rk_gpu_row unknown_gpu(int64_t ordinal) {
    return (struct rk_gpu_row){.ordinal = ordinal,
                               .memory_bytes = -1,
                               .multiprocessors = -1,
                               .l2_bytes = -1,
                               .numa_node = -1,
                               .power_limit_watts = NAN,
                               .clock_maximum_hz = NAN};
}

static struct rk_machine_identity unknown_machine(void) {
    return (struct rk_machine_identity){
        .host = {.sockets = -1, .cores = -1, .threads = -1, .numa_nodes = -1, .memory_bytes = -1},
        .topology = {.hosts = 1}};
}

/* ---- nccl-tests ---- */

struct nccl_file {
    struct rk_db *db;
    const char *path;
    int64_t campaign, ranks;
    bool crosses_hosts;
    const char *op;
    int64_t started_us;
    int64_t rows;
};

/* "time" may be the text "nan" and is 0 where nothing ran. */
static enum rk_status read_time(const struct nccl_file *file, const cJSON *body, double *seconds,
                                struct rk_error *error) {
    const cJSON *time = cJSON_GetObjectItemCaseSensitive(body, "time");
    if (!cJSON_IsNumber(time)) {
        return rk_fail(error, RK_USAGE,
                       "%s: a result without a device time (nccl-tests -C times the host; run it without)", file->path);
    }
    *seconds = time->valuedouble * SECONDS_PER_MICROSECOND;
    if (!(*seconds > 0) || !isfinite(*seconds)) {
        return rk_fail(error, RK_USAGE, "%s: a result takes %g us", file->path, time->valuedouble);
    }
    return RK_OK;
}

/* The times of every iteration, where the tool was asked for them; *samples is the caller's, NULL without. */
static enum rk_status read_samples(const struct nccl_file *file, const cJSON *result, const char *key, double **samples,
                                   size_t *count, struct rk_error *error) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(result, key), "times_us");
    const cJSON *item;
    size_t i = 0;
    *samples = NULL;
    *count = 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) == 0) {
        return RK_OK;
    }
    double *values = malloc((size_t)cJSON_GetArraySize(list) * sizeof(*values));
    if (values == NULL) {
        return rk_fail(error, RK_ERROR, "%s: out of memory", file->path);
    }
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsNumber(item)) {
            free(values);
            return rk_fail(error, RK_USAGE, "%s: %s holds a time that is no number", file->path, key);
        }
        values[i++] = item->valuedouble * SECONDS_PER_MICROSECOND;
    }
    *samples = values;
    *count = i;
    return RK_OK;
}

static enum rk_status import_body(struct nccl_file *file, const cJSON *result, const char *key, int64_t case_id,
                                  int64_t bytes, struct rk_error *error) {
    const cJSON *body = cJSON_GetObjectItemCaseSensitive(result, key);
    const cJSON *wrong = cJSON_GetObjectItemCaseSensitive(body, "nwrong");
    struct rk_measurement_row row = rk_measurement_empty();
    char per_iteration[48];
    double *samples = NULL;
    size_t count = 0;
    if (!cJSON_IsObject(body)) {
        return RK_OK; /* null: this form was not run */
    }
    enum rk_status status = read_time(file, body, &row.median_seconds, error);
    if (status != RK_OK) {
        return status;
    }
    row.campaign_id = file->campaign;
    row.case_id = case_id;
    row.started_us = file->started_us;
    row.bytes = (double)bytes;
    snprintf(row.stop_reason, sizeof(row.stop_reason), "imported");
    snprintf(row.algorithm, sizeof(row.algorithm), "%s", strcmp(key, "in_place") == 0 ? "in place" : "out of place");
    if (cJSON_IsNumber(wrong) && wrong->valuedouble > 0) {
        snprintf(row.status, sizeof(row.status), "wrong result");
        snprintf(row.message, sizeof(row.message), "%g wrong elements", wrong->valuedouble);
    }
    snprintf(per_iteration, sizeof(per_iteration), "%s_per_iter", key);
    status = read_samples(file, result, per_iteration, &samples, &count, error);
    if (status == RK_OK && count > 0) {
        /* The tool's "time" is the mean; with the samples at hand the median and its interval are stored. */
        struct rk_interval interval;
        status = rk_statistics_median_interval(samples, count, 0.95, &row.median_seconds, &interval, error);
        row.low_seconds = interval.low;
        row.high_seconds = interval.high;
    }
    if (status == RK_OK) {
        status = rk_measurement_store(file->db, &row, samples, NULL, count, NULL, error);
        file->rows++;
    }
    free(samples);
    return status;
}

static enum rk_status import_result(struct nccl_file *file, const cJSON *result, struct rk_error *error) {
    struct rk_json_object object;
    int64_t size = 0;
    int64_t count = 0;
    char type[32] = "";
    struct rk_case_row bench_case = {.group_size = file->ranks,
                                     .crosses_hosts = file->crosses_hosts,
                                     .concurrent_ranks = file->ranks,
                                     .row_share = 1,
                                     .mode = "sustained"};
    int64_t case_id = 0;
    enum rk_status status = rk_json_open(file->path, "results", result, &object, error);
    if (status == RK_OK) {
        status = rk_json_integer(&object, "size", 0, INT64_MAX / 2, &size, error);
    }
    if (status == RK_OK) {
        status = rk_json_integer(&object, "count", 0, INT64_MAX / 2, &count, error);
    }
    if (status == RK_OK) {
        status = rk_json_string(&object, "type", type, sizeof(type), error);
    }
    if (status != RK_OK) {
        return status;
    }
    const char *ours = translate(types, sizeof(types) / sizeof(types[0]), type);
    snprintf(bench_case.op, sizeof(bench_case.op), "%s", file->op);
    snprintf(bench_case.type, sizeof(bench_case.type), "%.15s", ours == NULL ? type : ours);
    /* The dimensions of our ops: elements of the whole buffer and ranks, or the bytes of a transfer. */
    bool transfer = strcmp(file->op, "send") == 0;
    int64_t element_bytes = count > 0 && size % count == 0 ? size / count : 0;
    bench_case.dim[0] = transfer ? size : element_bytes > 0 ? size / element_bytes : count;
    bench_case.dim[1] = transfer ? 0 : file->ranks;
    status = rk_case_store(file->db, &bench_case, &case_id, error);
    if (status == RK_OK && size > 0) {
        status = import_body(file, result, "out_of_place", case_id, size, error);
    }
    if (status == RK_OK && size > 0) {
        status = import_body(file, result, "in_place", case_id, size, error);
    }
    return status;
}

/* The GPUs that took part, as the file lists them. */
static enum rk_status read_devices(struct nccl_file *file, const cJSON *config, struct rk_machine_identity *machine,
                                   struct rk_gpu_row **gpus, struct rk_error *error) {
    const cJSON *devices = cJSON_GetObjectItemCaseSensitive(config, "devices");
    const cJSON *device;
    size_t count = (size_t)cJSON_GetArraySize(devices);
    size_t i = 0;
    struct rk_gpu_row *rows = calloc(count + 1, sizeof(*rows));
    if (rows == NULL) {
        return rk_fail(error, RK_ERROR, "%s: out of memory", file->path);
    }
    cJSON_ArrayForEach(device, devices) {
        const cJSON *host = cJSON_GetObjectItemCaseSensitive(device, "hostname");
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(device, "device_info");
        const cJSON *address = cJSON_GetObjectItemCaseSensitive(device, "device_hex");
        rows[i] = unknown_gpu((int64_t)i);
        snprintf(rows[i].name, sizeof(rows[i].name), "%s", cJSON_IsString(name) ? name->valuestring : "");
        snprintf(rows[i].pci_address, sizeof(rows[i].pci_address), "%s",
                 cJSON_IsString(address) ? address->valuestring : "");
        if (cJSON_IsString(host) && i == 0) {
            snprintf(machine->host.hostname, sizeof(machine->host.hostname), "%s", host->valuestring);
        }
        file->crosses_hosts |= cJSON_IsString(host) && strcmp(host->valuestring, machine->host.hostname) != 0;
        i++;
    }
    machine->gpus = rows;
    machine->gpu_count = i;
    *gpus = rows;
    return RK_OK;
}

static enum rk_status read_config(struct nccl_file *file, const cJSON *config, struct rk_machine_identity *machine,
                                  struct rk_gpu_row **gpus, struct rk_error *error) {
    struct rk_json_object object;
    int64_t threads = 1;
    int64_t per_thread = 1;
    enum rk_status status = rk_json_open(file->path, "config", config, &object, error);
    if (status == RK_OK) {
        status = rk_json_optional_integer(&object, "nthreads", 1, 1 << 20, &threads, error);
    }
    if (status == RK_OK) {
        status = rk_json_optional_integer(&object, "ngpus", 1, 1 << 20, &per_thread, error);
    }
    if (status == RK_OK) {
        status = read_devices(file, config, machine, gpus, error);
    }
    if (status != RK_OK) {
        return status;
    }
    /* Builds without MPI list only the first device of a process. */
    file->ranks =
        (int64_t)machine->gpu_count > threads * per_thread ? (int64_t)machine->gpu_count : threads * per_thread;
    machine->topology.devices_per_host = file->crosses_hosts ? -1 : file->ranks;
    snprintf(machine->topology.summary, sizeof(machine->topology.summary), "%" PRId64 " ranks of nccl-tests%s",
             file->ranks, file->crosses_hosts ? " on several hosts" : "");
    return RK_OK;
}

enum rk_status rk_import_nccl_tests(struct rk_db *db, const char *path, const struct cJSON *root,
                                    const struct rk_import_options *options, int64_t *rows, struct rk_error *error) {
    struct nccl_file file = {.db = db, .path = path, .started_us = options->now_us};
    struct rk_machine_identity machine = unknown_machine();
    struct rk_gpu_row *gpus = NULL;
    const cJSON *program = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(root, "args"), 0);
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(root, "nccl_version");
    const cJSON *results = cJSON_GetObjectItemCaseSensitive(root, "results");
    const cJSON *result;
    char name[64] = "";
    char tool[64];
    if (!cJSON_IsString(program) || !cJSON_IsArray(results) || !cJSON_IsNumber(version)) {
        return rk_fail(error, RK_USAGE, "%s: args, nccl_version or results of nccl-tests are missing", path);
    }
    program_name(program->valuestring, name, sizeof(name));
    file.op = translate(collectives, sizeof(collectives) / sizeof(collectives[0]), name);
    if (file.op == NULL) {
        return rk_fail(error, RK_USAGE, "%s: \"%s\" is no collective of nccl-tests that reckon knows", path, name);
    }
    snprintf(machine.software.nccl, sizeof(machine.software.nccl), "%d", version->valueint);
    snprintf(tool, sizeof(tool), "nccl-tests %.40s", name);
    enum rk_status status =
        read_config(&file, cJSON_GetObjectItemCaseSensitive(root, "config"), &machine, &gpus, error);
    if (status == RK_OK) {
        status = begin(db, &machine, tool, program->valuestring, file.ranks, options, &file.campaign, error);
    }
    free(gpus);
    cJSON_ArrayForEach(result, results) {
        if (status == RK_OK) {
            status = import_result(&file, result, error);
        }
    }
    if (status == RK_OK && file.rows == 0) {
        status = rk_fail(error, RK_USAGE, "%s: holds no result", path);
    }
    if (status == RK_OK) {
        status = rk_campaign_end(db, file.campaign, RK_CAMPAIGN_FINISHED, options->now_us, error);
    }
    *rows = file.rows;
    return status;
}

/* ---- nvbandwidth ---- */

struct nvbandwidth_file {
    struct rk_db *db;
    const char *path;
    int64_t campaign, bytes, now_us;
    int64_t rows;
};

/* One entry of a matrix: a bandwidth in GB/s, or with latency tests nanoseconds, as a text or a number. */
static enum rk_status import_entry(struct nvbandwidth_file *file, const char *test, bool latency, const cJSON *entry,
                                   int64_t row_number, int64_t column_number, struct rk_error *error) {
    struct rk_measurement_row row = rk_measurement_empty();
    struct rk_case_row bench_case = {.dim = {latency ? 0 : file->bytes, row_number, column_number},
                                     .group_size = 1,
                                     .concurrent_ranks = 1,
                                     .row_share = 1,
                                     .mode = "sustained"};
    double value = 0;
    if (cJSON_IsString(entry) && strcmp(entry->valuestring, "N/A") == 0) {
        return RK_OK;
    }
    if (cJSON_IsNumber(entry)) {
        value = entry->valuedouble;
    } else if (!cJSON_IsString(entry) || rk_parse_number(test, entry->valuestring, 0, 1e9, &value, error) != RK_OK) {
        return rk_fail(error, RK_USAGE, "%s: %s: an entry of its matrix is no number", file->path, test);
    }
    if (!(value > 0)) {
        return rk_fail(error, RK_USAGE, "%s: %s: an entry of its matrix is %g", file->path, test, value);
    }
    snprintf(bench_case.op, sizeof(bench_case.op), "%s", test);
    enum rk_status status = rk_case_store(file->db, &bench_case, &row.case_id, error);
    row.campaign_id = file->campaign;
    row.started_us = file->now_us;
    row.median_seconds = latency ? value * SECONDS_PER_NANOSECOND : (double)file->bytes / (value * BYTES_PER_GB);
    row.bytes = latency ? (double)NAN : (double)file->bytes;
    snprintf(row.stop_reason, sizeof(row.stop_reason), "imported");
    if (status == RK_OK) {
        status = rk_measurement_store(file->db, &row, NULL, NULL, 0, NULL, error);
        file->rows++;
    }
    return status;
}

static enum rk_status import_test(struct nvbandwidth_file *file, const cJSON *test, struct rk_error *error) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(test, "name");
    const cJSON *description = cJSON_GetObjectItemCaseSensitive(test, "bandwidth_description");
    const cJSON *matrix = cJSON_GetObjectItemCaseSensitive(test, "bandwidth_matrix");
    const cJSON *row;
    const cJSON *entry;
    enum rk_status status = RK_OK;
    int64_t row_number = 0;
    if (!cJSON_IsString(name)) {
        return rk_fail(error, RK_USAGE, "%s: a test without a name", file->path);
    }
    bool latency = cJSON_IsString(description) && strstr(description->valuestring, "latency") != NULL;
    cJSON_ArrayForEach(row, matrix) /* none: the test was waived or failed */
    {
        int64_t column_number = 0;
        cJSON_ArrayForEach(entry, row) {
            if (status == RK_OK) {
                status = import_entry(file, name->valuestring, latency, entry, row_number, column_number++, error);
            }
        }
        row_number++;
    }
    return status;
}

/* "bufferSize" is in MiB, as the tool's option is. */
static enum rk_status copy_bytes(const char *path, const cJSON *tool, const struct rk_import_options *options,
                                 int64_t *bytes, struct rk_error *error) {
    const cJSON *size = cJSON_GetObjectItemCaseSensitive(tool, "bufferSize");
    if (cJSON_IsNumber(size) && size->valuedouble >= 1 && size->valuedouble < 1e9) {
        *bytes = (int64_t)size->valuedouble << 20;
    } else {
        *bytes = options->nvbandwidth_bytes;
    }
    if (*bytes > 0) {
        return RK_OK;
    }
    return rk_fail(error, RK_USAGE,
                   "%s: nvbandwidth does not say how large its copies were; give the size with --buffer-size (its own "
                   "default is 512MiB)",
                   path);
}

enum rk_status rk_import_nvbandwidth(struct rk_db *db, const char *path, const struct cJSON *root,
                                     const struct rk_import_options *options, int64_t *rows, struct rk_error *error) {
    struct nvbandwidth_file file = {.db = db, .path = path, .now_us = options->now_us};
    struct rk_machine_identity machine = unknown_machine();
    const cJSON *tool = cJSON_GetObjectItemCaseSensitive(root, "nvbandwidth");
    const cJSON *tests = cJSON_GetObjectItemCaseSensitive(tool, "testcases");
    const cJSON *failure = cJSON_GetObjectItemCaseSensitive(tool, "error");
    const cJSON *driver = cJSON_GetObjectItemCaseSensitive(tool, "Driver Version");
    const cJSON *runtime = cJSON_GetObjectItemCaseSensitive(tool, "CUDA Runtime Version");
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(tool, "version");
    const cJSON *test;
    char name[64];
    if (cJSON_IsString(failure)) {
        return rk_fail(error, RK_USAGE, "%s: nvbandwidth failed: %.200s", path, failure->valuestring);
    }
    if (!cJSON_IsArray(tests)) {
        return rk_fail(error, RK_USAGE, "%s: nvbandwidth without testcases", path);
    }
    snprintf(name, sizeof(name), "nvbandwidth %.40s", cJSON_IsString(version) ? version->valuestring : "");
    snprintf(machine.software.driver, sizeof(machine.software.driver), "%.63s",
             cJSON_IsString(driver) ? driver->valuestring : "");
    if (cJSON_IsNumber(runtime)) {
        snprintf(machine.software.cuda, sizeof(machine.software.cuda), "%d", runtime->valueint);
    }
    machine.topology.devices_per_host = -1;
    enum rk_status status = copy_bytes(path, tool, options, &file.bytes, error);
    if (status == RK_OK) {
        status = begin(db, &machine, name, "nvbandwidth -j", 1, options, &file.campaign, error);
    }
    cJSON_ArrayForEach(test, tests) {
        if (status == RK_OK) {
            status = import_test(&file, test, error);
        }
    }
    if (status == RK_OK && file.rows == 0) {
        status = rk_fail(error, RK_USAGE, "%s: no test of nvbandwidth passed", path);
    }
    if (status == RK_OK) {
        status = rk_campaign_end(db, file.campaign, RK_CAMPAIGN_FINISHED, options->now_us, error);
    }
    *rows = file.rows;
    return status;
}

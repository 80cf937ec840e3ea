/* reckon doctor: what this machine is, what is missing, and what would make results wrong. */
#include "base/host.h"
#include "base/json.h"
#include "base/version.h"
#include "calibrate/fitness.h"
#include "cli/cli.h"
#include "db/database.h"

#include <cblas.h>
#include <gnu/libc-version.h>
#include <gsl/gsl_version.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct doctor_options {
    const char *spill;
    double seconds;
};

static const struct rk_option options[] = {
    {.name = "spill",
     .type = RK_OPTION_STRING,
     .offset = offsetof(struct doctor_options, spill),
     .value = "DIR",
     .help = "the folder for offloaded bytes that will be used (default /var/tmp)"},
    {.name = "seconds",
     .type = RK_OPTION_NUMBER,
     .offset = offsetof(struct doctor_options, seconds),
     .value = "S",
     .minimum = 0.05,
     .maximum = 60,
     .help = "how long to watch what other programs do (default 0.5)"},
};

const struct rk_arguments rk_cli_doctor_arguments = {
    .name = "doctor",
    .summary = "Say what this machine is and whether its figures can be trusted",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .description =
        "Prints processors, memory, limits of the container, GPUs, libraries and file systems, then the findings:\n"
        "warnings that widen timings, and reasons why the machine is unfit (exit code 6), each with a remedy.",
    .examples = "  reckon doctor\n  reckon doctor --json | jq '.findings[] | select(.level != \"good\")'",
};

struct library {
    const char *name;
    char version[160];
};

enum { LIBRARIES = 5 };

static void read_libraries(struct library libraries[LIBRARIES]) {
    const char *versions[LIBRARIES][2] = {
        {"OpenBLAS", openblas_get_config()},   {"GSL", gsl_version},
        {"SQLite", rk_db_library_version()},   {"cJSON", cJSON_Version()},
        {"C library", gnu_get_libc_version()},
    };
    for (size_t i = 0; i < LIBRARIES; i++) {
        libraries[i].name = versions[i][0];
        /* OpenBLAS puts its own name first. */
        const char *text = versions[i][1];
        size_t name = strlen(versions[i][0]);
        text += strncmp(text, versions[i][0], name) == 0 && text[name] == ' ' ? name + 1 : 0;
        snprintf(libraries[i].version, sizeof libraries[i].version, "%s", text);
    }
}

static const char *or_unknown(const char *text) {
    return text[0] != '\0' ? text : "unknown";
}

static void print_host(FILE *out, const struct rk_host_facts *host) {
    char total[32], available[32], limit[32], quota[64] = "";
    if (!isnan(host->quota))
        snprintf(quota, sizeof quota, ", quota %.2f", host->quota);
    fprintf(out, "Host        %s, %s, %s, %s%s\n", or_unknown(host->hostname), or_unknown(host->operating_system),
            or_unknown(host->kernel), or_unknown(host->architecture), host->virtual_machine ? ", virtual machine" : "");
    fprintf(out, "Processor   %s: ", or_unknown(host->processor));
    if (host->sockets > 0)
        fprintf(out, "%lld socket%s, ", (long long)host->sockets, host->sockets == 1 ? "" : "s");
    if (host->cores > 0)
        fprintf(out, "%lld cores, ", (long long)host->cores);
    fprintf(out, "%lld threads, %lld usable%s\n", (long long)host->threads, (long long)host->allowed_threads, quota);
    fprintf(out, "Memory      %s, %s available%s%s\n", rk_format_bytes(host->memory_bytes, total, sizeof total),
            rk_format_bytes(host->memory_available_bytes, available, sizeof available),
            host->memory_limit_bytes > 0 ? ", limited to " : "",
            host->memory_limit_bytes > 0 ? rk_format_bytes(host->memory_limit_bytes, limit, sizeof limit) : "");
}

static void print_gpus(FILE *out, const struct rk_nvml_report *report) {
    if (!report->loaded || report->gpu_count == 0) {
        fprintf(out, "GPUs        none: %s\n", report->loaded ? "the driver shows none" : report->reason);
        return;
    }
    fprintf(out, "Driver      %s, CUDA up to %s\n", or_unknown(report->driver), or_unknown(report->cuda));
    for (int64_t i = 0; i < report->gpu_count; i++) {
        const struct rk_nvml_gpu *gpu = &report->gpus[i];
        char used[32], total[32];
        fprintf(out, "GPU %-7lld %s, %s of %s used, %lld of %lld W, %lld of %lld MHz, %lld C, %s\n", (long long)i,
                gpu->name, rk_format_bytes(gpu->memory_used_bytes, used, sizeof used),
                rk_format_bytes(gpu->memory_bytes, total, sizeof total), (long long)gpu->power_milliwatts / 1000,
                (long long)gpu->power_limit_milliwatts / 1000, (long long)gpu->clock_mhz,
                (long long)gpu->clock_maximum_mhz, (long long)gpu->temperature_celsius, gpu->uuid);
    }
}

static void print_findings(const struct rk_cli *cli, const struct rk_fitness *fitness) {
    static const char *const colours[] = {"\033[32m", "", "\033[33m", "\033[31m"};
    size_t counts[4] = {0};
    fprintf(cli->out, "\n");
    for (size_t i = 0; i < fitness->count; i++) {
        const struct rk_finding *finding = &fitness->findings[i];
        counts[finding->level]++;
        fprintf(cli->out, "%s%-8s%s %-14s %s\n", cli->colour ? colours[finding->level] : "",
                rk_finding_level_name(finding->level), cli->colour ? "\033[0m" : "", finding->check, finding->text);
        if (finding->remedy[0] != '\0')
            fprintf(cli->out, "%-23s -> %s\n", "", finding->remedy);
    }
    fprintf(cli->out, "\n%s: %zu good, %zu notes, %zu warnings, %zu unfit\n",
            fitness->worst == RK_FINDING_UNFIT ? "Unfit" : "Fit", counts[RK_FINDING_GOOD], counts[RK_FINDING_NOTE],
            counts[RK_FINDING_WARNING], counts[RK_FINDING_UNFIT]);
}

static void print_text(struct rk_cli *cli, const struct rk_machine_facts *facts, const struct rk_fitness *fitness) {
    struct library libraries[LIBRARIES];
    fprintf(cli->out, "Reckon      %s (%s; %s; CUDA back end: %s)\n", rk_version(), rk_revision(), rk_build(),
            facts->cuda_built ? "yes" : "no");
    print_host(cli->out, &facts->host);
    print_gpus(cli->out, &facts->gpus);
    read_libraries(libraries);
    for (size_t i = 0; i < LIBRARIES; i++)
        fprintf(cli->out, "%s%s %s", i == 0 ? "Libraries   " : ", ", libraries[i].name, libraries[i].version);
    fprintf(cli->out, "\nDatabase    %s\n", cli->database);
    print_findings(cli, fitness);
}

/* Numbers that are unknown become null. */
static void add_number(cJSON *object, const char *name, double value) {
    if (isnan(value) || value == -1)
        cJSON_AddNullToObject(object, name);
    else
        cJSON_AddNumberToObject(object, name, value);
}

static void add_host_json(cJSON *root, const struct rk_machine_facts *facts) {
    const struct rk_host_facts *host = &facts->host;
    cJSON *object = cJSON_AddObjectToObject(root, "host");
    cJSON_AddStringToObject(object, "hostname", host->hostname);
    cJSON_AddStringToObject(object, "operating_system", host->operating_system);
    cJSON_AddStringToObject(object, "kernel", host->kernel);
    cJSON_AddStringToObject(object, "architecture", host->architecture);
    cJSON_AddStringToObject(object, "processor", host->processor);
    cJSON_AddBoolToObject(object, "virtual_machine", host->virtual_machine);
    add_number(object, "sockets", (double)host->sockets);
    add_number(object, "numa_nodes", (double)host->numa_nodes);
    add_number(object, "cores", (double)host->cores);
    add_number(object, "threads", (double)host->threads);
    add_number(object, "allowed_threads", (double)host->allowed_threads);
    add_number(object, "quota_processors", host->quota);
    add_number(object, "memory_bytes", (double)host->memory_bytes);
    add_number(object, "memory_available_bytes", (double)host->memory_available_bytes);
    add_number(object, "memory_limit_bytes", (double)host->memory_limit_bytes);
    add_number(object, "load_average", host->load_average);
    add_number(object, "others_busy_processors", facts->activity.busy_processors);
    add_number(object, "stolen_processors", facts->activity.stolen_processors);
}

static void add_gpus_json(cJSON *root, const struct rk_nvml_report *report) {
    cJSON *driver = cJSON_AddObjectToObject(root, "driver");
    cJSON_AddBoolToObject(driver, "loaded", report->loaded);
    cJSON_AddStringToObject(driver, "version", report->driver);
    cJSON_AddStringToObject(driver, "cuda", report->cuda);
    cJSON_AddStringToObject(driver, "reason", report->reason);
    cJSON *gpus = cJSON_AddArrayToObject(root, "gpus");
    for (int64_t i = 0; i < report->gpu_count; i++) {
        const struct rk_nvml_gpu *gpu = &report->gpus[i];
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "name", gpu->name);
        cJSON_AddStringToObject(object, "uuid", gpu->uuid);
        cJSON_AddStringToObject(object, "bus", gpu->bus);
        add_number(object, "memory_bytes", (double)gpu->memory_bytes);
        add_number(object, "memory_used_bytes", (double)gpu->memory_used_bytes);
        add_number(object, "power_limit_watts",
                   gpu->power_limit_milliwatts < 0 ? NAN : (double)gpu->power_limit_milliwatts / 1000);
        add_number(object, "power_watts", gpu->power_milliwatts < 0 ? NAN : (double)gpu->power_milliwatts / 1000);
        add_number(object, "temperature_celsius", (double)gpu->temperature_celsius);
        add_number(object, "clock_mhz", (double)gpu->clock_mhz);
        add_number(object, "clock_maximum_mhz", (double)gpu->clock_maximum_mhz);
        add_number(object, "utilisation_percent", (double)gpu->utilisation_percent);
        add_number(object, "throttle_reasons", (double)gpu->throttle_reasons);
        add_number(object, "processes", (double)gpu->processes);
        cJSON_AddBoolToObject(object, "persistence", gpu->persistence);
        cJSON_AddBoolToObject(object, "partitioned", gpu->partitioned);
        cJSON_AddItemToArray(gpus, object);
    }
}

static void add_file_system_json(cJSON *root, const char *name, const struct rk_file_system *file_system) {
    cJSON *object = cJSON_AddObjectToObject(root, name);
    cJSON_AddStringToObject(object, "folder", file_system->folder);
    cJSON_AddStringToObject(object, "type", file_system->type);
    cJSON_AddBoolToObject(object, "network", file_system->network);
    cJSON_AddBoolToObject(object, "memory", file_system->memory);
    cJSON_AddBoolToObject(object, "writable", file_system->writable);
    add_number(object, "free_bytes", (double)file_system->free_bytes);
}

static enum rk_status print_json(struct rk_cli *cli, const struct rk_machine_facts *facts,
                                 const struct rk_fitness *fitness) {
    struct library libraries[LIBRARIES];
    struct rk_text text = {0};
    cJSON *root = cJSON_CreateObject();
    cJSON *reckon = cJSON_AddObjectToObject(root, "reckon");
    cJSON_AddStringToObject(reckon, "version", rk_version());
    cJSON_AddStringToObject(reckon, "revision", rk_revision());
    cJSON_AddStringToObject(reckon, "build", rk_build());
    cJSON_AddBoolToObject(reckon, "cuda", facts->cuda_built);
    add_host_json(root, facts);
    add_gpus_json(root, &facts->gpus);
    cJSON *versions = cJSON_AddObjectToObject(root, "libraries");
    read_libraries(libraries);
    for (size_t i = 0; i < LIBRARIES; i++)
        cJSON_AddStringToObject(versions, libraries[i].name, libraries[i].version);
    cJSON_AddStringToObject(root, "database", cli->database);
    cJSON *places = cJSON_AddObjectToObject(root, "file_systems");
    add_file_system_json(places, "database", &facts->database);
    add_file_system_json(places, "spill", &facts->spill);
    add_file_system_json(places, "shared_memory", &facts->shared_memory);
    cJSON *findings = cJSON_AddArrayToObject(root, "findings");
    for (size_t i = 0; i < fitness->count; i++) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "level", rk_finding_level_name(fitness->findings[i].level));
        cJSON_AddStringToObject(object, "check", fitness->findings[i].check);
        cJSON_AddStringToObject(object, "text", fitness->findings[i].text);
        cJSON_AddStringToObject(object, "remedy", fitness->findings[i].remedy);
        cJSON_AddItemToArray(findings, object);
    }
    cJSON_AddBoolToObject(root, "fit", fitness->worst != RK_FINDING_UNFIT);
    enum rk_status status = rk_json_print(root, &text, &cli->error);
    if (status == RK_OK)
        fputs(text.data, cli->out);
    rk_text_free(&text);
    cJSON_Delete(root);
    return status;
}

enum rk_status rk_cli_doctor(struct rk_cli *cli, int argc, char **argv) {
    struct doctor_options values = {.seconds = 0.5};
    enum rk_status status = rk_cli_parse(cli, &rk_cli_doctor_arguments, argc, argv, &values, NULL);
    if (status != RK_OK)
        return status;
    struct rk_machine_facts *facts = malloc(sizeof *facts);
    struct rk_fitness *fitness = malloc(sizeof *fitness);
    if (facts == NULL || fitness == NULL) {
        status = rk_fail(&cli->error, RK_ERROR, "doctor: not enough memory");
        goto free_facts;
    }
    status = rk_machine_facts_read(cli->database, values.spill, values.seconds, facts, &cli->error);
    if (status != RK_OK)
        goto free_facts;
    rk_fitness_check(facts, fitness);
    if (cli->json)
        status = print_json(cli, facts, fitness);
    else
        print_text(cli, facts, fitness);
    if (status == RK_OK)
        status = rk_fitness_status(fitness, &cli->error);
free_facts:
    free(facts);
    free(fitness);
    return status;
}

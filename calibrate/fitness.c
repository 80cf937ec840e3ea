#include "calibrate/fitness.h"

#include "base/text.h"
#include "kernels/gpu_module.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Shares of the processors that other programs may use: above the first, timings widen; above the second they are
 * timings of the other programs. */
static const double BUSY_NOTICED = 0.05, BUSY_UNFIT = 0.5;
static const double STOLEN_NOTICED = 0.02, STOLEN_UNFIT = 0.25;
static const int64_t LEAST_MEMORY = (int64_t)1 << 30, LITTLE_MEMORY = (int64_t)4 << 30;
static const int64_t LEAST_SPILL = (int64_t)2 << 30, LEAST_SHARED = (int64_t)256 << 20;
static const int64_t GPU_BUSY_PERCENT = 10, GPU_HOT_CELSIUS = 85;
static const double POWER_APART = 0.98;

const char *rk_finding_level_name(enum rk_finding_level level) {
    static const char *const names[] = {"good", "note", "warning", "unfit"};
    return names[level];
}

/* The module brings hundreds of megabytes of libraries with it: it is tried only where there is a GPU. */
static void try_gpu_module(struct rk_machine_facts *facts) {
    const char *reason = "";
    facts->gpu_module_reason[0] = '\0';
    facts->nccl_built = true;
    if (!facts->cuda_built || facts->gpus.gpu_count == 0)
        return;
    const struct rk_gpu_module *module = rk_gpu_module(&reason);
    facts->nccl_built = module == NULL || module->transport != NULL;
    snprintf(facts->gpu_module_reason, sizeof facts->gpu_module_reason, "%.255s", module == NULL ? reason : "");
}

enum rk_status rk_machine_facts_read(const char *database, const char *spill_folder, double seconds,
                                     struct rk_machine_facts *facts, struct rk_error *error) {
    rk_host_read("", &facts->host);
    rk_nvml_read(NULL, &facts->gpus);
    rk_host_file_system(database, &facts->database);
    rk_host_file_system(spill_folder != NULL ? spill_folder : "/var/tmp", &facts->spill);
    rk_host_file_system("/dev/shm", &facts->shared_memory);
#ifdef RK_HAVE_CUDA
    facts->cuda_built = true;
#else
    facts->cuda_built = false;
#endif
    try_gpu_module(facts);
    return rk_host_observe(seconds, &facts->activity, error);
}

static void add(struct rk_fitness *fitness, enum rk_finding_level level, const char *check, const char *remedy,
                const char *format, ...) RK_PRINTF_LIKE(5, 6);

static void add(struct rk_fitness *fitness, enum rk_finding_level level, const char *check, const char *remedy,
                const char *format, ...) {
    if (level > fitness->worst)
        fitness->worst = level;
    if (fitness->count == RK_FINDINGS_MAX)
        return;
    struct rk_finding *finding = &fitness->findings[fitness->count++];
    finding->level = level;
    finding->check = check;
    snprintf(finding->remedy, sizeof finding->remedy, "%s", remedy);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(finding->text, sizeof finding->text, format, arguments);
    va_end(arguments);
}

static void check_processors(const struct rk_machine_facts *facts, struct rk_fitness *fitness) {
    const struct rk_host_facts *host = &facts->host;
    int64_t usable = rk_host_usable_processors(host);
    if (!isnan(host->quota) && host->quota < 1)
        add(fitness, RK_FINDING_UNFIT, "processors", "give the container at least one whole processor (--cpus)",
            "the control group grants %.2f processors: every rank would be stopped in the middle of a step",
            host->quota);
    else if (!isnan(host->quota) && host->quota < (double)host->allowed_threads)
        add(fitness, RK_FINDING_WARNING, "processors",
            "use at most that many ranks, or bind the container to processors (--cpuset-cpus) instead of a quota",
            "the control group grants %.2f of %lld processors: more busy threads than that are stopped in turns",
            host->quota, (long long)host->allowed_threads);
    else if (host->allowed_threads < host->threads)
        add(fitness, RK_FINDING_NOTE, "processors", "", "this process may run on %lld of %lld processors",
            (long long)host->allowed_threads, (long long)host->threads);
    else
        add(fitness, RK_FINDING_GOOD, "processors", "", "%lld processors may be used", (long long)usable);
    if (strcmp(host->governor, "powersave") == 0 || strcmp(host->governor, "conservative") == 0)
        add(fitness, RK_FINDING_WARNING, "frequency", "sudo cpupower frequency-set -g performance",
            "the processors' frequency governor is '%s': short measurements run at a low clock", host->governor);
}

static void check_load(const struct rk_machine_facts *facts, struct rk_fitness *fitness) {
    const struct rk_host_activity *activity = &facts->activity;
    double processors = (double)rk_host_usable_processors(&facts->host);
    double share = activity->busy_processors / processors, stolen = activity->stolen_processors / processors;
    char who[200] = "";
    for (int64_t i = 0, used = 0; i < activity->heavy_count && i < 3; i++)
        used += snprintf(who + used, sizeof who - (size_t)used, "%s%.30s (%lld) %.2f", i > 0 ? ", " : ": ",
                         activity->heavy[i].name, (long long)activity->heavy[i].process, activity->heavy[i].processors);
    const char *remedy = "stop them or wait until the machine is quiet";
    if (isnan(share))
        add(fitness, RK_FINDING_NOTE, "load", "", "the system does not say how busy its processors are");
    else if (share > BUSY_UNFIT)
        add(fitness, RK_FINDING_UNFIT, "load", remedy, "other programs use %.1f of %.0f processors%s",
            activity->busy_processors, processors, who);
    else if (share > BUSY_NOTICED)
        add(fitness, RK_FINDING_WARNING, "load", remedy,
            "other programs use %.2f of %.0f processors: timings will scatter%s", activity->busy_processors, processors,
            who);
    else
        add(fitness, RK_FINDING_GOOD, "load", "", "other programs use %.2f of %.0f processors (load average %.2f)",
            activity->busy_processors, processors, facts->host.load_average);
    if (stolen > STOLEN_NOTICED)
        add(fitness, stolen > STOLEN_UNFIT ? RK_FINDING_UNFIT : RK_FINDING_WARNING, "hypervisor",
            "use a virtual machine with processors of its own", "the hypervisor takes %.2f of %.0f processors away",
            activity->stolen_processors, processors);
}

static void check_memory(const struct rk_machine_facts *facts, struct rk_fitness *fitness) {
    const struct rk_host_facts *host = &facts->host;
    int64_t available = host->memory_available_bytes;
    if (host->memory_limit_bytes > 0 && host->memory_limit_used_bytes >= 0) {
        int64_t left = host->memory_limit_bytes - host->memory_limit_used_bytes;
        available = available < 0 || left < available ? left : available;
    }
    char free_text[32], all_text[32];
    rk_format_bytes(available, free_text, sizeof free_text);
    rk_format_bytes(rk_host_usable_memory(host), all_text, sizeof all_text);
    const char *limited = host->memory_limit_bytes > 0 && host->memory_limit_bytes < host->memory_bytes
                              ? " (limit of the control group)"
                              : "";
    if (available < 0)
        add(fitness, RK_FINDING_NOTE, "memory", "", "the system does not say how much memory is free");
    else if (available < LEAST_MEMORY)
        add(fitness, RK_FINDING_UNFIT, "memory", "end programs, or raise the limit: ranks would be killed",
            "%s of %s are free%s", free_text, all_text, limited);
    else
        add(fitness, available < LITTLE_MEMORY ? RK_FINDING_NOTE : RK_FINDING_GOOD, "memory", "", "%s of %s are free%s",
            free_text, all_text, limited);
}

static void check_files(const struct rk_machine_facts *facts, struct rk_fitness *fitness) {
    const struct rk_file_system *database = &facts->database, *spill = &facts->spill, *shared = &facts->shared_memory;
    char text[32];
    if (!database->writable)
        add(fitness, RK_FINDING_WARNING, "database", "choose another place with --db FILE", "%s cannot be written",
            database->folder);
    else if (database->network)
        add(fitness, RK_FINDING_WARNING, "database",
            "keep it on a local disk with --db FILE, or let only one program use it at a time",
            "%s is on %s, a network or unknown file system: locks may not hold, so there is no write-ahead log",
            database->folder, database->type);
    else if (database->memory)
        add(fitness, RK_FINDING_WARNING, "database", "choose another place with --db FILE",
            "%s is on %s: measurements are lost at the next start", database->folder, database->type);
    else
        add(fitness, RK_FINDING_GOOD, "database", "", "%s on %s, %s free", database->folder, database->type,
            rk_format_bytes(database->free_bytes, text, sizeof text));
    if (spill->memory)
        add(fitness, RK_FINDING_WARNING, "spill", "name a folder on a disk with --spill",
            "%s is on %s: bytes offloaded there stay in memory", spill->folder, spill->type);
    else if (!spill->writable || spill->free_bytes < LEAST_SPILL)
        add(fitness, RK_FINDING_WARNING, "spill", "name another folder with --spill", "%s %s", spill->folder,
            spill->writable ? "has less than 2 GiB free for offloaded bytes" : "cannot be written");
    else
        add(fitness, RK_FINDING_GOOD, "spill", "", "%s on %s, %s free", spill->folder, spill->type,
            rk_format_bytes(spill->free_bytes, text, sizeof text));
    if (strcmp(shared->folder, "/dev/shm") != 0 || !shared->writable)
        add(fitness, RK_FINDING_UNFIT, "shared memory", "mount a tmpfs on /dev/shm",
            "/dev/shm is missing or not writable: local ranks cannot exchange data");
    else if (shared->free_bytes < LEAST_SHARED)
        add(fitness, RK_FINDING_WARNING, "shared memory", "start the container with --shm-size=1g or --ipc=host",
            "/dev/shm has %s free: large exchanges between local ranks will not fit",
            rk_format_bytes(shared->free_bytes, text, sizeof text));
    else
        add(fitness, RK_FINDING_GOOD, "shared memory", "", "/dev/shm has %s free",
            rk_format_bytes(shared->free_bytes, text, sizeof text));
}

static void check_one_gpu(const struct rk_nvml_report *report, int64_t index, struct rk_fitness *fitness) {
    const struct rk_nvml_gpu *gpu = &report->gpus[index];
    const int i = (int)index;
    if (gpu->partitioned)
        add(fitness, RK_FINDING_NOTE, "gpu", "", "GPU %d is partitioned (MIG): figures hold for its slice", i);
    if (gpu->utilisation_percent > GPU_BUSY_PERCENT)
        add(fitness, RK_FINDING_UNFIT, "gpu", "end the other job: nvidia-smi names it", "GPU %d is %lld %% busy", i,
            (long long)gpu->utilisation_percent);
    else if (gpu->processes > 0)
        add(fitness, RK_FINDING_WARNING, "gpu", "end them: nvidia-smi names them",
            "GPU %d is held by %lld other processes", i, (long long)gpu->processes);
    if (gpu->throttle_reasons >= 0 && (gpu->throttle_reasons & RK_NVML_THROTTLE_SLOWED) != 0)
        add(fitness, RK_FINDING_UNFIT, "gpu", "look at cooling and power supply: nvidia-smi -q -d PERFORMANCE",
            "GPU %d is slowed down (reasons 0x%llx)", i, (unsigned long long)gpu->throttle_reasons);
    if (gpu->temperature_celsius >= GPU_HOT_CELSIUS)
        add(fitness, RK_FINDING_WARNING, "gpu", "look at the cooling", "GPU %d is at %lld degrees Celsius", i,
            (long long)gpu->temperature_celsius);
    const struct rk_nvml_gpu *first = &report->gpus[0];
    if (strcmp(gpu->name, first->name) != 0)
        add(fitness, RK_FINDING_WARNING, "gpu", "choose equal ones with CUDA_VISIBLE_DEVICES",
            "GPU %d is a %s, GPU 0 a %s: the slowest sets the pace", i, gpu->name, first->name);
    else if ((double)gpu->power_limit_milliwatts < POWER_APART * (double)first->power_limit_milliwatts ||
             (double)first->power_limit_milliwatts < POWER_APART * (double)gpu->power_limit_milliwatts)
        add(fitness, RK_FINDING_WARNING, "gpu", "set them alike: sudo nvidia-smi -pl WATTS",
            "GPU %d has a power limit of %lld W, GPU 0 of %lld W", i, (long long)gpu->power_limit_milliwatts / 1000,
            (long long)first->power_limit_milliwatts / 1000);
}

static void check_gpus(const struct rk_machine_facts *facts, struct rk_fitness *fitness) {
    const struct rk_nvml_report *report = &facts->gpus;
    if (report->mismatch) {
        add(fitness, RK_FINDING_UNFIT, "gpu", "restart the machine, or install matching driver packages", "%s",
            report->reason);
        return;
    }
    if (!report->loaded || report->gpu_count == 0) {
        add(fitness, RK_FINDING_NOTE, "gpu", "", "%s: ranks run on processors",
            report->loaded ? "the driver shows no GPU" : report->reason);
        return;
    }
    if (!facts->cuda_built)
        add(fitness, RK_FINDING_WARNING, "gpu", "install the CUDA Toolkit and build again (cmake --preset default)",
            "%lld GPUs are here, but this binary was built without CUDA: ranks run on processors",
            (long long)report->gpu_count);
    else if (facts->gpu_module_reason[0] != '\0')
        add(fitness, RK_FINDING_WARNING, "gpu", "install what it names, or build again on this machine",
            "%lld GPUs are here, but ranks run on processors: %s", (long long)report->gpu_count,
            facts->gpu_module_reason);
    else if (!facts->nccl_built && report->gpu_count > 1)
        add(fitness, RK_FINDING_WARNING, "gpu", "install NCCL with its headers (libnccl-dev) and build again",
            "%lld GPUs are here, but this binary was built without NCCL: a run can use one of them",
            (long long)report->gpu_count);
    else
        add(fitness, RK_FINDING_GOOD, "gpu", "", "%lld GPUs, driver %s", (long long)report->gpu_count, report->driver);
    for (int64_t i = 0; i < report->gpu_count; i++)
        check_one_gpu(report, i, fitness);
}

void rk_fitness_check(const struct rk_machine_facts *facts, struct rk_fitness *fitness) {
    static void (*const checks[])(const struct rk_machine_facts *, struct rk_fitness *) = {
        check_processors, check_load, check_memory, check_files, check_gpus,
    };
    fitness->count = 0;
    fitness->worst = RK_FINDING_GOOD;
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        checks[i](facts, fitness);
}

enum rk_status rk_fitness_status(const struct rk_fitness *fitness, struct rk_error *error) {
    for (size_t i = 0; i < fitness->count; i++)
        if (fitness->findings[i].level == RK_FINDING_UNFIT)
            return rk_fail(error, RK_HARDWARE_UNFIT, "this machine is unfit: %s; %s", fitness->findings[i].text,
                           fitness->findings[i].remedy);
    return RK_OK;
}

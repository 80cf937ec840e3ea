#include "calibrate/identity.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Share of a host's memory that ranks may plan with; the rest is the system's and the page cache's. */
static const double usable_memory = 0.8;

/* The text after "key<spaces>: " of the first line of path that begins with key; empty when absent. */
static void read_field(const char *path, const char *key, char separator, char *value, size_t size)
{
    value[0] = '\0';
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    char line[1024];
    while (value[0] == '\0' && fgets(line, sizeof line, file)) {
        const char *at = strchr(line, separator);
        if (strncmp(line, key, strlen(key)) != 0 || !at)
            continue;
        at += 1 + strspn(at + 1, " \t\"");
        snprintf(value, size, "%.*s", (int)strcspn(at, "\"\n"), at);
    }
    fclose(file);
}

static int64_t read_integer(const char *path, int64_t absent)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return absent;
    long long value = 0;
    int64_t result = fscanf(file, "%lld", &value) == 1 ? (int64_t)value : absent;
    fclose(file);
    return result;
}

/* Whole cores of the control group's quota ("max 100000" or "150000 100000"), at least 1; a large number without one. */
static int64_t quota_cores(void)
{
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (!file)
        return INT32_MAX;
    long long quota = 0, period = 0;
    int read = fscanf(file, "%lld %lld", &quota, &period);
    fclose(file);
    if (read != 2 || period <= 0)
        return INT32_MAX;
    return quota < period ? 1 : quota / period;
}

static int64_t usable_cores(void)
{
    cpu_set_t set;
    int64_t cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    int64_t quota = quota_cores();
    return cores < quota ? cores : quota;
}

int64_t rk_identity_memory_bytes(void)
{
    int64_t physical = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    int64_t limit = read_integer("/sys/fs/cgroup/memory.max", INT64_MAX);
    return limit > 0 && limit < physical ? limit : physical;
}

static void read_host(struct rk_host_row *host)
{
    gethostname(host->hostname, sizeof host->hostname - 1);
    read_field("/proc/cpuinfo", "model name", ':', host->cpu_model, sizeof host->cpu_model);
    struct utsname system;
    if (uname(&system) == 0)
        snprintf(host->kernel, sizeof host->kernel, "%.60s %.60s", system.sysname, system.release);
    read_field("/etc/os-release", "PRETTY_NAME", '=', host->operating_system, sizeof host->operating_system);
    host->cores = host->threads = usable_cores();
    host->sockets = host->numa_nodes = -1;
    host->memory_bytes = rk_identity_memory_bytes();
}

static enum rk_status read_gpus(const struct rk_backend *backend, int count, struct rk_identity *identity,
                                struct rk_device_facts *facts, struct rk_error *error)
{
    for (int i = 0; i < count; i++) {
        struct rk_device *device = NULL;
        enum rk_status status = backend->device_open(i, NULL, &device, error);
        if (status == RK_OK)
            status = backend->device_facts(device, facts, error);
        if (device)
            backend->device_close(device);
        if (status != RK_OK)
            return status;
        struct rk_gpu_row *gpu = &identity->gpus[i];
        *gpu = (struct rk_gpu_row){.ordinal = i,
                                   .memory_bytes = facts->memory_bytes,
                                   .multiprocessors = facts->multiprocessors,
                                   .l2_bytes = facts->l2_bytes,
                                   .numa_node = -1,
                                   .power_limit_watts = NAN,
                                   .clock_maximum_hz = NAN};
        snprintf(gpu->uuid, sizeof gpu->uuid, "%s", facts->uuid);
        snprintf(gpu->name, sizeof gpu->name, "%s", facts->name);
    }
    identity->machine.gpus = identity->gpus;
    identity->machine.gpu_count = (size_t)count;
    return RK_OK;
}

enum rk_status rk_identity_read(const struct rk_backend *backend, const char *version, const char *git_revision,
                                struct rk_identity *identity, struct rk_error *error)
{
    *identity = (struct rk_identity){0};
    struct rk_machine_identity *machine = &identity->machine;
    read_host(&machine->host);
    int count = 0;
    struct rk_error reason = {0};
    enum rk_status status = backend->device_count(&count, &reason);
    if (status != RK_OK || count == 0)
        return rk_fail(error, RK_HARDWARE_UNFIT, "no device for the %s back end: %s", backend->name, reason.text);
    if (count > RK_IDENTITY_GPUS_MAX)
        count = RK_IDENTITY_GPUS_MAX;
    struct rk_device_facts facts = {0};
    struct rk_software_row *software = &machine->software;
    snprintf(software->reckon, sizeof software->reckon, "%s %s", version, git_revision);
    snprintf(software->compiler, sizeof software->compiler, "%.60s", __VERSION__);
    if (backend->kind == RK_BACKEND_CPU) {
        struct rk_device *device = NULL;
        status = backend->device_open(0, NULL, &device, error);
        if (status != RK_OK)
            return status;
        status = backend->device_facts(device, &facts, error);
        backend->device_close(device);
        if (status != RK_OK)
            return status;
        snprintf(software->blas, sizeof software->blas, "%.60s", facts.libraries);
        machine->topology.devices_per_host = machine->host.cores;
        snprintf(machine->topology.summary, sizeof machine->topology.summary, "1 host, %lld cores",
                 (long long)machine->host.cores);
    } else {
        status = read_gpus(backend, count, identity, &facts, error);
        if (status != RK_OK)
            return status;
        snprintf(software->driver, sizeof software->driver, "%s", facts.driver);
        snprintf(software->cuda, sizeof software->cuda, "%s", facts.runtime);
        snprintf(software->blas, sizeof software->blas, "%.60s", facts.libraries);
        machine->topology.devices_per_host = count;
        snprintf(machine->topology.summary, sizeof machine->topology.summary, "1 host, %d GPUs", count);
    }
    machine->topology.hosts = 1;
    rk_machine_keys(machine, identity->machine_key, identity->fingerprint);
    return RK_OK;
}

void rk_identity_machine(const struct rk_identity *identity, const struct rk_backend *backend, int64_t ranks,
                         const char *spill_folder, struct rk_machine *machine)
{
    const struct rk_machine_identity *facts = &identity->machine;
    struct rk_machine made = {.backend = backend->kind, .devices_per_host = (int32_t)facts->topology.devices_per_host};
    double usable = usable_memory * (double)rk_identity_memory_bytes();
    int64_t on_host = ranks < facts->topology.devices_per_host || backend->kind == RK_BACKEND_CPU
                          ? ranks
                          : facts->topology.devices_per_host;
    if (backend->kind == RK_BACKEND_CPU) {
        snprintf(made.name, sizeof made.name, "%.50s x%lld", facts->host.cpu_model, (long long)facts->host.cores);
        made.shared_devices = true;
        made.serial_streams = true;
        made.memory_bytes = (int64_t)(usable / (double)on_host);
        struct statvfs folder;
        if (statvfs(spill_folder ? spill_folder : "/var/tmp", &folder) == 0)
            made.host_memory_bytes = (int64_t)((double)folder.f_bavail * (double)folder.f_frsize / (double)on_host);
    } else {
        snprintf(made.name, sizeof made.name, "%.60s", facts->gpus[0].name);
        made.memory_bytes = facts->gpus[0].memory_bytes;
        made.host_memory_bytes = (int64_t)(usable / (double)on_host);
    }
    *machine = made;
}

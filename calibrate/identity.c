#include "calibrate/identity.h"

#include "base/host.h"

#include <math.h>
#include <stdio.h>

/* Share of a host's memory that ranks may plan with; the rest is the system's and the page cache's. */
static const double usable_memory = 0.8;

static void read_host(struct rk_host_row *host) {
    struct rk_host_facts facts;
    rk_host_read("", &facts);
    snprintf(host->hostname, sizeof host->hostname, "%s", facts.hostname);
    snprintf(host->cpu_model, sizeof host->cpu_model, "%s", facts.processor);
    snprintf(host->kernel, sizeof host->kernel, "%s", facts.kernel);
    snprintf(host->operating_system, sizeof host->operating_system, "%s", facts.operating_system);
    host->sockets = facts.sockets;
    host->numa_nodes = facts.numa_nodes;
    host->cores = host->threads = rk_host_usable_processors(&facts);
    host->memory_bytes = rk_host_usable_memory(&facts);
}

static enum rk_status read_gpus(const struct rk_backend *backend, int count, struct rk_identity *identity,
                                struct rk_device_facts *facts, struct rk_error *error) {
    for (int i = 0; i < count; i++) {
        enum rk_status status = backend->device_describe(i, facts, error);
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
                                struct rk_identity *identity, struct rk_error *error) {
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
        status = backend->device_describe(0, &facts, error);
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
                         const char *spill_folder, struct rk_machine *machine) {
    const struct rk_machine_identity *facts = &identity->machine;
    struct rk_machine made = {.backend = backend->kind, .devices_per_host = (int32_t)facts->topology.devices_per_host};
    double usable = usable_memory * (double)facts->host.memory_bytes;
    int64_t on_host = ranks < facts->topology.devices_per_host || backend->kind == RK_BACKEND_CPU
                          ? ranks
                          : facts->topology.devices_per_host;
    if (backend->kind == RK_BACKEND_CPU) {
        snprintf(made.name, sizeof made.name, "%.50s x%lld", facts->host.cpu_model, (long long)facts->host.cores);
        made.shared_devices = true;
        made.serial_streams = true;
        made.memory_bytes = (int64_t)(usable / (double)on_host);
        struct rk_file_system spill;
        rk_host_file_system(spill_folder ? spill_folder : "/var/tmp", &spill);
        made.host_memory_bytes = spill.free_bytes > 0 ? spill.free_bytes / on_host : 0;
    } else {
        snprintf(made.name, sizeof made.name, "%.60s", facts->gpus[0].name);
        made.memory_bytes = facts->gpus[0].memory_bytes;
        made.host_memory_bytes = (int64_t)(usable / (double)on_host);
    }
    *machine = made;
}

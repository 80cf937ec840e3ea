#include "calibrate/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The few declarations of nvml.h that are used; its ABI is stable by the versions in the names. */
typedef int nvml_result;
typedef struct nvml_device_handle *nvml_device;
enum { NVML_SUCCESS = 0, NVML_LIB_RM_VERSION_MISMATCH = 18, NVML_INSUFFICIENT_SIZE = 7 };
enum { NVML_CLOCK_SM = 1, NVML_TEMPERATURE_GPU = 0 };

struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_pci {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct nvml_utilisation {
    unsigned int gpu, memory;
};
struct nvml_process {
    unsigned int pid;
    unsigned long long used_memory;
    unsigned int gpu_instance, compute_instance;
};

/* X(member, symbol, arguments). Required ones come first; the others may be missing in old drivers. */
#define NVML_FUNCTIONS(X)                                                                                              \
    X(init, "nvmlInit_v2", (void))                                                                                     \
    X(shutdown, "nvmlShutdown", (void))                                                                                \
    X(driver_version, "nvmlSystemGetDriverVersion", (char *, unsigned int))                                            \
    X(device_count, "nvmlDeviceGetCount_v2", (unsigned int *))                                                         \
    X(device_by_index, "nvmlDeviceGetHandleByIndex_v2", (unsigned int, nvml_device *))                                 \
    X(name, "nvmlDeviceGetName", (nvml_device, char *, unsigned int))                                                  \
    X(uuid, "nvmlDeviceGetUUID", (nvml_device, char *, unsigned int))                                                  \
    X(memory, "nvmlDeviceGetMemoryInfo", (nvml_device, struct nvml_memory *))                                          \
    X(cuda_version, "nvmlSystemGetCudaDriverVersion_v2", (int *))                                                      \
    X(pci, "nvmlDeviceGetPciInfo_v3", (nvml_device, struct nvml_pci *))                                                \
    X(power_limit, "nvmlDeviceGetPowerManagementLimit", (nvml_device, unsigned int *))                                 \
    X(power, "nvmlDeviceGetPowerUsage", (nvml_device, unsigned int *))                                                 \
    X(temperature, "nvmlDeviceGetTemperature", (nvml_device, unsigned int, unsigned int *))                            \
    X(clock, "nvmlDeviceGetClockInfo", (nvml_device, unsigned int, unsigned int *))                                    \
    X(clock_maximum, "nvmlDeviceGetMaxClockInfo", (nvml_device, unsigned int, unsigned int *))                         \
    X(utilisation, "nvmlDeviceGetUtilizationRates", (nvml_device, struct nvml_utilisation *))                          \
    X(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons", (nvml_device, unsigned long long *))                      \
    X(processes, "nvmlDeviceGetComputeRunningProcesses_v3", (nvml_device, unsigned int *, struct nvml_process *))      \
    X(persistence, "nvmlDeviceGetPersistenceMode", (nvml_device, unsigned int *))                                      \
    X(partition, "nvmlDeviceGetMigMode", (nvml_device, unsigned int *, unsigned int *))
enum { NVML_REQUIRED = 8 };

struct nvml {
#define NVML_MEMBER(member, symbol, arguments) nvml_result(*member) arguments;
    NVML_FUNCTIONS(NVML_MEMBER)
#undef NVML_MEMBER
};

static bool load(void *library, struct nvml *nvml) {
    static const char *const symbols[] = {
#define NVML_SYMBOL(member, symbol, arguments) symbol,
        NVML_FUNCTIONS(NVML_SYMBOL)
#undef NVML_SYMBOL
    };
    void *places[sizeof symbols / sizeof symbols[0]];
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        places[i] = dlsym(library, symbols[i]);
        if (places[i] == NULL && i < NVML_REQUIRED)
            return false;
    }
    /* ISO C has no conversion from object to function pointers; POSIX makes them alike. */
    _Static_assert(sizeof places == sizeof *nvml, "one pointer a function");
    memcpy(nvml, places, sizeof *nvml);
    return true;
}

typedef nvml_result value_function(nvml_device, unsigned int *);
typedef nvml_result kind_function(nvml_device, unsigned int, unsigned int *);

static int64_t read_value(value_function *function, nvml_device device) {
    unsigned int value = 0;
    return function != NULL && function(device, &value) == NVML_SUCCESS ? (int64_t)value : -1;
}

static int64_t read_kind(kind_function *function, nvml_device device, unsigned int kind) {
    unsigned int value = 0;
    return function != NULL && function(device, kind, &value) == NVML_SUCCESS ? (int64_t)value : -1;
}

static void read_gpu(const struct nvml *nvml, nvml_device device, struct rk_nvml_gpu *gpu) {
    *gpu = (struct rk_nvml_gpu){.memory_bytes = -1,
                                .memory_used_bytes = -1,
                                .power_limit_milliwatts = -1,
                                .power_milliwatts = -1,
                                .temperature_celsius = -1,
                                .clock_mhz = -1,
                                .clock_maximum_mhz = -1,
                                .utilisation_percent = -1,
                                .throttle_reasons = -1,
                                .processes = -1};
    if (nvml->name(device, gpu->name, sizeof gpu->name) != NVML_SUCCESS)
        gpu->name[0] = '\0';
    if (nvml->uuid(device, gpu->uuid, sizeof gpu->uuid) != NVML_SUCCESS)
        gpu->uuid[0] = '\0';
    struct nvml_memory memory;
    if (nvml->memory(device, &memory) == NVML_SUCCESS) {
        gpu->memory_bytes = (int64_t)memory.total;
        gpu->memory_used_bytes = (int64_t)memory.used;
    }
    struct nvml_pci pci;
    if (nvml->pci != NULL && nvml->pci(device, &pci) == NVML_SUCCESS)
        snprintf(gpu->bus, sizeof gpu->bus, "%.31s", pci.bus_id);
    gpu->power_limit_milliwatts = read_value(nvml->power_limit, device);
    gpu->power_milliwatts = read_value(nvml->power, device);
    gpu->temperature_celsius = read_kind(nvml->temperature, device, NVML_TEMPERATURE_GPU);
    gpu->clock_mhz = read_kind(nvml->clock, device, NVML_CLOCK_SM);
    gpu->clock_maximum_mhz = read_kind(nvml->clock_maximum, device, NVML_CLOCK_SM);
    struct nvml_utilisation utilisation;
    if (nvml->utilisation != NULL && nvml->utilisation(device, &utilisation) == NVML_SUCCESS)
        gpu->utilisation_percent = utilisation.gpu;
    unsigned long long reasons = 0;
    if (nvml->throttle != NULL && nvml->throttle(device, &reasons) == NVML_SUCCESS)
        gpu->throttle_reasons = (int64_t)reasons;
    struct nvml_process processes[64];
    unsigned int count = sizeof processes / sizeof processes[0];
    nvml_result listed = nvml->processes != NULL ? nvml->processes(device, &count, processes) : -1;
    if (listed == NVML_SUCCESS || listed == NVML_INSUFFICIENT_SIZE)
        gpu->processes = count;
    gpu->persistence = read_value(nvml->persistence, device) == 1;
    unsigned int partition = 0, pending = 0;
    gpu->partitioned =
        nvml->partition != NULL && nvml->partition(device, &partition, &pending) == NVML_SUCCESS && partition == 1;
}

static void read_all(const struct nvml *nvml, struct rk_nvml_report *report) {
    if (nvml->driver_version(report->driver, sizeof report->driver) != NVML_SUCCESS)
        report->driver[0] = '\0';
    int version = 0;
    if (nvml->cuda_version != NULL && nvml->cuda_version(&version) == NVML_SUCCESS)
        snprintf(report->cuda, sizeof report->cuda, "%d.%d", version / 1000, version % 1000 / 10);
    unsigned int count = 0;
    if (nvml->device_count(&count) != NVML_SUCCESS)
        count = 0;
    for (unsigned int i = 0; i < count && report->gpu_count < RK_NVML_GPUS_MAX; i++) {
        nvml_device device;
        if (nvml->device_by_index(i, &device) == NVML_SUCCESS)
            read_gpu(nvml, device, &report->gpus[report->gpu_count++]);
    }
}

void rk_nvml_read(const char *library, struct rk_nvml_report *report) {
    *report = (struct rk_nvml_report){0};
    void *opened = dlopen(library != NULL ? library : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (opened == NULL) {
        snprintf(report->reason, sizeof report->reason, "no NVIDIA driver library was found");
        return;
    }
    struct nvml nvml;
    if (!load(opened, &nvml)) {
        snprintf(report->reason, sizeof report->reason, "the NVIDIA driver library is too old");
        goto close_library;
    }
    nvml_result result = nvml.init();
    if (result != NVML_SUCCESS) {
        report->mismatch = result == NVML_LIB_RM_VERSION_MISMATCH;
        snprintf(report->reason, sizeof report->reason, "NVIDIA's management library does not start (NVML error %d)%s",
                 result, report->mismatch ? ": it is of another version than the kernel module" : "");
        goto close_library;
    }
    report->loaded = true;
    read_all(&nvml, report);
    nvml.shutdown();
close_library:
    dlclose(opened);
}

/* A management library with two GPUs of which FAKE_NVML chooses the state: "" well, "mismatch", "busy", "slowed". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
typedef struct nvml_device_handle *device;
struct nvml_device_handle {
    int index;
};
struct memory {
    unsigned long long total, free, used;
};
struct utilisation {
    unsigned int gpu, memory;
};

static struct nvml_device_handle devices[2] = {{0}, {1}};

static int state_is(const char *name) {
    const char *state = getenv("FAKE_NVML");
    return state != NULL && strcmp(state, name) == 0;
}

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned int size);
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version);
EXPORT int nvmlDeviceGetCount_v2(unsigned int *count);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device *out);
EXPORT int nvmlDeviceGetName(device gpu, char *text, unsigned int size);
EXPORT int nvmlDeviceGetUUID(device gpu, char *text, unsigned int size);
EXPORT int nvmlDeviceGetMemoryInfo(device gpu, struct memory *memory);
EXPORT int nvmlDeviceGetPowerManagementLimit(device gpu, unsigned int *milliwatts);
EXPORT int nvmlDeviceGetUtilizationRates(device gpu, struct utilisation *rates);
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, unsigned long long *reasons);

int nvmlInit_v2(void) {
    return state_is("mismatch") ? 18 : 0;
}
int nvmlShutdown(void) {
    return 0;
}
int nvmlSystemGetDriverVersion(char *text, unsigned int size) {
    snprintf(text, size, "580.65.06");
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = 2;
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device *out) {
    *out = &devices[index];
    return 0;
}
int nvmlDeviceGetName(device gpu, char *text, unsigned int size) {
    (void)gpu;
    snprintf(text, size, "NVIDIA Test");
    return 0;
}
int nvmlDeviceGetUUID(device gpu, char *text, unsigned int size) {
    snprintf(text, size, "GPU-%d", gpu->index);
    return 0;
}
int nvmlDeviceGetMemoryInfo(device gpu, struct memory *memory) {
    (void)gpu;
    *memory = (struct memory){1ULL << 37, 1ULL << 36, 1ULL << 36};
    return 0;
}
int nvmlDeviceGetPowerManagementLimit(device gpu, unsigned int *milliwatts) {
    *milliwatts = gpu->index == 1 && state_is("power") ? 500000 : 700000;
    return 0;
}
int nvmlDeviceGetUtilizationRates(device gpu, struct utilisation *rates) {
    *rates = (struct utilisation){gpu->index == 1 && state_is("busy") ? 97 : 0, 0};
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, unsigned long long *reasons) {
    *reasons = gpu->index == 0 && state_is("slowed") ? 0x40 : 0x1;
    return 0;
}

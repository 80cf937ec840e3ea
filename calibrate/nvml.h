/* What NVIDIA's management library says of the GPUs. The library is opened at run time: nothing here needs CUDA. */
#ifndef RK_CALIBRATE_NVML_H
#define RK_CALIBRATE_NVML_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { RK_NVML_GPUS_MAX = 64 };

/* Integers are -1 where the driver does not say. */
struct rk_nvml_gpu {
    char name[96];
    char uuid[96];
    char bus[32]; /* "00000000:18:00.0" */
    int64_t memory_bytes, memory_used_bytes;
    int64_t power_limit_milliwatts, power_milliwatts;
    int64_t temperature_celsius;
    int64_t clock_mhz, clock_maximum_mhz; /* of the multiprocessors */
    int64_t utilisation_percent;          /* busy share of the last sampling period */
    int64_t throttle_reasons;             /* NVML's bit mask */
    int64_t processes;                    /* that have a compute context */
    bool persistence;
    bool partitioned; /* MIG is on */
};

struct rk_nvml_report {
    bool loaded;      /* the library was found and started */
    char reason[256]; /* why not */
    bool mismatch;    /* the library and the kernel module are of different versions */
    char driver[64];  /* "580.65.06" */
    char cuda[16];    /* highest CUDA version of the driver: "13.0" */
    int64_t gpu_count;
    struct rk_nvml_gpu gpus[RK_NVML_GPUS_MAX];
};

/* NVML's bits of throttle_reasons that mean a slowed GPU: hardware slow-down, thermal limits, power brake. The software
 * power cap is apart: under full load a GPU is at it by design. */
enum { RK_NVML_THROTTLE_SLOWED = 0x8 | 0x20 | 0x40 | 0x80, RK_NVML_THROTTLE_POWER_CAP = 0x4 };

/* library: "libnvidia-ml.so.1" when NULL. Never fails: what went wrong is in the report. */
void rk_nvml_read(const char *library, struct rk_nvml_report *report);

#endif

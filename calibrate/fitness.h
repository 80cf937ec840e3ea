/* Is this machine fit to be measured and trained on? One table of checks, for `reckon doctor` and before a calibration.
 *
 * Facts are gathered once; checks are pure functions of them, so that tests can show a check any machine. */
#ifndef RK_CALIBRATE_FITNESS_H
#define RK_CALIBRATE_FITNESS_H

#include "base/host.h"
#include "base/status.h"
#include "calibrate/nvml.h"

#include <stddef.h>

enum rk_finding_level {
    RK_FINDING_GOOD,
    RK_FINDING_NOTE,    /* worth knowing, changes nothing */
    RK_FINDING_WARNING, /* figures may be off; the text says how */
    RK_FINDING_UNFIT    /* figures would be wrong or useless */
};
/* "good", "note", "warning", "unfit". */
const char *rk_finding_level_name(enum rk_finding_level level);

/* What the checks look at. */
struct rk_machine_facts {
    struct rk_host_facts host;
    struct rk_host_activity activity;
    struct rk_nvml_report gpus;
    struct rk_file_system database, spill, shared_memory;
    bool cuda_built;             /* this program has the CUDA back end */
    char gpu_module_reason[256]; /* why the GPU module does not load; empty when it does or was not tried */
    bool nccl_built;             /* the module has the transport for several GPUs */
};

/* Gathers all facts, watching the machine for `seconds`. spill_folder NULL: /var/tmp. */
enum rk_status rk_machine_facts_read(const char *database, const char *spill_folder, double seconds,
                                     struct rk_machine_facts *facts, struct rk_error *error);

struct rk_finding {
    enum rk_finding_level level;
    const char *check; /* "processors"; static */
    char text[320];    /* what was found */
    char remedy[320];  /* what to do; empty when there is nothing to do */
};

enum { RK_FINDINGS_MAX = 64 };
struct rk_fitness {
    struct rk_finding findings[RK_FINDINGS_MAX];
    size_t count;
    enum rk_finding_level worst;
};

void rk_fitness_check(const struct rk_machine_facts *facts, struct rk_fitness *fitness);

/* RK_OK, or RK_HARDWARE_UNFIT with the first reason and its remedy. */
enum rk_status rk_fitness_status(const struct rk_fitness *fitness, struct rk_error *error);

#endif

/* Who this machine is, in the rows of the data base, and what it offers to a plan before anything was measured. */
#ifndef RK_CALIBRATE_IDENTITY_H
#define RK_CALIBRATE_IDENTITY_H

#include "db/machine.h"
#include "kernels/kernels.h"
#include "model/cost.h"

enum { RK_IDENTITY_GPUS_MAX = 16 };

struct rk_identity {
    struct rk_machine_identity machine; /* gpus points into gpus below: do not copy the struct */
    struct rk_gpu_row gpus[RK_IDENTITY_GPUS_MAX];
    char machine_key[RK_MACHINE_KEY_SIZE], fingerprint[RK_MACHINE_KEY_SIZE];
};

/* Reads processors, memory, kernel and library versions of this host, and its GPUs when backend is CUDA. Cores are
 * those that this process may use (affinity and control-group quota). No GPU is opened: every rank of a host asks.
 * version, git_revision: of this program. RK_HARDWARE_UNFIT when the back end has no device. */
enum rk_status rk_identity_read(const struct rk_backend *backend, const char *version, const char *git_revision,
                                struct rk_identity *identity, struct rk_error *error);

/* The machine as a plan for `ranks` ranks on this host sees it, figures apart (rk_machine_figures fills them): devices,
 * memory of one rank, whether devices are shared and streams take turns. On CPUs a rank may use an equal part of 80 %
 * of the memory; the offload pool is storage: free bytes of the spill folder in equal parts. */
void rk_identity_machine(const struct rk_identity *identity, const struct rk_backend *backend, int64_t ranks,
                         const char *spill_folder, struct rk_machine *machine);

#endif

/* Slurm's compressed host lists: "n[01-03,7],login1", "rack[1-2]n[08-11]". */
#ifndef RK_EXECUTOR_LAUNCH_SLURM_H
#define RK_EXECUTOR_LAUNCH_SLURM_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { RK_SLURM_HOSTS_MAX = 1 << 20 };

/* The host at an index of the list, in Slurm's order (the last range varies fastest, leading zeros are kept), and the
 * number of hosts. RK_USAGE for anything that is not such a list, for an index past its end, for more than
 * RK_SLURM_HOSTS_MAX hosts and for a name that does not fit; the error shows where in the list. */
enum rk_status rk_slurm_host(const char *list, int64_t index, char *host, size_t size, int64_t *count,
                             struct rk_error *error);

#endif

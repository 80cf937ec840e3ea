/* Launch: who am I among how many, and the one small TCP exchange in which ranks meet. */
#ifndef RK_EXECUTOR_LAUNCH_H
#define RK_EXECUTOR_LAUNCH_H

#include "base/log.h"
#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Where a process learned its place. Order of discovery: flags, torchrun, Open MPI, PMIx, PMI, Slurm, single. */
enum rk_launcher {
    RK_LAUNCHER_FLAGS, RK_LAUNCHER_TORCHRUN, RK_LAUNCHER_OPENMPI, RK_LAUNCHER_PMIX, RK_LAUNCHER_PMI, RK_LAUNCHER_SLURM,
    RK_LAUNCHER_SINGLE, RK_LAUNCHER_COUNT
};
const char *rk_launcher_name(enum rk_launcher launcher);

struct rk_place {
    enum rk_launcher launcher;
    int64_t rank, world;
    int64_t local_rank, local_world; /* local_world 0 when the launcher does not say */
    char master[256];                /* host name or address of the exchange */
    int32_t port;                    /* of the exchange; 0 only when world is 1 or listener is given */
    int32_t listener;                /* rank 0 of a local run: listening socket handed down by the parent; 0: none */
    char token[128];                 /* what the ranks of a job share and strangers do not know, or empty */
};

/* Flags that were given (rank < 0, world <= 0: not given). Two sources that disagree are refused (RK_USAGE) with both
 * named: a launcher that says more than one while another says that the world is one, too. Allowed is a launcher that
 * has started the daemons of another, one on each node (srun torchrun). RK_LAUNCHER_SINGLE: nobody has started more
 * than this process, which may start ranks of its own. */
enum rk_status rk_launch_discover(int64_t flag_rank, int64_t flag_world, const char *flag_master, int32_t flag_port,
                                  struct rk_place *place, struct rk_error *error);

/* A rank that has met its peers. */
struct rk_peer {
    char host[128];
    int64_t local_rank;
    int64_t process;
    char device[64];    /* UUID or empty */
};

struct rk_job {
    struct rk_place place;
    struct rk_peer *peers;   /* world of them; owned */
    uint64_t nonce;          /* equal on all ranks, different for every job: names shared memory, refuses strangers */
    bool one_host;
    double deadline_seconds; /* of every wait */
    struct rk_exchange *exchange; /* the open TCP exchange; owned */
};

/* Ranks meet: rank 0 listens (IPv6 and IPv4), the others connect with retries until the deadline. Checked for all: the
 * job's token (NULL: the place's own), program version, world size, a digest of what all must agree on (the plan's
 * bytes); two ranks on one GPU are refused. A stranger's connection is dropped without harm. Missing ranks are named
 * (RK_RANK_FAILED). A disagreement is RK_USAGE and told to every rank. Of *self the device is used; the host and the
 * process are found out when they are empty. The job's place has local_rank and local_world filled in from the hosts
 * when the launcher did not say. */
enum rk_status rk_launch_meet(const struct rk_place *place, const char *job_token, const uint8_t agreement[32],
                              const struct rk_peer *self, double deadline_seconds, struct rk_job **job,
                              struct rk_error *error);
void rk_job_free(struct rk_job *job);

/* Small collectives over the exchange, outside steps: all ranks contribute bytes and get all contributions in rank
 * order (all has world · bytes). RK_RANK_FAILED names the ranks that did not come within the job's deadline. */
enum rk_status rk_job_all_gather(const struct rk_job *job, const void *mine, int64_t bytes, void *all,
                                 struct rk_error *error);
enum rk_status rk_job_barrier(const struct rk_job *job, struct rk_error *error);
/* True when a peer's connection is gone: its rank in *rank. Never blocks. */
bool rk_job_lost_peer(const struct rk_job *job, int64_t *rank);

/* `run --nproc N`: starts N local ranks of this program with the given arguments (all of argv, ending in NULL) and the
 * torchrun variables, waits, forwards signals, and when one fails ends the others within the grace period. Rank 0 has
 * this process's output; what the others write goes to the log's stream (standard error without a log), each line with
 * its rank before it. RK_OK when all end well; when all end with one and the same status, that status; RK_INTERRUPTED
 * after a forwarded SIGINT, SIGTERM or SIGHUP; else RK_RANK_FAILED. The rank that failed first and how it ended are in the
 * error. */
enum rk_status rk_launch_local(int64_t nproc, char *const *arguments, const struct rk_log *log, double grace_seconds,
                               struct rk_error *error);

#endif

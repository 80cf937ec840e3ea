/* What the operating system says of this host: processors, memory, limits, load, file systems.
 *
 * `root` is put before every path below /proc, /sys and /etc ("" for the running system; tests give a folder). What the
 * system does not say is empty, -1 or NaN. */
#ifndef RK_BASE_HOST_H
#define RK_BASE_HOST_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct rk_host_facts {
    char hostname[128];
    char operating_system[128]; /* "Debian GNU/Linux 12 (bookworm)" */
    char kernel[128];           /* "Linux 6.1.0" */
    char architecture[32];      /* "x86_64" */
    char processor[128];        /* "AMD EPYC 9655" */
    int64_t sockets, numa_nodes;
    int64_t cores;           /* physical, of the host */
    int64_t threads;         /* hardware threads online, of the host */
    int64_t allowed_threads; /* that this process may run on (affinity) */
    double quota;            /* processors that the control groups grant on average; NaN without a limit */
    int64_t memory_bytes, memory_available_bytes;
    int64_t memory_limit_bytes; /* smallest limit of the control groups, -1 without */
    int64_t memory_limit_used_bytes;
    double load_average; /* of the last minute */
    char governor[32];   /* of frequency scaling; empty where the system does not control it */
    bool virtual_machine;
};

void rk_host_read(const char *root, struct rk_host_facts *facts);

/* Numbers of the processors that this process may run on: "0-7,16". Cut after a whole range, with "...", when it does
 * not fit; empty when the system does not say. */
void rk_host_processor_list(char *text, size_t size);

/* Processors that this process can keep busy: the smaller of affinity and quota, at least 1, rounded down. */
int64_t rk_host_usable_processors(const struct rk_host_facts *facts);
/* Memory that this process may use in all: physical, or the control group's limit when that is smaller. */
int64_t rk_host_usable_memory(const struct rk_host_facts *facts);

enum { RK_HOST_HEAVY_MAX = 5 };

/* What others did while this process looked on. Processors are averages: 1.5 is one and a half busy threads. */
struct rk_host_activity {
    double busy_processors;   /* used by others on the threads that this process may run on; NaN when unknown */
    double stolen_processors; /* wanted but given away by the hypervisor; NaN when unknown */
    struct rk_host_process {
        int64_t process;
        char name[64];
        double processors;
    } heavy[RK_HOST_HEAVY_MAX]; /* visible processes above 0.05 processors, heaviest first */
    int64_t heavy_count;
};

/* Watches for `seconds`, sleeping. RK_ERROR when memory runs out. */
enum rk_status rk_host_observe(double seconds, struct rk_host_activity *activity, struct rk_error *error);

struct rk_file_system {
    char folder[256];   /* the nearest folder of the path that exists */
    char type[32];      /* "ext4", "nfs", "overlay"; "0x..." when unknown */
    bool network;       /* shared between hosts, or unknown to be local */
    bool memory;        /* tmpfs, ramfs: what is written there takes memory */
    int64_t free_bytes; /* for this user */
    bool writable;
};

/* True for file systems of one host, on which locks and shared memory work between processes (a statfs type). Unknown
 * ones count as shared between hosts. */
bool rk_file_system_is_local(int64_t type);

/* Of a file or folder that need not exist yet. */
void rk_host_file_system(const char *path, struct rk_file_system *file_system);

#endif

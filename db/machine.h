/* Who a machine is: the rows of host, gpu, software, topology and link, and the two keys that tell whether figures of
 * one machine hold for another. */
#ifndef RK_DB_MACHINE_H
#define RK_DB_MACHINE_H

#include "db/database.h"

/* Strings are empty and integers -1, reals NaN, where a fact is unknown. */
struct rk_host_row {
    int64_t id;
    char hostname[256];
    char cpu_model[128];
    int64_t sockets, cores, threads, numa_nodes; /* cores and threads of the whole host that may be used */
    int64_t memory_bytes;
    char kernel[128];
    char operating_system[128];
};

struct rk_gpu_row {
    int64_t id, host_id;
    int64_t ordinal; /* CUDA's, mapped by UUID */
    char uuid[64];
    char name[128];
    char pci_address[32];
    char compute_capability[16]; /* "9.0" */
    char partition[64];          /* MIG profile, or empty */
    int64_t memory_bytes, multiprocessors, l2_bytes, numa_node;
    double power_limit_watts, clock_maximum_hz;
};

/* Versions; empty where absent. */
struct rk_software_row {
    int64_t id;
    char reckon[64], compiler[64], driver[64], cuda[64], nccl[64], cudnn[64], blas[64];
};

struct rk_topology_row {
    int64_t id;
    int64_t hosts, devices_per_host;
    char summary[256]; /* "1 host, 8 GPUs, NVLink all to all, 4 rails" */
};

struct rk_link_row {
    int64_t id, topology_id;
    char source[32], destination[32]; /* "gpu0", "cpu0", "nic1" */
    char kind[32];                    /* "nvlink", "pcie", "numa", "network", "unknown" */
    int64_t lanes;
    double specification_bytes_per_second;
};

/* A machine as its parts. The arrays are the caller's. */
struct rk_machine_identity {
    struct rk_host_row host;
    const struct rk_gpu_row *gpus;
    size_t gpu_count;
    struct rk_software_row software;
    struct rk_topology_row topology;
    const struct rk_link_row *links;
    size_t link_count;
};

enum { RK_MACHINE_KEY_SIZE = 17 };

/* Keys of 16 hexadecimal digits.
 *   machine_key: the hardware as far as it decides speed: processor model and counts; name, memory, partition and power
 *     limit of each GPU; hosts, devices and links. Not the host's name nor its exact memory: containers change them.
 *   fingerprint: machine_key and the versions of everything that computes or moves data. */
void rk_machine_keys(const struct rk_machine_identity *machine, char machine_key[RK_MACHINE_KEY_SIZE],
                     char fingerprint[RK_MACHINE_KEY_SIZE]);

/* Stores the parts that are not there yet and tells their row ids. */
struct rk_machine_ids {
    int64_t host, software, topology;
};
enum rk_status rk_machine_store(struct rk_db *db, const struct rk_machine_identity *machine, struct rk_machine_ids *ids,
                                struct rk_error *error);

enum rk_status rk_host_get(struct rk_db *db, int64_t id, struct rk_host_row *host, struct rk_error *error);
enum rk_status rk_software_get(struct rk_db *db, int64_t id, struct rk_software_row *software, struct rk_error *error);
enum rk_status rk_topology_get(struct rk_db *db, int64_t id, struct rk_topology_row *topology, struct rk_error *error);
/* *gpus is the caller's (free). */
enum rk_status rk_gpu_list(struct rk_db *db, int64_t host_id, struct rk_gpu_row **gpus, size_t *count,
                           struct rk_error *error);

#endif

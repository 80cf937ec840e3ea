#include "db/machine.h"
#include "base/hash.h"
#include "db/internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Identities are SHA-256 over lines "name=value". */
static void add_text(struct rk_sha256 *hash, const char *name, const char *value) {
    rk_sha256_add(hash, name, strlen(name));
    rk_sha256_add(hash, "=", 1);
    rk_sha256_add(hash, value, strlen(value));
    rk_sha256_add(hash, "\n", 1);
}

static void add_integer(struct rk_sha256 *hash, const char *name, int64_t value) {
    char text[24];
    snprintf(text, sizeof(text), "%" PRId64, value);
    add_text(hash, name, text);
}

static void print_key(struct rk_sha256 *hash, char key[RK_MACHINE_KEY_SIZE]) {
    char digits[RK_SHA256_HEX];
    rk_sha256_end_hex(hash, digits);
    memcpy(key, digits, RK_MACHINE_KEY_SIZE - 1);
    key[RK_MACHINE_KEY_SIZE - 1] = '\0';
}

static void hash_links(struct rk_sha256 *hash, const struct rk_machine_identity *machine) {
    add_integer(hash, "hosts", machine->topology.hosts);
    add_integer(hash, "devices per host", machine->topology.devices_per_host);
    for (size_t i = 0; i < machine->link_count; i++) {
        const struct rk_link_row *link = &machine->links[i];
        add_text(hash, "from", link->source);
        add_text(hash, "to", link->destination);
        add_text(hash, "kind", link->kind);
        add_integer(hash, "lanes", link->lanes);
    }
}

static void hash_software(struct rk_sha256 *hash, const struct rk_software_row *software) {
    add_text(hash, "reckon", software->reckon);
    add_text(hash, "compiler", software->compiler);
    add_text(hash, "driver", software->driver);
    add_text(hash, "cuda", software->cuda);
    add_text(hash, "nccl", software->nccl);
    add_text(hash, "cudnn", software->cudnn);
    add_text(hash, "blas", software->blas);
}

static int64_t whole_watts(double watts) {
    return isfinite(watts) && fabs(watts) < 1e9 ? llround(watts) : -1;
}

void rk_machine_keys(const struct rk_machine_identity *machine, char machine_key[RK_MACHINE_KEY_SIZE],
                     char fingerprint[RK_MACHINE_KEY_SIZE]) {
    const struct rk_host_row *host = &machine->host;
    struct rk_sha256 hash;
    rk_sha256_begin(&hash);
    add_text(&hash, "cpu", host->cpu_model);
    add_integer(&hash, "sockets", host->sockets);
    add_integer(&hash, "cores", host->cores);
    add_integer(&hash, "threads", host->threads);
    add_integer(&hash, "numa", host->numa_nodes);
    for (size_t i = 0; i < machine->gpu_count; i++) {
        const struct rk_gpu_row *gpu = &machine->gpus[i];
        add_text(&hash, "gpu", gpu->name);
        add_text(&hash, "partition", gpu->partition);
        add_integer(&hash, "memory", gpu->memory_bytes);
        add_integer(&hash, "watts", whole_watts(gpu->power_limit_watts));
    }
    hash_links(&hash, machine);
    struct rk_sha256 hardware = hash;
    print_key(&hardware, machine_key);
    hash_software(&hash, &machine->software);
    print_key(&hash, fingerprint);
}

/* Of everything in the row and its gpus: a host whose memory or kernel changed is another row. */
static void host_fingerprint(const struct rk_machine_identity *machine, char key[RK_MACHINE_KEY_SIZE]) {
    const struct rk_host_row *host = &machine->host;
    struct rk_sha256 hash;
    rk_sha256_begin(&hash);
    add_text(&hash, "name", host->hostname);
    add_text(&hash, "cpu", host->cpu_model);
    add_integer(&hash, "sockets", host->sockets);
    add_integer(&hash, "cores", host->cores);
    add_integer(&hash, "threads", host->threads);
    add_integer(&hash, "numa", host->numa_nodes);
    add_integer(&hash, "memory", host->memory_bytes);
    add_text(&hash, "kernel", host->kernel);
    add_text(&hash, "system", host->operating_system);
    for (size_t i = 0; i < machine->gpu_count; i++) {
        const struct rk_gpu_row *gpu = &machine->gpus[i];
        add_integer(&hash, "ordinal", gpu->ordinal);
        add_text(&hash, "uuid", gpu->uuid);
        add_text(&hash, "gpu", gpu->name);
        add_text(&hash, "pci", gpu->pci_address);
        add_text(&hash, "capability", gpu->compute_capability);
        add_text(&hash, "partition", gpu->partition);
        add_integer(&hash, "memory", gpu->memory_bytes);
        add_integer(&hash, "watts", whole_watts(gpu->power_limit_watts));
    }
    print_key(&hash, key);
}

/* Finds the row of table with that fingerprint; 0 when there is none. */
static enum rk_status find(struct rk_db *db, const char *sql, const char *fingerprint, int64_t *id,
                           struct rk_error *error) {
    struct rk_query query;
    enum rk_status status = rk_query_open(db, sql, "looking for the machine", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_text(&query, fingerprint);
    return rk_query_find(&query, id, error);
}

static enum rk_status insert_gpus(struct rk_db *db, const struct rk_machine_identity *machine, int64_t host_id,
                                  struct rk_error *error) {
    static const char sql[] =
        "INSERT INTO gpu (host_id, ordinal, uuid, name, pci_address, compute_capability, partition,"
        " memory_bytes, multiprocessors, l2_bytes, numa_node, power_limit_watts, clock_maximum_hz)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    enum rk_status status = RK_OK;
    for (size_t i = 0; status == RK_OK && i < machine->gpu_count; i++) {
        const struct rk_gpu_row *gpu = &machine->gpus[i];
        struct rk_query query;
        status = rk_query_open(db, sql, "storing a GPU", &query, error);
        if (status != RK_OK) {
            break;
        }
        rk_bind_integer(&query, host_id);
        rk_bind_integer(&query, gpu->ordinal);
        rk_bind_text(&query, gpu->uuid);
        rk_bind_text(&query, gpu->name);
        rk_bind_text(&query, gpu->pci_address);
        rk_bind_text(&query, gpu->compute_capability);
        rk_bind_text(&query, gpu->partition);
        rk_bind_known(&query, gpu->memory_bytes);
        rk_bind_known(&query, gpu->multiprocessors);
        rk_bind_known(&query, gpu->l2_bytes);
        rk_bind_known(&query, gpu->numa_node);
        rk_bind_real(&query, gpu->power_limit_watts);
        rk_bind_real(&query, gpu->clock_maximum_hz);
        status = rk_query_run(&query, error);
        rk_query_close(&query);
    }
    return status;
}

static enum rk_status store_host(struct rk_db *db, const struct rk_machine_identity *machine, int64_t *id,
                                 struct rk_error *error) {
    static const char sql[] = "INSERT INTO host (fingerprint, hostname, cpu_model, sockets, cores, threads, numa_nodes,"
                              " memory_bytes, kernel, operating_system) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    const struct rk_host_row *host = &machine->host;
    char key[RK_MACHINE_KEY_SIZE];
    host_fingerprint(machine, key);
    enum rk_status status = find(db, "SELECT id FROM host WHERE fingerprint = ?", key, id, error);
    if (status != RK_OK || *id != 0) {
        return status;
    }
    struct rk_query query;
    status = rk_query_open(db, sql, "storing the host", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_text(&query, key);
    rk_bind_text(&query, host->hostname);
    rk_bind_text(&query, host->cpu_model);
    rk_bind_known(&query, host->sockets);
    rk_bind_known(&query, host->cores);
    rk_bind_known(&query, host->threads);
    rk_bind_known(&query, host->numa_nodes);
    rk_bind_known(&query, host->memory_bytes);
    rk_bind_text(&query, host->kernel);
    rk_bind_text(&query, host->operating_system);
    status = rk_query_insert(&query, id, error);
    return status == RK_OK ? insert_gpus(db, machine, *id, error) : status;
}

static enum rk_status store_software(struct rk_db *db, const struct rk_software_row *software, int64_t *id,
                                     struct rk_error *error) {
    static const char sql[] = "INSERT INTO software (fingerprint, reckon, compiler, driver, cuda, nccl, cudnn, blas)"
                              " VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    char key[RK_MACHINE_KEY_SIZE];
    struct rk_sha256 hash;
    rk_sha256_begin(&hash);
    hash_software(&hash, software);
    print_key(&hash, key);
    enum rk_status status = find(db, "SELECT id FROM software WHERE fingerprint = ?", key, id, error);
    if (status != RK_OK || *id != 0) {
        return status;
    }
    struct rk_query query;
    status = rk_query_open(db, sql, "storing the software versions", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_text(&query, key);
    rk_bind_text(&query, software->reckon);
    rk_bind_text(&query, software->compiler);
    rk_bind_text(&query, software->driver);
    rk_bind_text(&query, software->cuda);
    rk_bind_text(&query, software->nccl);
    rk_bind_text(&query, software->cudnn);
    rk_bind_text(&query, software->blas);
    status = rk_query_insert(&query, id, error);
    return status;
}

static enum rk_status insert_links(struct rk_db *db, const struct rk_machine_identity *machine, int64_t topology_id,
                                   struct rk_error *error) {
    static const char sql[] = "INSERT INTO link (topology_id, source, destination, kind, lanes,"
                              " specification_bytes_per_second) VALUES (?, ?, ?, ?, ?, ?)";
    enum rk_status status = RK_OK;
    for (size_t i = 0; status == RK_OK && i < machine->link_count; i++) {
        const struct rk_link_row *link = &machine->links[i];
        struct rk_query query;
        status = rk_query_open(db, sql, "storing a link", &query, error);
        if (status != RK_OK) {
            break;
        }
        rk_bind_integer(&query, topology_id);
        rk_bind_text(&query, link->source);
        rk_bind_text(&query, link->destination);
        rk_bind_text(&query, link->kind);
        rk_bind_known(&query, link->lanes);
        rk_bind_real(&query, link->specification_bytes_per_second);
        status = rk_query_run(&query, error);
        rk_query_close(&query);
    }
    return status;
}

static enum rk_status store_topology(struct rk_db *db, const struct rk_machine_identity *machine, int64_t *id,
                                     struct rk_error *error) {
    static const char sql[] =
        "INSERT INTO topology (fingerprint, hosts, devices_per_host, summary) VALUES (?, ?, ?, ?)";
    char key[RK_MACHINE_KEY_SIZE];
    struct rk_sha256 hash;
    rk_sha256_begin(&hash);
    hash_links(&hash, machine);
    add_text(&hash, "summary", machine->topology.summary);
    print_key(&hash, key);
    enum rk_status status = find(db, "SELECT id FROM topology WHERE fingerprint = ?", key, id, error);
    if (status != RK_OK || *id != 0) {
        return status;
    }
    struct rk_query query;
    status = rk_query_open(db, sql, "storing the topology", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_text(&query, key);
    rk_bind_integer(&query, machine->topology.hosts);
    rk_bind_integer(&query, machine->topology.devices_per_host);
    rk_bind_text(&query, machine->topology.summary);
    status = rk_query_insert(&query, id, error);
    return status == RK_OK ? insert_links(db, machine, *id, error) : status;
}

enum rk_status rk_machine_store(struct rk_db *db, const struct rk_machine_identity *machine, struct rk_machine_ids *ids,
                                struct rk_error *error) {
    struct rk_machine_ids found = {0, 0, 0};
    enum rk_status status = rk_db_begin(db, error);
    if (status != RK_OK) {
        return status;
    }
    status = store_host(db, machine, &found.host, error);
    if (status == RK_OK) {
        status = store_software(db, &machine->software, &found.software, error);
    }
    if (status == RK_OK) {
        status = store_topology(db, machine, &found.topology, error);
    }
    status = rk_db_end(db, status, error);
    if (status == RK_OK) {
        *ids = found;
    }
    return status;
}

/* Opens a query for one row by id and steps to it. */
static enum rk_status open_row(struct rk_db *db, const char *sql, const char *what, int64_t id, struct rk_query *query,
                               struct rk_error *error) {
    enum rk_status status = rk_query_open(db, sql, "reading the machine", query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(query, id);
    return rk_query_only(query, what, id, error);
}

enum rk_status rk_host_get(struct rk_db *db, int64_t id, struct rk_host_row *host, struct rk_error *error) {
    static const char sql[] =
        "SELECT id, hostname, cpu_model, sockets, cores, threads, numa_nodes, memory_bytes, kernel,"
        " operating_system FROM host WHERE id = ?";
    struct rk_query query;
    enum rk_status status = open_row(db, sql, "host", id, &query, error);
    if (status != RK_OK) {
        return status;
    }
    host->id = rk_read_integer(&query);
    rk_read_text(&query, host->hostname, sizeof(host->hostname));
    rk_read_text(&query, host->cpu_model, sizeof(host->cpu_model));
    host->sockets = rk_read_known(&query);
    host->cores = rk_read_known(&query);
    host->threads = rk_read_known(&query);
    host->numa_nodes = rk_read_known(&query);
    host->memory_bytes = rk_read_known(&query);
    rk_read_text(&query, host->kernel, sizeof(host->kernel));
    rk_read_text(&query, host->operating_system, sizeof(host->operating_system));
    rk_query_close(&query);
    return RK_OK;
}

enum rk_status rk_software_get(struct rk_db *db, int64_t id, struct rk_software_row *software, struct rk_error *error) {
    static const char sql[] = "SELECT id, reckon, compiler, driver, cuda, nccl, cudnn, blas FROM software WHERE id = ?";
    struct rk_query query;
    enum rk_status status = open_row(db, sql, "software", id, &query, error);
    if (status != RK_OK) {
        return status;
    }
    software->id = rk_read_integer(&query);
    char *const texts[] = {software->reckon, software->compiler, software->driver, software->cuda,
                           software->nccl,   software->cudnn,    software->blas};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        rk_read_text(&query, texts[i], sizeof(software->reckon));
    }
    rk_query_close(&query);
    return RK_OK;
}

enum rk_status rk_topology_get(struct rk_db *db, int64_t id, struct rk_topology_row *topology, struct rk_error *error) {
    struct rk_query query;
    enum rk_status status = open_row(db, "SELECT id, hosts, devices_per_host, summary FROM topology WHERE id = ?",
                                     "topology", id, &query, error);
    if (status != RK_OK) {
        return status;
    }
    topology->id = rk_read_integer(&query);
    topology->hosts = rk_read_integer(&query);
    topology->devices_per_host = rk_read_integer(&query);
    rk_read_text(&query, topology->summary, sizeof(topology->summary));
    rk_query_close(&query);
    return RK_OK;
}

static bool read_gpu(struct rk_query *query, void *row) {
    struct rk_gpu_row *gpu = row;
    gpu->id = rk_read_integer(query);
    gpu->host_id = rk_read_integer(query);
    gpu->ordinal = rk_read_integer(query);
    rk_read_text(query, gpu->uuid, sizeof(gpu->uuid));
    rk_read_text(query, gpu->name, sizeof(gpu->name));
    rk_read_text(query, gpu->pci_address, sizeof(gpu->pci_address));
    rk_read_text(query, gpu->compute_capability, sizeof(gpu->compute_capability));
    rk_read_text(query, gpu->partition, sizeof(gpu->partition));
    gpu->memory_bytes = rk_read_known(query);
    gpu->multiprocessors = rk_read_known(query);
    gpu->l2_bytes = rk_read_known(query);
    gpu->numa_node = rk_read_known(query);
    gpu->power_limit_watts = rk_read_real(query);
    gpu->clock_maximum_hz = rk_read_real(query);
    return true;
}

enum rk_status rk_gpu_list(struct rk_db *db, int64_t host_id, struct rk_gpu_row **gpus, size_t *count,
                           struct rk_error *error) {
    static const char sql[] = "SELECT id, host_id, ordinal, uuid, name, pci_address, compute_capability, partition,"
                              " memory_bytes, multiprocessors, l2_bytes, numa_node, power_limit_watts, clock_maximum_hz"
                              " FROM gpu WHERE host_id = ? ORDER BY ordinal";
    void *rows = NULL;
    enum rk_status status =
        rk_query_children(db, sql, "reading the GPUs", host_id, sizeof(**gpus), read_gpu, &rows, count, error);
    if (status == RK_OK) {
        *gpus = rows;
    }
    return status;
}

/* The region: made by rank 0 as an anonymous file, mapped by all. It has no name, so nothing is left behind by a crash,
 * and it does not depend on the size of /dev/shm, which containers keep small. */
#include "executor/transport_shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

struct rk_shm_header *rk_shm_header(const struct rk_transport *transport) {
    return (struct rk_shm_header *)(void *)transport->region;
}

struct rk_shm_rank *rk_shm_rank(const struct rk_transport *transport, int64_t rank) {
    return (struct rk_shm_rank *)(void *)(transport->region + transport->ranks_offset) + rank;
}

char *rk_shm_ring(const struct rk_transport *transport, int64_t rank, enum rk_shm_link link) {
    size_t ring = (size_t)rank * RK_SHM_LINK_COUNT + (size_t)link;
    return transport->region + transport->rings_offset + ring * (size_t)transport->ring_bytes;
}

/* Offsets of everything. Pages that are never touched cost nothing, so buffers are not shared between group kinds. */
static void lay_out(struct rk_transport *transport, const struct rk_shm_needs *needs) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    transport->ranks_offset = round_up(sizeof(struct rk_shm_header), RK_SHM_ALIGN);
    size_t end = transport->ranks_offset + sizeof(struct rk_shm_rank) * (size_t)transport->world;
    size_t stride = 0;
    for (int kind = 0; kind < RK_GROUP_COUNT; kind++) {
        size_t bytes = sizeof(struct rk_shm_published) + (size_t)needs->publish_bytes[kind];
        transport->publish_bytes[kind] = needs->publish_bytes[kind] > 0 ? (int64_t)round_up(bytes, page) : 0;
        transport->publish_offset[kind] = round_up(end, page) + stride;
        stride += 2 * (size_t)transport->publish_bytes[kind];
    }
    transport->publish_stride = stride;
    transport->rings_offset = round_up(end, page) + stride * (size_t)transport->world;
    /* Sixteen bytes before each message say its length. */
    size_t ring = needs->message_bytes > 0 ? (size_t)needs->messages * ((size_t)needs->message_bytes + 16) : 0;
    transport->ring_bytes = (int64_t)round_up(ring, page);
    transport->region_bytes =
        transport->rings_offset + RK_SHM_LINK_COUNT * (size_t)transport->world * (size_t)transport->ring_bytes;
}

static enum rk_status make_file(const struct rk_transport *transport, int *file, struct rk_error *error) {
    char name[64];
    snprintf(name, sizeof name, "reckon-%016llx", (unsigned long long)transport->job->nonce);
    int descriptor = memfd_create(name, MFD_CLOEXEC);
    if (descriptor < 0)
        return rk_fail(error, RK_ERROR, "shared memory of the ranks: %s", strerror(errno));
    if (ftruncate(descriptor, (off_t)transport->region_bytes) != 0) {
        int reason = errno;
        close(descriptor);
        return rk_fail(error, RK_ERROR, "shared memory of the ranks: %zu bytes: %s", transport->region_bytes,
                       strerror(reason));
    }
    *file = descriptor;
    return RK_OK;
}

static enum rk_status map_file(struct rk_transport *transport, int file, struct rk_error *error) {
    void *address = mmap(NULL, transport->region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (address == MAP_FAILED)
        return rk_fail(error, RK_ERROR, "shared memory of the ranks: mapping %zu bytes: %s", transport->region_bytes,
                       strerror(errno));
    transport->region = address;
    return RK_OK;
}

/* What rank 0 tells the others: how to reach its file. */
struct offer {
    int64_t process;
    int32_t file; /* -1: rank 0 could not make it */
    int32_t failed;
};

static enum rk_status map_offer(struct rk_transport *transport, const struct offer *offer, struct rk_error *error) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)offer->process, offer->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return rk_fail(
            error, RK_ERROR,
            "shared memory of the ranks: %s: %s; the ranks of a CPU run must be processes of one user in one "
            "container of one machine",
            path, strerror(errno));
    off_t size = lseek(file, 0, SEEK_END);
    enum rk_status status = RK_OK;
    if (size != (off_t)transport->region_bytes)
        status = rk_fail(error, RK_ERROR, "shared memory of the ranks: %s is not this job's", path);
    else
        status = map_file(transport, file, error);
    close(file);
    if (status == RK_OK && rk_shm_header(transport)->nonce != transport->job->nonce) {
        rk_shm_region_close(transport);
        status = rk_fail(error, RK_ERROR, "shared memory of the ranks: %s is not this job's", path);
    }
    return status;
}

/* What every rank says; *all is the caller's (free). */
static enum rk_status gather(const struct rk_transport *transport, const void *mine, size_t bytes, void **all,
                             struct rk_error *error) {
    void *made = calloc((size_t)transport->world, bytes);
    if (made == NULL)
        return rk_fail(error, RK_ERROR, "shared memory of the ranks: out of memory for %lld ranks",
                       (long long)transport->world);
    enum rk_status status = rk_job_all_gather(transport->job, mine, (int64_t)bytes, made, error);
    if (status == RK_OK)
        *all = made;
    else
        free(made);
    return status;
}

/* All ranks learn whether all of them have it, so that none goes on alone. Unlike rk_job_agree a lost rank comes before
 * this rank's own failure: it is also why its memory cannot be mapped. */
static enum rk_status agree(struct rk_transport *transport, enum rk_status mine, struct rk_error *error) {
    int32_t status = (int32_t)mine;
    void *all = NULL;
    struct rk_error gather_error = {0};
    enum rk_status agreed = gather(transport, &status, sizeof status, &all, &gather_error);
    if (agreed != RK_OK)
        return rk_fail(error, agreed, "%s", gather_error.text);
    agreed = mine;
    const int32_t *statuses = all;
    for (int64_t rank = 0; rank < transport->world && agreed == RK_OK; rank++) {
        char name[256];
        if (statuses[rank] != RK_OK)
            agreed = rk_fail(error, RK_RANK_FAILED, "%s could not map the shared memory of the ranks; see its message",
                             rk_shm_rank_name(transport, rank, name, sizeof name));
    }
    free(all);
    return agreed;
}

static enum rk_status agree_on_needs(const struct rk_transport *transport, const struct rk_shm_needs *mine,
                                     struct rk_shm_needs *largest, struct rk_error *error) {
    void *gathered = NULL;
    enum rk_status status = gather(transport, mine, sizeof *mine, &gathered, error);
    if (status != RK_OK)
        return status;
    const struct rk_shm_needs *all = gathered;
    *largest = *mine;
    for (int64_t rank = 0; rank < transport->world; rank++) {
        for (int kind = 0; kind < RK_GROUP_COUNT; kind++)
            if (all[rank].publish_bytes[kind] > largest->publish_bytes[kind])
                largest->publish_bytes[kind] = all[rank].publish_bytes[kind];
        if (all[rank].message_bytes > largest->message_bytes)
            largest->message_bytes = all[rank].message_bytes;
        if (all[rank].messages > largest->messages)
            largest->messages = all[rank].messages;
    }
    free(gathered);
    return RK_OK;
}

enum rk_status rk_shm_region_open(struct rk_transport *transport, const struct rk_shm_needs *needs,
                                  struct rk_error *error) {
    struct rk_shm_needs largest;
    enum rk_status status = agree_on_needs(transport, needs, &largest, error);
    if (status != RK_OK)
        return status;
    lay_out(transport, &largest);

    int file = -1;
    struct offer offer = {.process = getpid(), .file = -1};
    if (transport->rank == 0) {
        status = make_file(transport, &file, error);
        if (status == RK_OK)
            status = map_file(transport, file, error);
        if (status == RK_OK)
            rk_shm_header(transport)->nonce = transport->job->nonce;
        offer.file = file;
        offer.failed = status != RK_OK;
    }
    void *offers = NULL;
    struct rk_error gather_error = {0};
    enum rk_status gathered = gather(transport, &offer, sizeof offer, &offers, &gather_error);
    if (status == RK_OK && gathered != RK_OK)
        status = rk_fail(error, gathered, "%s", gather_error.text);
    const struct offer *first = offers; /* what rank 0 offers */
    if (status == RK_OK && transport->rank != 0 && first->failed == 0)
        status = map_offer(transport, first, error);
    else if (status == RK_OK && transport->rank != 0)
        status =
            rk_fail(error, RK_RANK_FAILED, "rank 0 could not make the shared memory of the ranks; see its message");
    if (gathered == RK_OK)
        status = agree(transport, status, error);
    free(offers);
    if (file >= 0)
        close(file);
    if (status != RK_OK)
        rk_shm_region_close(transport);
    return status;
}

void rk_shm_region_close(struct rk_transport *transport) {
    if (transport->region != NULL)
        munmap(transport->region, transport->region_bytes);
    transport->region = NULL;
}

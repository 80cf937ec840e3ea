/* Whether the job can go on, and why not: the host asks while it waits for the device. */
#include "executor/transport_nccl.cuh"

extern "C" {
#include "executor/transport_text.h"
}

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Keeps the failure, stops what waits on the device, and gives the failure back. */
enum rk_status rk_nccl_fail(struct rk_transport *transport, struct rk_error *error, const char *format, ...) {
    char text[sizeof transport->failure.text];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (!transport->failed) {
        transport->failed = 1;
        rk_fail(&transport->failure, RK_RANK_FAILED, "%s", text);
        if (transport->signals)
            transport->signals->stop = 1;
        rk_nccl_groups_abort(transport);
    }
    return rk_fail(error, RK_RANK_FAILED, "%s", transport->failure.text);
}

static enum rk_status rank_is_gone(struct rk_transport *transport, int64_t rank, struct rk_error *error) {
    char name[256], place[256];
    rk_transport_rank_text(transport->job, rank, name, sizeof name);
    rk_transport_place_text(transport->shape, transport->position, place, sizeof place);
    return rk_nccl_fail(transport, error, "%s is gone: its process ended. Rank %lld stood in %s", name,
                        (long long)transport->rank, place);
}

/* The communicators' asynchronous errors; a peer's death shows here too, some time after its process. */
static enum rk_status look_at_communicators(struct rk_transport *transport, struct rk_error *error) {
    ncclComm_t comms[RK_GROUP_COUNT + NCCL_LINK_COUNT];
    int count = 0;
    for (int kind = 0; kind < RK_GROUP_COUNT; kind++)
        comms[count++] = transport->group[kind].comm;
    for (int link = 0; link < NCCL_LINK_COUNT; link++)
        comms[count++] = transport->link[link];
    for (int i = 0; i < count; i++) {
        ncclResult_t state = ncclSuccess;
        if (!comms[i] || (ncclCommGetAsyncError(comms[i], &state) == ncclSuccess &&
                          (state == ncclSuccess || state == ncclInProgress)))
            continue;
        char place[256];
        rk_transport_place_text(transport->shape, transport->position, place, sizeof place);
        return rk_nccl_fail(transport, error, "NCCL: %s (%s). Rank %lld had enqueued up to %s",
                            ncclGetErrorString(state), ncclGetLastError(comms[i]), (long long)transport->rank, place);
    }
    return RK_OK;
}

enum rk_status rk_nccl_look(struct rk_transport *transport, struct rk_error *error) {
    if (transport->failed)
        return rk_fail(error, RK_RANK_FAILED, "%s", transport->failure.text);
    if (transport->gave_up)
        return rk_nccl_fail(transport, error, "rank %lld gave up", (long long)transport->rank);
    for (int64_t rank = 0; transport->processes && rank < transport->world; rank++) {
        struct pollfd process = {transport->processes[rank], POLLIN, 0};
        if (process.fd >= 0 && poll(&process, 1, 0) == 1)
            return rank_is_gone(transport, rank, error);
    }
    int64_t lost = -1;
    if (rk_job_lost_peer(transport->job, &lost))
        return rank_is_gone(transport, lost, error);
    if (transport->signals && transport->signals->missing) {
        const struct nccl_group *group = &transport->group[RK_GROUP_EXPERT_PARALLEL];
        char name[256], place[256];
        rk_transport_rank_text(transport->job, group->ranks[transport->signals->missing - 1], name, sizeof name);
        rk_transport_place_text(transport->shape, transport->position, place, sizeof place);
        return rk_nccl_fail(
            transport, error,
            "%s did not come to an exchange with the experts within %g s. Rank %lld had enqueued up to %s. "
            "If the rank is only slow, raise the deadline",
            name, transport->deadline_seconds, (long long)transport->rank, place);
    }
    return look_at_communicators(transport, error);
}

static enum rk_status watch(void *context, struct rk_error *error) {
    return rk_nccl_look((struct rk_transport *)context, error);
}

enum rk_status rk_nccl_watch_open(struct rk_transport *transport, struct rk_error *error) {
    void *pinned = NULL;
    NCCL_CUDA_TRY(cudaHostAlloc(&pinned, sizeof *transport->signals, cudaHostAllocMapped), "allocating pinned memory");
    transport->signals = (struct nccl_signals *)pinned;
    transport->signals->missing = 0;
    transport->signals->stop = 0;
    transport->processes = (int *)malloc((size_t)transport->world * sizeof *transport->processes);
    if (!transport->processes)
        return rk_fail(error, RK_ERROR, "transport: out of memory");
    const char *here = transport->job->peers[transport->rank].host;
    for (int64_t rank = 0; rank < transport->world; rank++) {
        const struct rk_peer *peer = &transport->job->peers[rank];
        bool local = rank != transport->rank && (transport->job->one_host || !strcmp(peer->host, here));
        /* Where the kernel has no such descriptors the exchange's connections tell of a death. */
        transport->processes[rank] = local ? (int)syscall(SYS_pidfd_open, (pid_t)peer->process, 0) : -1;
    }
    rk_cuda_device_watch(transport->device, watch, transport);
    return RK_OK;
}

void rk_nccl_watch_close(struct rk_transport *transport) {
    rk_cuda_device_watch(transport->device, NULL, NULL);
    for (int64_t rank = 0; transport->processes && rank < transport->world; rank++)
        if (transport->processes[rank] >= 0)
            close(transport->processes[rank]);
    free(transport->processes);
    if (transport->signals)
        cudaFreeHost(transport->signals);
}

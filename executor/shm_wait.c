/* Waiting in the region: futexes between processes, with a deadline, and an eye on the peers' lives. */
#include "base/clock.h"
#include "executor/transport_shm.h"
#include "executor/transport_text.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A sleeper looks around this often: for an abort that came between its look and its sleep, and for dead peers. */
#define SLICE_SECONDS 0.05

static void futex_sleep(_Atomic uint32_t *event, uint32_t seen) {
    struct timespec slice = {.tv_nsec = (long)(SLICE_SECONDS * 1e9)};
    /* Every reason to return (woken, changed, interrupted, time over) is the caller's to find out by looking. */
    syscall(SYS_futex, event, FUTEX_WAIT, seen, &slice, NULL, 0);
}

static void wake(struct rk_shm_word *word) {
    atomic_fetch_add(&word->event, 1);
    if (atomic_load(&word->waiters) > 0)
        syscall(SYS_futex, &word->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void rk_shm_word_set(struct rk_shm_word *word, uint64_t value, bool wake_waiters) {
    atomic_store(&word->value, value);
    if (wake_waiters)
        wake(word);
}

void rk_shm_fail_all(struct rk_transport *transport, enum rk_shm_failure failure, int64_t rank) {
    uint64_t nobody = 0;
    uint64_t record = (uint64_t)failure << 32 | (uint64_t)rank;
    atomic_compare_exchange_strong(&rk_shm_header(transport)->failure, &nobody, record);
    for (int64_t peer = 0; peer < transport->world; peer++) {
        struct rk_shm_rank *block = rk_shm_rank(transport, peer);
        for (int kind = 0; kind < RK_GROUP_COUNT; kind++)
            wake(&block->arrived[kind]);
        for (int link = 0; link < RK_SHM_LINK_COUNT; link++) {
            wake(&block->sent[link]);
            wake(&block->taken[link]);
        }
    }
}

char *rk_shm_rank_name(const struct rk_transport *transport, int64_t rank, char *buffer, size_t size) {
    return rk_transport_rank_text(transport->job, rank, buffer, size);
}

char *rk_shm_place_name(const struct rk_transport *transport, char *buffer, size_t size) {
    return rk_transport_place_text(transport->shape, transport->position, buffer, size);
}

static enum rk_status tell_failure(const struct rk_transport *transport, uint64_t record, struct rk_error *error) {
    enum rk_shm_failure failure = (enum rk_shm_failure)(record >> 32);
    int64_t rank = (int64_t)(record & UINT32_MAX);
    char name[256], place[256];
    rk_shm_rank_name(transport, rank, name, sizeof name);
    rk_shm_place_name(transport, place, sizeof place);
    switch (failure) {
    case RK_SHM_DIED:
        return rk_fail(error, RK_RANK_FAILED, "%s is gone: its process ended. Rank %lld stood in %s", name,
                       (long long)transport->rank, place);
    case RK_SHM_TIMED_OUT:
        return rk_fail(
            error, RK_RANK_FAILED,
            "%s did not come within %g s. Rank %lld stood in %s. If the rank is only slow, raise the deadline", name,
            transport->deadline_seconds, (long long)transport->rank, place);
    case RK_SHM_GAVE_UP:
    case RK_SHM_NO_FAILURE:
        break;
    }
    return rk_fail(error, RK_RANK_FAILED, "%s gave up; its own message says why. Rank %lld stood in %s", name,
                   (long long)transport->rank, place);
}

static bool closed(const struct rk_transport *transport, int64_t rank) {
    return atomic_load(&rk_shm_rank(transport, rank)->closed) != 0;
}

/* A peer that ended without saying so, or that ended in order while it is still waited for. */
static bool find_dead(struct rk_transport *transport, int64_t awaited, int64_t *dead) {
    for (int64_t rank = 0; rank < transport->world; rank++) {
        if (rank == transport->rank || transport->processes[rank] < 0)
            continue;
        struct pollfd process = {.fd = transport->processes[rank], .events = POLLIN};
        if (poll(&process, 1, 0) == 1 && (rank == awaited || !closed(transport, rank))) {
            *dead = rank;
            return true;
        }
    }
    int64_t lost;
    if (rk_job_lost_peer(transport->job, &lost) && (lost == awaited || !closed(transport, lost))) {
        *dead = lost;
        return true;
    }
    return false;
}

/* The rank at the end of the chain: who is waited for by one that is waited for, and does not wait itself. A rank that
 * sleeps although what it waits for has come (it was stopped) does not wait either. */
static int64_t find_culprit(const struct rk_transport *transport, int64_t awaited) {
    int64_t rank = awaited;
    for (int64_t length = 0; length < transport->world; length++) {
        const struct rk_shm_waiting *waiting = &rk_shm_rank(transport, rank)->waiting;
        int64_t next = atomic_load(&waiting->rank) - 1;
        if (next < 0)
            return rank;
        const struct rk_shm_word *word = (const void *)(transport->region + atomic_load(&waiting->word));
        if (atomic_load(&word->value) >= atomic_load(&waiting->target))
            return rank;
        rank = next;
    }
    return awaited; /* a circle: nobody is more at fault than another */
}

/* Looks around once in a slice: RK_SHM_NO_FAILURE, or what is wrong and with whom. */
static enum rk_shm_failure look_around(struct rk_transport *transport, int64_t awaited, double waited,
                                       int64_t *culprit) {
    if (find_dead(transport, awaited, culprit))
        return RK_SHM_DIED;
    if (waited <= transport->deadline_seconds)
        return RK_SHM_NO_FAILURE;
    *culprit = find_culprit(transport, awaited);
    return RK_SHM_TIMED_OUT;
}

static enum rk_status wait_asleep(struct rk_transport *transport, struct rk_shm_word *word, uint64_t target,
                                  rk_shm_missing *missing, int64_t context, struct rk_error *error) {
    struct rk_shm_waiting *waiting = &rk_shm_rank(transport, transport->rank)->waiting;
    atomic_store(&waiting->word, (uint64_t)((char *)word - transport->region));
    atomic_store(&waiting->target, target);
    atomic_store(&waiting->rank, missing(transport, context) + 1);
    double start = rk_clock_seconds(), next_look = start + SLICE_SECONDS;
    for (;;) {
        atomic_fetch_add(&word->waiters, 1);
        uint32_t seen = atomic_load(&word->event);
        bool reached = atomic_load(&word->value) >= target;
        if (!reached && atomic_load(&rk_shm_header(transport)->failure) == 0)
            futex_sleep(&word->event, seen);
        atomic_fetch_sub(&word->waiters, 1);
        if (atomic_load(&word->value) >= target)
            return RK_OK;
        uint64_t record = atomic_load(&rk_shm_header(transport)->failure);
        if (record != 0)
            return tell_failure(transport, record, error);
        double now = rk_clock_seconds();
        if (now < next_look)
            continue;
        next_look = now + SLICE_SECONDS;
        int64_t awaited = missing(transport, context), culprit = -1;
        atomic_store(&waiting->rank, awaited + 1);
        enum rk_shm_failure failure = look_around(transport, awaited, now - start, &culprit);
        /* It may have come just before it ended. */
        if (failure != RK_SHM_NO_FAILURE && atomic_load(&word->value) < target)
            rk_shm_fail_all(transport, failure, culprit);
    }
}

enum rk_status rk_shm_wait(struct rk_transport *transport, struct rk_shm_word *word, uint64_t target,
                           rk_shm_missing *missing, int64_t context, struct rk_error *error) {
    for (int64_t spin = 0; spin <= transport->spins; spin++)
        if (atomic_load_explicit(&word->value, memory_order_acquire) >= target)
            return RK_OK;
    enum rk_status status = wait_asleep(transport, word, target, missing, context, error);
    atomic_store(&rk_shm_rank(transport, transport->rank)->waiting.rank, 0);
    return status;
}

static char *publishing_buffer(const struct rk_transport *transport, enum rk_group_kind kind, int64_t rank,
                               uint64_t round) {
    return transport->region + transport->publish_offset[kind] + (size_t)rank * transport->publish_stride +
           (size_t)(round % 2) * (size_t)transport->publish_bytes[kind];
}

/* Tokens of a micro-batch may differ between the ranks of an exchange (one may have none); the rest may not. */
static uint64_t common_dimensions(const struct rk_op_shape *shape) {
    struct rk_op_shape common = *shape;
    if (shape->kind == RK_OP_DISPATCH || shape->kind == RK_OP_COMBINE)
        common.dim[0] = 0;
    return rk_op_shape_hash(&common);
}

struct rk_shm_published *rk_shm_publish(struct rk_transport *transport, enum rk_group_kind kind) {
    struct rk_shm_published *buffer =
        (void *)publishing_buffer(transport, kind, transport->rank, transport->group[kind].round);
    buffer->kind = transport->shape != NULL ? (uint32_t)transport->shape->kind : RK_OP_KIND_COUNT;
    buffer->dimensions = transport->shape != NULL ? common_dimensions(transport->shape) : 0;
    return buffer;
}

const struct rk_shm_published *rk_shm_published(const struct rk_transport *transport, enum rk_group_kind kind,
                                                int64_t member) {
    const struct rk_shm_group *group = &transport->group[kind];
    return (const void *)publishing_buffer(transport, kind, group->ranks[member], group->round - 1);
}

/* The first member that has not arrived at the round that is being waited for. */
static int64_t missing_member(const struct rk_transport *transport, int64_t context) {
    const struct rk_shm_group *group = &transport->group[context];
    for (int64_t member = 0; member < group->count; member++)
        if (atomic_load(&rk_shm_rank(transport, group->ranks[member])->rounds[context]) <= group->round)
            return group->ranks[member];
    return group->ranks[0];
}

static enum rk_status check_members(struct rk_transport *transport, enum rk_group_kind kind, struct rk_error *error) {
    const struct rk_shm_group *group = &transport->group[kind];
    const struct rk_shm_published *mine = rk_shm_published(transport, kind, group->index);
    for (int64_t member = 0; member < group->count; member++) {
        const struct rk_shm_published *theirs = rk_shm_published(transport, kind, member);
        if (theirs->kind == mine->kind && theirs->dimensions == mine->dimensions)
            continue;
        char name[256], place[256];
        rk_shm_rank_name(transport, group->ranks[member], name, sizeof name);
        rk_shm_place_name(transport, place, sizeof place);
        const char *other = theirs->kind < RK_OP_KIND_COUNT ? rk_op_name((enum rk_op_kind)theirs->kind) : "a barrier";
        rk_shm_fail_all(transport, RK_SHM_GAVE_UP, transport->rank);
        return rk_fail(error, RK_ERROR, "the ranks' programs part: rank %lld runs %s while %s runs %s%s",
                       (long long)transport->rank, place, name, other,
                       theirs->kind == mine->kind ? " with other dimensions" : "");
    }
    return RK_OK;
}

enum rk_status rk_shm_round(struct rk_transport *transport, enum rk_group_kind kind, struct rk_error *error) {
    struct rk_shm_group *group = &transport->group[kind];
    struct rk_shm_word *arrived = &rk_shm_rank(transport, group->ranks[0])->arrived[kind];
    uint64_t target = (uint64_t)group->count * (group->round + 1);
    atomic_store(&rk_shm_rank(transport, transport->rank)->rounds[kind], group->round + 1);
    /* Only the last to arrive wakes the others, all at once: one sleep a rank and round, however many ranks share a
     * core. */
    if (atomic_fetch_add(&arrived->value, 1) + 1 == target)
        wake(arrived);
    else {
        enum rk_status status = rk_shm_wait(transport, arrived, target, missing_member, (int64_t)kind, error);
        if (status != RK_OK)
            return status;
    }
    group->round++;
    return check_members(transport, kind, error);
}

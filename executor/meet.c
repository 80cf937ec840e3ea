/* The meeting: rank 0 as host, the others as guests. */
#include "base/clock.h"
#include "base/version.h"
#include "executor/exchange.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { GUESTS_MAX = 64 }; /* connections that have not yet said who they are */

/* A rank sends its hello at once; who has not done so by then is a stranger. */
#define HELLO_SECONDS 5.0
/* After a refusal rank 0 stays this long, so that ranks that come late learn of it. */
#define REFUSAL_SECONDS 2.0
#define FIRST_RETRY_SECONDS 0.02
#define LAST_RETRY_SECONDS 1.0
#define LAST_ATTEMPT_SECONDS 0.1

static void read_machine(char *machine, size_t size) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL || fgets(machine, (int)size, file) == NULL)
        machine[0] = '\0';
    machine[strcspn(machine, "\n")] = '\0';
    if (file != NULL)
        fclose(file);
}

static void fill_hello(const struct rk_meeting *meeting, struct rk_meet_hello *hello) {
    memset(hello, 0, sizeof *hello);
    memcpy(hello->magic, RK_MEET_HELLO_MAGIC, sizeof hello->magic);
    hello->rank = meeting->place->rank;
    hello->world = meeting->place->world;
    snprintf(hello->version, sizeof hello->version, "%s", rk_version());
    snprintf(hello->token, sizeof hello->token, "%s", meeting->token);
    memcpy(hello->agreement, meeting->agreement, sizeof hello->agreement);
    read_machine(hello->machine, sizeof hello->machine);
    hello->peer = meeting->self;
}

bool rk_meet_same_machine(const struct rk_meet_entry *left, const struct rk_meet_entry *right) {
    return strcmp(left->machine, right->machine) == 0 && strcmp(left->peer.host, right->peer.host) == 0;
}

struct guest {
    int descriptor;
    double until;
    size_t bytes;
    struct rk_meet_hello hello;
};

struct host {
    const struct rk_meeting *meeting;
    struct rk_meet_hello own;
    int listeners[RK_LISTENERS_MAX];
    int listener_count;
    struct guest guests[GUESTS_MAX];
    int guest_count;
    int *sockets; /* of the ranks that have come */
    struct rk_meet_entry *entries;
    bool *present;
    int64_t come, told;      /* ranks admitted; ranks told of the refusal */
    struct rk_error refusal; /* RK_OK while nothing stands against the meeting */
    double deadline;
};

static void drop_guest(struct host *host, int index) {
    if (host->guests[index].descriptor >= 0)
        close(host->guests[index].descriptor);
    host->guest_count--;
    host->guests[index] = host->guests[host->guest_count];
}

static void answer(int descriptor, enum rk_meet_verdict verdict, const struct rk_error *refusal, uint64_t nonce) {
    struct rk_meet_answer answer = {.verdict = verdict, .nonce = nonce};
    memcpy(answer.magic, RK_MEET_ANSWER_MAGIC, sizeof answer.magic);
    if (refusal != NULL) {
        answer.status = (uint32_t)refusal->status;
        snprintf(answer.text, sizeof answer.text, "%.*s", (int)sizeof answer.text - 1, refusal->text);
    }
    /* The answer fits the socket's buffer; who does not take it is not waited for. */
    rk_socket_write(descriptor, &answer, sizeof answer, rk_clock_seconds() + 0.1);
}

/* Ends the meeting: everybody who has come is told, and rank 0 stays a little for the others. */
static void refuse(struct host *host) {
    for (int64_t rank = 1; rank < host->meeting->place->world; rank++) {
        if (host->sockets[rank] < 0)
            continue;
        answer(host->sockets[rank], RK_MEET_REFUSED, &host->refusal, 0);
        host->told++;
    }
    double until = rk_clock_seconds() + REFUSAL_SECONDS;
    if (until < host->deadline)
        host->deadline = until;
}

static const char *device_or_none(const struct rk_peer *peer) {
    return peer->device[0] != '\0' ? peer->device : "none";
}

/* What stands against a rank that knows the token; RK_OK in host->refusal if nothing does. */
static void judge(struct host *host, const struct rk_meet_hello *hello) {
    const struct rk_meet_hello *own = &host->own;
    struct rk_error *refusal = &host->refusal;
    char who[256];
    snprintf(who, sizeof who, "rank %lld (host %s, process %lld)", (long long)hello->rank, hello->peer.host,
             (long long)hello->peer.process);
    if (strcmp(hello->version, own->version) != 0)
        rk_fail(refusal, RK_USAGE, "%s runs version %s, rank 0 runs %s; start the same program everywhere", who,
                hello->version, own->version);
    else if (hello->world != own->world)
        rk_fail(refusal, RK_USAGE, "%s counts %lld ranks, rank 0 counts %lld; start all with the same --world", who,
                (long long)hello->world, (long long)own->world);
    else if (hello->rank <= 0 || hello->rank >= own->world)
        rk_fail(refusal, RK_USAGE, "%s claims a rank that is taken or out of range; ranks are 0 to %lld, each once",
                who, (long long)own->world - 1);
    else if (memcmp(hello->agreement, own->agreement, sizeof own->agreement) != 0)
        rk_fail(refusal, RK_USAGE,
                "%s was given another plan or other flags than rank 0; give all ranks the same files and flags", who);
    if (refusal->status != RK_OK)
        return;
    for (int64_t rank = 0; rank < own->world; rank++) {
        const struct rk_meet_entry *entry = &host->entries[rank];
        struct rk_meet_entry mine = {.peer = hello->peer};
        memcpy(mine.machine, hello->machine, sizeof mine.machine);
        bool same_process = rk_meet_same_machine(entry, &mine) && entry->peer.process == mine.peer.process;
        if (!host->present[rank])
            continue;
        if (rank == hello->rank && !same_process)
            rk_fail(refusal, RK_USAGE,
                    "two processes are rank %lld: process %lld on host %s and process %lld on host %s; "
                    "every process needs a rank of its own",
                    (long long)rank, (long long)entry->peer.process, entry->peer.host, (long long)mine.peer.process,
                    mine.peer.host);
        else if (rank != hello->rank && mine.peer.device[0] != '\0' && rk_meet_same_machine(entry, &mine) &&
                 strcmp(entry->peer.device, mine.peer.device) == 0)
            rk_fail(refusal, RK_USAGE, "ranks %lld and %lld share GPU %s of host %s; start one rank for each GPU",
                    (long long)rank, (long long)hello->rank, device_or_none(&mine.peer), mine.peer.host);
    }
}

/* The answer takes the same time wherever a wrong token differs. */
static bool same_token(const char *left, const char *right, size_t size) {
    unsigned char difference = 0;
    for (size_t i = 0; i < size; i++)
        difference = (unsigned char)(difference | (left[i] ^ right[i]));
    return difference == 0;
}

/* A hello has come whole. Takes the guest's connection over or closes it. */
static void receive_guest(struct host *host, int index) {
    struct guest *guest = &host->guests[index];
    struct rk_meet_hello *hello = &guest->hello;
    hello->version[sizeof hello->version - 1] = '\0';
    hello->machine[sizeof hello->machine - 1] = '\0';
    hello->peer.host[sizeof hello->peer.host - 1] = '\0';
    hello->peer.device[sizeof hello->peer.device - 1] = '\0';
    if (!same_token(hello->token, host->own.token, sizeof hello->token)) {
        answer(guest->descriptor, RK_MEET_OTHER_JOB, NULL, 0);
        drop_guest(host, index);
        return;
    }
    bool refused_before = host->refusal.status != RK_OK;
    if (!refused_before) {
        judge(host, hello);
        if (host->refusal.status != RK_OK)
            refuse(host);
    }
    if (host->refusal.status != RK_OK) {
        answer(guest->descriptor, RK_MEET_REFUSED, &host->refusal, 0);
        host->told++;
        drop_guest(host, index);
        return;
    }
    int64_t rank = hello->rank;
    if (host->present[rank])
        close(host->sockets[rank]); /* the same process again, whose first connection was lost */
    else
        host->come++;
    host->present[rank] = true;
    host->sockets[rank] = guest->descriptor;
    host->entries[rank].peer = hello->peer;
    memcpy(host->entries[rank].machine, hello->machine, sizeof hello->machine);
    guest->descriptor = -1;
    drop_guest(host, index);
}

/* Takes what a guest has sent. Returns true when the guest at this index is another one now. */
static bool hear_guest(struct host *host, int index) {
    struct guest *guest = &host->guests[index];
    size_t left = sizeof guest->hello - guest->bytes;
    ssize_t got = recv(guest->descriptor, (char *)&guest->hello + guest->bytes, left, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return false;
    if (got > 0)
        guest->bytes += (size_t)got;
    size_t magic = sizeof guest->hello.magic < guest->bytes ? sizeof guest->hello.magic : guest->bytes;
    if (got <= 0 || memcmp(guest->hello.magic, RK_MEET_HELLO_MAGIC, magic) != 0) {
        drop_guest(host, index);
        return true;
    }
    if (guest->bytes < sizeof guest->hello)
        return false;
    receive_guest(host, index);
    return true;
}

static void accept_guests(struct host *host, int listener) {
    for (;;) {
        int descriptor = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (descriptor < 0)
            return;
        rk_socket_prepare(descriptor);
        if (host->guest_count == GUESTS_MAX) {
            /* A crowd of strangers: the one that has waited longest goes. A rank that it hits comes again. */
            int oldest = 0;
            for (int i = 1; i < GUESTS_MAX; i++)
                if (host->guests[i].until < host->guests[oldest].until)
                    oldest = i;
            drop_guest(host, oldest);
        }
        struct guest *guest = &host->guests[host->guest_count++];
        guest->descriptor = descriptor;
        guest->bytes = 0;
        guest->until = rk_clock_seconds() + HELLO_SECONDS;
    }
}

/* A rank that had come and is gone again may still come back. */
static void check_admitted(struct host *host) {
    for (int64_t rank = 1; rank < host->meeting->place->world; rank++) {
        struct pollfd connection = {.fd = host->sockets[rank], .events = POLLRDHUP};
        if (connection.fd < 0 || poll(&connection, 1, 0) != 1)
            continue;
        close(host->sockets[rank]);
        host->sockets[rank] = -1;
        host->present[rank] = false;
        host->come--;
    }
}

/* One wait and what came of it. */
static enum rk_status host_turn(struct host *host, struct rk_error *error) {
    struct pollfd polled[RK_LISTENERS_MAX + GUESTS_MAX];
    int guest_count = host->guest_count;
    for (int i = 0; i < host->listener_count; i++)
        polled[i] = (struct pollfd){.fd = host->listeners[i], .events = POLLIN};
    for (int i = 0; i < guest_count; i++)
        polled[host->listener_count + i] = (struct pollfd){.fd = host->guests[i].descriptor, .events = POLLIN};
    double now = rk_clock_seconds(), wait = host->deadline - now < 0.5 ? host->deadline - now : 0.5;
    int ready = poll(polled, (nfds_t)(host->listener_count + guest_count), wait > 0 ? (int)(wait * 1000) + 1 : 0);
    if (ready < 0 && errno != EINTR)
        return rk_fail(error, RK_ERROR, "meeting of the ranks: %s", strerror(errno));
    /* From the last to the first, because a guest that leaves is replaced by the last one. */
    now = rk_clock_seconds();
    for (int i = guest_count - 1; i >= 0; i--) {
        bool heard = ready > 0 && polled[host->listener_count + i].revents != 0;
        if (!(heard && hear_guest(host, i)) && host->guests[i].until < now)
            drop_guest(host, i);
    }
    for (int i = 0; i < host->listener_count; i++)
        if (ready > 0 && polled[i].revents != 0)
            accept_guests(host, host->listeners[i]);
    check_admitted(host);
    return RK_OK;
}

static enum rk_status wait_for_all(struct host *host, struct rk_error *error) {
    int64_t others = host->meeting->place->world - 1;
    while (host->refusal.status == RK_OK ? host->come < others : host->told < others) {
        if (rk_clock_seconds() >= host->deadline)
            break;
        enum rk_status status = host_turn(host, error);
        if (status != RK_OK)
            return status;
    }
    if (host->refusal.status == RK_OK && host->come < others) {
        char missing[256];
        rk_fail(&host->refusal, RK_RANK_FAILED,
                "after %g s these of %lld ranks have not come to %s port %d: %s. Look whether they were started, and "
                "whether they reach this port",
                host->meeting->seconds, (long long)others + 1, host->own.peer.host, host->meeting->place->port,
                rk_missing_ranks(host->present, others + 1, missing, sizeof missing));
        refuse(host);
    }
    return host->refusal.status == RK_OK ? RK_OK : rk_fail(error, host->refusal.status, "%s", host->refusal.text);
}

static enum rk_status open_listeners(struct host *host, struct rk_error *error) {
    const struct rk_place *place = host->meeting->place;
    if (place->listener <= 0)
        return rk_socket_listen(place->master, place->port, host->listeners, &host->listener_count, error);
    int listening = 0;
    socklen_t length = sizeof listening;
    if (getsockopt(place->listener, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0 || listening == 0)
        return rk_fail(error, RK_USAGE, "RECKON_LISTENER: descriptor %d is no listening socket; unset the variable",
                       place->listener);
    rk_socket_prepare(place->listener);
    host->listeners[host->listener_count++] = place->listener;
    return RK_OK;
}

static enum rk_status welcome_all(struct host *host, struct rk_job *job, struct rk_error *error) {
    int64_t world = host->meeting->place->world;
    if (getrandom(&job->nonce, sizeof job->nonce, 0) != (ssize_t)sizeof job->nonce)
        return rk_fail(error, RK_ERROR, "no random number for the job: %s", strerror(errno));
    for (int64_t rank = 1; rank < world; rank++) {
        answer(host->sockets[rank], RK_MEET_WELCOME, NULL, job->nonce);
        enum rk_transfer sent =
            rk_socket_write(host->sockets[rank], host->entries, (size_t)world * sizeof *host->entries,
                            host->deadline + REFUSAL_SECONDS);
        if (sent != RK_TRANSFER_DONE)
            return rk_fail(error, RK_RANK_FAILED, "rank %lld (host %s, process %lld) went away while the ranks met",
                           (long long)rank, host->entries[rank].peer.host, (long long)host->entries[rank].peer.process);
    }
    return RK_OK;
}

/* What the entries of all ranks say about the job. */
static void take_entries(const struct rk_meet_entry *entries, struct rk_job *job) {
    int64_t rank = job->place.rank, local_rank = 0, local_world = 0;
    job->one_host = true;
    for (int64_t peer = 0; peer < job->place.world; peer++) {
        job->peers[peer] = entries[peer].peer;
        bool here = rk_meet_same_machine(&entries[peer], &entries[rank]);
        job->one_host = job->one_host && rk_meet_same_machine(&entries[peer], &entries[0]);
        local_rank += here && peer < rank;
        local_world += here;
    }
    if (job->place.local_world == 0) {
        job->place.local_rank = local_rank;
        job->place.local_world = local_world;
    }
}

enum rk_status rk_meet_host(const struct rk_meeting *meeting, struct rk_job *job, struct rk_error *error) {
    size_t world = (size_t)meeting->place->world;
    struct host *host = calloc(1, sizeof *host);
    enum rk_status status = RK_OK;
    if (host == NULL)
        return rk_fail(error, RK_ERROR, "meeting of the ranks: out of memory");
    host->meeting = meeting;
    host->deadline = meeting->deadline;
    host->sockets = job->exchange->sockets;
    host->entries = calloc(world, sizeof *host->entries);
    host->present = calloc(world, sizeof *host->present);
    if (host->entries == NULL || host->present == NULL) {
        status = rk_fail(error, RK_ERROR, "meeting of the ranks: out of memory");
        goto free_host;
    }
    fill_hello(meeting, &host->own);
    host->entries[0].peer = host->own.peer;
    memcpy(host->entries[0].machine, host->own.machine, sizeof host->own.machine);
    host->present[0] = true;
    if (world > 1)
        status = open_listeners(host, error);
    if (status == RK_OK && world > 1)
        status = wait_for_all(host, error);
    if (status == RK_OK)
        status = welcome_all(host, job, error);
    if (status == RK_OK)
        take_entries(host->entries, job);
    while (host->guest_count > 0)
        drop_guest(host, 0);
    for (int i = 0; i < host->listener_count; i++)
        close(host->listeners[i]);
free_host:
    free(host->present);
    free(host->entries);
    free(host);
    return status;
}

/* One attempt to join. RK_TRANSFER_DONE: *answer holds rank 0's words. Otherwise the reason is for the message at the
 * end. */
static bool try_join(const struct rk_meeting *meeting, const struct rk_meet_hello *hello, int *descriptor,
                     struct rk_meet_answer *answer, char *reason, size_t size) {
    double patience = meeting->deadline + REFUSAL_SECONDS;
    int made = rk_socket_connect(meeting->place->master, meeting->place->port, meeting->deadline, reason, size);
    if (made < 0)
        return false;
    enum rk_transfer moved = rk_socket_write(made, hello, sizeof *hello, patience);
    if (moved != RK_TRANSFER_TIMED_OUT)
        moved = rk_socket_read(made, answer, sizeof *answer, patience);
    bool ours = moved == RK_TRANSFER_DONE && memcmp(answer->magic, RK_MEET_ANSWER_MAGIC, sizeof answer->magic) == 0;
    if (ours && answer->verdict != RK_MEET_OTHER_JOB) {
        answer->text[sizeof answer->text - 1] = '\0';
        *descriptor = made;
        return true;
    }
    close(made);
    snprintf(reason, size, "%s",
             ours                             ? "another job answers there"
             : moved == RK_TRANSFER_DONE      ? "a program that is not rank 0 answers there"
             : moved == RK_TRANSFER_TIMED_OUT ? "rank 0 was reached but is still waiting for other ranks"
                                              : "the connection was closed before rank 0 answered");
    return false;
}

static void sleep_seconds(double seconds) {
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    nanosleep(&time, NULL);
}

static enum rk_status take_answer(const struct rk_meeting *meeting, const struct rk_meet_answer *answer, int descriptor,
                                  struct rk_job *job, struct rk_error *error) {
    if (answer->verdict != RK_MEET_WELCOME) {
        enum rk_status status =
            answer->status > RK_OK && answer->status <= RK_DATABASE ? (enum rk_status)answer->status : RK_RANK_FAILED;
        return rk_fail(error, status, "%s", answer->text);
    }
    size_t bytes = (size_t)job->place.world * sizeof(struct rk_meet_entry);
    struct rk_meet_entry *entries = malloc(bytes);
    if (entries == NULL)
        return rk_fail(error, RK_ERROR, "meeting of the ranks: out of memory");
    enum rk_status status = RK_OK;
    if (rk_socket_read(descriptor, entries, bytes, meeting->deadline + REFUSAL_SECONDS) != RK_TRANSFER_DONE)
        status = rk_fail(error, RK_RANK_FAILED, "rank 0 (%s port %d) went away while the ranks met",
                         meeting->place->master, meeting->place->port);
    for (int64_t rank = 0; status == RK_OK && rank < job->place.world; rank++) {
        entries[rank].machine[sizeof entries[rank].machine - 1] = '\0';
        entries[rank].peer.host[sizeof entries[rank].peer.host - 1] = '\0';
        entries[rank].peer.device[sizeof entries[rank].peer.device - 1] = '\0';
    }
    if (status == RK_OK) {
        job->nonce = answer->nonce;
        take_entries(entries, job);
    }
    free(entries);
    return status;
}

enum rk_status rk_meet_join(const struct rk_meeting *meeting, struct rk_job *job, struct rk_error *error) {
    struct rk_meet_hello hello;
    fill_hello(meeting, &hello);
    char reason[160] = "no attempt was made";
    /* Ranks that start together do not come together. */
    double pause = FIRST_RETRY_SECONDS + (double)(meeting->place->rank % 16) * 1e-3;
    for (;;) {
        struct rk_meet_answer answer;
        int descriptor;
        if (try_join(meeting, &hello, &descriptor, &answer, reason, sizeof reason)) {
            job->exchange->sockets[0] = descriptor;
            return take_answer(meeting, &answer, descriptor, job, error);
        }
        /* The last attempt needs time of its own, or it would hide the reason of the one before. */
        double left = meeting->deadline - rk_clock_seconds() - LAST_ATTEMPT_SECONDS;
        if (left <= 0)
            break;
        sleep_seconds(pause < left ? pause : left);
        pause = pause * 1.5 < LAST_RETRY_SECONDS ? pause * 1.5 : LAST_RETRY_SECONDS;
    }
    return rk_fail(
        error, RK_RANK_FAILED,
        "rank %lld did not meet rank 0 at %s port %d within %g s: %s. Look whether rank 0 runs and whether its "
        "host and port are right",
        (long long)meeting->place->rank, meeting->place->master, meeting->place->port, meeting->seconds, reason);
}

/* The exchange after the meeting: small gathers over the star, and the watch over its connections. */
#include "executor/exchange.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Rank 0 finds out who is missing; the others give it this much longer, so that they can repeat its message. */
#define ANSWER_SECONDS 2.0

enum frame_kind { FRAME_DATA = 0x52466401, FRAME_FAILURE = 0x52466402 };

struct frame {
    uint32_t kind;
    uint32_t status; /* FRAME_FAILURE: enum rk_status; the payload is a text of fixed size */
    uint64_t sequence;
    uint64_t bytes;
};

enum { FAILURE_TEXT = 768 };

char *rk_missing_ranks(const bool *present, int64_t world, char *buffer, size_t size) {
    size_t used = 0;
    buffer[0] = '\0';
    for (int64_t rank = 0; rank < world; rank++) {
        if (present[rank])
            continue;
        int64_t last = rank;
        while (last + 1 < world && !present[last + 1])
            last++;
        if (used + 64 > size) {
            snprintf(buffer + used, size - used, ", ...");
            return buffer;
        }
        used += (size_t)snprintf(buffer + used, size - used, "%s%lld", used > 0 ? ", " : "", (long long)rank);
        if (last > rank)
            used += (size_t)snprintf(buffer + used, size - used, "-%lld", (long long)last);
        rank = last;
    }
    return buffer;
}

void rk_job_free(struct rk_job *job) {
    if (job == NULL)
        return;
    if (job->exchange != NULL) {
        for (int64_t rank = 0; job->exchange->sockets != NULL && rank < job->exchange->world; rank++)
            if (job->exchange->sockets[rank] >= 0)
                close(job->exchange->sockets[rank]);
        free(job->exchange->sockets);
        free(job->exchange);
    }
    free(job->peers);
    free(job);
}

/* How much of a peer's contribution has come. */
struct arrival {
    struct frame frame;
    size_t frame_bytes;
    int64_t bytes;
    bool lost, wrong;
};

/* Takes what is there; true when the contribution is complete or will never be. */
static bool take(int descriptor, struct arrival *arrival, uint64_t sequence, char *data, int64_t bytes) {
    for (;;) {
        bool in_frame = arrival->frame_bytes < sizeof arrival->frame;
        if (!in_frame && arrival->bytes == bytes)
            return true;
        char *to = in_frame ? (char *)&arrival->frame + arrival->frame_bytes : data + arrival->bytes;
        size_t left = in_frame ? sizeof arrival->frame - arrival->frame_bytes : (size_t)(bytes - arrival->bytes);
        ssize_t got = recv(descriptor, to, left, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return false;
        if (got <= 0) {
            arrival->lost = true;
            return true;
        }
        if (!in_frame) {
            arrival->bytes += got;
            continue;
        }
        arrival->frame_bytes += (size_t)got;
        if (arrival->frame_bytes < sizeof arrival->frame)
            continue;
        arrival->wrong = arrival->frame.kind != FRAME_DATA || arrival->frame.sequence != sequence ||
                         arrival->frame.bytes != (uint64_t)bytes;
        if (arrival->wrong)
            return true;
    }
}

/* Tells the ranks that still listen why the gather fails. */
static void tell_failure(const struct rk_job *job, const struct rk_error *failure) {
    struct {
        struct frame frame;
        char text[FAILURE_TEXT];
    } message = {.frame = {.kind = FRAME_FAILURE, .status = (uint32_t)failure->status}};
    message.frame.sequence = job->exchange->sequence;
    message.frame.bytes = FAILURE_TEXT;
    snprintf(message.text, sizeof message.text, "%.*s", FAILURE_TEXT - 1, failure->text);
    for (int64_t rank = 1; rank < job->exchange->world; rank++)
        rk_socket_write(job->exchange->sockets[rank], &message, sizeof message, rk_clock_seconds() + 0.1);
}

static enum rk_status fail_gather(const struct rk_job *job, const struct arrival *arrivals, const bool *present,
                                  struct rk_error *error) {
    struct rk_error failure = {0};
    const struct rk_peer *peers = job->peers;
    for (int64_t rank = 1; rank < job->exchange->world && failure.status == RK_OK; rank++) {
        if (arrivals[rank].lost)
            rk_fail(&failure, RK_RANK_FAILED,
                    "rank %lld (host %s, process %lld) is gone: its connection to rank 0 ended", (long long)rank,
                    peers[rank].host, (long long)peers[rank].process);
        else if (arrivals[rank].wrong)
            rk_fail(&failure, RK_ERROR,
                    "the ranks part: rank %lld (host %s) sent %llu bytes as exchange %llu where rank 0 "
                    "is at exchange %llu",
                    (long long)rank, peers[rank].host, (unsigned long long)arrivals[rank].frame.bytes,
                    (unsigned long long)arrivals[rank].frame.sequence, (unsigned long long)job->exchange->sequence);
    }
    if (failure.status == RK_OK) {
        char missing[256];
        rk_fail(&failure, RK_RANK_FAILED, "ranks missing in an exchange of all ranks after %g s: %s",
                job->deadline_seconds, rk_missing_ranks(present, job->exchange->world, missing, sizeof missing));
    }
    tell_failure(job, &failure);
    return rk_fail(error, failure.status, "%s", failure.text);
}

/* Rank 0: takes all contributions, whichever comes first. */
static enum rk_status gather(const struct rk_job *job, struct arrival *arrivals, bool *present, struct pollfd *polled,
                             char *all, int64_t bytes, struct rk_error *error) {
    const struct rk_exchange *exchange = job->exchange;
    double deadline = rk_clock_seconds() + job->deadline_seconds;
    for (int64_t left = exchange->world - 1; left > 0;) {
        for (int64_t rank = 0; rank < exchange->world; rank++)
            polled[rank] = (struct pollfd){.fd = present[rank] ? -1 : exchange->sockets[rank], .events = POLLIN};
        double seconds = deadline - rk_clock_seconds();
        if (seconds <= 0)
            return fail_gather(job, arrivals, present, error);
        if (poll(polled, (nfds_t)exchange->world, seconds > 1 ? 1000 : (int)(seconds * 1000) + 1) < 0 && errno != EINTR)
            return rk_fail(error, RK_ERROR, "exchange of the ranks: %s", strerror(errno));
        for (int64_t rank = 1; rank < exchange->world; rank++) {
            if (present[rank] || polled[rank].revents == 0 ||
                !take(exchange->sockets[rank], &arrivals[rank], exchange->sequence, all + rank * bytes, bytes))
                continue;
            if (arrivals[rank].lost || arrivals[rank].wrong)
                return fail_gather(job, arrivals, present, error);
            present[rank] = true;
            left--;
        }
    }
    return RK_OK;
}

static enum rk_status send_all(const struct rk_job *job, const char *all, int64_t bytes, struct rk_error *error) {
    const struct rk_exchange *exchange = job->exchange;
    struct frame frame = {.kind = FRAME_DATA, .sequence = exchange->sequence};
    frame.bytes = (uint64_t)(bytes * exchange->world);
    double deadline = rk_clock_seconds() + job->deadline_seconds;
    for (int64_t rank = 1; rank < exchange->world; rank++) {
        enum rk_transfer sent = rk_socket_write(exchange->sockets[rank], &frame, sizeof frame, deadline);
        if (sent == RK_TRANSFER_DONE)
            sent = rk_socket_write(exchange->sockets[rank], all, (size_t)frame.bytes, deadline);
        if (sent != RK_TRANSFER_DONE)
            return rk_fail(error, RK_RANK_FAILED, "rank %lld (host %s, process %lld) %s", (long long)rank,
                           job->peers[rank].host, (long long)job->peers[rank].process,
                           sent == RK_TRANSFER_TIMED_OUT ? "does not take what the other ranks sent"
                                                         : "is gone: its connection to rank 0 ended");
    }
    return RK_OK;
}

static enum rk_status gather_as_host(const struct rk_job *job, const void *mine, int64_t bytes, char *all,
                                     struct rk_error *error) {
    size_t world = (size_t)job->exchange->world;
    struct arrival *arrivals = calloc(world, sizeof *arrivals);
    bool *present = calloc(world, sizeof *present);
    struct pollfd *polled = calloc(world, sizeof *polled);
    enum rk_status status;
    if (arrivals == NULL || present == NULL || polled == NULL) {
        status = rk_fail(error, RK_ERROR, "exchange of the ranks: out of memory");
    } else {
        present[0] = true;
        memcpy(all, mine, (size_t)bytes);
        status = gather(job, arrivals, present, polled, all, bytes, error);
        if (status == RK_OK)
            status = send_all(job, all, bytes, error);
    }
    free(polled);
    free(present);
    free(arrivals);
    return status;
}

static enum rk_status fail_transfer(const struct rk_job *job, enum rk_transfer transfer, struct rk_error *error) {
    const struct rk_peer *host = &job->peers[0];
    if (transfer == RK_TRANSFER_TIMED_OUT)
        return rk_fail(error, RK_RANK_FAILED, "rank 0 (host %s, process %lld) did not answer within %g s", host->host,
                       (long long)host->process, job->deadline_seconds);
    return rk_fail(error, RK_RANK_FAILED, "rank 0 (host %s, process %lld) is gone: its connection ended", host->host,
                   (long long)host->process);
}

static enum rk_status gather_as_guest(const struct rk_job *job, const void *mine, int64_t bytes, char *all,
                                      struct rk_error *error) {
    int descriptor = job->exchange->sockets[0];
    struct frame frame = {.kind = FRAME_DATA, .sequence = job->exchange->sequence, .bytes = (uint64_t)bytes};
    double deadline = rk_clock_seconds() + job->deadline_seconds + ANSWER_SECONDS;
    enum rk_transfer moved = rk_socket_write(descriptor, &frame, sizeof frame, deadline);
    if (moved == RK_TRANSFER_DONE)
        moved = rk_socket_write(descriptor, mine, (size_t)bytes, deadline);
    /* A refusal may lie in the socket although writing to it failed. */
    if (moved != RK_TRANSFER_TIMED_OUT)
        moved = rk_socket_read(descriptor, &frame, sizeof frame, deadline);
    if (moved != RK_TRANSFER_DONE)
        return fail_transfer(job, moved, error);
    if (frame.kind == FRAME_FAILURE && frame.bytes == FAILURE_TEXT) {
        char text[FAILURE_TEXT];
        moved = rk_socket_read(descriptor, text, sizeof text, deadline);
        if (moved != RK_TRANSFER_DONE)
            return fail_transfer(job, moved, error);
        text[sizeof text - 1] = '\0';
        return rk_fail(error, (enum rk_status)frame.status, "%s", text);
    }
    if (frame.kind != FRAME_DATA || frame.sequence != job->exchange->sequence ||
        frame.bytes != (uint64_t)(bytes * job->exchange->world))
        return rk_fail(error, RK_ERROR, "the ranks part: rank 0 is at exchange %llu, this rank at %llu",
                       (unsigned long long)frame.sequence, (unsigned long long)job->exchange->sequence);
    moved = rk_socket_read(descriptor, all, (size_t)frame.bytes, deadline);
    return moved == RK_TRANSFER_DONE ? RK_OK : fail_transfer(job, moved, error);
}

enum rk_status rk_job_all_gather(const struct rk_job *job, const void *mine, int64_t bytes, void *all,
                                 struct rk_error *error) {
    enum rk_status status = RK_OK;
    if (job->exchange->world == 1)
        memcpy(all, mine, (size_t)bytes);
    else if (job->exchange->rank == 0)
        status = gather_as_host(job, mine, bytes, all, error);
    else
        status = gather_as_guest(job, mine, bytes, all, error);
    job->exchange->sequence++;
    return status;
}

enum rk_status rk_job_barrier(const struct rk_job *job, struct rk_error *error) {
    char mine = 0;
    char *all = malloc((size_t)job->exchange->world);
    if (all == NULL)
        return rk_fail(error, RK_ERROR, "exchange of the ranks: out of memory");
    enum rk_status status = rk_job_all_gather(job, &mine, sizeof mine, all, error);
    free(all);
    return status;
}

bool rk_job_lost_peer(const struct rk_job *job, int64_t *rank) {
    for (int64_t peer = 0; peer < job->exchange->world; peer++) {
        struct pollfd connection = {.fd = job->exchange->sockets[peer], .events = POLLRDHUP};
        if (connection.fd >= 0 && poll(&connection, 1, 0) == 1) {
            *rank = peer;
            return true;
        }
    }
    return false;
}

static enum rk_status check_place(const struct rk_place *place, const char *token, struct rk_error *error) {
    if (place->world < 1 || place->rank < 0 || place->rank >= place->world)
        return rk_fail(error, RK_USAGE, "rank %lld of %lld: ranks are 0 to world - 1", (long long)place->rank,
                       (long long)place->world);
    if (strlen(token) >= sizeof place->token)
        return rk_fail(error, RK_USAGE, "the job's token is longer than %zu characters", sizeof place->token - 1);
    if (place->world == 1 || (place->listener > 0 && place->rank == 0))
        return RK_OK;
    if (place->master[0] == '\0')
        return rk_fail(error, RK_USAGE, "%lld ranks but nobody says where rank 0 is; give --master HOST or MASTER_ADDR",
                       (long long)place->world);
    if (place->port < 1 || place->port > 65535)
        return rk_fail(error, RK_USAGE, "port %d of rank 0: give --port or MASTER_PORT from 1 to 65535", place->port);
    return RK_OK;
}

static struct rk_job *new_job(const struct rk_place *place, double deadline_seconds) {
    struct rk_job *job = calloc(1, sizeof *job);
    if (job == NULL)
        return NULL;
    job->place = *place;
    job->deadline_seconds = deadline_seconds;
    job->peers = calloc((size_t)place->world, sizeof *job->peers);
    job->exchange = calloc(1, sizeof *job->exchange);
    if (job->exchange != NULL) {
        job->exchange->rank = place->rank;
        job->exchange->world = place->world;
        job->exchange->sockets = malloc((size_t)place->world * sizeof *job->exchange->sockets);
    }
    if (job->peers == NULL || job->exchange == NULL || job->exchange->sockets == NULL) {
        rk_job_free(job);
        return NULL;
    }
    for (int64_t rank = 0; rank < place->world; rank++)
        job->exchange->sockets[rank] = -1;
    return job;
}

enum rk_status rk_launch_meet(const struct rk_place *place, const char *job_token, const uint8_t agreement[32],
                              const struct rk_peer *self, double deadline_seconds, struct rk_job **job,
                              struct rk_error *error) {
    struct rk_meeting meeting = {.place = place,
                                 .token = job_token != NULL ? job_token : place->token,
                                 .agreement = agreement,
                                 .self = *self,
                                 .deadline = rk_clock_seconds() + deadline_seconds,
                                 .seconds = deadline_seconds};
    enum rk_status status = check_place(place, meeting.token, error);
    if (status != RK_OK)
        return status;
    if (meeting.self.host[0] == '\0' && gethostname(meeting.self.host, sizeof meeting.self.host - 1) != 0)
        return rk_fail(error, RK_ERROR, "the name of this host: %s", strerror(errno));
    if (meeting.self.process == 0)
        meeting.self.process = getpid();
    meeting.self.local_rank = place->local_rank;
    struct rk_job *made = new_job(place, deadline_seconds);
    if (made == NULL)
        return rk_fail(error, RK_ERROR, "meeting of the ranks: out of memory");
    status = place->rank == 0 ? rk_meet_host(&meeting, made, error) : rk_meet_join(&meeting, made, error);
    if (status != RK_OK) {
        rk_job_free(made);
        return status;
    }
    *job = made;
    return RK_OK;
}

#include "base/clock.h"
#include "executor/exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Longest wait for one address to answer, so that one dead address does not use up the deadline of the others. */
#define CONNECT_SECONDS 5.0

/* Waits until the socket is ready or the deadline passes. */
static bool wait_ready(int descriptor, short events, double deadline) {
    for (;;) {
        double left = deadline - rk_clock_seconds();
        if (left <= 0)
            return false;
        struct pollfd socket = {.fd = descriptor, .events = events};
        int ready = poll(&socket, 1, left > 3600 ? 3600000 : (int)ceil(left * 1000));
        if (ready > 0)
            return true;
        if (ready < 0 && errno != EINTR)
            return false;
    }
}

enum rk_transfer rk_socket_read(int descriptor, void *data, size_t bytes, double deadline) {
    char *to = data;
    while (bytes > 0) {
        ssize_t got = recv(descriptor, to, bytes, 0);
        if (got > 0) {
            to += got;
            bytes -= (size_t)got;
        } else if (got == 0 || errno == ECONNRESET) {
            return RK_TRANSFER_CLOSED;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!wait_ready(descriptor, POLLIN, deadline))
                return RK_TRANSFER_TIMED_OUT;
        } else if (errno != EINTR) {
            return RK_TRANSFER_FAILED;
        }
    }
    return RK_TRANSFER_DONE;
}

enum rk_transfer rk_socket_write(int descriptor, const void *data, size_t bytes, double deadline) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t put = send(descriptor, from, bytes, MSG_NOSIGNAL);
        if (put >= 0) {
            from += put;
            bytes -= (size_t)put;
        } else if (errno == EPIPE || errno == ECONNRESET) {
            return RK_TRANSFER_CLOSED;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (!wait_ready(descriptor, POLLOUT, deadline))
                return RK_TRANSFER_TIMED_OUT;
        } else if (errno != EINTR) {
            return RK_TRANSFER_FAILED;
        }
    }
    return RK_TRANSFER_DONE;
}

bool rk_socket_prepare(int descriptor) {
    int flags = fcntl(descriptor, F_GETFL);
    if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0)
        return false;
    int on = 1;
    /* Not every kind of socket has these; the exchange works without. */
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    return true;
}

static bool is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof v4);
        /* Not all of 127/8: Debian gives a host's own name the address 127.0.1.1, and other hosts come by that name. */
        return ntohl(v4.sin_addr.s_addr) == INADDR_LOOPBACK;
    }
    struct sockaddr_in6 v6;
    memcpy(&v6, address, sizeof v6);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

/* Names resolve anew at each attempt: in a cluster that is starting up they may appear late. */
static struct addrinfo *resolve(const char *host, int32_t port, char *reason, size_t size) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo *found = NULL;
    int failure = getaddrinfo(host, service, &hints, &found);
    if (failure == 0)
        return found;
    snprintf(reason, size, "%s", failure == EAI_SYSTEM ? strerror(errno) : gai_strerror(failure));
    return NULL;
}

static bool all_loopback(const char *host) {
    char reason[128];
    struct addrinfo *found = resolve(host, 0, reason, sizeof reason);
    bool loopback = found != NULL;
    for (struct addrinfo *address = found; address != NULL; address = address->ai_next)
        loopback = loopback && is_loopback(address->ai_addr);
    if (found != NULL)
        freeaddrinfo(found);
    return loopback;
}

/* A listening socket of one family, or -1 with errno. */
static int listen_on(int family, bool loopback, int32_t port) {
    int descriptor = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0)
        return -1;
    int on = 1;
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    int bound;
    if (family == AF_INET6) {
        setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
        struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
        address.sin6_addr = loopback ? in6addr_loopback : in6addr_any;
        bound = bind(descriptor, (const struct sockaddr *)&address, sizeof address);
    } else {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
        bound = bind(descriptor, (const struct sockaddr *)&address, sizeof address);
    }
    if (bound != 0 || listen(descriptor, SOMAXCONN) != 0) {
        int reason = errno;
        close(descriptor);
        errno = reason;
        return -1;
    }
    return descriptor;
}

enum rk_status rk_socket_listen(const char *host, int32_t port, int listeners[RK_LISTENERS_MAX], int *count,
                                struct rk_error *error) {
    static const int families[RK_LISTENERS_MAX] = {AF_INET6, AF_INET};
    bool loopback = all_loopback(host);
    int made[RK_LISTENERS_MAX], made_count = 0, reason = 0;
    for (int i = 0; i < RK_LISTENERS_MAX; i++) {
        int descriptor = listen_on(families[i], loopback, port);
        if (descriptor >= 0)
            made[made_count++] = descriptor;
        else if (reason != EADDRINUSE)
            reason = errno;
    }
    /* Half a port would send the ranks that come by the other family to whoever holds it. */
    if (made_count > 0 && reason != EADDRINUSE) {
        memcpy(listeners, made, (size_t)made_count * sizeof *made);
        *count = made_count;
        return RK_OK;
    }
    for (int i = 0; i < made_count; i++)
        close(made[i]);
    if (reason == EADDRINUSE)
        return rk_fail(error, RK_ERROR,
                       "port %d of rank 0 is in use by another process; choose another with --port or MASTER_PORT",
                       port);
    return rk_fail(error, RK_ERROR, "rank 0 cannot listen on port %d: %s", port, strerror(reason));
}

static bool meets_itself(int descriptor) {
    struct sockaddr_storage here, there;
    socklen_t here_length = sizeof here, there_length = sizeof there;
    return getsockname(descriptor, (struct sockaddr *)&here, &here_length) == 0 &&
           getpeername(descriptor, (struct sockaddr *)&there, &there_length) == 0 && here_length == there_length &&
           memcmp(&here, &there, here_length) == 0;
}

static int connect_to(const struct addrinfo *address, double deadline) {
    int descriptor = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0)
        return -1;
    int reason = 0;
    if (connect(descriptor, address->ai_addr, address->ai_addrlen) != 0) {
        reason = errno;
        if (reason == EINPROGRESS) {
            socklen_t length = sizeof reason;
            double until = rk_clock_seconds() + CONNECT_SECONDS;
            if (!wait_ready(descriptor, POLLOUT, until < deadline ? until : deadline))
                reason = ETIMEDOUT;
            else if (getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &reason, &length) != 0)
                reason = errno;
        }
    }
    /* A connection to a free local port of the ephemeral range can meet itself. */
    if (reason == 0 && meets_itself(descriptor))
        reason = ECONNREFUSED;
    if (reason == 0 && rk_socket_prepare(descriptor))
        return descriptor;
    close(descriptor);
    errno = reason;
    return -1;
}

int rk_socket_connect(const char *host, int32_t port, double deadline, char *reason, size_t size) {
    struct addrinfo *found = resolve(host, port, reason, size);
    int descriptor = -1;
    for (struct addrinfo *address = found; address != NULL && descriptor < 0; address = address->ai_next) {
        descriptor = connect_to(address, deadline);
        if (descriptor < 0)
            snprintf(reason, size, "%s", strerror(errno));
    }
    if (found != NULL)
        freeaddrinfo(found);
    return descriptor;
}

/* The TCP exchange's own words: sockets with deadlines, and what goes over them. */
#ifndef RK_EXECUTOR_EXCHANGE_H
#define RK_EXECUTOR_EXCHANGE_H

#include "executor/launch.h"

#include <stddef.h>

/* A star: rank 0 has a connection to every other rank, the others have one to rank 0. */
struct rk_exchange {
    int64_t rank, world;
    int *sockets;      /* by rank; -1 where there is none (own rank; for ranks > 0 all but [0]); owned */
    uint64_t sequence; /* of collectives: both sides count, so that a lost frame is noticed */
};

/* How a transfer ended. */
enum rk_transfer { RK_TRANSFER_DONE, RK_TRANSFER_CLOSED, RK_TRANSFER_TIMED_OUT, RK_TRANSFER_FAILED };

/* Whole transfers over a non-blocking socket until the deadline (of rk_clock_seconds); RK_TRANSFER_FAILED sets errno.
 */
enum rk_transfer rk_socket_read(int descriptor, void *data, size_t bytes, double deadline);
enum rk_transfer rk_socket_write(int descriptor, const void *data, size_t bytes, double deadline);
/* Non-blocking, closed on exec, small messages at once. */
bool rk_socket_prepare(int descriptor);

enum { RK_LISTENERS_MAX = 2 };

/* Listens on the port for the host: on the loopback addresses when the host is this machine's loopback name, else on
 * all. IPv6 and IPv4 each if the machine has them. RK_ERROR with the remedy when the port is in use. */
enum rk_status rk_socket_listen(const char *host, int32_t port, int listeners[RK_LISTENERS_MAX], int *count,
                                struct rk_error *error);
/* One attempt at every address of the host. -1 and the reason when none answers. */
int rk_socket_connect(const char *host, int32_t port, double deadline, char *reason, size_t size);

/* meet.c: ranks 0 and others. Fill job->peers, job->nonce and the sockets. */
struct rk_meeting {
    const struct rk_place *place;
    const char *token;
    const uint8_t *agreement;
    struct rk_peer self;
    double deadline; /* of rk_clock_seconds */
    double seconds;  /* the same as a duration, for messages */
};
enum rk_status rk_meet_host(const struct rk_meeting *meeting, struct rk_job *job, struct rk_error *error);
enum rk_status rk_meet_join(const struct rk_meeting *meeting, struct rk_job *job, struct rk_error *error);

/* "2, 5-7": the ranks whose flag is not set. Returns buffer. */
char *rk_missing_ranks(const bool *present, int64_t world, char *buffer, size_t size);

/* What a rank says first. Its size is fixed, so nothing that a stranger sends is ever taken for a length. */
struct rk_meet_hello {
    char magic[8];
    int64_t rank, world;
    char version[32];
    char token[128];
    uint8_t agreement[32];
    char machine[48]; /* the kernel's boot identifier: tells machines of the same name apart */
    struct rk_peer peer;
};

enum rk_meet_verdict { RK_MEET_WELCOME, RK_MEET_OTHER_JOB, RK_MEET_REFUSED };

/* What rank 0 answers when all have come, or when something stands against it. After a welcome the entries of all ranks
 * follow. */
struct rk_meet_answer {
    char magic[8];
    uint32_t verdict;
    uint32_t status; /* enum rk_status of a refusal */
    uint64_t nonce;
    char text[768];
};

struct rk_meet_entry {
    char machine[48];
    struct rk_peer peer;
};

#define RK_MEET_HELLO_MAGIC "RKhello1"
#define RK_MEET_ANSWER_MAGIC "RKanswr1"

/* Same machine for shared memory: the same host name and the same boot. */
bool rk_meet_same_machine(const struct rk_meet_entry *left, const struct rk_meet_entry *right);

#endif

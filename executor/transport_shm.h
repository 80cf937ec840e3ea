/* The shared-memory transport's own words: the region that all ranks of a job map, and waiting in it.
 *
 * The region holds, in this order: one header, one control block for each rank, two publishing buffers for each rank
 * and group kind, and two rings for each rank (its links to the next and to the previous stage). A collective is a
 * number of rounds: every member writes its publishing buffer, arrives, waits until all have arrived, and reads the
 * buffers of the others. Two buffers, used in turn, make one wait a round enough: who has arrived at round r has read
 * all of round r - 1, so the buffers of round r - 1 may be written for round r + 1. */
#ifndef RK_EXECUTOR_TRANSPORT_SHM_H
#define RK_EXECUTOR_TRANSPORT_SHM_H

#include "executor/transport.h"

#include <stdatomic.h>

enum {
    RK_SHM_ALIGN = 64,
    RK_SHM_PUBLISH_BYTES_MAX = 1 << 20, /* of a reduction or gather in one round: small enough for the caches */
    RK_SHM_LINK_COUNT = 2
};

/* A link leads from a rank to its neighbour; the names are the sender's. */
enum rk_shm_link { RK_SHM_LINK_NEXT, RK_SHM_LINK_PREVIOUS };

/* A counter that processes wait for. The futex is the event and not the counter, because futexes have 32 bits. */
struct rk_shm_word {
    _Alignas(RK_SHM_ALIGN) _Atomic uint64_t value;
    _Atomic uint32_t event;
    _Atomic uint32_t waiters;
};

/* What a sleeping rank waits for, so that the others can tell a rank that hangs from one that waits for it. */
struct rk_shm_waiting {
    _Atomic uint64_t word;   /* offset of the counter in the region */
    _Atomic uint64_t target; /* of the counter */
    _Atomic int64_t rank;    /* that is missing, plus one; 0: this rank does not wait */
};

struct rk_shm_rank {
    struct rk_shm_word arrived[RK_GROUP_COUNT];  /* of the groups whose first member this rank is: arrivals of all */
    _Atomic uint64_t rounds[RK_GROUP_COUNT];     /* that this rank arrived at: names the missing one */
    struct rk_shm_word sent[RK_SHM_LINK_COUNT];  /* bytes put into this rank's rings */
    struct rk_shm_word taken[RK_SHM_LINK_COUNT]; /* bytes taken out of them by the neighbour */
    struct rk_shm_waiting waiting;
    _Atomic uint32_t closed; /* this rank has ended its work in order */
};

/* Why the job cannot go on; the first to know writes it and everybody else repeats it. */
enum rk_shm_failure {
    RK_SHM_NO_FAILURE,
    RK_SHM_DIED,      /* the process is gone */
    RK_SHM_TIMED_OUT, /* it did not come within the deadline */
    RK_SHM_GAVE_UP    /* it called abort */
};

struct rk_shm_header {
    uint64_t nonce;
    _Atomic uint64_t failure; /* 0, or enum rk_shm_failure << 32 | rank */
};

/* What comes before the data of a publishing buffer. */
struct rk_shm_published {
    _Alignas(RK_SHM_ALIGN) uint64_t dimensions; /* hash of what all members must have in common */
    uint32_t kind;                              /* enum rk_op_kind */
    uint32_t weighted;                          /* DISPATCH: weights are there */
    int64_t tokens;                             /* DISPATCH: T, which may differ between ranks */
};

/* Sizes that follow from the program; the largest of any rank holds for all, so that offsets are the same everywhere.
 */
struct rk_shm_needs {
    int64_t publish_bytes[RK_GROUP_COUNT];
    int64_t message_bytes; /* largest of SEND and RECEIVE */
    int64_t messages;      /* that a sender can be ahead of its receiver */
};

struct rk_shm_group {
    int64_t count, index;
    int64_t *ranks; /* owned */
    uint64_t round; /* that comes next */
};

struct rk_transport {
    const struct rk_job *job;
    int64_t rank, world;
    double deadline_seconds;
    int64_t spins; /* before sleeping; 0 when ranks outnumber the cores */
    char *region;
    size_t region_bytes;
    size_t ranks_offset, publish_offset[RK_GROUP_COUNT], publish_stride, rings_offset;
    int64_t publish_bytes[RK_GROUP_COUNT]; /* of one buffer, with its header */
    int64_t ring_bytes;                    /* of one ring */
    int *processes;                        /* a descriptor that becomes readable when the peer ends, or -1; owned */
    struct rk_shm_group group[RK_GROUP_COUNT];
    int64_t remote_bytes[RK_OP_FAMILY_COUNT];
    /* The op being run, for messages. */
    const struct rk_op_shape *shape;
    const struct rk_transport_position *position;
};

/* shm_region.c */
enum rk_status rk_shm_region_open(struct rk_transport *transport, const struct rk_shm_needs *needs,
                                  struct rk_error *error);
void rk_shm_region_close(struct rk_transport *transport);
struct rk_shm_header *rk_shm_header(const struct rk_transport *transport);
struct rk_shm_rank *rk_shm_rank(const struct rk_transport *transport, int64_t rank);
char *rk_shm_ring(const struct rk_transport *transport, int64_t rank, enum rk_shm_link link);

/* shm_wait.c */

/* Sets the counter; wakes those who wait for it when `wake` is set. */
void rk_shm_word_set(struct rk_shm_word *word, uint64_t value, bool wake);
/* The rank that a wait is for, as far as it is known at the time of the call. */
typedef int64_t rk_shm_missing(const struct rk_transport *transport, int64_t context);
/* Waits until the counter has reached the target. RK_RANK_FAILED when a rank has failed or the deadline passes; then
 * the rank to blame is looked for from missing(transport, context) on. */
enum rk_status rk_shm_wait(struct rk_transport *transport, struct rk_shm_word *word, uint64_t target,
                           rk_shm_missing *missing, int64_t context, struct rk_error *error);
/* Wakes everybody in the region. Async-signal-safe. */
void rk_shm_fail_all(struct rk_transport *transport, enum rk_shm_failure failure, int64_t rank);

/* Rounds. This rank's publishing buffer of the coming round, its header filled in from the op being run. */
struct rk_shm_published *rk_shm_publish(struct rk_transport *transport, enum rk_group_kind kind);
/* Arrives and waits for the others. RK_ERROR when another member runs another op. */
enum rk_status rk_shm_round(struct rk_transport *transport, enum rk_group_kind kind, struct rk_error *error);
/* What a member published in the round that ended last. */
const struct rk_shm_published *rk_shm_published(const struct rk_transport *transport, enum rk_group_kind kind,
                                                int64_t member);

/* The ops: shm_experts.c, shm_collectives.c, shm_pipeline.c. Each honours its line in model/ops.h. */
enum rk_status rk_shm_count_exchange(struct rk_transport *transport, const struct rk_op_call *call,
                                     struct rk_error *error);
enum rk_status rk_shm_dispatch(struct rk_transport *transport, const struct rk_op_call *call, struct rk_error *error);
enum rk_status rk_shm_combine(struct rk_transport *transport, const struct rk_op_call *call, struct rk_error *error);
enum rk_status rk_shm_reduce_scatter(struct rk_transport *transport, const struct rk_op_call *call,
                                     struct rk_error *error);
enum rk_status rk_shm_all_gather(struct rk_transport *transport, const struct rk_op_call *call, struct rk_error *error);
enum rk_status rk_shm_all_reduce(struct rk_transport *transport, const struct rk_op_call *call, struct rk_error *error);
enum rk_status rk_shm_send(struct rk_transport *transport, const struct rk_op_call *call, struct rk_error *error);
enum rk_status rk_shm_receive(struct rk_transport *transport, const struct rk_op_call *call, struct rk_error *error);

/* Bytes that one round of the op publishes, without the header; 0 for ops that publish nothing. */
int64_t rk_shm_publish_need(const struct rk_op_shape *shape);

/* "the rank that the peers wait for": "rank 3 (host n01, process 412)". Returns buffer. */
char *rk_shm_rank_name(const struct rk_transport *transport, int64_t rank, char *buffer, size_t size);
/* "all_reduce over the data group in layer 3, micro-batch 1, segment "reduction", step 12". Returns buffer. */
char *rk_shm_place_name(const struct rk_transport *transport, char *buffer, size_t size);

#endif

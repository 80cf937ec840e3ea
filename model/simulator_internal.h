/* Between the files of the simulator: programs with their prices, ready to be played, and the books both players keep.
 * Private to model/simulator*.c. */
#ifndef RK_MODEL_SIMULATOR_INTERNAL_H
#define RK_MODEL_SIMULATOR_INTERNAL_H

#include "model/cost_place.h"
#include "model/simulator.h"

/* How an op meets other stages. */
enum rk_meeting_kind { RK_MEETING_NONE, RK_MEETING_SEND, RK_MEETING_RECEIVE, RK_MEETING_ALL };

/* An op as the players need it: small, because the loops run over millions. */
struct rk_played_op {
    double seconds;          /* with as many ranks of the host busy as it has devices */
    double alone;            /* with only the op's own group busy; differs on shared devices only */
    uint32_t busy_full;      /* ranks busy in the first price */
    uint32_t busy_alone;     /* in the second */
    int32_t channel;         /* where it meets other stages, or -1 */
    uint8_t lane;            /* stream, or 0 for all with serial streams */
    uint8_t account;         /* enum rk_stage_account */
    uint8_t meeting;         /* enum rk_meeting_kind */
    uint8_t wait_count;
    struct rk_event_reference wait[RK_OP_WAITS];
    uint8_t record_count;
    struct rk_event_reference record[RK_OP_RECORDS];
};

struct rk_played_stage {
    const struct rk_program *program;
    struct rk_played_op *ops;      /* one per op of the program */
    struct rk_cost *costs;         /* one per op; unpriced (zero) in segments without a visit */
    int64_t *segment_visits;       /* one per segment */
    int64_t op_instances;          /* ops of all visits */
    uint32_t *event_first;         /* first instance of each event */
    uint32_t event_instances;

    /* What a player found. */
    double *busy;                  /* seconds by op, all visits, without waiting for peers */
    double account[RK_STAGE_ACCOUNT_COUNT];
    double end;                    /* when the stage's last op ends */
};

/* The channels: 2 · stage + 0 forward and + 1 backward traffic that a stage sends; then WORLD, then EMBEDDING. */
struct rk_played {
    const struct rk_machine *machine;
    struct rk_played_stage *stages;
    int32_t stage_count;
    int32_t channel_count;
    bool buffered;                 /* sends copy at once and never wait (CPU transports) */
    bool serial;
    double launch;                 /* seconds of host time for each op; 0 with serial streams, where prices hold it */
    double ranks_per_stage;        /* D */

    bool want_timeline;
    struct rk_timeline_entry *timeline;
    size_t timeline_count, timeline_capacity;
};

enum rk_status rk_played_make(const struct rk_program *const *programs, const struct rk_machine *machine,
                              const struct rk_cost_source *costs, struct rk_played *played, struct rk_error *error);
void rk_played_free(struct rk_played *played);

/* Participants of a channel. */
int32_t rk_played_channel_size(const struct rk_played *played, int32_t channel);

/* "stage 2, micro-batch 3, layer 7, segment 'receive activations': receive on stream pipeline_forward" */
void rk_played_describe(const struct rk_played *played, int32_t stage, size_t visit, size_t op, char *buffer,
                        size_t size);
/* Whom an op that stands in its channel waits for: "the send of stage 1", "the same op of all 4 stages". */
void rk_played_describe_peers(const struct rk_played *played, int32_t stage, const struct rk_played_op *op,
                              char *buffer, size_t size);

enum rk_status rk_played_record(struct rk_played *played, int32_t stage, size_t op, size_t visit, double start,
                                double end, struct rk_error *error);

/* The two players fill busy, account and end of every stage and the timeline.
 *
 * Replay: devices are not shared, so an op's end follows from what came before it; ops are resolved as soon as that is
 * known, in any order, in one pass over the programs. Sharing: time runs forward from one completion to the next,
 * because who is busy decides how fast the others are; needs serial streams. */
enum rk_status rk_simulator_replay(struct rk_played *played, struct rk_error *error);
enum rk_status rk_simulator_share(struct rk_played *played, struct rk_error *error);

#endif

/* The event simulator: plays the step programs of all stages on the streams of every stage's rank and the machine's
 * devices.
 *
 * Replicas of a stage are played once (with the hottest rank's costs), so P ranks are played, not G. An op starts when
 * it is first in its stream, its waits are over, the host has submitted it (launch times add up in program order) and,
 * for transports, its peers stand at the same op:
 *   - ops inside a stage's groups (EP-MP, EP-DP, data) find their peers there, because replicas play alike;
 *   - the k-th SEND of a stage in a direction meets the k-th RECEIVE of that neighbour. On GPUs both hold their streams
 *     from the later arrival on, for the longer of the two prices. The CPU back end buffers: a SEND copies at once and
 *     never waits; its RECEIVE starts when the copy is complete;
 *   - the k-th WORLD (EMBEDDING) op of all stages (the first and the last) starts at the last arrival.
 * With machine.serial_streams a rank has one lane on which its ops follow one another in program order. With
 * machine.shared_devices too, all D · P ranks count: when more are busy than there are devices, each proceeds at
 * devices/busy of its speed; a rank that waits is not busy. */
#ifndef RK_MODEL_SIMULATOR_H
#define RK_MODEL_SIMULATOR_H

#include "model/cost.h"
#include "model/program.h"

/* The accounts that make up a stage's step, in struct rk_stage_time: members of that name, a text for people and a
 * short heading. X(member, text, heading) */
#define RK_STAGE_ACCOUNT_TABLE(X)                                                                                      \
    X(compute, "compute", "compute")                        /* the compute stream works (kernels and local copies) */  \
    X(exposed_exchange, "exposed exchange", "exchange")     /* waits for EP traffic that compute does not cover */     \
    X(exposed_pipeline, "exposed pipeline", "pipeline")     /* stage traffic's transfer time that it does not cover */ \
    X(bubble, "bubble", "bubble")                           /* waits for other stages' work */                         \
    X(exposed_reduction, "exposed reduction", "reduction")  /* gradient collectives not covered */                     \
    X(optimizer, "optimizer", "optimizer")                  /* norm, update, weight gather */                          \
    X(exposed_offload, "exposed offload", "offload")        /* waits for copies */                                     \
    X(starved, "starved", "host")                           /* waits for the host to submit */

enum rk_stage_account {
#define RK_STAGE_ACCOUNT_INDEX(member, text, heading) RK_STAGE_ACCOUNT_##member,
    RK_STAGE_ACCOUNT_TABLE(RK_STAGE_ACCOUNT_INDEX)
#undef RK_STAGE_ACCOUNT_INDEX
        RK_STAGE_ACCOUNT_COUNT
};

/* Seconds of one stage's step by account; total is their sum to 1e-9 relative. Every stage's total is the makespan of
 * the slowest stage: a stage that ends earlier waits in `bubble`. */
struct rk_stage_time {
#define RK_STAGE_ACCOUNT_MEMBER(member, text, heading) double member;
    RK_STAGE_ACCOUNT_TABLE(RK_STAGE_ACCOUNT_MEMBER)
#undef RK_STAGE_ACCOUNT_MEMBER
    double total;
    double phase[RK_PHASE_COUNT];      /* busy seconds by phase, over all streams */
    double family[RK_OP_FAMILY_COUNT]; /* busy seconds by op family, over all streams */
    double stream_busy[RK_STREAM_COUNT];
    double host_submission; /* launches · launch time; 0 where the ops' own prices hold it (serial streams) */
};

const char *rk_stage_account_name(int account);    /* "exposed exchange" */
const char *rk_stage_account_member(int account);  /* "exposed_exchange" */
const char *rk_stage_account_heading(int account); /* "exchange" */
double rk_stage_account_seconds(const struct rk_stage_time *time, int account);
/* Where an op's time is booked: by its phase in the optimizer, else by its family. */
enum rk_stage_account rk_stage_account_of(const struct rk_op *op);
/* The stage that decides how long a step takes: the one that waits least for the others. */
int32_t rk_stage_deciding(const struct rk_stage_time *stages, int32_t count);

struct rk_timeline_entry {
    int32_t stage;
    enum rk_stream_kind stream;
    size_t op;                  /* index into the stage program's ops */
    size_t visit;
    double start, end;          /* seconds from the start of the step */
};

struct rk_simulation {
    double step_seconds;        /* makespan of the slowest stage, plus the machine's step overhead */
    double low, high;           /* 95 % interval from the terms' uncertainties (systematic errors of one op kind add up,
                                   different kinds combine as independent) */
    struct rk_stage_time *stages; /* one per stage; owned */
    int32_t stage_count;
    double kind_seconds[RK_OP_KIND_COUNT];      /* busy seconds of the stage that decides, by op kind */
    int64_t kind_count[RK_OP_KIND_COUNT];
    struct rk_cost kind_origin[RK_OP_KIND_COUNT]; /* the worst origin and the uncertainty of each kind's time */
    struct rk_timeline_entry *timeline;         /* owned; NULL unless asked for */
    size_t timeline_count;
};

/* programs[stage], pipeline of them. A program that would wait for ever (a cycle between streams or stages) is RK_ERROR
 * and names the op, the stage and what it waits for. */
enum rk_status rk_simulate(const struct rk_program *const *programs, const struct rk_machine *machine,
                           const struct rk_cost_source *costs, bool want_timeline, struct rk_simulation *simulation,
                           struct rk_error *error);
void rk_simulation_free(struct rk_simulation *simulation);

#endif

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

/* Accounts of one stage's step; total = sum of the first eight to 1e-9 relative. Seconds. Every stage's total is the
 * makespan of the slowest stage: a stage that ends earlier waits in `bubble`. */
struct rk_stage_time {
    double compute;             /* the compute stream works (kernels and local copies) */
    double exposed_exchange;    /* waits for EP traffic that compute does not cover */
    double exposed_pipeline;    /* transfer time of stage traffic that compute does not cover */
    double bubble;              /* waits for other stages' work */
    double exposed_reduction;   /* gradient collectives not covered */
    double optimizer;           /* norm, update, weight gather */
    double exposed_offload;     /* waits for copies */
    double starved;             /* waits for the host to submit */
    double total;
    double phase[RK_PHASE_COUNT];           /* busy seconds by phase, over all streams */
    double family[RK_OP_FAMILY_COUNT];         /* busy seconds by op family, over all streams */
    double stream_busy[RK_STREAM_COUNT];
    double host_submission;                 /* launches · launch time */
};

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

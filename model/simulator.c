#include "model/simulator_internal.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *member, *heading;
    size_t offset;
} accounts[RK_STAGE_ACCOUNT_COUNT] = {
#define RK_STAGE_ACCOUNT_ROW(member, text, heading) {text, #member, heading, offsetof(struct rk_stage_time, member)},
    RK_STAGE_ACCOUNT_TABLE(RK_STAGE_ACCOUNT_ROW)
#undef RK_STAGE_ACCOUNT_ROW
};

const char *rk_stage_account_name(int account) {
    return accounts[account].name;
}

const char *rk_stage_account_member(int account) {
    return accounts[account].member;
}

const char *rk_stage_account_heading(int account) {
    return accounts[account].heading;
}

double rk_stage_account_seconds(const struct rk_stage_time *time, int account) {
    double seconds;
    memcpy(&seconds, (const char *)time + accounts[account].offset, sizeof seconds);
    return seconds;
}

enum rk_stage_account rk_stage_account_of(const struct rk_op *op) {
    if (op->phase == RK_PHASE_OPTIMIZER)
        return RK_STAGE_ACCOUNT_optimizer;
    switch (rk_op_family(op->shape.kind)) {
    case RK_OP_FAMILY_EXPERT_EXCHANGE:
        return RK_STAGE_ACCOUNT_exposed_exchange;
    case RK_OP_FAMILY_PIPELINE:
        return RK_STAGE_ACCOUNT_exposed_pipeline;
    case RK_OP_FAMILY_COLLECTIVE:
        return RK_STAGE_ACCOUNT_exposed_reduction;
    case RK_OP_FAMILY_OFFLOAD:
        return RK_STAGE_ACCOUNT_exposed_offload;
    default:
        return RK_STAGE_ACCOUNT_compute;
    }
}

int32_t rk_stage_deciding(const struct rk_stage_time *stages, int32_t count) {
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++)
        if (stages[i].bubble < stages[best].bubble)
            best = i;
    return best;
}

static void sum_stage(const struct rk_played *played, int32_t index, double makespan, struct rk_stage_time *time) {
    const struct rk_played_stage *stage = &played->stages[index];
    const struct rk_program *program = stage->program;
    for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++)
        memcpy((char *)time + accounts[account].offset, &stage->account[account], sizeof stage->account[account]);
    time->bubble += makespan - stage->end;
    time->total = makespan;
    for (size_t i = 0; i < program->op_count; i++) {
        const struct rk_op *op = &program->ops[i];
        time->phase[op->phase] += stage->busy[i];
        time->family[rk_op_family(op->shape.kind)] += stage->busy[i];
        time->stream_busy[op->stream] += stage->busy[i];
    }
    time->host_submission = (double)stage->op_instances * played->launch;
}

static void sum_kinds(const struct rk_played *played, int32_t index, struct rk_simulation *simulation) {
    const struct rk_played_stage *stage = &played->stages[index];
    const struct rk_program *program = stage->program;
    double doubt[RK_OP_KIND_COUNT] = {0};
    for (size_t s = 0; s < program->segment_count; s++) {
        int64_t visits = stage->segment_visits[s];
        const struct rk_segment *segment = &program->segments[s];
        for (size_t i = segment->first_op; visits > 0 && i < segment->first_op + segment->op_count; i++) {
            enum rk_op_kind kind = program->ops[i].shape.kind;
            const struct rk_cost *cost = &stage->costs[i];
            struct rk_cost *sum = &simulation->kind_origin[kind];
            if (simulation->kind_count[kind] == 0 || cost->origin > sum->origin)
                *sum = *cost;
            simulation->kind_count[kind] += visits;
            simulation->kind_seconds[kind] += stage->busy[i];
            doubt[kind] += stage->busy[i] * cost->relative_uncertainty;
        }
    }
    for (int kind = 0; kind < RK_OP_KIND_COUNT; kind++) {
        struct rk_cost *sum = &simulation->kind_origin[kind];
        sum->seconds = simulation->kind_seconds[kind];
        sum->relative_uncertainty = sum->seconds > 0 ? doubt[kind] / sum->seconds : 0;
    }
}

/* Share of an account's busy time that the step waits for: hidden transfers do not widen the interval. */
static double exposed_share(const struct rk_stage_time *time, enum rk_op_family family) {
    double exposed = 0;
    switch (family) {
    case RK_OP_FAMILY_EXPERT_EXCHANGE:
        exposed = time->exposed_exchange;
        break;
    case RK_OP_FAMILY_PIPELINE:
        exposed = time->exposed_pipeline;
        break;
    case RK_OP_FAMILY_COLLECTIVE:
        exposed = time->exposed_reduction + time->optimizer;
        break;
    case RK_OP_FAMILY_OFFLOAD:
        exposed = time->exposed_offload;
        break;
    default:
        return 1;
    }
    double busy = time->family[family];
    return busy > exposed ? exposed / busy : 1;
}

static void make_interval(const struct rk_machine *machine, int32_t deciding, struct rk_simulation *simulation) {
    const struct rk_stage_time *time = &simulation->stages[deciding];
    double squares = 0, all = 0;
    for (int kind = 0; kind < RK_OP_KIND_COUNT; kind++) {
        double share = exposed_share(time, rk_op_family((enum rk_op_kind)kind));
        double seconds = simulation->kind_seconds[kind] * share;
        double half = seconds * simulation->kind_origin[kind].relative_uncertainty;
        squares += half * half;
        all += seconds;
    }
    /* The bubble is other stages' time of the same kinds: it is as uncertain as the rest. */
    double half = all > 0 ? sqrt(squares) / all * time->total : 0;
    double overhead = machine->step_overhead.value;
    double overhead_half = overhead * machine->step_overhead.relative_uncertainty;
    half = sqrt(half * half + overhead_half * overhead_half);
    simulation->low = simulation->step_seconds - half;
    simulation->high = simulation->step_seconds + half;
    if (simulation->low < 0)
        simulation->low = 0;
}

static enum rk_status check_request(const struct rk_program *const *programs, const struct rk_machine *machine,
                                    struct rk_error *error) {
    if (machine->shared_devices && !machine->serial_streams)
        return rk_fail(error, RK_USAGE, "machine '%s': shared devices with overlapping streams are not modelled",
                       machine->name);
    if (machine->shared_devices && machine->devices_per_host < 1)
        return rk_fail(error, RK_USAGE, "machine '%s': it has %d devices", machine->name, machine->devices_per_host);
    int32_t stages = programs[0]->candidate.pipeline;
    for (int32_t i = 0; i < stages; i++)
        if (programs[i]->stage != i || programs[i]->candidate.pipeline != stages)
            return rk_fail(error, RK_USAGE, "step program %d is that of stage %d of %d", i, programs[i]->stage,
                           programs[i]->candidate.pipeline);
    return RK_OK;
}

enum rk_status rk_simulate(const struct rk_program *const *programs, const struct rk_machine *machine,
                           const struct rk_cost_source *costs, bool want_timeline, struct rk_simulation *simulation,
                           struct rk_error *error) {
    enum rk_status status = check_request(programs, machine, error);
    if (status != RK_OK)
        return status;
    struct rk_played played;
    if ((status = rk_played_make(programs, machine, costs, &played, error)) != RK_OK)
        return status;
    struct rk_simulation made = {.stage_count = played.stage_count};
    played.want_timeline = want_timeline;
    made.stages = calloc((size_t)played.stage_count, sizeof *made.stages);
    if (made.stages == NULL) {
        rk_played_free(&played);
        return rk_fail(error, RK_ERROR, "out of memory for the accounts of %d stages", made.stage_count);
    }
    status = machine->shared_devices ? rk_simulator_share(&played, error) : rk_simulator_replay(&played, error);
    if (status != RK_OK) {
        free(made.stages);
        rk_played_free(&played);
        return status;
    }
    double makespan = 0;
    for (int32_t i = 0; i < played.stage_count; i++)
        makespan = fmax(makespan, played.stages[i].end);
    for (int32_t i = 0; i < played.stage_count; i++)
        sum_stage(&played, i, makespan, &made.stages[i]);
    made.step_seconds = makespan + machine->step_overhead.value;
    int32_t deciding = rk_stage_deciding(made.stages, made.stage_count);
    sum_kinds(&played, deciding, &made);
    make_interval(machine, deciding, &made);
    made.timeline = played.timeline;
    made.timeline_count = played.timeline_count;
    played.timeline = NULL;
    rk_played_free(&played);
    *simulation = made;
    return RK_OK;
}

void rk_simulation_free(struct rk_simulation *simulation) {
    if (simulation == NULL)
        return;
    free(simulation->stages);
    free(simulation->timeline);
    *simulation = (struct rk_simulation){0};
}

#include "model/schedule.h"
#include "tests/model/synthetic.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STAGES_MAX = 8 };

struct pipeline {
    int32_t stages, virtual_stages;
    int64_t micro_batches;
    int64_t forward[STAGES_MAX]; /* ticks of a whole stage; backward takes twice as long */
    int64_t transfer;            /* ticks */
};

/* The chunk visits of a stage as a program: receive, compute, send, each transfer on the stream of its end. */
static struct rk_program *pipeline_program(const struct pipeline *pipeline, int32_t stage) {
    enum { FORWARD_ARRIVED, BACKWARD_ARRIVED, FORWARD_DONE, BACKWARD_DONE };
    int32_t last = pipeline->stages - 1, virtual_last = pipeline->virtual_stages - 1;
    int64_t ticks = pipeline->forward[stage] / pipeline->virtual_stages;
    struct rk_program *program = synthetic_make(pipeline->stages, 1, stage);
    uint32_t receive_forward = synthetic_segment(program, RK_OP_RECEIVE, RK_GROUP_PIPELINE_PREVIOUS,
                                                 RK_STREAM_RECEIVE_FORWARD, pipeline->transfer);
    uint32_t receive_backward = synthetic_segment(program, RK_OP_RECEIVE, RK_GROUP_PIPELINE_NEXT,
                                                  RK_STREAM_RECEIVE_BACKWARD, pipeline->transfer);
    uint32_t forward = synthetic_segment(program, RK_OP_ZERO, RK_GROUP_NONE, RK_STREAM_COMPUTE, ticks);
    uint32_t first_forward = synthetic_segment(program, RK_OP_ZERO, RK_GROUP_NONE, RK_STREAM_COMPUTE, ticks);
    uint32_t backward = synthetic_segment(program, RK_OP_GEMM_DGRAD, RK_GROUP_NONE, RK_STREAM_COMPUTE, 2 * ticks);
    uint32_t last_backward = synthetic_segment(program, RK_OP_GEMM_DGRAD, RK_GROUP_NONE, RK_STREAM_COMPUTE, 2 * ticks);
    uint32_t send_forward =
        synthetic_segment(program, RK_OP_SEND, RK_GROUP_PIPELINE_NEXT, RK_STREAM_SEND_FORWARD, pipeline->transfer);
    uint32_t send_backward =
        synthetic_segment(program, RK_OP_SEND, RK_GROUP_PIPELINE_PREVIOUS, RK_STREAM_SEND_BACKWARD, pipeline->transfer);
    synthetic_record(synthetic_op(program, receive_forward), FORWARD_ARRIVED);
    synthetic_record(synthetic_op(program, receive_backward), BACKWARD_ARRIVED);
    synthetic_wait(synthetic_op(program, forward), FORWARD_ARRIVED);
    synthetic_wait(synthetic_op(program, backward), BACKWARD_ARRIVED);
    synthetic_record(synthetic_op(program, forward), FORWARD_DONE);
    synthetic_record(synthetic_op(program, first_forward), FORWARD_DONE);
    synthetic_record(synthetic_op(program, backward), BACKWARD_DONE);
    synthetic_record(synthetic_op(program, last_backward), BACKWARD_DONE);
    synthetic_wait(synthetic_op(program, send_forward), FORWARD_DONE);
    synthetic_wait(synthetic_op(program, send_backward), BACKWARD_DONE);

    int64_t count = 2 * pipeline->virtual_stages * pipeline->micro_batches;
    struct rk_chunk_visit *visits = calloc((size_t)count, sizeof *visits);
    assert_non_null(visits);
    assert_int_equal(
        rk_schedule_order(pipeline->stages, pipeline->virtual_stages, pipeline->micro_batches, stage, visits, NULL),
        RK_OK);
    for (int64_t i = 0; i < count; i++) {
        const struct rk_chunk_visit *visit = &visits[i];
        bool first_chunk = stage == 0 && visit->virtual_stage == 0;
        bool last_chunk = stage == last && visit->virtual_stage == virtual_last;
        if (!visit->backward && !first_chunk)
            synthetic_visit(program, receive_forward, visit->micro_batch);
        if (visit->backward && !last_chunk)
            synthetic_visit(program, receive_backward, visit->micro_batch);
        if (visit->backward)
            synthetic_visit(program, last_chunk ? last_backward : backward, visit->micro_batch);
        else
            synthetic_visit(program, first_chunk ? first_forward : forward, visit->micro_batch);
        if (!visit->backward && !last_chunk)
            synthetic_visit(program, send_forward, visit->micro_batch);
        if (visit->backward && !first_chunk)
            synthetic_visit(program, send_backward, visit->micro_batch);
    }
    free(visits);
    return program;
}

static double sum_of_accounts(const struct rk_stage_time *time) {
    return time->compute + time->exposed_exchange + time->exposed_pipeline + time->bubble + time->exposed_reduction +
           time->optimizer + time->exposed_offload + time->starved;
}

static void check_accounts(const struct rk_simulation *simulation) {
    for (int32_t i = 0; i < simulation->stage_count; i++) {
        const struct rk_stage_time *time = &simulation->stages[i];
        assert_true(fabs(sum_of_accounts(time) - time->total) <= 1e-9 * time->total);
        for (const double *value = &time->compute; value <= &time->total; value++)
            assert_true(*value >= -1e-9 * time->total);
    }
    assert_true(simulation->low <= simulation->step_seconds && simulation->step_seconds <= simulation->high);
}

static double play(struct rk_program *const *programs, const struct rk_machine *machine, double *scale,
                   struct rk_simulation *simulation) {
    struct rk_cost_source costs = synthetic_costs(scale);
    struct rk_error error = {0};
    enum rk_status status =
        rk_simulate((const struct rk_program *const *)programs, machine, &costs, true, simulation, &error);
    if (status != RK_OK)
        fail_msg("%s", error.text);
    check_accounts(simulation);
    return simulation->step_seconds;
}

static double play_pipeline(const struct pipeline *pipeline) {
    struct rk_program *programs[STAGES_MAX];
    for (int32_t i = 0; i < pipeline->stages; i++)
        programs[i] = pipeline_program(pipeline, i);
    struct rk_machine machine = synthetic_gpu();
    struct rk_simulation simulation;
    double seconds = play(programs, &machine, NULL, &simulation);
    rk_simulation_free(&simulation);
    for (int32_t i = 0; i < pipeline->stages; i++)
        synthetic_free(programs[i]);
    return seconds;
}

/* The published vectors: forward 1, backward 2 per full stage, Megatron's orders. */
static void test_pipeline_vectors(void **state) {
    (void)state;
    static const struct {
        struct pipeline pipeline;
        double makespan;
    } vectors[] = {
        {{4, 1, 8, {1200, 1200, 1200, 1200}, 0}, 33},
        {{4, 1, 2, {1200, 1200, 1200, 1200}, 0}, 15},
        {{4, 1, 3, {1200, 1200, 1200, 1200}, 0}, 18},
        {{4, 2, 8, {1200, 1200, 1200, 1200}, 0}, 28.5},
        {{4, 2, 4, {1200, 1200, 1200, 1200}, 0}, 16.5},
        {{8, 2, 16, {1200, 1200, 1200, 1200, 1200, 1200, 1200, 1200}, 0}, 58.5},
        {{8, 4, 16, {1200, 1200, 1200, 1200, 1200, 1200, 1200, 1200}, 0}, 53.25},
        {{8, 3, 64, {1200, 1200, 1200, 1200, 1200, 1200, 1200, 1200}, 0}, 199},
        {{2, 4, 8, {1200, 1200}, 0}, 24.75},
        {{4, 1, 8, {1200, 1200, 1200, 1800}, 0}, 45},
        {{4, 1, 8, {600, 1200, 1200, 1200}, 0}, 31.5},
        {{4, 1, 8, {1200, 2400, 1200, 1200}, 0}, 53},
        {{4, 1, 8, {1800, 1200, 1200, 1200}, 0}, 40.5},
        {{4, 1, 8, {1200, 1200, 1200, 1200}, 120}, 34.6},
        {{4, 2, 8, {1200, 1200, 1200, 1200}, 120}, 29.9},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        double seconds = play_pipeline(&vectors[i].pipeline) / 1.2;
        if (fabs(seconds - vectors[i].makespan) > 1e-9)
            fail_msg("vector %zu: %.6f instead of %.6f", i, seconds, vectors[i].makespan);
    }
}

/* Twice the micro-batches take at least as long, and idle stages show it as bubble. */
static void test_more_micro_batches(void **state) {
    (void)state;
    double before = 0;
    for (int64_t micro_batches = 4; micro_batches <= 64; micro_batches *= 2) {
        struct pipeline pipeline = {4, 2, micro_batches, {1200, 1300, 1100, 1250}, 50};
        double seconds = play_pipeline(&pipeline);
        assert_true(seconds > before);
        before = seconds;
    }
}

/* ---- An independent reference ---- */

/* Random programs that end: ops are appended to the stages in one global order, transfers to both ends at once. */
struct world {
    int32_t stages, data_parallel;
    struct rk_program *programs[STAGES_MAX];
};

static uint32_t dice(uint64_t *random, uint32_t sides) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33) % sides;
}

static void append(struct rk_program *program, uint64_t *random, enum rk_op_kind kind, enum rk_group_kind group,
                   enum rk_stream_kind stream, int64_t ticks, enum rk_phase phase) {
    uint32_t segment = synthetic_segment(program, kind, group, stream, ticks);
    struct rk_op *op = synthetic_op(program, segment);
    op->phase = phase;
    for (uint32_t waits = dice(random, 3); waits > 0; waits--)
        synthetic_wait(op, (uint16_t)dice(random, 6));
    for (uint32_t records = dice(random, 3); records > 0; records--)
        synthetic_record(op, (uint16_t)dice(random, 6));
    synthetic_visit(program, segment, -1);
}

static void append_transfer(struct world *world, uint64_t *random, int64_t ticks) {
    int32_t stage = (int32_t)dice(random, (uint32_t)world->stages);
    bool forward = dice(random, 2) == 0;
    int32_t peer = (stage + (forward ? 1 : world->stages - 1)) % world->stages;
    append(world->programs[stage], random, RK_OP_SEND, forward ? RK_GROUP_PIPELINE_NEXT : RK_GROUP_PIPELINE_PREVIOUS,
           forward ? RK_STREAM_SEND_FORWARD : RK_STREAM_SEND_BACKWARD, ticks, RK_PHASE_FORWARD);
    append(world->programs[peer], random, RK_OP_RECEIVE, forward ? RK_GROUP_PIPELINE_PREVIOUS : RK_GROUP_PIPELINE_NEXT,
           forward ? RK_STREAM_RECEIVE_FORWARD : RK_STREAM_RECEIVE_BACKWARD, ticks, RK_PHASE_FORWARD);
}

static void random_world(uint64_t *random, struct world *world) {
    static const enum rk_op_kind kinds[] = {RK_OP_ZERO, RK_OP_GEMM_FORWARD, RK_OP_DISPATCH, RK_OP_ADAMW,
                                            RK_OP_COPY_D2H};
    static const enum rk_stream_kind streams[] = {RK_STREAM_COMPUTE, RK_STREAM_COMPUTE, RK_STREAM_EXCHANGE,
                                                  RK_STREAM_REDUCTION, RK_STREAM_D2H};
    world->stages = 1 + (int32_t)dice(random, 4);
    world->data_parallel = 1 + (int32_t)dice(random, 3);
    for (int32_t i = 0; i < world->stages; i++)
        world->programs[i] = synthetic_make(world->stages, world->data_parallel, i);
    for (uint32_t action = 0, actions = 4 + dice(random, 60); action < actions; action++) {
        int64_t ticks = dice(random, 10) == 0 ? 0 : 1 + dice(random, 200);
        uint32_t choice = dice(random, 10);
        if (choice < 3 && world->stages > 1)
            append_transfer(world, random, ticks);
        else if (choice == 3 && world->stages > 1)
            for (int32_t i = 0; i < world->stages; i++)
                append(world->programs[i], random, RK_OP_ALL_REDUCE, RK_GROUP_WORLD, RK_STREAM_REDUCTION, ticks,
                       RK_PHASE_OPTIMIZER);
        else if (choice == 4 && world->stages > 1) {
            append(world->programs[0], random, RK_OP_ALL_REDUCE, RK_GROUP_EMBEDDING, RK_STREAM_COMPUTE, ticks,
                   RK_PHASE_REDUCTION);
            append(world->programs[world->stages - 1], random, RK_OP_ALL_REDUCE, RK_GROUP_EMBEDDING, RK_STREAM_COMPUTE,
                   ticks, RK_PHASE_REDUCTION);
        } else {
            uint32_t which = dice(random, 5);
            append(world->programs[dice(random, (uint32_t)world->stages)], random, kinds[which], RK_GROUP_NONE,
                   streams[dice(random, 5)], ticks, which == 3 ? RK_PHASE_OPTIMIZER : RK_PHASE_FORWARD);
        }
    }
}

static void free_world(struct world *world) {
    for (int32_t i = 0; i < world->stages; i++)
        synthetic_free(world->programs[i]);
}

/* One op of the reference: everything about it is looked up afresh in every round. */
struct reference_op {
    const struct rk_op *op;
    int32_t stage;
    double ready, end;
    bool known;
};

/* Whether two ops are the two ends of one transfer or the same collective: same number among their like. */
static bool same_meeting(const struct world *world, const struct rk_program *left, size_t i,
                         const struct rk_program *right, size_t j) {
    const struct rk_op *a = &left->ops[i], *b = &right->ops[j];
    enum rk_op_kind partner = a->shape.kind;
    enum rk_group_kind group = a->shape.group;
    if (a->shape.kind == RK_OP_SEND || a->shape.kind == RK_OP_RECEIVE) {
        partner = a->shape.kind == RK_OP_SEND ? RK_OP_RECEIVE : RK_OP_SEND;
        bool next = group == RK_GROUP_PIPELINE_NEXT;
        group = next ? RK_GROUP_PIPELINE_PREVIOUS : RK_GROUP_PIPELINE_NEXT;
        int32_t peer = (left->stage + (next ? 1 : world->stages - 1)) % world->stages;
        if (right->stage != peer)
            return false;
    } else if (group != RK_GROUP_WORLD && group != RK_GROUP_EMBEDDING)
        return false;
    if (b->shape.kind != partner || b->shape.group != group)
        return false;
    int number_left = 0, number_right = 0;
    for (size_t k = 0; k < i; k++)
        number_left += left->ops[k].shape.kind == a->shape.kind && left->ops[k].shape.group == a->shape.group;
    for (size_t k = 0; k < j; k++)
        number_right += right->ops[k].shape.kind == partner && right->ops[k].shape.group == group;
    return number_left == number_right;
}

/* When everything before an op of its stage is known, when it may start; else -1. */
static double reference_ready(const struct rk_program *program, const struct reference_op *ops, size_t i, bool serial,
                              double launch) {
    double ready = launch * (double)(i + 1);
    for (size_t k = 0; k < i; k++) {
        bool before = serial || program->ops[k].stream == program->ops[i].stream;
        for (int w = 0; !before && w < RK_OP_WAITS; w++) {
            uint16_t event = program->ops[i].wait[w].event;
            bool latest = false;
            for (int r = 0; event != RK_NO_EVENT && r < RK_OP_RECORDS; r++)
                latest = latest || program->ops[k].record[r].event == event;
            for (size_t later = k + 1; latest && later < i; later++)
                for (int r = 0; r < RK_OP_RECORDS; r++)
                    if (program->ops[later].record[r].event == event)
                        latest = false;
            before = latest;
        }
        if (!before)
            continue;
        if (!ops[k].known)
            return -1;
        ready = fmax(ready, ops[k].end);
    }
    return ready;
}

/* The makespan on devices that are not shared: rounds over all ops until none changes. */
static double reference_makespan(const struct world *world, bool serial, bool buffered, double launch) {
    struct reference_op *ops[STAGES_MAX];
    for (int32_t s = 0; s < world->stages; s++) {
        ops[s] = calloc(world->programs[s]->op_count + 1, sizeof *ops[s]);
        assert_non_null(ops[s]);
    }
    double makespan = 0;
    for (bool changed = true; changed;) {
        changed = false;
        for (int32_t s = 0; s < world->stages; s++) {
            const struct rk_program *program = world->programs[s];
            for (size_t i = 0; i < program->op_count; i++) {
                if (ops[s][i].known)
                    continue;
                double start = reference_ready(program, ops[s], i, serial, launch);
                double seconds = (double)program->ops[i].shape.dim[0] / 1000;
                for (int32_t t = 0; t < world->stages && start >= 0; t++)
                    for (size_t j = 0; j < world->programs[t]->op_count && start >= 0; j++) {
                        if ((t == s && j == i) || !same_meeting(world, program, i, world->programs[t], j))
                            continue;
                        if (buffered && program->ops[i].shape.kind == RK_OP_SEND)
                            continue;
                        if (buffered && program->ops[i].shape.kind == RK_OP_RECEIVE) {
                            start = ops[t][j].known ? fmax(start, ops[t][j].end) : -1;
                            continue;
                        }
                        double peer = reference_ready(world->programs[t], ops[t], j, serial, launch);
                        start = peer < 0 ? -1 : fmax(start, peer);
                        seconds = fmax(seconds, (double)world->programs[t]->ops[j].shape.dim[0] / 1000);
                    }
                if (start < 0)
                    continue;
                ops[s][i].known = changed = true;
                ops[s][i].end = start + seconds;
                makespan = fmax(makespan, ops[s][i].end);
            }
        }
    }
    for (int32_t s = 0; s < world->stages; s++) {
        for (size_t i = 0; i < world->programs[s]->op_count; i++)
            assert_true(ops[s][i].known);
        free(ops[s]);
    }
    return makespan;
}

static void test_replay_equals_reference(void **state) {
    (void)state;
    uint64_t random = 7;
    for (int round = 0; round < 1000; round++) {
        struct world world;
        random_world(&random, &world);
        struct rk_machine machine = synthetic_gpu();
        machine.serial_streams = round % 3 == 0;
        machine.backend = round % 2 == 0 ? RK_BACKEND_CPU : RK_BACKEND_CUDA;
        machine.launch.value = round % 5 == 0 ? 0.003 : 0;
        double launch = machine.serial_streams ? 0 : machine.launch.value;
        struct rk_simulation simulation;
        double seconds = play(world.programs, &machine, NULL, &simulation);
        double expected = reference_makespan(&world, machine.serial_streams, machine.backend == RK_BACKEND_CPU, launch);
        if (fabs(seconds - expected) > 1e-9 * expected + 1e-12)
            fail_msg("round %d: %.9f instead of %.9f", round, seconds, expected);
        rk_simulation_free(&simulation);
        free_world(&world);
    }
}

/* ---- Sharing ---- */

/* Every rank by itself: stage and replica, its next op, what is left of it. */
struct shared_rank {
    int32_t stage, replica;
    size_t op;
    bool running;
    double left;
};

static int64_t passed(const struct rk_program *program, size_t until, enum rk_op_kind kind, enum rk_group_kind group) {
    int64_t count = 0;
    for (size_t i = 0; i < until; i++)
        count += program->ops[i].shape.kind == kind && program->ops[i].shape.group == group;
    return count;
}

/* Whether the peers let a rank's op begin: sends at once, receives when the message lies there, collectives when all
 * stand at it (or have begun it). */
static bool may_begin(const struct world *world, const struct shared_rank *ranks, int32_t count,
                      const struct shared_rank *rank) {
    const struct rk_program *program = world->programs[rank->stage];
    const struct rk_op *op = &program->ops[rank->op];
    enum rk_group_kind group = op->shape.group;
    int64_t number = passed(program, rank->op, op->shape.kind, group);
    for (int32_t i = 0; i < count; i++) {
        const struct shared_rank *peer = &ranks[i];
        const struct rk_program *theirs = world->programs[peer->stage];
        if (op->shape.kind == RK_OP_RECEIVE) {
            bool next = group == RK_GROUP_PIPELINE_NEXT;
            int32_t sender = (rank->stage + (next ? 1 : world->stages - 1)) % world->stages;
            if (peer->replica == rank->replica && peer->stage == sender &&
                passed(theirs, peer->op, RK_OP_SEND, next ? RK_GROUP_PIPELINE_PREVIOUS : RK_GROUP_PIPELINE_NEXT) <=
                    number)
                return false;
        } else if (group == RK_GROUP_WORLD ||
                   (group == RK_GROUP_EMBEDDING && (peer->stage == 0 || peer->stage == world->stages - 1))) {
            const struct rk_op *now = peer->op < theirs->op_count ? &theirs->ops[peer->op] : NULL;
            int64_t before = passed(theirs, peer->op, op->shape.kind, group);
            bool stands = now != NULL && now->shape.kind == op->shape.kind && now->shape.group == group;
            if (before < number || (before == number && !stands))
                return false;
        }
    }
    return true;
}

/* Ranks beyond the devices slow one another down; the price of a collective already holds its own group's sharing. */
static double slowdown(const struct world *world, const struct shared_rank *rank, double busy, double devices) {
    enum rk_group_kind group = world->programs[rank->stage]->ops[rank->op].shape.group;
    double priced = group == RK_GROUP_WORLD       ? world->stages * world->data_parallel
                    : group == RK_GROUP_EMBEDDING ? 2
                                                  : 1;
    double fair = fmax(priced, devices);
    return busy > fair ? busy / fair : 1;
}

static double shared_makespan(const struct world *world, double devices) {
    struct shared_rank ranks[STAGES_MAX * 4];
    int32_t count = 0;
    for (int32_t s = 0; s < world->stages; s++)
        for (int32_t r = 0; r < world->data_parallel; r++)
            ranks[count++] = (struct shared_rank){.stage = s, .replica = r};
    double now = 0;
    for (;;) {
        int busy = 0;
        bool ended = true;
        for (int32_t i = 0; i < count; i++) {
            const struct rk_program *program = world->programs[ranks[i].stage];
            if (ranks[i].op >= program->op_count)
                continue;
            ended = false;
            if (!ranks[i].running && may_begin(world, ranks, count, &ranks[i])) {
                ranks[i].running = true;
                ranks[i].left = (double)program->ops[ranks[i].op].shape.dim[0] / 1000;
            }
            busy += ranks[i].running;
        }
        if (ended)
            return now;
        assert_true(busy > 0);
        double step = INFINITY;
        for (int32_t i = 0; i < count; i++)
            if (ranks[i].running)
                step = fmin(step, ranks[i].left * slowdown(world, &ranks[i], busy, devices));
        now += step;
        for (int32_t i = 0; i < count; i++) {
            if (!ranks[i].running)
                continue;
            ranks[i].left -= step / slowdown(world, &ranks[i], busy, devices);
            if (ranks[i].left < 1e-13) {
                ranks[i].running = false;
                ranks[i].op++;
            }
        }
    }
}

static void test_sharing_equals_reference(void **state) {
    (void)state;
    uint64_t random = 11;
    for (int round = 0; round < 1000; round++) {
        struct world world;
        random_world(&random, &world);
        struct rk_machine machine = synthetic_cpu(1 + (int32_t)dice(&random, 4));
        struct rk_simulation simulation;
        double seconds = play(world.programs, &machine, NULL, &simulation);
        double expected = shared_makespan(&world, machine.devices_per_host);
        if (fabs(seconds - expected) > 1e-8 * expected + 1e-12)
            fail_msg("round %d: %.9f instead of %.9f", round, seconds, expected);
        rk_simulation_free(&simulation);
        /* With a device for every rank the two players agree. */
        machine.devices_per_host = 64;
        double many = play(world.programs, &machine, NULL, &simulation);
        rk_simulation_free(&simulation);
        machine.shared_devices = false;
        double alone = play(world.programs, &machine, NULL, &simulation);
        rk_simulation_free(&simulation);
        assert_true(fabs(many - alone) <= 1e-9 * alone + 1e-12);
        assert_true(many <= seconds * (1 + 1e-9));
        free_world(&world);
    }
}

/* ---- What must hold of any simulation ---- */

static void test_slower_ops_never_help(void **state) {
    (void)state;
    uint64_t random = 23;
    for (int round = 0; round < 300; round++) {
        struct world world;
        random_world(&random, &world);
        struct rk_machine machine = synthetic_gpu();
        struct rk_simulation simulation;
        double before = play(world.programs, &machine, NULL, &simulation);
        rk_simulation_free(&simulation);
        double twice = 2;
        double doubled = play(world.programs, &machine, &twice, &simulation);
        rk_simulation_free(&simulation);
        assert_true(fabs(doubled - 2 * before) <= 1e-9 * doubled + 1e-12);
        struct rk_program *program = world.programs[dice(&random, (uint32_t)world.stages)];
        for (size_t i = 0; i < program->op_count; i++)
            if (program->ops[i].shape.group == RK_GROUP_NONE && dice(&random, 2) == 0)
                program->ops[i].shape.dim[0] += 37;
        double slower = play(world.programs, &machine, NULL, &simulation);
        rk_simulation_free(&simulation);
        assert_true(slower >= before * (1 - 1e-12));
        machine.launch.value = 0.01;
        double launched = play(world.programs, &machine, NULL, &simulation);
        rk_simulation_free(&simulation);
        assert_true(launched >= slower * (1 - 1e-12));
        free_world(&world);
    }
}

/* No two ops of a stream overlap, each stage's timeline ends with the step, and busy time adds up. */
static void test_timeline(void **state) {
    (void)state;
    struct pipeline pipeline = {4, 2, 8, {1200, 1100, 1300, 1200}, 70};
    struct rk_program *programs[STAGES_MAX];
    for (int32_t i = 0; i < pipeline.stages; i++)
        programs[i] = pipeline_program(&pipeline, i);
    struct rk_machine machine = synthetic_gpu();
    struct rk_simulation simulation;
    play(programs, &machine, NULL, &simulation);
    double busy[STAGES_MAX][RK_STREAM_COUNT] = {{0}}, ends[STAGES_MAX][RK_STREAM_COUNT] = {{0}}, last = 0;
    size_t ops = 0;
    for (int32_t i = 0; i < pipeline.stages; i++)
        ops += programs[i]->visit_count;
    assert_int_equal(simulation.timeline_count, ops);
    for (size_t i = 0; i < simulation.timeline_count; i++) {
        const struct rk_timeline_entry *entry = &simulation.timeline[i];
        assert_true(entry->start >= ends[entry->stage][entry->stream] - 1e-12);
        ends[entry->stage][entry->stream] = entry->end;
        busy[entry->stage][entry->stream] += entry->end - entry->start;
        last = fmax(last, entry->end);
    }
    assert_true(fabs(last - simulation.step_seconds) < 1e-12);
    for (int32_t i = 0; i < pipeline.stages; i++)
        for (int stream = 0; stream < RK_STREAM_COUNT; stream++)
            assert_true(fabs(busy[i][stream] - simulation.stages[i].stream_busy[stream]) < 1e-9);
    rk_simulation_free(&simulation);
    for (int32_t i = 0; i < pipeline.stages; i++)
        synthetic_free(programs[i]);
}

/* Where waiting time goes: one reduction behind compute, half covered. */
static void test_accounts(void **state) {
    (void)state;
    struct rk_program *program = synthetic_make(1, 4, 0);
    uint32_t compute = synthetic_segment(program, RK_OP_GEMM_FORWARD, RK_GROUP_NONE, RK_STREAM_COMPUTE, 1000);
    uint32_t reduce = synthetic_segment(program, RK_OP_REDUCE_SCATTER, RK_GROUP_DATA, RK_STREAM_REDUCTION, 1500);
    uint32_t update = synthetic_segment(program, RK_OP_ADAMW, RK_GROUP_NONE, RK_STREAM_COMPUTE, 250);
    synthetic_record(synthetic_op(program, compute), 1);
    synthetic_wait(synthetic_op(program, reduce), 1);
    synthetic_record(synthetic_op(program, reduce), 2);
    synthetic_wait(synthetic_op(program, update), 2);
    synthetic_op(program, update)->phase = RK_PHASE_OPTIMIZER;
    synthetic_op(program, reduce)->phase = RK_PHASE_REDUCTION;
    synthetic_visit(program, compute, 0);
    synthetic_visit(program, reduce, -1);
    synthetic_visit(program, compute, 1);
    synthetic_visit(program, update, -1);
    struct rk_machine machine = synthetic_gpu();
    struct rk_simulation simulation;
    play(&program, &machine, NULL, &simulation);
    const struct rk_stage_time *time = &simulation.stages[0];
    assert_true(fabs(time->compute - 2) < 1e-12);
    assert_true(fabs(time->exposed_reduction - 0.5) < 1e-12);
    assert_true(fabs(time->optimizer - 0.25) < 1e-12);
    assert_true(fabs(time->total - 2.75) < 1e-12);
    assert_true(fabs(time->phase[RK_PHASE_REDUCTION] - 1.5) < 1e-12);
    assert_true(simulation.kind_count[RK_OP_GEMM_FORWARD] == 2);
    rk_simulation_free(&simulation);

    /* The same, submitted so slowly that the device waits for the host. */
    machine.launch.value = 3;
    play(&program, &machine, NULL, &simulation);
    time = &simulation.stages[0];
    assert_true(fabs(time->total - 12.25) < 1e-12);
    assert_true(time->starved > 9);
    assert_true(fabs(time->host_submission - 12) < 1e-12);
    rk_simulation_free(&simulation);

    /* With serial streams the ops' own prices hold their submission. */
    machine.serial_streams = true;
    play(&program, &machine, NULL, &simulation);
    assert_true(simulation.stages[0].host_submission < 1e-12);
    rk_simulation_free(&simulation);
    synthetic_free(program);
}

/* The larger half-width of two kinds in equal parts is that of the independent sum; of one kind that of the kind. */
static void test_interval(void **state) {
    (void)state;
    struct rk_program *program = synthetic_make(1, 1, 0);
    uint32_t gemm = synthetic_segment(program, RK_OP_GEMM_FORWARD, RK_GROUP_NONE, RK_STREAM_COMPUTE, 1000);
    synthetic_visit(program, gemm, 0);
    synthetic_visit(program, gemm, 1);
    struct rk_machine machine = synthetic_gpu();
    struct rk_simulation simulation;
    play(&program, &machine, NULL, &simulation);
    assert_true(fabs(simulation.high - 2.2) < 1e-12);
    rk_simulation_free(&simulation);
    uint32_t norm = synthetic_segment(program, RK_OP_RMSNORM_FORWARD, RK_GROUP_NONE, RK_STREAM_COMPUTE, 2000);
    synthetic_visit(program, norm, 0);
    play(&program, &machine, NULL, &simulation);
    assert_true(fabs(simulation.high - (4 + 0.2 * sqrt(2))) < 1e-12);
    rk_simulation_free(&simulation);
    synthetic_free(program);
}

/* Two stages that both receive before they send wait for ever; the message names both. */
static void test_deadlock(void **state) {
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        struct rk_program *programs[2];
        for (int32_t i = 0; i < 2; i++) {
            programs[i] = synthetic_make(2, 1, i);
            enum rk_group_kind group = i == 0 ? RK_GROUP_PIPELINE_NEXT : RK_GROUP_PIPELINE_PREVIOUS;
            uint32_t receive = synthetic_segment(programs[i], RK_OP_RECEIVE, group, RK_STREAM_RECEIVE_FORWARD, 10);
            uint32_t send = synthetic_segment(programs[i], RK_OP_SEND, group, RK_STREAM_SEND_FORWARD, 10);
            synthetic_record(synthetic_op(programs[i], receive), 0);
            synthetic_wait(synthetic_op(programs[i], send), 0);
            synthetic_visit(programs[i], receive, 5);
            synthetic_visit(programs[i], send, 5);
        }
        struct rk_machine machine = shared ? synthetic_cpu(2) : synthetic_gpu();
        struct rk_cost_source costs = synthetic_costs(NULL);
        struct rk_simulation simulation;
        struct rk_error error = {0};
        enum rk_status status =
            rk_simulate((const struct rk_program *const *)programs, &machine, &costs, false, &simulation, &error);
        assert_int_equal(status, RK_ERROR);
        assert_non_null(strstr(error.text, "wait for ever"));
        assert_non_null(strstr(error.text, "stage 0, micro-batch 5, segment 'segment 0': receive"));
        assert_non_null(strstr(error.text, "waits for the send of stage 1"));
        assert_non_null(strstr(error.text, "waits for the send of stage 0"));
        synthetic_free(programs[0]);
        synthetic_free(programs[1]);
    }
}

/* Ends of a transfer that do not fit are refused with stage and sizes. */
static void test_transfers_must_fit(void **state) {
    (void)state;
    struct rk_program *programs[2] = {synthetic_make(2, 1, 0), synthetic_make(2, 1, 1)};
    uint32_t send = synthetic_segment(programs[0], RK_OP_SEND, RK_GROUP_PIPELINE_NEXT, RK_STREAM_SEND_FORWARD, 10);
    uint32_t receive =
        synthetic_segment(programs[1], RK_OP_RECEIVE, RK_GROUP_PIPELINE_PREVIOUS, RK_STREAM_RECEIVE_FORWARD, 12);
    synthetic_visit(programs[0], send, 0);
    synthetic_visit(programs[1], receive, 0);
    struct rk_machine machine = synthetic_gpu();
    struct rk_cost_source costs = synthetic_costs(NULL);
    struct rk_simulation simulation;
    struct rk_error error = {0};
    assert_int_equal(
        rk_simulate((const struct rk_program *const *)programs, &machine, &costs, false, &simulation, &error),
        RK_ERROR);
    assert_non_null(strstr(error.text, "10 bytes are sent, 12 received"));
    synthetic_op(programs[1], receive)->shape.dim[0] = 10;
    synthetic_visit(programs[0], send, 1);
    assert_int_equal(
        rk_simulate((const struct rk_program *const *)programs, &machine, &costs, false, &simulation, &error),
        RK_ERROR);
    assert_non_null(strstr(error.text, "stage 0 sends 2 times to stage 1, which receives 1 times"));
    synthetic_free(programs[0]);
    synthetic_free(programs[1]);
}

/* A step longer than 2^31 ns is an ordinary number. */
static void test_long_steps(void **state) {
    (void)state;
    struct pipeline pipeline = {2, 1, 4, {4000000000, 4000000000}, 0};
    double seconds = play_pipeline(&pipeline);
    assert_true(fabs(seconds - 5 * 12e6) < 1e-3);
}

static void test_prices_must_be_numbers(void **state) {
    (void)state;
    struct rk_program *program = synthetic_make(1, 1, 0);
    synthetic_visit(program, synthetic_segment(program, RK_OP_ZERO, RK_GROUP_NONE, RK_STREAM_COMPUTE, 1), 0);
    double scale = NAN;
    struct rk_machine machine = synthetic_gpu();
    struct rk_cost_source costs = synthetic_costs(&scale);
    struct rk_simulation simulation;
    struct rk_error error = {0};
    const struct rk_program *programs[1] = {program};
    assert_int_equal(rk_simulate(programs, &machine, &costs, false, &simulation, &error), RK_ERROR);
    assert_non_null(strstr(error.text, "price of zero"));
    synthetic_free(program);
}

/* The table of accounts is the struct: each member once, in order, and their sum is the total. */
static void test_accounts_are_members(void **state) {
    (void)state;
    struct rk_stage_time time = {.compute = 1, .exposed_exchange = 2, .exposed_pipeline = 4, .bubble = 8,
                                 .exposed_reduction = 16, .optimizer = 32, .exposed_offload = 64, .starved = 128};
    double sum = 0;
    for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++)
        sum += rk_stage_account_seconds(&time, account);
    assert_true(sum > 254.9 && sum < 255.1);
    assert_true(rk_stage_account_seconds(&time, RK_STAGE_ACCOUNT_starved) > 127);
    assert_string_equal(rk_stage_account_member(RK_STAGE_ACCOUNT_exposed_offload), "exposed_offload");
    assert_string_equal(rk_stage_account_name(RK_STAGE_ACCOUNT_exposed_offload), "exposed offload");
    const struct rk_stage_time stages[] = {{.bubble = 3}, {.bubble = 1}, {.bubble = 1}};
    assert_int_equal(rk_stage_deciding(stages, 3), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accounts_are_members),
        cmocka_unit_test(test_pipeline_vectors),
        cmocka_unit_test(test_more_micro_batches),
        cmocka_unit_test(test_replay_equals_reference),
        cmocka_unit_test(test_sharing_equals_reference),
        cmocka_unit_test(test_slower_ops_never_help),
        cmocka_unit_test(test_timeline),
        cmocka_unit_test(test_accounts),
        cmocka_unit_test(test_interval),
        cmocka_unit_test(test_deadlock),
        cmocka_unit_test(test_transfers_must_fit),
        cmocka_unit_test(test_long_steps),
        cmocka_unit_test(test_prices_must_be_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

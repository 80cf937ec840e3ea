/* Programs become arrays of priced ops: every distinct shape is priced once, every string and shape left behind. */
#include "model/cost_cache.h"
#include "model/simulator_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void meeting_of(const struct rk_played *played, int32_t stage, const struct rk_op *op,
                       struct rk_played_op *made) {
    int32_t stages = played->stage_count;
    int32_t next = (stage + 1) % stages, previous = (stage + stages - 1) % stages;
    made->channel = -1;
    made->meeting = RK_MEETING_NONE;
    if (op->shape.kind == RK_OP_SEND) {
        made->meeting = RK_MEETING_SEND;
        made->channel = 2 * stage + (op->shape.group == RK_GROUP_PIPELINE_PREVIOUS);
    } else if (op->shape.kind == RK_OP_RECEIVE) {
        made->meeting = RK_MEETING_RECEIVE;
        made->channel = op->shape.group == RK_GROUP_PIPELINE_PREVIOUS ? 2 * previous : 2 * next + 1;
    } else if (stages > 1 && (op->shape.group == RK_GROUP_WORLD || op->shape.group == RK_GROUP_EMBEDDING)) {
        made->meeting = RK_MEETING_ALL;
        made->channel = 2 * stages + (op->shape.group == RK_GROUP_EMBEDDING);
    }
}

static enum rk_status check_cost(const struct rk_op *op, const struct rk_cost *cost, struct rk_error *error) {
    if (isfinite(cost->seconds) && cost->seconds >= 0 && isfinite(cost->relative_uncertainty))
        return RK_OK;
    return rk_fail(error, RK_ERROR,
                   "cost source: the price of %s is %g s (%s); a price must be finite and not negative",
                   rk_op_name(op->shape.kind), cost->seconds, cost->source);
}

static enum rk_status price_op(const struct rk_played *played, const struct rk_program *program, const struct rk_op *op,
                               int64_t routed_rows, const struct rk_cost_source *costs, struct rk_played_op *made,
                               struct rk_cost *cost, struct rk_error *error) {
    struct rk_cost_place place;
    rk_cost_place_of(program, played->machine, op, routed_rows, RK_BUSY_ALL, &place);
    enum rk_status status = costs->price(costs->context, &op->shape, &place, cost, error);
    if (status != RK_OK)
        return status;
    if ((status = check_cost(op, cost, error)) != RK_OK)
        return status;
    made->seconds = made->alone = cost->seconds;
    made->busy_full = made->busy_alone = (uint32_t)place.concurrent;
    if (!played->machine->shared_devices)
        return RK_OK;
    struct rk_cost alone;
    rk_cost_place_of(program, played->machine, op, routed_rows, 0, &place);
    status = costs->price(costs->context, &op->shape, &place, &alone, error);
    if (status != RK_OK)
        return status;
    if ((status = check_cost(op, &alone, error)) != RK_OK)
        return status;
    made->alone = alone.seconds;
    made->busy_alone = (uint32_t)place.concurrent;
    return RK_OK;
}

static enum rk_status compile_op(const struct rk_played *played, int32_t stage, const struct rk_op *op,
                                 struct rk_played_op *made, struct rk_error *error) {
    const struct rk_program *program = played->stages[stage].program;
    made->lane = played->serial ? 0 : (uint8_t)op->stream;
    made->account = (uint8_t)rk_stage_account_of(op);
    for (int i = 0; i < RK_OP_WAITS; i++) {
        if (op->wait[i].event == RK_NO_EVENT)
            continue;
        if (op->wait[i].event >= program->event_count)
            return rk_fail(error, RK_ERROR, "step program of stage %d: %s waits for event %u of %zu", stage,
                           rk_op_name(op->shape.kind), op->wait[i].event, program->event_count);
        made->wait[made->wait_count++] = op->wait[i];
    }
    for (int i = 0; i < RK_OP_RECORDS; i++) {
        if (op->record[i].event == RK_NO_EVENT)
            continue;
        if (op->record[i].event >= program->event_count)
            return rk_fail(error, RK_ERROR, "step program of stage %d: %s records event %u of %zu", stage,
                           rk_op_name(op->shape.kind), op->record[i].event, program->event_count);
        made->record[made->record_count++] = op->record[i];
    }
    meeting_of(played, stage, op, made);
    return RK_OK;
}

static enum rk_status count_visits(struct rk_played_stage *made, int32_t stage, struct rk_error *error) {
    const struct rk_program *program = made->program;
    for (size_t i = 0; i < program->visit_count; i++) {
        uint32_t segment = program->schedule[i].segment;
        if (segment >= program->segment_count)
            return rk_fail(error, RK_ERROR, "step program of stage %d: visit %zu names segment %u of %zu", stage, i,
                           segment, program->segment_count);
        made->segment_visits[segment]++;
        made->op_instances += (int64_t)program->segments[segment].op_count;
    }
    return RK_OK;
}

static enum rk_status compile_stage(const struct rk_played *played, int32_t stage, const struct rk_cost_source *costs,
                                    struct rk_error *error) {
    struct rk_played_stage *made = &played->stages[stage];
    const struct rk_program *program = made->program;
    made->ops = calloc(program->op_count + 1, sizeof *made->ops);
    made->costs = calloc(program->op_count + 1, sizeof *made->costs);
    made->busy = calloc(program->op_count + 1, sizeof *made->busy);
    made->segment_visits = calloc(program->segment_count + 1, sizeof *made->segment_visits);
    made->event_first = calloc(program->event_count + 1, sizeof *made->event_first);
    if (!made->ops || !made->costs || !made->busy || !made->segment_visits || !made->event_first)
        return rk_fail(error, RK_ERROR, "out of memory for a step program of %zu ops", program->op_count);
    for (size_t i = 0; i < program->event_count; i++) {
        made->event_first[i] = made->event_instances;
        made->event_instances += (uint32_t)program->events[i].instance_count;
    }
    enum rk_status status = count_visits(made, stage, error);
    if (status != RK_OK)
        return status;
    int64_t routed_rows = rk_cost_routed_rows(program);
    for (size_t s = 0; s < program->segment_count; s++) {
        const struct rk_segment *segment = &program->segments[s];
        if (segment->first_op > program->op_count || segment->op_count > program->op_count - segment->first_op)
            return rk_fail(error, RK_ERROR, "step program of stage %d: segment '%s' ends past the last op", stage,
                           segment->name);
        if (made->segment_visits[s] == 0)
            continue;
        for (size_t i = segment->first_op; i < segment->first_op + segment->op_count; i++) {
            const struct rk_op *op = &program->ops[i];
            if ((status = compile_op(played, stage, op, &made->ops[i], error)) != RK_OK)
                return status;
            status = price_op(played, program, op, routed_rows, costs, &made->ops[i], &made->costs[i], error);
            if (status != RK_OK)
                return status;
        }
    }
    return RK_OK;
}

/* The transfers of a channel as its sender makes them. */
struct transfers {
    int64_t *bytes;
    size_t count, capacity;
};

static enum rk_status add_transfer(struct transfers *transfers, int64_t bytes, struct rk_error *error) {
    if (transfers->count == transfers->capacity) {
        size_t capacity = transfers->capacity == 0 ? 64 : transfers->capacity * 2;
        int64_t *grown = realloc(transfers->bytes, capacity * sizeof *grown);
        if (grown == NULL)
            return rk_fail(error, RK_ERROR, "out of memory for %zu transfers", capacity);
        transfers->bytes = grown;
        transfers->capacity = capacity;
    }
    transfers->bytes[transfers->count++] = bytes;
    return RK_OK;
}

/* Goes through the transfers of one side of a stage in program order: sends are written down by channel, receives are
 * compared with what was sent. */
static enum rk_status walk_transfers(const struct rk_program *program, const struct rk_played_op *ops,
                                     enum rk_meeting_kind side, struct transfers *channels, size_t *received,
                                     struct rk_error *error) {
    for (size_t v = 0; v < program->visit_count; v++) {
        const struct rk_segment *segment = &program->segments[program->schedule[v].segment];
        for (size_t i = segment->first_op; i < segment->first_op + segment->op_count; i++) {
            if (ops[i].meeting != side) /* NOLINT(clang-analyzer-core.NullDereference): all stages are compiled */
                continue;
            int32_t channel = ops[i].channel;
            int64_t bytes = program->ops[i].shape.dim[0];
            struct transfers *sent = &channels[channel];
            if (side == RK_MEETING_SEND) {
                enum rk_status status = add_transfer(sent, bytes, error);
                if (status != RK_OK)
                    return status;
                continue;
            }
            size_t at = received[channel]++;
            if (at < sent->count && sent->bytes[at] != bytes)
                return rk_fail(
                    error, RK_ERROR,
                    "step programs: transfer %zu from stage %d to stage %d: %lld bytes are sent, %lld received", at,
                    channel / 2, program->stage, (long long)sent->bytes[at], (long long)bytes);
        }
    }
    return RK_OK;
}

/* The k-th send meets the k-th receive: there must be as many, of the same sizes. */
static enum rk_status check_transfers(const struct rk_played *played, const struct rk_program *const *programs,
                                      struct rk_error *error) {
    int32_t stages = played->stage_count, channels = 2 * stages;
    struct transfers *sent = calloc((size_t)channels, sizeof *sent);
    size_t *received = calloc((size_t)channels, sizeof *received);
    if (sent == NULL || received == NULL) {
        free(sent);
        free(received);
        return rk_fail(error, RK_ERROR, "out of memory for %d channels", channels);
    }
    enum rk_status status = RK_OK;
    for (int32_t i = 0; status == RK_OK && i < stages; i++)
        status = walk_transfers(programs[i], played->stages[i].ops, RK_MEETING_SEND, sent, received, error);
    for (int32_t i = 0; status == RK_OK && i < stages; i++)
        status = walk_transfers(programs[i], played->stages[i].ops, RK_MEETING_RECEIVE, sent, received, error);
    for (int32_t i = 0; status == RK_OK && i < channels; i++)
        if (sent[i].count != received[i])
            status = rk_fail(error, RK_ERROR,
                             "step programs: stage %d sends %zu times to stage %d, which receives %zu times", i / 2,
                             sent[i].count, (i / 2 + (i % 2 == 0 ? 1 : stages - 1)) % stages, received[i]);
    for (int32_t i = 0; i < channels; i++)
        free(sent[i].bytes);
    free(sent);
    free(received);
    return status;
}

enum rk_status rk_played_make(const struct rk_program *const *programs, const struct rk_machine *machine,
                              const struct rk_cost_source *costs, struct rk_played *played, struct rk_error *error) {
    int32_t stages = programs[0]->candidate.pipeline;
    if (stages < 1)
        return rk_fail(error, RK_USAGE, "step program of %d stages", stages);
    *played = (struct rk_played){
        .machine = machine,
        .stage_count = stages,
        .channel_count = 2 * stages + 2,
        .buffered = machine->backend == RK_BACKEND_CPU,
        .serial = machine->serial_streams,
        .launch = machine->serial_streams ? 0 : machine->launch.value,
        .ranks_per_stage = (double)programs[0]->candidate.data_parallel,
    };
    struct rk_cost_cache *cache = NULL;
    enum rk_status status = rk_cost_cache_make(costs, &cache, error);
    if (status != RK_OK)
        return status;
    struct rk_cost_source cached = rk_cost_cache_source(cache);
    played->stages = calloc((size_t)stages, sizeof *played->stages);
    if (played->stages == NULL) {
        rk_cost_cache_free(cache);
        return rk_fail(error, RK_ERROR, "out of memory for %d stages", stages);
    }
    for (int32_t stage = 0; status == RK_OK && stage < stages; stage++) {
        played->stages[stage].program = programs[stage];
        status = compile_stage(played, stage, &cached, error);
    }
    rk_cost_cache_free(cache);
    if (status == RK_OK)
        status = check_transfers(played, programs, error);
    if (status != RK_OK)
        rk_played_free(played);
    return status;
}

void rk_played_free(struct rk_played *played) {
    for (int32_t stage = 0; played->stages != NULL && stage < played->stage_count; stage++) {
        free(played->stages[stage].ops);
        free(played->stages[stage].costs);
        free(played->stages[stage].busy);
        free(played->stages[stage].segment_visits);
        free(played->stages[stage].event_first);
    }
    free(played->stages);
    free(played->timeline);
    played->stages = NULL;
    played->timeline = NULL;
}

int32_t rk_played_channel_size(const struct rk_played *played, int32_t channel) {
    return channel == 2 * played->stage_count ? played->stage_count : 2;
}

void rk_played_describe(const struct rk_played *played, int32_t stage, size_t visit, size_t op, char *buffer,
                        size_t size) {
    const struct rk_program *program = played->stages[stage].program;
    const struct rk_visit *place = &program->schedule[visit];
    char micro_batch[32] = "", layer[32] = "";
    if (place->micro_batch >= 0)
        snprintf(micro_batch, sizeof micro_batch, ", micro-batch %d", place->micro_batch);
    if (place->layer >= 0)
        snprintf(layer, sizeof layer, ", layer %d", place->layer);
    snprintf(buffer, size, "stage %d%s%s, segment '%s': %s on stream %s", stage, micro_batch, layer,
             program->segments[place->segment].name, rk_op_name(program->ops[op].shape.kind),
             rk_stream_name(program->ops[op].stream));
}

void rk_played_describe_peers(const struct rk_played *played, int32_t stage, const struct rk_played_op *op,
                              char *buffer, size_t size) {
    int32_t stages = played->stage_count;
    int32_t sender = op->channel / 2;
    bool forward = op->channel % 2 == 0;
    int32_t receiver = forward ? (sender + 1) % stages : (sender + stages - 1) % stages;
    switch ((enum rk_meeting_kind)op->meeting) {
    case RK_MEETING_SEND:
        snprintf(buffer, size, "the receive of stage %d", receiver);
        break;
    case RK_MEETING_RECEIVE:
        snprintf(buffer, size, "the send of stage %d", sender);
        break;
    case RK_MEETING_ALL:
        if (op->channel == 2 * stages)
            snprintf(buffer, size, "the same op of all %d stages", stages);
        else
            snprintf(buffer, size, "the same op of stage %d", stage == 0 ? stages - 1 : 0);
        break;
    case RK_MEETING_NONE:
        snprintf(buffer, size, "nothing");
        break;
    }
}

enum rk_status rk_played_record(struct rk_played *played, int32_t stage, size_t op, size_t visit, double start,
                                double end, struct rk_error *error) {
    if (played->timeline_count == played->timeline_capacity) {
        size_t capacity = played->timeline_capacity == 0 ? 1024 : played->timeline_capacity * 2;
        struct rk_timeline_entry *grown = realloc(played->timeline, capacity * sizeof *grown);
        if (grown == NULL)
            return rk_fail(error, RK_ERROR, "out of memory for a timeline of %zu ops", capacity);
        played->timeline = grown;
        played->timeline_capacity = capacity;
    }
    played->timeline[played->timeline_count++] =
        (struct rk_timeline_entry){.stage = stage,
                                   .stream = played->stages[stage].program->ops[op].stream,
                                   .op = op,
                                   .visit = visit,
                                   .start = start,
                                   .end = end};
    return RK_OK;
}

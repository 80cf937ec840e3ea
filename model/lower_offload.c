/* Activation offload: which values of a block leave the device between forward and backward, and how.
 *
 * A value that leaves has two instances in device memory on the way out (staging) and two on the way back (reload),
 * taken in turn by layer, and its kept instances in host memory. In forward a copy out follows the part of the block
 * that wrote the value; a staging instance is written again only when that copy is over. In backward the copies of a
 * block come back one block ahead, as soon as the reload instances are free: with rings of their own they run during
 * the forward visits before. */
#include "model/lower.h"

#include <stdio.h>
#include <string.h>

/* ---- choice ---- */

/* Values that may leave, and the best set so far; bit i of a set is value[i]. */
struct choice {
    const int64_t *bytes;
    int value[RK_VALUE_COUNT];
    int64_t limit, most;
    uint32_t best;
};

/* Goes through the sets of the values before `count`, added to `set` of `sum` bytes, in ascending order of the sets as
 * numbers; left out are those that pass the limit and those that cannot beat the best. rest: bytes of the values before
 * count. */
static void choose_below(struct choice *choice, int count, int64_t rest, uint32_t set, int64_t sum) {
    if (sum > choice->limit || sum + rest <= choice->most)
        return;
    if (count == 0) {
        choice->most = sum;
        choice->best = set;
        return;
    }
    int64_t bytes = choice->bytes[choice->value[count - 1]];
    choose_below(choice, count - 1, rest - bytes, set, sum);
    choose_below(choice, count - 1, rest - bytes, set | 1u << (count - 1), sum + bytes);
}

/* The set of values whose bytes come nearest to the limit without passing it; of equal sets the one whose last value
 * comes first in the table. bytes[v] is 0 for a value that cannot leave. */
static void choose_set(const int64_t bytes[RK_VALUE_COUNT], int64_t limit, bool chosen[RK_VALUE_COUNT]) {
    struct choice choice = {.bytes = bytes, .limit = limit};
    int count = 0;
    int64_t all = 0;
    for (int v = 0; v < RK_VALUE_COUNT; v++) {
        if (bytes[v] > 0)
            choice.value[count++] = v;
        all += bytes[v];
    }
    choose_below(&choice, count, all, 0, 0);
    for (int i = 0; i < count; i++)
        chosen[choice.value[i]] = (choice.best >> i & 1) != 0;
}

void rk_lower_offload_choose(struct rk_lowering *lowering, enum rk_block kind, const int64_t bytes[RK_VALUE_COUNT],
                             bool chosen[RK_VALUE_COUNT]) {
    struct rk_program *program = lowering->program;
    int32_t percent = lowering->candidate->offload_percent;
    int64_t limit = program->kept_bytes[kind] / 100 * percent + program->kept_bytes[kind] % 100 * percent / 100;
    memset(chosen, 0, RK_VALUE_COUNT * sizeof *chosen);
    if (percent == 100)
        for (int v = 0; v < RK_VALUE_COUNT; v++)
            chosen[v] = bytes[v] > 0;
    else if (percent > 0)
        choose_set(bytes, limit, chosen);
    for (int v = 0; v < RK_VALUE_COUNT; v++)
        program->offloaded_bytes[kind] += chosen[v] ? bytes[v] : 0;
}

/* ---- buffers ---- */

static int32_t layers_of(const struct rk_program *program, uint8_t kinds) {
    int32_t count = 0;
    for (int32_t i = 0; i < program->layer_count; i++)
        count += (kinds >> program->layer_kinds[i] & 1) != 0;
    return count;
}

struct rk_offload_place rk_lower_offload_place(struct rk_lowering *lowering, const char *name, uint8_t kinds,
                                               int64_t bytes) {
    int32_t layers = layers_of(lowering->program, kinds);
    struct rk_buffer ring = {.owner = RK_OWNER_OFFLOAD,
                             .scope = RK_SCOPE_LAYER_RING,
                             .layer_kinds = kinds,
                             .ring_size = layers < 2 ? layers : 2,
                             .bytes = bytes};
    struct rk_buffer host = {.owner = RK_OWNER_OFFLOAD,
                             .space = RK_SPACE_HOST,
                             .scope = RK_SCOPE_LAYER_SLOT,
                             .layer_kinds = kinds,
                             .bytes = bytes};
    struct rk_offload_place place = {.bytes = bytes};
    place.staging = rk_lower_buffer(lowering, ring, "%s.staging", name);
    place.reload = rk_lower_buffer(lowering, ring, "%s.reload", name);
    place.host = rk_lower_buffer(lowering, host, "%s.host", name);
    return place;
}

/* ---- order ---- */

static bool leaves(const struct rk_offload_place *place) {
    return place->bytes > 0;
}

bool rk_lower_offload_any(const struct rk_lowering *lowering, enum rk_block kind) {
    for (int i = 0; i <= RK_VALUE_COUNT; i++)
        if (leaves(&lowering->offload[kind][i]))
            return true;
    return false;
}

/* The place that has the buffer as its staging (or reload) instance. */
static bool is_in_transit(const struct rk_lowering *lowering, uint32_t buffer, bool reload) {
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i <= RK_VALUE_COUNT; i++) {
            const struct rk_offload_place *place = &lowering->offload[kind][i];
            if (leaves(place) && (reload ? place->reload : place->staging) == buffer)
                return true;
        }
    }
    return false;
}

void rk_lower_offload_waits(struct rk_lowering *lowering) {
    const struct rk_op *op = lowering->op;
    if (lowering->candidate->offload_percent == 0 || rk_op_executor(op->shape.kind) == RK_BY_COPY)
        return;
    for (int i = 0; i < RK_OP_OPERANDS; i++) {
        uint32_t buffer = op->operand[i].buffer;
        int shift = op->operand[i].layer_shift;
        bool writes = rk_op_operand_access(op->shape.kind, i) == RK_ACCESS_WRITE;
        if (buffer == RK_NO_BUFFER || lowering->program->buffers[buffer].owner != RK_OWNER_OFFLOAD)
            continue;
        if (writes && is_in_transit(lowering, buffer, false) && !lowering->staging_awaited[op->stream][shift])
            rk_lower_wait(lowering, lowering->staging_free, shift);
        if (writes && is_in_transit(lowering, buffer, false))
            lowering->staging_awaited[op->stream][shift] = true;
        if (!lowering->reload_awaited && is_in_transit(lowering, buffer, true)) {
            rk_lower_wait(lowering, lowering->reloaded, 0);
            lowering->reload_awaited = op->stream == RK_STREAM_COMPUTE;
        }
    }
}

/* ---- copies ---- */

static void copy(struct rk_lowering *lowering, enum rk_op_kind kind, int64_t bytes, uint32_t from, uint32_t to) {
    struct rk_op_shape shape = {.dim = {bytes}};
    rk_lower_op(lowering, kind, &shape);
    RK_OPERANDS(lowering, rk_at(from), rk_at(to));
}

/* Whether the segment has written the buffer's own instance so far. */
static bool is_written(const struct rk_lowering *lowering, uint32_t buffer) {
    const struct rk_program *program = lowering->program;
    for (size_t i = program->segments[program->segment_count - 1].first_op; i < program->op_count; i++) {
        const struct rk_op *op = &program->ops[i];
        for (int o = 0; o < RK_OP_OPERANDS; o++)
            if (op->operand[o].buffer == buffer && op->operand[o].layer_shift == 0 &&
                rk_op_operand_access(op->shape.kind, o) == RK_ACCESS_WRITE)
                return true;
    }
    return false;
}

/* The first copy of a run waits for both streams that write values; the others follow it. */
static void copy_out(struct rk_lowering *lowering, struct rk_offload_place *place, bool *first) {
    copy(lowering, RK_OP_COPY_D2H, place->bytes, place->staging, place->host);
    if (*first) {
        rk_lower_after_compute(lowering);
        rk_lower_wait(lowering, lowering->exchange, 0);
    }
    *first = false;
    place->sent = true;
}

/* The segment's last copy out: it has one, because all values that leave are written by then. */
static struct rk_op *last_copy_out(const struct rk_lowering *lowering) {
    struct rk_op *op = &lowering->program->ops[lowering->program->op_count - 1];
    while (op->stream != RK_STREAM_D2H)
        op--;
    return op;
}

void rk_lower_offload_out(struct rk_lowering *lowering, enum rk_block kind, bool last) {
    struct rk_offload_place *input = &lowering->offload[kind][RK_OFFLOAD_INPUT];
    bool any = rk_lower_offload_any(lowering, kind), first = true;
    for (int i = 0; i < RK_VALUE_COUNT && lowering->status == RK_OK; i++) {
        struct rk_offload_place *place = &lowering->offload[kind][i];
        if (leaves(place) && !place->sent && is_written(lowering, place->staging))
            copy_out(lowering, place, &first);
    }
    if (!last || !any || lowering->status != RK_OK)
        return;
    if (leaves(input))
        copy_out(lowering, input, &first);
    if (lowering->status != RK_OK)
        return;
    for (int i = 0; i <= RK_VALUE_COUNT; i++)
        lowering->offload[kind][i].sent = false;
    struct rk_op *current = lowering->op;
    lowering->op = last_copy_out(lowering);
    rk_lower_record(lowering, lowering->staging_free, 0);
    rk_lower_record(lowering, lowering->offloaded, 0);
    lowering->op = current;
}

uint32_t rk_lower_offload_back(struct rk_lowering *lowering, enum rk_block kind) {
    uint32_t *segment = &lowering->reload_segment[kind];
    bool first = true;
    if (*segment != UINT32_MAX || lowering->status != RK_OK)
        return *segment;
    *segment =
        rk_lower_segment_begin(lowering, RK_PHASE_BACKWARD, "reload %s block", kind == RK_BLOCK_MOE ? "moe" : "dense");
    for (int i = 0; i <= RK_VALUE_COUNT; i++) {
        const struct rk_offload_place *place = &lowering->offload[kind][i];
        if (!leaves(place))
            continue;
        copy(lowering, RK_OP_COPY_H2D, place->bytes, place->host, place->reload);
        if (first) {
            rk_lower_wait(lowering, lowering->reload_free, 0);
            rk_lower_wait(lowering, lowering->offloaded, 0);
        }
        first = false;
    }
    rk_lower_record(lowering, lowering->reloaded, 0);
    rk_lower_segment_end(lowering);
    return *segment;
}

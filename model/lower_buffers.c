#include "model/lower.h"

#include <stdio.h>
#include <string.h>

static const struct value_row {
    const char *name;
    enum rk_owner owner;
    uint8_t kinds;
    enum rk_keep keep;
    enum rk_op_kind op;
    enum rk_site site;
    int operand;
} value_rows[RK_VALUE_COUNT] = {
#define RK_VALUE(field, owner, kinds, keep, op, site, operand)                                                         \
    {#field, RK_OWNER_##owner, RK_KINDS_##kinds, RK_KEEP_##keep, RK_OP_##op, RK_SITE_##site, operand},
    RK_VALUE_TABLE(RK_VALUE)
#undef RK_VALUE
};

static struct rk_op_shape shape_of(enum rk_group_kind group, uint32_t flags, const int64_t dim[6]) {
    struct rk_op_shape shape = {.group = group, .flags = flags};
    memcpy(shape.dim, dim, 6 * sizeof dim[0]);
    return shape;
}

#define SHAPE(group, flags, ...) shape_of(group, flags, (const int64_t[6]){__VA_ARGS__})
#define LOCAL(...) SHAPE(RK_GROUP_NONE, 0, __VA_ARGS__)

static uint32_t attention_flags(const struct rk_architecture *architecture) {
    switch (architecture->qk_norm) {
    case RK_QK_NORM_PER_HEAD:
        return RK_OP_FLAG_QK_NORM_HEAD;
    case RK_QK_NORM_FULL_WIDTH:
        return RK_OP_FLAG_QK_NORM_FULL;
    case RK_QK_NORM_NONE:
        break;
    }
    return 0;
}

static uint32_t route_flags(const struct rk_lowering *lowering) {
    uint32_t flags = 0;
    if (lowering->architecture->scoring == RK_SCORING_SIGMOID)
        flags |= RK_OP_FLAG_SIGMOID;
    if (lowering->architecture->normalise_top_k)
        flags |= RK_OP_FLAG_NORMALIZE_TOP_K;
    if (lowering->candidate->routing == RK_ROUTING_UNIFORM)
        flags |= RK_OP_FLAG_ROUTE_UNIFORM;
    if (lowering->candidate->routing == RK_ROUTING_RANDOM)
        flags |= RK_OP_FLAG_ROUTE_RANDOM;
    return flags;
}

void rk_lower_shapes(struct rk_lowering *lowering) {
    const struct rk_architecture *a = lowering->architecture;
    const struct rk_candidate *candidate = lowering->candidate;
    struct rk_op_shape *shape = lowering->shape;
    int64_t tokens = lowering->tokens, hidden = lowering->hidden, sequence = candidate->sequence;
    int64_t queries = rk_architecture_query_width(a), keys = rk_architecture_kv_width(a);
    shape[RK_SITE_NORM] = LOCAL(tokens, hidden);
    shape[RK_SITE_QKV] = LOCAL(tokens, queries + 2 * keys, hidden);
    shape[RK_SITE_ROPE] =
        SHAPE(RK_GROUP_NONE, attention_flags(a), tokens, sequence, a->heads, a->kv_heads, a->head_dim);
    shape[RK_SITE_ATTENTION] = LOCAL(tokens, sequence, a->heads, a->kv_heads, a->head_dim);
    shape[RK_SITE_OUT] = LOCAL(tokens, hidden, rk_architecture_output_width(a));
    shape[RK_SITE_LATENT_Q_DOWN] = LOCAL(tokens, a->q_lora_rank, hidden);
    shape[RK_SITE_LATENT_Q_NORM] = LOCAL(tokens, a->q_lora_rank);
    shape[RK_SITE_LATENT_Q_UP] = LOCAL(tokens, queries, a->q_lora_rank > 0 ? a->q_lora_rank : hidden);
    shape[RK_SITE_LATENT_K_ROPE] = LOCAL(tokens, a->qk_rope_head_dim, hidden);
    shape[RK_SITE_LATENT_KV_DOWN] = LOCAL(tokens, a->kv_lora_rank, hidden);
    shape[RK_SITE_LATENT_KV_NORM] = LOCAL(tokens, a->kv_lora_rank);
    shape[RK_SITE_LATENT_KV_UP] = LOCAL(tokens, a->heads * (a->qk_nope_head_dim + a->v_head_dim), a->kv_lora_rank);
    shape[RK_SITE_DENSE_UP] = LOCAL(tokens, 2 * a->dense_hidden, hidden);
    shape[RK_SITE_DENSE_GATE] = LOCAL(tokens, a->dense_hidden, 1);
    shape[RK_SITE_DENSE_DOWN] = LOCAL(tokens, hidden, a->dense_hidden);

    int64_t experts = a->experts, top_k = a->top_k, ranks = candidate->expert_parallel, held = experts / ranks;
    int64_t rows = rk_candidate_receive_rows(a, candidate);
    enum rk_group_kind group = RK_GROUP_EXPERT_PARALLEL;
    shape[RK_SITE_ROUTER] = LOCAL(tokens, experts, hidden);
    shape[RK_SITE_ROUTE] = SHAPE(RK_GROUP_NONE, route_flags(lowering), tokens, experts, top_k);
    shape[RK_SITE_MAP] = LOCAL(tokens, experts, top_k, ranks, rows);
    shape[RK_SITE_COUNTS] = SHAPE(group, 0, experts, ranks);
    shape[RK_SITE_EXCHANGE] = SHAPE(group, 0, tokens, hidden, top_k, experts, ranks, rows);
    shape[RK_SITE_EXPERT_UP] = LOCAL(rows, held, 2 * a->expert_hidden, hidden);
    shape[RK_SITE_EXPERT_GATE] = LOCAL(rows, a->expert_hidden, held);
    shape[RK_SITE_EXPERT_DOWN] = LOCAL(rows, held, hidden, a->expert_hidden);
    shape[RK_SITE_SHARED_UP] = LOCAL(tokens, 2 * a->shared_hidden, hidden);
    shape[RK_SITE_SHARED_GATE] = LOCAL(tokens, a->shared_hidden, 1);
    shape[RK_SITE_SHARED_DOWN] = LOCAL(tokens, hidden, a->shared_hidden);
}

static int64_t value_bytes(const struct rk_lowering *lowering, const struct value_row *row) {
    struct rk_op_shape shape = lowering->shape[row->site];
    shape.kind = row->op;
    shape.type = lowering->candidate->type;
    if (row->site == RK_SITE_ROUTER)
        shape.flags |= RK_OP_FLAG_F32_OUTPUT;
    return rk_op_operand_bytes(&shape, row->operand);
}

/* Whether the architecture's blocks of the kind have the value at all. */
static bool has_value(const struct rk_lowering *lowering, enum rk_value value, enum rk_block kind) {
    if ((value_rows[value].kinds & 1 << kind) == 0)
        return false;
    switch (value) {
    case RK_VALUE_qkv_raw: /* without gains the rotation is done in place */
        return lowering->architecture->qk_norm != RK_QK_NORM_NONE;
    case RK_VALUE_shared_up:
    case RK_VALUE_shared_hidden:
    case RK_VALUE_shared_output:
    case RK_VALUE_d_shared_hidden:
        return lowering->architecture->shared_hidden > 0;
    case RK_VALUE_q_latent:
    case RK_VALUE_q_latent_normed:
    case RK_VALUE_q_latent_rstd:
    case RK_VALUE_d_q_latent_normed:
    case RK_VALUE_d_q_latent:
        return lowering->architecture->q_lora_rank > 0;
    case RK_VALUE_kv_latent:
    case RK_VALUE_kv_latent_normed:
    case RK_VALUE_kv_latent_rstd:
    case RK_VALUE_d_kv_latent_normed:
    case RK_VALUE_d_kv_latent:
        return lowering->architecture->attention == RK_ATTENTION_MLA;
    default:
        return true;
    }
}

static bool is_kept(enum rk_keep keep, enum rk_recompute policy) {
    switch (keep) {
    case RK_KEEP_NEVER:
        return false;
    case RK_KEEP_WHOLE:
        return policy == RK_RECOMPUTE_NONE;
    case RK_KEEP_PARTIAL:
        return policy != RK_RECOMPUTE_BLOCK;
    case RK_KEEP_ALWAYS:
        break;
    }
    return true;
}

/* Bytes of the values of a kind that are kept from forward to backward, routes apart; the block's input comes on top.
 */
static void sum_kept(struct rk_lowering *lowering, enum rk_block kind, int64_t kept[RK_VALUE_COUNT]) {
    int64_t sum = lowering->tokens * lowering->hidden * lowering->act_bytes;
    for (int i = 0; i < RK_VALUE_COUNT; i++) {
        const struct value_row *row = &value_rows[i];
        bool counts = has_value(lowering, (enum rk_value)i, kind) && row->keep != RK_KEEP_ALWAYS &&
                      is_kept(row->keep, lowering->candidate->recompute);
        kept[i] = counts ? value_bytes(lowering, row) : 0;
        sum += kept[i];
    }
    lowering->program->kept_bytes[kind] = sum;
}

/* A value that leaves the device has other buffers in forward and in backward; else it is one for both. */
static void add_value(struct rk_lowering *lowering, enum rk_block kind, enum rk_value value, bool leaves) {
    const struct value_row *row = &value_rows[value];
    uint8_t kinds = (uint8_t)(1 << kind);
    char name[sizeof lowering->program->buffers->name];
    snprintf(name, sizeof name, "%s.%s", kind == RK_BLOCK_DENSE ? "dense" : "moe", row->name);
    struct rk_buffer buffer = {.owner = row->owner, .scope = RK_SCOPE_VISIT, .bytes = value_bytes(lowering, row)};
    if (leaves) {
        struct rk_offload_place place = rk_lower_offload_place(lowering, name, kinds, buffer.bytes);
        lowering->offload[kind][value] = place;
        lowering->forward[kind].at[value] = place.staging;
        lowering->backward[kind].at[value] = place.reload;
        return;
    }
    if (is_kept(row->keep, lowering->candidate->recompute)) {
        buffer.scope = RK_SCOPE_LAYER_SLOT;
        buffer.layer_kinds = kinds;
    } else if (row->owner == RK_OWNER_ACTIVATIONS) {
        buffer.owner = RK_OWNER_TRANSIENT;
    }
    lowering->forward[kind].at[value] = rk_lower_buffer(lowering, buffer, "%s", name);
    lowering->backward[kind].at[value] = lowering->forward[kind].at[value];
}

static void add_block_values(struct rk_lowering *lowering, enum rk_block kind) {
    int64_t kept[RK_VALUE_COUNT];
    bool leaves[RK_VALUE_COUNT];
    sum_kept(lowering, kind, kept);
    rk_lower_offload_choose(lowering, kind, kept, leaves);
    for (int i = 0; i < RK_VALUE_COUNT; i++)
        if (has_value(lowering, (enum rk_value)i, kind))
            add_value(lowering, kind, (enum rk_value)i, leaves[i]);
}

/* The input of a block is the output of the block before it, whatever its kind: one buffer for both kinds. It leaves
 * only when everything does. */
static void add_block_input(struct rk_lowering *lowering) {
    struct rk_buffer input = {.owner = RK_OWNER_ACTIVATIONS,
                              .scope = RK_SCOPE_LAYER_SLOT,
                              .layer_kinds = RK_KINDS_BOTH,
                              .bytes = lowering->tokens * lowering->hidden * lowering->act_bytes};
    uint32_t forward, backward;
    if (lowering->candidate->offload_percent == 100) {
        struct rk_offload_place place = rk_lower_offload_place(lowering, "block.input", RK_KINDS_BOTH, input.bytes);
        forward = place.staging;
        backward = place.reload;
        for (int kind = 0; kind < 2; kind++) {
            lowering->offload[kind][RK_OFFLOAD_INPUT] = place;
            if ((lowering->kinds & 1 << kind) != 0)
                lowering->program->offloaded_bytes[kind] += input.bytes;
        }
    } else {
        forward = backward = rk_lower_buffer(lowering, input, "block.input");
    }
    for (int kind = 0; kind < 2; kind++) {
        lowering->forward[kind].input = forward;
        lowering->backward[kind].input = backward;
    }
}

static void add_values(struct rk_lowering *lowering) {
    memset(lowering->forward, 0xFF, sizeof lowering->forward);
    memset(lowering->backward, 0xFF, sizeof lowering->backward);
    add_block_input(lowering);
    for (int kind = 0; kind < 2; kind++)
        if ((lowering->kinds & 1 << kind) != 0)
            add_block_values(lowering, (enum rk_block)kind);
}

/* What passes between stages, and between the chunks of a stage and its loss. Two instances taken in turn by
 * micro-batch let a transfer end while the next micro-batch is computed. */
static void add_stage_buffers(struct rk_lowering *lowering) {
    int32_t turns = lowering->candidate->pipeline > 1 ? 2 : 1;
    int32_t virtual_stages = lowering->candidate->virtual_stages;
    struct rk_buffer row = {.owner = RK_OWNER_EXCHANGE,
                            .scope = RK_SCOPE_MICRO_BATCH_RING,
                            .ring_size = turns,
                            .bytes = lowering->tokens * lowering->hidden * lowering->act_bytes};
    bool sends = lowering->candidate->pipeline > 1 && (!lowering->last_stage || virtual_stages > 1);
    lowering->outgoing = sends ? rk_lower_buffer(lowering, row, "stage.output") : RK_NO_BUFFER;
    row.owner = turns > 1 ? RK_OWNER_EXCHANGE : RK_OWNER_TRANSIENT;
    lowering->stream = rk_lower_buffer(lowering, row, "stage.gradient");
    if (!lowering->last_stage)
        return;
    /* Live micro-batches of a virtual stage follow one another, so a ring of as many holds them apart. */
    struct rk_buffer head = {.owner = RK_OWNER_ACTIVATIONS,
                             .scope = RK_SCOPE_MICRO_BATCH_RING,
                             .ring_size = lowering->program->slots[virtual_stages - 1],
                             .bytes = row.bytes};
    lowering->head_input = rk_lower_buffer(lowering, head, "head.input");
    struct rk_buffer visit = {.owner = RK_OWNER_TRANSIENT, .scope = RK_SCOPE_VISIT, .bytes = row.bytes};
    lowering->head_normed = rk_lower_buffer(lowering, visit, "head.normed");
    visit.bytes = lowering->tokens * (int64_t)sizeof(float);
    lowering->head_rstd = rk_lower_buffer(lowering, visit, "head.rstd");
    visit.owner = RK_OWNER_LOSS;
    visit.bytes = lowering->candidate->logits_chunk_tokens * lowering->vocabulary * lowering->act_bytes;
    lowering->head_logits = rk_lower_buffer(lowering, visit, "head.logits");
}

static void add_data(struct rk_lowering *lowering) {
    struct rk_program *program = lowering->program;
    struct rk_buffer ids = {
        .owner = RK_OWNER_DATA, .scope = RK_SCOPE_MICRO_BATCH, .bytes = lowering->tokens * (int64_t)sizeof(int32_t)};
    struct rk_buffer step = {.owner = RK_OWNER_DATA, .scope = RK_SCOPE_STEP};
    struct rk_buffer load = {.owner = RK_OWNER_DATA, .scope = RK_SCOPE_LAYER, .layer_kinds = RK_KINDS_MOE};
    program->tokens = lowering->first_stage ? rk_lower_buffer(lowering, ids, "tokens") : RK_NO_BUFFER;
    program->targets = lowering->last_stage ? rk_lower_buffer(lowering, ids, "targets") : RK_NO_BUFFER;
    step.bytes = 8 * (int64_t)sizeof(float);
    program->step_state = rk_lower_buffer(lowering, step, "step_state");
    step.bytes = RK_SUM_COUNT * (int64_t)sizeof(double);
    program->sums = rk_lower_buffer(lowering, step, "sums");
    load.bytes = (2 * lowering->architecture->experts + 1) * (int64_t)sizeof(int64_t);
    bool routed = (lowering->kinds & RK_KINDS_MOE) != 0;
    program->load = routed ? rk_lower_buffer(lowering, load, "load") : RK_NO_BUFFER;
}

static void add_events(struct rk_lowering *lowering) {
    int32_t turns = lowering->candidate->pipeline > 1 ? 2 : 1;
    lowering->compute = rk_lower_event(lowering, "compute", RK_SCOPE_STEP, 0);
    lowering->exchange = rk_lower_event(lowering, "exchange", RK_SCOPE_STEP, 0);
    lowering->tail = rk_lower_event(lowering, "exchange tail", RK_SCOPE_STEP, 0);
    lowering->reduced = rk_lower_event(lowering, "reduced", RK_SCOPE_STEP, 0);
    lowering->input_received = rk_lower_event(lowering, "input received", RK_SCOPE_SLOT, 0);
    lowering->input_free = rk_lower_event(lowering, "input free", RK_SCOPE_SLOT, 0);
    lowering->outgoing_sent = rk_lower_event(lowering, "output sent", RK_SCOPE_MICRO_BATCH_RING, turns);
    lowering->stream_received = rk_lower_event(lowering, "gradient received", RK_SCOPE_MICRO_BATCH_RING, turns);
    lowering->stream_free = rk_lower_event(lowering, "gradient free", RK_SCOPE_MICRO_BATCH_RING, turns);
    if (lowering->candidate->offload_percent == 0)
        return;
    lowering->staging_free = rk_lower_event(lowering, "staging free", RK_SCOPE_LAYER_RING, 2);
    lowering->offloaded = rk_lower_event(lowering, "offloaded", RK_SCOPE_LAYER_SLOT, 0);
    lowering->reload_free = rk_lower_event(lowering, "reload free", RK_SCOPE_LAYER_RING, 2);
    lowering->reloaded = rk_lower_event(lowering, "reloaded", RK_SCOPE_LAYER_RING, 2);
}

void rk_lower_buffers(struct rk_lowering *lowering) {
    add_data(lowering);
    add_values(lowering);
    add_stage_buffers(lowering);
    add_events(lowering);
}

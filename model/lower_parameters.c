#include "model/lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every tensor begins at a multiple of this many elements: 256 bytes in BF16. */
enum { TENSOR_ALIGNMENT = 128 };

static const struct parameter_row {
    const char *name;
    uint8_t kinds;
    bool expert, decayed;
} parameter_rows[RK_PARAMETER_COUNT] = {
#define RK_PARAMETER(field, name, kinds, expert, decayed) {name, RK_KINDS_##kinds, expert, decayed},
    RK_PARAMETER_TABLE(RK_PARAMETER)
#undef RK_PARAMETER
};

struct shape {
    int32_t rank; /* 0: the architecture has no such tensor */
    int64_t dim[3];
};

static struct shape vector(int64_t length) {
    return (struct shape){.rank = length > 0, .dim = {length}};
}

static struct shape matrix(int64_t rows, int64_t columns) {
    return (struct shape){.rank = rows > 0 ? 2 : 0, .dim = {rows, columns}};
}

static struct shape experts(int64_t count, int64_t rows, int64_t columns) {
    return (struct shape){.rank = 3, .dim = {count, rows, columns}};
}

/* The gains of q and k, or of latent attention's two latents. */
static struct shape query_key_gain(const struct rk_architecture *a, bool keys) {
    if (a->attention == RK_ATTENTION_MLA)
        return vector(keys ? a->kv_lora_rank : a->q_lora_rank);
    switch (a->qk_norm) {
    case RK_QK_NORM_PER_HEAD:
        return vector(a->head_dim);
    case RK_QK_NORM_FULL_WIDTH:
        return vector((keys ? a->kv_heads : a->heads) * a->head_dim);
    case RK_QK_NORM_NONE:
        break;
    }
    return vector(0);
}

static struct shape projection_shape(const struct rk_architecture *a, enum rk_parameter parameter) {
    int64_t queries = rk_architecture_query_width(a), keys = rk_architecture_kv_width(a);
    bool latent = a->attention == RK_ATTENTION_MLA;
    switch (parameter) {
    case RK_PARAMETER_wqkv:
        return matrix(latent ? 0 : queries + 2 * keys, a->hidden);
    case RK_PARAMETER_wq_down:
        return matrix(a->q_lora_rank, a->hidden);
    case RK_PARAMETER_wq_up:
        return matrix(latent ? queries : 0, a->q_lora_rank > 0 ? a->q_lora_rank : a->hidden);
    case RK_PARAMETER_wkv_down:
        return matrix(a->kv_lora_rank, a->hidden);
    case RK_PARAMETER_wk_rope:
        return matrix(a->qk_rope_head_dim, a->hidden);
    case RK_PARAMETER_wkv_up:
        return matrix(latent ? a->heads * (a->qk_nope_head_dim + a->v_head_dim) : 0, a->kv_lora_rank);
    default:
        return matrix(a->hidden, rk_architecture_output_width(a));
    }
}

/* What rk_count_parameters counts of a layer and no op reads: vectors all. */
static int64_t rest_elements(const struct rk_architecture *a, enum rk_block kind) {
    int64_t queries = rk_architecture_query_width(a), keys = rk_architecture_kv_width(a);
    int64_t rest = (a->block_norms - 2) * a->hidden;
    rest += (a->output_bias ? a->hidden : 0) + (a->attention_sinks ? a->heads : 0);
    if (a->qkv_bias && a->attention == RK_ATTENTION_MLA)
        rest += a->q_lora_rank + a->kv_lora_rank + a->qk_rope_head_dim;
    else if (a->qkv_bias)
        rest += queries + 2 * keys;
    if (kind == RK_BLOCK_DENSE)
        return rest + (a->mlp_bias ? 2 * a->dense_hidden + a->hidden : 0);
    return rest + (a->router_bias ? a->experts : 0) + (a->shared_gate ? a->hidden : 0);
}

/* The shape on one rank. */
static struct shape parameter_shape(const struct rk_lowering *lowering, enum rk_parameter parameter,
                                    enum rk_block kind) {
    const struct rk_architecture *a = lowering->architecture;
    int64_t held = a->experts / lowering->candidate->expert_parallel;
    switch (parameter) {
    case RK_PARAMETER_dense_w13:
        return matrix(2 * a->dense_hidden, a->hidden);
    case RK_PARAMETER_dense_w2:
        return matrix(a->hidden, a->dense_hidden);
    case RK_PARAMETER_wr:
        return matrix(a->experts, a->hidden);
    case RK_PARAMETER_shared_w13:
        return matrix(2 * a->shared_hidden, a->hidden);
    case RK_PARAMETER_shared_w2:
        return matrix(a->shared_hidden > 0 ? a->hidden : 0, a->shared_hidden);
    case RK_PARAMETER_w13:
        return experts(held, 2 * a->expert_hidden, a->hidden);
    case RK_PARAMETER_w2:
        return experts(held, a->hidden, a->expert_hidden);
    case RK_PARAMETER_q_norm:
    case RK_PARAMETER_k_norm:
        return query_key_gain(a, parameter == RK_PARAMETER_k_norm);
    case RK_PARAMETER_attention_norm:
    case RK_PARAMETER_dense_norm:
    case RK_PARAMETER_moe_norm:
        return vector(a->hidden);
    case RK_PARAMETER_rest:
        return vector(rest_elements(a, kind));
    case RK_PARAMETER_expert_rest:
        return matrix(a->expert_bias ? held : 0, 2 * a->expert_hidden + a->hidden);
    default:
        return projection_shape(a, parameter);
    }
}

static int64_t elements_of(const struct shape *shape) {
    int64_t elements = shape->rank > 0 ? 1 : 0;
    for (int32_t i = 0; i < shape->rank; i++)
        elements *= shape->dim[i];
    return elements;
}

static int64_t align_up(int64_t value, int64_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

/* The flat spaces while they are laid out. */
struct flat_layout {
    struct rk_lowering *lowering;
    int64_t (*offset)[RK_PARAMETER_COUNT]; /* [ordinal][parameter], elements, -1 absent */
    int64_t embed, embed_norm, head, norm; /* elements, -1 absent */
    struct open_bucket {
        int64_t offset, elements, ready;
    } open[2]; /* [expert]: the bucket that still takes tensors */
    size_t ready_capacity;
};

static struct rk_flat_space *space_of(struct rk_lowering *lowering, bool expert) {
    return expert ? &lowering->program->expert : &lowering->program->dense;
}

static void close_bucket(struct flat_layout *layout, bool expert, bool decayed) {
    struct rk_lowering *lowering = layout->lowering;
    struct rk_flat_space *space = space_of(lowering, expert);
    struct open_bucket *open = &layout->open[expert];
    if (open->elements == 0)
        return;
    size_t index = lowering->program->bucket_count;
    struct rk_bucket *bucket = rk_lower_bucket(lowering);
    if (index >= layout->ready_capacity) {
        layout->ready_capacity = 2 * index + 64;
        int64_t *ready = realloc(lowering->bucket_ready, layout->ready_capacity * sizeof *ready);
        if (ready == NULL)
            rk_lower_fail(lowering, RK_ERROR, "step program: out of memory");
        else
            lowering->bucket_ready = ready;
    }
    if (lowering->status != RK_OK)
        return;
    int64_t elements = align_up(open->elements, (int64_t)RK_SHARD_ALIGNMENT * space->replicas);
    *bucket = (struct rk_bucket){.expert = expert, .decayed = decayed, .offset = open->offset, .elements = elements};
    lowering->bucket_ready[index] = open->ready;
    space->elements = open->offset + elements;
    *open = (struct open_bucket){.offset = space->elements};
}

/* Gives a tensor its place; the bucket is complete when `ready` is (ordinals fall as backward proceeds). */
static int64_t place(struct flat_layout *layout, bool expert, int64_t elements, int64_t ready) {
    struct open_bucket *open = &layout->open[expert];
    int64_t offset = open->offset + open->elements;
    open->elements += align_up(elements, TENSOR_ALIGNMENT);
    open->ready = ready;
    return offset;
}

static int64_t place_alone(struct flat_layout *layout, int64_t elements, int64_t ready) {
    int64_t offset = place(layout, false, elements, ready);
    close_bucket(layout, false, true);
    return offset;
}

/* Places the parameters of a layer that are in the given space and decayed or not; a full bucket is closed first. */
static void place_layer(struct flat_layout *layout, int32_t ordinal, bool expert, bool decayed, int64_t ready) {
    struct rk_lowering *lowering = layout->lowering;
    uint8_t kind = (uint8_t)(1 << lowering->program->layer_kinds[ordinal]);
    int64_t elements[RK_PARAMETER_COUNT] = {0}, sum = 0;
    for (int p = 0; p < RK_PARAMETER_COUNT; p++) {
        const struct parameter_row *row = &parameter_rows[p];
        if ((row->kinds & kind) == 0 || row->expert != expert || row->decayed != decayed)
            continue;
        struct shape shape =
            parameter_shape(lowering, (enum rk_parameter)p, (enum rk_block)lowering->program->layer_kinds[ordinal]);
        elements[p] = elements_of(&shape);
        sum += align_up(elements[p], TENSOR_ALIGNMENT);
    }
    int64_t limit = lowering->candidate->bucket_bytes / (int64_t)sizeof(float);
    if (sum > limit - layout->open[expert].elements)
        close_bucket(layout, expert, decayed);
    for (int p = 0; p < RK_PARAMETER_COUNT; p++)
        if (elements[p] > 0)
            layout->offset[ordinal][p] = place(layout, expert, elements[p], ready);
}

/* Buckets in the order in which the last micro-batch's backward completes them: head, layers from the last to the
 * first, embedding; the few undecayed values (gains) of the whole stage in a bucket of their own at the end. */
static void lay_out(struct flat_layout *layout) {
    struct rk_lowering *lowering = layout->lowering;
    int32_t layers = lowering->program->layer_count;
    bool tied = lowering->architecture->tied_embeddings;
    int64_t table = lowering->vocabulary * lowering->hidden;

    if (lowering->last_stage && !tied)
        layout->head = place_alone(layout, table, layers);
    if (lowering->last_stage && tied && !lowering->first_stage)
        layout->embed = place_alone(layout, table, layers);
    for (int32_t ordinal = layers - 1; ordinal >= 0; ordinal--) {
        place_layer(layout, ordinal, false, true, ordinal);
        place_layer(layout, ordinal, true, true, ordinal);
    }
    close_bucket(layout, false, true);
    close_bucket(layout, true, true);
    if (lowering->first_stage)
        layout->embed = place_alone(layout, table, -1);
    if (lowering->last_stage)
        layout->norm = place(layout, false, lowering->hidden, -1);
    if (lowering->first_stage && lowering->architecture->embedding_norm)
        layout->embed_norm = place(layout, false, lowering->hidden, -1);
    for (int32_t ordinal = layers - 1; ordinal >= 0; ordinal--) {
        place_layer(layout, ordinal, false, false, -1);
        place_layer(layout, ordinal, true, false, -1);
    }
    close_bucket(layout, false, false);
    close_bucket(layout, true, false);
}

static void add_space_buffers(struct rk_lowering *lowering, bool expert) {
    struct rk_flat_space *space = space_of(lowering, expert);
    const char *name = expert ? "expert" : "dense";
    int64_t shard_bytes = space->elements / space->replicas * (int64_t)sizeof(float);
    space->weights = space->gradients = space->master = space->first_moment = space->second_moment = RK_NO_BUFFER;
    if (space->elements == 0)
        return;
    struct rk_buffer buffer = {.owner = RK_OWNER_WEIGHTS, .scope = RK_SCOPE_STEP};
    buffer.bytes = space->elements * lowering->act_bytes;
    space->weights = rk_lower_buffer(lowering, buffer, "%s.weights", name);
    buffer.owner = RK_OWNER_GRADIENTS;
    buffer.bytes = space->elements * (int64_t)sizeof(float);
    space->gradients = rk_lower_buffer(lowering, buffer, "%s.gradients", name);
    buffer.owner = RK_OWNER_OPTIMIZER;
    buffer.bytes = shard_bytes;
    space->master = rk_lower_buffer(lowering, buffer, "%s.master", name);
    space->first_moment = rk_lower_buffer(lowering, buffer, "%s.first_moment", name);
    space->second_moment = rk_lower_buffer(lowering, buffer, "%s.second_moment", name);
}

/* Adds the views of a parameter into weights and gradients: instance i lies at offset[i] elements. */
static void add_views(struct rk_lowering *lowering, const char *name, bool expert, enum rk_scope scope, uint8_t kinds,
                      int64_t elements, const int64_t *offset, int32_t instances, uint32_t *weight,
                      uint32_t *gradient) {
    const struct rk_flat_space *space = space_of(lowering, expert);
    int64_t *weight_offset = rk_lower_allocate(lowering, (size_t)instances, sizeof *weight_offset);
    int64_t *gradient_offset = rk_lower_allocate(lowering, (size_t)instances, sizeof *gradient_offset);
    for (int32_t i = 0; i < instances && lowering->status == RK_OK; i++) {
        weight_offset[i] = offset[i] * lowering->act_bytes;
        gradient_offset[i] = offset[i] * (int64_t)sizeof(float);
    }
    struct rk_buffer buffer = {.owner = RK_OWNER_WEIGHTS,
                               .scope = scope,
                               .layer_kinds = kinds,
                               .bytes = elements * lowering->act_bytes,
                               .view_of = space->weights,
                               .view_offset = weight_offset};
    *weight = rk_lower_buffer(lowering, buffer, "%s", name);
    buffer.owner = RK_OWNER_GRADIENTS;
    buffer.bytes = elements * (int64_t)sizeof(float);
    buffer.view_of = space->gradients;
    buffer.view_offset = gradient_offset;
    *gradient = rk_lower_buffer(lowering, buffer, "%s.gradient", name);
}

static void add_stage_views(struct flat_layout *layout) {
    struct rk_lowering *lowering = layout->lowering;
    int64_t table = lowering->vocabulary * lowering->hidden;
    if (layout->embed >= 0)
        add_views(lowering, "embed", false, RK_SCOPE_STEP, 0, table, &layout->embed, 1, &lowering->weight.embed,
                  &lowering->gradient.embed);
    if (layout->head >= 0)
        add_views(lowering, "head", false, RK_SCOPE_STEP, 0, table, &layout->head, 1, &lowering->weight.head,
                  &lowering->gradient.head);
    if (layout->norm >= 0)
        add_views(lowering, "norm", false, RK_SCOPE_STEP, 0, lowering->hidden, &layout->norm, 1, &lowering->weight.norm,
                  &lowering->gradient.norm);
    if (lowering->last_stage && lowering->architecture->tied_embeddings) {
        lowering->weight.head = lowering->weight.embed;
        lowering->gradient.head = lowering->gradient.embed;
    }
}

static bool has_view(enum rk_parameter parameter) {
    return parameter != RK_PARAMETER_rest && parameter != RK_PARAMETER_expert_rest;
}

/* The shape of what has a view does not depend on the kind of block. */
static void add_layer_views(struct flat_layout *layout, enum rk_parameter parameter) {
    struct rk_lowering *lowering = layout->lowering;
    const struct parameter_row *row = &parameter_rows[parameter];
    struct shape shape = parameter_shape(lowering, parameter, RK_BLOCK_MOE);
    int64_t offset[RK_LAYERS_MAX];
    int32_t instances = 0;
    if (!has_view(parameter))
        return;
    for (int32_t ordinal = 0; ordinal < lowering->program->layer_count; ordinal++)
        if (layout->offset[ordinal][parameter] >= 0)
            offset[instances++] = layout->offset[ordinal][parameter];
    if (instances > 0)
        add_views(lowering, row->name, row->expert, RK_SCOPE_LAYER, row->kinds, elements_of(&shape), offset, instances,
                  &lowering->weight.at[parameter], &lowering->gradient.at[parameter]);
}

static void add_tensor(struct rk_lowering *lowering, const char *name, int32_t layer, const struct shape *shape,
                       struct rk_tensor facts) {
    struct rk_tensor *tensor = rk_lower_tensor(lowering);
    if (tensor == NULL)
        return;
    *tensor = facts;
    tensor->layer = layer;
    tensor->rank = shape->rank;
    memcpy(tensor->dim, shape->dim, sizeof tensor->dim);
    if (layer < 0)
        snprintf(tensor->name, sizeof tensor->name, "%s", name);
    else
        snprintf(tensor->name, sizeof tensor->name, "blocks.%d.%s", layer, name);
}

static void add_layer_tensors(struct flat_layout *layout, int32_t ordinal, int64_t *instance) {
    struct rk_lowering *lowering = layout->lowering;
    const struct rk_program *program = lowering->program;
    int32_t layer = program->layers[ordinal];
    enum rk_block kind = (enum rk_block)program->layer_kinds[ordinal];
    for (int p = 0; p < RK_PARAMETER_COUNT; p++) {
        const struct parameter_row *row = &parameter_rows[p];
        struct shape shape = parameter_shape(lowering, (enum rk_parameter)p, kind);
        if (layout->offset[ordinal][p] < 0)
            continue;
        struct rk_tensor facts = {.expert = row->expert,
                                  .decayed = row->decayed,
                                  .trained = true,
                                  .offset = layout->offset[ordinal][p],
                                  .buffer = lowering->weight.at[p],
                                  .instance = has_view((enum rk_parameter)p) ? instance[p]++ : 0};
        facts.initial = row->decayed ? RK_INIT_NORMAL : RK_INIT_ONE;
        add_tensor(lowering, row->name, layer, &shape, facts);
    }
    if (lowering->route_bias != RK_NO_BUFFER && kind == RK_BLOCK_MOE) {
        struct shape shape = vector(lowering->architecture->experts);
        struct rk_tensor facts = {.offset = -1,
                                  .buffer = lowering->route_bias,
                                  .instance = instance[RK_PARAMETER_wr] - 1,
                                  .initial = RK_INIT_ZERO};
        add_tensor(lowering, "moe.bias", layer, &shape, facts);
    }
}

/* Tensors in the order of the forward: embedding, layers, norm, head. */
static void add_tensors(struct flat_layout *layout) {
    struct rk_lowering *lowering = layout->lowering;
    struct shape table = matrix(lowering->vocabulary, lowering->hidden), gain = vector(lowering->hidden);
    int64_t instance[RK_PARAMETER_COUNT] = {0};
    struct rk_tensor facts = {.trained = true, .decayed = true, .initial = RK_INIT_NORMAL};
    if (layout->embed >= 0) {
        struct rk_tensor embed = facts;
        embed.offset = layout->embed;
        embed.buffer = lowering->weight.embed;
        embed.tied_copy = !lowering->first_stage;
        add_tensor(lowering, "embed", -1, &table, embed);
    }
    if (layout->embed_norm >= 0) {
        struct rk_tensor norm = {
            .trained = true, .offset = layout->embed_norm, .buffer = RK_NO_BUFFER, .initial = RK_INIT_ONE};
        add_tensor(lowering, "embed_norm", -1, &gain, norm);
    }
    for (int32_t ordinal = 0; ordinal < lowering->program->layer_count; ordinal++)
        add_layer_tensors(layout, ordinal, instance);
    if (layout->norm >= 0) {
        struct rk_tensor norm = {
            .trained = true, .offset = layout->norm, .buffer = lowering->weight.norm, .initial = RK_INIT_ONE};
        add_tensor(lowering, "norm", -1, &gain, norm);
    }
    if (layout->head >= 0) {
        facts.offset = layout->head;
        facts.buffer = lowering->weight.head;
        add_tensor(lowering, "head", -1, &table, facts);
    }
}

void rk_lower_parameters(struct rk_lowering *lowering) {
    struct rk_program *program = lowering->program;
    const struct rk_candidate *candidate = lowering->candidate;
    struct flat_layout layout = {.lowering = lowering, .embed = -1, .embed_norm = -1, .head = -1, .norm = -1};
    program->dense.replicas = candidate->data_parallel;
    program->expert.replicas = candidate->data_parallel / candidate->expert_parallel;
    memset(&lowering->weight, 0xFF, sizeof lowering->weight);
    memset(&lowering->gradient, 0xFF, sizeof lowering->gradient);
    layout.offset = rk_lower_allocate(lowering, (size_t)program->layer_count, sizeof *layout.offset);
    if (lowering->status != RK_OK)
        return;
    memset(layout.offset, 0xFF, (size_t)program->layer_count * sizeof *layout.offset);

    lay_out(&layout);
    add_space_buffers(lowering, false);
    add_space_buffers(lowering, true);
    add_stage_views(&layout);
    for (int p = 0; p < RK_PARAMETER_COUNT; p++)
        add_layer_views(&layout, (enum rk_parameter)p);
    if (lowering->architecture->correction_bias && (lowering->kinds & RK_KINDS_MOE) != 0) {
        struct rk_buffer bias = {.owner = RK_OWNER_WEIGHTS,
                                 .scope = RK_SCOPE_LAYER,
                                 .layer_kinds = RK_KINDS_MOE,
                                 .bytes = lowering->architecture->experts * (int64_t)sizeof(float)};
        lowering->route_bias = rk_lower_buffer(lowering, bias, "moe.bias");
    }
    add_tensors(&layout);
    free(layout.offset);
}

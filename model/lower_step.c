/* One training step of one stage, top to bottom: the segments and the order in which they are visited.
 *
 *     begin: zero the gradients, sums and counters
 *     for every visit of the pipeline schedule
 *         forward:  embedding or receive, the chunk's blocks, send (the last chunk's output waits for its loss)
 *         backward: loss or receive, the chunk's blocks in reverse, embedding or send;
 *                   in the last micro-batch a bucket's reduction follows the block that completes its gradients
 *     end: squared gradient norm and sums over all ranks, update of the own shards, gather of the weights */
#include "model/lower.h"

#include <string.h>

/* Where in the schedule a segment is visited. */
struct chunk {
    int32_t virtual_stage, micro_batch, slot;
    int32_t first, last; /* ordinals of its layers */
    bool first_of_model, last_of_model;
};

static void visit_layer(struct rk_lowering *lowering, uint32_t segment, const struct chunk *chunk, int32_t ordinal) {
    rk_lower_visit(lowering, (struct rk_visit){.segment = segment,
                                               .layer = lowering->program->layers[ordinal],
                                               .ordinal = ordinal,
                                               .micro_batch = chunk->micro_batch,
                                               .virtual_stage = chunk->virtual_stage,
                                               .slot = chunk->slot});
}

static void visit_once(struct rk_lowering *lowering, uint32_t segment) {
    rk_lower_visit(
        lowering,
        (struct rk_visit){
            .segment = segment, .layer = -1, .ordinal = -1, .micro_batch = -1, .virtual_stage = -1, .slot = -1});
}

static void op(struct rk_lowering *lowering, enum rk_op_kind kind, enum rk_group_kind group, int64_t first,
               int64_t second, int64_t third) {
    struct rk_op_shape shape = {.group = group, .dim = {first, second, third}};
    rk_lower_op(lowering, kind, &shape);
}

/* Segments that are visited again and again, in the order of the step. */
struct step_segments {
    uint32_t embedding_forward, receive_activations, send_activations, loss, receive_gradients, send_gradients,
        embedding_backward;
};

/* ---- begin ---- */

static void zero(struct rk_lowering *lowering, uint32_t buffer) {
    if (buffer == RK_NO_BUFFER || lowering->status != RK_OK)
        return;
    op(lowering, RK_OP_ZERO, RK_GROUP_NONE, lowering->program->buffers[buffer].bytes, 0, 0);
    RK_OPERANDS(lowering, rk_at(buffer));
}

static void begin_step(struct rk_lowering *lowering) {
    const struct rk_program *program = lowering->program;
    uint32_t begin = rk_lower_segment_begin(lowering, RK_PHASE_OPTIMIZER, "begin step");
    zero(lowering, program->sums);
    rk_lower_wait(lowering, lowering->reduced, 0); /* the weights that the step before gathered */
    zero(lowering, program->dense.gradients);
    zero(lowering, program->expert.gradients);
    rk_lower_segment_end(lowering);
    visit_once(lowering, begin);
    if (program->load == RK_NO_BUFFER)
        return;
    uint32_t counters = rk_lower_segment_begin(lowering, RK_PHASE_OPTIMIZER, "zero load counters");
    zero(lowering, program->load);
    rk_lower_segment_end(lowering);
    for (int32_t ordinal = 0; ordinal < program->layer_count; ordinal++)
        if (program->layer_kinds[ordinal] == RK_BLOCK_MOE)
            rk_lower_visit(lowering, (struct rk_visit){.segment = counters,
                                                       .layer = program->layers[ordinal],
                                                       .ordinal = ordinal,
                                                       .micro_batch = -1,
                                                       .virtual_stage = program->layer_virtual_stage[ordinal],
                                                       .slot = -1});
}

/* ---- embedding and stage transfers ---- */

static uint32_t embedding_forward(struct rk_lowering *lowering) {
    uint32_t segment = rk_lower_segment_begin(lowering, RK_PHASE_FORWARD, "embedding forward");
    op(lowering, RK_OP_EMBEDDING_FORWARD, RK_GROUP_NONE, lowering->tokens, lowering->vocabulary, lowering->hidden);
    RK_OPERANDS(lowering, rk_at(lowering->program->tokens), rk_at(lowering->weight.embed),
                rk_at(lowering->forward[0].input));
    rk_lower_segment_end(lowering);
    return segment;
}

static uint32_t embedding_backward(struct rk_lowering *lowering) {
    uint32_t segment = rk_lower_segment_begin(lowering, RK_PHASE_BACKWARD, "embedding backward");
    op(lowering, RK_OP_EMBEDDING_BACKWARD, RK_GROUP_NONE, lowering->tokens, lowering->vocabulary, lowering->hidden);
    RK_OPERANDS(lowering, rk_at(lowering->program->tokens), rk_at(lowering->stream), rk_at(lowering->gradient.embed));
    rk_lower_record(lowering, lowering->stream_free, 0);
    rk_lower_segment_end(lowering);
    return segment;
}

static int64_t transfer_bytes(const struct rk_lowering *lowering) {
    return lowering->tokens * lowering->hidden * lowering->act_bytes;
}

/* A receive starts as soon as its place is free, whatever compute does by then: when the slot's last occupant is done
 * with its input, or, where inputs leave the device, when the last one in this place has left. */
static uint32_t receive_activations(struct rk_lowering *lowering) {
    uint32_t segment = rk_lower_segment_begin(lowering, RK_PHASE_FORWARD, "receive activations");
    op(lowering, RK_OP_RECEIVE, RK_GROUP_PIPELINE_PREVIOUS, transfer_bytes(lowering), 0, 0);
    RK_OPERANDS(lowering, rk_at(lowering->forward[0].input));
    if (lowering->forward[0].input == lowering->backward[0].input)
        rk_lower_wait(lowering, lowering->input_free, 0);
    rk_lower_record(lowering, lowering->input_received, 0);
    rk_lower_segment_end(lowering);
    return segment;
}

static uint32_t send_activations(struct rk_lowering *lowering) {
    uint32_t segment = rk_lower_segment_begin(lowering, RK_PHASE_FORWARD, "send activations");
    op(lowering, RK_OP_SEND, RK_GROUP_PIPELINE_NEXT, transfer_bytes(lowering), 0, 0);
    RK_OPERANDS(lowering, rk_at(lowering->outgoing));
    rk_lower_after_compute(lowering);
    rk_lower_wait(lowering, lowering->tail, 0);
    rk_lower_record(lowering, lowering->outgoing_sent, 0);
    rk_lower_segment_end(lowering);
    return segment;
}

static uint32_t receive_gradients(struct rk_lowering *lowering) {
    uint32_t segment = rk_lower_segment_begin(lowering, RK_PHASE_BACKWARD, "receive gradients");
    op(lowering, RK_OP_RECEIVE, RK_GROUP_PIPELINE_NEXT, transfer_bytes(lowering), 0, 0);
    RK_OPERANDS(lowering, rk_at(lowering->stream));
    rk_lower_wait(lowering, lowering->stream_free, 0);
    rk_lower_record(lowering, lowering->stream_received, 0);
    rk_lower_segment_end(lowering);
    return segment;
}

static uint32_t send_gradients(struct rk_lowering *lowering) {
    uint32_t segment = rk_lower_segment_begin(lowering, RK_PHASE_BACKWARD, "send gradients");
    op(lowering, RK_OP_SEND, RK_GROUP_PIPELINE_PREVIOUS, transfer_bytes(lowering), 0, 0);
    RK_OPERANDS(lowering, rk_at(lowering->stream));
    rk_lower_after_compute(lowering);
    rk_lower_record(lowering, lowering->stream_free, 0);
    rk_lower_segment_end(lowering);
    return segment;
}

/* ---- loss ---- */

/* Logits of some rows at a time: product, loss and its gradient in place, weight gradient, and the gradient of the
 * normed rows over the normed rows themselves. */
static void loss_chunk(struct rk_lowering *lowering, int64_t first_row) {
    int64_t rows = lowering->candidate->logits_chunk_tokens, hidden = lowering->hidden, width = lowering->vocabulary;
    struct rk_operand normed = rk_at_offset(lowering->head_normed, first_row * hidden * lowering->act_bytes);
    struct rk_operand logits = rk_at(lowering->head_logits);
    memset(lowering->workspaces, 0, sizeof lowering->workspaces); /* chunks share them */
    op(lowering, RK_OP_GEMM_FORWARD, RK_GROUP_NONE, rows, width, hidden);
    RK_OPERANDS(lowering, normed, rk_at(lowering->weight.head), rk_absent(), logits);
    op(lowering, RK_OP_CROSS_ENTROPY, RK_GROUP_NONE, rows, width, 0);
    RK_OPERANDS(lowering, logits, rk_at_offset(lowering->program->targets, first_row * (int64_t)sizeof(int32_t)),
                rk_at_offset(lowering->program->sums, RK_SUM_CROSS_ENTROPY * (int64_t)sizeof(double)));
    rk_lower_parameter(lowering, 0, 1.0 / (double)lowering->candidate->global_batch_tokens);
    op(lowering, RK_OP_GEMM_WGRAD, RK_GROUP_NONE, rows, width, hidden);
    RK_OPERANDS(lowering, logits, normed, rk_at(lowering->gradient.head));
    op(lowering, RK_OP_GEMM_DGRAD, RK_GROUP_NONE, rows, width, hidden);
    RK_OPERANDS(lowering, logits, rk_at(lowering->weight.head), rk_absent(), normed);
}

static uint32_t loss(struct rk_lowering *lowering) {
    int64_t tokens = lowering->tokens, hidden = lowering->hidden;
    uint32_t segment = rk_lower_segment_begin(lowering, RK_PHASE_LOSS, "loss");
    op(lowering, RK_OP_RMSNORM_FORWARD, RK_GROUP_NONE, tokens, hidden, 0);
    RK_OPERANDS(lowering, rk_at(lowering->head_input), rk_at(lowering->weight.norm), rk_at(lowering->head_normed),
                rk_at(lowering->head_rstd));
    rk_lower_parameter(lowering, 0, lowering->architecture->norm_epsilon);
    for (int64_t row = 0; row < tokens; row += lowering->candidate->logits_chunk_tokens)
        loss_chunk(lowering, row);
    op(lowering, RK_OP_RMSNORM_BACKWARD, RK_GROUP_NONE, tokens, hidden, 0);
    RK_OPERANDS(lowering, rk_at(lowering->head_normed), rk_at(lowering->head_input), rk_at(lowering->weight.norm),
                rk_at(lowering->head_rstd), rk_absent(), rk_at(lowering->stream), rk_at(lowering->gradient.norm));
    rk_lower_wait(lowering, lowering->stream_free, 0);
    rk_lower_segment_end(lowering);
    return segment;
}

/* ---- reduction ---- */

static const struct rk_flat_space *space_of(const struct rk_lowering *lowering, const struct rk_bucket *bucket) {
    return bucket->expert ? &lowering->program->expert : &lowering->program->dense;
}

static enum rk_group_kind replicas_of(const struct rk_bucket *bucket) {
    return bucket->expert ? RK_GROUP_EXPERT_REPLICA : RK_GROUP_DATA;
}

/* This rank's shard of a bucket inside a buffer of the whole flat space. */
static struct rk_operand shard_at(const struct rk_lowering *lowering, const struct rk_bucket *bucket, uint32_t buffer,
                                  int64_t element_bytes) {
    int64_t shard = bucket->elements / space_of(lowering, bucket)->replicas;
    return (struct rk_operand){.buffer = buffer,
                               .shard_group = (uint16_t)replicas_of(bucket),
                               .offset = bucket->offset * element_bytes,
                               .shard_bytes = shard * element_bytes};
}

static void reduce_bucket(struct rk_lowering *lowering, size_t index) {
    const struct rk_bucket bucket = lowering->program->buckets[index];
    const struct rk_flat_space *space = space_of(lowering, &bucket);
    int64_t element_bytes = (int64_t)sizeof(float);
    if (space->replicas == 1)
        return;
    uint32_t segment = rk_lower_segment_begin(lowering, RK_PHASE_REDUCTION, "reduce bucket %zu", index);
    op(lowering, RK_OP_REDUCE_SCATTER, replicas_of(&bucket), bucket.elements, space->replicas, 0);
    RK_OPERANDS(lowering, rk_at_offset(space->gradients, bucket.offset * element_bytes),
                shard_at(lowering, &bucket, space->gradients, element_bytes));
    rk_lower_after_compute(lowering);
    rk_lower_record(lowering, lowering->reduced, 0);
    rk_lower_segment_end(lowering);
    visit_once(lowering, segment);
}

/* The reductions that become possible when the last micro-batch's backward passes a point (see rk_lower_parameters). */
static void reduce_ready(struct rk_lowering *lowering, const struct chunk *chunk, int32_t ready) {
    if (chunk->micro_batch != lowering->micro_batches - 1)
        return;
    for (size_t i = 0; i < lowering->program->bucket_count && lowering->status == RK_OK; i++)
        if (lowering->bucket_ready[i] == ready)
            reduce_bucket(lowering, i);
}

/* ---- forward and backward of a chunk ---- */

static struct rk_block_place block_place(const struct rk_lowering *lowering, const struct chunk *chunk,
                                         int32_t ordinal) {
    struct rk_block_place place = {.kind = (enum rk_block)lowering->program->layer_kinds[ordinal]};
    if (ordinal == chunk->first)
        place.input = chunk->first_of_model ? RK_INPUT_EMBEDDING : RK_INPUT_RECEIVED;
    if (ordinal == chunk->last)
        place.output = chunk->last_of_model ? RK_OUTPUT_HEAD : RK_OUTPUT_SENT;
    return place;
}

static void forward_chunk(struct rk_lowering *lowering, const struct step_segments *segments,
                          const struct chunk *chunk) {
    if (chunk->first_of_model)
        visit_layer(lowering, segments->embedding_forward, chunk, chunk->first);
    else
        visit_layer(lowering, segments->receive_activations, chunk, chunk->first);
    for (int32_t ordinal = chunk->first; ordinal <= chunk->last; ordinal++)
        visit_layer(lowering, rk_lower_block_forward(lowering, block_place(lowering, chunk, ordinal)), chunk, ordinal);
    if (!chunk->last_of_model)
        visit_layer(lowering, segments->send_activations, chunk, chunk->last);
}

/* Brings back what a block's backward needs and forward sent away. */
static void reload(struct rk_lowering *lowering, const struct chunk *chunk, int32_t ordinal) {
    enum rk_block kind = (enum rk_block)lowering->program->layer_kinds[ordinal];
    if (rk_lower_offload_any(lowering, kind))
        visit_layer(lowering, rk_lower_offload_back(lowering, kind), chunk, ordinal);
}

static void backward_chunk(struct rk_lowering *lowering, const struct step_segments *segments,
                           const struct chunk *chunk) {
    reload(lowering, chunk, chunk->last);
    if (chunk->last_of_model) {
        visit_layer(lowering, segments->loss, chunk, chunk->last);
        reduce_ready(lowering, chunk, lowering->program->layer_count);
    } else {
        visit_layer(lowering, segments->receive_gradients, chunk, chunk->last);
    }
    for (int32_t ordinal = chunk->last; ordinal >= chunk->first; ordinal--) {
        if (ordinal > chunk->first)
            reload(lowering, chunk, ordinal - 1);
        visit_layer(lowering, rk_lower_block_backward(lowering, block_place(lowering, chunk, ordinal)), chunk, ordinal);
        reduce_ready(lowering, chunk, ordinal);
    }
    if (chunk->first_of_model)
        visit_layer(lowering, segments->embedding_backward, chunk, chunk->first);
    else
        visit_layer(lowering, segments->send_gradients, chunk, chunk->first);
    if (chunk->virtual_stage == 0)
        reduce_ready(lowering, chunk, -1);
}

/* ---- end ---- */

/* The bucket that holds a tied embedding table and nothing else, or NULL: the first and the last stage have it. */
static const struct rk_bucket *tied_bucket(const struct rk_lowering *lowering) {
    const struct rk_program *program = lowering->program;
    if (!lowering->architecture->tied_embeddings || lowering->candidate->pipeline == 1)
        return NULL;
    if (!lowering->first_stage && !lowering->last_stage)
        return NULL;
    for (size_t i = 0; i < program->tensor_count; i++)
        for (size_t b = 0; b < program->bucket_count; b++)
            if (strcmp(program->tensors[i].name, "embed") == 0 && !program->buckets[b].expert &&
                program->buckets[b].offset == program->tensors[i].offset)
                return &program->buckets[b];
    return NULL;
}

/* Both stages add their shares of the table's gradient, shard by shard: they are at the same place of like groups. */
static void reduce_tied(struct rk_lowering *lowering) {
    const struct rk_bucket *bucket = tied_bucket(lowering);
    if (bucket == NULL)
        return;
    const struct rk_flat_space *space = space_of(lowering, bucket);
    uint32_t segment = rk_lower_segment_begin(lowering, RK_PHASE_REDUCTION, "reduce tied embedding");
    op(lowering, RK_OP_ALL_REDUCE, RK_GROUP_EMBEDDING, bucket->elements / space->replicas, 2, 0);
    RK_OPERANDS(lowering, shard_at(lowering, bucket, space->gradients, (int64_t)sizeof(float)));
    rk_lower_after_compute(lowering);
    rk_lower_record(lowering, lowering->reduced, 0);
    rk_lower_segment_end(lowering);
    visit_once(lowering, segment);
}

/* Every element of every gradient is counted by the one rank that updates it; a tied table by the first stage. */
static void squared_norm(struct rk_lowering *lowering) {
    const struct rk_program *program = lowering->program;
    const struct rk_bucket *tied = tied_bucket(lowering);
    uint32_t segment = rk_lower_segment_begin(lowering, RK_PHASE_OPTIMIZER, "squared gradient norm");
    bool first = true;
    for (size_t i = 0; i < program->bucket_count; i++) {
        const struct rk_bucket *bucket = &program->buckets[i];
        const struct rk_flat_space *space = space_of(lowering, bucket);
        if (bucket == tied && !lowering->first_stage)
            continue;
        op(lowering, RK_OP_GRAD_NORM, RK_GROUP_NONE, bucket->elements / space->replicas, 0, 0);
        RK_OPERANDS(lowering, shard_at(lowering, bucket, space->gradients, (int64_t)sizeof(float)),
                    rk_at_offset(program->sums, RK_SUM_SQUARED_NORM * (int64_t)sizeof(double)));
        if (first)
            rk_lower_wait(lowering, lowering->reduced, 0);
        first = false;
    }
    rk_lower_segment_end(lowering);
    visit_once(lowering, segment);
}

static void reduce_sums(struct rk_lowering *lowering) {
    int64_t world = rk_candidate_world(lowering->candidate);
    struct rk_op_shape shape = {.group = RK_GROUP_WORLD, .flags = RK_OP_FLAG_F64, .dim = {RK_SUM_COUNT, world}};
    if (world == 1)
        return;
    uint32_t segment = rk_lower_segment_begin(lowering, RK_PHASE_OPTIMIZER, "sum losses and norm");
    rk_lower_op(lowering, RK_OP_ALL_REDUCE, &shape);
    RK_OPERANDS(lowering, rk_at(lowering->program->sums));
    rk_lower_after_compute(lowering);
    rk_lower_record(lowering, lowering->reduced, 0);
    rk_lower_segment_end(lowering);
    visit_once(lowering, segment);
}

static void update_bucket(struct rk_lowering *lowering, const struct rk_bucket *bucket) {
    const struct rk_program *program = lowering->program;
    const struct rk_flat_space *space = space_of(lowering, bucket);
    int64_t offset = bucket->offset / space->replicas * (int64_t)sizeof(float);
    op(lowering, RK_OP_ADAMW, RK_GROUP_NONE, bucket->elements / space->replicas, 0, 0);
    RK_OPERANDS(lowering, shard_at(lowering, bucket, space->gradients, (int64_t)sizeof(float)),
                rk_at_offset(space->master, offset), rk_at_offset(space->first_moment, offset),
                rk_at_offset(space->second_moment, offset),
                shard_at(lowering, bucket, space->weights, lowering->act_bytes), rk_at(program->step_state),
                rk_at_offset(program->sums, RK_SUM_SQUARED_NORM * (int64_t)sizeof(double)));
    rk_lower_parameter(lowering, 0, bucket->decayed ? lowering->candidate->weight_decay : 0);
}

static void gather_bucket(struct rk_lowering *lowering, const struct rk_bucket *bucket) {
    const struct rk_flat_space *space = space_of(lowering, bucket);
    if (space->replicas == 1)
        return;
    op(lowering, RK_OP_ALL_GATHER, replicas_of(bucket), bucket->elements, space->replicas, 0);
    RK_OPERANDS(lowering, shard_at(lowering, bucket, space->weights, lowering->act_bytes),
                rk_at_offset(space->weights, bucket->offset * lowering->act_bytes));
    rk_lower_after_compute(lowering);
    rk_lower_record(lowering, lowering->reduced, 0);
}

static void update(struct rk_lowering *lowering) {
    const struct rk_program *program = lowering->program;
    uint32_t segment = rk_lower_segment_begin(lowering, RK_PHASE_OPTIMIZER, "update and gather weights");
    for (size_t i = 0; i < program->bucket_count; i++) {
        update_bucket(lowering, &program->buckets[i]);
        if (i == 0)
            rk_lower_wait(lowering, lowering->reduced, 0);
        gather_bucket(lowering, &program->buckets[i]);
    }
    rk_lower_segment_end(lowering);
    visit_once(lowering, segment);
}

static void end_step(struct rk_lowering *lowering) {
    reduce_tied(lowering);
    squared_norm(lowering);
    reduce_sums(lowering);
    update(lowering);
}

/* ---- the step ---- */

static struct step_segments write_segments(struct rk_lowering *lowering) {
    struct step_segments segments = {0};
    bool virtual_stages = lowering->candidate->virtual_stages > 1;
    if (lowering->first_stage) {
        segments.embedding_forward = embedding_forward(lowering);
        segments.embedding_backward = embedding_backward(lowering);
    }
    if (!lowering->first_stage || virtual_stages) {
        segments.receive_activations = receive_activations(lowering);
        segments.send_gradients = send_gradients(lowering);
    }
    if (!lowering->last_stage || virtual_stages) {
        segments.send_activations = send_activations(lowering);
        segments.receive_gradients = receive_gradients(lowering);
    }
    if (lowering->last_stage)
        segments.loss = loss(lowering);
    return segments;
}

static struct chunk chunk_of(const struct rk_lowering *lowering, const struct rk_chunk_visit *visit) {
    const struct rk_program *program = lowering->program;
    int32_t virtual_stages = lowering->candidate->virtual_stages;
    struct chunk chunk = {.virtual_stage = visit->virtual_stage, .micro_batch = visit->micro_batch, .first = -1};
    for (int32_t ordinal = 0; ordinal < program->layer_count; ordinal++) {
        if (program->layer_virtual_stage[ordinal] != visit->virtual_stage)
            continue;
        if (chunk.first < 0)
            chunk.first = ordinal;
        chunk.last = ordinal;
    }
    chunk.first_of_model = lowering->first_stage && visit->virtual_stage == 0;
    chunk.last_of_model = lowering->last_stage && visit->virtual_stage == virtual_stages - 1;
    return chunk;
}

void rk_lower_step(struct rk_lowering *lowering, const struct rk_chunk_visit *order, const int32_t *slots,
                   int64_t count) {
    begin_step(lowering);
    struct step_segments segments = write_segments(lowering);
    for (int64_t i = 0; i < count && lowering->status == RK_OK; i++) {
        struct chunk chunk = chunk_of(lowering, &order[i]);
        chunk.slot = slots[i];
        if (order[i].backward)
            backward_chunk(lowering, &segments, &chunk);
        else
            forward_chunk(lowering, &segments, &chunk);
    }
    end_step(lowering);
}

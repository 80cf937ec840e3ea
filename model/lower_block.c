/* The blocks: what one layer does in its forward visit and in its backward visit, under every recompute policy. Each
 * part of the forward is written once; backward writes it again where its values were not kept. */
#include "model/lower.h"

/* What the parts of a block need to know. */
struct block {
    struct rk_lowering *lowering;
    struct rk_block_place place;
    const struct rk_block_values *at; /* the forward's or the backward's */
    bool again;                       /* recomputation: values only; routes, counters and sums stand */
};

static const struct rk_op_shape *site(const struct block *block, enum rk_site place) {
    return &block->lowering->shape[place];
}

static void op(const struct block *block, enum rk_op_kind kind, enum rk_site place) {
    rk_lower_op(block->lowering, kind, site(block, place));
}

#define OPERANDS(block, ...) RK_OPERANDS((block)->lowering, __VA_ARGS__)

static void norm_forward(const struct block *block, uint32_t x, uint32_t gain, uint32_t normed, uint32_t rstd) {
    op(block, RK_OP_RMSNORM_FORWARD, RK_SITE_NORM);
    OPERANDS(block, rk_at(x), rk_at(gain), rk_at(normed), rk_at(rstd));
    rk_lower_parameter(block->lowering, 0, block->lowering->architecture->norm_epsilon);
}

static void gemm_forward(const struct block *block, enum rk_site place, uint32_t x, uint32_t weight, uint32_t addend,
                         struct rk_operand y) {
    op(block, RK_OP_GEMM_FORWARD, place);
    OPERANDS(block, rk_at(x), rk_at(weight), rk_at(addend), y);
}

static void gemm_dgrad(const struct block *block, enum rk_site place, uint32_t dy, uint32_t weight, uint32_t dx) {
    op(block, RK_OP_GEMM_DGRAD, place);
    OPERANDS(block, rk_at(dy), rk_at(weight), rk_absent(), rk_at(dx));
}

static void gemm_wgrad(const struct block *block, enum rk_site place, uint32_t dy, uint32_t x, uint32_t gradient) {
    op(block, RK_OP_GEMM_WGRAD, place);
    OPERANDS(block, rk_at(dy), rk_at(x), rk_at(gradient));
}

static void rope_parameters(const struct block *block) {
    rk_lower_parameter(block->lowering, 0, block->lowering->architecture->rope_theta);
    rk_lower_parameter(block->lowering, 1, block->lowering->architecture->norm_epsilon);
}

/* What the forward has written so far leaves the device, where the candidate says so. */
static void offload(const struct block *block, bool last) {
    if (!block->again)
        rk_lower_offload_out(block->lowering, block->place.kind, last);
}

/* qkv of the normed input, as the rotation takes it: with gains the raw values are needed in backward too. */
static uint32_t qkv_before_rotation(const struct block *block) {
    return block->at->qkv_raw != RK_NO_BUFFER ? block->at->qkv_raw : block->at->qkv;
}

static bool is_latent(const struct block *block) {
    return block->lowering->architecture->attention == RK_ATTENTION_MLA;
}

/* input → context */
static void attention_core_forward(const struct block *block) {
    const struct rk_block_values *at = block->at;
    const struct rk_parameter_views *weight = &block->lowering->weight;
    norm_forward(block, at->input, weight->attention_norm, at->attention_normed, at->attention_rstd);
    if (!block->again && block->place.input == RK_INPUT_RECEIVED)
        rk_lower_wait(block->lowering, block->lowering->input_received, 0);
    uint32_t raw = qkv_before_rotation(block);
    bool gains = raw != at->qkv;
    if (is_latent(block))
        rk_lower_latent_forward(block->lowering, at);
    else
        gemm_forward(block, RK_SITE_QKV, at->attention_normed, weight->wqkv, RK_NO_BUFFER, rk_at(raw));
    op(block, RK_OP_ROPE_FORWARD, RK_SITE_ROPE);
    OPERANDS(block, rk_at(raw), gains ? rk_at(weight->q_norm) : rk_absent(),
             gains ? rk_at(weight->k_norm) : rk_absent(), rk_at(at->qkv));
    rope_parameters(block);
    op(block, RK_OP_ATTENTION_FORWARD, RK_SITE_ATTENTION);
    OPERANDS(block, rk_at(at->qkv), rk_at(at->context), rk_at(at->lse));
    offload(block, false);
}

static uint32_t mlp_gain(const struct block *block, const struct rk_parameter_views *views) {
    return block->place.kind == RK_BLOCK_MOE ? views->moe_norm : views->dense_norm;
}

/* input → middle, normed for the MLP */
static void attention_forward(const struct block *block) {
    const struct rk_block_values *at = block->at;
    const struct rk_parameter_views *weight = &block->lowering->weight;
    attention_core_forward(block);
    gemm_forward(block, RK_SITE_OUT, at->context, weight->wo, at->input, rk_at(at->middle));
    norm_forward(block, at->middle, mlp_gain(block, weight), at->mlp_normed, at->mlp_rstd);
    offload(block, false);
}

/* The last op of a block writes its output where the next block, the head or the send expects it. */
static struct rk_operand output_operand(const struct block *block) {
    const struct rk_lowering *lowering = block->lowering;
    struct rk_operand next = {.buffer = block->at->input, .layer_shift = 1};
    switch (block->place.output) {
    case RK_OUTPUT_HEAD:
        return rk_at(lowering->head_input);
    case RK_OUTPUT_SENT:
        return rk_at(lowering->outgoing);
    case RK_OUTPUT_BLOCK:
    case RK_OUTPUT_COUNT:
        break;
    }
    return next;
}

static void output_waits(const struct block *block) {
    if (block->place.output == RK_OUTPUT_SENT)
        rk_lower_wait(block->lowering, block->lowering->outgoing_sent, 0);
}

static void swiglu_forward(const struct block *block, enum rk_site place, uint32_t up, uint32_t hidden) {
    op(block, RK_OP_SWIGLU_FORWARD, place);
    OPERANDS(block, rk_at(up), rk_absent(), rk_absent(), rk_at(hidden));
}

/* mlp_normed → gate and up → hidden → output */
static void dense_mlp_forward(const struct block *block) {
    const struct rk_block_values *at = block->at;
    const struct rk_parameter_views *weight = &block->lowering->weight;
    gemm_forward(block, RK_SITE_DENSE_UP, at->mlp_normed, weight->dense_w13, RK_NO_BUFFER, rk_at(at->dense_up));
    swiglu_forward(block, RK_SITE_DENSE_GATE, at->dense_up, at->dense_hidden);
    if (block->again)
        return;
    offload(block, true);
    gemm_forward(block, RK_SITE_DENSE_DOWN, at->dense_hidden, weight->dense_w2, at->middle, output_operand(block));
    output_waits(block);
}

/* mlp_normed → routes: which experts, with what weight, and in which row of whose receive buffer. */
static void route_forward(const struct block *block) {
    struct rk_lowering *lowering = block->lowering;
    const struct rk_block_values *at = block->at;
    struct rk_op_shape router = *site(block, RK_SITE_ROUTER);
    router.flags |= RK_OP_FLAG_F32_OUTPUT;
    rk_lower_op(lowering, RK_OP_GEMM_FORWARD, &router);
    OPERANDS(block, rk_at(at->mlp_normed), rk_at(lowering->weight.wr), rk_absent(), rk_at(at->logits));
    op(block, RK_OP_ROUTE_FORWARD, RK_SITE_ROUTE);
    OPERANDS(block, rk_at(at->logits), rk_at(lowering->route_bias), rk_at(at->index), rk_at(at->weight),
             rk_at(at->requested), rk_at(at->score_mean),
             rk_at_offset(lowering->program->sums, RK_SUM_BALANCE * (int64_t)sizeof(double)));
    rk_lower_parameter(lowering, 0, lowering->architecture->routed_scaling);
    op(block, RK_OP_COUNT_EXCHANGE, RK_SITE_COUNTS);
    OPERANDS(block, rk_at(at->requested), rk_at(at->requested_of_all));
    op(block, RK_OP_ROUTE_MAP, RK_SITE_MAP);
    OPERANDS(block, rk_at(at->index), rk_at(at->requested_of_all), rk_at(at->row), rk_at(at->kept), rk_at(at->offsets),
             rk_at(at->order), rk_at(lowering->program->load));
    rk_lower_wait(lowering, lowering->exchange, 0);
}

/* Rows of source go to their experts' ranks; weights, where given, go along. */
static void dispatch(const struct block *block, uint32_t source, uint32_t weight, uint32_t rows, uint32_t row_weight) {
    const struct rk_block_values *at = block->at;
    op(block, RK_OP_DISPATCH, RK_SITE_EXCHANGE);
    OPERANDS(block, rk_at(source), rk_at(weight), rk_at(at->index), rk_at(at->row), rk_at(at->kept), rk_at(at->order),
             rk_at(rows), rk_at(row_weight));
}

static bool has_shared(const struct block *block) {
    return block->lowering->architecture->shared_hidden > 0;
}

/* The shared expert is computed while rows are on their way. Its output and the residual are what combine adds to. */
static void shared_expert_forward(const struct block *block) {
    const struct rk_block_values *at = block->at;
    const struct rk_parameter_views *weight = &block->lowering->weight;
    if (!has_shared(block))
        return;
    gemm_forward(block, RK_SITE_SHARED_UP, at->mlp_normed, weight->shared_w13, RK_NO_BUFFER, rk_at(at->shared_up));
    swiglu_forward(block, RK_SITE_SHARED_GATE, at->shared_up, at->shared_hidden);
    if (!block->again)
        gemm_forward(block, RK_SITE_SHARED_DOWN, at->shared_hidden, weight->shared_w2, at->middle,
                     rk_at(at->shared_output));
}

static void grouped_gemm(const struct block *block, enum rk_op_kind kind, enum rk_site place, uint32_t first,
                         uint32_t second, uint32_t result) {
    op(block, kind, place);
    OPERANDS(block, rk_at(first), rk_at(second), rk_at(block->at->offsets), rk_at(result));
}

/* rows → gate and up → hidden, scaled by the route's weight → output rows → summed at their tokens. */
static void experts_forward(const struct block *block) {
    struct rk_lowering *lowering = block->lowering;
    const struct rk_block_values *at = block->at;
    grouped_gemm(block, RK_OP_GROUPED_GEMM_FORWARD, RK_SITE_EXPERT_UP, at->rows, lowering->weight.w13, at->expert_up);
    rk_lower_wait(lowering, lowering->exchange, 0);
    op(block, RK_OP_SWIGLU_FORWARD, RK_SITE_EXPERT_GATE);
    OPERANDS(block, rk_at(at->expert_up), rk_at(at->row_weight), rk_at(at->offsets), rk_at(at->expert_hidden));
    if (block->again)
        return;
    offload(block, true);
    grouped_gemm(block, RK_OP_GROUPED_GEMM_FORWARD, RK_SITE_EXPERT_DOWN, at->expert_hidden, lowering->weight.w2,
                 at->expert_output);
    op(block, RK_OP_COMBINE, RK_SITE_EXCHANGE);
    OPERANDS(block, rk_at(at->expert_output), rk_absent(), rk_at(at->index), rk_at(at->row), rk_at(at->kept),
             rk_at(at->order), rk_at(has_shared(block) ? at->shared_output : at->middle), output_operand(block));
    output_waits(block);
}

static void moe_mlp_forward(const struct block *block) {
    const struct rk_block_values *at = block->at;
    if (!block->again)
        route_forward(block);
    dispatch(block, at->mlp_normed, at->weight, at->rows, at->row_weight);
    shared_expert_forward(block);
    offload(block, false);
    experts_forward(block);
}

static void mlp_forward(const struct block *block) {
    if (block->place.kind == RK_BLOCK_MOE)
        moe_mlp_forward(block);
    else
        dense_mlp_forward(block);
}

/* The first reader of the gradient of the block's output, on each stream, waits for what the next stage sent. */
static void after_gradient(const struct block *block) {
    if (block->place.output == RK_OUTPUT_SENT)
        rk_lower_wait(block->lowering, block->lowering->stream_received, 0);
}

static void norm_backward(const struct block *block, uint32_t dy, uint32_t x, uint32_t gain, uint32_t rstd,
                          uint32_t dgain) {
    uint32_t stream = block->lowering->stream;
    op(block, RK_OP_RMSNORM_BACKWARD, RK_SITE_NORM);
    OPERANDS(block, rk_at(dy), rk_at(x), rk_at(gain), rk_at(rstd), rk_at(stream), rk_at(stream), rk_at(dgain));
}

/* The gated product's gradient takes the place of gate and up. */
static void swiglu_backward(const struct block *block, enum rk_site place, uint32_t up, uint32_t d_hidden) {
    op(block, RK_OP_SWIGLU_BACKWARD, place);
    OPERANDS(block, rk_at(up), rk_absent(), rk_absent(), rk_at(d_hidden), rk_at(up));
}

/* gradient of the output → d_mlp_normed */
static void dense_mlp_backward(const struct block *block) {
    struct rk_lowering *lowering = block->lowering;
    const struct rk_block_values *at = block->at;
    gemm_wgrad(block, RK_SITE_DENSE_DOWN, lowering->stream, at->dense_hidden, lowering->gradient.dense_w2);
    after_gradient(block);
    gemm_dgrad(block, RK_SITE_DENSE_DOWN, lowering->stream, lowering->weight.dense_w2, at->d_dense_hidden);
    swiglu_backward(block, RK_SITE_DENSE_GATE, at->dense_up, at->d_dense_hidden);
    gemm_wgrad(block, RK_SITE_DENSE_UP, at->dense_up, at->mlp_normed, lowering->gradient.dense_w13);
    gemm_dgrad(block, RK_SITE_DENSE_UP, at->dense_up, lowering->weight.dense_w13, at->d_mlp_normed);
}

/* gradient of the output → its part of d_mlp_normed, while gradient rows are on their way */
static void shared_expert_backward(const struct block *block) {
    struct rk_lowering *lowering = block->lowering;
    const struct rk_block_values *at = block->at;
    if (!has_shared(block))
        return;
    gemm_wgrad(block, RK_SITE_SHARED_DOWN, lowering->stream, at->shared_hidden, lowering->gradient.shared_w2);
    after_gradient(block);
    gemm_dgrad(block, RK_SITE_SHARED_DOWN, lowering->stream, lowering->weight.shared_w2, at->d_shared_hidden);
    swiglu_backward(block, RK_SITE_SHARED_GATE, at->shared_up, at->d_shared_hidden);
    gemm_wgrad(block, RK_SITE_SHARED_UP, at->shared_up, at->mlp_normed, lowering->gradient.shared_w13);
    gemm_dgrad(block, RK_SITE_SHARED_UP, at->shared_up, lowering->weight.shared_w13, at->d_mlp_normed);
}

/* gradient rows → d_rows, summed at their tokens into d_mlp_normed; the last weight gradient is computed meanwhile. */
static void experts_backward(const struct block *block) {
    struct rk_lowering *lowering = block->lowering;
    const struct rk_block_values *at = block->at;
    uint32_t shared = has_shared(block) ? at->d_mlp_normed : RK_NO_BUFFER;
    grouped_gemm(block, RK_OP_GROUPED_GEMM_DGRAD, RK_SITE_EXPERT_DOWN, at->d_expert_output, lowering->weight.w2,
                 at->d_expert_hidden);
    rk_lower_wait(lowering, lowering->exchange, 0);
    grouped_gemm(block, RK_OP_GROUPED_GEMM_WGRAD, RK_SITE_EXPERT_DOWN, at->d_expert_output, at->expert_hidden,
                 lowering->gradient.w2);
    op(block, RK_OP_SWIGLU_BACKWARD, RK_SITE_EXPERT_GATE);
    OPERANDS(block, rk_at(at->expert_up), rk_at(at->row_weight), rk_at(at->offsets), rk_at(at->d_expert_hidden),
             rk_at(at->expert_up), rk_at(at->d_row_weight));
    grouped_gemm(block, RK_OP_GROUPED_GEMM_DGRAD, RK_SITE_EXPERT_UP, at->expert_up, lowering->weight.w13, at->d_rows);
    op(block, RK_OP_COMBINE, RK_SITE_EXCHANGE);
    OPERANDS(block, rk_at(at->d_rows), rk_at(at->d_row_weight), rk_at(at->index), rk_at(at->row), rk_at(at->kept),
             rk_at(at->order), rk_at(shared), rk_at(at->d_mlp_normed), rk_at(at->d_weight));
    grouped_gemm(block, RK_OP_GROUPED_GEMM_WGRAD, RK_SITE_EXPERT_UP, at->expert_up, at->rows, lowering->gradient.w13);
}

/* gradients of the routes' weights and of the auxiliary losses → the router's part of d_mlp_normed */
static void route_backward(const struct block *block) {
    struct rk_lowering *lowering = block->lowering;
    const struct rk_block_values *at = block->at;
    double windows = (double)lowering->program->windows;
    op(block, RK_OP_ROUTE_BACKWARD, RK_SITE_ROUTE);
    OPERANDS(block, rk_at(at->logits), rk_at(at->index), rk_at(at->requested), rk_at(at->score_mean),
             rk_at(at->d_weight), rk_at(at->d_logits));
    rk_lower_parameter(lowering, 0, lowering->architecture->routed_scaling);
    rk_lower_parameter(lowering, 1, lowering->candidate->balance_coefficient / windows);
    rk_lower_parameter(lowering, 2, lowering->candidate->z_coefficient / windows);
    rk_lower_wait(lowering, lowering->exchange, 0);
    struct rk_op_shape router = *site(block, RK_SITE_ROUTER);
    router.flags |= RK_OP_FLAG_F32_INPUT;
    rk_lower_op(lowering, RK_OP_GEMM_WGRAD, &router);
    OPERANDS(block, rk_at(at->d_logits), rk_at(at->mlp_normed), rk_at(lowering->gradient.wr));
    rk_lower_op(lowering, RK_OP_GEMM_DGRAD, &router);
    OPERANDS(block, rk_at(at->d_logits), rk_at(lowering->weight.wr), rk_at(at->d_mlp_normed), rk_at(at->d_mlp_normed));
}

/* In place; with gains their gradients come from the raw values. */
static void rope_backward(const struct block *block) {
    const struct rk_block_values *at = block->at;
    const struct rk_parameter_views *weight = &block->lowering->weight, *gradient = &block->lowering->gradient;
    op(block, RK_OP_ROPE_BACKWARD, RK_SITE_ROPE);
    if (at->qkv_raw == RK_NO_BUFFER)
        OPERANDS(block, rk_at(at->d_qkv), rk_absent(), rk_absent(), rk_absent(), rk_at(at->d_qkv));
    else
        OPERANDS(block, rk_at(at->d_qkv), rk_at(at->qkv_raw), rk_at(weight->q_norm), rk_at(weight->k_norm),
                 rk_at(at->d_qkv), rk_at(gradient->q_norm), rk_at(gradient->k_norm));
    rope_parameters(block);
}

/* d_mlp_normed → the gradient of middle → d_attention_normed → the gradient of the input, all in the stream buffer. */
static void attention_backward(const struct block *block) {
    struct rk_lowering *lowering = block->lowering;
    const struct rk_block_values *at = block->at;
    const struct rk_parameter_views *weight = &lowering->weight, *gradient = &lowering->gradient;
    gemm_wgrad(block, RK_SITE_OUT, lowering->stream, at->context, gradient->wo);
    if (is_latent(block))
        rk_lower_latent_fill(lowering, at->d_context);
    gemm_dgrad(block, RK_SITE_OUT, lowering->stream, weight->wo, at->d_context);
    op(block, RK_OP_ATTENTION_BACKWARD, RK_SITE_ATTENTION);
    OPERANDS(block, rk_at(at->qkv), rk_at(at->context), rk_at(at->lse), rk_at(at->d_context), rk_at(at->d_qkv));
    rope_backward(block);
    if (is_latent(block)) {
        rk_lower_latent_backward(lowering, at);
    } else {
        gemm_wgrad(block, RK_SITE_QKV, at->d_qkv, at->attention_normed, gradient->wqkv);
        gemm_dgrad(block, RK_SITE_QKV, at->d_qkv, weight->wqkv, at->d_attention_normed);
    }
    norm_backward(block, at->d_attention_normed, at->input, weight->attention_norm, at->attention_rstd,
                  gradient->attention_norm);
    if (block->place.input != RK_INPUT_BLOCK)
        rk_lower_record(lowering, lowering->input_free, 0);
    if (rk_lower_offload_any(lowering, block->place.kind))
        rk_lower_record(lowering, lowering->reload_free, 0);
}

static void recompute(const struct block *block, void (*part)(const struct block *)) {
    struct block again = *block;
    enum rk_phase phase = block->lowering->phase;
    again.again = true;
    block->lowering->phase = RK_PHASE_RECOMPUTE;
    part(&again);
    block->lowering->phase = phase;
}

static void write_forward(const struct block *block) {
    attention_forward(block);
    mlp_forward(block);
}

static void write_backward(const struct block *block) {
    struct rk_lowering *lowering = block->lowering;
    const struct rk_block_values *at = block->at;
    enum rk_recompute policy = lowering->candidate->recompute;
    bool moe = block->place.kind == RK_BLOCK_MOE;
    if (moe) {
        dispatch(block, lowering->stream, RK_NO_BUFFER, at->d_expert_output, RK_NO_BUFFER);
        after_gradient(block);
    }
    if (policy == RK_RECOMPUTE_BLOCK) {
        recompute(block, attention_forward);
        recompute(block, mlp_forward);
    }
    if (moe) {
        shared_expert_backward(block);
        experts_backward(block);
        route_backward(block);
    } else {
        dense_mlp_backward(block);
    }
    norm_backward(block, at->d_mlp_normed, at->middle, mlp_gain(block, &lowering->weight), at->mlp_rstd,
                  mlp_gain(block, &lowering->gradient));
    if (policy == RK_RECOMPUTE_ATTENTION)
        recompute(block, attention_core_forward);
    attention_backward(block);
}

static uint32_t block_segment(struct rk_lowering *lowering, struct rk_block_place place, bool backward) {
    static const char *const inputs[RK_INPUT_COUNT] = {"", ", after embedding", ", after receive"};
    static const char *const outputs[RK_OUTPUT_COUNT] = {"", ", before head", ", before send"};
    uint32_t *segment = &lowering->block_segment[place.kind][backward][place.input][place.output];
    if (*segment != UINT32_MAX || lowering->status != RK_OK)
        return *segment;
    struct block block = {.lowering = lowering,
                          .place = place,
                          .at = backward ? &lowering->backward[place.kind] : &lowering->forward[place.kind]};
    *segment = rk_lower_segment_begin(lowering, backward ? RK_PHASE_BACKWARD : RK_PHASE_FORWARD, "%s block %s%s%s",
                                      place.kind == RK_BLOCK_MOE ? "moe" : "dense", backward ? "backward" : "forward",
                                      inputs[place.input], outputs[place.output]);
    if (backward)
        write_backward(&block);
    else
        write_forward(&block);
    rk_lower_segment_end(lowering);
    return *segment;
}

uint32_t rk_lower_block_forward(struct rk_lowering *lowering, struct rk_block_place place) {
    return block_segment(lowering, place, false);
}

uint32_t rk_lower_block_backward(struct rk_lowering *lowering, struct rk_block_place place) {
    return block_segment(lowering, place, true);
}

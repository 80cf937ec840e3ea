/* Latent attention (MLA): queries, keys and values are projected through narrow latents, and one rotary key serves all
 * heads.
 *
 * Planned, not run: sizes, operations and order are right, but the op table cannot yet say how heads interleave in qkv
 * and how the rotary key spreads over them. Each projection writes a stretch of qkv of its own, and a fill of qkv
 * before them stands for that copy: it writes the same bytes. The attention op takes values as wide as queries (192
 * instead of 128 in DeepSeek-V3), which is 1.2 times its operations; its gradient is padded by a fill too. */
#include "model/lower.h"

/* Where the projections' stretches begin inside qkv, in bytes. */
struct stretches {
    int64_t queries, keys_values, rotary_key;
};

static struct stretches stretches_of(const struct rk_lowering *lowering) {
    const struct rk_architecture *a = lowering->architecture;
    int64_t token_bytes = lowering->tokens * lowering->act_bytes;
    int64_t keys_values = token_bytes * rk_architecture_query_width(a);
    int64_t rotary_key = keys_values + token_bytes * a->heads * (a->qk_nope_head_dim + a->v_head_dim);
    return (struct stretches){0, keys_values, rotary_key};
}

static void project(struct rk_lowering *lowering, enum rk_site site, uint32_t x, uint32_t weight, struct rk_operand y) {
    rk_lower_op(lowering, RK_OP_GEMM_FORWARD, &lowering->shape[site]);
    RK_OPERANDS(lowering, rk_at(x), rk_at(weight), rk_absent(), y);
}

static void norm(struct rk_lowering *lowering, enum rk_site site, uint32_t x, uint32_t gain, uint32_t y,
                 uint32_t rstd) {
    rk_lower_op(lowering, RK_OP_RMSNORM_FORWARD, &lowering->shape[site]);
    RK_OPERANDS(lowering, rk_at(x), rk_at(gain), rk_at(y), rk_at(rstd));
    rk_lower_parameter(lowering, 0, lowering->architecture->norm_epsilon);
}

void rk_lower_latent_fill(struct rk_lowering *lowering, uint32_t buffer) {
    struct rk_op_shape fill = {.dim = {lowering->status == RK_OK ? lowering->program->buffers[buffer].bytes : 0}};
    rk_lower_op(lowering, RK_OP_ZERO, &fill);
    RK_OPERANDS(lowering, rk_at(buffer));
}

void rk_lower_latent_forward(struct rk_lowering *lowering, const struct rk_block_values *at) {
    const struct rk_parameter_views *weight = &lowering->weight;
    struct stretches begin = stretches_of(lowering);
    bool narrow = lowering->architecture->q_lora_rank > 0;
    rk_lower_latent_fill(lowering, at->qkv);
    if (narrow) {
        project(lowering, RK_SITE_LATENT_Q_DOWN, at->attention_normed, weight->wq_down, rk_at(at->q_latent));
        norm(lowering, RK_SITE_LATENT_Q_NORM, at->q_latent, weight->q_norm, at->q_latent_normed, at->q_latent_rstd);
    }
    project(lowering, RK_SITE_LATENT_Q_UP, narrow ? at->q_latent_normed : at->attention_normed, weight->wq_up,
            rk_at_offset(at->qkv, begin.queries));
    project(lowering, RK_SITE_LATENT_K_ROPE, at->attention_normed, weight->wk_rope,
            rk_at_offset(at->qkv, begin.rotary_key));
    project(lowering, RK_SITE_LATENT_KV_DOWN, at->attention_normed, weight->wkv_down, rk_at(at->kv_latent));
    norm(lowering, RK_SITE_LATENT_KV_NORM, at->kv_latent, weight->k_norm, at->kv_latent_normed, at->kv_latent_rstd);
    project(lowering, RK_SITE_LATENT_KV_UP, at->kv_latent_normed, weight->wkv_up,
            rk_at_offset(at->qkv, begin.keys_values));
}

/* Both gradients of a projection; the input's is added to what addend holds. */
static void project_backward(struct rk_lowering *lowering, enum rk_site site, struct rk_operand dy, uint32_t x,
                             uint32_t weight, uint32_t gradient, uint32_t addend, uint32_t dx) {
    rk_lower_op(lowering, RK_OP_GEMM_WGRAD, &lowering->shape[site]);
    RK_OPERANDS(lowering, dy, rk_at(x), rk_at(gradient));
    rk_lower_op(lowering, RK_OP_GEMM_DGRAD, &lowering->shape[site]);
    RK_OPERANDS(lowering, dy, rk_at(weight), rk_at(addend), rk_at(dx));
}

static void norm_backward(struct rk_lowering *lowering, enum rk_site site, uint32_t dy, uint32_t x, uint32_t gain,
                          uint32_t rstd, uint32_t dx, uint32_t dgain) {
    rk_lower_op(lowering, RK_OP_RMSNORM_BACKWARD, &lowering->shape[site]);
    RK_OPERANDS(lowering, rk_at(dy), rk_at(x), rk_at(gain), rk_at(rstd), rk_absent(), rk_at(dx), rk_at(dgain));
}

void rk_lower_latent_backward(struct rk_lowering *lowering, const struct rk_block_values *at) {
    const struct rk_parameter_views *weight = &lowering->weight, *gradient = &lowering->gradient;
    struct stretches begin = stretches_of(lowering);
    uint32_t normed = at->attention_normed, d_normed = at->d_attention_normed;
    bool narrow = lowering->architecture->q_lora_rank > 0;
    project_backward(lowering, RK_SITE_LATENT_K_ROPE, rk_at_offset(at->d_qkv, begin.rotary_key), normed,
                     weight->wk_rope, gradient->wk_rope, RK_NO_BUFFER, d_normed);
    project_backward(lowering, RK_SITE_LATENT_KV_UP, rk_at_offset(at->d_qkv, begin.keys_values), at->kv_latent_normed,
                     weight->wkv_up, gradient->wkv_up, RK_NO_BUFFER, at->d_kv_latent_normed);
    norm_backward(lowering, RK_SITE_LATENT_KV_NORM, at->d_kv_latent_normed, at->kv_latent, weight->k_norm,
                  at->kv_latent_rstd, at->d_kv_latent, gradient->k_norm);
    project_backward(lowering, RK_SITE_LATENT_KV_DOWN, rk_at(at->d_kv_latent), normed, weight->wkv_down,
                     gradient->wkv_down, d_normed, d_normed);
    struct rk_operand d_queries = rk_at_offset(at->d_qkv, begin.queries);
    if (!narrow) {
        project_backward(lowering, RK_SITE_LATENT_Q_UP, d_queries, normed, weight->wq_up, gradient->wq_up, d_normed,
                         d_normed);
        return;
    }
    project_backward(lowering, RK_SITE_LATENT_Q_UP, d_queries, at->q_latent_normed, weight->wq_up, gradient->wq_up,
                     RK_NO_BUFFER, at->d_q_latent_normed);
    norm_backward(lowering, RK_SITE_LATENT_Q_NORM, at->d_q_latent_normed, at->q_latent, weight->q_norm,
                  at->q_latent_rstd, at->d_q_latent, gradient->q_norm);
    project_backward(lowering, RK_SITE_LATENT_Q_DOWN, rk_at(at->d_q_latent), normed, weight->wq_down, gradient->wq_down,
                     d_normed, d_normed);
}

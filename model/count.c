#include "model/count.h"

static int64_t attention_parameters(const struct rk_architecture *a) {
    const int64_t query = rk_architecture_query_width(a);
    const int64_t output = rk_architecture_output_width(a);
    int64_t count = output * a->hidden + (a->output_bias ? a->hidden : 0) + (a->attention_sinks ? a->heads : 0);
    if (a->attention == RK_ATTENTION_MLA) {
        const int64_t down = a->kv_lora_rank + a->qk_rope_head_dim;
        count += a->q_lora_rank > 0 ? a->q_lora_rank * (a->hidden + 1 + query) : a->hidden * query;
        count += a->hidden * down + a->kv_lora_rank;
        count += a->kv_lora_rank * a->heads * (a->qk_nope_head_dim + a->v_head_dim);
        return count + (a->qkv_bias ? a->q_lora_rank + down : 0);
    }
    const int64_t keys = rk_architecture_kv_width(a);
    count += (a->hidden + (a->qkv_bias ? 1 : 0)) * (query + 2 * keys);
    if (a->qk_norm == RK_QK_NORM_PER_HEAD) {
        count += 2 * a->head_dim;
    } else if (a->qk_norm == RK_QK_NORM_FULL_WIDTH) {
        count += query + keys;
    }
    return count;
}

/* Tensor parallelism splits heads: what is not per head stays whole on every rank. */
static int64_t attention_replicated(const struct rk_architecture *a) {
    int64_t count = a->output_bias ? a->hidden : 0;
    if (a->attention == RK_ATTENTION_MLA) {
        const int64_t down = a->kv_lora_rank + a->qk_rope_head_dim;
        count += a->q_lora_rank * (a->hidden + 1) + a->hidden * down + a->kv_lora_rank;
        return count + (a->qkv_bias ? a->q_lora_rank + down : 0);
    }
    return count + (a->qk_norm == RK_QK_NORM_PER_HEAD ? 2 * a->head_dim : 0);
}

void rk_count_parameters(const struct rk_architecture *architecture, struct rk_parameter_count *count) {
    const struct rk_architecture *a = architecture;
    struct rk_parameter_count c = {0};
    c.embedding = a->vocabulary * a->hidden;
    c.embedding_norm = a->embedding_norm ? a->hidden : 0;
    c.head = a->tied_embeddings ? 0 : c.embedding;
    c.final_norm = a->hidden;
    c.attention = attention_parameters(a);
    c.attention_replicated = attention_replicated(a);
    c.block_norms = a->block_norms * a->hidden;
    if (a->moe_layers > 0) {
        c.router = a->experts * (a->hidden + (a->router_bias ? 1 : 0) + (a->correction_bias ? 1 : 0));
        c.expert = 3 * a->hidden * a->expert_hidden + (a->expert_bias ? 2 * a->expert_hidden + a->hidden : 0);
        c.shared = 3 * a->hidden * a->shared_hidden + (a->shared_gate ? a->hidden : 0);
    }
    if (a->dense_layers > 0) {
        c.dense = 3 * a->hidden * a->dense_hidden + (a->mlp_bias ? 2 * a->dense_hidden + a->hidden : 0);
    }
    c.routed = a->moe_layers * a->experts * c.expert;
    c.not_routed = c.embedding + c.embedding_norm + c.head + c.final_norm + a->layers * (c.attention + c.block_norms) +
                   a->moe_layers * (c.router + c.shared) + a->dense_layers * c.dense;
    c.total = c.routed + c.not_routed;
    c.active = c.not_routed + a->moe_layers * a->top_k * c.expert;
    c.active_without_embedding = c.active - (a->tied_embeddings ? 0 : c.embedding);
    if (a->mtp_layers > 0) {
        const int64_t mlp = a->moe_layers > 0 ? c.router + a->experts * c.expert + c.shared : c.dense;
        c.mtp_module = c.attention + c.block_norms + mlp + 2 * a->hidden * a->hidden + 3 * a->hidden;
    }
    *count = c;
}

/* Attended positions of a sequence of n tokens within one unlimited stretch, summed over its tokens. */
static double attended_sum(double tokens, enum rk_attention_counting counting) {
    switch (counting) {
    case RK_COUNT_FULL:
        return tokens * tokens;
    case RK_COUNT_CAUSAL_HALF:
        return tokens * tokens / 2.0;
    case RK_COUNT_CAUSAL:
        break;
    }
    return tokens * (tokens + 1.0) / 2.0;
}

double rk_count_attended(const struct rk_architecture *architecture, bool limited, int64_t sequence,
                         enum rk_attention_counting counting) {
    const struct rk_architecture *a = architecture;
    const double length = (double)sequence;
    const double span = (double)a->span_tokens;
    if (!limited || a->span == RK_SPAN_FULL || span >= length) {
        return attended_sum(length, counting) / length;
    }
    if (a->span == RK_SPAN_SLIDING) {
        return counting == RK_COUNT_FULL ? span : (attended_sum(span, counting) + (length - span) * span) / length;
    }
    const double chunks = (double)(sequence / a->span_tokens);
    const double rest = (double)(sequence % a->span_tokens);
    return (chunks * attended_sum(span, counting) + attended_sum(rest, counting)) / length;
}

/* Weights that multiply every token in the attention projections of one layer. */
static double projection_weights(const struct rk_architecture *a) {
    const double hidden = (double)a->hidden;
    const double query = (double)rk_architecture_query_width(a);
    const double output = hidden * (double)rk_architecture_output_width(a);
    if (a->attention == RK_ATTENTION_MLA) {
        const double rank = (double)a->q_lora_rank;
        const double queries = a->q_lora_rank > 0 ? rank * (hidden + query) : hidden * query;
        return queries + hidden * (double)(a->kv_lora_rank + a->qk_rope_head_dim) +
               (double)a->kv_lora_rank * (double)(a->heads * (a->qk_nope_head_dim + a->v_head_dim)) + output;
    }
    return hidden * (query + 2.0 * (double)rk_architecture_kv_width(a)) + output;
}

void rk_count_token_flops(const struct rk_architecture *architecture, int64_t sequence,
                          enum rk_attention_counting counting, struct rk_token_flops *flops) {
    const struct rk_architecture *a = architecture;
    const double hidden = (double)a->hidden;
    const double values = a->attention == RK_ATTENTION_MLA ? (double)a->v_head_dim : (double)a->head_dim;
    const double per_position = 6.0 * (double)a->heads * ((double)a->head_dim + values);
    struct rk_token_flops f = {0};
    f.attention_projections = 6.0 * projection_weights(a);
    f.attention_full = per_position * rk_count_attended(a, false, sequence, counting);
    f.attention_limited = per_position * rk_count_attended(a, true, sequence, counting);
    if (a->moe_layers > 0) {
        f.router = 6.0 * hidden * (double)a->experts;
        f.routed = 18.0 * hidden * (double)a->expert_hidden * (double)a->top_k;
        f.shared = 18.0 * hidden * (double)a->shared_hidden + (a->shared_gate ? 6.0 * hidden : 0.0);
    }
    f.dense = a->dense_layers > 0 ? 18.0 * hidden * (double)a->dense_hidden : 0.0;
    f.head = 6.0 * hidden * (double)a->vocabulary;
    int64_t limited = 0;
    for (int64_t layer = 0; layer < a->layers; layer++) {
        limited += a->limited[layer];
    }
    f.total = (double)a->layers * f.attention_projections + (double)(a->layers - limited) * f.attention_full +
              (double)limited * f.attention_limited + (double)a->moe_layers * (f.router + f.routed + f.shared) +
              (double)a->dense_layers * f.dense + f.head;
    *flops = f;
}

double rk_count_mfu(double flops_per_token, double tokens, double seconds, double gpus, double dense_peak) {
    return flops_per_token * tokens / (gpus * seconds * dense_peak);
}

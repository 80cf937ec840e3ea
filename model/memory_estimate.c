#include "model/memory_estimate.h"

double rk_state_bytes_per_parameter(enum rk_state_sharding sharding, double weight_bytes, int64_t replicas) {
    const double all = weight_bytes + RK_GRADIENT_BYTES + RK_OPTIMIZER_BYTES;
    switch (sharding) {
    case RK_STATES_DISTRIBUTED_OPTIMIZER:
        return weight_bytes + RK_GRADIENT_BYTES + RK_OPTIMIZER_BYTES / (double)replicas;
    case RK_STATES_FULLY_SHARDED:
        return all / (double)replicas;
    case RK_STATES_REPLICATED:
        break;
    }
    return all;
}

double rk_state_bytes_per_rank(const struct rk_parameter_count *count, double weight_bytes, int64_t pipeline,
                               int64_t expert_parallel, int64_t expert_replicas) {
    const double routed = (double)count->routed / ((double)pipeline * (double)expert_parallel);
    const double others = (double)count->not_routed / (double)pipeline;
    return routed * rk_state_bytes_per_parameter(RK_STATES_DISTRIBUTED_OPTIMIZER, weight_bytes, expert_replicas) +
           others * rk_state_bytes_per_parameter(RK_STATES_DISTRIBUTED_OPTIMIZER, weight_bytes,
                                                 expert_parallel * expert_replicas);
}

int64_t rk_not_routed_per_tensor_rank(const struct rk_architecture *architecture,
                                      const struct rk_parameter_count *count, int64_t tensor) {
    const struct rk_architecture *a = architecture;
    const int64_t whole = a->layers * (count->attention_replicated + count->block_norms) +
                          a->moe_layers * (count->router + (a->shared_gate ? a->hidden : 0)) +
                          a->dense_layers * (a->mlp_bias ? a->hidden : 0) + count->final_norm + count->embedding_norm;
    return whole + (count->not_routed - whole + tensor - 1) / tensor;
}

/* Values that a block keeps per token besides its MLP: attention and norms, in units of d. */
static double attention_units(const struct rk_architecture *a) {
    const double hidden = (double)a->hidden;
    const double query = (double)rk_architecture_query_width(a) / hidden;
    const double output = (double)rk_architecture_output_width(a) / hidden;
    const double key = (double)rk_architecture_kv_width(a) / hidden;
    const double value = a->attention == RK_ATTENTION_MLA ? output : key;
    return 2.0 + query + output + key + value + (double)a->block_norms;
}

double rk_moe_block_activation_bytes(const struct rk_architecture *architecture, double tokens, double element_bytes) {
    const struct rk_architecture *a = architecture;
    const double hidden = (double)a->hidden;
    const double routed = (double)a->top_k * (2.0 + 3.0 * (double)a->expert_hidden / hidden);
    const double shared = 3.0 * (double)a->shared_hidden / hidden;
    return tokens * hidden * element_bytes * (attention_units(a) + routed + shared);
}

double rk_dense_block_activation_bytes(const struct rk_architecture *architecture, double tokens,
                                       double element_bytes) {
    const struct rk_architecture *a = architecture;
    const double hidden = (double)a->hidden;
    return tokens * hidden * element_bytes * (attention_units(a) + 3.0 * (double)a->dense_hidden / hidden);
}

double rk_logit_bytes(const struct rk_architecture *architecture, double tokens) {
    return 8.0 * tokens * (double)architecture->vocabulary;
}

double rk_gpt_activation_bytes(const struct rk_gpt_shape *shape, bool selective_and_sequence_parallel) {
    const double tokens = (double)shape->sequence * (double)shape->micro_batch;
    const double tensor = (double)shape->tensor;
    const double scores = 5.0 * (double)shape->heads * (double)shape->sequence / ((double)shape->hidden * tensor);
    const double per_value = selective_and_sequence_parallel ? 34.0 / tensor : 10.0 + 24.0 / tensor + scores;
    const double in_flight =
        shape->chunks > 1 ? 1.0 + (double)(shape->pipeline - 1) / (double)(shape->pipeline * shape->chunks) : 1.0;
    return tokens * (double)shape->hidden * per_value * (double)shape->layers * in_flight;
}

double rk_gpt_state_bytes(const struct rk_gpt_shape *shape) {
    const double hidden = (double)shape->hidden;
    return 12.0 * (double)shape->layers * hidden * hidden * 18.0 / ((double)shape->tensor * (double)shape->pipeline);
}

/* Closed forms of memory: model states per rank and activations per block. The exact bytes of a plan come from its
 * buffer table. The search judges offload by the two activation forms of a block; the others are published closed
 * forms, kept as vectors: the tests reproduce the published figures with them, and so check the parameter counts they
 * take. */
#ifndef RK_MODEL_MEMORY_ESTIMATE_H
#define RK_MODEL_MEMORY_ESTIMATE_H

#include "model/architecture.h"
#include "model/count.h"

/* Bytes per parameter of gradients (FP32) and of the optimizer's states (FP32 master weight and two moments). */
#define RK_GRADIENT_BYTES 4.0
#define RK_OPTIMIZER_BYTES 12.0

enum rk_state_sharding {
    RK_STATES_REPLICATED,            /* plain DDP: w + 4 + 12 */
    RK_STATES_DISTRIBUTED_OPTIMIZER, /* w + 4 + 12 / replicas */
    RK_STATES_FULLY_SHARDED          /* FSDP: (w + 4 + 12) / replicas, without the gathered working copy */
};

/* Bytes of weights, gradients and optimizer states per parameter held by a rank. weight_bytes: 2 for BF16, 2.0625 with
 * two MXFP8 weight caches. replicas >= 1: ranks that hold the same parameter. */
double rk_state_bytes_per_parameter(enum rk_state_sharding sharding, double weight_bytes, int64_t replicas);

/* Bytes of model states of a rank with even stages, the report's form with a distributed optimizer:
 *     P_E / (PP * M_E) * (w + 4 + 12 / D_E) + P_D / PP * (w + 4 + 12 / D),   D = M_E * D_E,
 * P_E routed and P_D all other parameters. All degrees >= 1. */
double rk_state_bytes_per_rank(const struct rk_parameter_count *count, double weight_bytes, int64_t pipeline,
                               int64_t expert_parallel, int64_t expert_replicas);

/* Parameters outside the routed experts that one rank of `tensor` tensor-parallel ranks holds: matrices divide, norms,
 * router and the replicated part of attention do not. Without PP. tensor >= 1 and divides the matrices. */
int64_t rk_not_routed_per_tensor_rank(const struct rk_architecture *architecture,
                                      const struct rk_parameter_count *count, int64_t tensor);

/* Bytes that one MoE block keeps for its backward without recompute, `tokens` on the rank, element_bytes each (2:
 * BF16): tokens * d * b * [(2 + 2q + 2q kappa) + norms + K (2 + 3h/d) + 3 h_s/d],   q = d_attn/d, kappa = n_kv/n_h;
 * attention keeps its input, normed input, q, k, v and output; the norms one value each; a route the received row,
 * gate, up, SwiGLU and the expert's output. Balanced load, no capacity padding. */
double rk_moe_block_activation_bytes(const struct rk_architecture *architecture, double tokens, double element_bytes);

/* The same for a dense block: the MLP keeps gate, up and SwiGLU (3 h/d). */
double rk_dense_block_activation_bytes(const struct rk_architecture *architecture, double tokens, double element_bytes);

/* Logits and their gradient in FP32: 8 bytes for each token and vocabulary entry. */
double rk_logit_bytes(const struct rk_architecture *architecture, double tokens);

/* Activations of a GPT block stack with tensor parallelism t in FP16 on the first pipeline stage (Korthikanti et al.
 * 2022): per layer s b h (10 + 24/t + 5 a s/(h t)) without recompute, s b h 34/t with selective recompute and sequence
 * parallelism; times L, times 1 + (p - 1)/(p v) for v > 1 interleaved chunks. In bytes. */
struct rk_gpt_shape {
    int64_t sequence, micro_batch, hidden, layers, heads, tensor, pipeline, chunks;
};
double rk_gpt_activation_bytes(const struct rk_gpt_shape *shape, bool selective_and_sequence_parallel);

/* 12 L h^2 parameters at 18 bytes over t * p ranks. */
double rk_gpt_state_bytes(const struct rk_gpt_shape *shape);

#endif

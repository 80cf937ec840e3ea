/* Parameters by owner, and useful FLOPs per token. Sources: the published parameter counts and the MFU convention of
 * the Olmo-core MoE training report (October 2026). */
#ifndef RK_MODEL_COUNT_H
#define RK_MODEL_COUNT_H

#include "model/architecture.h"

/* Parameters by owner. Norm weights, biases, sinks and the router's correction bias are counted with their owner.
 * MTP modules are in `mtp_module` only, never in a total. */
struct rk_parameter_count {
    int64_t embedding;            /* V * d */
    int64_t embedding_norm;       /* d with an embedding norm, else 0 */
    int64_t head;                 /* V * d, or 0 when tied */
    int64_t final_norm;           /* d */
    int64_t attention;            /* one layer: projections, biases, q/k norm, sinks */
    int64_t attention_replicated; /* the part of `attention` that every tensor-parallel rank holds whole */
    int64_t block_norms;          /* one layer */
    int64_t router;               /* one MoE layer: d * N, learned bias, correction bias */
    int64_t expert;               /* one routed expert */
    int64_t shared;               /* one MoE layer: shared experts and their gate */
    int64_t dense;                /* the MLP of one dense layer */
    int64_t routed;               /* all routed experts of all layers */
    int64_t not_routed;           /* everything else; routed + not_routed = total */
    int64_t total;
    int64_t active;                   /* used by one token, input embedding included */
    int64_t active_without_embedding; /* the same without the input embedding's V * d (a tied head still counts) */
    int64_t mtp_module; /* one multi-token-prediction module: a block, two norms and the 2d x d projection;
                           embedding and head are the main model's */
};

/* The architecture must have passed rk_architecture_check, so that nothing here overflows. */
void rk_count_parameters(const struct rk_architecture *architecture, struct rk_parameter_count *count);

/* How many earlier positions count in attention FLOPs, for a layer without a limit on its span:
 * full S; causal (S + 1) / 2, the report's; causal half S / 2, as several published tables print. */
enum rk_attention_counting { RK_COUNT_FULL, RK_COUNT_CAUSAL, RK_COUNT_CAUSAL_HALF };

/* Positions that a token attends to on average over a sequence, in a layer whose span is limited or not. */
double rk_count_attended(const struct rk_architecture *architecture, bool limited, int64_t sequence,
                         enum rk_attention_counting counting);

/* Useful training FLOPs per token: forward and backward are 6 per active weight and 12 per attended position and
 * element of the heads; no recompute, no inactive experts, no capacity padding, no norms. Forward alone is a third. */
struct rk_token_flops {
    double attention_projections; /* one layer */
    double attention_full;        /* scores and values of one layer without a limited span */
    double attention_limited;     /* the same with it */
    double router;                /* one MoE layer */
    double routed;                /* one MoE layer: the K chosen experts */
    double shared;                /* one MoE layer */
    double dense;                 /* the MLP of one dense layer */
    double head;
    double total; /* the whole model */
};

/* sequence >= 1. */
void rk_count_token_flops(const struct rk_architecture *architecture, int64_t sequence,
                          enum rk_attention_counting counting, struct rk_token_flops *flops);

/* MFU = flops_per_token * tokens / (gpus * seconds * dense_peak), with the dense BF16 peak in FLOP/s whatever the
 * precision. A fraction, not per cent. seconds, gpus and dense_peak > 0. */
double rk_count_mfu(double flops_per_token, double tokens, double seconds, double gpus, double dense_peak);

#endif

/* What a model is: everything of a Hugging Face config.json that changes the parameter count, the FLOPs or the forward.
 *
 * One table (rk_families) lists the families: the model_type names, and why the executor cannot run one yet. A field
 * that no reader of this struct looks at does not exist here; a property that changes the forward and is not modelled
 * is refused by name, when the file is read or by rk_architecture_runnable. */
#ifndef RK_MODEL_ARCHITECTURE_H
#define RK_MODEL_ARCHITECTURE_H

#include "base/json.h"
#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RK_LAYERS_MAX = 512, RK_ARCHITECTURE_NAME_MAX = 96 };

enum rk_family {
    RK_FAMILY_LLAMA,
    RK_FAMILY_QWEN3,
    RK_FAMILY_MIXTRAL,
    RK_FAMILY_OLMOE,
    RK_FAMILY_QWEN2_MOE,
    RK_FAMILY_QWEN3_MOE,
    RK_FAMILY_DEEPSEEK_V2,
    RK_FAMILY_DEEPSEEK_V3,
    RK_FAMILY_KIMI_K2,
    RK_FAMILY_GLM4_MOE,
    RK_FAMILY_GPT_OSS,
    RK_FAMILY_LLAMA4,
    RK_FAMILY_MINIMAX_M2,
    RK_FAMILY_COUNT
};

/* GQA covers multi-head (kv_heads = heads) and multi-query (kv_heads = 1) attention. */
enum rk_attention { RK_ATTENTION_GQA, RK_ATTENTION_MLA };

/* RMSNorm of queries and keys: one weight of head_dim shared by the heads, or one over the whole projected width. */
enum rk_qk_norm { RK_QK_NORM_NONE, RK_QK_NORM_PER_HEAD, RK_QK_NORM_FULL_WIDTH };

/* Which earlier positions a token of a limited layer attends to: all, the last span_tokens, or those of its own chunk
 * of span_tokens. */
enum rk_span { RK_SPAN_FULL, RK_SPAN_SLIDING, RK_SPAN_CHUNKED };

enum rk_block { RK_BLOCK_DENSE, RK_BLOCK_MOE };

enum rk_scoring { RK_SCORING_SOFTMAX, RK_SCORING_SIGMOID };

/* A model, checked: every size is positive where it is used, heads divide by kv_heads, top_k <= experts, and no product
 * that a parameter count or a byte count of 64 bytes per parameter needs overflows int64_t. Plain data, no ownership.
 */
struct rk_architecture {
    char name[RK_ARCHITECTURE_NAME_MAX]; /* file name without folder and ".json" */
    enum rk_family family;

    int64_t layers;        /* blocks, without MTP modules; <= RK_LAYERS_MAX */
    int64_t hidden;        /* d */
    int64_t vocabulary;    /* V */
    int64_t max_positions; /* longest sequence the config allows; 0 when it does not say */
    bool tied_embeddings;  /* the head uses the embedding's weight */
    bool embedding_norm;   /* an RMSNorm after the embedding (extension key "embedding_norm") */
    int64_t block_norms;   /* RMSNorms of width d per block: 2, or 4 with peri-norm (extension key "peri_norm") */
    double norm_epsilon;
    char activation[32];      /* of the gated MLPs: "silu" (SwiGLU), "gelu", ... */
    double initializer_range; /* standard deviation of the initial weights */

    enum rk_attention attention;
    int64_t heads;        /* n_h */
    int64_t kv_heads;     /* n_kv; GQA only (MLA: = heads) */
    int64_t head_dim;     /* GQA only; MLA: qk_nope_head_dim + qk_rope_head_dim */
    int64_t q_lora_rank;  /* MLA; 0: queries are projected directly */
    int64_t kv_lora_rank; /* MLA; 0 otherwise, as the three below */
    int64_t qk_nope_head_dim;
    int64_t qk_rope_head_dim;
    int64_t v_head_dim;
    enum rk_qk_norm qk_norm;
    bool qkv_bias; /* MLA: on the two down-projections */
    bool output_bias;
    bool attention_sinks; /* one learned logit per head */
    enum rk_span span;
    int64_t span_tokens;                 /* 0 when span is RK_SPAN_FULL */
    uint8_t limited[RK_LAYERS_MAX];      /* 1: this layer's attention is limited by span */
    uint8_t without_rope[RK_LAYERS_MAX]; /* 1: this layer does not rotate queries and keys */

    double rope_theta;
    double rotary_fraction; /* share of head_dim that is rotated; 1 for all of it */
    char rope_scaling[32];  /* "" when positions are not scaled, else the kind: "yarn", "llama3", ... */

    uint8_t block[RK_LAYERS_MAX]; /* enum rk_block of each layer */
    int64_t dense_layers;         /* layers with RK_BLOCK_DENSE */
    int64_t moe_layers;           /* layers with RK_BLOCK_MOE; dense_layers + moe_layers = layers */
    int64_t dense_hidden;         /* width of a dense block's MLP; 0 without dense layers */
    bool mlp_bias;                /* biases of the dense blocks' MLP */

    int64_t experts;       /* N, routed experts of a MoE block; 0 without MoE layers, as all below */
    int64_t top_k;         /* K */
    int64_t expert_hidden; /* h, width of one routed expert */
    int64_t shared_hidden; /* h_s, total width of the shared experts; 0: none */
    bool shared_gate;      /* a learned sigmoid gate (d weights) scales the shared experts' output */
    bool router_bias;      /* N learned biases added to the logits */
    bool expert_bias;      /* biases of gate, up (h each) and down (d) in every routed expert */
    enum rk_scoring scoring;
    bool normalise_top_k;  /* the K kept scores are divided by their sum */
    bool score_on_input;   /* the score multiplies the expert's input instead of its output (llama4) */
    bool correction_bias;  /* N values, without gradient, added to the scores for selection only */
    double routed_scaling; /* multiplies the routed output; 1 when absent */
    int64_t expert_groups; /* group-limited routing: experts in expert_groups groups, only the best */
    int64_t top_groups;    /* top_groups of them are eligible; 1 and 1 when routing is not limited */
    double swiglu_limit;   /* gate and up are clamped to this magnitude; 0: not clamped */

    int64_t mtp_layers; /* multi-token-prediction modules; counted apart, never in `layers` or totals */

    /* Keys of the file that change the forward, though neither a count nor FLOPs, and that no field above holds:
     * "clip_qkv, attention_dropout". "" when there are none. */
    char forward_only_keys[256];
};

struct rk_config; /* a config.json being read: model/architecture_config.h */

/* One row of the only list of families. model_types is NULL-terminated; the first name is the canonical one. */
struct rk_family_row {
    enum rk_family family;
    const char *name;                       /* for people: "Qwen3-MoE" */
    const char *model_types[3];             /* values of "model_type", after unwrapping text_config */
    void (*read)(struct rk_config *config); /* the keys that only this family has */
    const char *not_runnable;               /* NULL: rk_architecture_runnable decides by the fields; else the reason */
};

/* The row of a family (RK_FAMILY_COUNT rows, in the order of the enum). Never NULL for a valid family. */
const struct rk_family_row *rk_family_row(enum rk_family family);

/* Reads a config.json. `name` is the file's name for messages and the architecture's name.
 *
 * *warnings receives one line per oddity that does not change the result ("file: unknown keys ignored: a, b"), each
 * ended by a newline; it may be NULL. An absent key has the value that the family's library gives it, except where that
 * value would change the parameter count: then the key is required. An unknown model_type, a key that would change the
 * parameter count and is not part of the family, and a value that is absurd are RK_USAGE and name the file and the key.
 * *architecture is written only on success. */
enum rk_status rk_architecture_parse(const char *name, const char *text, size_t length,
                                     struct rk_architecture *architecture, struct rk_text *warnings,
                                     struct rk_error *error);
enum rk_status rk_architecture_read_file(const char *path, struct rk_architecture *architecture,
                                         struct rk_text *warnings, struct rk_error *error);

/* The checks promised above the struct, for one made by hand; `name` is for messages. RK_USAGE names the field. */
enum rk_status rk_architecture_check(const char *name, const struct rk_architecture *architecture,
                                     struct rk_error *error);

/* Whether the executor has this model's forward: GQA over the whole sequence, RoPE over the whole head without scaling,
 * RMSNorm before attention and MLP, optional q/k norm, SwiGLU experts, softmax or sigmoid scores, shared experts
 * without gate, dense layers anywhere, tied or untied head, no biases. RK_USAGE names the model and every property that
 * it lacks. */
enum rk_status rk_architecture_runnable(const struct rk_architecture *architecture, struct rk_error *error);

/* Widths of the projections in elements per token: queries (n_h * head_dim), keys or values (n_kv * head_dim), and the
 * attention output that enters the output projection (MLA: n_h * v_head_dim). */
static inline int64_t rk_architecture_query_width(const struct rk_architecture *architecture) {
    return architecture->heads * architecture->head_dim;
}

static inline int64_t rk_architecture_kv_width(const struct rk_architecture *architecture) {
    return architecture->kv_heads * architecture->head_dim;
}

static inline int64_t rk_architecture_output_width(const struct rk_architecture *architecture) {
    return architecture->attention == RK_ATTENTION_MLA ? architecture->heads * architecture->v_head_dim
                                                       : rk_architecture_query_width(architecture);
}

#endif

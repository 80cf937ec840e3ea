/* What the files of the lowering share: the program under construction, the sizes and shapes of a block, and the
 * buffers and events that the step's parts hand to one another. Private to model/lower_*.c.
 *
 * Order between streams. Ops are written in program order, and a wait means the latest record before it in that order.
 * So two events carry all traffic between the compute and the exchange stream: `compute`, recorded by the last compute
 * op before an op of another stream that needs it and by the last compute op of every segment, and `exchange`, recorded
 * by every exchange op. Values of visit scope end with their segment: an exchange op with which a segment ends records
 * `tail`, for which the first compute op of every segment waits; the first exchange op of a segment waits for
 * `compute`. */
#ifndef RK_MODEL_LOWER_H
#define RK_MODEL_LOWER_H

#include "model/program.h"
#include "model/schedule.h"

/* Sets of block kinds. */
enum {
    RK_KINDS_DENSE = 1 << RK_BLOCK_DENSE,
    RK_KINDS_MOE = 1 << RK_BLOCK_MOE,
    RK_KINDS_BOTH = RK_KINDS_DENSE | RK_KINDS_MOE
};

/* Places in a block where a shape occurs; forward, dgrad and wgrad of a matrix have the same dimensions. X(site) */
#define RK_SITE_TABLE(X)                                                                                               \
    X(NORM)                                                                                                            \
    X(QKV)                                                                                                             \
    X(ROPE)                                                                                                            \
    X(ATTENTION)                                                                                                       \
    X(LATENT_Q_DOWN)                                                                                                   \
    X(LATENT_Q_NORM)                                                                                                   \
    X(LATENT_Q_UP)                                                                                                     \
    X(LATENT_K_ROPE)                                                                                                   \
    X(LATENT_KV_DOWN)                                                                                                  \
    X(LATENT_KV_NORM)                                                                                                  \
    X(LATENT_KV_UP)                                                                                                    \
    X(OUT)                                                                                                             \
    X(DENSE_UP)                                                                                                        \
    X(DENSE_GATE)                                                                                                      \
    X(DENSE_DOWN)                                                                                                      \
    X(ROUTER)                                                                                                          \
    X(ROUTE)                                                                                                           \
    X(MAP)                                                                                                             \
    X(COUNTS)                                                                                                          \
    X(EXCHANGE)                                                                                                        \
    X(EXPERT_UP)                                                                                                       \
    X(EXPERT_GATE)                                                                                                     \
    X(EXPERT_DOWN)                                                                                                     \
    X(SHARED_UP)                                                                                                       \
    X(SHARED_GATE)                                                                                                     \
    X(SHARED_DOWN)

enum rk_site {
#define RK_SITE(site) RK_SITE_##site,
    RK_SITE_TABLE(RK_SITE)
#undef RK_SITE
    RK_SITE_COUNT
};

/* Which policies keep a value of a block from forward to backward; the others recompute it inside the backward one. */
enum rk_keep {
    RK_KEEP_NEVER,   /* lives within a visit under every policy */
    RK_KEEP_WHOLE,   /* kept under none; recomputed under attention and block */
    RK_KEEP_PARTIAL, /* kept under none and attention; recomputed under block */
    RK_KEEP_ALWAYS   /* routes: never recomputed */
};

/* The values of a block. X(field, owner, kinds, keep, op kind, site, operand): the size is that operand's. A field is a
 * buffer "dense.<field>" or "moe.<field>". The gradient of a value has the value's name behind "d_". */
#define RK_VALUE_TABLE(X)                                                                                              \
    X(attention_normed, ACTIVATIONS, BOTH, WHOLE, RMSNORM_FORWARD, NORM, 2)                                            \
    X(attention_rstd, ACTIVATIONS, BOTH, WHOLE, RMSNORM_FORWARD, NORM, 3)                                              \
    X(q_latent, ACTIVATIONS, BOTH, WHOLE, GEMM_FORWARD, LATENT_Q_DOWN, 3)                                              \
    X(q_latent_normed, ACTIVATIONS, BOTH, WHOLE, RMSNORM_FORWARD, LATENT_Q_NORM, 2)                                    \
    X(q_latent_rstd, ACTIVATIONS, BOTH, WHOLE, RMSNORM_FORWARD, LATENT_Q_NORM, 3)                                      \
    X(kv_latent, ACTIVATIONS, BOTH, WHOLE, GEMM_FORWARD, LATENT_KV_DOWN, 3)                                            \
    X(kv_latent_normed, ACTIVATIONS, BOTH, WHOLE, RMSNORM_FORWARD, LATENT_KV_NORM, 2)                                  \
    X(kv_latent_rstd, ACTIVATIONS, BOTH, WHOLE, RMSNORM_FORWARD, LATENT_KV_NORM, 3)                                    \
    X(d_q_latent_normed, TRANSIENT, BOTH, NEVER, RMSNORM_BACKWARD, LATENT_Q_NORM, 0)                                   \
    X(d_q_latent, TRANSIENT, BOTH, NEVER, RMSNORM_BACKWARD, LATENT_Q_NORM, 5)                                          \
    X(d_kv_latent_normed, TRANSIENT, BOTH, NEVER, RMSNORM_BACKWARD, LATENT_KV_NORM, 0)                                 \
    X(d_kv_latent, TRANSIENT, BOTH, NEVER, RMSNORM_BACKWARD, LATENT_KV_NORM, 5)                                        \
    X(qkv_raw, ACTIVATIONS, BOTH, WHOLE, ROPE_FORWARD, ROPE, 0)                                                        \
    X(qkv, ACTIVATIONS, BOTH, WHOLE, ROPE_FORWARD, ROPE, 3)                                                            \
    X(context, ACTIVATIONS, BOTH, WHOLE, ATTENTION_FORWARD, ATTENTION, 1)                                              \
    X(lse, ACTIVATIONS, BOTH, WHOLE, ATTENTION_FORWARD, ATTENTION, 2)                                                  \
    X(middle, ACTIVATIONS, BOTH, PARTIAL, GEMM_FORWARD, OUT, 3)                                                        \
    X(mlp_normed, ACTIVATIONS, BOTH, PARTIAL, RMSNORM_FORWARD, NORM, 2)                                                \
    X(mlp_rstd, ACTIVATIONS, BOTH, PARTIAL, RMSNORM_FORWARD, NORM, 3)                                                  \
    X(d_mlp_normed, TRANSIENT, BOTH, NEVER, RMSNORM_BACKWARD, NORM, 0)                                                 \
    X(d_context, TRANSIENT, BOTH, NEVER, ATTENTION_BACKWARD, ATTENTION, 3)                                             \
    X(d_qkv, TRANSIENT, BOTH, NEVER, ATTENTION_BACKWARD, ATTENTION, 4)                                                 \
    X(d_attention_normed, TRANSIENT, BOTH, NEVER, RMSNORM_BACKWARD, NORM, 0)                                           \
    X(dense_up, ACTIVATIONS, DENSE, PARTIAL, GEMM_FORWARD, DENSE_UP, 3)                                                \
    X(dense_hidden, ACTIVATIONS, DENSE, PARTIAL, SWIGLU_FORWARD, DENSE_GATE, 3)                                        \
    X(d_dense_hidden, TRANSIENT, DENSE, NEVER, SWIGLU_BACKWARD, DENSE_GATE, 3)                                         \
    X(logits, ROUTES, MOE, ALWAYS, GEMM_FORWARD, ROUTER, 3)                                                            \
    X(index, ROUTES, MOE, ALWAYS, ROUTE_FORWARD, ROUTE, 2)                                                             \
    X(weight, ROUTES, MOE, ALWAYS, ROUTE_FORWARD, ROUTE, 3)                                                            \
    X(requested, ROUTES, MOE, ALWAYS, ROUTE_FORWARD, ROUTE, 4)                                                         \
    X(score_mean, ROUTES, MOE, ALWAYS, ROUTE_FORWARD, ROUTE, 5)                                                        \
    X(requested_of_all, ROUTES, MOE, NEVER, COUNT_EXCHANGE, COUNTS, 1)                                                 \
    X(row, ROUTES, MOE, ALWAYS, ROUTE_MAP, MAP, 2)                                                                     \
    X(kept, ROUTES, MOE, ALWAYS, ROUTE_MAP, MAP, 3)                                                                    \
    X(offsets, ROUTES, MOE, ALWAYS, ROUTE_MAP, MAP, 4)                                                                 \
    X(order, ROUTES, MOE, ALWAYS, ROUTE_MAP, MAP, 5)                                                                   \
    X(rows, EXCHANGE, MOE, PARTIAL, DISPATCH, EXCHANGE, 6)                                                             \
    X(row_weight, EXCHANGE, MOE, PARTIAL, DISPATCH, EXCHANGE, 7)                                                       \
    X(expert_up, ACTIVATIONS, MOE, PARTIAL, GROUPED_GEMM_FORWARD, EXPERT_UP, 3)                                        \
    X(expert_hidden, ACTIVATIONS, MOE, PARTIAL, SWIGLU_FORWARD, EXPERT_GATE, 3)                                        \
    X(expert_output, EXCHANGE, MOE, NEVER, COMBINE, EXCHANGE, 0)                                                       \
    X(shared_up, ACTIVATIONS, MOE, PARTIAL, GEMM_FORWARD, SHARED_UP, 3)                                                \
    X(shared_hidden, ACTIVATIONS, MOE, PARTIAL, SWIGLU_FORWARD, SHARED_GATE, 3)                                        \
    X(shared_output, TRANSIENT, MOE, NEVER, GEMM_FORWARD, SHARED_DOWN, 3)                                              \
    X(d_shared_hidden, TRANSIENT, MOE, NEVER, SWIGLU_BACKWARD, SHARED_GATE, 3)                                         \
    X(d_expert_output, EXCHANGE, MOE, NEVER, DISPATCH, EXCHANGE, 6)                                                    \
    X(d_expert_hidden, TRANSIENT, MOE, NEVER, SWIGLU_BACKWARD, EXPERT_GATE, 3)                                         \
    X(d_row_weight, EXCHANGE, MOE, NEVER, SWIGLU_BACKWARD, EXPERT_GATE, 5)                                             \
    X(d_rows, EXCHANGE, MOE, NEVER, COMBINE, EXCHANGE, 0)                                                              \
    X(d_weight, ROUTES, MOE, NEVER, COMBINE, EXCHANGE, 8)                                                              \
    X(d_logits, ROUTES, MOE, NEVER, ROUTE_BACKWARD, ROUTE, 5)

enum rk_value {
#define RK_VALUE(field, ...) RK_VALUE_##field,
    RK_VALUE_TABLE(RK_VALUE)
#undef RK_VALUE
    RK_VALUE_COUNT
};

/* Where the values of a kind of block lie: buffers by field name or by enum rk_value; RK_NO_BUFFER where it is absent.
 * */
struct rk_block_values {
    uint32_t input; /* the block's input; the same buffer for both kinds */
    union {
        struct {
#define RK_VALUE(field, ...) uint32_t field;
            RK_VALUE_TABLE(RK_VALUE)
#undef RK_VALUE
        };
        uint32_t at[RK_VALUE_COUNT];
    };
};

/* Parameters of a layer. The rest are biases, sinks, gates and further norms, which are counted and held but which no
 * op reads: architectures that have them are planned, not run. In their order inside the flat spaces. X(field, name,
 * kinds, expert, decayed) */
#define RK_PARAMETER_TABLE(X)                                                                                          \
    X(wqkv, "attn.wqkv", BOTH, false, true)                                                                            \
    X(wq_down, "attn.wq_a", BOTH, false, true)                                                                         \
    X(wq_up, "attn.wq_b", BOTH, false, true)                                                                           \
    X(wkv_down, "attn.wkv_a", BOTH, false, true)                                                                       \
    X(wk_rope, "attn.wk_rope", BOTH, false, true)                                                                      \
    X(wkv_up, "attn.wkv_b", BOTH, false, true)                                                                         \
    X(wo, "attn.wo", BOTH, false, true)                                                                                \
    X(dense_w13, "mlp.w13", DENSE, false, true)                                                                        \
    X(dense_w2, "mlp.w2", DENSE, false, true)                                                                          \
    X(wr, "moe.wr", MOE, false, true)                                                                                  \
    X(shared_w13, "shared.w13", MOE, false, true)                                                                      \
    X(shared_w2, "shared.w2", MOE, false, true)                                                                        \
    X(w13, "moe.w13", MOE, true, true)                                                                                 \
    X(w2, "moe.w2", MOE, true, true)                                                                                   \
    X(attention_norm, "attn.norm", BOTH, false, false)                                                                 \
    X(q_norm, "attn.q_norm", BOTH, false, false)                                                                       \
    X(k_norm, "attn.k_norm", BOTH, false, false)                                                                       \
    X(dense_norm, "mlp.norm", DENSE, false, false)                                                                     \
    X(moe_norm, "moe.norm", MOE, false, false)                                                                         \
    X(rest, "rest", BOTH, false, false)                                                                                \
    X(expert_rest, "moe.expert_rest", MOE, true, false)

enum rk_parameter {
#define RK_PARAMETER(field, ...) RK_PARAMETER_##field,
    RK_PARAMETER_TABLE(RK_PARAMETER)
#undef RK_PARAMETER
    RK_PARAMETER_COUNT
};

/* Views of one kind (weights or gradients) of all parameters. */
struct rk_parameter_views {
    uint32_t embed, head, norm;
    union {
        struct {
#define RK_PARAMETER(field, ...) uint32_t field;
            RK_PARAMETER_TABLE(RK_PARAMETER)
#undef RK_PARAMETER
        };
        uint32_t at[RK_PARAMETER_COUNT];
    };
};

/* Where a block's input comes from and where its output goes; a chunk's inner blocks have the first of each. */
enum rk_block_input { RK_INPUT_BLOCK, RK_INPUT_EMBEDDING, RK_INPUT_RECEIVED, RK_INPUT_COUNT };
enum rk_block_output { RK_OUTPUT_BLOCK, RK_OUTPUT_HEAD, RK_OUTPUT_SENT, RK_OUTPUT_COUNT };
struct rk_block_place {
    enum rk_block kind;
    enum rk_block_input input;
    enum rk_block_output output;
};

/* Where a value goes that leaves the device between forward and backward; bytes 0: it stays. */
struct rk_offload_place {
    int64_t bytes;
    uint32_t staging, reload, host;
    bool sent; /* while a forward segment is written: its copy out is written already */
};
enum { RK_OFFLOAD_INPUT = RK_VALUE_COUNT }; /* the block's input, behind its values */

/* A scratch buffer that ops of a kind share: the number-th of its segment with that need. */
struct rk_workspace {
    enum rk_op_kind kind;
    int32_t number;
    int64_t bytes;
    uint32_t buffer;
};

struct rk_lowering {
    const struct rk_architecture *architecture;
    const struct rk_candidate *candidate;
    struct rk_program *program;
    struct rk_error *error;
    enum rk_status status; /* the first failure; whatever is added after it is dropped */

    /* Sizes, as in ops.h. */
    int64_t tokens, hidden, vocabulary, micro_batches;
    int64_t act_bytes; /* of one activation value */
    struct rk_op_shape shape[RK_SITE_COUNT];
    uint8_t kinds; /* block kinds that this stage has */
    bool first_stage, last_stage;

    /* Buffers. Forward and backward differ where a value is offloaded in between. */
    struct rk_block_values forward[2], backward[2]; /* by enum rk_block */
    struct rk_parameter_views weight, gradient;
    uint32_t route_bias; /* moe.bias or RK_NO_BUFFER */
    uint32_t outgoing;   /* the chunk's output on its way to the next stage */
    uint32_t stream; /* the gradient of the block's output, then of its input: one buffer through a chunk's backward */
    uint32_t head_input, head_normed, head_rstd, head_logits;
    struct rk_offload_place offload[2][RK_VALUE_COUNT + 1]; /* [kind][value] */
    int64_t *bucket_ready;                                  /* [bucket]: see rk_lower_parameters; owned */

    /* Events. */
    uint16_t compute, exchange, tail, input_received, input_free, outgoing_sent, stream_received, stream_free, reduced;
    uint16_t staging_free, offloaded, reload_free, reloaded; /* see lower_offload.c */

    /* The segment and the op under construction. */
    enum rk_phase phase;
    struct rk_op *op, dropped_op;
    int32_t workspaces[RK_OP_KIND_COUNT];                          /* ops with workspace so far in this segment */
    bool staging_awaited[RK_STREAM_COUNT][2], reload_awaited;      /* so far in this segment; [stream][layer shift] */
    uint32_t block_segment[2][2][RK_INPUT_COUNT][RK_OUTPUT_COUNT]; /* [kind][backward], UINT32_MAX: not yet written */
    uint32_t reload_segment[2];                                    /* [kind], the same */

    struct rk_workspace *workspace; /* owned */
    size_t workspace_count, workspace_capacity;
    size_t buffer_capacity, event_capacity, op_capacity, segment_capacity, visit_capacity, tensor_capacity,
        bucket_capacity;
};

/* lower_table.c: rows of the tables. After a failure they return index 0 and leave the program alone. */
uint32_t rk_lower_buffer(struct rk_lowering *lowering, struct rk_buffer buffer, const char *format, ...)
    RK_PRINTF_LIKE(3, 4);
uint16_t rk_lower_event(struct rk_lowering *lowering, const char *name, enum rk_scope scope, int32_t ring_size);
struct rk_tensor *rk_lower_tensor(struct rk_lowering *lowering);
struct rk_bucket *rk_lower_bucket(struct rk_lowering *lowering);
void rk_lower_visit(struct rk_lowering *lowering, struct rk_visit visit);
void *rk_lower_allocate(struct rk_lowering *lowering, size_t count, size_t size);
void rk_lower_fail(struct rk_lowering *lowering, enum rk_status status, const char *format, ...) RK_PRINTF_LIKE(3, 4);

/* Segments: begin, ops, end. End joins the streams at the segment's borders, as said above. */
uint32_t rk_lower_segment_begin(struct rk_lowering *lowering, enum rk_phase phase, const char *format, ...)
    RK_PRINTF_LIKE(3, 4);
void rk_lower_segment_end(struct rk_lowering *lowering);

/* Starts an op of a kind with the dimensions, flags and group of a shape, on the stream of its kind. */
void rk_lower_op(struct rk_lowering *lowering, enum rk_op_kind kind, const struct rk_op_shape *shape);
/* Its operands in order; missing ones at the end are absent. The workspace is added by itself. */
void rk_lower_operands(struct rk_lowering *lowering, int count, const struct rk_operand *operands);
#define RK_OPERANDS(lowering, ...)                                                                                     \
    rk_lower_operands(lowering, (int)(sizeof((struct rk_operand[]){__VA_ARGS__}) / sizeof(struct rk_operand)),         \
                      (struct rk_operand[]){__VA_ARGS__})
void rk_lower_parameter(struct rk_lowering *lowering, int index, double value);
void rk_lower_wait(struct rk_lowering *lowering, uint16_t event, int layer_shift);
void rk_lower_record(struct rk_lowering *lowering, uint16_t event, int layer_shift);
/* The op waits for all compute ops written before it. */
void rk_lower_after_compute(struct rk_lowering *lowering);

static inline struct rk_operand rk_at_offset(uint32_t buffer, int64_t offset) {
    return (struct rk_operand){.buffer = buffer, .offset = offset};
}

static inline struct rk_operand rk_at(uint32_t buffer) {
    return rk_at_offset(buffer, 0);
}

static inline struct rk_operand rk_absent(void) {
    return rk_at(RK_NO_BUFFER);
}

/* lower_parameters.c: tensors, flat spaces, buckets. bucket_ready[b] is when backward has completed the bucket: the
 * ordinal of its last layer, layer_count for the head's visit, -1 for the end of backward. */
void rk_lower_parameters(struct rk_lowering *lowering);

/* lower_buffers.c: all other buffers and the events. */
void rk_lower_shapes(struct rk_lowering *lowering);
void rk_lower_buffers(struct rk_lowering *lowering);

/* lower_offload.c. Choose: which of the values of a kind with these bytes leave. Place: the buffers of one that does.
 * Waits: the waits of an op that writes staging or reads reload instances; called for every op. Out: copies of what the
 * forward segment has written so far and, last, of the block's input. Back: the segment that brings a block's values
 * back. */
void rk_lower_offload_choose(struct rk_lowering *lowering, enum rk_block kind, const int64_t bytes[RK_VALUE_COUNT],
                             bool chosen[RK_VALUE_COUNT]);
struct rk_offload_place rk_lower_offload_place(struct rk_lowering *lowering, const char *name, uint8_t kinds,
                                               int64_t bytes);
bool rk_lower_offload_any(const struct rk_lowering *lowering, enum rk_block kind);
void rk_lower_offload_waits(struct rk_lowering *lowering);
void rk_lower_offload_out(struct rk_lowering *lowering, enum rk_block kind, bool last);
uint32_t rk_lower_offload_back(struct rk_lowering *lowering, enum rk_block kind);

/* lower_latent.c: latent attention's projections, from the normed input to qkv and back from d_qkv to
 * d_attention_normed. */
void rk_lower_latent_fill(struct rk_lowering *lowering, uint32_t buffer);
void rk_lower_latent_forward(struct rk_lowering *lowering, const struct rk_block_values *at);
void rk_lower_latent_backward(struct rk_lowering *lowering, const struct rk_block_values *at);

/* lower_block.c: the segment of a block's forward or backward, written when first asked for. */
uint32_t rk_lower_block_forward(struct rk_lowering *lowering, struct rk_block_place place);
uint32_t rk_lower_block_backward(struct rk_lowering *lowering, struct rk_block_place place);

/* lower_step.c: all segments and the schedule. slots[i] is the slot of the stage's i-th chunk visit. */
void rk_lower_step(struct rk_lowering *lowering, const struct rk_chunk_visit *order, const int32_t *slots,
                   int64_t count);

#endif

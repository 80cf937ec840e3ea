/* The tables of ops.h: names, operands, operations. One row per kind or operand; the functions below only look up. */
#include "model/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Element kinds as the contract writes them; those of the first line are resolved by type and flags. */
enum element_rule {
    RULE_ACT,
    RULE_OUTPUT,
    RULE_INPUT,
    RULE_SUM,
    RULE_F32,
    RULE_F64,
    RULE_I32,
    RULE_I64,
    RULE_BYTE,
    RULE_SCRATCH
};

/* X(kind, operand, name, access, extent, presence, element rule, elements from dim[])
 * extent: WHOLE, or PREFIX (only the valid rows are touched); presence: REQUIRED or OPTIONAL. */
#define OPERAND_TABLE(X)                                                                                               \
    X(ZERO, 0, "buffer", WRITE, WHOLE, REQUIRED, BYTE, dim[0])                                                         \
    X(EMBEDDING_FORWARD, 0, "tokens", READ, WHOLE, REQUIRED, I32, dim[0])                                              \
    X(EMBEDDING_FORWARD, 1, "table", READ, WHOLE, REQUIRED, ACT, dim[1] * dim[2])                                      \
    X(EMBEDDING_FORWARD, 2, "x", WRITE, WHOLE, REQUIRED, ACT, dim[0] * dim[2])                                         \
    X(EMBEDDING_BACKWARD, 0, "tokens", READ, WHOLE, REQUIRED, I32, dim[0])                                             \
    X(EMBEDDING_BACKWARD, 1, "dx", READ, WHOLE, REQUIRED, ACT, dim[0] * dim[2])                                        \
    X(EMBEDDING_BACKWARD, 2, "dtable", ACCUMULATE, WHOLE, REQUIRED, F32, dim[1] * dim[2])                              \
    X(RMSNORM_FORWARD, 0, "x", READ, WHOLE, REQUIRED, ACT, dim[0] * dim[1])                                            \
    X(RMSNORM_FORWARD, 1, "gain", READ, WHOLE, REQUIRED, ACT, dim[1])                                                  \
    X(RMSNORM_FORWARD, 2, "y", WRITE, WHOLE, REQUIRED, ACT, dim[0] * dim[1])                                           \
    X(RMSNORM_FORWARD, 3, "rstd", WRITE, WHOLE, REQUIRED, F32, dim[0])                                                 \
    X(RMSNORM_BACKWARD, 0, "dy", READ, WHOLE, REQUIRED, ACT, dim[0] * dim[1])                                          \
    X(RMSNORM_BACKWARD, 1, "x", READ, WHOLE, REQUIRED, ACT, dim[0] * dim[1])                                           \
    X(RMSNORM_BACKWARD, 2, "gain", READ, WHOLE, REQUIRED, ACT, dim[1])                                                 \
    X(RMSNORM_BACKWARD, 3, "rstd", READ, WHOLE, REQUIRED, F32, dim[0])                                                 \
    X(RMSNORM_BACKWARD, 4, "residual gradient", READ, WHOLE, OPTIONAL, ACT, dim[0] * dim[1])                           \
    X(RMSNORM_BACKWARD, 5, "dx", WRITE, WHOLE, REQUIRED, ACT, dim[0] * dim[1])                                         \
    X(RMSNORM_BACKWARD, 6, "dgain", ACCUMULATE, WHOLE, REQUIRED, F32, dim[1])                                          \
    X(RMSNORM_BACKWARD, 7, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                            \
    X(GEMM_FORWARD, 0, "x", READ, WHOLE, REQUIRED, ACT, dim[0] * dim[2])                                               \
    X(GEMM_FORWARD, 1, "w", READ, WHOLE, REQUIRED, ACT, dim[1] * dim[2])                                               \
    X(GEMM_FORWARD, 2, "addend", READ, WHOLE, OPTIONAL, ACT, dim[0] * dim[1])                                          \
    X(GEMM_FORWARD, 3, "y", WRITE, WHOLE, REQUIRED, OUTPUT, dim[0] * dim[1])                                           \
    X(GEMM_FORWARD, 4, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                                \
    X(GEMM_DGRAD, 0, "dy", READ, WHOLE, REQUIRED, INPUT, dim[0] * dim[1])                                              \
    X(GEMM_DGRAD, 1, "w", READ, WHOLE, REQUIRED, ACT, dim[1] * dim[2])                                                 \
    X(GEMM_DGRAD, 2, "addend", READ, WHOLE, OPTIONAL, ACT, dim[0] * dim[2])                                            \
    X(GEMM_DGRAD, 3, "dx", WRITE, WHOLE, REQUIRED, ACT, dim[0] * dim[2])                                               \
    X(GEMM_DGRAD, 4, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                                  \
    X(GEMM_WGRAD, 0, "dy", READ, WHOLE, REQUIRED, INPUT, dim[0] * dim[1])                                              \
    X(GEMM_WGRAD, 1, "x", READ, WHOLE, REQUIRED, ACT, dim[0] * dim[2])                                                 \
    X(GEMM_WGRAD, 2, "dw", ACCUMULATE, WHOLE, REQUIRED, F32, dim[1] * dim[2])                                          \
    X(GEMM_WGRAD, 3, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                                  \
    X(ROPE_FORWARD, 0, "qkv", READ, WHOLE, REQUIRED, ACT, dim[0] * (dim[2] + 2 * dim[3]) * dim[4])                     \
    X(ROPE_FORWARD, 1, "q gain", READ, WHOLE, OPTIONAL, ACT, gain_elements(shape, dim[2]))                             \
    X(ROPE_FORWARD, 2, "k gain", READ, WHOLE, OPTIONAL, ACT, gain_elements(shape, dim[3]))                             \
    X(ROPE_FORWARD, 3, "out", WRITE, WHOLE, REQUIRED, ACT, dim[0] * (dim[2] + 2 * dim[3]) * dim[4])                    \
    X(ROPE_BACKWARD, 0, "dout", READ, WHOLE, REQUIRED, ACT, dim[0] * (dim[2] + 2 * dim[3]) * dim[4])                   \
    X(ROPE_BACKWARD, 1, "qkv", READ, WHOLE, OPTIONAL, ACT, dim[0] * (dim[2] + 2 * dim[3]) * dim[4])                    \
    X(ROPE_BACKWARD, 2, "q gain", READ, WHOLE, OPTIONAL, ACT, gain_elements(shape, dim[2]))                            \
    X(ROPE_BACKWARD, 3, "k gain", READ, WHOLE, OPTIONAL, ACT, gain_elements(shape, dim[3]))                            \
    X(ROPE_BACKWARD, 4, "dqkv", WRITE, WHOLE, REQUIRED, ACT, dim[0] * (dim[2] + 2 * dim[3]) * dim[4])                  \
    X(ROPE_BACKWARD, 5, "dq gain", ACCUMULATE, WHOLE, OPTIONAL, F32, gain_elements(shape, dim[2]))                     \
    X(ROPE_BACKWARD, 6, "dk gain", ACCUMULATE, WHOLE, OPTIONAL, F32, gain_elements(shape, dim[3]))                     \
    X(ROPE_BACKWARD, 7, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                               \
    X(ATTENTION_FORWARD, 0, "qkv", READ, WHOLE, REQUIRED, ACT, dim[0] * (dim[2] + 2 * dim[3]) * dim[4])                \
    X(ATTENTION_FORWARD, 1, "context", WRITE, WHOLE, REQUIRED, ACT, dim[0] * dim[2] * dim[4])                          \
    X(ATTENTION_FORWARD, 2, "lse", WRITE, WHOLE, REQUIRED, F32, dim[0] * dim[2])                                       \
    X(ATTENTION_FORWARD, 3, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                           \
    X(ATTENTION_BACKWARD, 0, "qkv", READ, WHOLE, REQUIRED, ACT, dim[0] * (dim[2] + 2 * dim[3]) * dim[4])               \
    X(ATTENTION_BACKWARD, 1, "context", READ, WHOLE, REQUIRED, ACT, dim[0] * dim[2] * dim[4])                          \
    X(ATTENTION_BACKWARD, 2, "lse", READ, WHOLE, REQUIRED, F32, dim[0] * dim[2])                                       \
    X(ATTENTION_BACKWARD, 3, "dcontext", READ, WHOLE, REQUIRED, ACT, dim[0] * dim[2] * dim[4])                         \
    X(ATTENTION_BACKWARD, 4, "dqkv", WRITE, WHOLE, REQUIRED, ACT, dim[0] * (dim[2] + 2 * dim[3]) * dim[4])             \
    X(ATTENTION_BACKWARD, 5, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                          \
    X(ROUTE_FORWARD, 0, "logits", READ, WHOLE, REQUIRED, F32, dim[0] * dim[1])                                         \
    X(ROUTE_FORWARD, 1, "selection bias", READ, WHOLE, OPTIONAL, F32, dim[1])                                          \
    X(ROUTE_FORWARD, 2, "index", WRITE, WHOLE, REQUIRED, I32, dim[0] * dim[2])                                         \
    X(ROUTE_FORWARD, 3, "weight", WRITE, WHOLE, REQUIRED, F32, dim[0] * dim[2])                                        \
    X(ROUTE_FORWARD, 4, "requested", WRITE, WHOLE, REQUIRED, I32, dim[1])                                              \
    X(ROUTE_FORWARD, 5, "score mean", WRITE, WHOLE, REQUIRED, F32, dim[1])                                             \
    X(ROUTE_FORWARD, 6, "sums", ACCUMULATE, WHOLE, OPTIONAL, F64, 2)                                                   \
    X(ROUTE_FORWARD, 7, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                               \
    X(ROUTE_BACKWARD, 0, "logits", READ, WHOLE, REQUIRED, F32, dim[0] * dim[1])                                        \
    X(ROUTE_BACKWARD, 1, "index", READ, WHOLE, REQUIRED, I32, dim[0] * dim[2])                                         \
    X(ROUTE_BACKWARD, 2, "requested", READ, WHOLE, REQUIRED, I32, dim[1])                                              \
    X(ROUTE_BACKWARD, 3, "score mean", READ, WHOLE, REQUIRED, F32, dim[1])                                             \
    X(ROUTE_BACKWARD, 4, "dweight", READ, WHOLE, REQUIRED, F32, dim[0] * dim[2])                                       \
    X(ROUTE_BACKWARD, 5, "dlogits", WRITE, WHOLE, REQUIRED, F32, dim[0] * dim[1])                                      \
    X(ROUTE_MAP, 0, "index", READ, WHOLE, REQUIRED, I32, dim[0] * dim[2])                                              \
    X(ROUTE_MAP, 1, "requested of all", READ, WHOLE, REQUIRED, I32, dim[3] * dim[1])                                   \
    X(ROUTE_MAP, 2, "row", WRITE, WHOLE, REQUIRED, I32, dim[0] * dim[2])                                               \
    X(ROUTE_MAP, 3, "kept", WRITE, WHOLE, REQUIRED, I32, dim[3] * dim[1])                                              \
    X(ROUTE_MAP, 4, "offsets", WRITE, WHOLE, REQUIRED, I32, dim[1] / dim[3] + 1)                                       \
    X(ROUTE_MAP, 5, "order", WRITE, WHOLE, REQUIRED, I32, dim[0] * dim[2])                                             \
    X(ROUTE_MAP, 6, "load", ACCUMULATE, WHOLE, OPTIONAL, I64, 2 * dim[1] + 1)                                          \
    X(ROUTE_MAP, 7, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                                   \
    X(COUNT_EXCHANGE, 0, "requested", READ, WHOLE, REQUIRED, I32, dim[0])                                              \
    X(COUNT_EXCHANGE, 1, "requested of all", WRITE, WHOLE, REQUIRED, I32, dim[1] * dim[0])                             \
    X(DISPATCH, 0, "source", READ, WHOLE, REQUIRED, ACT, dim[0] * dim[1])                                              \
    X(DISPATCH, 1, "weight", READ, WHOLE, OPTIONAL, F32, dim[0] * dim[2])                                              \
    X(DISPATCH, 2, "index", READ, WHOLE, REQUIRED, I32, dim[0] * dim[2])                                               \
    X(DISPATCH, 3, "row", READ, WHOLE, REQUIRED, I32, dim[0] * dim[2])                                                 \
    X(DISPATCH, 4, "kept", READ, WHOLE, REQUIRED, I32, dim[4] * dim[3])                                                \
    X(DISPATCH, 5, "order", READ, WHOLE, REQUIRED, I32, dim[0] * dim[2])                                               \
    X(DISPATCH, 6, "rows", WRITE, PREFIX, REQUIRED, ACT, dim[5] * dim[1])                                              \
    X(DISPATCH, 7, "row weight", WRITE, PREFIX, OPTIONAL, F32, dim[5])                                                 \
    X(DISPATCH, 8, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                                    \
    X(COMBINE, 0, "rows", READ, PREFIX, REQUIRED, ACT, dim[5] * dim[1])                                                \
    X(COMBINE, 1, "row scalar", READ, PREFIX, OPTIONAL, F32, dim[5])                                                   \
    X(COMBINE, 2, "index", READ, WHOLE, REQUIRED, I32, dim[0] * dim[2])                                                \
    X(COMBINE, 3, "row", READ, WHOLE, REQUIRED, I32, dim[0] * dim[2])                                                  \
    X(COMBINE, 4, "kept", READ, WHOLE, REQUIRED, I32, dim[4] * dim[3])                                                 \
    X(COMBINE, 5, "order", READ, WHOLE, REQUIRED, I32, dim[0] * dim[2])                                                \
    X(COMBINE, 6, "residual", READ, WHOLE, OPTIONAL, ACT, dim[0] * dim[1])                                             \
    X(COMBINE, 7, "out", WRITE, WHOLE, REQUIRED, ACT, dim[0] * dim[1])                                                 \
    X(COMBINE, 8, "scalar out", WRITE, WHOLE, OPTIONAL, F32, dim[0] * dim[2])                                          \
    X(COMBINE, 9, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                                     \
    X(GROUPED_GEMM_FORWARD, 0, "x", READ, PREFIX, REQUIRED, ACT, dim[0] * dim[3])                                      \
    X(GROUPED_GEMM_FORWARD, 1, "w", READ, WHOLE, REQUIRED, ACT, dim[1] * dim[2] * dim[3])                              \
    X(GROUPED_GEMM_FORWARD, 2, "offsets", READ, WHOLE, REQUIRED, I32, dim[1] + 1)                                      \
    X(GROUPED_GEMM_FORWARD, 3, "y", WRITE, PREFIX, REQUIRED, ACT, dim[0] * dim[2])                                     \
    X(GROUPED_GEMM_FORWARD, 4, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                        \
    X(GROUPED_GEMM_DGRAD, 0, "dy", READ, PREFIX, REQUIRED, ACT, dim[0] * dim[2])                                       \
    X(GROUPED_GEMM_DGRAD, 1, "w", READ, WHOLE, REQUIRED, ACT, dim[1] * dim[2] * dim[3])                                \
    X(GROUPED_GEMM_DGRAD, 2, "offsets", READ, WHOLE, REQUIRED, I32, dim[1] + 1)                                        \
    X(GROUPED_GEMM_DGRAD, 3, "dx", WRITE, PREFIX, REQUIRED, ACT, dim[0] * dim[3])                                      \
    X(GROUPED_GEMM_DGRAD, 4, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                          \
    X(GROUPED_GEMM_WGRAD, 0, "dy", READ, PREFIX, REQUIRED, ACT, dim[0] * dim[2])                                       \
    X(GROUPED_GEMM_WGRAD, 1, "x", READ, PREFIX, REQUIRED, ACT, dim[0] * dim[3])                                        \
    X(GROUPED_GEMM_WGRAD, 2, "offsets", READ, WHOLE, REQUIRED, I32, dim[1] + 1)                                        \
    X(GROUPED_GEMM_WGRAD, 3, "dw", ACCUMULATE, WHOLE, REQUIRED, F32, dim[1] * dim[2] * dim[3])                         \
    X(GROUPED_GEMM_WGRAD, 4, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                          \
    X(SWIGLU_FORWARD, 0, "gate and up", READ, PREFIX, REQUIRED, ACT, dim[0] * 2 * dim[1])                              \
    X(SWIGLU_FORWARD, 1, "row weight", READ, PREFIX, OPTIONAL, F32, dim[0])                                            \
    X(SWIGLU_FORWARD, 2, "offsets", READ, WHOLE, OPTIONAL, I32, dim[2] + 1)                                            \
    X(SWIGLU_FORWARD, 3, "out", WRITE, PREFIX, REQUIRED, ACT, dim[0] * dim[1])                                         \
    X(SWIGLU_BACKWARD, 0, "gate and up", READ, PREFIX, REQUIRED, ACT, dim[0] * 2 * dim[1])                             \
    X(SWIGLU_BACKWARD, 1, "row weight", READ, PREFIX, OPTIONAL, F32, dim[0])                                           \
    X(SWIGLU_BACKWARD, 2, "offsets", READ, WHOLE, OPTIONAL, I32, dim[2] + 1)                                           \
    X(SWIGLU_BACKWARD, 3, "dout", READ, PREFIX, REQUIRED, ACT, dim[0] * dim[1])                                        \
    X(SWIGLU_BACKWARD, 4, "dgate and dup", WRITE, PREFIX, REQUIRED, ACT, dim[0] * 2 * dim[1])                          \
    X(SWIGLU_BACKWARD, 5, "drow weight", WRITE, PREFIX, OPTIONAL, F32, dim[0])                                         \
    X(CROSS_ENTROPY, 0, "logits", ACCUMULATE, WHOLE, REQUIRED, ACT, dim[0] * dim[1])                                   \
    X(CROSS_ENTROPY, 1, "targets", READ, WHOLE, REQUIRED, I32, dim[0])                                                 \
    X(CROSS_ENTROPY, 2, "loss sum", ACCUMULATE, WHOLE, REQUIRED, F64, 1)                                               \
    X(CROSS_ENTROPY, 3, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                               \
    X(GRAD_NORM, 0, "gradient", READ, WHOLE, REQUIRED, F32, dim[0])                                                    \
    X(GRAD_NORM, 1, "sum of squares", ACCUMULATE, WHOLE, REQUIRED, F64, 1)                                             \
    X(GRAD_NORM, 2, "workspace", WRITE, WHOLE, OPTIONAL, SCRATCH, 0)                                                   \
    X(ADAMW, 0, "gradient", READ, WHOLE, REQUIRED, F32, dim[0])                                                        \
    X(ADAMW, 1, "master", ACCUMULATE, WHOLE, REQUIRED, F32, dim[0])                                                    \
    X(ADAMW, 2, "first moment", ACCUMULATE, WHOLE, REQUIRED, F32, dim[0])                                              \
    X(ADAMW, 3, "second moment", ACCUMULATE, WHOLE, REQUIRED, F32, dim[0])                                             \
    X(ADAMW, 4, "weight", WRITE, WHOLE, REQUIRED, ACT, dim[0])                                                         \
    X(ADAMW, 5, "step state", READ, WHOLE, REQUIRED, F32, 8)                                                           \
    X(ADAMW, 6, "squared gradient norm", READ, WHOLE, REQUIRED, F64, 1)                                                \
    X(REDUCE_SCATTER, 0, "in", READ, WHOLE, REQUIRED, F32, dim[0])                                                     \
    X(REDUCE_SCATTER, 1, "out", WRITE, WHOLE, REQUIRED, F32, dim[0] / dim[1])                                          \
    X(ALL_GATHER, 0, "shard", READ, WHOLE, REQUIRED, ACT, dim[0] / dim[1])                                             \
    X(ALL_GATHER, 1, "all", WRITE, WHOLE, REQUIRED, ACT, dim[0])                                                       \
    X(ALL_REDUCE, 0, "values", ACCUMULATE, WHOLE, REQUIRED, SUM, dim[0])                                               \
    X(SEND, 0, "buffer", READ, WHOLE, REQUIRED, BYTE, dim[0])                                                          \
    X(RECEIVE, 0, "buffer", WRITE, WHOLE, REQUIRED, BYTE, dim[0])                                                      \
    X(COPY_D2H, 0, "from", READ, WHOLE, REQUIRED, BYTE, dim[0])                                                        \
    X(COPY_D2H, 1, "to", WRITE, WHOLE, REQUIRED, BYTE, dim[0])                                                         \
    X(COPY_H2D, 0, "from", READ, WHOLE, REQUIRED, BYTE, dim[0])                                                        \
    X(COPY_H2D, 1, "to", WRITE, WHOLE, REQUIRED, BYTE, dim[0])

enum { WHOLE = 0, PREFIX = 1, REQUIRED = 0, OPTIONAL = 1 };

/* Values of a q or k gain over `heads` heads: none without a flag, so that the operand has no size then. */
static int64_t gain_elements(const struct rk_op_shape *shape, int64_t heads) {
    if ((shape->flags & RK_OP_FLAG_QK_NORM_FULL) != 0) {
        return heads * shape->dim[4];
    }
    return (shape->flags & RK_OP_FLAG_QK_NORM_HEAD) != 0 ? shape->dim[4] : 0;
}

/* The last column as a function of each row. */
#define ROW(kind, operand, name, access, extent, presence, element, elements)                                          \
    static int64_t elements_##kind##_##operand(const struct rk_op_shape *shape, const int64_t *dim) {                  \
        (void)shape;                                                                                                   \
        (void)dim;                                                                                                     \
        return elements;                                                                                               \
    }
OPERAND_TABLE(ROW)
#undef ROW

struct operand_row {
    const char *name;
    enum rk_access access;
    bool prefix, optional;
    enum element_rule rule;
    int64_t (*elements)(const struct rk_op_shape *shape, const int64_t *dim);
};

static const struct operand_row operand_rows[RK_OP_KIND_COUNT][RK_OP_OPERANDS] = {
#define ROW(kind, operand, name, access, extent, presence, element, elements)                                          \
    [RK_OP_##kind][operand] = {name,           RK_ACCESS_##access,         extent == PREFIX, presence == OPTIONAL,     \
                               RULE_##element, elements_##kind##_##operand},
    OPERAND_TABLE(ROW)
#undef ROW
};

struct kind_row {
    const char *name, *dimensions;
    enum rk_op_family family;
    enum rk_op_executor executor;
    int operands;
};

static const struct kind_row kind_rows[RK_OP_KIND_COUNT] = {
#define ROW(kind, name, family, executor, dimensions, operands)                                                        \
    [RK_OP_##kind] = {name, dimensions, RK_OP_FAMILY_##family, RK_BY_##executor, operands},
    RK_OP_TABLE(ROW)
#undef ROW
};

static const char *const type_names[RK_DATA_TYPE_COUNT] = {[RK_F32] = "f32", [RK_BF16] = "bf16"};

static const char *const stream_names[RK_STREAM_COUNT] = {
    [RK_STREAM_COMPUTE] = "compute",
    [RK_STREAM_EXCHANGE] = "exchange",
    [RK_STREAM_SEND_FORWARD] = "send_forward",
    [RK_STREAM_RECEIVE_FORWARD] = "receive_forward",
    [RK_STREAM_SEND_BACKWARD] = "send_backward",
    [RK_STREAM_RECEIVE_BACKWARD] = "receive_backward",
    [RK_STREAM_REDUCTION] = "reduction",
    [RK_STREAM_D2H] = "d2h",
    [RK_STREAM_H2D] = "h2d",
};

static const char *const group_names[RK_GROUP_COUNT] = {
    [RK_GROUP_NONE] = "none",
    [RK_GROUP_EXPERT_PARALLEL] = "expert_parallel",
    [RK_GROUP_EXPERT_REPLICA] = "expert_replica",
    [RK_GROUP_DATA] = "data",
    [RK_GROUP_PIPELINE_NEXT] = "pipeline_next",
    [RK_GROUP_PIPELINE_PREVIOUS] = "pipeline_previous",
    [RK_GROUP_EMBEDDING] = "embedding",
    [RK_GROUP_WORLD] = "world",
};

static const char *const phase_names[RK_PHASE_COUNT] = {
    [RK_PHASE_FORWARD] = "forward", [RK_PHASE_RECOMPUTE] = "recompute", [RK_PHASE_BACKWARD] = "backward",
    [RK_PHASE_LOSS] = "loss",       [RK_PHASE_REDUCTION] = "reduction", [RK_PHASE_OPTIMIZER] = "optimizer",
};

static const char *const family_names[RK_OP_FAMILY_COUNT] = {
    [RK_OP_FAMILY_EMBEDDING] = "embedding",
    [RK_OP_FAMILY_NORM] = "norm",
    [RK_OP_FAMILY_GEMM] = "gemm",
    [RK_OP_FAMILY_ATTENTION] = "attention",
    [RK_OP_FAMILY_ROUTING] = "routing",
    [RK_OP_FAMILY_EXPERT_EXCHANGE] = "expert_exchange",
    [RK_OP_FAMILY_GROUPED_GEMM] = "grouped_gemm",
    [RK_OP_FAMILY_ELEMENTWISE] = "elementwise",
    [RK_OP_FAMILY_CROSS_ENTROPY] = "cross_entropy",
    [RK_OP_FAMILY_OPTIMIZER] = "optimizer",
    [RK_OP_FAMILY_COLLECTIVE] = "collective",
    [RK_OP_FAMILY_PIPELINE] = "pipeline",
    [RK_OP_FAMILY_OFFLOAD] = "offload",
};

/* By bit of enum rk_op_flag. */
static const char *const flag_names[] = {
    "f32_output",      "f32_input",     "qk_norm_head", "qk_norm_full", "sigmoid",
    "normalize_top_k", "route_uniform", "route_random", "f64",
};
enum { FLAG_COUNT = sizeof flag_names / sizeof flag_names[0] };

int64_t rk_data_type_bytes(enum rk_data_type type) {
    return type == RK_BF16 ? 2 : 4;
}

const char *rk_data_type_name(enum rk_data_type type) {
    return type_names[type];
}

const char *rk_stream_name(enum rk_stream_kind stream) {
    return stream_names[stream];
}

const char *rk_group_name(enum rk_group_kind group) {
    return group_names[group];
}

const char *rk_phase_name(enum rk_phase phase) {
    return phase_names[phase];
}

const char *rk_op_family_name(enum rk_op_family family) {
    return family_names[family];
}

const char *rk_op_name(enum rk_op_kind kind) {
    return kind_rows[kind].name;
}

char *rk_op_shape_text(const struct rk_op_shape *shape, char *buffer, size_t size) {
    int written = snprintf(buffer, size, "%s %s", rk_op_name(shape->kind), rk_data_type_name(shape->type));
    const char *name = rk_op_dimensions(shape->kind);
    for (int i = 0; *name != '\0' && written >= 0 && (size_t)written < size; i++) {
        int length = (int)strcspn(name, " ");
        written +=
            snprintf(buffer + written, size - (size_t)written, " %.*s=%lld", length, name, (long long)shape->dim[i]);
        name += length + (name[length] == ' ');
    }
    for (int bit = 0; bit < FLAG_COUNT && written >= 0 && (size_t)written < size; bit++) {
        if ((shape->flags >> bit & 1) != 0) {
            written += snprintf(buffer + written, size - (size_t)written, " %s", flag_names[bit]);
        }
    }
    if (shape->group != RK_GROUP_NONE && written >= 0 && (size_t)written < size) {
        snprintf(buffer + written, size - (size_t)written, " over %s", rk_group_name(shape->group));
    }
    return buffer;
}

enum rk_op_family rk_op_family(enum rk_op_kind kind) {
    return kind_rows[kind].family;
}

enum rk_op_executor rk_op_executor(enum rk_op_kind kind) {
    return kind_rows[kind].executor;
}

const char *rk_op_dimensions(enum rk_op_kind kind) {
    return kind_rows[kind].dimensions;
}

int rk_op_operand_count(enum rk_op_kind kind) {
    return kind_rows[kind].operands;
}

enum rk_op_kind rk_op_from_name(const char *name) {
    int kind = 0;
    while (kind < RK_OP_KIND_COUNT && strcmp(name, kind_rows[kind].name) != 0) {
        kind++;
    }
    return (enum rk_op_kind)kind;
}

/* The row of an operand; one that does not exist has no name and no access. */
static const struct operand_row *operand_row(enum rk_op_kind kind, int operand) {
    static const struct operand_row none = {"", RK_ACCESS_NONE, false, false, RULE_BYTE, NULL};
    return operand >= 0 && operand < kind_rows[kind].operands ? &operand_rows[kind][operand] : &none;
}

enum rk_access rk_op_operand_access(enum rk_op_kind kind, int operand) {
    return operand_row(kind, operand)->access;
}

const char *rk_op_operand_name(enum rk_op_kind kind, int operand) {
    return operand_row(kind, operand)->name;
}

bool rk_op_operand_optional(enum rk_op_kind kind, int operand) {
    return operand_row(kind, operand)->optional;
}

bool rk_op_operand_is_prefix(enum rk_op_kind kind, int operand) {
    return operand_row(kind, operand)->prefix;
}

int rk_op_workspace_operand(enum rk_op_kind kind) {
    int last = kind_rows[kind].operands - 1;
    return operand_rows[kind][last].rule == RULE_SCRATCH ? last : -1;
}

int64_t rk_element_bytes(enum rk_element element) {
    static const int8_t bytes[] = {
        [RK_ELEMENT_BYTE] = 1, [RK_ELEMENT_F32] = 4, [RK_ELEMENT_BF16] = 2,
        [RK_ELEMENT_F64] = 8,  [RK_ELEMENT_I32] = 4, [RK_ELEMENT_I64] = 8,
    };
    return bytes[element];
}

enum rk_element rk_op_operand_element(const struct rk_op_shape *shape, int operand) {
    enum rk_element act = shape->type == RK_BF16 ? RK_ELEMENT_BF16 : RK_ELEMENT_F32;
    switch (operand_row(shape->kind, operand)->rule) {
    case RULE_ACT:
        return act;
    case RULE_OUTPUT:
        return (shape->flags & RK_OP_FLAG_F32_OUTPUT) != 0 ? RK_ELEMENT_F32 : act;
    case RULE_INPUT:
        return (shape->flags & RK_OP_FLAG_F32_INPUT) != 0 ? RK_ELEMENT_F32 : act;
    case RULE_SUM:
        return (shape->flags & RK_OP_FLAG_F64) != 0 ? RK_ELEMENT_F64 : RK_ELEMENT_F32;
    case RULE_F32:
        return RK_ELEMENT_F32;
    case RULE_F64:
        return RK_ELEMENT_F64;
    case RULE_I32:
        return RK_ELEMENT_I32;
    case RULE_I64:
        return RK_ELEMENT_I64;
    case RULE_BYTE:
    case RULE_SCRATCH:
        break;
    }
    return RK_ELEMENT_BYTE;
}

static int64_t operand_elements(const struct rk_op_shape *shape, int operand) {
    return operand_rows[shape->kind][operand].elements(shape, shape->dim);
}

int64_t rk_op_operand_bytes(const struct rk_op_shape *shape, int operand) {
    if (operand < 0 || operand >= rk_op_operand_count(shape->kind)) {
        return 0;
    }
    return operand_elements(shape, operand) * rk_element_bytes(rk_op_operand_element(shape, operand));
}

/* Pairs of a query and a key it may attend to, over all sequences of the micro-batch. */
static double causal_pairs(const double *dim) {
    return dim[0] * (dim[1] + 1) / 2;
}

double rk_op_flops(const struct rk_op_shape *shape) {
    double dim[RK_OP_DIMS];
    for (int i = 0; i < RK_OP_DIMS; i++) {
        dim[i] = (double)shape->dim[i];
    }
    double values = dim[0] * dim[1];
    switch (shape->kind) {
    case RK_OP_EMBEDDING_BACKWARD:
        return dim[0] * dim[2];
    case RK_OP_RMSNORM_FORWARD: /* square, sum, two products */
        return 4 * values;
    case RK_OP_RMSNORM_BACKWARD: /* xhat, dy·gain, dot (2), dx (3), dgain (2) */
        return 9 * values;
    case RK_OP_GEMM_FORWARD:
    case RK_OP_GEMM_DGRAD:
    case RK_OP_GEMM_WGRAD:
        return 2 * values * dim[2];
    case RK_OP_ROPE_FORWARD:
    case RK_OP_ROPE_BACKWARD: /* per value of q and k: two products, one sum */
        return 3 * dim[0] * (dim[2] + dim[3]) * dim[4];
    case RK_OP_ATTENTION_FORWARD:
        return 4 * causal_pairs(dim) * dim[2] * dim[4];
    case RK_OP_ATTENTION_BACKWARD:
        return 10 * causal_pairs(dim) * dim[2] * dim[4];
    case RK_OP_ROUTE_FORWARD: /* maximum, difference, exp, sum, division, mean, and K scans */
        return values * (6 + dim[2]);
    case RK_OP_ROUTE_BACKWARD: /* the scores again (5), the softmax gradient (4), the z loss (2) */
        return 11 * values;
    case RK_OP_COMBINE:
        return values * dim[2];
    case RK_OP_GROUPED_GEMM_FORWARD:
    case RK_OP_GROUPED_GEMM_DGRAD:
    case RK_OP_GROUPED_GEMM_WGRAD:
        return 2 * dim[0] * dim[2] * dim[3];
    case RK_OP_SWIGLU_FORWARD: /* exp, sum, division, three products */
        return 6 * values;
    case RK_OP_SWIGLU_BACKWARD:
        return 15 * values;
    case RK_OP_CROSS_ENTROPY: /* maximum, difference, exp, sum, scaling */
        return 5 * values;
    case RK_OP_GRAD_NORM:
        return 2 * dim[0];
    case RK_OP_ADAMW:
        return 16 * dim[0];
    case RK_OP_REDUCE_SCATTER:
    case RK_OP_ALL_REDUCE: /* g-1 sums for each element of this rank's share */
        return dim[0] * (dim[1] - 1) / dim[1];
    default:
        return 0;
    }
}

/* Elements of an operand that the op has to touch, where they are fewer than its size. */
static double touched_elements(const struct rk_op_shape *shape, int operand) {
    const int64_t *dim = shape->dim;
    double all = (double)operand_elements(shape, operand);
    bool table = (shape->kind == RK_OP_EMBEDDING_FORWARD && operand == 1) ||
                 (shape->kind == RK_OP_EMBEDDING_BACKWARD && operand == 2);
    if (table) {
        return fmin(all, (double)dim[0] * (double)dim[2]); /* a row for each token, at most the table */
    }
    bool received = (shape->kind == RK_OP_DISPATCH && operand == 6) || (shape->kind == RK_OP_COMBINE && operand == 0);
    if (received) {
        return fmin(all, (double)dim[0] * (double)dim[2] * (double)dim[1]); /* T·K rows of width d under balance */
    }
    return all;
}

double rk_op_bytes(const struct rk_op_shape *shape) {
    double bytes = 0;
    for (int operand = 0; operand < rk_op_operand_count(shape->kind); operand++) {
        if (rk_op_operand_optional(shape->kind, operand)) {
            continue;
        }
        double passes = rk_op_operand_access(shape->kind, operand) == RK_ACCESS_ACCUMULATE ? 2 : 1;
        bytes +=
            passes * touched_elements(shape, operand) * (double)rk_element_bytes(rk_op_operand_element(shape, operand));
    }
    return bytes;
}

/* Chance that none of K distinct experts out of N lies on a given rank of N/M experts: C(N-G,K)/C(N,K). */
static double rank_missed(int64_t experts, int64_t held, int64_t routes) {
    double missed = 1;
    for (int64_t route = 0; route < routes; route++) {
        missed *= fmax(0, (double)(experts - held - route)) / (double)(experts - route);
    }
    return missed;
}

double rk_op_remote_bytes(const struct rk_op_shape *shape) {
    const int64_t *dim = shape->dim;
    double act = (double)rk_data_type_bytes(shape->type);
    switch (shape->kind) {
    case RK_OP_COUNT_EXCHANGE:
        return (double)(dim[1] - 1) * (double)dim[0] * 4;
    case RK_OP_DISPATCH: {
        double ranks = (double)dim[4];
        double copies = (ranks - 1) * (1 - rank_missed(dim[3], dim[3] / dim[4], dim[2]));
        double weights = (double)dim[2] * (ranks - 1) / ranks * 4;
        return (double)dim[0] * (copies * (double)dim[1] * act + weights);
    }
    case RK_OP_COMBINE: {
        double ranks = (double)dim[4];
        return (double)dim[0] * (double)dim[2] * (ranks - 1) / ranks * (double)dim[1] * act;
    }
    case RK_OP_REDUCE_SCATTER:
        return (double)dim[0] * (double)(dim[1] - 1) / (double)dim[1] * 4;
    case RK_OP_ALL_GATHER:
        return (double)dim[0] * (double)(dim[1] - 1) / (double)dim[1] * act;
    case RK_OP_ALL_REDUCE:
        return 2 * (double)dim[0] * (double)(dim[1] - 1) / (double)dim[1] *
               (double)rk_element_bytes(rk_op_operand_element(shape, 0));
    case RK_OP_SEND:
        return (double)dim[0];
    default:
        return 0;
    }
}

bool rk_op_shape_equal(const struct rk_op_shape *left, const struct rk_op_shape *right) {
    return left->kind == right->kind && left->type == right->type && left->flags == right->flags &&
           left->group == right->group && memcmp(left->dim, right->dim, sizeof left->dim) == 0;
}

/* One round of the splitmix64 finaliser over the running value. */
static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) + 0x9e3779b97f4a7c15u;
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
    return hash ^ (hash >> 31);
}

uint64_t rk_op_shape_hash(const struct rk_op_shape *shape) {
    uint64_t hash = mix(0, (uint64_t)shape->kind);
    hash = mix(hash, (uint64_t)shape->type);
    hash = mix(hash, shape->flags);
    hash = mix(hash, (uint64_t)shape->group);
    for (int i = 0; i < RK_OP_DIMS; i++) {
        hash = mix(hash, (uint64_t)shape->dim[i]);
    }
    return hash;
}

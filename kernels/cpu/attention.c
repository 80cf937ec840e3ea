/* Causal attention, RK_CPU_QUERY_ROWS queries of one head at a time against all keys up to the last of them, so that
 * the blocks above the diagonal are never computed. Products through OpenBLAS; FP32 heads are used where they lie, BF16
 * heads are widened into the workspace. Sums over query heads that share a key head run in the order of the heads. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exponential.h"
#include "model/ops_workspace.h"

#include <cblas.h>

/* Rows of one head as FP32. */
struct head {
    float *data;
    int64_t stride;
};

struct attention {
    enum rk_data_type type;
    int64_t tokens, sequence, heads, kv_heads, width;
    int64_t row, context_row; /* values of a token in qkv and in context */
    int64_t block;            /* queries at a time */
    float scale;
    float *workspace; /* what is left of it */
};

static void attention_open(struct attention *attention, const struct rk_op_call *call, int workspace) {
    const int64_t *dim = call->shape->dim;
    *attention = (struct attention){
        .type = call->shape->type,
        .tokens = dim[0],
        .sequence = dim[1],
        .heads = dim[2],
        .kv_heads = dim[3],
        .width = dim[4],
        .row = (dim[2] + 2 * dim[3]) * dim[4],
        .context_row = dim[2] * dim[4],
        .block = rk_cpu_smaller(dim[1], RK_CPU_QUERY_ROWS),
        .scale = (float)(1.0 / sqrt((double)dim[4])),
        .workspace = call->operand[workspace],
    };
}

static float *take(struct attention *attention, int64_t values) {
    float *taken = attention->workspace;
    attention->workspace += values;
    return taken;
}

/* A buffer for rows of a head: none in FP32, where the operand itself is used. */
static float *take_head(struct attention *attention, int64_t rows) {
    return attention->type == RK_F32 ? NULL : take(attention, rows * attention->width);
}

/* Rows of a head that begins at value `first` of an array with `row` values a token. */
static struct head read_head(const struct attention *attention, const void *base, int64_t first, int64_t row,
                             int64_t rows, float *buffer) {
    if (attention->type == RK_F32) {
        return (struct head){(float *)(uintptr_t)base + first, row};
    }
    for (int64_t i = 0; i < rows; i++) {
        rk_cpu_load(attention->type, base, first + i * row, attention->width, buffer + i * attention->width);
    }
    return (struct head){buffer, attention->width};
}

/* Where a result's rows are computed, and their way into the array. */
static struct head result_head(const struct attention *attention, void *base, int64_t first, int64_t row,
                               float *buffer) {
    return attention->type == RK_F32 ? (struct head){(float *)base + first, row}
                                     : (struct head){buffer, attention->width};
}

static void write_head(const struct attention *attention, struct head head, void *base, int64_t first, int64_t row,
                       int64_t rows) {
    for (int64_t i = 0; i < rows && attention->type != RK_F32; i++) {
        rk_cpu_store(attention->type, base, first + i * row, attention->width, head.data + i * head.stride);
    }
}

static void clear_head(const struct attention *attention, struct head head, int64_t rows) {
    for (int64_t i = 0; i < rows; i++) {
        memset(head.data + i * head.stride, 0, (size_t)attention->width * sizeof *head.data);
    }
}

/* into[rows, keys] = factor · left[rows, width] · right[keys, width]ᵀ */
static void scores_of(const struct attention *attention, struct head left, struct head right, int64_t rows,
                      int64_t keys, float factor, float *into) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, (blasint)keys, (blasint)attention->width,
                factor, left.data, (blasint)left.stride, right.data, (blasint)right.stride, 0, into, (blasint)keys);
}

/* into[rows, width] = scores[rows, keys] · right[keys, width] */
static void weighted_rows(const struct attention *attention, const float *scores, struct head right, int64_t rows,
                          int64_t keys, struct head into) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)rows, (blasint)attention->width, (blasint)keys, 1,
                scores, (blasint)keys, right.data, (blasint)right.stride, 0, into.data, (blasint)into.stride);
}

/* into[keys, width] += scores[rows, keys]ᵀ · right[rows, width] */
static void add_transposed(const struct attention *attention, const float *scores, struct head right, int64_t rows,
                           int64_t keys, struct head into) {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)keys, (blasint)attention->width, (blasint)rows, 1,
                scores, (blasint)keys, right.data, (blasint)right.stride, 1, into.data, (blasint)into.stride);
}

/* Scores of one query become exp(score - largest) up to its own position and 0 after it. Returns their sum. */
static RK_CPU_CLONES double exponentials(float *scores, int64_t visible, int64_t keys, float *largest) {
    *largest = rk_cpu_largest(scores, visible);
    float shift = *largest;
    for (int64_t i = 0; i < visible; i++) {
        scores[i] = rk_cpu_exp(scores[i] - shift);
    }
    memset(scores + visible, 0, (size_t)(keys - visible) * sizeof *scores);
    return rk_cpu_sum(scores, visible);
}

static RK_CPU_CLONES void forward_block(const struct attention *attention, struct head q, struct head k, struct head v,
                                        int64_t first, int64_t rows, float *scores, struct head context, float *lse) {
    int64_t keys = first + rows;
    scores_of(attention, q, k, rows, keys, attention->scale, scores);
    float inverse[RK_CPU_QUERY_ROWS];
    for (int64_t i = 0; i < rows; i++) {
        float largest;
        double sum = exponentials(scores + i * keys, first + i + 1, keys, &largest);
        inverse[i] = (float)(1.0 / sum);
        lse[i * attention->heads] = (float)((double)largest + log(sum));
    }
    weighted_rows(attention, scores, v, rows, keys, context);
    for (int64_t i = 0; i < rows; i++) {
        float *row = context.data + i * context.stride;
        for (int64_t j = 0; j < attention->width; j++) {
            row[j] *= inverse[i];
        }
    }
}

RK_CPU_KERNEL(ATTENTION_FORWARD) {
    struct attention attention;
    attention_open(&attention, call, 3);
    const struct attention *a = &attention;
    const void *qkv = call->operand[0];
    int64_t group = a->heads / a->kv_heads;
    float *scores = take(&attention, a->block * a->sequence);
    float *k_buffer = take_head(&attention, a->sequence), *v_buffer = take_head(&attention, a->sequence);
    float *q_buffer = take_head(&attention, a->block), *context_buffer = take_head(&attention, a->block);
    for (int64_t start = 0; start < a->tokens; start += a->sequence) {
        for (int64_t head = 0; head < a->heads; head++) {
            int64_t k_first = start * a->row + (a->heads + head / group) * a->width;
            struct head k = read_head(a, qkv, k_first, a->row, a->sequence, k_buffer);
            struct head v = read_head(a, qkv, k_first + a->kv_heads * a->width, a->row, a->sequence, v_buffer);
            for (int64_t first = 0; first < a->sequence; first += a->block) {
                int64_t rows = rk_cpu_smaller(a->sequence - first, a->block), token = start + first;
                int64_t context_first = token * a->context_row + head * a->width;
                struct head q = read_head(a, qkv, token * a->row + head * a->width, a->row, rows, q_buffer);
                struct head context = result_head(a, call->operand[1], context_first, a->context_row, context_buffer);
                float *lse = (float *)call->operand[2] + token * a->heads + head;
                forward_block(a, q, k, v, first, rows, scores, context, lse);
                write_head(a, context, call->operand[1], context_first, a->context_row, rows);
            }
        }
    }
}

/* The heads that one block of queries works on. */
struct block_heads {
    struct head q, k, v, context, dcontext; /* read */
    struct head dq, dk, dv;                 /* dq written, dk and dv added to */
};

/* p = exp(score - lse); dv += pᵀ·do; dp = do·vᵀ; ds = p·(dp - Σ do·o)·scale; dq = ds·k; dk += dsᵀ·q. */
static RK_CPU_CLONES void backward_block(const struct attention *attention, const struct block_heads *heads,
                                         const float *lse, int64_t first, int64_t rows, float *probabilities,
                                         float *gradients) {
    int64_t keys = first + rows;
    scores_of(attention, heads->q, heads->k, rows, keys, attention->scale, probabilities);
    scores_of(attention, heads->dcontext, heads->v, rows, keys, 1, gradients);
    for (int64_t i = 0; i < rows; i++) {
        int64_t visible = first + i + 1;
        float *p = probabilities + i * keys, *ds = gradients + i * keys;
        float shift = lse[i * attention->heads];
        float mean = (float)rk_cpu_dot(heads->dcontext.data + i * heads->dcontext.stride,
                                       heads->context.data + i * heads->context.stride, attention->width);
        for (int64_t j = 0; j < visible; j++) {
            p[j] = rk_cpu_exp(p[j] - shift);
            ds[j] = p[j] * (ds[j] - mean) * attention->scale;
        }
        memset(p + visible, 0, (size_t)(keys - visible) * sizeof *p);
        memset(ds + visible, 0, (size_t)(keys - visible) * sizeof *ds);
    }
    add_transposed(attention, probabilities, heads->dcontext, rows, keys, heads->dv);
    weighted_rows(attention, gradients, heads->k, rows, keys, heads->dq);
    add_transposed(attention, gradients, heads->q, rows, keys, heads->dk);
}

/* Buffers of the backward beside the operands. */
struct backward_buffers {
    float *probabilities, *gradients;
    float *k, *v, *dk, *dv;             /* of a sequence */
    float *q, *context, *dcontext, *dq; /* of a block */
};

static void backward_head(const struct attention *a, const struct rk_op_call *call, struct backward_buffers *buffers,
                          struct block_heads *heads, int64_t start, int64_t head) {
    for (int64_t first = 0; first < a->sequence; first += a->block) {
        int64_t rows = rk_cpu_smaller(a->sequence - first, a->block), token = start + first;
        int64_t q_first = token * a->row + head * a->width, context_first = token * a->context_row + head * a->width;
        const float *lse = (const float *)call->operand[2] + token * a->heads + head;
        heads->q = read_head(a, call->operand[0], q_first, a->row, rows, buffers->q);
        heads->context = read_head(a, call->operand[1], context_first, a->context_row, rows, buffers->context);
        heads->dcontext = read_head(a, call->operand[3], context_first, a->context_row, rows, buffers->dcontext);
        heads->dq = result_head(a, call->operand[4], q_first, a->row, buffers->dq);
        backward_block(a, heads, lse, first, rows, buffers->probabilities, buffers->gradients);
        write_head(a, heads->dq, call->operand[4], q_first, a->row, rows);
    }
}

RK_CPU_KERNEL(ATTENTION_BACKWARD) {
    struct attention attention;
    attention_open(&attention, call, 5);
    const struct attention *a = &attention;
    int64_t group = a->heads / a->kv_heads;
    struct backward_buffers buffers;
    buffers.probabilities = take(&attention, a->block * a->sequence);
    buffers.gradients = take(&attention, a->block * a->sequence);
    buffers.k = take_head(&attention, a->sequence);
    buffers.v = take_head(&attention, a->sequence);
    buffers.dk = take_head(&attention, a->sequence);
    buffers.dv = take_head(&attention, a->sequence);
    buffers.q = take_head(&attention, a->block);
    buffers.context = take_head(&attention, a->block);
    buffers.dcontext = take_head(&attention, a->block);
    buffers.dq = take_head(&attention, a->block);
    for (int64_t start = 0; start < a->tokens; start += a->sequence) {
        for (int64_t kv_head = 0; kv_head < a->kv_heads; kv_head++) {
            int64_t k_first = start * a->row + (a->heads + kv_head) * a->width;
            int64_t v_first = k_first + a->kv_heads * a->width;
            struct block_heads heads;
            heads.k = read_head(a, call->operand[0], k_first, a->row, a->sequence, buffers.k);
            heads.v = read_head(a, call->operand[0], v_first, a->row, a->sequence, buffers.v);
            heads.dk = result_head(a, call->operand[4], k_first, a->row, buffers.dk);
            heads.dv = result_head(a, call->operand[4], v_first, a->row, buffers.dv);
            clear_head(a, heads.dk, a->sequence);
            clear_head(a, heads.dv, a->sequence);
            for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
                backward_head(a, call, &buffers, &heads, start, head);
            }
            write_head(a, heads.dk, call->operand[4], k_first, a->row, a->sequence);
            write_head(a, heads.dv, call->operand[4], v_first, a->row, a->sequence);
        }
    }
}

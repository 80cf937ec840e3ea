/* Products, dense and grouped, through OpenBLAS. FP32 operands are used where they lie; BF16 operands are widened into
 * the workspace, RK_CPU_BLOCK_ROWS rows of activations and RK_CPU_PANEL_ROWS rows of a weight at a time.
 *
 * Dimensions as in ops.h: y[m,n] = x[m,k] · w[n,k]ᵀ. */
#include "kernels/cpu/cpu.h"
#include "model/ops_workspace.h"

#include <cblas.h>
#include <inttypes.h>

/* One product: of a whole dense op, or of one expert's rows. `into` is addend + product (act, or FP32 where the flag
 * says), or the accumulated weight gradient. */
struct product {
    enum rk_data_type type;
    bool f32_gradient, f32_output; /* dy, y are FP32 although the type is BF16 */
    int64_t m, n, k;
    const void *left;   /* x or dy */
    const void *right;  /* w, or x for the weight gradient */
    const void *addend; /* may be NULL or `into` */
    void *into;
    float *workspace;
};

static void multiply(CBLAS_TRANSPOSE left_transposed, CBLAS_TRANSPOSE right_transposed, int64_t rows, int64_t columns,
                     int64_t inner, const float *left, int64_t left_stride, const float *right, int64_t right_stride,
                     float keep, float *into, int64_t stride) {
    cblas_sgemm(CblasRowMajor, left_transposed, right_transposed, (blasint)rows, (blasint)columns, (blasint)inner, 1.0f,
                left, (blasint)left_stride, right, (blasint)right_stride, keep, into, (blasint)stride);
}

/* OpenBLAS counts in 32 bits. */
static enum rk_status check_sizes(const struct rk_op_shape *shape, struct rk_error *error) {
    for (int i = 0; i < RK_OP_DIMS; i++) {
        if (shape->dim[i] > INT32_MAX) {
            return rk_fail(error, RK_USAGE, "%s: a dimension of %" PRId64 "; OpenBLAS takes at most %d",
                           rk_op_name(shape->kind), shape->dim[i], INT32_MAX);
        }
    }
    return RK_OK;
}

/* Rows of a part of a row-major act matrix as FP32 with their stride: in place, or widened into buffer. */
struct matrix {
    const float *data;
    int64_t stride;
};

static struct matrix widened(enum rk_data_type type, const void *base, int64_t row_width, int64_t first_row,
                             int64_t rows, int64_t first_column, int64_t columns, float *buffer) {
    if (type == RK_F32) {
        return (struct matrix){(const float *)base + first_row * row_width + first_column, row_width};
    }
    for (int64_t row = 0; row < rows; row++) {
        rk_cpu_load(type, base, (first_row + row) * row_width + first_column, columns, buffer + row * columns);
    }
    return (struct matrix){buffer, columns};
}

/* Puts the addend where an FP32 product will be added. */
static RK_CPU_CLONES void place_addend(const struct product *product, int64_t row_width, int64_t first_row,
                                       int64_t rows, int64_t first_column, int64_t columns, float *into,
                                       int64_t stride) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = (first_row + row) * row_width + first_column;
        float *target = into + row * stride;
        const float *values = rk_cpu_load(product->type, product->addend, at, columns, target);
        if (values != target) {
            memcpy(target, values, (size_t)columns * sizeof *target);
        }
    }
}

static void forward_f32(const struct product *product) {
    int64_t m = product->m, n = product->n, k = product->k;
    if (product->addend != NULL && product->addend != product->into) {
        memcpy(product->into, product->addend, (size_t)(m * n) * sizeof(float));
    }
    multiply(CblasNoTrans, CblasTrans, m, n, k, product->left, k, product->right, k, product->addend != NULL ? 1 : 0,
             product->into, n);
}

/* One block of rows times one panel of the weight. */
static RK_CPU_CLONES void forward_tile(const struct product *product, struct matrix x, int64_t first_row, int64_t rows,
                                       int64_t first_panel, int64_t panel, float *panel_buffer, float *tile_buffer) {
    int64_t n = product->n, k = product->k;
    struct matrix w = widened(product->type, product->right, k, first_panel, panel, 0, k, panel_buffer);
    float *tile = product->f32_output ? (float *)product->into + first_row * n + first_panel : tile_buffer;
    int64_t stride = product->f32_output ? n : panel;
    if (product->addend != NULL) {
        place_addend(product, n, first_row, rows, first_panel, panel, tile, stride);
    }
    multiply(CblasNoTrans, CblasTrans, rows, panel, k, x.data, x.stride, w.data, w.stride,
             product->addend != NULL ? 1 : 0, tile, stride);
    for (int64_t row = 0; row < rows && !product->f32_output; row++) {
        rk_cpu_store(product->type, product->into, (first_row + row) * n + first_panel, panel, tile + row * panel);
    }
}

static void forward(const struct product *product) {
    if (product->type == RK_F32) {
        forward_f32(product);
        return;
    }
    int64_t block = rk_cpu_smaller(product->m, RK_CPU_BLOCK_ROWS);
    float *panel_buffer = product->workspace + block * product->k;
    float *tile_buffer = panel_buffer + RK_CPU_PANEL_ROWS * product->k;
    for (int64_t row = 0; row < product->m; row += block) {
        int64_t rows = rk_cpu_smaller(product->m - row, block);
        struct matrix x =
            widened(product->type, product->left, product->k, row, rows, 0, product->k, product->workspace);
        for (int64_t first = 0; first < product->n; first += RK_CPU_PANEL_ROWS) {
            int64_t panel = rk_cpu_smaller(product->n - first, RK_CPU_PANEL_ROWS);
            forward_tile(product, x, row, rows, first, panel, panel_buffer, tile_buffer);
        }
    }
}

static void dgrad_f32(const struct product *product) {
    int64_t m = product->m, n = product->n, k = product->k;
    if (product->addend != NULL && product->addend != product->into) {
        memcpy(product->into, product->addend, (size_t)(m * k) * sizeof(float));
    }
    multiply(CblasNoTrans, CblasNoTrans, m, k, n, product->left, n, product->right, k, product->addend != NULL ? 1 : 0,
             product->into, k);
}

static void dgrad(const struct product *product) {
    if (product->type == RK_F32) {
        dgrad_f32(product);
        return;
    }
    enum rk_data_type gradient_type = product->f32_gradient ? RK_F32 : product->type;
    int64_t n = product->n, k = product->k, block = rk_cpu_smaller(product->m, RK_CPU_BLOCK_ROWS);
    float *gradient_buffer = product->workspace;
    float *panel_buffer = gradient_buffer + block * RK_CPU_PANEL_ROWS;
    float *sum = panel_buffer + RK_CPU_PANEL_ROWS * k;
    for (int64_t row = 0; row < product->m; row += block) {
        int64_t rows = rk_cpu_smaller(product->m - row, block);
        float keep = 0;
        if (product->addend != NULL) {
            place_addend(product, k, row, rows, 0, k, sum, k);
            keep = 1;
        }
        for (int64_t first = 0; first < n; first += RK_CPU_PANEL_ROWS) {
            int64_t panel = rk_cpu_smaller(n - first, RK_CPU_PANEL_ROWS);
            struct matrix dy = widened(gradient_type, product->left, n, row, rows, first, panel, gradient_buffer);
            struct matrix w = widened(product->type, product->right, k, first, panel, 0, k, panel_buffer);
            multiply(CblasNoTrans, CblasNoTrans, rows, k, panel, dy.data, dy.stride, w.data, w.stride, keep, sum, k);
            keep = 1;
        }
        rk_cpu_store(product->type, product->into, row * k, rows * k, sum);
    }
}

/* BF16 blocks of rows are added to the gradient one after the other. */
static void wgrad(const struct product *product) {
    enum rk_data_type gradient_type = product->f32_gradient ? RK_F32 : product->type;
    int64_t n = product->n, k = product->k;
    if (product->type == RK_F32) {
        multiply(CblasTrans, CblasNoTrans, n, k, product->m, product->left, n, product->right, k, 1, product->into, k);
        return;
    }
    int64_t block = rk_cpu_smaller(product->m, RK_CPU_BLOCK_ROWS);
    float *gradient_buffer = product->workspace, *x_buffer = gradient_buffer + block * RK_CPU_PANEL_ROWS;
    for (int64_t row = 0; row < product->m; row += block) {
        int64_t rows = rk_cpu_smaller(product->m - row, block);
        struct matrix x = widened(product->type, product->right, k, row, rows, 0, k, x_buffer);
        for (int64_t first = 0; first < n; first += RK_CPU_PANEL_ROWS) {
            int64_t panel = rk_cpu_smaller(n - first, RK_CPU_PANEL_ROWS);
            struct matrix dy = widened(gradient_type, product->left, n, row, rows, first, panel, gradient_buffer);
            multiply(CblasTrans, CblasNoTrans, panel, k, rows, dy.data, dy.stride, x.data, x.stride, 1,
                     (float *)product->into + first * k, k);
        }
    }
}

/* A dense op; `into` and the workspace are the operands with these numbers, addend -1 for none. */
static enum rk_status run_dense(struct rk_stream *stream, const struct rk_op_call *call, int addend, int into,
                                void (*compute)(const struct product *), struct rk_error *error) {
    const struct rk_op_shape *shape = call->shape;
    enum rk_status status = check_sizes(shape, error);
    if (status != RK_OK) {
        return status;
    }
    stream->device->counters.launches++;
    struct product product = {
        .type = shape->type,
        .f32_gradient = (shape->flags & RK_OP_FLAG_F32_INPUT) != 0,
        .f32_output = (shape->flags & RK_OP_FLAG_F32_OUTPUT) != 0,
        .m = shape->dim[0],
        .n = shape->dim[1],
        .k = shape->dim[2],
        .left = call->operand[0],
        .right = call->operand[1],
        .addend = addend >= 0 ? call->operand[addend] : NULL,
        .into = call->operand[into],
        .workspace = call->operand[into + 1],
    };
    if (product.m > 0) {
        compute(&product);
    }
    return RK_OK;
}

enum rk_status rk_cpu_GEMM_FORWARD(struct rk_stream *stream, const struct rk_op_call *call, struct rk_error *error) {
    return run_dense(stream, call, 2, 3, forward, error);
}

enum rk_status rk_cpu_GEMM_DGRAD(struct rk_stream *stream, const struct rk_op_call *call, struct rk_error *error) {
    return run_dense(stream, call, 2, 3, dgrad, error);
}

enum rk_status rk_cpu_GEMM_WGRAD(struct rk_stream *stream, const struct rk_op_call *call, struct rk_error *error) {
    return run_dense(stream, call, -1, 2, wgrad, error);
}

/* A grouped op: one product for each expert with rows. Widths are those of one row of the operand; a width of 0 says
 * that the operand has a matrix for each expert instead of rows. */
static enum rk_status run_grouped(struct rk_stream *stream, const struct rk_op_call *call, int64_t left_width,
                                  int64_t right_width, int64_t into_width, void (*compute)(const struct product *),
                                  struct rk_error *error) {
    const struct rk_op_shape *shape = call->shape;
    enum rk_status status = check_sizes(shape, error);
    if (status != RK_OK) {
        return status;
    }
    stream->device->counters.launches++;
    const int32_t *offsets = call->operand[2];
    int64_t matrix = shape->dim[2] * shape->dim[3];
    for (int64_t expert = 0; expert < shape->dim[1]; expert++) {
        int64_t first = offsets[expert], rows = offsets[expert + 1] - first;
        if (rows <= 0) {
            continue;
        }
        int64_t right_at = right_width > 0 ? first * right_width : expert * matrix;
        struct product product = {
            .type = shape->type,
            .m = rows,
            .n = shape->dim[2],
            .k = shape->dim[3],
            .left = rk_cpu_at(shape->type, call->operand[0], first * left_width),
            .right = rk_cpu_at(shape->type, call->operand[1], right_at),
            .into = into_width > 0 ? rk_cpu_at(shape->type, call->operand[3], first * into_width)
                                   : (void *)((float *)call->operand[3] + expert * matrix),
            .workspace = call->operand[4],
        };
        compute(&product);
    }
    return RK_OK;
}

enum rk_status rk_cpu_GROUPED_GEMM_FORWARD(struct rk_stream *stream, const struct rk_op_call *call,
                                           struct rk_error *error) {
    return run_grouped(stream, call, call->shape->dim[3], 0, call->shape->dim[2], forward, error);
}

enum rk_status rk_cpu_GROUPED_GEMM_DGRAD(struct rk_stream *stream, const struct rk_op_call *call,
                                         struct rk_error *error) {
    return run_grouped(stream, call, call->shape->dim[2], 0, call->shape->dim[3], dgrad, error);
}

enum rk_status rk_cpu_GROUPED_GEMM_WGRAD(struct rk_stream *stream, const struct rk_op_call *call,
                                         struct rk_error *error) {
    return run_grouped(stream, call, call->shape->dim[2], call->shape->dim[3], 0, wgrad, error);
}

/* Scratch of the kernels, by kind and back end: the one place that the lowering and the kernels both read. */
#include "model/ops_workspace.h"
#include "model/memory.h"

static int64_t smaller(int64_t left, int64_t right) {
    return left < right ? left : right;
}

/* The CPU back end computes in FP32. BF16 operands are widened block by block, so the scratch does not grow with the
 * problem beyond one block of rows. */
static int64_t cpu_product_bytes(int64_t block_rows, int64_t inner, int64_t width) {
    return (block_rows * inner + RK_CPU_PANEL_ROWS * inner + block_rows * width) * 4;
}

static int64_t cpu_gemm_bytes(const struct rk_op_shape *shape, int64_t m, int64_t n, int64_t k) {
    int64_t rows = smaller(m, RK_CPU_BLOCK_ROWS);
    if (shape->type == RK_F32) {
        return 0;
    }
    switch (shape->kind) {
    case RK_OP_GEMM_FORWARD:
    case RK_OP_GROUPED_GEMM_FORWARD: /* x block, panel of w, product */
        return cpu_product_bytes(rows, k, smaller(n, RK_CPU_PANEL_ROWS));
    case RK_OP_GEMM_DGRAD:
    case RK_OP_GROUPED_GEMM_DGRAD: /* dy block restricted to a panel of n, panel of w, sum over panels */
        return (rows * RK_CPU_PANEL_ROWS + RK_CPU_PANEL_ROWS * k + rows * k) * 4;
    default: /* weight gradients: dy block restricted to a panel of n, x block; the sum goes to dw itself */
        return (rows * RK_CPU_PANEL_ROWS + rows * k) * 4;
    }
}

static int64_t cpu_attention_bytes(const struct rk_op_shape *shape) {
    int64_t sequence = shape->dim[1], width = shape->dim[4];
    int64_t rows = smaller(sequence, RK_CPU_QUERY_ROWS);
    int64_t scores = rows * sequence * 4;
    if (shape->kind == RK_OP_ATTENTION_FORWARD) { /* scores; widened k, v of a head, q and context of a block */
        return scores + (shape->type == RK_F32 ? 0 : (2 * sequence + 2 * rows) * width * 4);
    }
    /* probabilities and their gradients; k, v, dk, dv of a head; q, context, dcontext, dq of a block; row sums */
    int64_t widened = shape->type == RK_F32 ? 0 : (4 * sequence + 4 * rows) * width * 4;
    return 2 * scores + widened + rows * 4;
}

static int64_t cpu_bytes(const struct rk_op_shape *shape) {
    const int64_t *dim = shape->dim;
    switch (shape->kind) {
    case RK_OP_RMSNORM_BACKWARD: /* dgain summed in FP64 */
        return dim[1] * 8;
    case RK_OP_ROPE_BACKWARD: /* gradients of the gains summed in FP64 */
        return rk_op_operand_bytes(shape, 5) * 2 + rk_op_operand_bytes(shape, 6) * 2;
    case RK_OP_GEMM_FORWARD:
    case RK_OP_GEMM_DGRAD:
    case RK_OP_GEMM_WGRAD:
        return cpu_gemm_bytes(shape, dim[0], dim[1], dim[2]);
    case RK_OP_GROUPED_GEMM_FORWARD:
    case RK_OP_GROUPED_GEMM_DGRAD:
    case RK_OP_GROUPED_GEMM_WGRAD:
        return cpu_gemm_bytes(shape, dim[0], dim[2], dim[3]);
    case RK_OP_ATTENTION_FORWARD:
    case RK_OP_ATTENTION_BACKWARD:
        return cpu_attention_bytes(shape);
    case RK_OP_ROUTE_MAP: /* for each expert: place in the order, first row, rows kept */
        return 3 * dim[1] * 8;
    default:
        return 0;
    }
}

/* Dense products through cuBLASLt. An FP32 gradient beside BF16 factors becomes two BF16 halves side by side; dgrad
 * needs the weight twice, wgrad the two halves' products in FP32. */
static int64_t cuda_gemm_bytes(const struct rk_op_shape *shape, int64_t m, int64_t n, int64_t k) {
    int64_t bytes = RK_CUDA_GEMM_BYTES;
    if (shape->type == RK_BF16 && (shape->flags & RK_OP_FLAG_F32_INPUT) != 0)
        bytes += 2 * m * n * 2 + (shape->kind == RK_OP_GEMM_DGRAD ? 2 * n * k * 2 : 2 * n * k * 4);
    return bytes;
}

/* The CUDA back end: cuBLASLt's recommended workspace on Hopper for products; FP32 partial sums elsewhere, a row for
 * each of at most RK_CUDA_PARTIAL_ROWS blocks. */
static int64_t cuda_bytes(const struct rk_op_shape *shape) {
    const int64_t *dim = shape->dim;
    switch (shape->kind) {
    case RK_OP_RMSNORM_BACKWARD:
        return smaller(dim[0], RK_CUDA_PARTIAL_ROWS) * dim[1] * 4;
    case RK_OP_ROPE_BACKWARD:
        return smaller(dim[0], RK_CUDA_PARTIAL_ROWS) * (rk_op_operand_bytes(shape, 5) + rk_op_operand_bytes(shape, 6));
    case RK_OP_GEMM_FORWARD:
    case RK_OP_GEMM_DGRAD:
    case RK_OP_GEMM_WGRAD:
        return cuda_gemm_bytes(shape, dim[0], dim[1], dim[2]);
    case RK_OP_GROUPED_GEMM_FORWARD: /* the number of the next tile */
    case RK_OP_GROUPED_GEMM_DGRAD:
    case RK_OP_GROUPED_GEMM_WGRAD:
        return 4;
    case RK_OP_ATTENTION_BACKWARD: /* the row sums of dcontext · context */
        return dim[0] * dim[2] * 4;
    case RK_OP_ROUTE_FORWARD: /* sums of each block: a score for each expert, and the squared lse */
        return smaller((dim[0] + 7) / 8, RK_CUDA_PARTIAL_ROWS) * (dim[1] + 1) * 4;
    case RK_OP_ROUTE_MAP: /* for each expert: first row, first place, and the counts of each block of routes */
        return RK_CUDA_PARTIAL_ROWS * dim[1] * 4;
    case RK_OP_CROSS_ENTROPY: /* the loss of each token */
        return dim[0] * 4;
    case RK_OP_GRAD_NORM:
        return RK_CUDA_PARTIAL_ROWS * 8;
    default:
        return 0;
    }
}

int64_t rk_op_workspace_bytes(const struct rk_op_shape *shape, enum rk_backend_kind backend) {
    int64_t bytes = backend == RK_BACKEND_CUDA ? cuda_bytes(shape) : cpu_bytes(shape);
    return rk_memory_aligned(bytes);
}

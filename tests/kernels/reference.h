/* Naive references in FP64: forward ops as their definition in model/ops.h says, gradients as central differences of
 * the forward. Nothing is shared with the kernels but the hash of random routes. */
#ifndef RK_TESTS_KERNELS_REFERENCE_H
#define RK_TESTS_KERNELS_REFERENCE_H

#include "model/ops.h"

/* A call with every operand widened to FP64; NULL where absent. */
struct rk_reference {
    const struct rk_op_shape *shape;
    const float *parameter;
    uint64_t serial;
    int32_t group_rank;
    double *operand[RK_OP_OPERANDS];
};

/* Whether the kind's outputs are written by rk_reference_run. */
bool rk_reference_is_forward(enum rk_op_kind kind);
void rk_reference_run(const struct rk_reference *reference);

/* Makes inputs that a backward op expects from its forward (rstd, lse, context) what the forward gives for the others.
 */
void rk_reference_prepare(const struct rk_reference *reference);

/* Whether the operand of a kind is a gradient, and its value at `element`: the derivative of the sum of the upper
 * gradient times the forward's output (and of the residual or addend), without what is accumulated into. */
bool rk_reference_is_gradient(enum rk_op_kind kind, int operand);
double rk_reference_gradient(const struct rk_reference *reference, int operand, int64_t element);

#endif

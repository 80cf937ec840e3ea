/* Operands with valid contents for any op, on any back end: calibrate, bench and the tests all make theirs here.
 *
 * Floating point inputs and accumulators follow the distribution; weights of products are scaled by 1/sqrt(inner
 * dimension), so that results are of the same size. Indices, counts, offsets, rows and orders are those of uniform
 * random routing, and consistent with one another and over the group: the same seed gives every rank of a group its
 * part of the same routing. Outputs, and rows of inputs past the valid prefix, are NaN (integers: -1). */
#ifndef RK_KERNELS_OPERANDS_H
#define RK_KERNELS_OPERANDS_H

#include "kernels/kernels.h"

/* X(name, text) */
#define RK_DISTRIBUTION_TABLE(X)                                                                                       \
    X(NORMAL, "normal") /* mean 0, variance 1 */                                                                       \
    X(ZEROS, "zeros")                                                                                                  \
    X(UNIFORM, "uniform")   /* in [-1, 1) */                                                                           \
    X(CONSTANT, "constant") /* 1 */

enum rk_distribution {
#define RK_DISTRIBUTION_KIND(name, text) RK_DISTRIBUTION_##name,
    RK_DISTRIBUTION_TABLE(RK_DISTRIBUTION_KIND)
#undef RK_DISTRIBUTION_KIND
        RK_DISTRIBUTION_COUNT
};
const char *rk_distribution_name(enum rk_distribution distribution);
enum rk_distribution rk_distribution_from_name(const char *name); /* RK_DISTRIBUTION_COUNT if none */

struct rk_operands {
    struct rk_op_call call; /* ready for rk_kernel_run or a transport; call.shape points to shape */
    struct rk_op_shape shape;
    void *memory[RK_OP_OPERANDS]; /* every operand, also those that the call leaves out; owned */
    int64_t bytes[RK_OP_OPERANDS];
    bool in_host_memory[RK_OP_OPERANDS]; /* the host side of COPY_D2H and COPY_H2D */
    int64_t valid_rows;                  /* rows of the valid prefix; -1 for ops without one */
    const struct rk_backend *backend;
    struct rk_device *device;
    struct rk_stream *stream; /* for the copies of the functions below; owned */
};

/* Allocates and fills all operands of the shape. group_rank: this rank's index in the op's group. All R rows of a
 * grouped product or a SwiGLU with G > 0 are valid and spread over the G experts at random; with G = 0 a SwiGLU has no
 * offsets and no row weights. The addend of a product, the selection bias of a softmax router and the row scalar of
 * COMBINE are made but not in the call; every other optional operand is. Large operands repeat 65,521 values. On
 * success *operands is the caller's (rk_operands_free); on failure nothing is kept. *operands must not move afterwards:
 * call.shape points into it. */
enum rk_status rk_operands_make(const struct rk_backend *backend, struct rk_device *device,
                                const struct rk_op_shape *shape, int32_t group_rank, enum rk_distribution distribution,
                                uint64_t seed, struct rk_operands *operands, struct rk_error *error);
void rk_operands_free(struct rk_operands *operands);

/* Replaces the offsets (G + 1 values, from 0, ascending, at most R) of a grouped product or a SwiGLU and makes the rows
 * past the last NaN. Call it at most once. */
enum rk_status rk_operands_set_offsets(struct rk_operands *operands, const int32_t *offsets, struct rk_error *error);

/* An operand's bytes to and from a host array of operands->bytes[operand] bytes. Waits for the device. */
enum rk_status rk_operands_read(const struct rk_operands *operands, int operand, void *host, struct rk_error *error);
enum rk_status rk_operands_write(const struct rk_operands *operands, int operand, const void *host,
                                 struct rk_error *error);

#endif

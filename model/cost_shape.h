/* What an op's time grows with: the part of a shape that is a size, and the part that says what kind of work it is. One
 * table for everything that estimates times from other shapes' times. */
#ifndef RK_MODEL_COST_SHAPE_H
#define RK_MODEL_COST_SHAPE_H

#include "model/cost.h"

enum { RK_COST_FEATURES = RK_OP_DIMS + 2 };

struct rk_cost_shape {
    /* Kind, type and flags, with what does not change the time left out: the group, and the type of kinds that move the
     * same bytes under every type. */
    enum rk_op_kind kind;
    enum rk_data_type type;
    uint32_t flags;
    bool crosses_hosts;
    /* The first dimension: tokens, rows, elements or bytes. Rows that are not valid are not counted. */
    double size;
    /* Logarithms to base 2 of the other dimensions (receive rows as a multiple of the routes), then of the ranks of the
     * group and of the busy ranks. */
    double feature[RK_COST_FEATURES];
};

void rk_cost_shape_of(const struct rk_op_shape *shape, const struct rk_cost_place *place, struct rk_cost_shape *made);

/* Same in everything but size and features. flags are compared only when with_flags. */
bool rk_cost_shape_alike(const struct rk_cost_shape *left, const struct rk_cost_shape *right, bool with_flags);

/* The same work: alike, and equal in size and dimensions, whatever the capacity of the receive buffer, the place and
 * the flags. */
bool rk_cost_shape_same_work(const struct rk_cost_shape *left, const struct rk_cost_shape *right);

/* Squared distance of the features, in octaves; the two of the place count more than those of the shape. */
double rk_cost_shape_distance(const struct rk_cost_shape *left, const struct rk_cost_shape *right);

/* The work that the kind is bound by, for this shape with `size` in place of its own: FLOPs for matrix products and
 * attention, bytes for all else. > 0. */
double rk_cost_work(const struct rk_op_shape *shape, double size);

#endif

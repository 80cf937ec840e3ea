#include "model/cost_shape.h"

#include <math.h>
#include <string.h>

/* The dimension that holds the rows of a receive buffer of T tokens and K routes, and where K stands; or 0. */
static int receive_rows_dimension(enum rk_op_kind kind, int *routes) {
    switch (kind) {
    case RK_OP_ROUTE_MAP:
        *routes = 2;
        return 4;
    case RK_OP_DISPATCH:
    case RK_OP_COMBINE:
        *routes = 2;
        return 5;
    default:
        return 0;
    }
}

static double log_of(double value) {
    return log2(value > 1e-9 ? value : 1e-9);
}

/* Kinds whose operands are all of fixed types take the same time under every type. */
static bool type_matters(const struct rk_op_shape *shape) {
    struct rk_op_shape narrow = *shape, wide = *shape;
    narrow.type = RK_BF16;
    wide.type = RK_F32;
    return rk_op_bytes(&narrow) < rk_op_bytes(&wide);
}

void rk_cost_shape_of(const struct rk_op_shape *shape, const struct rk_cost_place *place, struct rk_cost_shape *made) {
    *made = (struct rk_cost_shape){.kind = shape->kind,
                                   .type = type_matters(shape) ? shape->type : RK_F32,
                                   .flags = shape->flags,
                                   .crosses_hosts = place->crosses_hosts,
                                   .size = (double)shape->dim[0] * place->row_share};
    bool collective = rk_op_family(shape->kind) == RK_OP_FAMILY_COLLECTIVE;
    int routes = 0, rows = receive_rows_dimension(shape->kind, &routes);
    for (int i = 1; i < RK_OP_DIMS; i++) {
        double value = (double)shape->dim[i];
        if (rows > 0 && i == rows)
            value /= (double)shape->dim[0] * (double)shape->dim[routes];
        if (shape->dim[i] > 0 && !(collective && i == 1))
            made->feature[i] = log_of(value);
    }
    made->feature[RK_OP_DIMS] = log_of(place->group_size);
    made->feature[RK_OP_DIMS + 1] = log_of(place->concurrent);
}

bool rk_cost_shape_alike(const struct rk_cost_shape *left, const struct rk_cost_shape *right, bool with_flags) {
    return left->kind == right->kind && left->type == right->type && left->crosses_hosts == right->crosses_hosts &&
           (!with_flags || left->flags == right->flags);
}

bool rk_cost_shape_same_work(const struct rk_cost_shape *left, const struct rk_cost_shape *right) {
    int routes = 0, rows = receive_rows_dimension(left->kind, &routes);
    if (!rk_cost_shape_alike(left, right, false) || fabs(left->size - right->size) > 1e-9 * left->size)
        return false;
    for (int i = 1; i < RK_OP_DIMS; i++)
        if (!(rows > 0 && i == rows) && fabs(left->feature[i] - right->feature[i]) > 1e-9)
            return false;
    return true;
}

double rk_cost_shape_distance(const struct rk_cost_shape *left, const struct rk_cost_shape *right) {
    double sum = 0;
    for (int i = 0; i < RK_COST_FEATURES; i++) {
        double difference = left->feature[i] - right->feature[i];
        sum += (i >= RK_OP_DIMS ? 16 : 1) * difference * difference;
    }
    return sum;
}

double rk_cost_work(const struct rk_op_shape *shape, double size) {
    struct rk_op_shape scaled = *shape;
    int routes = 0, rows = receive_rows_dimension(shape->kind, &routes);
    double factor = size / (double)shape->dim[0];
    /* Work is a polynomial of the first dimension; whole numbers around the size give it at the size. */
    scaled.dim[0] = size < 1 ? 1 : (int64_t)size;
    if (rows > 0)
        scaled.dim[rows] = (int64_t)fmax(1, (double)shape->dim[rows] * factor);
    enum rk_op_family family = rk_op_family(shape->kind);
    bool products =
        family == RK_OP_FAMILY_GEMM || family == RK_OP_FAMILY_GROUPED_GEMM || family == RK_OP_FAMILY_ATTENTION;
    double work = products ? rk_op_flops(&scaled) : rk_op_bytes(&scaled);
    work *= size / (double)scaled.dim[0];
    return work > 0 ? work : 1;
}

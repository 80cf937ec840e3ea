/* Sums and gathers over a group, in pieces that fit the publishing buffers. Sums are taken in the order of the group.
 */
#include "executor/transport_shm.h"

#include <string.h>

enum { BLOCK = 2048 }; /* values summed at once, so that the sum stays in the first cache */

static int64_t least(int64_t left, int64_t right) {
    return left < right ? left : right;
}

/* Values of one piece when `pieces` of them are published side by side. */
static int64_t piece_values(const struct rk_transport *transport, enum rk_group_kind kind, int64_t pieces,
                            int64_t value_bytes) {
    int64_t room = transport->publish_bytes[kind] - (int64_t)sizeof(struct rk_shm_published);
    return room / (pieces * value_bytes);
}

int64_t rk_shm_publish_need(const struct rk_op_shape *shape) {
    const int64_t *dim = shape->dim;
    int64_t bytes;
    switch (shape->kind) {
    case RK_OP_COUNT_EXCHANGE:
        return dim[0] * (int64_t)sizeof(int32_t);
    case RK_OP_DISPATCH: /* index, row and weight of every route, and the tokens */
        return dim[0] * (dim[2] * 12 + dim[1] * rk_data_type_bytes(shape->type)) + RK_SHM_ALIGN;
    case RK_OP_COMBINE: /* a scalar for every row, and the rows */
        return dim[5] * (4 + dim[1] * rk_data_type_bytes(shape->type)) + RK_SHM_ALIGN;
    case RK_OP_REDUCE_SCATTER:
        /* At least one value for each member goes into one round. */
        bytes = least(dim[0] * 4, RK_SHM_PUBLISH_BYTES_MAX);
        return bytes > dim[1] * 4 ? bytes : dim[1] * 4;
    case RK_OP_ALL_GATHER:
        return least(dim[0] / dim[1] * rk_data_type_bytes(shape->type), RK_SHM_PUBLISH_BYTES_MAX);
    case RK_OP_ALL_REDUCE:
        return least(dim[0] * ((shape->flags & RK_OP_FLAG_F64) != 0 ? 8 : 4), RK_SHM_PUBLISH_BYTES_MAX);
    default:
        return 0;
    }
}

/* out[i] = Σ over members, in their order, of the values at `at` in their buffers; this rank's own come from `own`,
 * which may be out. */
static void sum_f32(const struct rk_transport *transport, enum rk_group_kind kind, int64_t at, int64_t count,
                    const float *own, float *out) {
    const struct rk_shm_group *group = &transport->group[kind];
    float sum[BLOCK];
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int64_t length = least(BLOCK, count - begin);
        for (int64_t member = 0; member < group->count; member++) {
            const float *values =
                member == group->index
                    ? own + begin
                    : (const float *)(const void *)(rk_shm_published(transport, kind, member) + 1) + at + begin;
            if (member == 0)
                memcpy(sum, values, (size_t)length * sizeof *sum);
            else
                for (int64_t i = 0; i < length; i++)
                    sum[i] += values[i];
        }
        memcpy(out + begin, sum, (size_t)length * sizeof *sum);
    }
}

static void sum_f64(const struct rk_transport *transport, enum rk_group_kind kind, int64_t count, double *values) {
    const struct rk_shm_group *group = &transport->group[kind];
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int64_t member = 0; member < group->count; member++) {
            const double *theirs = (const void *)(rk_shm_published(transport, kind, member) + 1);
            double value = member == group->index ? values[i] : theirs[i];
            sum = member == 0 ? value : sum + value;
        }
        values[i] = sum;
    }
}

enum rk_status rk_shm_reduce_scatter(struct rk_transport *transport, const struct rk_op_call *call,
                                     struct rk_error *error) {
    enum rk_group_kind kind = call->shape->group;
    const struct rk_shm_group *group = &transport->group[kind];
    int64_t shard = call->shape->dim[0] / group->count;
    const float *in = call->operand[0];
    float *out = call->operand[1];
    const float *own = in + group->index * shard;
    if (group->count == 1) {
        if (out != own)
            memcpy(out, own, (size_t)shard * sizeof *out);
        return RK_OK;
    }
    int64_t piece = piece_values(transport, kind, group->count, sizeof *out);
    for (int64_t begin = 0; begin < shard; begin += piece) {
        int64_t length = least(piece, shard - begin);
        float *mine = (void *)(rk_shm_publish(transport, kind) + 1);
        for (int64_t member = 0; member < group->count; member++)
            if (member != group->index)
                memcpy(mine + member * length, in + member * shard + begin, (size_t)length * sizeof *mine);
        enum rk_status status = rk_shm_round(transport, kind, error);
        if (status != RK_OK)
            return status;
        sum_f32(transport, kind, group->index * length, length, own + begin, out + begin);
    }
    transport->remote_bytes[RK_OP_FAMILY_COLLECTIVE] += (group->count - 1) * shard * (int64_t)sizeof *out;
    return RK_OK;
}

enum rk_status rk_shm_all_gather(struct rk_transport *transport, const struct rk_op_call *call,
                                 struct rk_error *error) {
    enum rk_group_kind kind = call->shape->group;
    const struct rk_shm_group *group = &transport->group[kind];
    int64_t width = rk_data_type_bytes(call->shape->type);
    int64_t shard = call->shape->dim[0] / group->count * width;
    const char *in = call->operand[0];
    char *all = call->operand[1];
    if (in != all + group->index * shard)
        memcpy(all + group->index * shard, in, (size_t)shard);
    if (group->count == 1)
        return RK_OK;
    int64_t piece = piece_values(transport, kind, 1, 1);
    for (int64_t begin = 0; begin < shard; begin += piece) {
        int64_t length = least(piece, shard - begin);
        memcpy(rk_shm_publish(transport, kind) + 1, in + begin, (size_t)length);
        enum rk_status status = rk_shm_round(transport, kind, error);
        if (status != RK_OK)
            return status;
        for (int64_t member = 0; member < group->count; member++)
            if (member != group->index)
                memcpy(all + member * shard + begin, rk_shm_published(transport, kind, member) + 1, (size_t)length);
    }
    transport->remote_bytes[RK_OP_FAMILY_COLLECTIVE] += (group->count - 1) * shard;
    return RK_OK;
}

/* Every rank reads everything, which is the least work for the two cases there are: a few sums over many ranks, and a
 * large gradient over two. */
enum rk_status rk_shm_all_reduce(struct rk_transport *transport, const struct rk_op_call *call,
                                 struct rk_error *error) {
    enum rk_group_kind kind = call->shape->group;
    const struct rk_shm_group *group = &transport->group[kind];
    bool wide = (call->shape->flags & RK_OP_FLAG_F64) != 0;
    int64_t width = wide ? 8 : 4, elements = call->shape->dim[0];
    char *values = call->operand[0];
    if (group->count == 1)
        return RK_OK;
    int64_t piece = piece_values(transport, kind, 1, width);
    for (int64_t begin = 0; begin < elements; begin += piece) {
        int64_t length = least(piece, elements - begin);
        memcpy(rk_shm_publish(transport, kind) + 1, values + begin * width, (size_t)(length * width));
        enum rk_status status = rk_shm_round(transport, kind, error);
        if (status != RK_OK)
            return status;
        float *narrow = (void *)(values + begin * width);
        if (wide)
            sum_f64(transport, kind, length, (void *)narrow);
        else
            sum_f32(transport, kind, 0, length, narrow, narrow);
    }
    transport->remote_bytes[RK_OP_FAMILY_COLLECTIVE] += (group->count - 1) * elements * width;
    return RK_OK;
}

/* Exchange with the experts. Dispatch publishes each token once and the destination ranks take its rows from there;
 * combine publishes each rank's rows and the sources take theirs. Rows whose token and expert share a rank move
 * directly. */
#include "executor/transport_shm.h"
#include "kernels/bf16.h"
#include "model/routing_limits.h"

#include <string.h>

enum { BLOCK = 1024 }; /* values of a row summed at once in FP32 */

/* The dimensions of DISPATCH and COMBINE. */
struct exchange {
    int64_t tokens, width, routes, experts, ranks, rows;
    int64_t held;      /* experts of a rank, G */
    int64_t row_bytes; /* width · bytes of the type */
    int64_t rank;      /* in the group */
    const int32_t *index, *row, *kept;
};

static struct exchange exchange_of(const struct rk_transport *transport, const struct rk_op_call *call) {
    const int64_t *dim = call->shape->dim;
    return (struct exchange){
        .tokens = dim[0],
        .width = dim[1],
        .routes = dim[2],
        .experts = dim[3],
        .ranks = dim[4],
        .rows = dim[5],
        .held = dim[3] / dim[4],
        .row_bytes = dim[1] * rk_data_type_bytes(call->shape->type),
        .rank = transport->group[RK_GROUP_EXPERT_PARALLEL].index,
        .index = call->operand[2],
        .row = call->operand[3],
        .kept = call->operand[4],
    };
}

enum rk_status rk_shm_count_exchange(struct rk_transport *transport, const struct rk_op_call *call,
                                     struct rk_error *error) {
    enum rk_group_kind kind = RK_GROUP_EXPERT_PARALLEL;
    const struct rk_shm_group *group = &transport->group[kind];
    size_t bytes = (size_t)call->shape->dim[0] * sizeof(int32_t);
    char *all = call->operand[1];
    if (group->count > 1) {
        memcpy(rk_shm_publish(transport, kind) + 1, call->operand[0], bytes);
        enum rk_status status = rk_shm_round(transport, kind, error);
        if (status != RK_OK)
            return status;
        for (int64_t member = 0; member < group->count; member++)
            if (member != group->index)
                memcpy(all + (size_t)member * bytes, rk_shm_published(transport, kind, member) + 1, bytes);
        transport->remote_bytes[RK_OP_FAMILY_EXPERT_EXCHANGE] += (group->count - 1) * (int64_t)bytes;
    }
    memcpy(all + (size_t)group->index * bytes, call->operand[0], bytes);
    return RK_OK;
}

/* What a source publishes in DISPATCH: index[T·K], row[T·K], weight[T·K], then the tokens, aligned. */
struct published_tokens {
    int32_t *index, *row;
    float *weight;
    char *token;
};

static struct published_tokens published_tokens_at(char *data, int64_t routes) {
    size_t tokens_at = ((size_t)routes * 12 + RK_SHM_ALIGN - 1) / RK_SHM_ALIGN * RK_SHM_ALIGN;
    return (struct published_tokens){
        .index = (void *)data,
        .row = (void *)(data + (size_t)routes * 4),
        .weight = (void *)(data + (size_t)routes * 8),
        .token = data + tokens_at,
    };
}

/* Copies the rows that go to this rank out of one source's tokens. */
static enum rk_status place_rows(const struct rk_transport *transport, const struct exchange *exchange,
                                 const struct rk_op_call *call, const struct published_tokens *source, int64_t tokens,
                                 struct rk_error *error) {
    char *rows = call->operand[6];
    float *row_weight = call->operand[7];
    int64_t first = exchange->rank * exchange->held;
    for (int64_t route = 0; route < tokens * exchange->routes; route++) {
        int64_t expert = source->index[route] - first, row = source->row[route];
        if (row < 0 || expert < 0 || expert >= exchange->held)
            continue;
        if (row >= exchange->rows) {
            char place[256];
            return rk_fail(error, RK_ERROR, "%s: a route goes to row %lld of %lld: the route map is damaged",
                           rk_shm_place_name(transport, place, sizeof place), (long long)row,
                           (long long)exchange->rows);
        }
        memcpy(rows + row * exchange->row_bytes, source->token + route / exchange->routes * exchange->row_bytes,
               (size_t)exchange->row_bytes);
        if (row_weight != NULL && source->weight != NULL)
            row_weight[row] = source->weight[route];
    }
    return RK_OK;
}

/* Publishes the tokens that go to other ranks, and counts their bytes: a token once for each rank, a weight for each
 * route. */
static void publish_tokens(struct rk_transport *transport, const struct exchange *exchange,
                           const struct rk_op_call *call) {
    struct rk_shm_published *buffer = rk_shm_publish(transport, RK_GROUP_EXPERT_PARALLEL);
    int64_t routes = exchange->tokens * exchange->routes, remote = 0;
    struct published_tokens mine = published_tokens_at((char *)(buffer + 1), routes);
    const char *source = call->operand[0];
    buffer->tokens = exchange->tokens;
    const float *weight = call->operand[1];
    buffer->weighted = weight != NULL;
    if (routes > 0) {
        memcpy(mine.index, exchange->index, (size_t)routes * sizeof *mine.index);
        memcpy(mine.row, exchange->row, (size_t)routes * sizeof *mine.row);
        if (weight != NULL)
            memcpy(mine.weight, weight, (size_t)routes * sizeof *mine.weight);
    }
    for (int64_t token = 0; token < exchange->tokens; token++) {
        const int32_t *index = exchange->index + token * exchange->routes;
        const int32_t *row = exchange->row + token * exchange->routes;
        int64_t copies = 0;
        for (int64_t k = 0; k < exchange->routes; k++) {
            int64_t destination = index[k] / exchange->held;
            if (row[k] < 0 || destination == exchange->rank)
                continue;
            bool first = true;
            for (int64_t before = 0; before < k && first; before++)
                first = row[before] < 0 || index[before] / exchange->held != destination;
            copies += first;
            remote += weight != NULL ? (int64_t)sizeof *weight : 0;
        }
        if (copies > 0)
            memcpy(mine.token + token * exchange->row_bytes, source + token * exchange->row_bytes,
                   (size_t)exchange->row_bytes);
        remote += copies * exchange->row_bytes;
    }
    transport->remote_bytes[RK_OP_FAMILY_EXPERT_EXCHANGE] += remote;
}

enum rk_status rk_shm_dispatch(struct rk_transport *transport, const struct rk_op_call *call, struct rk_error *error) {
    enum rk_group_kind kind = RK_GROUP_EXPERT_PARALLEL;
    struct exchange exchange = exchange_of(transport, call);
    if (exchange.ranks > 1)
        publish_tokens(transport, &exchange, call);
    /* The own rows need not wait for anybody; the casts take const off sources that place_rows only reads. */
    struct published_tokens own = {.index = (int32_t *)exchange.index,
                                   .row = (int32_t *)exchange.row,
                                   .weight = call->operand[1],
                                   .token = call->operand[0]};
    enum rk_status status = place_rows(transport, &exchange, call, &own, exchange.tokens, error);
    if (status != RK_OK || exchange.ranks == 1)
        return status;
    status = rk_shm_round(transport, kind, error);
    for (int64_t member = 0; member < exchange.ranks && status == RK_OK; member++) {
        if (member == exchange.rank)
            continue;
        const struct rk_shm_published *buffer = rk_shm_published(transport, kind, member);
        struct published_tokens source = published_tokens_at((char *)(buffer + 1), buffer->tokens * exchange.routes);
        if (!buffer->weighted)
            source.weight = NULL;
        status = place_rows(transport, &exchange, call, &source, buffer->tokens, error);
    }
    return status;
}

/* COMBINE publishes scalar[R], then the rows, aligned. */
static const char *published_rows(const char *data, int64_t rows) {
    return data + ((size_t)rows * 4 + RK_SHM_ALIGN - 1) / RK_SHM_ALIGN * RK_SHM_ALIGN;
}

/* Copies the rows of other sources into the publishing buffer. The receive layout is expert by expert, then by source,
 * so kept[source, expert] tells where each source's run lies. */
static enum rk_status publish_rows(struct rk_transport *transport, const struct exchange *exchange,
                                   const struct rk_op_call *call, struct rk_error *error) {
    char *data = (char *)(rk_shm_publish(transport, RK_GROUP_EXPERT_PARALLEL) + 1);
    char *published = (char *)published_rows(data, exchange->rows);
    const char *rows = call->operand[0];
    const float *scalar = call->operand[1];
    int64_t row = 0, remote = 0;
    for (int64_t expert = exchange->rank * exchange->held; expert < (exchange->rank + 1) * exchange->held; expert++) {
        for (int64_t source = 0; source < exchange->ranks; source++) {
            int64_t count = exchange->kept[source * exchange->experts + expert];
            if (count < 0 || count > exchange->rows - row) {
                char place[256];
                return rk_fail(error, RK_ERROR,
                               "%s: more rows are kept than the %lld there are: the route map is damaged",
                               rk_shm_place_name(transport, place, sizeof place), (long long)exchange->rows);
            }
            if (source != exchange->rank && count > 0) {
                memcpy(published + row * exchange->row_bytes, rows + row * exchange->row_bytes,
                       (size_t)(count * exchange->row_bytes));
                if (scalar != NULL)
                    memcpy((float *)(void *)data + row, scalar + row, (size_t)count * sizeof *scalar);
                remote += count * (exchange->row_bytes + (scalar != NULL ? (int64_t)sizeof *scalar : 0));
            }
            row += count;
        }
    }
    transport->remote_bytes[RK_OP_FAMILY_EXPERT_EXCHANGE] += remote;
    return RK_OK;
}

static void add_values(enum rk_data_type type, const char *values, int64_t begin, int64_t count, float *sum) {
    if (type == RK_F32) {
        const float *from = (const float *)(const void *)values + begin;
        for (int64_t i = 0; i < count; i++)
            sum[i] += from[i];
    } else {
        const uint16_t *from = (const uint16_t *)(const void *)values + begin;
        for (int64_t i = 0; i < count; i++)
            sum[i] += rk_bf16_widen(from[i]);
    }
}

static void store_values(enum rk_data_type type, const float *sum, int64_t begin, int64_t count, char *values) {
    if (type == RK_F32) {
        memcpy((float *)(void *)values + begin, sum, (size_t)count * sizeof *sum);
    } else {
        uint16_t *to = (uint16_t *)(void *)values + begin;
        for (int64_t i = 0; i < count; i++)
            to[i] = rk_bf16_round(sum[i]);
    }
}

/* out = residual + the token's kept rows in order of k: one order under every layout, so the result is the same bit by
 * bit. */
static void sum_token(const struct exchange *exchange, enum rk_data_type type, const char *const *row,
                      const char *residual, char *out) {
    float sum[BLOCK];
    for (int64_t begin = 0; begin < exchange->width; begin += BLOCK) {
        int64_t count = exchange->width - begin < BLOCK ? exchange->width - begin : BLOCK;
        memset(sum, 0, (size_t)count * sizeof *sum);
        if (residual != NULL)
            add_values(type, residual, begin, count, sum);
        for (int64_t k = 0; k < exchange->routes; k++)
            if (row[k] != NULL)
                add_values(type, row[k], begin, count, sum);
        store_values(type, sum, begin, count, out);
    }
}

static enum rk_status sum_tokens(const struct rk_transport *transport, const struct exchange *exchange,
                                 const struct rk_op_call *call, struct rk_error *error) {
    const char *residual = call->operand[6];
    char *out = call->operand[7];
    float *scalar_out = call->operand[8];
    const char *row[RK_CPU_ROUTES_MAX];
    for (int64_t token = 0; token < exchange->tokens; token++) {
        for (int64_t k = 0; k < exchange->routes; k++) {
            int64_t route = token * exchange->routes + k, at = exchange->row[route];
            int64_t owner = exchange->index[route] / exchange->held;
            const char *rows = call->operand[0];
            const float *scalar = call->operand[1];
            if (at >= exchange->rows || owner < 0 || owner >= exchange->ranks) {
                char place[256];
                return rk_fail(error, RK_ERROR,
                               "%s: a route comes from row %lld of %lld of member %lld: the route map is "
                               "damaged",
                               rk_shm_place_name(transport, place, sizeof place), (long long)at,
                               (long long)exchange->rows, (long long)owner);
            }
            if (owner != exchange->rank) {
                const char *data = (const char *)(rk_shm_published(transport, RK_GROUP_EXPERT_PARALLEL, owner) + 1);
                rows = published_rows(data, exchange->rows);
                scalar = scalar != NULL ? (const float *)(const void *)data : NULL;
            }
            row[k] = at >= 0 ? rows + at * exchange->row_bytes : NULL;
            if (scalar_out != NULL)
                scalar_out[route] = at >= 0 && scalar != NULL ? scalar[at] : 0;
        }
        sum_token(exchange, call->shape->type, row, residual != NULL ? residual + token * exchange->row_bytes : NULL,
                  out + token * exchange->row_bytes);
    }
    return RK_OK;
}

enum rk_status rk_shm_combine(struct rk_transport *transport, const struct rk_op_call *call, struct rk_error *error) {
    struct exchange exchange = exchange_of(transport, call);
    if (exchange.routes > RK_CPU_ROUTES_MAX)
        return rk_fail(error, RK_USAGE, "combine: %lld routes per token; this transport sums at most %d",
                       (long long)exchange.routes, RK_CPU_ROUTES_MAX);
    if (exchange.ranks > 1) {
        enum rk_status status = publish_rows(transport, &exchange, call, error);
        if (status == RK_OK)
            status = rk_shm_round(transport, RK_GROUP_EXPERT_PARALLEL, error);
        if (status != RK_OK)
            return status;
    }
    return sum_tokens(transport, &exchange, call, error);
}

#include "kernels/operands.h"
#include "base/random.h"
#include "kernels/bf16.h"
#include "kernels/operands_routing.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* What an operand is filled with, where its type and access do not say it. */
enum content {
    CONTENT_BY_ACCESS, /* floating point inputs and accumulators: values; outputs: poison */
    CONTENT_WEIGHT,    /* values scaled by 1/sqrt of the last dimension in use */
    CONTENT_GAIN,      /* 1 + value / 8 */
    CONTENT_ONE,       /* 1 */
    CONTENT_SIZE,      /* |value| / 8: second moments */
    CONTENT_LSE,       /* log(position + 1) + 1/2: that of scores with variance 1 */
    CONTENT_SHARE,     /* 1 / experts */
    CONTENT_TOKEN,     /* uniform in [0, V) */
    CONTENT_INDEX,
    CONTENT_REQUESTED, /* this rank's counts */
    CONTENT_REQUESTED_ALL,
    CONTENT_ROW,
    CONTENT_KEPT,
    CONTENT_ORDER,
    CONTENT_OFFSETS,
    CONTENT_STEP_STATE,
    CONTENT_COUNTER /* 0, 1, 2, ...: counters and FP64 sums that are added to */
};

static const uint8_t contents[RK_OP_KIND_COUNT][RK_OP_OPERANDS] = {
    [RK_OP_EMBEDDING_FORWARD] = {[0] = CONTENT_TOKEN},
    [RK_OP_EMBEDDING_BACKWARD] = {[0] = CONTENT_TOKEN},
    [RK_OP_RMSNORM_FORWARD] = {[1] = CONTENT_GAIN},
    [RK_OP_RMSNORM_BACKWARD] = {[2] = CONTENT_GAIN, [3] = CONTENT_ONE},
    [RK_OP_GEMM_FORWARD] = {[1] = CONTENT_WEIGHT},
    [RK_OP_GEMM_DGRAD] = {[1] = CONTENT_WEIGHT},
    [RK_OP_ROPE_FORWARD] = {[1] = CONTENT_GAIN, [2] = CONTENT_GAIN},
    [RK_OP_ROPE_BACKWARD] = {[2] = CONTENT_GAIN, [3] = CONTENT_GAIN},
    [RK_OP_ATTENTION_BACKWARD] = {[2] = CONTENT_LSE},
    [RK_OP_ROUTE_FORWARD] = {[6] = CONTENT_COUNTER},
    [RK_OP_ROUTE_BACKWARD] = {[1] = CONTENT_INDEX, [2] = CONTENT_REQUESTED, [3] = CONTENT_SHARE},
    [RK_OP_ROUTE_MAP] = {[0] = CONTENT_INDEX, [1] = CONTENT_REQUESTED_ALL, [6] = CONTENT_COUNTER},
    [RK_OP_COUNT_EXCHANGE] = {[0] = CONTENT_REQUESTED},
    [RK_OP_DISPATCH] = {[2] = CONTENT_INDEX, [3] = CONTENT_ROW, [4] = CONTENT_KEPT, [5] = CONTENT_ORDER},
    [RK_OP_COMBINE] = {[2] = CONTENT_INDEX, [3] = CONTENT_ROW, [4] = CONTENT_KEPT, [5] = CONTENT_ORDER},
    [RK_OP_GROUPED_GEMM_FORWARD] = {[1] = CONTENT_WEIGHT, [2] = CONTENT_OFFSETS},
    [RK_OP_GROUPED_GEMM_DGRAD] = {[1] = CONTENT_WEIGHT, [2] = CONTENT_OFFSETS},
    [RK_OP_GROUPED_GEMM_WGRAD] = {[2] = CONTENT_OFFSETS},
    [RK_OP_SWIGLU_FORWARD] = {[2] = CONTENT_OFFSETS},
    [RK_OP_SWIGLU_BACKWARD] = {[2] = CONTENT_OFFSETS},
    [RK_OP_CROSS_ENTROPY] = {[1] = CONTENT_TOKEN, [2] = CONTENT_COUNTER},
    [RK_OP_GRAD_NORM] = {[1] = CONTENT_COUNTER},
    [RK_OP_ADAMW] = {[3] = CONTENT_SIZE, [5] = CONTENT_STEP_STATE, [6] = CONTENT_ONE},
};

/* Optional operands that calls usually leave out. */
static bool left_out(const struct rk_op_shape *shape, int operand) {
    switch (shape->kind) {
    case RK_OP_GEMM_FORWARD:
    case RK_OP_GEMM_DGRAD:
        return operand == 2;
    case RK_OP_ROUTE_FORWARD:
        return operand == 1 && (shape->flags & RK_OP_FLAG_SIGMOID) == 0;
    case RK_OP_COMBINE:
        return operand == 1 || operand == 8;
    case RK_OP_ROPE_BACKWARD:
        return operand == 1 && (shape->flags & (RK_OP_FLAG_QK_NORM_HEAD | RK_OP_FLAG_QK_NORM_FULL)) == 0;
    case RK_OP_SWIGLU_FORWARD:
        return (operand == 1 || operand == 2) && shape->dim[2] == 0;
    case RK_OP_SWIGLU_BACKWARD:
        return (operand == 1 || operand == 2 || operand == 5) && shape->dim[2] == 0;
    default:
        return false;
    }
}

static void set_parameters(const struct rk_op_shape *shape, float *parameter) {
    switch (shape->kind) {
    case RK_OP_RMSNORM_FORWARD:
        parameter[0] = 1e-6f;
        break;
    case RK_OP_ROPE_FORWARD:
    case RK_OP_ROPE_BACKWARD:
        parameter[0] = 10000;
        parameter[1] = 1e-6f;
        break;
    case RK_OP_ROUTE_FORWARD:
        parameter[0] = 1;
        break;
    case RK_OP_ROUTE_BACKWARD:
        parameter[0] = 1;
        parameter[1] = 0.01f;
        parameter[2] = 0.001f;
        break;
    case RK_OP_CROSS_ENTROPY:
        parameter[0] = 1.0f / (float)(shape->dim[0] > 0 ? shape->dim[0] : 1);
        break;
    case RK_OP_ADAMW:
        parameter[0] = 0.1f;
        break;
    default:
        break;
    }
}

const char *rk_distribution_name(enum rk_distribution distribution) {
    static const char *const names[] = {
#define NAME(name, text) text,
        RK_DISTRIBUTION_TABLE(NAME)
#undef NAME
    };
    return names[distribution];
}

enum rk_distribution rk_distribution_from_name(const char *name) {
    int distribution = 0;
    while (distribution < RK_DISTRIBUTION_COUNT &&
           strcmp(name, rk_distribution_name((enum rk_distribution)distribution)) != 0) {
        distribution++;
    }
    return (enum rk_distribution)distribution;
}

enum { PERIOD = 65521 }; /* a prime, so that repetitions fall on other places of the rows */

/* One operand being filled in host memory. */
struct filling {
    const struct rk_operands *operands;
    const struct rk_routing_example *routing;
    int operand;
    enum content content;
    enum rk_distribution distribution;
    uint64_t seed; /* of this operand */
    float scale;
};

static float draw(const struct filling *filling, int64_t i) {
    switch (filling->distribution) {
    case RK_DISTRIBUTION_NORMAL:
        return (float)rk_random_normal(filling->seed, (uint64_t)i);
    case RK_DISTRIBUTION_UNIFORM:
        return (float)(2 * rk_random_uniform(filling->seed, (uint64_t)i) - 1);
    case RK_DISTRIBUTION_CONSTANT:
        return 1;
    default:
        return 0;
    }
}

static float value_at(const struct filling *filling, int64_t i) {
    const struct rk_op_shape *shape = &filling->operands->shape;
    switch (filling->content) {
    case CONTENT_GAIN:
        return 1 + draw(filling, i) / 8;
    case CONTENT_ONE:
        return 1;
    case CONTENT_SIZE:
        return fabsf(draw(filling, i)) / 8;
    case CONTENT_LSE: {
        int64_t position = i / shape->dim[2] % shape->dim[1];
        return logf((float)position + 1) + 0.5f;
    }
    case CONTENT_SHARE:
        return 1.0f / (float)shape->dim[1];
    case CONTENT_COUNTER:
        return (float)i;
    case CONTENT_STEP_STATE: { /* after 100 steps with beta 0.9 and 0.95, clipping at 1 */
        static const float state[8] = {1e-3f, 0.99997344f, 0.99407947f, 1, 0.9f, 0.95f, 1e-8f, 0};
        return state[i];
    }
    default:
        return draw(filling, i) * filling->scale;
    }
}

/* Values of one element type; the LSE depends on the place, so it does not repeat. */
static void fill_values(const struct filling *filling, enum rk_element element, int64_t count, void *host) {
    int64_t drawn = filling->content == CONTENT_LSE || count < PERIOD ? count : PERIOD;
    int64_t size = rk_element_bytes(element);
    for (int64_t i = 0; i < drawn; i++) {
        float value = value_at(filling, i);
        switch (element) {
        case RK_ELEMENT_BF16:
            ((uint16_t *)host)[i] = rk_bf16_round(value);
            break;
        case RK_ELEMENT_F64:
            ((double *)host)[i] = (double)value;
            break;
        case RK_ELEMENT_I64:
            ((int64_t *)host)[i] = (int64_t)value;
            break;
        default:
            ((float *)host)[i] = value;
        }
    }
    for (int64_t i = drawn; i < count; i += drawn) {
        int64_t some = count - i < drawn ? count - i : drawn;
        memcpy((char *)host + i * size, host, (size_t)(some * size));
    }
}

static void fill_tokens(const struct filling *filling, int64_t count, int32_t *host) {
    for (int64_t i = 0; i < count; i++) {
        host[i] = (int32_t)rk_random_below(filling->seed, (uint64_t)i, (uint64_t)filling->operands->shape.dim[1]);
    }
}

/* R rows, each to a random expert, sorted by expert. */
static void fill_offsets(const struct filling *filling, int64_t experts, int32_t *host) {
    memset(host, 0, (size_t)(experts + 1) * sizeof *host);
    for (int64_t row = 0; row < filling->operands->shape.dim[0] && experts > 0; row++) {
        host[1 + rk_random_below(filling->seed, (uint64_t)row, (uint64_t)experts)]++;
    }
    for (int64_t e = 0; e < experts; e++) {
        host[e + 1] += host[e];
    }
}

/* The integer array of the routing that an operand is a copy of, or NULL. */
static const int32_t *routing_array(const struct filling *filling) {
    const struct rk_routing_example *routing = filling->routing;
    switch (filling->content) {
    case CONTENT_INDEX:
        return routing->index;
    case CONTENT_REQUESTED:
        return routing->requested_all + filling->operands->call.group_rank * routing->experts;
    case CONTENT_REQUESTED_ALL:
        return routing->requested_all;
    case CONTENT_ROW:
        return routing->row;
    case CONTENT_KEPT:
        return routing->kept;
    case CONTENT_ORDER:
        return routing->order;
    default:
        return NULL;
    }
}

/* Makes the rows past the valid prefix NaN. */
static void poison_tail(const struct rk_operands *operands, int operand, char *host) {
    bool exchange = rk_op_family(operands->shape.kind) == RK_OP_FAMILY_EXPERT_EXCHANGE;
    int64_t capacity = operands->shape.dim[exchange ? 5 : 0];
    if (operands->valid_rows >= 0 && capacity > 0 && rk_op_operand_is_prefix(operands->shape.kind, operand)) {
        int64_t valid = operands->bytes[operand] / capacity * operands->valid_rows;
        memset(host + valid, 0xFF, (size_t)(operands->bytes[operand] - valid));
    }
}

static void fill_host(const struct filling *filling, char *host) {
    const struct rk_operands *operands = filling->operands;
    const struct rk_op_shape *shape = &operands->shape;
    int64_t bytes = operands->bytes[filling->operand];
    enum rk_element element = rk_op_operand_element(shape, filling->operand);
    const int32_t *integers = routing_array(filling);
    if (integers != NULL) {
        memcpy(host, integers, (size_t)bytes);
    } else if (filling->content == CONTENT_TOKEN) {
        fill_tokens(filling, bytes / 4, (int32_t *)(void *)host);
    } else if (filling->content == CONTENT_OFFSETS) {
        fill_offsets(filling, bytes / 4 - 1, (int32_t *)(void *)host);
    } else if (rk_op_operand_access(shape->kind, filling->operand) == RK_ACCESS_WRITE) {
        memset(host, 0xFF, (size_t)bytes);
    } else if (element == RK_ELEMENT_BYTE) { /* messages and copies: values as FP32 as far as they go whole */
        memset(host, 0, (size_t)bytes);
        fill_values(filling, RK_ELEMENT_F32, bytes / 4, host);
    } else {
        fill_values(filling, element, bytes / rk_element_bytes(element), host);
    }
    poison_tail(operands, filling->operand, host);
}

enum rk_status rk_operands_write(const struct rk_operands *operands, int operand, const void *host,
                                 struct rk_error *error) {
    int64_t bytes = operands->bytes[operand];
    if (operands->in_host_memory[operand]) {
        memcpy(operands->memory[operand], host, (size_t)bytes);
        return RK_OK;
    }
    enum rk_status status =
        operands->backend->copy(operands->stream, operands->memory[operand], host, bytes, RK_COPY_H2D, error);
    return status != RK_OK ? status : operands->backend->stream_synchronize(operands->stream, 600, error);
}

enum rk_status rk_operands_read(const struct rk_operands *operands, int operand, void *host, struct rk_error *error) {
    int64_t bytes = operands->bytes[operand];
    if (operands->in_host_memory[operand]) {
        memcpy(host, operands->memory[operand], (size_t)bytes);
        return RK_OK;
    }
    enum rk_status status =
        operands->backend->copy(operands->stream, host, operands->memory[operand], bytes, RK_COPY_D2H, error);
    return status != RK_OK ? status : operands->backend->stream_synchronize(operands->stream, 600, error);
}

static enum rk_status allocate(struct rk_operands *operands, int operand, struct rk_error *error) {
    const struct rk_backend *backend = operands->backend;
    enum rk_op_kind kind = operands->shape.kind;
    bool host = (kind == RK_OP_COPY_D2H && operand == 1) || (kind == RK_OP_COPY_H2D && operand == 0);
    operands->in_host_memory[operand] = host;
    return (host ? backend->host_allocate : backend->memory_allocate)(operands->device, operands->bytes[operand],
                                                                      &operands->memory[operand], error);
}

static enum rk_status make_operand(struct rk_operands *operands, struct filling *filling, struct rk_error *error) {
    int operand = filling->operand;
    enum rk_op_kind kind = operands->shape.kind;
    bool workspace = operand == rk_op_workspace_operand(kind);
    operands->bytes[operand] = workspace ? rk_op_workspace_bytes(&operands->shape, operands->backend->kind)
                                         : rk_op_operand_bytes(&operands->shape, operand);
    if (operands->bytes[operand] == 0 && rk_op_operand_optional(kind, operand)) {
        return RK_OK; /* gains without a norm, workspaces that this back end does not need */
    }
    enum rk_status status = allocate(operands, operand, error);
    if (status != RK_OK) {
        return status;
    }
    char *host = malloc((size_t)operands->bytes[operand] + 8);
    if (host == NULL) {
        return rk_fail(error, RK_ERROR, "%s: %" PRId64 " bytes for operand %d are not to be had", rk_op_name(kind),
                       operands->bytes[operand], operand);
    }
    fill_host(filling, host);
    status = rk_operands_write(operands, operand, host, error);
    int64_t experts = operands->bytes[operand] / (int64_t)sizeof(int32_t) - 1;
    if (filling->content == CONTENT_OFFSETS && experts > 0) {
        operands->valid_rows = ((const int32_t *)(const void *)host)[experts];
    }
    free(host);
    operands->call.operand[operand] = left_out(&operands->shape, operand) ? NULL : operands->memory[operand];
    return status;
}

/* The routing that a kind's integer operands come from; ops without any get an empty one. */
static enum rk_status make_routing(const struct rk_op_shape *shape, int32_t group_rank, uint64_t seed,
                                   struct rk_routing_example *routing, struct rk_error *error) {
    const int64_t *dim = shape->dim;
    switch (shape->kind) {
    case RK_OP_ROUTE_BACKWARD:
        return rk_routing_example_make(dim[0], dim[1], dim[2], 1, dim[0] * dim[2], 0, seed, routing, error);
    case RK_OP_ROUTE_MAP:
        return rk_routing_example_make(dim[0], dim[1], dim[2], dim[3], dim[4], group_rank, seed, routing, error);
    case RK_OP_COUNT_EXCHANGE: /* a route for each expert on average */
        return rk_routing_example_make(dim[0], dim[0], 1, dim[1], dim[0], group_rank, seed, routing, error);
    case RK_OP_DISPATCH:
    case RK_OP_COMBINE:
        return rk_routing_example_make(dim[0], dim[3], dim[2], dim[4], dim[5], group_rank, seed, routing, error);
    default:
        return rk_routing_example_make(0, 1, 1, 1, 0, 0, seed, routing, error);
    }
}

/* The inner dimension of a product, which scales its weight. */
static float weight_scale(const struct rk_op_shape *shape) {
    bool grouped = rk_op_family(shape->kind) == RK_OP_FAMILY_GROUPED_GEMM;
    bool dgrad = shape->kind == RK_OP_GEMM_DGRAD || shape->kind == RK_OP_GROUPED_GEMM_DGRAD;
    int64_t inner = shape->dim[(grouped ? 3 : 2) - (dgrad ? 1 : 0)];
    return 1.0f / sqrtf((float)(inner > 0 ? inner : 1));
}

enum rk_status rk_operands_make(const struct rk_backend *backend, struct rk_device *device,
                                const struct rk_op_shape *shape, int32_t group_rank, enum rk_distribution distribution,
                                uint64_t seed, struct rk_operands *operands, struct rk_error *error) {
    struct rk_routing_example routing;
    memset(operands, 0, sizeof *operands);
    operands->shape = *shape;
    operands->call.shape = &operands->shape;
    operands->call.serial = seed;
    operands->call.group_rank = group_rank;
    operands->valid_rows = -1;
    operands->backend = backend;
    operands->device = device;
    set_parameters(shape, operands->call.parameter);
    enum rk_status status = make_routing(shape, group_rank, seed, &routing, error);
    if (status != RK_OK) {
        return status;
    }
    status = backend->stream_create(device, false, &operands->stream, error);
    bool receives = shape->kind == RK_OP_DISPATCH || shape->kind == RK_OP_COMBINE;
    if (receives) {
        operands->valid_rows = routing.offsets[routing.experts / routing.ranks];
    }
    for (int operand = 0; operand < rk_op_operand_count(shape->kind) && status == RK_OK; operand++) {
        enum content content = (enum content)contents[shape->kind][operand];
        struct filling filling = {
            .operands = operands,
            .routing = &routing,
            .operand = operand,
            .content = content,
            .distribution = distribution,
            .seed = rk_random_stream(seed, rk_op_operand_name(shape->kind, operand),
                                     (uint64_t)group_rank * RK_OP_OPERANDS + (uint64_t)operand),
            .scale = content == CONTENT_WEIGHT ? weight_scale(shape) : 1,
        };
        status = make_operand(operands, &filling, error);
    }
    rk_routing_example_free(&routing);
    if (status != RK_OK) {
        rk_operands_free(operands);
    }
    return status;
}

void rk_operands_free(struct rk_operands *operands) {
    for (int operand = 0; operand < RK_OP_OPERANDS; operand++) {
        if (operands->memory[operand] != NULL) {
            (operands->in_host_memory[operand] ? operands->backend->host_free : operands->backend->memory_free)(
                operands->device, operands->memory[operand]);
        }
        operands->memory[operand] = NULL;
        operands->call.operand[operand] = NULL;
    }
    if (operands->stream != NULL) {
        operands->backend->stream_destroy(operands->stream);
        operands->stream = NULL;
    }
}

enum rk_status rk_operands_set_offsets(struct rk_operands *operands, const int32_t *offsets, struct rk_error *error) {
    enum rk_op_kind kind = operands->shape.kind;
    enum rk_status status = RK_OK;
    for (int operand = 0; operand < rk_op_operand_count(kind) && status == RK_OK; operand++) {
        if (contents[kind][operand] == CONTENT_OFFSETS) {
            operands->valid_rows = offsets[operands->bytes[operand] / 4 - 1];
            status = rk_operands_write(operands, operand, offsets, error);
        }
    }
    for (int operand = 0; operand < rk_op_operand_count(kind) && status == RK_OK; operand++) {
        if (!rk_op_operand_is_prefix(kind, operand) || operands->memory[operand] == NULL) {
            continue;
        }
        char *host = malloc((size_t)operands->bytes[operand] + 1);
        if (host == NULL) {
            return rk_fail(error, RK_ERROR, "%s: out of memory", rk_op_name(kind));
        }
        status = rk_operands_read(operands, operand, host, error);
        if (status == RK_OK) {
            poison_tail(operands, operand, host);
            status = rk_operands_write(operands, operand, host, error);
        }
        free(host);
    }
    return status;
}

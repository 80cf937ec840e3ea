/* The router: scores, the choice of K experts, and the gradients of weights, balance loss and z loss. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exponential.h"
#include "kernels/route_random.h"

#include <inttypes.h>

struct router {
    int64_t tokens, experts, top_k;
    bool sigmoid, normalise, uniform, random;
    float scaling;
    uint64_t serial;
};

static enum rk_status router_open(struct router *router, const struct rk_op_call *call, struct rk_error *error) {
    const struct rk_op_shape *shape = call->shape;
    *router = (struct router){
        .tokens = shape->dim[0],
        .experts = shape->dim[1],
        .top_k = shape->dim[2],
        .sigmoid = (shape->flags & RK_OP_FLAG_SIGMOID) != 0,
        .normalise = (shape->flags & RK_OP_FLAG_NORMALIZE_TOP_K) != 0,
        .uniform = (shape->flags & RK_OP_FLAG_ROUTE_UNIFORM) != 0,
        .random = (shape->flags & RK_OP_FLAG_ROUTE_RANDOM) != 0,
        .scaling = call->parameter[0],
        .serial = call->serial,
    };
    if (router->experts < 1 || router->experts > RK_CPU_EXPERTS_MAX || router->top_k < 1 ||
        router->top_k > router->experts || router->top_k > RK_CPU_ROUTES_MAX) {
        return rk_fail(error, RK_USAGE,
                       "%s: %" PRId64 " routes to %" PRId64 " experts; 1 to %d routes, at most %d experts, "
                       "and no more routes than experts",
                       rk_op_name(shape->kind), router->top_k, router->experts, RK_CPU_ROUTES_MAX, RK_CPU_EXPERTS_MAX);
    }
    return RK_OK;
}

/* Softmax probabilities of a token, and the logarithm of the softmax sum. */
static RK_CPU_CLONES float probabilities_of(const struct router *router, const float *logits, float *probability) {
    float largest = rk_cpu_largest(logits, router->experts);
    for (int64_t e = 0; e < router->experts; e++) {
        probability[e] = rk_cpu_exp(logits[e] - largest);
    }
    double sum = rk_cpu_sum(probability, router->experts);
    for (int64_t e = 0; e < router->experts; e++) {
        probability[e] = (float)((double)probability[e] / sum);
    }
    return (float)((double)largest + log(sum));
}

static RK_CPU_CLONES void sigmoids_of(const struct router *router, const float *logits, float *score) {
    for (int64_t e = 0; e < router->experts; e++) {
        score[e] = rk_cpu_sigmoid(logits[e]);
    }
}

/* The K largest of score + bias in descending order, ties to the lower expert, a NaN as -infinity. */
static void choose_largest(const struct router *router, const float *score, const float *bias, int32_t *chosen) {
    float key[RK_CPU_EXPERTS_MAX];
    bool taken[RK_CPU_EXPERTS_MAX];
    for (int64_t e = 0; e < router->experts; e++) {
        float value = bias != NULL ? score[e] + bias[e] : score[e];
        key[e] = isnan(value) ? -HUGE_VALF : value;
        taken[e] = false;
    }
    for (int64_t j = 0; j < router->top_k; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < router->experts; e++) {
            if (!taken[e] && (best < 0 || key[e] > key[best])) {
                best = e;
            }
        }
        taken[best] = true;
        chosen[j] = (int32_t)best;
    }
}

static void choose(const struct router *router, int64_t token, const float *score, const float *bias, int32_t *chosen) {
    if (router->uniform) {
        for (int64_t j = 0; j < router->top_k; j++) {
            chosen[j] = (int32_t)((token * router->top_k + j) % router->experts);
        }
    } else if (router->random) {
        rk_route_random_experts(router->serial, token, (int32_t)router->top_k, (int32_t)router->experts,
                                (int32_t)router->top_k, chosen);
    } else {
        choose_largest(router, score, bias, chosen);
    }
}

/* Weights of the chosen experts: their scores, divided by their sum if asked, times the scaling factor. */
static void weigh(const struct router *router, const float *score, const int32_t *chosen, float *weight) {
    float sum = 0;
    for (int64_t j = 0; j < router->top_k; j++) {
        sum += score[chosen[j]];
    }
    float factor = router->normalise ? router->scaling / sum : router->scaling;
    for (int64_t j = 0; j < router->top_k; j++) {
        weight[j] = score[chosen[j]] * factor;
    }
}

/* Σ over experts of f_e · P_e, times N. */
static double balance(const struct router *router, const int32_t *requested, const double *mean) {
    double sum = 0;
    for (int64_t e = 0; e < router->experts; e++) {
        sum += (double)requested[e] / (double)(router->tokens * router->top_k) * mean[e];
    }
    return sum * (double)router->experts;
}

enum rk_status rk_cpu_ROUTE_FORWARD(struct rk_stream *stream, const struct rk_op_call *call, struct rk_error *error) {
    struct router router;
    enum rk_status status = router_open(&router, call, error);
    if (status != RK_OK) {
        return status;
    }
    stream->device->counters.launches++;
    int32_t *requested = call->operand[4];
    float *score_mean = call->operand[5];
    double *sums = call->operand[6];
    float score[RK_CPU_EXPERTS_MAX];
    double mean[RK_CPU_EXPERTS_MAX] = {0}, squares = 0;
    memset(requested, 0, (size_t)router.experts * sizeof *requested);
    for (int64_t t = 0; t < router.tokens; t++) {
        const float *logits = (const float *)call->operand[0] + t * router.experts;
        int32_t *chosen = (int32_t *)call->operand[2] + t * router.top_k;
        float lse = probabilities_of(&router, logits, score);
        double share = 1;
        if (router.sigmoid) {
            sigmoids_of(&router, logits, score);
            share = 1 / rk_cpu_sum(score, router.experts);
        }
        choose(&router, t, score, call->operand[1], chosen);
        weigh(&router, score, chosen, (float *)call->operand[3] + t * router.top_k);
        for (int64_t j = 0; j < router.top_k; j++) {
            requested[chosen[j]]++;
        }
        for (int64_t e = 0; e < router.experts; e++) {
            mean[e] += (double)score[e] * share;
        }
        squares += (double)lse * (double)lse;
    }
    double tokens = router.tokens > 0 ? (double)router.tokens : 1;
    for (int64_t e = 0; e < router.experts; e++) {
        mean[e] /= tokens;
        score_mean[e] = (float)mean[e];
    }
    if (sums != NULL && router.tokens > 0) {
        sums[0] += balance(&router, requested, mean);
        sums[1] += squares / tokens;
    }
    return RK_OK;
}

/* Adds the gradient of the kept weights by the scores: w_j = c·s_j, or c·s_j / S with S the sum of the chosen scores,
 * where dL/ds_j = c·(dw_j - Σ_i dw_i s_i / S) / S. */
static void add_weight_gradient(const struct router *router, const float *score, const int32_t *chosen,
                                const float *dweight, float *dscore) {
    float sum = 1, dot = 0;
    if (router->normalise) {
        sum = 0;
        for (int64_t j = 0; j < router->top_k; j++) {
            sum += score[chosen[j]];
            dot += dweight[j] * score[chosen[j]];
        }
        dot /= sum;
    }
    for (int64_t j = 0; j < router->top_k; j++) {
        dscore[chosen[j]] += router->scaling * (dweight[j] - dot) / sum;
    }
}

/* One token. dshare: gradient of the balance loss by the token's share of each expert (its score, over the scores' sum
 * with sigmoid). z: gradient of the z loss by lse². */
static RK_CPU_CLONES void backward_token(const struct router *router, const float *logits, const int32_t *chosen,
                                         const float *dweight, const float *dshare, float z, float *dlogits) {
    float probability[RK_CPU_EXPERTS_MAX], sigmoid[RK_CPU_EXPERTS_MAX], dscore[RK_CPU_EXPERTS_MAX];
    float lse = probabilities_of(router, logits, probability);
    const float *score = probability;
    memcpy(dscore, dshare, (size_t)router->experts * sizeof *dscore);
    if (router->sigmoid) {
        sigmoids_of(router, logits, sigmoid);
        score = sigmoid;
        float sum = (float)rk_cpu_sum(sigmoid, router->experts);
        float mean = (float)(rk_cpu_dot(dshare, sigmoid, router->experts) / (double)sum);
        for (int64_t e = 0; e < router->experts; e++) {
            dscore[e] = (dshare[e] - mean) / sum;
        }
    }
    add_weight_gradient(router, score, chosen, dweight, dscore);
    float inner = router->sigmoid ? 0 : (float)rk_cpu_dot(dscore, probability, router->experts);
    for (int64_t e = 0; e < router->experts; e++) {
        float slope = router->sigmoid ? score[e] * (1.0f - score[e]) * dscore[e] : score[e] * (dscore[e] - inner);
        dlogits[e] = slope + z * 2.0f * lse * probability[e];
    }
}

enum rk_status rk_cpu_ROUTE_BACKWARD(struct rk_stream *stream, const struct rk_op_call *call, struct rk_error *error) {
    struct router router;
    enum rk_status status = router_open(&router, call, error);
    if (status != RK_OK) {
        return status;
    }
    stream->device->counters.launches++;
    const int32_t *requested = call->operand[2];
    float dshare[RK_CPU_EXPERTS_MAX];
    double tokens = (double)router.tokens;
    for (int64_t e = 0; e < router.experts && router.tokens > 0; e++) {
        double fraction = (double)requested[e] / (tokens * (double)router.top_k);
        dshare[e] = (float)((double)call->parameter[1] * (double)router.experts * fraction / tokens);
    }
    float z = router.tokens > 0 ? (float)((double)call->parameter[2] / tokens) : 0;
    for (int64_t t = 0; t < router.tokens; t++) {
        backward_token(&router, (const float *)call->operand[0] + t * router.experts,
                       (const int32_t *)call->operand[1] + t * router.top_k,
                       (const float *)call->operand[4] + t * router.top_k, dshare, z,
                       (float *)call->operand[5] + t * router.experts);
    }
    return RK_OK;
}

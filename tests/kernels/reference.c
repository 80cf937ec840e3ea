#include "reference.h"
#include "kernels/route_random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double *values(int64_t count) {
    double *made = calloc((size_t)(count > 0 ? count : 1), sizeof *made);
    if (made == NULL) {
        abort();
    }
    return made;
}

static double dot(const double *left, const double *right, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += left[i] * right[i];
    }
    return sum;
}

/* y[m,n] = x[m,k] · w[n,k]ᵀ */
static void product(int64_t m, int64_t n, int64_t k, const double *x, const double *w, double *y) {
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            y[i * n + j] = dot(x + i * k, w + j * k, k);
        }
    }
}

static void grouped_product(const struct rk_op_shape *shape, const double *offsets, const double *x, const double *w,
                            double *y) {
    int64_t n = shape->dim[2], k = shape->dim[3];
    for (int64_t e = 0; e < shape->dim[1]; e++) {
        int64_t first = (int64_t)offsets[e], rows = (int64_t)offsets[e + 1] - first;
        product(rows, n, k, x + first * k, w + e * n * k, y + first * n);
    }
}

static void rmsnorm(int64_t rows, int64_t width, double epsilon, const double *x, const double *gain, double *y,
                    double *rstd) {
    for (int64_t row = 0; row < rows; row++) {
        const double *from = x + row * width;
        rstd[row] = 1 / sqrt(dot(from, from, width) / (double)width + epsilon);
        for (int64_t i = 0; i < width; i++) {
            y[row * width + i] = from[i] * rstd[row] * gain[i];
        }
    }
}

static void rotate_head(int64_t width, int64_t position, double theta, const double *x, double *out) {
    for (int64_t i = 0; i < width / 2; i++) {
        double angle = (double)position * pow(theta, -2 * (double)i / (double)width);
        out[i] = x[i] * cos(angle) - x[i + width / 2] * sin(angle);
        out[i + width / 2] = x[i + width / 2] * cos(angle) + x[i] * sin(angle);
    }
}

/* One token's q heads or k heads. */
static void rotate_part(const struct rk_reference *r, int64_t position, int64_t heads, const double *x,
                        const double *gain, double *out) {
    int64_t width = r->shape->dim[4], all = heads * width;
    bool full = (r->shape->flags & RK_OP_FLAG_QK_NORM_FULL) != 0;
    bool norm = full || (r->shape->flags & RK_OP_FLAG_QK_NORM_HEAD) != 0;
    double epsilon = (double)r->parameter[1];
    double *normal = values(width);
    for (int64_t head = 0; head < heads; head++) {
        const double *from = x + head * width;
        double mean = full ? dot(x, x, all) / (double)all : dot(from, from, width) / (double)width;
        for (int64_t i = 0; i < width; i++) {
            double scale = norm ? gain[full ? head * width + i : i] / sqrt(mean + epsilon) : 1;
            normal[i] = from[i] * scale;
        }
        rotate_head(width, position, (double)r->parameter[0], normal, out + head * width);
    }
    free(normal);
}

static void rope(const struct rk_reference *r, const double *qkv, const double *q_gain, const double *k_gain,
                 double *out) {
    const int64_t *dim = r->shape->dim;
    int64_t q = dim[2] * dim[4], k = dim[3] * dim[4], row = q + 2 * k;
    for (int64_t t = 0; t < dim[0]; t++) {
        const double *from = qkv + t * row;
        double *to = out + t * row;
        rotate_part(r, t % dim[1], dim[2], from, q_gain, to);
        rotate_part(r, t % dim[1], dim[3], from + q, k_gain, to + q);
        memcpy(to + q + k, from + q + k, (size_t)k * sizeof *to);
    }
}

static void attention(const struct rk_op_shape *shape, const double *qkv, double *context, double *lse) {
    int64_t tokens = shape->dim[0], sequence = shape->dim[1], heads = shape->dim[2], kv_heads = shape->dim[3];
    int64_t width = shape->dim[4], row = (heads + 2 * kv_heads) * width;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t start = t - t % sequence;
        for (int64_t head = 0; head < heads; head++) {
            int64_t k_at = (heads + head / (heads / kv_heads)) * width, v_at = k_at + kv_heads * width;
            double sum = 0, *out = context + (t * heads + head) * width;
            memset(out, 0, (size_t)width * sizeof *out);
            for (int64_t s = start; s <= t; s++) { /* small scores: no shift is needed in FP64 */
                double score = dot(qkv + t * row + head * width, qkv + s * row + k_at, width) / sqrt((double)width);
                double power = exp(score);
                sum += power;
                for (int64_t i = 0; i < width; i++) {
                    out[i] += power * qkv[s * row + v_at + i];
                }
            }
            for (int64_t i = 0; i < width; i++) {
                out[i] /= sum;
            }
            lse[t * heads + head] = log(sum);
        }
    }
}

static void swiglu(int64_t rows, int64_t width, const double *gate_up, const double *weight, double *out) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < width; i++) {
            double gate = gate_up[row * 2 * width + i], up = gate_up[row * 2 * width + width + i];
            out[row * width + i] = (weight != NULL ? weight[row] : 1) * gate / (1 + exp(-gate)) * up;
        }
    }
}

static double log_sum(int64_t count, const double *logits) {
    double largest = -HUGE_VAL, sum = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, logits[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        sum += exp(logits[i] - largest);
    }
    return largest + log(sum);
}

/* Scores of a token; returns the logarithm of the softmax sum. */
static double router_scores(const struct rk_op_shape *shape, const double *logits, double *score) {
    int64_t experts = shape->dim[1];
    double lse = log_sum(experts, logits);
    for (int64_t e = 0; e < experts; e++) {
        bool sigmoid = (shape->flags & RK_OP_FLAG_SIGMOID) != 0;
        score[e] = sigmoid ? 1 / (1 + exp(-logits[e])) : exp(logits[e] - lse);
    }
    return lse;
}

static void router_choose(const struct rk_reference *r, int64_t t, const double *score, const double *bias,
                          double *index) {
    int64_t experts = r->shape->dim[1], top_k = r->shape->dim[2];
    int32_t drawn[RK_ROUTES_MAX];
    rk_route_random_experts(r->serial, t, (int32_t)top_k, (int32_t)experts, (int32_t)top_k, drawn);
    double *key = values(experts);
    for (int64_t e = 0; e < experts; e++) {
        key[e] = score[e] + (bias != NULL ? bias[e] : 0);
    }
    for (int64_t j = 0; j < top_k; j++) {
        int64_t best = 0;
        for (int64_t e = 1; e < experts; e++) {
            best = key[e] > key[best] ? e : best;
        }
        key[best] = -HUGE_VAL;
        index[j] = (double)best;
        if ((r->shape->flags & RK_OP_FLAG_ROUTE_UNIFORM) != 0) {
            index[j] = (double)((t * top_k + j) % experts);
        } else if ((r->shape->flags & RK_OP_FLAG_ROUTE_RANDOM) != 0) {
            index[j] = (double)drawn[j];
        }
    }
    free(key);
}

static void router_weights(const struct rk_reference *r, const double *score, const double *index, double *weight) {
    double sum = 0;
    for (int64_t j = 0; j < r->shape->dim[2]; j++) {
        sum += score[(int64_t)index[j]];
    }
    bool normalise = (r->shape->flags & RK_OP_FLAG_NORMALIZE_TOP_K) != 0;
    for (int64_t j = 0; j < r->shape->dim[2]; j++) {
        weight[j] = score[(int64_t)index[j]] * (double)r->parameter[0] / (normalise ? sum : 1);
    }
}

/* Adds a token's shares, over T, to the mean scores. */
static void add_shares(const struct rk_op_shape *shape, const double *score, double *mean) {
    double sum = 0;
    for (int64_t e = 0; e < shape->dim[1]; e++) {
        sum += score[e];
    }
    for (int64_t e = 0; e < shape->dim[1]; e++) {
        mean[e] += score[e] / ((shape->flags & RK_OP_FLAG_SIGMOID) != 0 ? sum : 1) / (double)shape->dim[0];
    }
}

static double balance_loss(const struct rk_op_shape *shape, const double *requested, const double *mean) {
    return (double)shape->dim[1] * dot(requested, mean, shape->dim[1]) / (double)(shape->dim[0] * shape->dim[2]);
}

static void route(const struct rk_reference *r) {
    int64_t tokens = r->shape->dim[0], experts = r->shape->dim[1], top_k = r->shape->dim[2];
    double *score = values(experts), squares = 0;
    memset(r->operand[4], 0, (size_t)experts * sizeof(double));
    memset(r->operand[5], 0, (size_t)experts * sizeof(double));
    for (int64_t t = 0; t < tokens; t++) {
        double lse = router_scores(r->shape, r->operand[0] + t * experts, score);
        double *index = r->operand[2] + t * top_k;
        router_choose(r, t, score, r->operand[1], index);
        router_weights(r, score, index, r->operand[3] + t * top_k);
        for (int64_t j = 0; j < top_k; j++) {
            r->operand[4][(int64_t)index[j]]++;
        }
        add_shares(r->shape, score, r->operand[5]);
        squares += lse * lse / (double)tokens;
    }
    if (r->operand[6] != NULL && tokens > 0) {
        r->operand[6][0] += balance_loss(r->shape, r->operand[4], r->operand[5]);
        r->operand[6][1] += squares;
    }
    free(score);
}

/* As the contract puts it: a list of all (expert, source, route) on each destination, cut at R. */
static void route_map(const struct rk_reference *r) {
    int64_t routes = r->shape->dim[0] * r->shape->dim[2], experts = r->shape->dim[1], ranks = r->shape->dim[3];
    int64_t capacity = r->shape->dim[4], held = experts / ranks, place = 0;
    double *row = r->operand[2], *kept = r->operand[3], *load = r->operand[6];
    for (int64_t i = 0; i < ranks * experts; i++) {
        kept[i] = 0;
    }
    for (int64_t e = 0; e < experts; e++) {
        for (int64_t i = 0; i < routes; i++) {
            if ((int64_t)r->operand[0][i] == e) {
                r->operand[5][place++] = (double)i;
            }
        }
    }
    for (int64_t destination = 0; destination < ranks; destination++) {
        int64_t next = 0;
        for (int64_t e = destination * held; e < (destination + 1) * held; e++) {
            if (destination == r->group_rank) {
                r->operand[4][e - destination * held] = (double)next;
            }
            for (int64_t source = 0; source < ranks; source++) {
                int64_t route_number = 0;
                for (int64_t i = 0; i < (int64_t)r->operand[1][source * experts + e]; i++) {
                    bool fits = next < capacity;
                    kept[source * experts + e] += fits;
                    while (source == r->group_rank && (int64_t)r->operand[0][route_number] != e) {
                        route_number++;
                    }
                    if (source == r->group_rank) {
                        row[route_number++] = fits ? (double)next : -1;
                    }
                    next += fits;
                }
            }
        }
        if (destination == r->group_rank) {
            r->operand[4][held] = (double)next;
        }
    }
    for (int64_t e = 0; e < experts && load != NULL; e++) {
        double asked = r->operand[1][r->group_rank * experts + e], got = kept[r->group_rank * experts + e];
        load[e] += asked;
        load[experts + e] += got;
        load[2 * experts] += asked - got;
    }
}

static void adamw(const struct rk_reference *r) {
    const double *state = r->operand[5];
    double norm = sqrt(r->operand[6][0]), clip = state[3] > 0 ? fmin(1, state[3] / (norm + 1e-6)) : 1;
    for (int64_t i = 0; i < r->shape->dim[0]; i++) {
        double g = r->operand[0][i] * clip;
        double *master = &r->operand[1][i], *first = &r->operand[2][i], *second = &r->operand[3][i];
        *first = state[4] * *first + (1 - state[4]) * g;
        *second = state[5] * *second + (1 - state[5]) * g * g;
        double step = *first / state[1] / (sqrt(*second / state[2]) + state[6]);
        *master -= state[0] * (double)r->parameter[0] * *master + state[0] * step;
        r->operand[4][i] = *master;
    }
}

/* Rows of a SwiGLU that count. */
static int64_t swiglu_rows(const struct rk_reference *r) {
    return r->operand[2] != NULL ? (int64_t)r->operand[2][r->shape->dim[2]] : r->shape->dim[0];
}

bool rk_reference_is_forward(enum rk_op_kind kind) {
    switch (kind) {
    case RK_OP_ZERO:
    case RK_OP_EMBEDDING_FORWARD:
    case RK_OP_RMSNORM_FORWARD:
    case RK_OP_GEMM_FORWARD:
    case RK_OP_ROPE_FORWARD:
    case RK_OP_ATTENTION_FORWARD:
    case RK_OP_ROUTE_FORWARD:
    case RK_OP_ROUTE_MAP:
    case RK_OP_GROUPED_GEMM_FORWARD:
    case RK_OP_SWIGLU_FORWARD:
    case RK_OP_GRAD_NORM:
    case RK_OP_ADAMW:
        return true;
    default:
        return false;
    }
}

void rk_reference_run(const struct rk_reference *r) {
    const int64_t *dim = r->shape->dim;
    double *const *o = r->operand;
    switch (r->shape->kind) {
    case RK_OP_ZERO:
        memset(o[0], 0, (size_t)dim[0] * sizeof(double));
        break;
    case RK_OP_EMBEDDING_FORWARD:
        for (int64_t t = 0; t < dim[0]; t++) {
            memcpy(o[2] + t * dim[2], o[1] + (int64_t)o[0][t] * dim[2], (size_t)dim[2] * sizeof(double));
        }
        break;
    case RK_OP_RMSNORM_FORWARD:
        rmsnorm(dim[0], dim[1], (double)r->parameter[0], o[0], o[1], o[2], o[3]);
        break;
    case RK_OP_GEMM_FORWARD: {
        double *sum = values(dim[0] * dim[1]);
        product(dim[0], dim[1], dim[2], o[0], o[1], sum);
        for (int64_t i = 0; i < dim[0] * dim[1]; i++) {
            o[3][i] = sum[i] + (o[2] != NULL ? o[2][i] : 0);
        }
        free(sum);
        break;
    }
    case RK_OP_ROPE_FORWARD:
        rope(r, o[0], o[1], o[2], o[3]);
        break;
    case RK_OP_ATTENTION_FORWARD:
        attention(r->shape, o[0], o[1], o[2]);
        break;
    case RK_OP_ROUTE_FORWARD:
        route(r);
        break;
    case RK_OP_ROUTE_MAP:
        route_map(r);
        break;
    case RK_OP_GROUPED_GEMM_FORWARD:
        grouped_product(r->shape, o[2], o[0], o[1], o[3]);
        break;
    case RK_OP_SWIGLU_FORWARD:
        swiglu(swiglu_rows(r), dim[1], o[0], o[1], o[3]);
        break;
    case RK_OP_GRAD_NORM:
        o[1][0] += dot(o[0], o[0], dim[0]);
        break;
    case RK_OP_ADAMW:
        adamw(r);
        break;
    default:
        break;
    }
}

void rk_reference_prepare(const struct rk_reference *r) {
    const int64_t *dim = r->shape->dim;
    if (r->shape->kind == RK_OP_RMSNORM_BACKWARD) {
        double *unused = values(dim[0] * dim[1]);
        rmsnorm(dim[0], dim[1], 0, r->operand[1], r->operand[2], unused, r->operand[3]);
        free(unused);
    } else if (r->shape->kind == RK_OP_ATTENTION_BACKWARD) {
        attention(r->shape, r->operand[0], r->operand[1], r->operand[2]);
    }
}

/* The gradient operands: which input each is the gradient of, or NONE when the op does not have that input (a product
 * is linear, so any value serves). */
enum { NOT_AN_OPERAND = -1 };
static const struct gradient {
    enum rk_op_kind kind;
    int operand, variable;
} gradients[] = {
    {RK_OP_EMBEDDING_BACKWARD, 2, NOT_AN_OPERAND},
    {RK_OP_RMSNORM_BACKWARD, 5, 1},
    {RK_OP_RMSNORM_BACKWARD, 6, 2},
    {RK_OP_GEMM_DGRAD, 3, NOT_AN_OPERAND},
    {RK_OP_GEMM_WGRAD, 2, NOT_AN_OPERAND},
    {RK_OP_ROPE_BACKWARD, 4, 1},
    {RK_OP_ROPE_BACKWARD, 5, 2},
    {RK_OP_ROPE_BACKWARD, 6, 3},
    {RK_OP_ATTENTION_BACKWARD, 4, 0},
    {RK_OP_ROUTE_BACKWARD, 5, 0},
    {RK_OP_GROUPED_GEMM_DGRAD, 3, NOT_AN_OPERAND},
    {RK_OP_GROUPED_GEMM_WGRAD, 3, NOT_AN_OPERAND},
    {RK_OP_SWIGLU_BACKWARD, 4, 0},
    {RK_OP_SWIGLU_BACKWARD, 5, 1},
    {RK_OP_CROSS_ENTROPY, 0, 0},
};

static const struct gradient *gradient_of(enum rk_op_kind kind, int operand) {
    for (size_t i = 0; i < sizeof gradients / sizeof gradients[0]; i++) {
        if (gradients[i].kind == kind && gradients[i].operand == operand) {
            return &gradients[i];
        }
    }
    return NULL;
}

bool rk_reference_is_gradient(enum rk_op_kind kind, int operand) {
    return gradient_of(kind, operand) != NULL;
}

static double router_loss(const struct rk_reference *r, const double *logits) {
    int64_t tokens = r->shape->dim[0], experts = r->shape->dim[1], top_k = r->shape->dim[2];
    double *score = values(experts), *mean = values(experts), *weight = values(top_k), sum = 0;
    for (int64_t t = 0; t < tokens; t++) {
        double lse = router_scores(r->shape, logits + t * experts, score);
        router_weights(r, score, r->operand[1] + t * top_k, weight);
        add_shares(r->shape, score, mean);
        sum += dot(weight, r->operand[4] + t * top_k, top_k) + (double)r->parameter[2] * lse * lse / (double)tokens;
    }
    sum += (double)r->parameter[1] * balance_loss(r->shape, r->operand[2], mean);
    free(score);
    free(mean);
    free(weight);
    return sum;
}

static double cross_entropy(const struct rk_reference *r, const double *logits) {
    double sum = 0;
    for (int64_t t = 0; t < r->shape->dim[0]; t++) {
        int64_t target = (int64_t)r->operand[1][t];
        const double *row = logits + t * r->shape->dim[1];
        sum += target >= 0 ? log_sum(r->shape->dim[1], row) - row[target] : 0;
    }
    return sum * (double)r->parameter[0];
}

/* The scalar that gradient operand `operand` differentiates, with its variable at v. */
static double loss(const struct rk_reference *r, int operand, const double *v) {
    const int64_t *dim = r->shape->dim;
    double *const *o = r->operand;
    double result = 0;
    double *y = NULL, *statistic = NULL;
    switch (r->shape->kind) {
    case RK_OP_EMBEDDING_BACKWARD:
        for (int64_t t = 0; t < dim[0]; t++) {
            result += dot(o[1] + t * dim[2], v + (int64_t)o[0][t] * dim[2], dim[2]);
        }
        break;
    case RK_OP_RMSNORM_BACKWARD:
        y = values(dim[0] * dim[1]);
        statistic = values(dim[0]);
        rmsnorm(dim[0], dim[1], 0, operand == 5 ? v : o[1], operand == 6 ? v : o[2], y, statistic);
        result = dot(o[0], y, dim[0] * dim[1]);
        result += operand == 5 && o[4] != NULL ? dot(o[4], v, dim[0] * dim[1]) : 0;
        break;
    case RK_OP_GEMM_DGRAD:
        y = values(dim[0] * dim[1]);
        product(dim[0], dim[1], dim[2], v, o[1], y);
        result = dot(o[0], y, dim[0] * dim[1]) + (o[2] != NULL ? dot(o[2], v, dim[0] * dim[2]) : 0);
        break;
    case RK_OP_GEMM_WGRAD:
        y = values(dim[0] * dim[1]);
        product(dim[0], dim[1], dim[2], o[1], v, y);
        result = dot(o[0], y, dim[0] * dim[1]);
        break;
    case RK_OP_ROPE_BACKWARD: {
        int64_t count = dim[0] * (dim[2] + 2 * dim[3]) * dim[4];
        y = values(count);
        rope(r, operand == 4 ? v : o[1], operand == 5 ? v : o[2], operand == 6 ? v : o[3], y);
        result = dot(o[0], y, count);
        break;
    }
    case RK_OP_ATTENTION_BACKWARD:
        y = values(dim[0] * dim[2] * dim[4]);
        statistic = values(dim[0] * dim[2]);
        attention(r->shape, v, y, statistic);
        result = dot(o[3], y, dim[0] * dim[2] * dim[4]);
        break;
    case RK_OP_ROUTE_BACKWARD:
        result = router_loss(r, v);
        break;
    case RK_OP_GROUPED_GEMM_DGRAD:
    case RK_OP_GROUPED_GEMM_WGRAD: {
        bool dgrad = r->shape->kind == RK_OP_GROUPED_GEMM_DGRAD;
        y = values(dim[0] * dim[2]);
        grouped_product(r->shape, o[2], dgrad ? v : o[1], dgrad ? o[1] : v, y);
        result = dot(o[0], y, (int64_t)o[2][dim[1]] * dim[2]);
        break;
    }
    case RK_OP_SWIGLU_BACKWARD:
        y = values(dim[0] * dim[1]);
        swiglu(swiglu_rows(r), dim[1], operand == 4 ? v : o[0], operand == 5 ? v : o[1], y);
        result = dot(o[3], y, swiglu_rows(r) * dim[1]);
        break;
    case RK_OP_CROSS_ENTROPY:
        result = cross_entropy(r, v);
        break;
    default:
        break;
    }
    free(y);
    free(statistic);
    return result;
}

double rk_reference_gradient(const struct rk_reference *r, int operand, int64_t element) {
    const double step = 1e-4;
    const struct gradient *gradient = gradient_of(r->shape->kind, operand);
    int64_t count = rk_op_operand_bytes(r->shape, operand) / rk_element_bytes(rk_op_operand_element(r->shape, operand));
    double *v = values(count);
    const double *start = gradient->variable == NOT_AN_OPERAND ? NULL : r->operand[gradient->variable];
    for (int64_t i = 0; i < count; i++) { /* a row weight that is absent is 1 */
        v[i] = start != NULL ? start[i] : r->shape->kind == RK_OP_SWIGLU_BACKWARD;
    }
    double middle = v[element];
    v[element] = middle + step;
    double above = loss(r, operand, v);
    v[element] = middle - step;
    double below = loss(r, operand, v);
    free(v);
    return (above - below) / (2 * step);
}

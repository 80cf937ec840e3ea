/* The table of cases: prime sizes, sizes across the kernels' blocks, no rows, one of everything, every flag and every
 * permitted in-place form. */
#include "oracle.h"

#define BIT(operand) (1u << (operand))
/* FP32 sums of a few hundred terms; BF16 rounds to 2^-9 once. */
#define CLOSE {2e-5, 4e-3}
/* The context that the backward reads was rounded to BF16, which shifts every gradient of its row. */
#define ROUNDED_INPUT {2e-5, 3e-2}

#define CASE(text, op, ...)                                                                                            \
    {.name = text, .shape = {.kind = RK_OP_##op, .dim = __VA_ARGS__}, .tolerance = CLOSE}
#define FLAGGED(text, op, flag_bits, ...)                                                                              \
    {.name = text, .shape = {.kind = RK_OP_##op, .flags = (flag_bits), .dim = __VA_ARGS__}, .tolerance = CLOSE}
/* With further members of struct rk_op_case in `more`. */
#define VARIED(text, op, flag_bits, dimensions, more)                                                                  \
    {.name = text, .shape = {.kind = RK_OP_##op, .flags = (flag_bits), .dim = UNPACK dimensions},                      \
     .tolerance = CLOSE, UNPACK_PLAIN more}
#define UNPACK(...) {__VA_ARGS__}
#define UNPACK_PLAIN(...) __VA_ARGS__

enum {
    HEAD = RK_OP_FLAG_QK_NORM_HEAD,
    FULL = RK_OP_FLAG_QK_NORM_FULL,
    SIGMOID = RK_OP_FLAG_SIGMOID,
    NORMALIZE = RK_OP_FLAG_NORMALIZE_TOP_K,
    UNIFORM = RK_OP_FLAG_ROUTE_UNIFORM,
    RANDOM = RK_OP_FLAG_ROUTE_RANDOM
};

const struct rk_op_case rk_op_cases[] = {
    CASE("zero", ZERO, {1003}),
    CASE("zero, no bytes", ZERO, {0}),

    CASE("embedding", EMBEDDING_FORWARD, {7, 11, 5}),
    CASE("embedding, wide", EMBEDDING_FORWARD, {301, 53, 701}),
    CASE("embedding, no tokens", EMBEDDING_FORWARD, {0, 11, 5}),
    CASE("embedding gradient", EMBEDDING_BACKWARD, {17, 11, 5}),
    CASE("embedding gradient, wide", EMBEDDING_BACKWARD, {31, 13, 701}),
    CASE("embedding gradient, no tokens", EMBEDDING_BACKWARD, {0, 11, 5}),

    CASE("rmsnorm", RMSNORM_FORWARD, {5, 7}),
    CASE("rmsnorm, wide", RMSNORM_FORWARD, {3, 1031}),
    CASE("rmsnorm, one value", RMSNORM_FORWARD, {1, 1}),
    CASE("rmsnorm, no rows", RMSNORM_FORWARD, {0, 8}),
    CASE("rmsnorm gradient", RMSNORM_BACKWARD, {5, 7}),
    CASE("rmsnorm gradient, wide", RMSNORM_BACKWARD, {3, 1031}),
    VARIED("rmsnorm gradient, no residual", RMSNORM_BACKWARD, 0, (5, 7), (.absent = BIT(4))),
    VARIED("rmsnorm gradient, in place", RMSNORM_BACKWARD, 0, (5, 7), (.output = 5, .in_place_of = 4)),
    CASE("rmsnorm gradient, no rows", RMSNORM_BACKWARD, {0, 8}),

    CASE("gemm, one value", GEMM_FORWARD, {1, 1, 1}),
    CASE("gemm", GEMM_FORWARD, {7, 13, 5}),
    CASE("gemm, one row", GEMM_FORWARD, {1, 13, 67}),
    CASE("gemm, one column", GEMM_FORWARD, {13, 1, 67}),
    CASE("gemm, several blocks", GEMM_FORWARD, {263, 521, 11}),
    CASE("gemm, no rows", GEMM_FORWARD, {0, 13, 5}),
    VARIED("gemm, addend", GEMM_FORWARD, 0, (7, 13, 5), (.present = BIT(2))),
    VARIED("gemm, addend in place", GEMM_FORWARD, 0, (263, 269, 5), (.present = BIT(2), .output = 3, .in_place_of = 2)),
    FLAGGED("gemm, FP32 output", GEMM_FORWARD, RK_OP_FLAG_F32_OUTPUT, {263, 269, 5}),
    VARIED("gemm, FP32 output, addend", GEMM_FORWARD, RK_OP_FLAG_F32_OUTPUT, (7, 13, 5), (.present = BIT(2))),
    CASE("gemm dgrad", GEMM_DGRAD, {7, 13, 5}),
    CASE("gemm dgrad, one row", GEMM_DGRAD, {1, 13, 67}),
    CASE("gemm dgrad, several blocks", GEMM_DGRAD, {263, 521, 11}),
    CASE("gemm dgrad, no rows", GEMM_DGRAD, {0, 13, 5}),
    VARIED("gemm dgrad, addend", GEMM_DGRAD, 0, (7, 13, 5), (.present = BIT(2))),
    VARIED("gemm dgrad, addend in place", GEMM_DGRAD, 0, (263, 269, 5), (.present = BIT(2), .output = 3, .in_place_of = 2)),
    FLAGGED("gemm dgrad, FP32 input", GEMM_DGRAD, RK_OP_FLAG_F32_INPUT, {263, 269, 5}),
    CASE("gemm wgrad", GEMM_WGRAD, {7, 13, 5}),
    CASE("gemm wgrad, one row", GEMM_WGRAD, {1, 13, 67}),
    CASE("gemm wgrad, several blocks", GEMM_WGRAD, {521, 263, 11}),
    CASE("gemm wgrad, no rows", GEMM_WGRAD, {0, 13, 5}),
    FLAGGED("gemm wgrad, FP32 input", GEMM_WGRAD, RK_OP_FLAG_F32_INPUT, {263, 269, 5}),

    CASE("rope", ROPE_FORWARD, {12, 4, 3, 1, 6}),
    CASE("rope, one position", ROPE_FORWARD, {3, 1, 2, 2, 2}),
    CASE("rope, long", ROPE_FORWARD, {262, 131, 4, 2, 64}),
    FLAGGED("rope, norm of heads", ROPE_FORWARD, HEAD, {12, 4, 3, 1, 6}),
    FLAGGED("rope, norm of all heads", ROPE_FORWARD, FULL, {12, 4, 6, 3, 130}),
    VARIED("rope, in place", ROPE_FORWARD, 0, (12, 4, 3, 1, 6), (.output = 3, .in_place_of = 0)),
    CASE("rope, no tokens", ROPE_FORWARD, {0, 4, 3, 1, 6}),
    VARIED("rope gradient", ROPE_BACKWARD, 0, (12, 4, 3, 1, 6), (.present = BIT(1))),
    FLAGGED("rope gradient, norm of heads", ROPE_BACKWARD, HEAD, {12, 4, 3, 1, 6}),
    FLAGGED("rope gradient, norm of all heads", ROPE_BACKWARD, FULL, {12, 4, 6, 3, 10}),
    VARIED("rope gradient, in place", ROPE_BACKWARD, 0, (12, 4, 3, 1, 6),
           (.present = BIT(1), .output = 4, .in_place_of = 0)),
    VARIED("rope gradient, norm of heads, in place", ROPE_BACKWARD, HEAD, (12, 4, 3, 1, 6),
           (.output = 4, .in_place_of = 0)),
    VARIED("rope gradient, norm of all heads, in place", ROPE_BACKWARD, FULL, (12, 4, 6, 3, 10),
           (.output = 4, .in_place_of = 0)),
    FLAGGED("rope gradient, norm, no tokens", ROPE_BACKWARD, HEAD, {0, 4, 3, 1, 6}),

    CASE("attention", ATTENTION_FORWARD, {6, 3, 4, 2, 8}),
    CASE("attention, one position", ATTENTION_FORWARD, {4, 1, 2, 2, 4}),
    CASE("attention, one head", ATTENTION_FORWARD, {131, 131, 1, 1, 5}),
    CASE("attention, several blocks", ATTENTION_FORWARD, {402, 201, 6, 2, 16}),
    CASE("attention, heads of 64", ATTENTION_FORWARD, {386, 193, 4, 2, 64}),
    CASE("attention, heads of 128", ATTENTION_FORWARD, {161, 161, 3, 1, 128}),
    CASE("attention, whole tiles", ATTENTION_FORWARD, {256, 128, 2, 2, 128}),
    CASE("attention, heads of 160", ATTENTION_FORWARD, {70, 70, 2, 1, 160}),
    CASE("attention, no tokens", ATTENTION_FORWARD, {0, 4, 2, 2, 4}),
    {.name = "attention gradient", .shape = {.kind = RK_OP_ATTENTION_BACKWARD, .dim = {6, 3, 4, 2, 8}},
     .tolerance = ROUNDED_INPUT},
    {.name = "attention gradient, one position", .shape = {.kind = RK_OP_ATTENTION_BACKWARD, .dim = {4, 1, 2, 2, 4}},
     .tolerance = ROUNDED_INPUT},
    {.name = "attention gradient, several blocks",
     .shape = {.kind = RK_OP_ATTENTION_BACKWARD, .dim = {274, 137, 3, 1, 6}}, .tolerance = ROUNDED_INPUT},
    {.name = "attention gradient, heads of 64",
     .shape = {.kind = RK_OP_ATTENTION_BACKWARD, .dim = {266, 133, 2, 1, 64}}, .tolerance = ROUNDED_INPUT},
    {.name = "attention gradient, heads of 128",
     .shape = {.kind = RK_OP_ATTENTION_BACKWARD, .dim = {131, 131, 2, 1, 128}}, .tolerance = ROUNDED_INPUT},
    {.name = "attention gradient, heads of 160",
     .shape = {.kind = RK_OP_ATTENTION_BACKWARD, .dim = {37, 37, 2, 1, 160}}, .tolerance = ROUNDED_INPUT},
    {.name = "attention gradient, no tokens", .shape = {.kind = RK_OP_ATTENTION_BACKWARD, .dim = {0, 4, 2, 2, 4}},
     .tolerance = ROUNDED_INPUT},

    CASE("route", ROUTE_FORWARD, {13, 7, 3}),
    VARIED("route, bias", ROUTE_FORWARD, 0, (13, 7, 3), (.present = BIT(1), .parameter = {2.5f})),
    FLAGGED("route, normalised", ROUTE_FORWARD, NORMALIZE, {13, 7, 3}),
    FLAGGED("route, sigmoid", ROUTE_FORWARD, SIGMOID | NORMALIZE, {101, 67, 8}),
    VARIED("route, no sums", ROUTE_FORWARD, 0, (13, 7, 3), (.absent = BIT(6))),
    CASE("route, all experts", ROUTE_FORWARD, {5, 4, 4}),
    CASE("route, one expert", ROUTE_FORWARD, {5, 1, 1}),
    CASE("route, many experts", ROUTE_FORWARD, {37, 257, 6}),
    FLAGGED("route, uniform", ROUTE_FORWARD, UNIFORM, {13, 7, 3}),
    FLAGGED("route, random", ROUTE_FORWARD, RANDOM | NORMALIZE, {13, 7, 3}),
    CASE("route, no tokens", ROUTE_FORWARD, {0, 7, 3}),
    VARIED("route gradient", ROUTE_BACKWARD, 0, (13, 7, 3), (.parameter = {2.5f, 0.7f, 0.3f})),
    VARIED("route gradient, normalised", ROUTE_BACKWARD, NORMALIZE, (13, 7, 3), (.parameter = {2.5f, 0.7f, 0.3f})),
    VARIED("route gradient, sigmoid", ROUTE_BACKWARD, SIGMOID, (13, 7, 3), (.parameter = {2.5f, 0.7f, 0.3f})),
    VARIED("route gradient, sigmoid, normalised", ROUTE_BACKWARD, SIGMOID | NORMALIZE, (29, 67, 8),
           (.parameter = {2.5f, 0.7f, 0.3f})),
    VARIED("route gradient, all experts", ROUTE_BACKWARD, NORMALIZE, (5, 4, 4), (.parameter = {1, 0.7f, 0.3f})),
    VARIED("route gradient, one expert", ROUTE_BACKWARD, 0, (5, 1, 1), (.parameter = {1, 0.7f, 0.3f})),
    CASE("route gradient, no tokens", ROUTE_BACKWARD, {0, 7, 3}),

    CASE("route map", ROUTE_MAP, {13, 8, 3, 1, 39}),
    VARIED("route map, four ranks", ROUTE_MAP, 0, (101, 8, 2, 4, 250), (.group_rank = 2)),
    VARIED("route map, rows dropped", ROUTE_MAP, 0, (101, 8, 2, 4, 131), (.group_rank = 3)),
    VARIED("route map, one row kept", ROUTE_MAP, 0, (101, 8, 2, 4, 1), (.group_rank = 0)),
    VARIED("route map, no load", ROUTE_MAP, 0, (101, 8, 2, 2, 150), (.group_rank = 1, .absent = BIT(6))),
    CASE("route map, one expert", ROUTE_MAP, {13, 1, 1, 1, 13}),
    CASE("route map, all experts", ROUTE_MAP, {13, 4, 4, 2, 52}),
    CASE("route map, many routes", ROUTE_MAP, {3001, 64, 8, 2, 24008}),
    CASE("route map, no tokens", ROUTE_MAP, {0, 8, 2, 4, 4}),

    CASE("grouped gemm", GROUPED_GEMM_FORWARD, {23, 4, 13, 7}),
    CASE("grouped gemm, several blocks", GROUPED_GEMM_FORWARD, {907, 3, 263, 7}),
    CASE("grouped gemm, one expert", GROUPED_GEMM_FORWARD, {5, 1, 3, 7}),
    CASE("grouped gemm, no rows", GROUPED_GEMM_FORWARD, {0, 4, 3, 7}),
    VARIED("grouped gemm, prefix", GROUPED_GEMM_FORWARD, 0, (23, 4, 13, 7), (.offsets = {0, 5, 5, 16, 17})),
    CASE("grouped gemm, multiples of eight", GROUPED_GEMM_FORWARD, {907, 3, 264, 136}),
    VARIED("grouped gemm, multiples of eight, prefix", GROUPED_GEMM_FORWARD, 0, (523, 4, 136, 40),
           (.offsets = {0, 129, 129, 385, 386})),
    CASE("grouped gemm dgrad", GROUPED_GEMM_DGRAD, {23, 4, 13, 7}),
    CASE("grouped gemm dgrad, multiples of eight", GROUPED_GEMM_DGRAD, {907, 3, 264, 136}),
    VARIED("grouped gemm dgrad, multiples of eight, prefix", GROUPED_GEMM_DGRAD, 0, (523, 4, 136, 40),
           (.offsets = {0, 129, 129, 385, 386})),
    CASE("grouped gemm wgrad, multiples of eight", GROUPED_GEMM_WGRAD, {907, 3, 264, 136}),
    VARIED("grouped gemm wgrad, multiples of eight, prefix", GROUPED_GEMM_WGRAD, 0, (523, 4, 136, 40),
           (.offsets = {0, 129, 129, 385, 386})),
    CASE("grouped gemm dgrad, several blocks", GROUPED_GEMM_DGRAD, {907, 3, 263, 7}),
    VARIED("grouped gemm dgrad, prefix", GROUPED_GEMM_DGRAD, 0, (23, 4, 13, 7), (.offsets = {0, 5, 5, 16, 17})),
    CASE("grouped gemm dgrad, no rows", GROUPED_GEMM_DGRAD, {0, 4, 3, 7}),
    CASE("grouped gemm wgrad", GROUPED_GEMM_WGRAD, {23, 4, 13, 7}),
    CASE("grouped gemm wgrad, several blocks", GROUPED_GEMM_WGRAD, {907, 3, 263, 7}),
    VARIED("grouped gemm wgrad, prefix", GROUPED_GEMM_WGRAD, 0, (23, 4, 13, 7), (.offsets = {0, 5, 5, 16, 17})),
    CASE("grouped gemm wgrad, no rows", GROUPED_GEMM_WGRAD, {0, 4, 3, 7}),

    CASE("swiglu", SWIGLU_FORWARD, {11, 7, 3}),
    CASE("swiglu, dense", SWIGLU_FORWARD, {5, 1033, 0}),
    VARIED("swiglu, prefix", SWIGLU_FORWARD, 0, (11, 7, 3), (.offsets = {0, 4, 4, 9})),
    VARIED("swiglu, no weights", SWIGLU_FORWARD, 0, (11, 7, 3), (.absent = BIT(1))),
    CASE("swiglu, no rows", SWIGLU_FORWARD, {0, 7, 3}),
    CASE("swiglu gradient", SWIGLU_BACKWARD, {11, 7, 3}),
    CASE("swiglu gradient, dense", SWIGLU_BACKWARD, {5, 1033, 0}),
    VARIED("swiglu gradient, prefix", SWIGLU_BACKWARD, 0, (11, 7, 3), (.offsets = {0, 4, 4, 9})),
    VARIED("swiglu gradient, no weights", SWIGLU_BACKWARD, 0, (11, 7, 3), (.absent = BIT(1) | BIT(5))),
    VARIED("swiglu gradient, in place", SWIGLU_BACKWARD, 0, (11, 701, 3),
           (.output = 4, .in_place_of = 0, .offsets = {0, 4, 4, 9})),
    CASE("swiglu gradient, no rows", SWIGLU_BACKWARD, {0, 7, 3}),

    CASE("cross-entropy", CROSS_ENTROPY, {5, 11}),
    CASE("cross-entropy, large vocabulary", CROSS_ENTROPY, {3, 2053}),
    CASE("cross-entropy, one word", CROSS_ENTROPY, {3, 1}),
    CASE("cross-entropy, no tokens", CROSS_ENTROPY, {0, 11}),

    CASE("gradient norm", GRAD_NORM, {1003}),
    CASE("gradient norm, large", GRAD_NORM, {300007}),
    CASE("gradient norm, no elements", GRAD_NORM, {0}),
    CASE("adamw", ADAMW, {1003}),
    VARIED("adamw, no decay", ADAMW, 0, (1003), (.parameter = {1e-30f})),
    CASE("adamw, no elements", ADAMW, {0}),
};

const int64_t rk_op_case_count = (int64_t)(sizeof rk_op_cases / sizeof rk_op_cases[0]);

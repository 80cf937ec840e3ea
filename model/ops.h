/* The ops of a step program: one table for the lowering, the cost source, the kernels, the transports and calibrate.
 *
 * An op is a kind, a data type, flags, up to eight dimensions, up to four real parameters and an ordered list of
 * operands. The meaning of dimensions and operands is fixed here, kind by kind; nothing else may reinterpret it. Shapes
 * are row major. Notation:
 *   T tokens of a micro-batch on one rank, S sequence length (T is a multiple of S), d hidden width, V vocabulary
 *   N experts, K routes per token, M ranks of the EP-MP group, G = N/M experts held by a rank, h expert width
 *   R rows of the receive buffer, min(ceil(capacity · T · K), M · T · K); R = T · K when M = 1
 *   act: the op's data type (FP32 or BF16); f32, f64, i32, i64: fixed types
 *   (r) read, (w) written entirely, (p) written up to the valid prefix offsets[G], (a) accumulated into, (o) optional:
 *   may be absent (no buffer)
 * Rows past the valid prefix are never read by any op and may hold anything, NaN included. Every kernel accepts zero
 * rows. Bad data shows and harms nothing: a token outside [0, V) embeds as NaN and adds no gradient; a target >= V
 * makes the loss sum NaN and its dlogits 0.
 *
 * The receive layout is expert-major, then source rank, then the order of (token, route) at the source; it is decided
 * alike on every rank by ROUTE_MAP and never read by the host. */
#ifndef RK_MODEL_OPS_H
#define RK_MODEL_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RK_OP_DIMS = 8, RK_OP_PARAMETERS = 4, RK_OP_OPERANDS = 12 };

enum rk_data_type { RK_F32, RK_BF16, RK_DATA_TYPE_COUNT };

/* Bytes of one value of the type: 4 or 2. */
int64_t rk_data_type_bytes(enum rk_data_type type);
const char *rk_data_type_name(enum rk_data_type type); /* "f32", "bf16" */

/* Streams of a rank. Ops of one stream run in program order; between streams only events order. Each pipeline direction
 * has a stream for what leaves and one for what arrives: with fewer, two neighbours that send to each other would
 * deadlock, and with virtual stages a send round the ring would wait for a receive queued behind it. */
enum rk_stream_kind {
    RK_STREAM_COMPUTE,
    RK_STREAM_EXCHANGE,         /* EP dispatch, combine, counts */
    RK_STREAM_SEND_FORWARD,     /* activations to the next stage */
    RK_STREAM_RECEIVE_FORWARD,  /* activations from the previous stage */
    RK_STREAM_SEND_BACKWARD,    /* gradients to the previous stage */
    RK_STREAM_RECEIVE_BACKWARD, /* gradients from the next stage */
    RK_STREAM_REDUCTION,        /* gradient and weight collectives over replicas */
    RK_STREAM_D2H,
    RK_STREAM_H2D,
    RK_STREAM_COUNT
};
const char *rk_stream_name(enum rk_stream_kind stream);

/* Groups of ranks that an op speaks to. World rank = stage · D + ep_dp · M + ep_mp, D = EP-DP · M. */
enum rk_group_kind {
    RK_GROUP_NONE,
    RK_GROUP_EXPERT_PARALLEL,  /* EP-MP: same stage, same ep_dp; M ranks over which one expert pool is spread */
    RK_GROUP_EXPERT_REPLICA,   /* EP-DP: same stage, same ep_mp */
    RK_GROUP_DATA,             /* all D ranks of a stage */
    RK_GROUP_PIPELINE_NEXT,    /* the peer of SEND/RECEIVE: same place in the next stage (cyclic with virtual stages) */
    RK_GROUP_PIPELINE_PREVIOUS,
    RK_GROUP_EMBEDDING,        /* same place in the first and the last stage: tied embedding's gradient */
    RK_GROUP_WORLD,
    RK_GROUP_COUNT
};
const char *rk_group_name(enum rk_group_kind group);

/* Phase for the accounts of time: what a step spends its time on. */
enum rk_phase {
    RK_PHASE_FORWARD,
    RK_PHASE_RECOMPUTE,
    RK_PHASE_BACKWARD,
    RK_PHASE_LOSS,      /* head forward and backward */
    RK_PHASE_REDUCTION, /* gradient collectives */
    RK_PHASE_OPTIMIZER, /* zeroing of gradients, norm, clipping, update, weight all-gather */
    RK_PHASE_COUNT
};
const char *rk_phase_name(enum rk_phase phase);

/* Who executes the kind: the back end's kernels, the transport, or the copy engines. */
enum rk_op_executor { RK_BY_KERNEL, RK_BY_TRANSPORT, RK_BY_COPY };

/* Families group kinds in tables for people. */
enum rk_op_family {
    RK_OP_FAMILY_EMBEDDING,
    RK_OP_FAMILY_NORM,
    RK_OP_FAMILY_GEMM,
    RK_OP_FAMILY_ATTENTION,
    RK_OP_FAMILY_ROUTING,
    RK_OP_FAMILY_EXPERT_EXCHANGE,
    RK_OP_FAMILY_GROUPED_GEMM,
    RK_OP_FAMILY_ELEMENTWISE,
    RK_OP_FAMILY_CROSS_ENTROPY,
    RK_OP_FAMILY_OPTIMIZER,
    RK_OP_FAMILY_COLLECTIVE,
    RK_OP_FAMILY_PIPELINE,
    RK_OP_FAMILY_OFFLOAD,
    RK_OP_FAMILY_COUNT
};
const char *rk_op_family_name(enum rk_op_family family);

/* X(kind, name, family, executor, dimensions, operands) */
#define RK_OP_TABLE(X)                                                                                                 \
    X(ZERO, "zero", ELEMENTWISE, KERNEL, "bytes", 1)                                                                   \
    X(EMBEDDING_FORWARD, "embedding_forward", EMBEDDING, KERNEL, "T V d", 3)                                           \
    X(EMBEDDING_BACKWARD, "embedding_backward", EMBEDDING, KERNEL, "T V d", 3)                                         \
    X(RMSNORM_FORWARD, "rmsnorm_forward", NORM, KERNEL, "rows d", 4)                                                   \
    X(RMSNORM_BACKWARD, "rmsnorm_backward", NORM, KERNEL, "rows d", 8)                                                 \
    X(GEMM_FORWARD, "gemm_forward", GEMM, KERNEL, "m n k", 5)                                                          \
    X(GEMM_DGRAD, "gemm_dgrad", GEMM, KERNEL, "m n k", 5)                                                              \
    X(GEMM_WGRAD, "gemm_wgrad", GEMM, KERNEL, "m n k", 4)                                                              \
    X(ROPE_FORWARD, "rope_forward", NORM, KERNEL, "T S n_h n_kv d_head", 4)                                            \
    X(ROPE_BACKWARD, "rope_backward", NORM, KERNEL, "T S n_h n_kv d_head", 8)                                          \
    X(ATTENTION_FORWARD, "attention_forward", ATTENTION, KERNEL, "T S n_h n_kv d_head", 4)                             \
    X(ATTENTION_BACKWARD, "attention_backward", ATTENTION, KERNEL, "T S n_h n_kv d_head", 6)                           \
    X(ROUTE_FORWARD, "route_forward", ROUTING, KERNEL, "T N K", 8)                                                     \
    X(ROUTE_BACKWARD, "route_backward", ROUTING, KERNEL, "T N K", 6)                                                   \
    X(ROUTE_MAP, "route_map", ROUTING, KERNEL, "T N K M R", 8)                                                         \
    X(COUNT_EXCHANGE, "count_exchange", EXPERT_EXCHANGE, TRANSPORT, "N M", 2)                                          \
    X(DISPATCH, "dispatch", EXPERT_EXCHANGE, TRANSPORT, "T d K N M R", 9)                                              \
    X(COMBINE, "combine", EXPERT_EXCHANGE, TRANSPORT, "T d K N M R", 10)                                               \
    X(GROUPED_GEMM_FORWARD, "grouped_gemm_forward", GROUPED_GEMM, KERNEL, "R G n k", 5)                                \
    X(GROUPED_GEMM_DGRAD, "grouped_gemm_dgrad", GROUPED_GEMM, KERNEL, "R G n k", 5)                                    \
    X(GROUPED_GEMM_WGRAD, "grouped_gemm_wgrad", GROUPED_GEMM, KERNEL, "R G n k", 5)                                    \
    X(SWIGLU_FORWARD, "swiglu_forward", ELEMENTWISE, KERNEL, "R h G", 4)                                               \
    X(SWIGLU_BACKWARD, "swiglu_backward", ELEMENTWISE, KERNEL, "R h G", 6)                                             \
    X(CROSS_ENTROPY, "cross_entropy", CROSS_ENTROPY, KERNEL, "T V", 4)                                                 \
    X(GRAD_NORM, "grad_norm", OPTIMIZER, KERNEL, "elements", 3)                                                        \
    X(ADAMW, "adamw", OPTIMIZER, KERNEL, "elements", 7)                                                                \
    X(REDUCE_SCATTER, "reduce_scatter", COLLECTIVE, TRANSPORT, "elements group", 2)                                    \
    X(ALL_GATHER, "all_gather", COLLECTIVE, TRANSPORT, "elements group", 2)                                            \
    X(ALL_REDUCE, "all_reduce", COLLECTIVE, TRANSPORT, "elements group", 1)                                            \
    X(SEND, "send", PIPELINE, TRANSPORT, "bytes", 1)                                                                   \
    X(RECEIVE, "receive", PIPELINE, TRANSPORT, "bytes", 1)                                                             \
    X(COPY_D2H, "copy_d2h", OFFLOAD, COPY, "bytes", 2)                                                                 \
    X(COPY_H2D, "copy_h2d", OFFLOAD, COPY, "bytes", 2)

enum rk_op_kind {
#define RK_OP_KIND(kind, name, family, executor, dimensions, operands) RK_OP_##kind,
    RK_OP_TABLE(RK_OP_KIND)
#undef RK_OP_KIND
    RK_OP_KIND_COUNT
};

/* Dimensions and operands, kind by kind:
 *
 * ZERO               {bytes}        0 buffer (w)
 * EMBEDDING_FORWARD  {T, V, d}      0 tokens i32[T] (r)  1 table act[V,d] (r)  2 x act[T,d] (w)
 * EMBEDDING_BACKWARD {T, V, d}      0 tokens i32[T] (r)  1 dx act[T,d] (r)  2 dtable f32[V,d] (a)
 * RMSNORM_FORWARD    {rows, d}      0 x act[rows,d] (r)  1 gain act[d] (r)  2 y act[rows,d] (w)  3 rstd f32[rows] (w)
 *                                   parameter 0: epsilon. y = x · rstd · gain, rstd = 1/sqrt(mean(x²) + epsilon)
 * RMSNORM_BACKWARD   {rows, d}      0 dy (r)  1 x (r)  2 gain (r)  3 rstd f32 (r)  4 residual gradient act[rows,d]
 *                                   (r, o; may be operand 5)  5 dx act[rows,d] (w) = residual gradient + norm's
 *                                   6 dgain f32[d] (a)  7 workspace (o)
 * GEMM_FORWARD       {m, n, k}      0 x act[m,k] (r)  1 w act[n,k] (r)  2 addend act[m,n] (r, o; may be operand 3)
 *                                   3 y [m,n] (w) = addend + x·wᵀ; act, or f32 with RK_OP_FLAG_F32_OUTPUT
 *                                   4 workspace (o)
 * GEMM_DGRAD         {m, n, k}      0 dy [m,n] (r; f32 with RK_OP_FLAG_F32_INPUT)  1 w act[n,k] (r)
 *                                   2 addend act[m,k] (r, o; may be operand 3)  3 dx act[m,k] (w) = addend + dy·w
 *                                   4 workspace (o)
 * GEMM_WGRAD         {m, n, k}      0 dy [m,n] (r; f32 with RK_OP_FLAG_F32_INPUT)  1 x act[m,k] (r)
 *                                   2 dw f32[n,k] (a) += dyᵀ·x  3 workspace (o)
 * ROPE_FORWARD       {T,S,n_h,n_kv,d_head} 0 qkv act[T,(n_h+2n_kv)·d_head] (r): q heads, k heads, v heads
 *                                   1 q gain act (r, o)  2 k gain act (r, o)  3 out, as 0 (w; may be operand 0 when
 *                                   there are no gains). q and k normalised (RK_OP_FLAG_QK_NORM_HEAD: gain [d_head]
 *                                   over each head; RK_OP_FLAG_QK_NORM_FULL: gain [n·d_head] over all heads of q or of
 *                                   k together), then rotated in FP32 on pairs (i, i + d_head/2) at position
 *                                   t mod S; v copied. parameters: 0 theta, 1 epsilon
 * ROPE_BACKWARD      the same       0 dout (r)  1 raw qkv (r, o: only with gains)  2 q gain (o)  3 k gain (o)
 *                                   4 dqkv (w; may be operand 0)  5 dq gain f32 (a, o)  6 dk gain f32 (a, o)
 *                                   7 workspace (o)
 * ATTENTION_FORWARD  the same       0 qkv rotated (r)  1 context act[T,n_h·d_head] (w)  2 lse f32[T,n_h] (w): natural
 *                                   logarithm of the softmax sum of scaled scores  3 workspace (o)
 *                                   causal within each sequence of S, scale 1/sqrt(d_head)
 * ATTENTION_BACKWARD the same       0 qkv (r)  1 context (r)  2 lse (r)  3 dcontext (r)  4 dqkv (w)  5 workspace (o)
 * ROUTE_FORWARD      {T, N, K}      0 logits f32[T,N] (r)  1 selection bias f32[N] (r, o)  2 index i32[T,K] (w)
 *                                   3 weight f32[T,K] (w)  4 requested i32[N] (w)  5 score mean f32[N] (w)
 *                                   6 sums f64[2] (a, o): [0] += N·Σ f_i P_i, [1] += mean over tokens of lse².
 *                                   Absent in recomputation, so that nothing is counted twice.
 *                                   7 workspace (o)
 *                                   scores = softmax (or sigmoid: RK_OP_FLAG_SIGMOID); the K largest of score + bias,
 *                                   ties to the lower expert, in descending order; weight = score (divided by their
 *                                   sum: RK_OP_FLAG_NORMALIZE_TOP_K) · parameter 0 (routed scaling factor). f_i =
 *                                   requested_i/(T·K); P_i = mean score, with sigmoid of scores divided by their sum.
 *                                   RK_OP_FLAG_ROUTE_UNIFORM: route j of token t to (t·K + j) mod N;
 *                                   RK_OP_FLAG_ROUTE_RANDOM: K distinct experts from a hash of (call serial, t),
 *                                   by kernels/route_random.h (K <= 64); weights from the scores of those experts.
 *                                   A NaN ranks as -infinity: a token with a NaN logit still has K distinct experts
 *                                   in range, and NaN weights. Without tokens the means are 0
 * ROUTE_BACKWARD     {T, N, K}      0 logits (r)  1 index (r)  2 requested (r)  3 score mean (r)  4 dweight f32[T,K]
 *                                   (r)  5 dlogits f32[T,N] (w). parameters: 0 routed scaling factor, 1 gradient
 *                                   weight of the balance loss, 2 of the z loss (both already divided by the number
 *                                   of windows of the global batch)
 * ROUTE_MAP          {T, N, K, M, R} 0 index i32[T,K] (r)  1 requested of all i32[M,N] (r)  2 row i32[T,K] (w): row in
 *                                   the destination rank's receive buffer, -1 dropped; the destination rank is
 *                                   index / G  3 kept i32[M,N] (w): rows kept for (source, expert)  4 offsets
 *                                   i32[G+1] (w): first row of each of this rank's experts  5 order i32[T·K] (w):
 *                                   route numbers t·K+k sorted by expert, stable  6 load i64[2N+1] (a, o):
 *                                   requested[N], kept[N] of this rank's own routes, dropped routes of this rank;
 *                                   absent in recomputation  7 workspace (o)
 *                                   Keep decision, per destination rank: experts in order, then sources in order,
 *                                   running sum clamped to R.
 * COUNT_EXCHANGE     {N, M}         0 requested i32[N] (r)  1 requested of all i32[M,N] (w)
 * DISPATCH           {T, d, K, N, M, R} 0 source act[T,d] (r)  1 weight f32[T,K] (r, o)  2 index (r)  3 row (r)
 *                                   4 kept (r)  5 order (r)  6 rows act[R,d] (p)
 *                                   7 row weight f32[R] (p, o)  8 workspace (o)
 * COMBINE            {T, d, K, N, M, R} 0 rows act[R,d] (r)  1 row scalar f32[R] (r, o)  2 index (r)  3 row (r)
 *                                   4 kept (r)  5 order (r)  6 residual act[T,d] (r, o; may be operand 7)
 *                                   7 out act[T,d] (w) = residual + Σ over kept routes of the row, summed in FP32 in
 *                                   order of k, rounded once  8 scalar out f32[T,K] (w, o): the row's scalar,
 *                                   0 for a dropped route  9 workspace (o)
 * GROUPED_GEMM_FORWARD {R, G, n, k} 0 x act[R,k] (r)  1 w act[G,n,k] (r)  2 offsets i32[G+1] (r)  3 y act[R,n] (p)
 *                                   4 workspace (o)
 * GROUPED_GEMM_DGRAD   {R, G, n, k} 0 dy act[R,n] (r)  1 w (r)  2 offsets (r)  3 dx act[R,k] (p)  4 workspace (o)
 * GROUPED_GEMM_WGRAD   {R, G, n, k} 0 dy act[R,n] (r)  1 x act[R,k] (r)  2 offsets (r)  3 dw f32[G,n,k] (a)
 *                                   4 workspace (o). An expert without rows adds exactly nothing.
 * SWIGLU_FORWARD     {R, h, G}      0 gate and up act[R,2h] (r)  1 row weight f32[R] (r, o)  2 offsets i32[G+1] (r, o:
 *                                   absent means all R rows)  3 out act[R,h] (p) = weight · silu(gate) · up
 * SWIGLU_BACKWARD    {R, h, G}      0 gate and up (r)  1 row weight (r, o)  2 offsets (r, o)  3 dout act[R,h] (r)
 *                                   4 dgate and dup act[R,2h] (p; may be operand 0)  5 drow weight f32[R] (p, o)
 * CROSS_ENTROPY      {T, V}         0 logits act[T,V] (r), replaced by dlogits act[T,V] (w)  1 targets i32[T] (r)
 *                                   2 loss sum f64[1] (a)  3 workspace (o). parameter 0: weight of one token in the
 *                                   loss (1 / tokens of the global batch); dlogits and the sum carry it. A negative
 *                                   target is ignored.
 * GRAD_NORM          {elements}     0 gradient f32 (r)  1 sum of squares f64[1] (a)  2 workspace (o)
 * ADAMW              {elements}     0 gradient f32 (r)  1 master f32 (a)  2 first moment f32 (a)  3 second moment f32
 *                                   (a)  4 weight act (w)  5 step state f32[8] (r): learning rate, 1-beta1^t,
 *                                   1-beta2^t, clipping norm (0 off), beta1, beta2, epsilon, reserved; written by the
 *                                   host before the step  6 squared gradient norm f64[1] (r).
 *                                   parameter 0: weight decay (decoupled). Clipping factor min(1, c/(norm+1e-6)).
 * REDUCE_SCATTER     {elements, group} 0 in f32[elements] (r)  1 out f32[elements/group] (w): this rank's shard, the
 *                                   sum over ranks in the transport's order (executor/transport.h); may be the
 *                                   shard's own place inside operand 0
 * ALL_GATHER         {elements, group} 0 shard act[elements/group] (r; may be its place inside 1)
 *                                   1 all act[elements] (w)
 * ALL_REDUCE         {elements, group} 0 f32[elements] (f64 with RK_OP_FLAG_F64) (a): the sum, in the transport's order
 * SEND               {bytes}        0 buffer (r). The group names the peer
 * RECEIVE            {bytes}        0 buffer (w)
 * COPY_D2H, COPY_H2D {bytes}        0 from (r)  1 to (w): one of the two lies in host memory
 */

enum rk_op_flag {
    RK_OP_FLAG_F32_OUTPUT = 1 << 0,
    RK_OP_FLAG_F32_INPUT = 1 << 1,
    RK_OP_FLAG_QK_NORM_HEAD = 1 << 2,
    RK_OP_FLAG_QK_NORM_FULL = 1 << 3,
    RK_OP_FLAG_SIGMOID = 1 << 4,
    RK_OP_FLAG_NORMALIZE_TOP_K = 1 << 5,
    RK_OP_FLAG_ROUTE_UNIFORM = 1 << 6,
    RK_OP_FLAG_ROUTE_RANDOM = 1 << 7,
    RK_OP_FLAG_F64 = 1 << 8
};

/* What the time of an op depends on, and all that a cost source is asked with. */
struct rk_op_shape {
    enum rk_op_kind kind;
    enum rk_data_type type;
    uint32_t flags;                /* enum rk_op_flag */
    enum rk_group_kind group;      /* RK_GROUP_NONE for local ops */
    int64_t dim[RK_OP_DIMS];       /* unused ones 0 */
};

/* Facts of a kind, from the table. */
const char *rk_op_name(enum rk_op_kind kind);
enum rk_op_family rk_op_family(enum rk_op_kind kind);
enum rk_op_executor rk_op_executor(enum rk_op_kind kind);
const char *rk_op_dimensions(enum rk_op_kind kind); /* "m n k" */
int rk_op_operand_count(enum rk_op_kind kind);
/* The kind with that name, or RK_OP_KIND_COUNT. */
enum rk_op_kind rk_op_from_name(const char *name);

/* How an op touches an operand. ACCUMULATE reads and writes (CROSS_ENTROPY's logits too); a workspace is WRITE. */
enum rk_access { RK_ACCESS_NONE, RK_ACCESS_READ, RK_ACCESS_WRITE, RK_ACCESS_ACCUMULATE };
enum rk_access rk_op_operand_access(enum rk_op_kind kind, int operand);
const char *rk_op_operand_name(enum rk_op_kind kind, int operand);  /* "row weight"; "" where there is none */
bool rk_op_operand_optional(enum rk_op_kind kind, int operand);
/* Whether only the rows of the valid prefix offsets[G] of the operand are touched. */
bool rk_op_operand_is_prefix(enum rk_op_kind kind, int operand);

/* What one element of the operand is for this shape: act and the flags are resolved. */
enum rk_element { RK_ELEMENT_BYTE, RK_ELEMENT_F32, RK_ELEMENT_BF16, RK_ELEMENT_F64, RK_ELEMENT_I32, RK_ELEMENT_I64 };
enum rk_element rk_op_operand_element(const struct rk_op_shape *shape, int operand);
int64_t rk_element_bytes(enum rk_element element);

/* Bytes of the operand for this shape, or 0 when the shape does not fix it (workspaces; optional ones are given their
 * size as if present). The step program, the kernels' tests and calibrate size their buffers by this one function. */
int64_t rk_op_operand_bytes(const struct rk_op_shape *shape, int operand);

/* Useful floating point operations, and the fewest bytes that device memory must move (each required input read once,
 * each output written once, accumulators both; optional operands and workspaces not counted). Capacity rows count as
 * valid where the shape does not know the routes (grouped GEMM, SwiGLU); DISPATCH and COMBINE count the T·K rows that a
 * rank receives under balance. A multiplication and an addition are two operations; exp, sqrt, log and division one
 * each. Attention counts the causal half exactly, and in the backward all five products, because the scores are not
 * stored. */
double rk_op_flops(const struct rk_op_shape *shape);
double rk_op_bytes(const struct rk_op_shape *shape);
/* Bytes that leave a rank for other ranks under balanced routing (0 for local ops). DISPATCH sends a token once to each
 * distinct rank among its K experts: (M-1)·(1 - C(N-G,K)/C(N,K)) expected copies, and its routes' weights. COMBINE
 * returns every row: its sum in order of k, rounded once, cannot be split over ranks. Collectives count what each rank
 * must send: (g-1)/g of the elements, twice for ALL_REDUCE. */
double rk_op_remote_bytes(const struct rk_op_shape *shape);

/* Scratch that the kernel of a back end needs for this shape, in bytes. A pure formula that the kernels honour. */
enum rk_backend_kind { RK_BACKEND_CPU, RK_BACKEND_CUDA, RK_BACKEND_COUNT };
int64_t rk_op_workspace_bytes(const struct rk_op_shape *shape, enum rk_backend_kind backend);
/* The operand that is the workspace, or -1. */
int rk_op_workspace_operand(enum rk_op_kind kind);

/* "rope_forward f32 T=512 S=256 n_h=4 n_kv=2 d_head=64 qk_norm_head", " over data" for a group; for people. Returns
 * buffer. */
char *rk_op_shape_text(const struct rk_op_shape *shape, char *buffer, size_t size);

bool rk_op_shape_equal(const struct rk_op_shape *left, const struct rk_op_shape *right);
uint64_t rk_op_shape_hash(const struct rk_op_shape *shape);

#endif

/* Hardware profiles: what is known of a kind of machine without measuring it here (hardware/<name>.json).
 *
 * Every figure carries its unit, its origin and its source. A figure that nobody published is absent, never guessed;
 * who needs it says so by its key. */
#ifndef RK_MODEL_HARDWARE_H
#define RK_MODEL_HARDWARE_H

#include "model/architecture.h"
#include "model/cost.h"

enum { RK_HARDWARE_VERSION = 1, RK_HARDWARE_PUBLISHED_MAX = 32 };

/* Where a profile's figure comes from. X(name, text, origin of the same figure in a prediction for this hardware,
 * relative uncertainty where the figure states no range) */
#define RK_PROFILE_ORIGIN_TABLE(X)                                                                                     \
    X(MEASURED, "measured", RK_ORIGIN_MEASURED, 0.05)               /* on such a machine, condition stated */          \
    X(SPECIFICATION, "specification", RK_ORIGIN_SPECIFICATION, 0.3) /* a data sheet's limit */                         \
    X(PUBLISHED, "published", RK_ORIGIN_PUBLISHED, 0.05)            /* printed by others */                            \
    X(DERIVED, "derived", RK_ORIGIN_TRANSFERRED, 0.15)              /* computed from such figures; source says how */

enum rk_profile_origin {
#define RK_PROFILE_ORIGIN_KIND(name, text, origin, uncertainty) RK_PROFILE_ORIGIN_##name,
    RK_PROFILE_ORIGIN_TABLE(RK_PROFILE_ORIGIN_KIND)
#undef RK_PROFILE_ORIGIN_KIND
    RK_PROFILE_ORIGIN_COUNT
};

/* The figures of a profile, all per GPU unless the key says otherwise. X(name, key, unit, minimum, maximum)
 * GB/s = 1e9 bytes/s; rates are one direction unless said. "fraction": of the peak named in the comment. */
#define RK_HARDWARE_FIGURE_TABLE(X)                                                                                    \
    X(MEMORY, "memory", "B", 1, 1e15)                                                                                  \
    X(RESERVED, "reserved", "B", 0, 1e15)          /* driver context and libraries; not for a plan's arena */          \
    X(OVERHEAD, "overhead", "B", 0, 1e15)          /* what measured runs hold beyond the formulas */                   \
    X(HOST_MEMORY, "host_memory", "B", 1, 1e16)    /* for one GPU's offload pool */                                    \
    X(PEAK_BF16, "peak_bf16", "FLOP/s", 1, 1e21)   /* dense */                                                         \
    X(PEAK_FP8, "peak_fp8", "FLOP/s", 1, 1e21)                                                                         \
    X(PEAK_FP32, "peak_fp32", "FLOP/s", 1, 1e21)                                                                       \
    X(MEMORY_BANDWIDTH, "memory_bandwidth", "B/s", 1, 1e18)                                                            \
    X(D2H_SPECIFICATION, "d2h_specification", "B/s", 1, 1e15)                                                          \
    X(H2D_SPECIFICATION, "h2d_specification", "B/s", 1, 1e15)                                                          \
    X(D2H_MEASURED, "d2h_measured", "B/s", 1, 1e15)                                                                    \
    X(H2D_MEASURED, "h2d_measured", "B/s", 1, 1e15)                                                                    \
    X(BOTH_DIRECTIONS, "both_directions", "factor", 0.01, 1) /* on each direction when both copy */                    \
    X(GPUS_PER_NODE, "gpus_per_node", "GPUs", 1, 65536)                                                                \
    X(NODE_LINK, "node_link", "B/s", 1, 1e15)      /* all links to the other GPUs of the node together */              \
    X(RAILS_PER_NODE, "rails_per_node", "rails", 0, 65536)                                                             \
    X(RAIL, "rail", "B/s", 1, 1e15)                /* one rail between nodes */                                        \
    X(LAUNCH, "launch", "s", 0, 1)                 /* host time to submit one op */                                    \
    X(HOST_WAIT, "host_wait", "s", 0, 10)          /* one host-device round trip */                                    \
    X(MESSAGE, "message", "s", 0, 1)               /* latency of one small transfer inside the node */                 \
    X(EFFICIENCY_GEMM, "efficiency_gemm", "fraction", 1e-6, 1)                 /* of peak_bf16 */                      \
    X(EFFICIENCY_GROUPED_GEMM, "efficiency_grouped_gemm", "fraction", 1e-6, 1) /* of peak_bf16 */                      \
    X(EFFICIENCY_ATTENTION_FORWARD, "efficiency_attention_forward", "fraction", 1e-6, 1)   /* of peak_bf16, causal */  \
    X(EFFICIENCY_ATTENTION_BACKWARD, "efficiency_attention_backward", "fraction", 1e-6, 1) /* of peak_bf16, causal */  \
    X(EFFICIENCY_MEMORY, "efficiency_memory", "fraction", 1e-6, 1)             /* of memory_bandwidth */               \
    X(EFFICIENCY_EXCHANGE, "efficiency_exchange", "fraction", 1e-6, 1)        /* of node_link, dispatch, combine */    \
    X(EFFICIENCY_COLLECTIVE, "efficiency_collective", "fraction", 1e-6, 1)     /* of node_link, bus bandwidth */       \
    X(EFFICIENCY_RAIL, "efficiency_rail", "fraction", 1e-6, 1)                 /* of rail */

enum rk_hardware_figure {
#define RK_HARDWARE_FIGURE_KIND(name, key, unit, minimum, maximum) RK_HARDWARE_##name,
    RK_HARDWARE_FIGURE_TABLE(RK_HARDWARE_FIGURE_KIND)
#undef RK_HARDWARE_FIGURE_KIND
    RK_HARDWARE_FIGURE_COUNT
};
const char *rk_hardware_figure_key(enum rk_hardware_figure figure);
const char *rk_hardware_figure_unit(enum rk_hardware_figure figure);

struct rk_profile_figure {
    bool known;
    double value;
    double low, high;              /* the range that the source states; both equal to value when it states none */
    enum rk_profile_origin origin;
    char source[256];              /* where it is printed, or how it was derived */
    char condition[256];           /* of a measurement; "" otherwise */
};

/* A time that someone published for a piece of a step rather than for an op. X(name, text) */
#define RK_PUBLISHED_TABLE(X)                                                                                          \
    X(MOE_BLOCK_FORWARD, "moe_block_forward")                                                                          \
    X(MOE_BLOCK_BACKWARD, "moe_block_backward")                                                                        \
    X(MICRO_BATCH, "micro_batch")             /* forward and backward of one micro-batch through all layers */

enum rk_published_kind {
#define RK_PUBLISHED_KIND(name, text) RK_PUBLISHED_##name,
    RK_PUBLISHED_TABLE(RK_PUBLISHED_KIND)
#undef RK_PUBLISHED_KIND
    RK_PUBLISHED_COUNT
};

/* The time and the shape it holds for. Layers count for MICRO_BATCH only. */
struct rk_published_time {
    enum rk_published_kind kind;
    int64_t tokens, hidden, query_width, kv_width, expert_hidden, shared_hidden, top_k, layers, expert_parallel;
    struct rk_profile_figure seconds;
};

struct rk_hardware {
    char name[64];
    struct rk_profile_figure figures[RK_HARDWARE_FIGURE_COUNT];
    struct rk_published_time published[RK_HARDWARE_PUBLISHED_MAX];
    int64_t published_count;
};

/* Reads a profile: strict (an unknown key, a unit other than the table's, a figure without origin or source, a
 * measurement without its condition, a value out of range are RK_USAGE and name the key). `name` is for messages.
 * *hardware is written only on success. */
enum rk_status rk_hardware_parse(const char *name, const char *text, size_t length, struct rk_hardware *hardware,
                                 struct rk_error *error);
enum rk_status rk_hardware_read_file(const char *path, struct rk_hardware *hardware, struct rk_error *error);

/* Canonical text; reading and writing a canonical profile gives the same bytes. */
enum rk_status rk_hardware_write(const struct rk_hardware *hardware, struct rk_text *text, struct rk_error *error);

/* The figure, or NULL when the profile has none. */
const struct rk_profile_figure *rk_hardware_figure(const struct rk_hardware *hardware, enum rk_hardware_figure figure);

/* The published time for a piece of this model with `tokens` on the rank, or NULL. Every width must be equal; the
 * number of experts is not compared, since a balanced block's time hardly depends on it. */
const struct rk_published_time *rk_hardware_published(const struct rk_hardware *hardware, enum rk_published_kind kind,
                                                      const struct rk_architecture *architecture, int64_t tokens);

/* The same figure as a term of a prediction. NULL gives a value of 0. */
struct rk_figure rk_hardware_term(const struct rk_profile_figure *figure, const char *profile);

/* What a plan needs of the machine. RK_USAGE names the keys that the profile lacks and a plan cannot do without
 * (memory, peak_bf16, gpus_per_node). Host links: the measured figure if known, else the specification. What is neither
 * required nor known is 0. reserved_bytes is the sum of "reserved" and "overhead". */
enum rk_status rk_hardware_machine(const struct rk_hardware *hardware, struct rk_machine *machine,
                                   struct rk_error *error);

#endif

#include "model/candidate.h"
#include "model/routing_limits.h"

#include <math.h>
#include <string.h>

static const char *const recompute_names[RK_RECOMPUTE_COUNT] = {
#define RK_RECOMPUTE_NAME(name, text) text,
    RK_RECOMPUTE_TABLE(RK_RECOMPUTE_NAME)
#undef RK_RECOMPUTE_NAME
};

static const char *const routing_names[RK_ROUTING_COUNT] = {
    [RK_ROUTING_LEARNED] = "learned", [RK_ROUTING_RANDOM] = "random", [RK_ROUTING_UNIFORM] = "uniform"};

static int find_name(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return count;
}

const char *rk_recompute_name(enum rk_recompute policy) {
    return recompute_names[policy];
}

enum rk_recompute rk_recompute_from_name(const char *name) {
    return (enum rk_recompute)find_name(recompute_names, RK_RECOMPUTE_COUNT, name);
}

const char *rk_routing_name(enum rk_routing routing) {
    return routing_names[routing];
}

enum rk_routing rk_routing_from_name(const char *name) {
    return (enum rk_routing)find_name(routing_names, RK_ROUTING_COUNT, name);
}

int64_t rk_candidate_world(const struct rk_candidate *candidate) {
    return (int64_t)candidate->pipeline * candidate->data_parallel;
}

int64_t rk_candidate_micro_batches(const struct rk_candidate *candidate) {
    return candidate->global_batch_tokens / (candidate->micro_batch_tokens * candidate->data_parallel);
}

int64_t rk_candidate_receive_rows(const struct rk_architecture *architecture, const struct rk_candidate *candidate) {
    int64_t routes = candidate->micro_batch_tokens * architecture->top_k;
    if (candidate->expert_parallel == 1)
        return routes;
    double rows = ceil(candidate->capacity_factor * (double)routes);
    double most = (double)candidate->expert_parallel * (double)routes;
    return (int64_t)fmin(fmin(rows, most), 0x1p62);
}

void rk_candidate_defaults(struct rk_candidate *candidate) {
    enum { LOGITS_CHUNK_MAX = 1024, BUCKET_MIB = 250 };
    int64_t tokens = candidate->micro_batch_tokens;
    if (candidate->virtual_stages == 0)
        candidate->virtual_stages = 1;
    int64_t chunk = tokens < LOGITS_CHUNK_MAX ? tokens : LOGITS_CHUNK_MAX;
    while (chunk > 1 && tokens % chunk != 0)
        chunk--;
    candidate->logits_chunk_tokens = chunk;
    candidate->bucket_bytes = (int64_t)BUCKET_MIB << 20;
    candidate->balance_coefficient = 0.01;
    candidate->z_coefficient = 0.001;
    candidate->weight_decay = 0.1;
}

void rk_candidate_even_chunks(const struct rk_architecture *architecture, struct rk_candidate *candidate) {
    int64_t chunks = (int64_t)candidate->pipeline * candidate->virtual_stages;
    int64_t layers = architecture->layers / chunks, remainder = architecture->layers % chunks;
    memset(candidate->chunk_layers, 0, sizeof candidate->chunk_layers);
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        candidate->chunk_layers[chunk] = (int16_t)(layers + (chunk >= 1 && chunk <= remainder));
}

/* A value that must lie in a range. */
static enum rk_status check_range(const char *name, int64_t value, int64_t low, int64_t high, struct rk_error *error) {
    if (value >= low && value <= high)
        return RK_OK;
    return rk_fail(error, RK_USAGE, "%s is %lld; it must lie between %lld and %lld", name, (long long)value,
                   (long long)low, (long long)high);
}

static enum rk_status check_finite(const char *name, double value, double low, double high, struct rk_error *error) {
    if (isfinite(value) && value >= low && value <= high)
        return RK_OK;
    return rk_fail(error, RK_USAGE, "%s is %g; it must be a number between %g and %g", name, value, low, high);
}

static enum rk_status check_divides(const char *part_name, int64_t part, const char *whole_name, int64_t whole,
                                    struct rk_error *error) {
    if (whole % part == 0)
        return RK_OK;
    return rk_fail(error, RK_USAGE, "%s (%lld) must divide %s (%lld)", part_name, (long long)part, whole_name,
                   (long long)whole);
}

static enum rk_status check_ranges(const struct rk_candidate *candidate, struct rk_error *error) {
    const struct {
        const char *name;
        int64_t value, low, high;
    } whole[] = {
        {"PP", candidate->pipeline, 1, RK_STAGES_MAX},
        {"virtual stages", candidate->virtual_stages, 1, RK_VIRTUAL_STAGES_MAX},
        {"EP-MP", candidate->expert_parallel, 1, RK_RANKS_MAX},
        {"D (EP-MP x EP-DP)", candidate->data_parallel, 1, RK_RANKS_MAX},
        {"sequence length", candidate->sequence, 1, RK_TOKENS_MAX},
        {"micro-batch tokens", candidate->micro_batch_tokens, 1, RK_TOKENS_MAX},
        {"global batch tokens", candidate->global_batch_tokens, 1, RK_GLOBAL_TOKENS_MAX},
        {"recompute policy", (int64_t)candidate->recompute, 0, RK_RECOMPUTE_COUNT - 1},
        {"offload per cent", candidate->offload_percent, 0, 100},
        {"data type", (int64_t)candidate->type, 0, RK_DATA_TYPE_COUNT - 1},
        {"back end", (int64_t)candidate->backend, 0, RK_BACKEND_COUNT - 1},
        {"routing", (int64_t)candidate->routing, 0, RK_ROUTING_COUNT - 1},
        {"logits chunk tokens", candidate->logits_chunk_tokens, 1, RK_TOKENS_MAX},
        {"bucket bytes", candidate->bucket_bytes, 1, INT64_MAX},
    };
    enum rk_status status = RK_OK;
    for (size_t i = 0; i < sizeof whole / sizeof whole[0] && status == RK_OK; i++)
        status = check_range(whole[i].name, whole[i].value, whole[i].low, whole[i].high, error);
    if (status == RK_OK)
        status = check_finite("capacity factor", candidate->capacity_factor, 1e-3, 1e6, error);
    if (status == RK_OK)
        status = check_finite("balance coefficient", candidate->balance_coefficient, 0, 1e6, error);
    if (status == RK_OK)
        status = check_finite("z-loss coefficient", candidate->z_coefficient, 0, 1e6, error);
    if (status == RK_OK)
        status = check_finite("weight decay", candidate->weight_decay, 0, 1e6, error);
    return status;
}

static enum rk_status check_batch(const struct rk_candidate *candidate, struct rk_error *error) {
    enum rk_status status = check_divides("sequence length", candidate->sequence, "micro-batch tokens",
                                          candidate->micro_batch_tokens, error);
    if (status == RK_OK)
        status = check_divides("logits chunk tokens", candidate->logits_chunk_tokens, "micro-batch tokens",
                               candidate->micro_batch_tokens, error);
    if (status == RK_OK)
        status = check_divides("tokens of one micro-batch on all D ranks",
                               candidate->micro_batch_tokens * candidate->data_parallel, "global batch tokens",
                               candidate->global_batch_tokens, error);
    if (status != RK_OK || candidate->virtual_stages == 1)
        return status;
    if (candidate->pipeline == 1)
        return rk_fail(error, RK_USAGE, "%d virtual stages need PP of at least 2", candidate->virtual_stages);
    return check_divides("PP, with virtual stages,", candidate->pipeline, "micro-batches per step",
                         rk_candidate_micro_batches(candidate), error);
}

static enum rk_status check_experts(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                    struct rk_error *error) {
    enum rk_status status = check_divides("EP-MP", candidate->expert_parallel, "D", candidate->data_parallel, error);
    if (status != RK_OK)
        return status;
    if (architecture->moe_layers == 0)
        return check_range("EP-MP of a model without experts", candidate->expert_parallel, 1, 1, error);
    return check_divides("EP-MP", candidate->expert_parallel, "the number of experts", architecture->experts, error);
}

static enum rk_status check_chunks(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                   struct rk_error *error) {
    int chunks = candidate->pipeline * candidate->virtual_stages;
    int64_t layers = 0;
    if (chunks > architecture->layers)
        return rk_fail(error, RK_USAGE, "PP %d with %d virtual stages makes %d chunks, but the model has %lld layers",
                       candidate->pipeline, candidate->virtual_stages, chunks, (long long)architecture->layers);
    for (int chunk = 0; chunk < chunks; chunk++) {
        layers += candidate->chunk_layers[chunk];
        if (candidate->chunk_layers[chunk] < 1)
            return rk_fail(error, RK_USAGE, "chunk %d of %d has %d layers; every chunk needs at least one", chunk,
                           chunks, candidate->chunk_layers[chunk]);
    }
    if (layers == architecture->layers)
        return RK_OK;
    return rk_fail(error, RK_USAGE, "the chunks' layers add up to %lld, but the model has %lld", (long long)layers,
                   (long long)architecture->layers);
}

enum rk_status rk_candidate_check(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                  struct rk_error *error) {
    enum rk_status status = check_ranges(candidate, error);
    if (status == RK_OK)
        status = check_batch(candidate, error);
    if (status == RK_OK)
        status = check_experts(architecture, candidate, error);
    if (status == RK_OK)
        status = check_chunks(architecture, candidate, error);
    return status;
}

/* ---- sizes ---- */

/* A hostile plan or config may ask for a schedule that no memory holds: blocks visited per step on a rank. */
static const double VISITS_MAX = 4194304;

/* Row numbers, routes and the kernels' grids are 32-bit. */
static enum rk_status check_counts(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                   struct rk_error *error) {
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {
        {"tokens of a micro-batch", candidate->micro_batch_tokens},
        {"routes of a micro-batch", candidate->micro_batch_tokens * architecture->top_k},
        {"receive rows of a rank", rk_candidate_receive_rows(architecture, candidate)},
        {"vocabulary", architecture->vocabulary},
        {"micro-batches of a step", rk_candidate_micro_batches(candidate)},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i].value > INT32_MAX)
            return rk_fail(error, RK_INFEASIBLE, "%s: %lld, at most %d fit; use a smaller micro-batch or more ranks",
                           counts[i].name, (long long)counts[i].value, INT32_MAX);
    double visits = 2.0 * (double)rk_candidate_micro_batches(candidate) *
                    ((double)architecture->layers / candidate->pipeline + candidate->virtual_stages);
    if (visits <= VISITS_MAX)
        return RK_OK;
    return rk_fail(error, RK_INFEASIBLE,
                   "a step of %lld micro-batches visits %.3g blocks on a rank; at most %.3g are planned: enlarge the "
                   "micro-batch or use more ranks",
                   (long long)rk_candidate_micro_batches(candidate), visits, VISITS_MAX);
}

static double largest(const double *values, size_t count) {
    double most = 0;
    for (size_t i = 0; i < count; i++)
        most = fmax(most, values[i]);
    return most;
}

/* No operand and no workspace of a micro-batch has more elements. */
static double largest_operand(const struct rk_architecture *a, const struct rk_candidate *candidate) {
    double queries = (double)rk_architecture_query_width(a), keys = (double)rk_architecture_kv_width(a);
    const double token_widths[] = {
        (double)a->hidden,
        queries + 2 * keys,
        (double)rk_architecture_output_width(a),
        (double)a->heads * (double)(a->qk_nope_head_dim + a->v_head_dim),
        (double)a->q_lora_rank,
        (double)a->kv_lora_rank,
        2 * (double)a->dense_hidden,
        2 * (double)a->shared_hidden,
        (double)a->experts,
    };
    const double row_widths[] = {(double)a->hidden, 2 * (double)a->expert_hidden};
    const double elements[] = {
        (double)candidate->micro_batch_tokens * largest(token_widths, sizeof token_widths / sizeof token_widths[0]),
        (double)rk_candidate_receive_rows(a, candidate) * largest(row_widths, 2),
        (double)candidate->logits_chunk_tokens * (double)a->vocabulary,
        (double)candidate->expert_parallel * (double)a->experts,
        4 * (double)candidate->sequence * (double)a->head_dim,
    };
    return largest(elements, sizeof elements / sizeof elements[0]);
}

/* Instances of a value that is kept from forward to backward: every live micro-batch of every layer of a stage, with
 * slots of each virtual stage's own or with one pool of them. */
static double kept_instances(const struct rk_candidate *candidate) {
    double live = fmin((double)rk_candidate_micro_batches(candidate), 2.0 * candidate->pipeline), most = 0;
    for (int stage = 0; stage < candidate->pipeline; stage++) {
        double own = 0, chunk = 0;
        for (int v = 0; v < candidate->virtual_stages; v++) {
            double layers = candidate->chunk_layers[v * candidate->pipeline + stage];
            own += layers;
            chunk = fmax(chunk, layers);
        }
        most = fmax(most, live * fmax(own, chunk * candidate->virtual_stages));
    }
    return most;
}

enum rk_status rk_candidate_check_sizes(const struct rk_architecture *architecture,
                                        const struct rk_candidate *candidate, struct rk_error *error) {
    /* More than a program has of values for each block, and the widest element. */
    enum { VALUES = 64, ELEMENT_BYTES = 8 };
    enum rk_status status = check_counts(architecture, candidate, error);
    if (status != RK_OK)
        return status;
    double bytes =
        largest_operand(architecture, candidate) * ELEMENT_BYTES * VALUES * (kept_instances(candidate) + 1);
    if (bytes <= 0x1p62)
        return RK_OK;
    return rk_fail(error, RK_INFEASIBLE,
                   "values of a micro-batch: up to %.3g bytes on a rank, at most %.3g can be counted; use a smaller "
                   "micro-batch or a smaller model",
                   bytes, 0x1p62);
}

enum rk_status rk_candidate_check_routing(const struct rk_architecture *architecture,
                                          const struct rk_candidate *candidate, struct rk_error *error) {
    bool cuda = candidate->backend == RK_BACKEND_CUDA;
    const struct {
        const char *name;
        int64_t value, most;
    } counts[] = {
        {"experts", architecture->experts, cuda ? RK_CUDA_EXPERTS_MAX : RK_CPU_EXPERTS_MAX},
        {"routes of a token", architecture->top_k, cuda ? RK_CUDA_ROUTES_MAX : RK_CPU_ROUTES_MAX},
        {"ranks of an EP-MP group", candidate->expert_parallel, cuda ? RK_CUDA_EXPERT_RANKS_MAX : RK_RANKS_MAX},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i].value > counts[i].most)
            return rk_fail(error, RK_USAGE, "%s: %lld %s; the kernels for %s run at most %lld", architecture->name,
                           (long long)counts[i].value, counts[i].name, cuda ? "GPUs" : "CPUs",
                           (long long)counts[i].most);
    return RK_OK;
}

struct rk_rank_place rk_candidate_place(const struct rk_candidate *candidate, int64_t world_rank) {
    int64_t in_stage = world_rank % candidate->data_parallel;
    return (struct rk_rank_place){.stage = (int32_t)(world_rank / candidate->data_parallel),
                                  .expert_replica = (int32_t)(in_stage / candidate->expert_parallel),
                                  .expert_rank = (int32_t)(in_stage % candidate->expert_parallel)};
}

/* A group is an arithmetic series of world ranks. */
struct rank_series {
    int64_t first, stride, count;
};

static struct rank_series group_series(const struct rk_candidate *candidate, int64_t world_rank,
                                       enum rk_group_kind group) {
    int64_t ranks = candidate->data_parallel, experts = candidate->expert_parallel, stages = candidate->pipeline;
    int64_t in_stage = world_rank % ranks, stage_first = world_rank - in_stage;
    switch (group) {
    case RK_GROUP_EXPERT_PARALLEL:
        return (struct rank_series){world_rank - in_stage % experts, 1, experts};
    case RK_GROUP_EXPERT_REPLICA:
        return (struct rank_series){stage_first + in_stage % experts, experts, ranks / experts};
    case RK_GROUP_DATA:
        return (struct rank_series){stage_first, 1, ranks};
    case RK_GROUP_PIPELINE_NEXT:
        return (struct rank_series){(world_rank + ranks) % (stages * ranks), 1, 1};
    case RK_GROUP_PIPELINE_PREVIOUS:
        return (struct rank_series){(world_rank + (stages - 1) * ranks) % (stages * ranks), 1, 1};
    case RK_GROUP_EMBEDDING:
        return (struct rank_series){in_stage, stages == 1 ? 1 : (stages - 1) * ranks, stages == 1 ? 1 : 2};
    case RK_GROUP_WORLD:
        return (struct rank_series){0, 1, stages * ranks};
    case RK_GROUP_NONE:
    case RK_GROUP_COUNT:
        break;
    }
    return (struct rank_series){world_rank, 1, 1};
}

int64_t rk_candidate_group(const struct rk_candidate *candidate, int64_t world_rank, enum rk_group_kind group,
                           int64_t *ranks, int64_t capacity, int64_t *index) {
    struct rank_series series = group_series(candidate, world_rank, group);
    int64_t own = 0;
    for (int64_t i = 0; i < series.count; i++) {
        int64_t rank = series.first + i * series.stride;
        if (i < capacity)
            ranks[i] = rank;
        if (rank == world_rank)
            own = i;
    }
    *index = own;
    return series.count;
}

/* One candidate by closed form: a few additions over its stages once its parts are there. */
#include "model/memory_estimate.h"
#include "model/offload_budget.h"
#include "model/search_internal.h"

#include <math.h>

/* A candidate while it is judged. */
struct judging {
    struct rk_searching *searching;
    const struct rk_search_index *index;
    struct rk_verdict *verdict;
    int32_t pipeline, virtual_stages, experts;
    int64_t ranks, tokens, micro_batches;
    const struct rk_split *split;
    const struct rk_stage_class *classes;
    const int32_t *slots;
    const char *uncalibrated;
};

static enum rk_status refuse(struct judging *judging, enum rk_refusal refusal, double need, double have) {
    judging->verdict->refusal = (uint8_t)refusal;
    judging->verdict->need = need;
    judging->verdict->have = have;
    return RK_OK;
}

static bool refused(const struct judging *judging) {
    return judging->verdict->refusal != RK_REFUSAL_NONE;
}

/* Why a part of the candidate could not be made. One whose sizes do not fit is no failure of the search. */
static enum rk_status part_failure(struct judging *judging) {
    enum rk_status status = judging->searching->error->status;
    return status == RK_INFEASIBLE ? refuse(judging, RK_REFUSAL_SIZE, 0, 0) : status;
}

/* ---- divisibility, topology and size ---- */

static void judge_divisibility(struct judging *judging) {
    const struct rk_search_request *request = judging->searching->request;
    const struct rk_architecture *architecture = request->architecture;
    int64_t step = judging->tokens * judging->ranks, micro_batches = request->global_batch_tokens / step;
    if (judging->ranks % judging->experts != 0)
        refuse(judging, RK_REFUSAL_DIVISIBILITY, judging->experts, (double)judging->ranks);
    else if (architecture->moe_layers > 0 && architecture->experts % judging->experts != 0)
        refuse(judging, RK_REFUSAL_DIVISIBILITY, judging->experts, (double)architecture->experts);
    else if (architecture->moe_layers == 0 && judging->experts > 1)
        refuse(judging, RK_REFUSAL_DIVISIBILITY, judging->experts, 1);
    else if (request->global_batch_tokens % step != 0)
        refuse(judging, RK_REFUSAL_DIVISIBILITY, (double)step, (double)request->global_batch_tokens);
    else if ((int64_t)judging->pipeline * judging->virtual_stages > architecture->layers)
        refuse(judging, RK_REFUSAL_DIVISIBILITY, judging->pipeline * judging->virtual_stages,
               (double)architecture->layers);
    else if (judging->virtual_stages > 1 && judging->pipeline == 1)
        refuse(judging, RK_REFUSAL_DIVISIBILITY, 2, 1);
    else if (judging->virtual_stages > 1 && micro_batches % judging->pipeline != 0)
        refuse(judging, RK_REFUSAL_DIVISIBILITY, judging->pipeline, (double)micro_batches);
}

/* An EP-MP group of ranks in a row must lie inside one host. */
static void judge_topology(struct judging *judging) {
    const struct rk_machine *machine = judging->searching->request->machine;
    int64_t devices = machine->devices_per_host, world = judging->searching->request->world;
    if (machine->shared_devices || devices <= 0 || world <= devices)
        return;
    if (judging->experts > devices || devices % judging->experts != 0)
        refuse(judging, RK_REFUSAL_TOPOLOGY, judging->experts, (double)devices);
}

static void judge_size(struct judging *judging) {
    struct rk_candidate candidate;
    rk_search_candidate(judging->searching, judging->index, &candidate);
    if (rk_candidate_check_sizes(judging->searching->request->architecture, &candidate, NULL) != RK_OK)
        refuse(judging, RK_REFUSAL_SIZE, 0, 0);
}

/* ---- memory ---- */

static int64_t ring_instances(int32_t layers, int32_t ring_size) {
    return layers < ring_size ? layers : ring_size;
}

/* Bytes of kept values with slots of each virtual stage's own, or with one pool of slots for all
 * (rk_program.slot_pool). */
static int64_t slot_bytes(const struct judging *judging, const struct rk_scope_bytes *bytes,
                          const struct rk_split_stage *stage, const int32_t *slots, bool pooled) {
    int64_t sum = 0, most[RK_LAYER_KIND_SETS] = {0};
    for (int32_t v = 0; v < judging->virtual_stages; v++) {
        int64_t dense = stage->layers[0][v], routed = stage->layers[1][v];
        const int64_t layers[RK_LAYER_KIND_SETS] = {0, dense, routed, dense + routed};
        for (int kinds = 1; kinds < RK_LAYER_KIND_SETS; kinds++) {
            sum += slots[v] * bytes->layer_slot[kinds] * layers[kinds];
            most[kinds] = layers[kinds] > most[kinds] ? layers[kinds] : most[kinds];
        }
        sum += slots[v] * bytes->slot;
    }
    if (!pooled)
        return sum;
    sum = bytes->slot;
    for (int kinds = 1; kinds < RK_LAYER_KIND_SETS; kinds++)
        sum += bytes->layer_slot[kinds] * most[kinds];
    return sum * slots[judging->virtual_stages];
}

/* The lowering takes the smaller of the two, host memory included. */
static bool is_pooled(const struct judging *judging, const struct rk_search_template *part,
                      const struct rk_split_stage *stage, const int32_t *slots) {
    int64_t pooled =
        slot_bytes(judging, &part->device, stage, slots, true) + slot_bytes(judging, &part->host, stage, slots, true);
    int64_t own =
        slot_bytes(judging, &part->device, stage, slots, false) + slot_bytes(judging, &part->host, stage, slots, false);
    return pooled < own;
}

static int64_t scope_bytes(const struct judging *judging, const struct rk_scope_bytes *bytes, int32_t ring_size,
                           const struct rk_split_stage *stage) {
    int64_t sum = bytes->step + bytes->micro_batch * judging->micro_batches;
    const int32_t *count = stage->layer_count;
    sum += bytes->layer_ring[1] * ring_instances(count[0], ring_size) +
           bytes->layer_ring[2] * ring_instances(count[1], ring_size) +
           bytes->layer_ring[3] * ring_instances(count[0] + count[1], ring_size);
    sum += bytes->layer[1] * count[0] + bytes->layer[2] * count[1] + bytes->layer[3] * (count[0] + count[1]);
    return sum;
}

static enum rk_status judge_memory(struct judging *judging) {
    struct rk_verdict *verdict = judging->verdict;
    const struct rk_machine *machine = judging->searching->request->machine;
    for (int32_t s = 0; s < judging->pipeline; s++) {
        const struct rk_split_stage *stage = &judging->split->stages[s];
        const struct rk_search_template *part =
            rk_search_template(judging->searching, judging->index, verdict->percent, stage);
        if (part == NULL)
            return part_failure(judging);
        const struct rk_stage_class *class = &judging->classes[s];
        const int32_t *slots = &judging->slots[s * (judging->virtual_stages + 1)];
        bool pooled = is_pooled(judging, part, stage, slots);
        int64_t shared = part->visit_bytes > class->visit_bytes ? part->visit_bytes : class->visit_bytes;
        int32_t ring = part->layer_ring_size;
        int64_t persistent = class->flat_bytes + scope_bytes(judging, &part->device, ring, stage);
        int64_t all = persistent + shared + slot_bytes(judging, &part->device, stage, slots, pooled);
        int64_t host =
            scope_bytes(judging, &part->host, ring, stage) + slot_bytes(judging, &part->host, stage, slots, pooled);
        if (all > verdict->bytes[1]) {
            verdict->bytes[0] = persistent;
            verdict->bytes[1] = all;
            verdict->heaviest_stage = s;
        }
        verdict->host_bytes = host > verdict->host_bytes ? host : verdict->host_bytes;
    }
    /* So near the limit the layout itself speaks. */
    double ratio = (double)verdict->bytes[1] / (double)judging->searching->limit_bytes;
    if (ratio > 0.995 && ratio < 1.005)
        return rk_search_replay(judging->searching, false, verdict, NULL);
    if (verdict->bytes[1] > judging->searching->limit_bytes)
        return refuse(judging, RK_REFUSAL_MEMORY, (double)verdict->bytes[1] / RK_GIB,
                      (double)judging->searching->limit_bytes / RK_GIB);
    if (verdict->host_bytes > machine->host_memory_bytes)
        return refuse(judging, RK_REFUSAL_HOST_MEMORY, (double)verdict->host_bytes / RK_GIB,
                      (double)machine->host_memory_bytes / RK_GIB);
    return RK_OK;
}

/* ---- sums of seconds ---- */

static void add(struct rk_search_seconds *sum, const struct rk_search_seconds *part, double times) {
    sum->total += times * part->total;
    sum->ops += times * part->ops;
    sum->doubt += times * part->doubt;
    for (int i = 0; i < RK_ORIGIN_COUNT; i++)
        sum->origin[i] += times * part->origin[i];
}

/* The worst origin that makes more than a tenth of the time. */
static enum rk_origin worst_origin(const struct rk_search_seconds *sum) {
    double all = 0, worse = 0;
    for (int i = 0; i < RK_ORIGIN_COUNT; i++)
        all += sum->origin[i];
    for (int i = RK_ORIGIN_COUNT - 1; i > 0; i--) {
        worse += sum->origin[i];
        if (worse > 0.1 * all)
            return (enum rk_origin)i;
    }
    return RK_ORIGIN_MEASURED;
}

/* ---- offload ---- */

/* Bytes that a block keeps without offload, balanced and without capacity padding, under the policy. */
static double kept_bytes(const struct judging *judging, int kind) {
    const struct rk_search_request *request = judging->searching->request;
    const struct rk_architecture *architecture = request->architecture;
    double width = (double)rk_data_type_bytes(request->type), tokens = (double)judging->tokens;
    double unit = tokens * width;
    double whole = kind == RK_BLOCK_MOE ? rk_moe_block_activation_bytes(architecture, tokens, width)
                                        : rk_dense_block_activation_bytes(architecture, tokens, width);
    double core = unit * ((double)architecture->hidden + (double)rk_architecture_query_width(architecture) +
                          2 * (double)rk_architecture_kv_width(architecture) +
                          (double)rk_architecture_output_width(architecture));
    switch ((enum rk_recompute)judging->searching->space.recompute[judging->index->recompute]) {
    case RK_RECOMPUTE_ATTENTION:
        return whole - core;
    case RK_RECOMPUTE_BLOCK:
        return unit * (double)architecture->hidden;
    case RK_RECOMPUTE_NONE:
    case RK_RECOMPUTE_COUNT:
        break;
    }
    return whole;
}

/* What the offloaded share of a block's kept bytes demands of the link, and how much of them fits. */
static void judge_block_offload(struct judging *judging, const struct rk_search_template *part, int kind,
                                double share) {
    const struct rk_machine *machine = judging->searching->request->machine;
    struct rk_verdict *verdict = judging->verdict;
    struct rk_offload_demand demand = {.activation_bytes = kept_bytes(judging, kind),
                                       .forward_seconds = part->forward[kind].total,
                                       .backward_seconds = part->backward[kind].total};
    struct rk_offload_link link = {machine->d2h.value, machine->h2d.value};
    if (demand.forward_seconds <= 0 || demand.backward_seconds <= 0 || link.device_to_host <= 0 ||
        link.host_to_device <= 0)
        return;
    struct rk_offload_budget budget;
    rk_offload_budget(&demand, &link, &budget);
    if (budget.fraction < verdict->allowed)
        verdict->allowed = budget.fraction;
    if (share > 0) {
        verdict->offload_need[0] = fmax(verdict->offload_need[0], share * budget.need_device_to_host / 1e9);
        verdict->offload_need[1] = fmax(verdict->offload_need[1], share * budget.need_host_to_device / 1e9);
    }
    if (share <= budget.fraction)
        return;
    bool to_host = share * budget.excess_device_to_host > 1;
    double need = share * (to_host ? budget.need_device_to_host : budget.need_host_to_device) / 1e9;
    double have = (to_host ? link.device_to_host : link.host_to_device) / 1e9;
    if (!refused(judging) || need / have > verdict->need / verdict->have)
        refuse(judging, to_host ? RK_REFUSAL_OFFLOAD_D2H : RK_REFUSAL_OFFLOAD_H2D, need, have);
    struct rk_search_seconds windows = part->forward[kind];
    add(&windows, &part->backward[kind], 1);
    verdict->origin = (uint8_t)worst_origin(&windows);
}

/* The kind of block that keeps most of a stage's bytes speaks for the stage: staging evens out the others. */
static int prevailing_kind(const struct judging *judging, const struct rk_split_stage *stage) {
    double dense = stage->layer_count[RK_BLOCK_DENSE] > 0
                       ? stage->layer_count[RK_BLOCK_DENSE] * kept_bytes(judging, RK_BLOCK_DENSE)
                       : 0;
    double routed =
        stage->layer_count[RK_BLOCK_MOE] > 0 ? stage->layer_count[RK_BLOCK_MOE] * kept_bytes(judging, RK_BLOCK_MOE) : 0;
    return routed >= dense ? RK_BLOCK_MOE : RK_BLOCK_DENSE;
}

/* Every stage must fit; share < 0 asks only for the allowed fraction. */
static enum rk_status judge_offload(struct judging *judging, int32_t percent, double share) {
    judging->verdict->allowed = 1;
    for (int32_t s = 0; s < judging->pipeline; s++) {
        const struct rk_split_stage *stage = &judging->split->stages[s];
        const struct rk_search_template *part = rk_search_template(judging->searching, judging->index, percent, stage);
        if (part == NULL)
            return part_failure(judging);
        if (!part->priced) {
            judging->uncalibrated = part->uncalibrated;
            return refuse(judging, RK_REFUSAL_UNCALIBRATED, 0, 0);
        }
        int kind = prevailing_kind(judging, stage);
        double moved = share;
        if (share > 0 && share < 1 && part->kept_bytes[kind] > 0 && part->offloaded_bytes[kind] > 0)
            moved = part->offloaded_bytes[kind] / part->kept_bytes[kind];
        judge_block_offload(judging, part, kind, moved);
    }
    return RK_OK;
}

/* The largest whole per cent that the link carries. Where a fixed one is as large it is no candidate of its own. */
static enum rk_status choose_allowed(struct judging *judging) {
    struct rk_verdict *verdict = judging->verdict;
    enum rk_status status = judge_offload(judging, 0, -1);
    if (status != RK_OK)
        return status;
    double allowed = verdict->allowed;
    verdict->percent = refused(judging) ? 0 : (int32_t)floor(100 * allowed + 1e-9);
    verdict->absent = verdict->percent % 25 == 0;
    return RK_OK;
}

/* Values leave whole. A fixed percentage that moves nothing more than the one before it is no candidate of its own. */
static enum rk_status compare_offload(struct judging *judging) {
    const struct rk_search_space *space = &judging->searching->space;
    int32_t place = judging->index->offload;
    if (place == 0)
        return RK_OK;
    /* Under block recompute only the block's input is kept: all of it leaves or nothing. */
    int policy = space->recompute[judging->index->recompute];
    judging->verdict->absent = policy == RK_RECOMPUTE_BLOCK && space->offload[place] < 100;
    for (int32_t s = 0; s < judging->pipeline && policy != RK_RECOMPUTE_BLOCK; s++) {
        const struct rk_split_stage *stage = &judging->split->stages[s];
        const struct rk_search_template *before =
            rk_search_template(judging->searching, judging->index, space->offload[place - 1], stage);
        const struct rk_search_template *here =
            before != NULL ? rk_search_template(judging->searching, judging->index, space->offload[place], stage)
                           : NULL;
        if (here == NULL)
            return part_failure(judging);
        for (int kind = 0; kind < 2; kind++)
            if (stage->layer_count[kind] > 0 && here->offloaded_bytes[kind] > before->offloaded_bytes[kind])
                return RK_OK;
        judging->verdict->absent = true;
    }
    return RK_OK;
}

/* ---- seconds ---- */

/* Copies run beside a block's ops, or after them where streams take turns. */
static double with_copies(const struct judging *judging, double block, double copies) {
    if (judging->searching->request->machine->serial_streams)
        return copies;
    return copies > block ? copies - block : 0;
}

/* Forward and backward of one micro-batch on a stage, and everything the stage does in a step. */
struct stage_seconds {
    double forward, backward, end, reduction;
};

static enum rk_status stage_seconds(struct judging *judging, int32_t s, struct stage_seconds *seconds,
                                    struct rk_search_seconds *step) {
    const struct rk_split_stage *stage = &judging->split->stages[s];
    const struct rk_search_template *part =
        rk_search_template(judging->searching, judging->index, judging->verdict->percent, stage);
    if (part == NULL)
        return part_failure(judging);
    const struct rk_stage_class *class = &judging->classes[s];
    if (!part->priced || !class->priced) {
        judging->uncalibrated = part->priced ? class->uncalibrated : part->uncalibrated;
        return refuse(judging, RK_REFUSAL_UNCALIBRATED, 0, 0);
    }
    double times = judging->virtual_stages, micro_batches = (double)judging->micro_batches;
    seconds->forward = times * part->extra_forward.total;
    seconds->backward = times * part->extra_backward.total;
    add(step, &part->extra_forward, times * micro_batches);
    add(step, &part->extra_backward, times * micro_batches);
    for (int kind = 0; kind < 2; kind++) {
        double layers = stage->layer_count[kind];
        seconds->forward +=
            layers * (part->forward[kind].total + with_copies(judging, part->forward[kind].total, part->to_host[kind]));
        seconds->backward += layers * (part->backward[kind].total +
                                       with_copies(judging, part->backward[kind].total, part->to_device[kind]));
        add(step, &part->forward[kind], layers * micro_batches);
        add(step, &part->backward[kind], layers * micro_batches);
    }
    seconds->end = class->end.total;
    seconds->reduction = class->reduction.total;
    add(step, &class->end, 1);
    add(step, &class->reduction, 1);
    return RK_OK;
}

/* The slowest way through the pipeline that stays on one stage: the micro-batches of the stage, behind the forward and
 * before the backward of the stages in front of it (divided by the virtual stages). Exact for even stages. Reductions
 * hide behind the last backward where streams overlap. */
static enum rk_status judge_seconds(struct judging *judging) {
    const struct rk_machine *machine = judging->searching->request->machine;
    double ahead = 0, slowest = 0, work = 0, all_end = 0;
    struct rk_search_seconds decisive = {0};
    for (int32_t s = 0; s < judging->pipeline; s++) {
        struct stage_seconds seconds = {0};
        struct rk_search_seconds step = {0};
        enum rk_status status = stage_seconds(judging, s, &seconds, &step);
        if (status != RK_OK || refused(judging))
            return status;
        double own = (double)judging->micro_batches * (seconds.forward + seconds.backward);
        double covered = machine->serial_streams ? 0 : seconds.backward;
        double reduction = seconds.reduction > covered ? seconds.reduction - covered : 0;
        double launches = machine->serial_streams ? 0 : step.ops * machine->launch.value;
        double through = ahead / judging->virtual_stages + fmax(own + reduction, launches);
        all_end = seconds.end > all_end ? seconds.end : all_end;
        work += own + seconds.reduction + seconds.end;
        ahead += seconds.forward + seconds.backward;
        if (through > slowest) {
            slowest = through;
            decisive = step;
        }
    }
    double total = slowest + all_end;
    if (machine->shared_devices) {
        double shared = work * (double)judging->ranks / machine->devices_per_host;
        total = shared > total ? shared : total;
    }
    total += machine->step_overhead.value;
    judging->verdict->seconds = total;
    double doubt = decisive.total > 0 ? total * decisive.doubt / decisive.total : 0;
    judging->verdict->low = total > doubt ? total - doubt : 0;
    judging->verdict->high = total + doubt;
    judging->verdict->origin = (uint8_t)worst_origin(&decisive);
    return RK_OK;
}

/* ---- the judge ---- */

static enum rk_status prepare(struct judging *judging) {
    judging->micro_batches = judging->searching->request->global_batch_tokens / (judging->tokens * judging->ranks);
    judging->split = rk_search_split(judging->searching, judging->index);
    judging->classes = judging->split != NULL ? rk_search_classes(judging->searching, judging->index) : NULL;
    judging->slots = judging->classes != NULL ? rk_search_slots(judging->searching, judging->index) : NULL;
    return judging->slots != NULL ? RK_OK : part_failure(judging);
}

enum rk_status rk_search_judge(struct rk_searching *searching, const struct rk_search_index *index,
                               struct rk_verdict *verdict, const char **uncalibrated) {
    const struct rk_search_space *space = &searching->space;
    struct judging judging = {.searching = searching,
                              .index = index,
                              .verdict = verdict,
                              .pipeline = space->pipeline[index->pipeline],
                              .virtual_stages = space->virtual_stages[index->virtual_stages],
                              .experts = space->expert_parallel[index->expert],
                              .tokens = space->micro_batch[index->micro_batch]};
    judging.ranks = searching->request->world / judging.pipeline;
    bool allowed = space->offload[index->offload] < 0;
    *verdict = (struct rk_verdict){.index = *index, .percent = allowed ? 0 : space->offload[index->offload]};
    judge_divisibility(&judging);
    if (!refused(&judging))
        judge_topology(&judging);
    if (!refused(&judging))
        judge_size(&judging);
    if (refused(&judging)) {
        verdict->absent = allowed;
        return RK_OK;
    }
    enum rk_status status = prepare(&judging);
    if (status == RK_OK && !refused(&judging) && !allowed)
        status = compare_offload(&judging);
    if (status != RK_OK || verdict->absent || refused(&judging))
        return status;
    if (allowed) {
        status = choose_allowed(&judging);
        verdict->absent = verdict->absent || refused(&judging);
        if (status != RK_OK || verdict->absent)
            return status;
    }
    status = judge_memory(&judging);
    if (status == RK_OK && !refused(&judging) && verdict->percent > 0)
        status = judge_offload(&judging, verdict->percent, verdict->percent / 100.0);
    if (status == RK_OK && !refused(&judging))
        status = judge_seconds(&judging);
    if (uncalibrated != NULL && judging.uncalibrated != NULL)
        *uncalibrated = judging.uncalibrated;
    return status;
}

void rk_search_verdict_candidate(struct rk_searching *searching, const struct rk_verdict *verdict,
                                 struct rk_candidate *candidate) {
    rk_search_candidate(searching, &verdict->index, candidate);
    candidate->offload_percent = verdict->percent;
}

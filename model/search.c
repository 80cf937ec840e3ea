#include "model/search_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPLAYED_DEFAULT = 16, REPLAYED_LEAST = 4 };

/* Replays stop after this many simulated ops: about a quarter of a second. */
static const int64_t REPLAYED_OPS = 3000000;

static const double EQUALLY_FAST = 0.001;

static const struct {
    const char *name, *unit;
} refusals[RK_REFUSAL_COUNT] = {
#define RK_REFUSAL_ROW(name, text, unit) {text, unit},
    RK_REFUSAL_TABLE(RK_REFUSAL_ROW)
#undef RK_REFUSAL_ROW
};

const char *rk_refusal_name(enum rk_refusal refusal) {
    return refusals[refusal].name;
}

const char *rk_refusal_unit(enum rk_refusal refusal) {
    return refusals[refusal].unit;
}

/* All verdicts in the order of the space, so that a neighbour is found by its index; then an order by rank. */
struct verdicts {
    struct rk_verdict *all;
    size_t count;
    size_t *order;
    size_t feasible;
    size_t refused[RK_REFUSAL_COUNT];
    char uncalibrated[160];
};

static size_t number_of(const struct rk_search_space *space, const struct rk_search_index *index) {
    size_t number = (size_t)index->pipeline;
    number = number * (size_t)space->virtual_count + (size_t)index->virtual_stages;
    number = number * (size_t)space->expert_count + (size_t)index->expert;
    number = number * (size_t)space->micro_batch_count + (size_t)index->micro_batch;
    number = number * (size_t)space->recompute_count + (size_t)index->recompute;
    return number * (size_t)space->offload_count + (size_t)index->offload;
}

static struct rk_search_index index_of(const struct rk_search_space *space, size_t number) {
    struct rk_search_index index;
    index.offload = (int32_t)(number % (size_t)space->offload_count);
    number /= (size_t)space->offload_count;
    index.recompute = (int32_t)(number % (size_t)space->recompute_count);
    number /= (size_t)space->recompute_count;
    index.micro_batch = (int32_t)(number % (size_t)space->micro_batch_count);
    number /= (size_t)space->micro_batch_count;
    index.expert = (int32_t)(number % (size_t)space->expert_count);
    number /= (size_t)space->expert_count;
    index.virtual_stages = (int32_t)(number % (size_t)space->virtual_count);
    index.pipeline = (int32_t)(number / (size_t)space->virtual_count);
    return index;
}

static enum rk_status judge_all(struct rk_searching *searching, struct verdicts *verdicts) {
    const struct rk_search_space *space = &searching->space;
    struct rk_search_index last = {space->pipeline_count - 1,    space->virtual_count - 1,   space->expert_count - 1,
                                   space->micro_batch_count - 1, space->recompute_count - 1, space->offload_count - 1};
    verdicts->count = number_of(space, &last) + 1;
    verdicts->all = calloc(verdicts->count, sizeof *verdicts->all);
    verdicts->order = calloc(verdicts->count, sizeof *verdicts->order);
    if (verdicts->all == NULL || verdicts->order == NULL)
        return rk_fail(searching->error, RK_ERROR, "out of memory for %zu candidates", verdicts->count);
    for (size_t i = 0; i < verdicts->count; i++) {
        struct rk_search_index index = index_of(space, i);
        const char *missing = NULL;
        enum rk_status status = rk_search_judge(searching, &index, &verdicts->all[i], &missing);
        if (status != RK_OK)
            return status;
        if (missing != NULL && verdicts->uncalibrated[0] == '\0')
            snprintf(verdicts->uncalibrated, sizeof verdicts->uncalibrated, "%s", missing);
    }
    return RK_OK;
}

/* ---- order ---- */

static double over(const struct rk_verdict *verdict) {
    return verdict->have > 0 ? verdict->need / verdict->have : 0;
}

/* Feasible by seconds; refused by kind, nearest first; ties by what needs fewer bytes, then by place in the space. */
static int compare(const struct rk_verdict *left, const struct rk_verdict *right) {
    if (left->absent != right->absent)
        return left->absent ? 1 : -1;
    if (left->refusal != right->refusal)
        return left->refusal < right->refusal ? -1 : 1;
    /* What was replayed stands before what was only estimated. */
    if (left->simulated != right->simulated)
        return left->simulated ? -1 : 1;
    double a = left->refusal == RK_REFUSAL_NONE ? left->seconds : over(left);
    double b = right->refusal == RK_REFUSAL_NONE ? right->seconds : over(right);
    if (a < b || a > b)
        return a < b ? -1 : 1;
    return (left->bytes[1] > right->bytes[1]) - (left->bytes[1] < right->bytes[1]);
}

static int compare_pointers(const void *a, const void *b) {
    const struct rk_verdict *left = *(const struct rk_verdict *const *)a, *right = *(const struct rk_verdict *const *)b;
    int order = compare(left, right);
    return order != 0 ? order : (left > right) - (left < right);
}

static enum rk_status sort(struct rk_searching *searching, struct verdicts *verdicts) {
    const struct rk_verdict **pointers = calloc(verdicts->count, sizeof *pointers);
    if (pointers == NULL)
        return rk_fail(searching->error, RK_ERROR, "out of memory for %zu candidates", verdicts->count);
    for (size_t i = 0; i < verdicts->count; i++)
        pointers[i] = &verdicts->all[i];
    qsort(pointers, verdicts->count, sizeof *pointers, compare_pointers);
    for (size_t i = 0; i < verdicts->count; i++)
        verdicts->order[i] = (size_t)(pointers[i] - verdicts->all);
    free(pointers);
    return RK_OK;
}

/* Of the replayed candidates that are as fast as the best, the plainest comes first: without offload, then with the
 * fewest bytes. A difference below EQUALLY_FAST is far inside every interval. */
static void prefer_plain(struct verdicts *verdicts) {
    const struct rk_verdict *best = &verdicts->all[verdicts->order[0]];
    size_t chosen = 0;
    for (size_t i = 1; best->simulated && i < verdicts->count; i++) {
        const struct rk_verdict *other = &verdicts->all[verdicts->order[i]];
        const struct rk_verdict *plainest = &verdicts->all[verdicts->order[chosen]];
        if (other->absent || other->refusal != RK_REFUSAL_NONE || !other->simulated ||
            other->seconds > best->seconds * (1 + EQUALLY_FAST))
            break;
        if (other->percent < plainest->percent ||
            (other->percent == plainest->percent && other->bytes[1] < plainest->bytes[1]))
            chosen = i;
    }
    size_t order = verdicts->order[chosen];
    memmove(&verdicts->order[1], &verdicts->order[0], chosen * sizeof verdicts->order[0]);
    verdicts->order[0] = order;
}

static void count_refusals(struct verdicts *verdicts) {
    memset(verdicts->refused, 0, sizeof verdicts->refused);
    verdicts->feasible = 0;
    for (size_t i = 0; i < verdicts->count; i++) {
        if (verdicts->all[i].absent)
            continue;
        verdicts->refused[verdicts->all[i].refusal]++;
        verdicts->feasible += verdicts->all[i].refusal == RK_REFUSAL_NONE;
    }
    verdicts->refused[RK_REFUSAL_NONE] = 0;
}

static enum rk_status replay_best(struct rk_searching *searching, struct verdicts *verdicts) {
    size_t wanted = searching->request->replayed > 0 ? searching->request->replayed : REPLAYED_DEFAULT;
    int64_t ops = 0;
    size_t done = 0;
    for (size_t i = 0; i < verdicts->count && done < wanted; i++) {
        struct rk_verdict *verdict = &verdicts->all[verdicts->order[i]];
        if (verdict->refusal != RK_REFUSAL_NONE || verdict->absent)
            break;
        if (ops > REPLAYED_OPS && done >= REPLAYED_LEAST)
            break;
        enum rk_status status = rk_search_replay(searching, true, verdict, &ops);
        if (status == RK_UNCALIBRATED) {
            /* The closed form asks for fewer places than the simulator. */
            verdict->refusal = RK_REFUSAL_UNCALIBRATED;
            snprintf(verdicts->uncalibrated, sizeof verdicts->uncalibrated, "%.*s",
                     (int)sizeof verdicts->uncalibrated - 1, searching->error->text);
            continue;
        }
        if (status != RK_OK)
            return status;
        done += verdict->refusal == RK_REFUSAL_NONE;
    }
    return sort(searching, verdicts);
}

/* ---- remedies ---- */

/* Values along one axis, nearest first, that make the candidate feasible with all else as it is; -1 when none does. */
static int32_t nearest_feasible(const struct rk_search_space *space, const struct verdicts *verdicts,
                                const struct rk_search_index *index, int32_t *axis, int32_t count) {
    int32_t own = *axis, found = -1;
    for (int32_t step = 1; step < count && found < 0; step++)
        for (int direction = -1; direction <= 1 && found < 0; direction += 2) {
            int32_t value = own + direction * step;
            if (value < 0 || value >= count)
                continue;
            *axis = value;
            const struct rk_verdict *verdict = &verdicts->all[number_of(space, index)];
            if (verdict->refusal == RK_REFUSAL_NONE && !verdict->absent)
                found = value;
        }
    *axis = own;
    return found;
}

/* The smallest change of one variable that makes it fit, those that cost least first. */
static void change_one(const struct rk_searching *searching, const struct verdicts *verdicts,
                       const struct rk_verdict *verdict, char *remedy, size_t size) {
    const struct rk_search_space *space = &searching->space;
    struct rk_search_index index = verdict->index;
    int32_t found;
    if ((found = nearest_feasible(space, verdicts, &index, &index.recompute, space->recompute_count)) >= 0)
        snprintf(remedy, size, "recompute %s", rk_recompute_name((enum rk_recompute)space->recompute[found]));
    else if ((found = nearest_feasible(space, verdicts, &index, &index.micro_batch, space->micro_batch_count)) >= 0)
        snprintf(remedy, size, "micro-batch %lld tokens", (long long)space->micro_batch[found]);
    else if ((found = nearest_feasible(space, verdicts, &index, &index.offload, space->offload_count)) >= 0) {
        index.offload = found;
        snprintf(remedy, size, "offload %d %%", verdicts->all[number_of(space, &index)].percent);
    } else if ((found = nearest_feasible(space, verdicts, &index, &index.expert, space->expert_count)) >= 0)
        snprintf(remedy, size, "EP %d", space->expert_parallel[found]);
    else if ((found = nearest_feasible(space, verdicts, &index, &index.virtual_stages, space->virtual_count)) >= 0)
        snprintf(remedy, size, "%d virtual stage%s", space->virtual_stages[found],
                 space->virtual_stages[found] == 1 ? "" : "s");
    else if ((found = nearest_feasible(space, verdicts, &index, &index.pipeline, space->pipeline_count)) >= 0)
        snprintf(remedy, size, "PP %d", space->pipeline[found]);
}

static void memory_remedy(const struct rk_verdict *verdict, char *remedy, size_t size) {
    double more = verdict->need - verdict->have;
    if (more >= 0.01)
        snprintf(remedy, size, "%.2f GiB more for each rank, or more ranks", more);
    else
        snprintf(remedy, size, "%.0f bytes more for each rank", more * RK_GIB);
}

/* The checks of candidates say what must divide what, and which size does not fit. */
static void check_remedy(struct rk_searching *searching, const struct rk_verdict *verdict, char *remedy, size_t size) {
    struct rk_candidate candidate;
    struct rk_error reason = {0};
    rk_search_verdict_candidate(searching, verdict, &candidate);
    const struct rk_architecture *architecture = searching->request->architecture;
    if (rk_candidate_check(architecture, &candidate, &reason) != RK_OK ||
        rk_candidate_check_sizes(architecture, &candidate, &reason) != RK_OK)
        snprintf(remedy, size, "%.*s", (int)size - 1, reason.text);
}

static void offload_remedy(const struct rk_verdict *verdict, char *remedy, size_t size) {
    double percent = 100 * verdict->allowed;
    snprintf(remedy, size, "offload at most %.1f %%", percent);
}

static void find_remedy(struct rk_searching *searching, const struct verdicts *verdicts,
                        const struct rk_verdict *verdict, char *remedy, size_t size) {
    remedy[0] = '\0';
    switch ((enum rk_refusal)verdict->refusal) {
    case RK_REFUSAL_OFFLOAD_D2H:
    case RK_REFUSAL_OFFLOAD_H2D:
        offload_remedy(verdict, remedy, size);
        return;
    case RK_REFUSAL_TOPOLOGY:
        change_one(searching, verdicts, verdict, remedy, size);
        if (remedy[0] == '\0')
            snprintf(remedy, size, "an EP that divides the %.0f ranks of a host", verdict->have);
        return;
    case RK_REFUSAL_MEMORY:
    case RK_REFUSAL_HOST_MEMORY:
        change_one(searching, verdicts, verdict, remedy, size);
        if (remedy[0] == '\0')
            memory_remedy(verdict, remedy, size);
        return;
    case RK_REFUSAL_DIVISIBILITY:
    case RK_REFUSAL_SIZE:
        check_remedy(searching, verdict, remedy, size);
        return;
    case RK_REFUSAL_UNCALIBRATED:
        snprintf(remedy, size, "%s", verdicts->uncalibrated);
        return;
    case RK_REFUSAL_NONE:
    case RK_REFUSAL_COUNT:
        return;
    }
}

/* ---- the result ---- */

static void judgement_of(struct rk_searching *searching, const struct verdicts *verdicts,
                         const struct rk_verdict *verdict, struct rk_judgement *judgement) {
    *judgement = (struct rk_judgement){.refusal = (enum rk_refusal)verdict->refusal,
                                       .need = verdict->need,
                                       .have = verdict->have,
                                       .seconds = verdict->seconds,
                                       .low = verdict->low,
                                       .high = verdict->high,
                                       .simulated = verdict->simulated,
                                       .arena_bytes = {verdict->bytes[0], verdict->bytes[1]},
                                       .heaviest_stage = verdict->heaviest_stage,
                                       .offload_need = {verdict->offload_need[0], verdict->offload_need[1]},
                                       .origin = (enum rk_origin)verdict->origin};
    rk_search_verdict_candidate(searching, verdict, &judgement->candidate);
    find_remedy(searching, verdicts, verdict, judgement->remedy, sizeof judgement->remedy);
}

static enum rk_status make_result(struct rk_searching *searching, const struct verdicts *verdicts,
                                  struct rk_search_result *result) {
    struct rk_search_result made = {.feasible = verdicts->feasible, .count = verdicts->feasible};
    memcpy(made.refused, verdicts->refused, sizeof made.refused);
    size_t room = verdicts->feasible < RK_SEARCH_KEPT_MAX ? verdicts->feasible : RK_SEARCH_KEPT_MAX;
    for (int kind = 0; kind < RK_REFUSAL_COUNT; kind++) {
        made.count += verdicts->refused[kind];
        room += verdicts->refused[kind] < RK_SEARCH_KEPT_MAX ? verdicts->refused[kind] : RK_SEARCH_KEPT_MAX;
    }
    made.judgements = calloc(room + 1, sizeof *made.judgements);
    if (made.judgements == NULL)
        return rk_fail(searching->error, RK_ERROR, "out of memory for %zu judgements", room);
    size_t taken[RK_REFUSAL_COUNT] = {0};
    for (size_t i = 0; i < verdicts->count; i++) {
        const struct rk_verdict *verdict = &verdicts->all[verdicts->order[i]];
        if (verdict->absent || taken[verdict->refusal] >= RK_SEARCH_KEPT_MAX)
            continue;
        taken[verdict->refusal]++;
        judgement_of(searching, verdicts, verdict, &made.judgements[made.kept++]);
    }
    *result = made;
    return RK_OK;
}

/* How far a refused candidate is from running, to name the nearest: by kind in the order in which a user can help it.
 */
static const struct rk_judgement *nearest_refusal(const struct rk_search_result *result) {
    static const enum rk_refusal order[] = {RK_REFUSAL_UNCALIBRATED, RK_REFUSAL_MEMORY,      RK_REFUSAL_HOST_MEMORY,
                                            RK_REFUSAL_OFFLOAD_D2H,  RK_REFUSAL_OFFLOAD_H2D, RK_REFUSAL_TOPOLOGY,
                                            RK_REFUSAL_SIZE,         RK_REFUSAL_DIVISIBILITY};
    for (size_t kind = 0; kind < sizeof order / sizeof order[0]; kind++)
        for (size_t i = 0; i < result->kept; i++)
            if (result->judgements[i].refusal == order[kind])
                return &result->judgements[i];
    return NULL;
}

static enum rk_status nothing_fits(const struct rk_search_result *result, struct rk_error *error) {
    const struct rk_judgement *nearest = nearest_refusal(result);
    if (nearest == NULL)
        return rk_fail(error, RK_INFEASIBLE, "there is no candidate at all");
    const struct rk_candidate *candidate = &nearest->candidate;
    if (nearest->refusal == RK_REFUSAL_UNCALIBRATED)
        return rk_fail(error, RK_UNCALIBRATED, "no candidate can be priced: %s", nearest->remedy);
    char figures[96] = "";
    /* Groups that are small enough and do not divide a host have no figures that explain it. */
    if (rk_refusal_unit(nearest->refusal)[0] != '\0' && nearest->need > nearest->have)
        snprintf(figures, sizeof figures, ", need %.4g %s, have %.4g", nearest->need, rk_refusal_unit(nearest->refusal),
                 nearest->have);
    return rk_fail(error, RK_INFEASIBLE,
                   "none of %zu candidates fits; nearest: PP %d, EP %d, D %d, micro-batch %lld tokens, recompute %s, "
                   "offload %d %%: %s%s; %s",
                   result->count, candidate->pipeline, candidate->expert_parallel, candidate->data_parallel,
                   (long long)candidate->micro_batch_tokens, rk_recompute_name(candidate->recompute),
                   candidate->offload_percent, rk_refusal_name(nearest->refusal), figures, nearest->remedy);
}

enum rk_status rk_search(const struct rk_search_request *request, struct rk_search_result *result,
                         struct rk_error *error) {
    struct rk_searching searching;
    struct verdicts verdicts = {0};
    struct rk_error own = {0};
    enum rk_status status = rk_searching_open(request, &searching, &own);
    if (status != RK_OK)
        return rk_fail(error, status, "%s", own.text);
    status = judge_all(&searching, &verdicts);
    if (status == RK_OK)
        status = sort(&searching, &verdicts);
    if (status == RK_OK)
        status = replay_best(&searching, &verdicts);
    if (status == RK_OK)
        prefer_plain(&verdicts);
    struct rk_search_result made = {0};
    if (status == RK_OK) {
        count_refusals(&verdicts);
        status = make_result(&searching, &verdicts, &made);
    }
    free(verdicts.all);
    free(verdicts.order);
    rk_searching_close(&searching);
    if (status != RK_OK)
        return rk_fail(error, status, "%s", own.text);
    *result = made;
    return made.feasible > 0 ? RK_OK : nothing_fits(result, error);
}

void rk_search_result_free(struct rk_search_result *result) {
    if (result == NULL)
        return;
    free(result->judgements);
    *result = (struct rk_search_result){0};
}

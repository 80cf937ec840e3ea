#include "executor/load.h"

#include <math.h>

/* Where counters of one kind (requested or kept) lie: counter(rank, expert) = at[rank · rank_stride + expert]. */
struct counters {
    const int64_t *at;
    int64_t rank_stride, experts;
};

static double ratio(int64_t largest, int64_t total, int64_t parts) {
    return total > 0 ? (double)largest * (double)parts / (double)total : NAN;
}

static double expert_ratio(const struct counters *counters, int64_t first_rank, int64_t ranks) {
    int64_t largest = 0, total = 0;
    for (int64_t expert = 0; expert < counters->experts; expert++) {
        int64_t routes = 0;
        for (int64_t rank = first_rank; rank < first_rank + ranks; rank++)
            routes += counters->at[rank * counters->rank_stride + expert];
        largest = routes > largest ? routes : largest;
        total += routes;
    }
    return ratio(largest, total, counters->experts);
}

/* Groups of EP-MP ranks lie one after another inside a stage; within one, destination rank r holds experts r·G to
 * (r+1)·G. */
static double rank_ratio(const struct counters *counters, int64_t first_rank, int64_t ranks, int64_t group) {
    int64_t largest = 0, total = 0, held = counters->experts / group;
    for (int64_t first = first_rank; first < first_rank + ranks; first += group) {
        for (int64_t destination = 0; destination < group; destination++) {
            int64_t rows = 0;
            for (int64_t source = first; source < first + group; source++)
                for (int64_t expert = destination * held; expert < (destination + 1) * held; expert++)
                    rows += counters->at[source * counters->rank_stride + expert];
            largest = rows > largest ? rows : largest;
            total += rows;
        }
    }
    return ratio(largest, total, ranks);
}

static void keep_larger(double *largest, double value) {
    if (!(value <= *largest))
        *largest = isnan(value) ? *largest : value;
}

struct rk_load_summary rk_load_summarise(const struct rk_candidate *candidate, int64_t experts, const int64_t *load,
                                         const int64_t *layers, int64_t layers_per_rank) {
    struct rk_load_summary summary = {NAN, NAN, NAN, NAN};
    int64_t ranks = candidate->data_parallel, values = 2 * experts + 1;
    for (int32_t stage = 0; stage < candidate->pipeline; stage++) {
        int64_t first = stage * ranks;
        for (int64_t layer = 0; layer < layers[first]; layer++) {
            struct counters requested = {load + layer * values, layers_per_rank * values, experts};
            struct counters kept = {load + layer * values + experts, layers_per_rank * values, experts};
            keep_larger(&summary.requested_rank, rank_ratio(&requested, first, ranks, candidate->expert_parallel));
            keep_larger(&summary.kept_rank, rank_ratio(&kept, first, ranks, candidate->expert_parallel));
            keep_larger(&summary.requested_expert, expert_ratio(&requested, first, ranks));
            keep_larger(&summary.kept_expert, expert_ratio(&kept, first, ranks));
        }
    }
    return summary;
}

/* What calibrate measures: the distinct ops that the programs of the candidates ask the cost source for, and no others.
 *
 * The shapes come from lowering candidates, never from a list of their own, so that an op that the planner will price
 * is an op that was measured. Kernel cases run on some ranks at once (concurrent); transport cases belong to a layout
 * of the ranks (pipeline, data parallel, expert parallel), because the groups are those of the layout. */
#ifndef RK_CALIBRATE_CASES_H
#define RK_CALIBRATE_CASES_H

#include "model/cost.h"
#include "model/program.h"

/* A division of the ranks into groups. */
struct rk_calibration_layout {
    int32_t pipeline, data_parallel, expert_parallel;
    struct rk_candidate candidate; /* one candidate with this layout: opens the transport */
    size_t architecture;           /* index of the model that the candidate is for */
};

struct rk_calibration_case {
    struct rk_op_shape shape;
    struct rk_cost_place place;
    int32_t layout; /* index of the layout for transport kinds, -1 for kernels and copies */
    bool anchor;    /* measured again in fresh processes: the spread between processes */
};

struct rk_case_request {
    const struct rk_architecture *architectures;
    size_t architecture_count;
    const struct rk_machine *machine; /* devices and back end; figures are not looked at */
    enum rk_data_type type;
    int64_t world;
    bool alone; /* also measure every op with only its own ranks busy */
    int64_t sequence, global_batch_tokens;
    const int64_t *micro_batches; /* tokens per rank and micro-batch */
    size_t micro_batch_count;
    uint64_t seed; /* of the order */
};

struct rk_case_list {
    struct rk_calibration_case
        *cases; /* owned; kernels first, then layout by layout, each part in seeded random order */
    size_t count;
    struct rk_calibration_layout *layouts; /* owned */
    size_t layout_count;
};

/* Lowers one candidate for every layout, micro-batch and recompute policy and collects. RK_USAGE when no layout fits
 * the model. Free with rk_case_list_free. */
enum rk_status rk_case_list_make(const struct rk_case_request *request, struct rk_case_list *list,
                                 struct rk_error *error);
void rk_case_list_free(struct rk_case_list *list);

#endif

/* The order of forward and backward chunk visits on a pipeline stage: 1F1B, and interleaved 1F1B with virtual stages
 * (Narayanan et al. 2021, the order of Megatron-LM). */
#ifndef RK_MODEL_SCHEDULE_H
#define RK_MODEL_SCHEDULE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct rk_chunk_visit {
    bool backward;
    int32_t virtual_stage;
    int32_t micro_batch;
};

/* Writes the 2 · virtual_stages · micro_batches visits of a stage in order. With virtual stages, micro_batches must be
 * a multiple of pipeline (RK_USAGE). visits is the caller's array of that length. */
enum rk_status rk_schedule_order(int32_t pipeline, int32_t virtual_stages, int64_t micro_batches, int32_t stage,
                                 struct rk_chunk_visit *visits, struct rk_error *error);

/* Highest number of chunks of one virtual stage alive at once (forward begun, backward not ended), and over all. */
int32_t rk_schedule_live(const struct rk_chunk_visit *visits, int64_t count, int32_t virtual_stage);
int32_t rk_schedule_live_all(const struct rk_chunk_visit *visits, int64_t count);

#endif

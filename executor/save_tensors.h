/* Weights and gradients of a whole model in one "tensors-1" file, for other programs and for comparing layouts. */
#ifndef RK_EXECUTOR_SAVE_TENSORS_H
#define RK_EXECUTOR_SAVE_TENSORS_H

#include "executor/trainer.h"

enum rk_saved_values {
    RK_SAVED_MASTERS,  /* and the untrained tensors */
    RK_SAVED_GRADIENTS /* as the last step left them: reduced over all ranks, not clipped */
};

/* Collective; path must be on a file system that all ranks see. The file holds FP32 tensors and appears whole or not at
 * all. The architecture is needed because a rank's program knows only its stage's tensors. */
enum rk_status rk_save_tensors(struct rk_trainer *trainer, const struct rk_architecture *architecture,
                               enum rk_saved_values values, const char *path, struct rk_error *error);

#endif

/* The first values of a run's weights.
 *
 * A value is a pure function of (seed, tensor's name, element's place in the whole tensor), so every layout of ranks
 * starts bitwise alike. Masters are FP32; a compute weight is its master rounded to nearest even. */
#ifndef RK_EXECUTOR_INITIALISE_H
#define RK_EXECUTOR_INITIALISE_H

#include "executor/trainer.h"

/* Where values of whole tensors come from: elements first to first + count of the tensor, row major, as FP32. */
struct rk_tensor_source {
    enum rk_status (*read)(void *context, const struct rk_program *program, const struct rk_tensor *tensor,
                           int64_t first, int64_t count, float *values, struct rk_error *error);
    void *context;
};

/* Sets weights and this rank's masters from the source, and moments to zero. */
enum rk_status rk_load_weights(struct rk_trainer *trainer, const struct rk_tensor_source *source,
                               struct rk_error *error);

/* Norms 1, others from N(0, standard_deviation²). */
enum rk_status rk_initialise(struct rk_trainer *trainer, uint64_t seed, double standard_deviation,
                             struct rk_error *error);

/* From a "tensors-1" file. A missing or differently shaped tensor is RK_USAGE; untrained tensors (blocks.I.moe.bias)
 * that the file lacks stay zero. */
enum rk_status rk_initialise_from_file(struct rk_trainer *trainer, const char *path, struct rk_error *error);

#endif

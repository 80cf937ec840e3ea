/* Where a rank's optimizer shard lies inside the whole tensors: the one map that initialisation, weight files,
 * checkpoints and gradient dumps share. */
#ifndef RK_EXECUTOR_SHARDS_H
#define RK_EXECUTOR_SHARDS_H

#include "base/status.h"
#include "model/program.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A contiguous run of a tensor's elements inside this rank's shard of a flat space. All in elements. */
struct rk_shard_piece {
    size_t tensor;        /* index into the program's tensors */
    int64_t global_first; /* place in the whole tensor (all experts), row major */
    int64_t count;
    int64_t flat;  /* place in the flat space: weights and gradients */
    int64_t shard; /* place in master and moments */
};

struct rk_shards {
    struct rk_shard_piece *pieces; /* dense space first, by bucket; owned */
    size_t count;
};

/* All runs of the shard of world_rank, whose stage is the program's. RK_ERROR when memory runs out or when a bucket
 * does not divide by its group (a defect of the lowering). Free with rk_shards_free. */
enum rk_status rk_shards_make(const struct rk_program *program, int64_t world_rank, struct rk_shards *shards,
                              struct rk_error *error);
void rk_shards_free(struct rk_shards *shards);

/* Elements of a tensor on one rank. */
int64_t rk_tensor_local_elements(const struct rk_tensor *tensor);
/* The whole tensor's shape: dimension 0 of an expert tensor is spread over EP-MP ranks. */
void rk_tensor_global_shape(const struct rk_program *program, const struct rk_tensor *tensor, int64_t shape[3]);
/* First element of this rank's part inside the whole tensor. */
int64_t rk_tensor_global_first(const struct rk_program *program, const struct rk_tensor *tensor, int64_t world_rank);
/* The flat space that holds the tensor. */
const struct rk_flat_space *rk_tensor_space(const struct rk_program *program, const struct rk_tensor *tensor);

#endif

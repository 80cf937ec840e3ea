#include "executor/shards.h"

#include <stdlib.h>
#include <string.h>

int64_t rk_tensor_local_elements(const struct rk_tensor *tensor) {
    int64_t elements = 1;
    for (int32_t i = 0; i < tensor->rank; i++)
        elements *= tensor->dim[i];
    return elements;
}

static int64_t expert_parts(const struct rk_program *program, const struct rk_tensor *tensor) {
    return tensor->expert ? program->candidate.expert_parallel : 1;
}

void rk_tensor_global_shape(const struct rk_program *program, const struct rk_tensor *tensor, int64_t shape[3]) {
    for (int32_t i = 0; i < 3; i++)
        shape[i] = i < tensor->rank ? tensor->dim[i] : 1;
    shape[0] *= expert_parts(program, tensor);
}

int64_t rk_tensor_global_first(const struct rk_program *program, const struct rk_tensor *tensor, int64_t world_rank) {
    if (!tensor->expert)
        return 0;
    return rk_candidate_place(&program->candidate, world_rank).expert_rank * rk_tensor_local_elements(tensor);
}

const struct rk_flat_space *rk_tensor_space(const struct rk_program *program, const struct rk_tensor *tensor) {
    return tensor->expert ? &program->expert : &program->dense;
}

static int64_t larger(int64_t left, int64_t right) {
    return left > right ? left : right;
}

static int64_t smaller(int64_t left, int64_t right) {
    return left < right ? left : right;
}

static bool add_piece(struct rk_shards *shards, size_t *capacity, const struct rk_shard_piece *piece) {
    if (shards->count == *capacity) {
        size_t wanted = *capacity == 0 ? 64 : 2 * *capacity;
        struct rk_shard_piece *pieces = realloc(shards->pieces, wanted * sizeof *pieces);
        if (pieces == NULL)
            return false;
        shards->pieces = pieces;
        *capacity = wanted;
    }
    shards->pieces[shards->count++] = *piece;
    return true;
}

/* The runs of one space: this rank's part of each bucket, cut at the borders of tensors. */
static enum rk_status add_space(const struct rk_program *program, int64_t world_rank, bool expert,
                                struct rk_shards *shards, size_t *capacity, struct rk_error *error) {
    const struct rk_flat_space *space = expert ? &program->expert : &program->dense;
    int64_t index = 0;
    rk_candidate_group(&program->candidate, world_rank, expert ? RK_GROUP_EXPERT_REPLICA : RK_GROUP_DATA, NULL, 0,
                       &index);
    for (size_t b = 0; b < program->bucket_count; b++) {
        const struct rk_bucket *bucket = &program->buckets[b];
        if (bucket->expert != expert)
            continue;
        if (bucket->elements % space->replicas != 0)
            return rk_fail(error, RK_ERROR, "bucket %zu: %lld elements do not divide by its %d ranks", b,
                           (long long)bucket->elements, space->replicas);
        int64_t part = bucket->elements / space->replicas;
        int64_t first = bucket->offset + index * part;
        for (size_t t = 0; t < program->tensor_count; t++) {
            const struct rk_tensor *tensor = &program->tensors[t];
            if (tensor->expert != expert || !tensor->trained)
                continue;
            int64_t from = larger(first, tensor->offset);
            int64_t to = smaller(first + part, tensor->offset + rk_tensor_local_elements(tensor));
            if (from >= to)
                continue;
            struct rk_shard_piece piece = {
                .tensor = t,
                .global_first = rk_tensor_global_first(program, tensor, world_rank) + from - tensor->offset,
                .count = to - from,
                .flat = from,
                .shard = bucket->offset / space->replicas + from - first,
            };
            if (!add_piece(shards, capacity, &piece))
                return rk_fail(error, RK_ERROR, "out of memory for the map of shards");
        }
    }
    return RK_OK;
}

enum rk_status rk_shards_make(const struct rk_program *program, int64_t world_rank, struct rk_shards *shards,
                              struct rk_error *error) {
    struct rk_shards made = {0};
    size_t capacity = 0;
    enum rk_status status = add_space(program, world_rank, false, &made, &capacity, error);
    if (status == RK_OK)
        status = add_space(program, world_rank, true, &made, &capacity, error);
    if (status != RK_OK) {
        rk_shards_free(&made);
        return status;
    }
    *shards = made;
    return RK_OK;
}

void rk_shards_free(struct rk_shards *shards) {
    free(shards->pieces);
    memset(shards, 0, sizeof *shards);
}

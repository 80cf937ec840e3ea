/* The manifest and the headers of shard files, shared by writing and reading. */
#ifndef RK_EXECUTOR_CHECKPOINT_INTERNAL_H
#define RK_EXECUTOR_CHECKPOINT_INTERNAL_H

#include "base/hash.h"
#include "executor/checkpoint.h"
#include "executor/tensor_table.h"

#include <limits.h>

enum { RK_CHECKPOINT_NAME = 40 };
#define RK_CHECKPOINT_FORMAT "reckon-checkpoint"
#define RK_SHARD_FORMAT "reckon-shard-1"

/* X(name, text, values kept for each element) */
#define RK_SHARD_STATE_TABLE(X)                                                                                        \
    X(OPTIMIZER, "optimizer", 3) /* master, first moment, second moment, one after another */                          \
    X(VALUE, "value", 1)         /* an untrained tensor */

enum rk_shard_state {
#define RK_SHARD_STATE_KIND(name, text, values) RK_SHARD_##name,
    RK_SHARD_STATE_TABLE(RK_SHARD_STATE_KIND)
#undef RK_SHARD_STATE_KIND
    RK_SHARD_STATE_COUNT
};

/* A run of a tensor in a shard file. */
struct rk_saved_piece {
    char tensor[64];
    int64_t first, count; /* elements of the whole tensor */
    enum rk_shard_state state;
    int64_t offset; /* bytes from the start of the file */
    size_t file;    /* index into the manifest's files */
};

struct rk_saved_file {
    char name[RK_CHECKPOINT_NAME];
    int64_t bytes;
    char sha256[RK_SHA256_HEX];
};

struct rk_manifest {
    struct rk_checkpoint_facts facts;
    char model[96];
    int64_t pipeline, virtual_stages, expert_parallel, data_parallel;
    char type[8];
    struct rk_tensor_table tensors; /* names and whole shapes */
    struct rk_saved_file *files;    /* one of each rank; owned */
    size_t file_count;
};

enum rk_status rk_manifest_print(const struct rk_manifest *manifest, struct rk_text *text, struct rk_error *error);
/* Free with rk_manifest_free. */
enum rk_status rk_manifest_read(const char *path, struct rk_manifest *manifest, struct rk_error *error);
void rk_manifest_free(struct rk_manifest *manifest);

/* Header of a shard file with the pieces' offsets filled in; *bytes is the size of the whole file. */
enum rk_status rk_shard_header_print(struct rk_saved_piece *pieces, size_t count, struct rk_text *text, int64_t *bytes,
                                     struct rk_error *error);
/* Reads the header of an open file of the given size and appends its pieces (realloc of *pieces; *count grows). */
enum rk_status rk_shard_header_read(const char *path, size_t file, int64_t bytes, struct rk_saved_piece **pieces,
                                    size_t *count, struct rk_error *error);

/* Makes the directory when it is absent, and fails with RK_ERROR when no checkpoint could be written there. */
enum rk_status rk_checkpoint_prepare(const char *directory, struct rk_error *error);

/* True for names that checkpoints' folders have: "step-00000012" and "step-00000012.1"; the step in *step. */
bool rk_checkpoint_folder_step(const char *name, int64_t *step);

#endif

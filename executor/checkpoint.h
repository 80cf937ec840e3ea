/* Checkpoints: what a run needs to go on as if it had never stopped.
 *
 *   DIR/latest                       the name of the newest valid checkpoint's folder
 *   DIR/step-00000012/manifest.json  format, version, step, layout, tensors, and every file's size and SHA-256
 *   DIR/step-00000012/rank-00000.bin the shard of one rank: lines as in a tensors-1 file (tensor, first, count, state,
 *                                    offset), then for each piece FP32 masters, first and second moments
 *
 * Each rank writes its own shard; the manifest is written last, so that a folder without one is no checkpoint, and then
 * `latest` is replaced. A failure at any instant (a full disk, a killed rank) leaves the former checkpoint as it was.
 * Pieces are named by tensor and element range in the whole tensor, so any layout of ranks, and either precision, reads
 * what any other has written. Masters and moments are stored; weights are masters rounded. */
#ifndef RK_EXECUTOR_CHECKPOINT_H
#define RK_EXECUTOR_CHECKPOINT_H

#include "executor/trainer.h"

enum { RK_CHECKPOINT_VERSION = 1 };

/* What a checkpoint says of the run that wrote it. */
struct rk_checkpoint_facts {
    int64_t step;                /* steps done: the next one has this number */
    int64_t global_batch_tokens; /* a resumed run must keep it: windows of data are counted in it */
    uint64_t seed;
    char data[512]; /* rk_data_describe */
};

/* Collective. Writes a checkpoint into directory (made when absent) and then removes the oldest so that keep remain (0:
 * all). The directory must be on a file system that all ranks see. */
enum rk_status rk_checkpoint_save(struct rk_trainer *trainer, const struct rk_architecture *architecture,
                                  const char *directory, int64_t keep, const struct rk_checkpoint_facts *facts,
                                  struct rk_error *error);

/* Collective. Loads the checkpoint that `latest` names into the trainer: weights, masters and moments. Another model's
 * checkpoint, another global batch or a newer version is RK_USAGE; a missing, truncated or damaged file RK_ERROR; both
 * name the file. On failure the trainer's state is undefined. */
enum rk_status rk_checkpoint_load(struct rk_trainer *trainer, const struct rk_architecture *architecture,
                                  const char *directory, struct rk_checkpoint_facts *facts, struct rk_error *error);

/* Collective. Whether directory/latest exists. All ranks get the answer of rank 0; when a rank sees another `latest`
 * (its host has not mounted the file system), all return RK_USAGE with its number and host. Makes the directory when it
 * is absent; one that cannot be made or written to is RK_ERROR now, not after the steps of its first checkpoint. */
enum rk_status rk_checkpoint_find(struct rk_job *job, const char *directory, bool *exists, struct rk_error *error);

#endif

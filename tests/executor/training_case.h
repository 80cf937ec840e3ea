/* Small training runs on forked ranks, for tests of the step: a model, a layout, and what came out. */
#ifndef RK_TESTS_EXECUTOR_TRAINING_CASE_H
#define RK_TESTS_EXECUTOR_TRAINING_CASE_H

#include "executor/training.h"
#include "ranks.h"

enum { CASE_STEPS_MAX = 64 };

/* Models of a few thousand parameters, each with other parts of the forward. */
extern const char *const model_olmoe; /* 4 layers, 8 experts, top 2, q/k norm over the full width, untied head */
extern const char *const model_qwen3; /* GQA, q/k norm of each head, tied embedding, normalised top k, a dense layer */
extern const char *const model_glm4;  /* sigmoid scores with bias, a shared expert, dense first layer */

struct training_case {
    const char *model;
    const struct rk_backend *backend;                             /* NULL: the one under test */
    int pipeline, virtual_stages, expert_parallel, data_parallel; /* 0 counts as 1 */
    int64_t tokens, sequence, global_batch;                       /* 0: 32, 16, 256 */
    enum rk_recompute recompute;
    int offload_percent;
    enum rk_data_type type;
    double capacity; /* 0: none can be dropped */
    enum rk_routing routing;
    const int16_t *chunk_layers;        /* NULL: even */
    int64_t logits_chunk, bucket_bytes; /* 0: defaults */
    int64_t steps;                      /* 0: 1 */
    int64_t trace_steps;
    bool poison, dropless;
    const char *data; /* NULL: synthetic */
    const char *checkpoint;
    int64_t checkpoint_every, checkpoint_keep;
    bool resume;
    const char *load_weights, *initial, *gradients, *final; /* files, or NULL */
    double learning_rate;                                   /* 0: 1e-3 */
    double standard_deviation;                              /* 0: 0.05 */
    double deadline;                                        /* 0: 30 */
    double balance_coefficient, z_coefficient;              /* 0: 0.01, 0.001 */
    int64_t file_limit; /* bytes that a rank's files may have after its first step; 0: no limit */
};

/* Lives in memory that all ranks share. */
struct training_outcome {
    int64_t steps;
    int64_t predicted_arena_bytes[RANKS_MAX], predicted_host_bytes[RANKS_MAX]; /* of each stage, as a plan holds them */
    struct rk_training_step step[CASE_STEPS_MAX]; /* in order, as rank 0 saw them */
    struct rk_rank_report ranks[RANKS_MAX];
    double capacity_factor;
    enum rk_status status[RANKS_MAX];
    char message[RANKS_MAX][1024];
};

/* The case's model and candidate, as a plan would hold them. */
void case_architecture(const struct training_case *test, struct rk_architecture *architecture);
void case_candidate(const struct training_case *test, const struct rk_architecture *architecture,
                    struct rk_candidate *candidate);
int case_world(const struct training_case *test);

/* Shared memory for an outcome; free with outcome_free. */
struct training_outcome *outcome_make(void);
void outcome_free(struct training_outcome *outcome);

/* Runs the case on its ranks. Statuses are in the outcome; rank processes must not die. */
void case_run(const struct training_case *test, struct training_outcome *outcome);
/* The same, and every rank must end well and have allocated what was predicted, to the byte; with dropless, at least
 * that. */
void case_run_well(const struct training_case *test, struct training_outcome *outcome);

/* In a rank: what case_run runs. */
int case_rank(const struct training_case *test, struct training_outcome *outcome, const struct rk_place *place);

/* Largest difference of any element of two tensors-1 files with the same tensors, over the largest magnitude of its
 * tensor. *worst (64 characters, may be NULL) names the tensor. Not a number counts as infinite. */
double file_difference(const char *left, const char *right, char *worst);
/* Whether two files have the same bytes. */
bool files_equal(const char *left, const char *right);

/* A fresh folder for a test's files, removed by folder_remove. */
void folder_make(char path[64]);
void folder_remove(const char *path);

#endif

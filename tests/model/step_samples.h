/* Small architectures and a grid of candidates on which the lowering and the memory layout are tested. */
#ifndef RK_TESTS_MODEL_STEP_SAMPLES_H
#define RK_TESTS_MODEL_STEP_SAMPLES_H

#include "model/memory.h"

enum rk_sample {
    RK_SAMPLE_DENSE, /* no experts, tied table, no q/k norm */
    RK_SAMPLE_MOE,   /* experts in every layer, untied */
    RK_SAMPLE_MIXED, /* two dense layers first, shared expert, q/k norm per head, sigmoid scores with correction bias */
    RK_SAMPLE_TIED,  /* experts in every layer, tied table, q/k norm over the full width */
    RK_SAMPLE_LATENT, /* latent attention, biases, a gate and further norms: planned, not run */
    RK_SAMPLE_COUNT
};

/* Eight layers, d 32, 4 heads of 8, V 64; 8 experts, top 2, width 16. */
struct rk_architecture rk_sample_architecture(enum rk_sample sample);

/* One rank, one micro-batch of 32 tokens in sequences of 16; even chunks. */
struct rk_candidate rk_sample_candidate(const struct rk_architecture *architecture);

/* Sets PP, virtual stages, EP-MP and D, the batch for that many micro-batches, and even chunks. */
void rk_sample_layout(const struct rk_architecture *architecture, struct rk_candidate *candidate, int32_t pipeline,
                      int32_t virtual_stages, int32_t expert_parallel, int32_t data_parallel, int64_t micro_batches);

/* Calls check for every stage of every candidate of the grid: layouts of 1 to 8 ranks with and without virtual stages,
 * every recompute policy, offload of nothing, some and all, both types, both back ends. Returns the number of programs.
 */
typedef void rk_sample_check(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                             int32_t stage);
int64_t rk_sample_grid(rk_sample_check *check);

/* Lowers or fails the test, naming the candidate. */
struct rk_program *rk_sample_lower(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                   int32_t stage);

/* "mixed, PP 2, V 1, ..." in a static buffer. */
const char *rk_sample_text(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                           int32_t stage);

#endif

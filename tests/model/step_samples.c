#include "step_samples.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void add_experts(struct rk_architecture *architecture, int64_t dense_layers) {
    architecture->experts = 8;
    architecture->top_k = 2;
    architecture->expert_hidden = 16;
    architecture->expert_groups = 1;
    architecture->top_groups = 1;
    architecture->routed_scaling = 1;
    architecture->dense_layers = dense_layers;
    architecture->moe_layers = architecture->layers - dense_layers;
    for (int64_t i = 0; i < architecture->layers; i++)
        architecture->block[i] = i < dense_layers ? RK_BLOCK_DENSE : RK_BLOCK_MOE;
}

static void make_latent(struct rk_architecture *architecture) {
    architecture->attention = RK_ATTENTION_MLA;
    architecture->kv_heads = architecture->heads;
    architecture->head_dim = 12;
    architecture->qk_nope_head_dim = 8;
    architecture->qk_rope_head_dim = 4;
    architecture->v_head_dim = 8;
    architecture->q_lora_rank = 20;
    architecture->kv_lora_rank = 16;
}

struct rk_architecture rk_sample_architecture(enum rk_sample sample) {
    static const char *const names[RK_SAMPLE_COUNT] = {"dense", "moe", "mixed", "tied", "latent"};
    struct rk_architecture a = {.name = "",
                                .family = RK_FAMILY_OLMOE,
                                .layers = 8,
                                .hidden = 32,
                                .vocabulary = 64,
                                .block_norms = 2,
                                .norm_epsilon = 1e-5,
                                .attention = RK_ATTENTION_GQA,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 8,
                                .rope_theta = 10000,
                                .rotary_fraction = 1,
                                .routed_scaling = 1,
                                .expert_groups = 1,
                                .top_groups = 1};
    snprintf(a.name, sizeof a.name, "%s", names[sample]);
    switch (sample) {
    case RK_SAMPLE_DENSE:
        a.family = RK_FAMILY_LLAMA;
        a.dense_layers = a.layers;
        a.dense_hidden = 48;
        a.tied_embeddings = true;
        break;
    case RK_SAMPLE_MOE:
        add_experts(&a, 0);
        a.normalise_top_k = true;
        break;
    case RK_SAMPLE_MIXED:
        add_experts(&a, 2);
        a.dense_hidden = 40;
        a.shared_hidden = 24;
        a.qk_norm = RK_QK_NORM_PER_HEAD;
        a.scoring = RK_SCORING_SIGMOID;
        a.correction_bias = true;
        a.routed_scaling = 2.5;
        break;
    case RK_SAMPLE_TIED:
        add_experts(&a, 0);
        a.qk_norm = RK_QK_NORM_FULL_WIDTH;
        a.tied_embeddings = true;
        break;
    case RK_SAMPLE_LATENT:
        add_experts(&a, 1);
        make_latent(&a);
        a.dense_hidden = 40;
        a.shared_hidden = 16;
        a.shared_gate = a.router_bias = a.expert_bias = a.mlp_bias = a.output_bias = a.qkv_bias = true;
        a.attention_sinks = a.embedding_norm = true;
        a.block_norms = 4;
        break;
    case RK_SAMPLE_COUNT:
        break;
    }
    return a;
}

struct rk_candidate rk_sample_candidate(const struct rk_architecture *architecture) {
    struct rk_candidate candidate = {
        .micro_batch_tokens = 32, .sequence = 16, .capacity_factor = 1.25, .type = RK_F32, .backend = RK_BACKEND_CPU};
    rk_sample_layout(architecture, &candidate, 1, 1, 1, 1, 1);
    rk_candidate_defaults(&candidate);
    candidate.logits_chunk_tokens = 8;
    candidate.bucket_bytes = 48 << 10;
    return candidate;
}

void rk_sample_layout(const struct rk_architecture *architecture, struct rk_candidate *candidate, int32_t pipeline,
                      int32_t virtual_stages, int32_t expert_parallel, int32_t data_parallel, int64_t micro_batches) {
    candidate->pipeline = pipeline;
    candidate->virtual_stages = virtual_stages;
    candidate->expert_parallel = expert_parallel;
    candidate->data_parallel = data_parallel;
    candidate->global_batch_tokens = candidate->micro_batch_tokens * data_parallel * micro_batches;
    rk_candidate_even_chunks(architecture, candidate);
}

const char *rk_sample_text(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                           int32_t stage) {
    static char text[256];
    snprintf(text, sizeof text, "%s, PP %d, V %d, EP-MP %d, D %d, %s recompute, offload %d %%, %s, stage %d",
             architecture->name, candidate->pipeline, candidate->virtual_stages, candidate->expert_parallel,
             candidate->data_parallel, rk_recompute_name(candidate->recompute), candidate->offload_percent,
             rk_data_type_name(candidate->type), stage);
    return text;
}

struct rk_program *rk_sample_lower(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                                   int32_t stage) {
    struct rk_program *program = NULL;
    struct rk_error error = {.text = ""};
    if (rk_program_lower(architecture, candidate, stage, &program, &error) != RK_OK)
        fail_msg("%s: %s", rk_sample_text(architecture, candidate, stage), error.text);
    return program;
}

/* All policies of one layout. */
static int64_t vary_policies(const struct rk_architecture *architecture, struct rk_candidate candidate,
                             rk_sample_check *check) {
    static const int32_t offloads[] = {0, 40, 100};
    int64_t count = 0;
    for (int policy = 0; policy < RK_RECOMPUTE_COUNT; policy++) {
        for (size_t i = 0; i < sizeof offloads / sizeof offloads[0]; i++) {
            candidate.recompute = (enum rk_recompute)policy;
            candidate.offload_percent = offloads[i];
            candidate.type = (policy + (int)i) % 2 == 0 ? RK_F32 : RK_BF16;
            candidate.backend = (policy + (int)i / 2) % 2 == 0 ? RK_BACKEND_CPU : RK_BACKEND_CUDA;
            for (int32_t stage = 0; stage < candidate.pipeline; stage++, count++)
                check(architecture, &candidate, stage);
        }
    }
    return count;
}

int64_t rk_sample_grid(rk_sample_check *check) {
    static const struct {
        int32_t pipeline, virtual_stages, expert_parallel, data_parallel;
        int64_t micro_batches;
    } layouts[] = {{1, 1, 1, 1, 1}, {1, 1, 1, 1, 3}, {1, 1, 1, 2, 2}, {1, 1, 2, 2, 2}, {1, 1, 2, 4, 1},
                   {1, 1, 4, 4, 2}, {2, 1, 1, 1, 4}, {2, 1, 2, 2, 3}, {4, 1, 1, 1, 2}, {4, 1, 2, 2, 8},
                   {2, 2, 1, 1, 4}, {2, 2, 2, 4, 2}, {4, 2, 1, 1, 8}, {2, 4, 4, 4, 4}, {8, 1, 1, 1, 8}};
    int64_t count = 0;
    for (int sample = 0; sample < RK_SAMPLE_COUNT; sample++) {
        struct rk_architecture architecture = rk_sample_architecture((enum rk_sample)sample);
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            struct rk_candidate candidate = rk_sample_candidate(&architecture);
            if (architecture.moe_layers == 0 && layouts[i].expert_parallel > 1)
                continue;
            rk_sample_layout(&architecture, &candidate, layouts[i].pipeline, layouts[i].virtual_stages,
                             layouts[i].expert_parallel, layouts[i].data_parallel, layouts[i].micro_batches);
            count += vary_policies(&architecture, candidate, check);
        }
    }
    return count;
}

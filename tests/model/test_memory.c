/* Memory layouts: proved by the checker, exact to the byte by hand, and caught when they are broken. */
#include "step_samples.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void check_layout(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                         int32_t stage) {
    struct rk_program *program = rk_sample_lower(architecture, candidate, stage);
    struct rk_memory_layout layout;
    struct rk_error error = {.text = ""};
    int64_t sum = 0;
    if (rk_memory_layout_make(program, &layout, &error) != RK_OK ||
        rk_memory_layout_check(program, &layout, &error) != RK_OK)
        fail_msg("%s: %s", rk_sample_text(architecture, candidate, stage), error.text);
    for (int owner = 0; owner < RK_OWNER_COUNT; owner++)
        sum += layout.owner_bytes[owner];
    assert_int_equal(sum, layout.arena_bytes);
    assert_int_equal(layout.persistent_bytes + layout.slot_bytes + layout.visit_bytes, layout.arena_bytes);
    rk_memory_layout_free(&layout);
    rk_program_free(program);
}

static void every_layout_of_the_grid_passes_the_check(void **state) {
    (void)state;
    rk_sample_grid(check_layout);
}

static struct rk_memory_layout lay_out(const struct rk_program *program) {
    struct rk_memory_layout layout;
    struct rk_error error = {.text = ""};
    if (rk_memory_layout_make(program, &layout, &error) != RK_OK)
        fail_msg("%s", error.text);
    return layout;
}

static uint32_t find_buffer(const struct rk_program *program, const char *name) {
    for (uint32_t i = 0; i < program->buffer_count; i++)
        if (strcmp(program->buffers[i].name, name) == 0)
            return i;
    fail_msg("no buffer %s", name);
    return 0;
}

/* One dense layer in FP32 on one rank, T 32 in sequences of 16, d 32, 4 query and 2 key heads of 8, width 48, V 64,
 * tied. */
static void one_dense_layer_by_hand(void **state) {
    enum { T = 32, D = 32, QKV = 64, WIDTH = 48, V = 64, HEADS = 4 };
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_DENSE);
    (void)state;
    architecture.layers = architecture.dense_layers = 1;
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    struct rk_program *program = rk_sample_lower(&architecture, &candidate, 0);
    struct rk_memory_layout layout = lay_out(program);
    /* qkv, out, up and down; table; three gains, each in 128 elements: every size is a multiple of 128 already but
     * theirs. */
    int64_t parameters = QKV * D + D * D + 2 * WIDTH * D + D * WIDTH + V * D + 3 * 128;
    assert_int_equal(layout.owner_bytes[RK_OWNER_WEIGHTS], parameters * 4);
    assert_int_equal(layout.owner_bytes[RK_OWNER_GRADIENTS], parameters * 4);
    assert_int_equal(layout.owner_bytes[RK_OWNER_OPTIMIZER], parameters * 12);
    /* tokens and targets 128 each, step state 32, sums 32: 256 each. */
    assert_int_equal(layout.owner_bytes[RK_OWNER_DATA], 4 * 256);
    /* input, normed input, qkv, context, middle, normed middle, gate and up, hidden; rstd twice (128 → 256) and lse. */
    int64_t kept = 4 * T * (D + D + QKV + D + D + D + 2 * WIDTH + WIDTH);
    int64_t small = 2 * 256 + 4 * T * HEADS;
    assert_int_equal(layout.slot_bytes, kept + small);
    assert_int_equal(layout.owner_bytes[RK_OWNER_ACTIVATIONS], layout.slot_bytes + 4 * T * D);
    assert_int_equal(program->kept_bytes[RK_BLOCK_DENSE], kept + 2 * 128 + 4 * T * HEADS);
    assert_int_equal(program->kept_bytes[RK_BLOCK_MOE], 0);
    /* Two values outside blocks keep their place: the head's input and the gradient stream. */
    assert_int_equal(layout.persistent_bytes, parameters * 20 + 4 * 256 + 2 * 4 * T * D);
    rk_memory_layout_free(&layout);
    rk_program_free(program);
}

/* The slots of a stage are its highest number of live micro-batches, and every kept value has one place for each. */
static void slots_follow_the_schedule(void **state) {
    static const int32_t live[4] = {4, 3, 2, 1};
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MOE);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    (void)state;
    rk_sample_layout(&architecture, &candidate, 4, 1, 1, 1, 8);
    for (int32_t stage = 0; stage < 4; stage++) {
        struct rk_program *program = rk_sample_lower(&architecture, &candidate, stage);
        uint32_t qkv = find_buffer(program, "moe.qkv");
        assert_int_equal(program->slots[0], live[stage]);
        assert_int_equal(program->buffers[qkv].instance_count, live[stage] * 2);
        rk_program_free(program);
    }
    rk_sample_layout(&architecture, &candidate, 4, 2, 1, 1, 8);
    for (int32_t stage = 0; stage < 4; stage++) {
        struct rk_program *program = rk_sample_lower(&architecture, &candidate, stage);
        /* Chunks are alike: all virtual stages share one pool, the highest number of chunks alive at once. */
        uint32_t qkv = find_buffer(program, "moe.qkv");
        assert_int_equal(program->slot_pool, 2 * (3 - stage) + 5);
        assert_int_equal(program->buffers[qkv].instance_count, program->slot_pool);
        rk_program_free(program);
    }
}

/* Full-stage activations on stage 0 of an interleaved pipeline, published as 5.5, 4, 11.5, 9.75, 10.333 and 2.25. */
static void interleaved_activations_match_published_vectors(void **state) {
    static const struct {
        int32_t pipeline, virtual_stages;
        int64_t micro_batches;
        double full_stages;
    } vectors[] = {{4, 2, 8, 5.5},   {4, 2, 4, 4},         {8, 2, 16, 11.5},
                   {8, 4, 16, 9.75}, {8, 3, 64, 31 / 3.0}, {2, 4, 8, 2.25}};
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MOE);
        architecture.layers = architecture.moe_layers = vectors[i].pipeline * vectors[i].virtual_stages;
        for (int64_t layer = 0; layer < architecture.layers; layer++)
            architecture.block[layer] = RK_BLOCK_MOE;
        struct rk_candidate candidate = rk_sample_candidate(&architecture);
        rk_sample_layout(&architecture, &candidate, vectors[i].pipeline, vectors[i].virtual_stages, 1, 1,
                         vectors[i].micro_batches);
        struct rk_program *program = rk_sample_lower(&architecture, &candidate, 0);
        int64_t instances = program->buffers[find_buffer(program, "moe.qkv")].instance_count;
        assert_true(fabs((double)instances / vectors[i].virtual_stages - vectors[i].full_stages) < 1e-9);
        rk_program_free(program);
    }
}

/* A chunk of dense layers and one of routed ones would need both kinds in every slot of a pool. */
static void unlike_chunks_keep_slots_of_their_own(void **state) {
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MIXED);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    (void)state;
    rk_sample_layout(&architecture, &candidate, 2, 2, 1, 1, 8);
    struct rk_program *program = rk_sample_lower(&architecture, &candidate, 0);
    assert_int_equal(program->slot_pool, 0);
    assert_int_equal(program->buffers[find_buffer(program, "dense.qkv")].instance_count, 2 * program->slots[0]);
    assert_int_equal(program->buffers[find_buffer(program, "moe.qkv")].instance_count, 2 * program->slots[1]);
    rk_program_free(program);
}

static void recompute_saves_activations(void **state) {
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MIXED);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    int64_t slot_bytes[RK_RECOMPUTE_COUNT];
    (void)state;
    for (int policy = 0; policy < RK_RECOMPUTE_COUNT; policy++) {
        candidate.recompute = (enum rk_recompute)policy;
        struct rk_program *program = rk_sample_lower(&architecture, &candidate, 0);
        struct rk_memory_layout layout = lay_out(program);
        slot_bytes[policy] = layout.slot_bytes;
        if (policy == RK_RECOMPUTE_BLOCK) {
            assert_int_equal(program->kept_bytes[RK_BLOCK_MOE], 32 * 32 * 4);
        }
        rk_memory_layout_free(&layout);
        rk_program_free(program);
    }
    assert_true(slot_bytes[RK_RECOMPUTE_NONE] > slot_bytes[RK_RECOMPUTE_ATTENTION]);
    assert_true(slot_bytes[RK_RECOMPUTE_ATTENTION] > slot_bytes[RK_RECOMPUTE_BLOCK]);
}

/* ---- defects that the checker must find ---- */

static struct rk_program *pipeline_program(enum rk_recompute recompute) {
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MIXED);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    candidate.recompute = recompute;
    rk_sample_layout(&architecture, &candidate, 2, 1, 2, 2, 4);
    return rk_sample_lower(&architecture, &candidate, 0);
}

/* Two buffers at the same place: fails when they are alive together, passes when they are not. */
static enum rk_status share(const char *first, const char *second, struct rk_error *error) {
    struct rk_program *program = pipeline_program(RK_RECOMPUTE_BLOCK);
    struct rk_memory_layout layout = lay_out(program);
    uint32_t a = find_buffer(program, first), b = find_buffer(program, second);
    assert_int_equal(rk_memory_layout_check(program, &layout, error), RK_OK);
    layout.offset[b][0] = layout.offset[a][0];
    enum rk_status status = rk_memory_layout_check(program, &layout, error);
    rk_memory_layout_free(&layout);
    rk_program_free(program);
    return status;
}

static void early_reuse_is_found(void **state) {
    struct rk_error error = {.text = ""};
    (void)state;
    /* Read after it was written over. */
    assert_int_equal(share("moe.middle", "moe.rows", &error), RK_ERROR);
    assert_non_null(strstr(error.text, "moe."));
    /* Alive on two streams at once: rows arrive while the shared expert computes. */
    assert_int_equal(share("moe.shared_up", "moe.rows", &error), RK_ERROR);
    assert_int_equal(share("moe.d_expert_output", "moe.qkv", &error), RK_ERROR);
    assert_int_equal(share("moe.expert_hidden", "moe.expert_up", &error), RK_ERROR);
    /* A kept value's place is its own. */
    assert_int_equal(share("moe.index", "moe.expert_up", &error), RK_ERROR);
    assert_non_null(strstr(error.text, "overlap"));
}

static void damaged_offsets_are_found(void **state) {
    struct rk_program *program = pipeline_program(RK_RECOMPUTE_NONE);
    struct rk_memory_layout layout = lay_out(program);
    struct rk_error error = {.text = ""};
    uint32_t qkv = find_buffer(program, "moe.qkv"), wqkv = find_buffer(program, "attn.wqkv");
    (void)state;
    layout.offset[qkv][1] = layout.offset[qkv][0];
    assert_int_equal(rk_memory_layout_check(program, &layout, &error), RK_ERROR);
    layout.offset[qkv][1] = layout.arena_bytes - 256;
    assert_int_equal(rk_memory_layout_check(program, &layout, &error), RK_ERROR);
    assert_non_null(strstr(error.text, "lies at"));
    rk_memory_layout_free(&layout);

    layout = lay_out(program);
    layout.offset[qkv][0] += 4;
    assert_int_equal(rk_memory_layout_check(program, &layout, &error), RK_ERROR);
    rk_memory_layout_free(&layout);

    layout = lay_out(program);
    layout.offset[wqkv][0] += (int64_t)1 << 30;
    assert_int_equal(rk_memory_layout_check(program, &layout, &error), RK_ERROR);
    assert_non_null(strstr(error.text, "part of"));
    rk_memory_layout_free(&layout);
    rk_program_free(program);
}

/* Without the wait for the exchange stream at a segment's start, values of two visits would be in use at once. */
static void missing_join_is_refused(void **state) {
    struct rk_program *program = pipeline_program(RK_RECOMPUTE_NONE);
    struct rk_memory_layout layout;
    struct rk_error error = {.text = ""};
    (void)state;
    for (size_t i = 0; i < program->op_count; i++)
        for (int w = 0; w < RK_OP_WAITS; w++)
            if (program->ops[i].wait[w].event != RK_NO_EVENT &&
                strcmp(program->events[program->ops[i].wait[w].event].name, "exchange tail") == 0)
                program->ops[i].wait[w].event = 0; /* compute: no wait for a compute op */
    assert_int_equal(rk_memory_layout_make(program, &layout, &error), RK_ERROR);
    assert_non_null(strstr(error.text, "join"));
    rk_program_free(program);
}

/* ---- releases ---- */

static void releases_name_each_value_once_and_after_its_last_use(void **state) {
    (void)state;
    for (int policy = 0; policy < RK_RECOMPUTE_COUNT; policy++) {
        struct rk_program *program = pipeline_program((enum rk_recompute)policy);
        struct rk_release_list list;
        struct rk_error error;
        size_t released = 0;
        assert_int_equal(rk_memory_release_make(program, &list, &error), RK_OK);
        for (size_t s = 0; s < program->segment_count; s++) {
            const struct rk_segment *segment = &program->segments[s];
            size_t end = segment->first_op + segment->op_count;
            for (size_t i = segment->first_op; i < end; i++) {
                for (size_t r = list.first[i]; r < list.first[i + 1]; r++, released++) {
                    bool touched = false;
                    assert_int_equal(program->buffers[list.buffer[r]].scope, RK_SCOPE_VISIT);
                    for (int o = 0; o < RK_OP_OPERANDS; o++)
                        touched = touched || program->ops[i].operand[o].buffer == list.buffer[r];
                    assert_true(touched);
                    for (size_t k = i + 1; k < end; k++)
                        for (int o = 0; o < RK_OP_OPERANDS; o++)
                            assert_true(program->ops[k].operand[o].buffer != list.buffer[r]);
                }
            }
        }
        assert_true(released > 20);
        rk_memory_release_free(&list);
        rk_program_free(program);
    }
}

/* ---- published figures ---- */

static struct rk_architecture read_model(const char *path) {
    struct rk_architecture architecture;
    struct rk_error error = {.text = ""};
    if (rk_architecture_read_file(path, &architecture, NULL, &error) != RK_OK)
        fail_msg("%s", error.text);
    return architecture;
}

static struct rk_candidate report_candidate(const struct rk_architecture *architecture, int32_t pipeline,
                                            int32_t expert_parallel, int32_t data_parallel, int64_t tokens) {
    struct rk_candidate candidate = {.pipeline = pipeline,
                                     .virtual_stages = 1,
                                     .expert_parallel = expert_parallel,
                                     .data_parallel = data_parallel,
                                     .micro_batch_tokens = tokens,
                                     .sequence = 8192,
                                     .type = RK_BF16,
                                     .backend = RK_BACKEND_CUDA,
                                     .capacity_factor = 1.25};
    rk_candidate_defaults(&candidate);
    rk_candidate_even_chunks(architecture, &candidate);
    return candidate;
}

/* The 8-layer model with 32 experts over 4 ranks: 62.02 GiB of weights, gradients and optimizer states. */
static void model_states_of_the_report(void **state) {
    struct rk_architecture architecture = read_model("examples/models/report-8l-n32.json");
    struct rk_candidate candidate = report_candidate(&architecture, 1, 4, 4, 16384);
    (void)state;
    candidate.global_batch_tokens = 512 << 10;
    struct rk_program *program = rk_sample_lower(&architecture, &candidate, 0);
    struct rk_memory_layout layout = lay_out(program);
    double states = (double)(layout.owner_bytes[RK_OWNER_WEIGHTS] + layout.owner_bytes[RK_OWNER_GRADIENTS] +
                             layout.owner_bytes[RK_OWNER_OPTIMIZER]);
    assert_true(fabs(states / 1073741824.0 - 62.02) < 0.01);
    rk_memory_layout_free(&layout);
    rk_program_free(program);
}

/* 1.2 T parameters, 8 stages, 128 micro-batches, recompute per block: every stage lowers and fits 268.6 GiB; without
 * recompute the first does not. */
static void ultra_fits_only_with_recompute(void **state) {
    struct rk_architecture architecture = read_model("examples/models/report-ultra-128e.json");
    struct rk_candidate candidate = report_candidate(&architecture, 8, 8, 64, 8192);
    (void)state;
    candidate.global_batch_tokens = 64 << 20;
    for (int policy = 0; policy < RK_RECOMPUTE_COUNT; policy += 2) {
        int64_t most = 0;
        candidate.recompute = (enum rk_recompute)policy;
        for (int32_t stage = 0; stage < 8; stage++) {
            struct rk_program *program = rk_sample_lower(&architecture, &candidate, stage);
            struct rk_memory_layout layout = lay_out(program);
            assert_int_equal(program->slots[0], 8 - stage);
            most = layout.arena_bytes > most ? layout.arena_bytes : most;
            rk_memory_layout_free(&layout);
            rk_program_free(program);
        }
        assert_int_equal(most < (int64_t)275040 << 20, policy == RK_RECOMPUTE_BLOCK);
    }
}

/* Bytes of visit scope alive at an op of a segment in program order: touched before or at it, and at or after it. */
static int64_t alive_at(const struct rk_program *program, const struct rk_segment *segment, size_t at) {
    int64_t sum = 0;
    for (uint32_t b = 0; b < program->buffer_count; b++) {
        bool before = false, after = false;
        for (size_t i = 0; i < segment->op_count; i++) {
            for (int o = 0; o < RK_OP_OPERANDS; o++) {
                bool touches = program->ops[segment->first_op + i].operand[o].buffer == b;
                before = before || (touches && i <= at);
                after = after || (touches && i >= at);
            }
        }
        if (program->buffers[b].scope == RK_SCOPE_VISIT && before && after)
            sum += (program->buffers[b].bytes + RK_MEMORY_ALIGNMENT - 1) / RK_MEMORY_ALIGNMENT * RK_MEMORY_ALIGNMENT;
    }
    return sum;
}

/* The shared region is within a hundredth of the most bytes alive at once; less is impossible on one stream. */
static void shared_region_is_tight(void **state) {
    static const char *const paths[] = {"examples/models/olmoe-1b-7b.json", "examples/models/report-8l-n32.json",
                                        "examples/models/report-ultra-128e.json"};
    (void)state;
    for (size_t m = 0; m < sizeof paths / sizeof paths[0]; m++) {
        struct rk_architecture architecture = read_model(paths[m]);
        struct rk_candidate candidate = report_candidate(&architecture, 1, 4, 4, 16384);
        candidate.global_batch_tokens = 512 << 10;
        for (int policy = 0; policy < RK_RECOMPUTE_COUNT; policy++) {
            int64_t most = 0;
            candidate.recompute = (enum rk_recompute)policy;
            struct rk_program *program = rk_sample_lower(&architecture, &candidate, 0);
            struct rk_memory_layout layout = lay_out(program);
            for (size_t s = 0; s < program->segment_count; s++) {
                for (size_t i = 0; i < program->segments[s].op_count; i++) {
                    int64_t alive = alive_at(program, &program->segments[s], i);
                    most = alive > most ? alive : most;
                }
            }
            assert_true(layout.visit_bytes >= most);
            assert_true(layout.visit_bytes <= most + most / 100);
            rk_memory_layout_free(&layout);
            rk_program_free(program);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_of_the_grid_passes_the_check),
        cmocka_unit_test(one_dense_layer_by_hand),
        cmocka_unit_test(slots_follow_the_schedule),
        cmocka_unit_test(interleaved_activations_match_published_vectors),
        cmocka_unit_test(unlike_chunks_keep_slots_of_their_own),
        cmocka_unit_test(recompute_saves_activations),
        cmocka_unit_test(early_reuse_is_found),
        cmocka_unit_test(damaged_offsets_are_found),
        cmocka_unit_test(missing_join_is_refused),
        cmocka_unit_test(releases_name_each_value_once_and_after_its_last_use),
        cmocka_unit_test(model_states_of_the_report),
        cmocka_unit_test(ultra_fits_only_with_recompute),
        cmocka_unit_test(shared_region_is_tight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

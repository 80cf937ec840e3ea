/* Candidates: names, defaults, even chunks, ranges, places and groups. */
#include "step_samples.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void names_go_both_ways(void **state) {
    (void)state;
    for (int i = 0; i < RK_RECOMPUTE_COUNT; i++)
        assert_int_equal(rk_recompute_from_name(rk_recompute_name((enum rk_recompute)i)), i);
    for (int i = 0; i < RK_ROUTING_COUNT; i++)
        assert_int_equal(rk_routing_from_name(rk_routing_name((enum rk_routing)i)), i);
    assert_int_equal(rk_recompute_from_name("full"), RK_RECOMPUTE_COUNT);
    assert_int_equal(rk_routing_from_name(""), RK_ROUTING_COUNT);
}

static void defaults_fill_what_no_search_varies(void **state) {
    struct rk_candidate candidate = {.micro_batch_tokens = 16384};
    (void)state;
    rk_candidate_defaults(&candidate);
    assert_int_equal(candidate.virtual_stages, 1);
    assert_int_equal(candidate.logits_chunk_tokens, 1024);
    assert_int_equal(candidate.bucket_bytes, 250ll << 20);
    candidate.micro_batch_tokens = 3 * 700;
    rk_candidate_defaults(&candidate);
    assert_int_equal(candidate.logits_chunk_tokens, 700);
}

static void check_chunks(int64_t layers, int32_t pipeline, int32_t virtual_stages, const int16_t *expected) {
    struct rk_architecture architecture = {.layers = layers};
    struct rk_candidate candidate = {.pipeline = pipeline, .virtual_stages = virtual_stages};
    rk_candidate_even_chunks(&architecture, &candidate);
    for (int i = 0; i < pipeline * virtual_stages; i++)
        assert_int_equal(candidate.chunk_layers[i], expected[i]);
}

static void remainders_go_to_inner_chunks(void **state) {
    (void)state;
    check_chunks(63, 8, 1, (const int16_t[]){7, 8, 8, 8, 8, 8, 8, 8});
    check_chunks(10, 4, 1, (const int16_t[]){2, 3, 3, 2});
    check_chunks(9, 4, 2, (const int16_t[]){1, 2, 1, 1, 1, 1, 1, 1});
    check_chunks(5, 1, 1, (const int16_t[]){5});
}

/* Each row breaks one thing of a good candidate and names what the message must say. */
static void broken_candidates_are_refused_by_name(void **state) {
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MIXED);
    struct rk_architecture dense = rk_sample_architecture(RK_SAMPLE_DENSE);
    struct rk_candidate good = rk_sample_candidate(&architecture);
    struct rk_error error = {.text = ""};
    (void)state;
    rk_sample_layout(&architecture, &good, 2, 1, 2, 4, 4);
    assert_int_equal(rk_candidate_check(&architecture, &good, &error), RK_OK);
    struct rk_candidate bad[] = {good, good, good, good, good, good, good, good,
                                 good, good, good, good, good, good, good};
    const char *const said[] = {"PP is 0",      "virtual stages",
                                "EP-MP",        "D (EP-MP x EP-DP) is -1",
                                "sequence",     "micro-batch",
                                "global batch", "offload per cent",
                                "capacity",     "z-loss",
                                "logits chunk", "chunk 1",
                                "add up",       "number of experts",
                                "weight decay"};
    bad[0].pipeline = 0;
    bad[1].virtual_stages = 17;
    bad[2].expert_parallel = 3;
    bad[3].data_parallel = -1;
    bad[4].sequence = 0;
    bad[5].micro_batch_tokens = 24;
    bad[6].global_batch_tokens += 32;
    bad[7].offload_percent = 101;
    bad[8].capacity_factor = NAN;
    bad[9].z_coefficient = -1;
    bad[10].logits_chunk_tokens = 5;
    bad[11].chunk_layers[1] = 0;
    bad[12].chunk_layers[1] = 5;
    bad[13].expert_parallel = bad[13].data_parallel = 16;
    bad[13].global_batch_tokens = 16 * 32;
    bad[14].weight_decay = INFINITY;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(rk_candidate_check(&architecture, &bad[i], &error), RK_USAGE);
        if (strstr(error.text, said[i]) == NULL)
            fail_msg("row %zu says: %s", i, error.text);
    }
    rk_sample_layout(&dense, &good, 1, 1, 2, 2, 1);
    assert_int_equal(rk_candidate_check(&dense, &good, &error), RK_USAGE);
    assert_non_null(strstr(error.text, "without experts"));
    rk_sample_layout(&architecture, &good, 1, 2, 1, 1, 2);
    assert_int_equal(rk_candidate_check(&architecture, &good, &error), RK_USAGE);
    rk_sample_layout(&architecture, &good, 2, 2, 1, 1, 3);
    assert_int_equal(rk_candidate_check(&architecture, &good, &error), RK_USAGE);
    rk_sample_layout(&architecture, &good, 16, 1, 1, 1, 16);
    assert_int_equal(rk_candidate_check(&architecture, &good, &error), RK_USAGE);
    assert_non_null(strstr(error.text, "8 layers"));
}

static void receive_rows_follow_capacity(void **state) {
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MOE);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    (void)state;
    assert_int_equal(rk_candidate_receive_rows(&architecture, &candidate), 64);
    rk_sample_layout(&architecture, &candidate, 1, 1, 4, 4, 1);
    assert_int_equal(rk_candidate_receive_rows(&architecture, &candidate), 80);
    candidate.capacity_factor = 1.19;
    assert_int_equal(rk_candidate_receive_rows(&architecture, &candidate), 77);
    candidate.capacity_factor = 100;
    assert_int_equal(rk_candidate_receive_rows(&architecture, &candidate), 256);
}

/* PP 3, EP-MP 2, D 4: world rank = stage · 4 + ep_dp · 2 + ep_mp. */
static void groups_of_a_rank(void **state) {
    static const struct {
        int64_t rank;
        enum rk_group_kind group;
        int64_t count, index, ranks[12];
    } rows[] = {
        {7, RK_GROUP_EXPERT_PARALLEL, 2, 1, {6, 7}},
        {7, RK_GROUP_EXPERT_REPLICA, 2, 1, {5, 7}},
        {6, RK_GROUP_DATA, 4, 2, {4, 5, 6, 7}},
        {6, RK_GROUP_PIPELINE_NEXT, 1, 0, {10}},
        {10, RK_GROUP_PIPELINE_NEXT, 1, 0, {2}},
        {1, RK_GROUP_PIPELINE_PREVIOUS, 1, 0, {9}},
        {9, RK_GROUP_EMBEDDING, 2, 1, {1, 9}},
        {5, RK_GROUP_WORLD, 12, 5, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
        {5, RK_GROUP_NONE, 1, 0, {5}},
    };
    const struct rk_candidate candidate = {.pipeline = 3, .expert_parallel = 2, .data_parallel = 4};
    struct rk_rank_place place = rk_candidate_place(&candidate, 7);
    (void)state;
    assert_int_equal(rk_candidate_world(&candidate), 12);
    assert_int_equal(place.stage, 1);
    assert_int_equal(place.expert_replica, 1);
    assert_int_equal(place.expert_rank, 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t ranks[12], index = -1;
        assert_int_equal(rk_candidate_group(&candidate, rows[i].rank, rows[i].group, ranks, 12, &index), rows[i].count);
        assert_int_equal(index, rows[i].index);
        for (int64_t k = 0; k < rows[i].count; k++)
            assert_int_equal(ranks[k], rows[i].ranks[k]);
        ranks[0] = -7;
        assert_int_equal(rk_candidate_group(&candidate, rows[i].rank, rows[i].group, ranks, 0, &index), rows[i].count);
        assert_int_equal(ranks[0], -7);
    }
}

/* What the kernels have no room for is planned, and told from what can run. */
static void routing_beyond_the_kernels_is_told(void **state) {
    (void)state;
    struct rk_architecture architecture = rk_sample_architecture(RK_SAMPLE_MOE);
    struct rk_candidate candidate = rk_sample_candidate(&architecture);
    struct rk_error error = {0};
    architecture.experts = 1024;
    architecture.top_k = 32;
    candidate.backend = RK_BACKEND_CUDA;
    candidate.expert_parallel = 64;
    assert_int_equal(rk_candidate_check_routing(&architecture, &candidate, &error), RK_OK);
    candidate.expert_parallel = 128;
    assert_int_equal(rk_candidate_check_routing(&architecture, &candidate, &error), RK_USAGE);
    assert_non_null(strstr(error.text, "128 ranks of an EP-MP group"));
    candidate.backend = RK_BACKEND_CPU;
    architecture.experts = 4096;
    architecture.top_k = 64;
    assert_int_equal(rk_candidate_check_routing(&architecture, &candidate, &error), RK_OK);
    architecture.top_k = 65;
    assert_int_equal(rk_candidate_check_routing(&architecture, &candidate, &error), RK_USAGE);
    assert_non_null(strstr(error.text, "65 routes of a token"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_go_both_ways),
        cmocka_unit_test(routing_beyond_the_kernels_is_told),
        cmocka_unit_test(defaults_fill_what_no_search_varies),
        cmocka_unit_test(remainders_go_to_inner_chunks),
        cmocka_unit_test(broken_candidates_are_refused_by_name),
        cmocka_unit_test(receive_rows_follow_capacity),
        cmocka_unit_test(groups_of_a_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

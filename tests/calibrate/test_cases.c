/* The cases of a calibration against the programs that they must cover. */
#include "calibrate/cases.h"

#include "model/cost_place.h"
#include "tests/test.h"

#include <string.h>

static const char config[] = "{\"model_type\": \"olmoe\", \"hidden_size\": 32, \"intermediate_size\": 32, "
                             "\"num_hidden_layers\": 4, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, "
                             "\"num_experts\": 4, \"num_experts_per_tok\": 2, \"vocab_size\": 64, \"hidden_act\": "
                             "\"silu\", \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": "
                             "false, \"max_position_embeddings\": 64}";

static struct rk_architecture architecture;
static const struct rk_machine machine = {
    .backend = RK_BACKEND_CPU, .devices_per_host = 2, .shared_devices = true, .serial_streams = true};

static struct rk_case_request request_of(const int64_t *micro_batches, size_t count) {
    return (struct rk_case_request){.architectures = &architecture,
                                    .architecture_count = 1,
                                    .machine = &machine,
                                    .type = RK_F32,
                                    .world = 4,
                                    .alone = true,
                                    .sequence = 16,
                                    .global_batch_tokens = 1024,
                                    .micro_batches = micro_batches,
                                    .micro_batch_count = count,
                                    .seed = 3};
}

static int read_architecture(void **state) {
    (void)state;
    struct rk_error error;
    return rk_architecture_parse("small", config, strlen(config), &architecture, NULL, &error) == RK_OK ? 0 : -1;
}

static bool has_case(const struct rk_case_list *list, const struct rk_op_shape *shape,
                     const struct rk_cost_place *place) {
    for (size_t i = 0; i < list->count; i++) {
        const struct rk_calibration_case *item = &list->cases[i];
        if (rk_op_shape_equal(&item->shape, shape) && item->place.group_size == place->group_size &&
            item->place.concurrent == place->concurrent && item->place.row_share >= place->row_share &&
            item->place.row_share <= place->row_share)
            return true;
    }
    return false;
}

/* Whatever the simulator will ask for a candidate of these sizes was measured, under every policy. */
static void covers_every_op_of_every_policy(void **state) {
    (void)state;
    const int64_t micro_batches[] = {16, 32};
    struct rk_case_request request = request_of(micro_batches, 2);
    struct rk_case_list list;
    struct rk_error error;
    assert_int_equal(rk_case_list_make(&request, &list, &error), RK_OK);
    const int32_t layouts[][2] = {{1, 1}, {1, 4}, {2, 2}, {4, 1}};
    size_t asked = 0;
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++)
        for (int policy = 0; policy < RK_RECOMPUTE_COUNT; policy++) {
            struct rk_candidate candidate = {.pipeline = layouts[l][0],
                                             .virtual_stages = 1,
                                             .expert_parallel = layouts[l][1],
                                             .data_parallel = 4 / layouts[l][0],
                                             .micro_batch_tokens = 32,
                                             .sequence = 16,
                                             .global_batch_tokens = 1024,
                                             .recompute = (enum rk_recompute)policy,
                                             .offload_percent = policy == 0 ? 100 : 0,
                                             .backend = RK_BACKEND_CPU,
                                             .capacity_factor = layouts[l][1]};
            rk_candidate_defaults(&candidate);
            rk_candidate_even_chunks(&architecture, &candidate);
            for (int32_t stage = 0; stage < candidate.pipeline; stage++) {
                struct rk_program *program = NULL;
                assert_int_equal(rk_program_lower(&architecture, &candidate, stage, &program, &error), RK_OK);
                int64_t rows = rk_cost_routed_rows(program);
                for (size_t i = 0; i < program->op_count; i++)
                    for (int busy = 0; busy < 2; busy++) {
                        struct rk_cost_place place;
                        rk_cost_place_of(program, &machine, &program->ops[i], rows, busy ? INT32_MAX / 2 : 0, &place);
                        char text[160];
                        if (!has_case(&list, &program->ops[i].shape, &place))
                            fail_msg("no case for %s", rk_op_shape_text(&program->ops[i].shape, text, sizeof text));
                        asked++;
                    }
                rk_program_free(program);
            }
        }
    assert_true(asked > 1000);
    rk_case_list_free(&list);
}

/* Equal seeds give equal orders on all ranks; another seed another order of the same cases. */
static void order_follows_the_seed(void **state) {
    (void)state;
    const int64_t micro_batches[] = {16};
    struct rk_case_request request = request_of(micro_batches, 1);
    struct rk_case_list first, second, other;
    struct rk_error error;
    assert_int_equal(rk_case_list_make(&request, &first, &error), RK_OK);
    assert_int_equal(rk_case_list_make(&request, &second, &error), RK_OK);
    request.seed = 4;
    assert_int_equal(rk_case_list_make(&request, &other, &error), RK_OK);
    assert_int_equal(first.count, second.count);
    assert_int_equal(first.count, other.count);
    size_t moved = 0;
    for (size_t i = 0; i < first.count; i++) {
        assert_true(rk_op_shape_equal(&first.cases[i].shape, &second.cases[i].shape));
        moved += !rk_op_shape_equal(&first.cases[i].shape, &other.cases[i].shape);
        assert_true(has_case(&other, &first.cases[i].shape, &first.cases[i].place));
    }
    assert_true(moved > first.count / 2);
    rk_case_list_free(&first);
    rk_case_list_free(&second);
    rk_case_list_free(&other);
}

static void the_largest_micro_batch_sizes_a_layout(void **state) {
    (void)state;
    const int64_t micro_batches[] = {16, 64, 32};
    struct rk_case_request request = request_of(micro_batches, 3);
    struct rk_case_list list;
    struct rk_error error;
    assert_int_equal(rk_case_list_make(&request, &list, &error), RK_OK);
    assert_int_equal(list.layout_count, 6); /* PP, EP: 1,1 1,2 1,4 2,1 2,2 4,1 */
    for (size_t i = 0; i < list.layout_count; i++)
        assert_int_equal(list.layouts[i].candidate.micro_batch_tokens, 64);
    rk_case_list_free(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(covers_every_op_of_every_policy),
        cmocka_unit_test(order_follows_the_seed),
        cmocka_unit_test(the_largest_micro_batch_sizes_a_layout),
    };
    return cmocka_run_group_tests(tests, read_architecture, NULL);
}

/* Routes at the edges: experts and ranks that get nothing, ties, drops and their repetition, and no host in the loop.
 */
#include "training_case.h"

#include "executor/tensor_file.h"
#include "tests/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* One routed layer, four experts, one route: which experts get tokens is a set that the router's weights decide. */
static const char *const model_four_experts =
    "{\"model_type\": \"olmoe\", \"hidden_size\": 16, \"num_hidden_layers\": 1, \"vocab_size\": 48,"
    " \"max_position_embeddings\": 64, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"rope_theta\": 10000,"
    " \"rms_norm_eps\": 1e-05, \"hidden_act\": \"silu\", \"intermediate_size\": 12, \"num_experts\": 4,"
    " \"num_experts_per_tok\": 1, \"norm_topk_prob\": false, \"tie_word_embeddings\": false}";

static char folder[64], weights[128], gradients[128], other[128];
static struct training_outcome *outcome, *second;

/* Reads a tensor of a file, lets change it, and writes it back. */
static void change_tensor(const char *path, const char *name,
                          void (*change)(float *values, const int64_t shape[3], int parameter), int parameter) {
    struct rk_tensor_file file;
    struct rk_error error = {0};
    bool found = false;
    int descriptor = open(path, O_WRONLY);
    assert_true(descriptor >= 0);
    assert_ok(rk_tensor_file_open(path, &file, &error), error);
    for (size_t i = 0; i < file.count; i++) {
        const struct rk_tensor_entry *entry = &file.entries[i];
        int64_t count = entry->shape[0] * entry->shape[1] * entry->shape[2];
        if (strcmp(entry->name, name) != 0)
            continue;
        float *values = malloc((size_t)count * sizeof *values);
        assert_ok(rk_tensor_file_read(&file, entry, 0, count, values, &error), error);
        change(values, entry->shape, parameter);
        assert_int_equal(pwrite(descriptor, values, (size_t)count * sizeof *values, entry->offset),
                         count * (int64_t)sizeof *values);
        free(values);
        found = true;
    }
    assert_true(found);
    rk_tensor_file_close(&file);
    close(descriptor);
}

static void first_weights(const char *model) {
    struct training_case test = {.model = model, .initial = weights, .global_batch = 32};
    case_run_well(&test, outcome);
}

/* Every token's first feature is large and positive, so that the router's first column acts as a bias. */
static void mark_tokens(float *values, const int64_t shape[3], int parameter) {
    (void)parameter;
    for (int64_t row = 0; row < shape[0]; row++)
        values[row * shape[1]] = 2.0F;
}

/* Experts outside the set get no token; those inside are told apart by the other features. */
static void allow_set(float *values, const int64_t shape[3], int set) {
    for (int64_t expert = 0; expert < shape[0]; expert++)
        for (int64_t i = 0; i < shape[1]; i++)
            values[expert * shape[1] + i] = i > 0 ? 20 * values[expert * shape[1] + i] : (set >> expert & 1) ? 0 : -100;
}

static void fill_zero(float *values, const int64_t shape[3], int parameter) {
    (void)parameter;
    memset(values, 0, (size_t)(shape[0] * shape[1] * shape[2]) * sizeof *values);
}

/* Gradients of an expert: all exactly 0, or some not. */
static bool expert_is_zero(const char *path, const char *name, int expert) {
    struct rk_tensor_file file;
    struct rk_error error = {0};
    bool zero = true, found = false;
    assert_ok(rk_tensor_file_open(path, &file, &error), error);
    for (size_t i = 0; i < file.count; i++) {
        const struct rk_tensor_entry *entry = &file.entries[i];
        int64_t count = entry->shape[1] * entry->shape[2];
        if (strcmp(entry->name, name) != 0)
            continue;
        float *values = malloc((size_t)count * sizeof *values);
        assert_ok(rk_tensor_file_read(&file, entry, expert * count, count, values, &error), error);
        for (int64_t v = 0; v < count; v++) {
            assert_true(isfinite(values[v]));
            zero = zero && values[v] == 0.0F;
        }
        free(values);
        found = true;
    }
    assert_true(found);
    rk_tensor_file_close(&file);
    return zero;
}

/* Uninitialised and released memory is NaN throughout (poison), so a tail row that is read would show. */
static void empty_experts_get_no_gradient(void **state) {
    (void)state;
    static const int widths[] = {1, 2, 4};
    for (int set = 1; set < 16; set++) {
        first_weights(model_four_experts);
        change_tensor(weights, "embed", mark_tokens, 0);
        change_tensor(weights, "blocks.0.moe.wr", allow_set, set);
        for (int w = 0; w < 3; w++) {
            struct training_case test = {.model = model_four_experts,
                                         .expert_parallel = widths[w],
                                         .data_parallel = widths[w],
                                         .load_weights = weights,
                                         .gradients = gradients,
                                         .poison = true};
            case_run_well(&test, outcome);
            assert_int_equal(outcome->step[0].dropped, 0);
            for (int expert = 0; expert < 4; expert++) {
                bool used = set >> expert & 1;
                if (expert_is_zero(gradients, "blocks.0.moe.w13", expert) == used ||
                    expert_is_zero(gradients, "blocks.0.moe.w2", expert) == used)
                    fail_msg("set %x, EP %d: expert %d is %s", (unsigned)set, widths[w], expert,
                             used ? "used and has no gradient" : "unused and has a gradient");
            }
            test.gradients = NULL;
            test.steps = 2;
            case_run_well(&test, second);
            assert_true(isfinite(second->step[1].loss) && isfinite(second->step[1].gradient_norm));
        }
    }
}

/* A router of zeros: every score is tied, ties go to the lower expert, so all routes go to experts 0 and 1 of rank 0.
 */
static void tied_weights(void) {
    char name[64];
    first_weights(model_olmoe);
    for (int layer = 0; layer < 4; layer++) {
        snprintf(name, sizeof name, "blocks.%d.moe.wr", layer);
        change_tensor(weights, name, fill_zero, 0);
    }
}

static void all_tokens_to_one_rank(void **state) {
    (void)state;
    tied_weights();
    struct training_case test = {.model = model_olmoe,
                                 .expert_parallel = 4,
                                 .data_parallel = 4,
                                 .capacity = 1.25,
                                 .load_weights = weights,
                                 .poison = true};
    case_run_well(&test, outcome);
    /* 4 sources of 32 tokens x 2 routes, 2 micro-batches, 4 layers; 80 rows for the one rank that is asked. */
    int64_t requested = INT64_C(4) * 32 * 2 * 2 * 4, kept = INT64_C(80) * 2 * 4;
    assert_int_equal(outcome->step[0].routes, requested);
    assert_int_equal(outcome->step[0].dropped, requested - kept);
    assert_true(fabs(outcome->step[0].load.requested_rank - 4) < 1e-12);
    assert_true(fabs(outcome->step[0].load.requested_expert - 4) < 1e-12);
    assert_true(isfinite(outcome->step[0].loss) && isfinite(outcome->step[0].gradient_norm));
}

static void ties_are_routed_once(void **state) {
    (void)state;
    static const enum rk_recompute policies[] = {RK_RECOMPUTE_ATTENTION, RK_RECOMPUTE_BLOCK};
    tied_weights();
    struct training_case test = {.model = model_olmoe,
                                 .expert_parallel = 2,
                                 .data_parallel = 2,
                                 .capacity = 1.5,
                                 .load_weights = weights,
                                 .gradients = gradients,
                                 .poison = true};
    case_run_well(&test, outcome);
    test.gradients = other;
    for (int p = 0; p < 2; p++) {
        test.recompute = policies[p];
        case_run_well(&test, second);
        assert_true(second->step[0].loss == outcome->step[0].loss);
        assert_int_equal(second->step[0].routes, outcome->step[0].routes);
        assert_int_equal(second->step[0].dropped, outcome->step[0].dropped);
        assert_true(outcome->step[0].dropped > 0);
        assert_true(files_equal(gradients, other));
    }
}

/* The repeated step starts from unchanged weights: the same bits as with buffers that were large from the start. */
static void dropless_repeats_the_step(void **state) {
    (void)state;
    static const struct {
        int pipeline, expert_parallel, data_parallel;
        enum rk_recompute recompute;
    } layouts[] = {{1, 4, 4, RK_RECOMPUTE_NONE}, {2, 2, 2, RK_RECOMPUTE_BLOCK}, {2, 2, 4, RK_RECOMPUTE_NONE}};
    tied_weights();
    for (size_t l = 0; l < sizeof layouts / sizeof layouts[0]; l++) {
        struct training_case test = {.model = model_olmoe,
                                     .pipeline = layouts[l].pipeline,
                                     .expert_parallel = layouts[l].expert_parallel,
                                     .data_parallel = layouts[l].data_parallel,
                                     .recompute = layouts[l].recompute,
                                     .load_weights = weights,
                                     .final = gradients,
                                     .steps = 3,
                                     .poison = true};
        case_run_well(&test, outcome);
        test.capacity = 1;
        test.dropless = true;
        test.final = other;
        case_run_well(&test, second);
        assert_true(second->capacity_factor == layouts[l].expert_parallel);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(second->step[i].dropped, 0);
            assert_true(second->step[i].loss == outcome->step[i].loss);
        }
        assert_true(files_equal(gradients, other));
    }
}

static void dropless_leaves_fitting_steps_alone(void **state) {
    (void)state;
    struct training_case test = {
        .model = model_olmoe, .expert_parallel = 2, .data_parallel = 2, .capacity = 2, .final = gradients, .steps = 2};
    case_run_well(&test, outcome);
    test.dropless = true;
    test.final = other;
    case_run_well(&test, second);
    assert_true(second->capacity_factor == 2);
    assert_true(files_equal(gradients, other));
}

/* The first step of the outcome that dropped a route; the number of steps when none did. */
static int64_t first_drop(const struct training_outcome *of) {
    for (int64_t i = 0; i < of->steps; i++)
        if (of->step[i].dropped > 0)
            return i;
    return of->steps;
}

/* Buffers that grow in the middle of a run do not lose the steps traced before. */
static void growing_keeps_the_traced_steps(void **state) {
    (void)state;
    enum { STEPS = 40, TRACED = 3 };
    struct training_case test = {.model = model_olmoe,
                                 .expert_parallel = 2,
                                 .data_parallel = 2,
                                 .steps = STEPS,
                                 .trace_steps = TRACED,
                                 .routing = RK_ROUTING_RANDOM};
    int64_t first_traced = 0, drop = 0;
    /* From small to large buffers, until they are too small only after the first traced step. */
    for (test.capacity = 1.1; drop <= first_traced; test.capacity += 0.01) {
        assert_true(test.capacity < 2);
        case_run_well(&test, outcome);
        for (first_traced = 0; !outcome->step[first_traced].traced; first_traced++)
            assert_true(first_traced < STEPS);
        drop = first_drop(outcome);
    }
    test.capacity -= 0.01;
    assert_true(drop > first_traced && drop < STEPS);
    test.dropless = true;
    case_run_well(&test, outcome);
    assert_true(outcome->capacity_factor > test.capacity);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(outcome->ranks[rank].traced_steps, TRACED);
        assert_true(outcome->ranks[rank].time.compute > 0 && outcome->ranks[rank].account_count > 20);
    }
}

/* Between a step's first launch and its last the host neither waits nor reads, whatever is offloaded; with learned
 * routes, expert parallelism and pipeline. */
static void no_host_in_the_loop(void **state) {
    (void)state;
    struct training_case test = {
        .model = model_olmoe, .pipeline = 2, .expert_parallel = 2, .data_parallel = 2, .steps = 3, .trace_steps = 1};
    case_run_well(&test, outcome);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(outcome->step[i].host_waits, 0);
        assert_int_equal(outcome->step[i].copies_to_host, 0);
    }
    test.offload_percent = 100;
    case_run_well(&test, outcome);
    assert_int_equal(outcome->step[0].host_waits, 0);
    assert_true(outcome->step[0].copies_to_host > 0);
    /* The baseline that does wait is seen by the same counters. */
    test.offload_percent = 0;
    test.dropless = true;
    case_run_well(&test, outcome);
    assert_true(outcome->step[0].host_waits > 0);
}

/* Two thousand short steps with exchange and reduction on different streams. */
static void two_thousand_steps(void **state) {
    (void)state;
    struct training_case test = {.model = model_four_experts,
                                 .expert_parallel = 2,
                                 .data_parallel = 4,
                                 .tokens = 16,
                                 .global_batch = 64,
                                 .steps = 2000,
                                 .learning_rate = 1e-3};
    case_run_well(&test, outcome);
    assert_int_equal(outcome->steps, 2000);
    for (int i = 0; i < CASE_STEPS_MAX; i++)
        assert_true(isfinite(outcome->step[i].loss));
}

static int set_up(void **state) {
    (void)state;
    folder_make(folder);
    snprintf(weights, sizeof weights, "%s/weights", folder);
    snprintf(gradients, sizeof gradients, "%s/gradients", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    outcome = outcome_make();
    second = outcome_make();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    folder_remove(folder);
    outcome_free(outcome);
    outcome_free(second);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_experts_get_no_gradient),
        cmocka_unit_test(all_tokens_to_one_rank),
        cmocka_unit_test(ties_are_routed_once),
        cmocka_unit_test(dropless_repeats_the_step),
        cmocka_unit_test(dropless_leaves_fitting_steps_alone),
        cmocka_unit_test(growing_keeps_the_traced_steps),
        cmocka_unit_test(no_host_in_the_loop),
        cmocka_unit_test(two_thousand_steps),
    };
    return cmocka_run_group_tests_name("routes", tests, set_up, tear_down);
}

#include "training_case.h"

#include "base/text.h"
#include "executor/tensor_file.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

const char *const model_olmoe =
    "{\"model_type\": \"olmoe\", \"hidden_size\": 16, \"num_hidden_layers\": 4, \"vocab_size\": 48,"
    " \"max_position_embeddings\": 64, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"rope_theta\": 10000,"
    " \"rms_norm_eps\": 1e-05, \"hidden_act\": \"silu\", \"intermediate_size\": 12, \"num_experts\": 8,"
    " \"num_experts_per_tok\": 2, \"norm_topk_prob\": false, \"tie_word_embeddings\": false}";

const char *const model_qwen3 =
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 16, \"num_hidden_layers\": 4, \"vocab_size\": 48,"
    " \"max_position_embeddings\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8,"
    " \"rope_theta\": 10000, \"rms_norm_eps\": 1e-05, \"hidden_act\": \"silu\", \"intermediate_size\": 24,"
    " \"moe_intermediate_size\": 8, \"num_experts\": 8, \"num_experts_per_tok\": 3, \"norm_topk_prob\": true,"
    " \"mlp_only_layers\": [1], \"decoder_sparse_step\": 1, \"tie_word_embeddings\": true}";

const char *const model_glm4 =
    "{\"model_type\": \"glm4_moe\", \"hidden_size\": 16, \"num_hidden_layers\": 4, \"vocab_size\": 48,"
    " \"max_position_embeddings\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8,"
    " \"partial_rotary_factor\": 1.0, \"rope_theta\": 10000, \"rms_norm_eps\": 1e-05, \"hidden_act\": \"silu\","
    " \"intermediate_size\": 24, \"moe_intermediate_size\": 8, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2,"
    " \"n_shared_experts\": 1, \"first_k_dense_replace\": 1, \"norm_topk_prob\": true, \"routed_scaling_factor\": 1.5,"
    " \"topk_method\": \"greedy\", \"n_group\": 1, \"topk_group\": 1, \"attention_bias\": false, \"use_qk_norm\": true,"
    " \"tie_word_embeddings\": false}";

static int at_least_1(int value) {
    return value > 0 ? value : 1;
}

int case_world(const struct training_case *test) {
    return at_least_1(test->pipeline) * at_least_1(test->data_parallel);
}

void case_architecture(const struct training_case *test, struct rk_architecture *architecture) {
    struct rk_error error = {0};
    enum rk_status status =
        rk_architecture_parse("test.json", test->model, strlen(test->model), architecture, NULL, &error);
    if (status == RK_OK)
        status = rk_architecture_runnable(architecture, &error);
    if (status != RK_OK)
        rank_check_failed(__FILE__, __LINE__, "the test's model", error.text);
}

void case_candidate(const struct training_case *test, const struct rk_architecture *architecture,
                    struct rk_candidate *candidate) {
    struct rk_error error = {0};
    *candidate = (struct rk_candidate){
        .pipeline = at_least_1(test->pipeline),
        .virtual_stages = at_least_1(test->virtual_stages),
        .expert_parallel = at_least_1(test->expert_parallel),
        .data_parallel = at_least_1(test->data_parallel),
        .micro_batch_tokens = test->tokens > 0 ? test->tokens : 32,
        .sequence = test->sequence > 0 ? test->sequence : 16,
        .global_batch_tokens = test->global_batch > 0 ? test->global_batch : 256,
        .recompute = test->recompute,
        .offload_percent = test->offload_percent,
        .type = test->type,
        .backend = ranks_backend()->kind,
        .capacity_factor = test->capacity > 0 ? test->capacity : at_least_1(test->expert_parallel),
        .routing = test->routing,
    };
    rk_candidate_defaults(candidate);
    candidate->logits_chunk_tokens = test->logits_chunk > 0 ? test->logits_chunk : candidate->logits_chunk_tokens;
    candidate->bucket_bytes = test->bucket_bytes > 0 ? test->bucket_bytes : candidate->bucket_bytes;
    candidate->balance_coefficient =
        test->balance_coefficient > 0 ? test->balance_coefficient : candidate->balance_coefficient;
    candidate->z_coefficient = test->z_coefficient > 0 ? test->z_coefficient : candidate->z_coefficient;
    rk_candidate_even_chunks(architecture, candidate);
    if (test->chunk_layers != NULL)
        memcpy(candidate->chunk_layers, test->chunk_layers,
               (size_t)(candidate->pipeline * candidate->virtual_stages) * sizeof *test->chunk_layers);
    if (rk_candidate_check(architecture, candidate, &error) != RK_OK)
        rank_check_failed(__FILE__, __LINE__, "the test's candidate", error.text);
}

struct training_outcome *outcome_make(void) {
    void *memory =
        mmap(NULL, sizeof(struct training_outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

void outcome_free(struct training_outcome *outcome) {
    munmap(outcome, sizeof *outcome);
}

struct observed {
    const struct training_case *test;
    struct training_outcome *outcome;
    bool first_rank;
};

static enum rk_status note_step(void *context, const struct rk_training_step *step, struct rk_error *error) {
    const struct observed *observed = context;
    struct training_outcome *outcome = observed->outcome;
    struct rlimit limit = {(rlim_t)observed->test->file_limit, (rlim_t)observed->test->file_limit};
    (void)error;
    if (observed->test->file_limit > 0)
        RANK_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0 && signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    if (!observed->first_rank)
        return RK_OK;
    if (outcome->steps < CASE_STEPS_MAX)
        outcome->step[outcome->steps] = *step;
    outcome->steps++;
    return RK_OK;
}

static void case_options(const struct training_case *test, int64_t rank, double deadline,
                         struct rk_training_options *options) {
    *options = (struct rk_training_options){
        .steps = test->steps > 0 ? test->steps : 1,
        .data = test->data,
        .seed = 7,
        .standard_deviation = test->standard_deviation > 0 ? test->standard_deviation : 0.05,
        .optimizer = rk_optimizer_defaults(),
        .trace_steps = test->trace_steps,
        .dropless = test->dropless,
        .checkpoint = test->checkpoint,
        .checkpoint_every = test->checkpoint_every,
        .checkpoint_keep = test->checkpoint_keep,
        .resume = test->resume,
        .load_weights = test->load_weights,
        .save_weights = test->initial,
        .save_final = test->final,
        .dump_gradients = test->gradients,
        .trainer = {.backend = test->backend != NULL ? test->backend : ranks_backend(),
                    .transport = ranks_transport(),
                    .device = ranks_on_gpus() ? (int)rank : 0,
                    .deadline_seconds = deadline,
                    .poison = test->poison},
    };
    options->optimizer.learning_rate = test->learning_rate > 0 ? test->learning_rate : 1e-3;
}

/* What a plan of the case says of each stage's memory. Every rank writes the same. */
static void case_predict(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                         struct training_outcome *outcome) {
    struct rk_error error;
    for (int32_t stage = 0; stage < candidate->pipeline; stage++) {
        struct rk_program *program = NULL;
        struct rk_memory_layout layout;
        RANK_CHECK_OK(rk_program_lower(architecture, candidate, stage, &program, &error), error);
        RANK_CHECK_OK(rk_memory_layout_make(program, &layout, &error), error);
        outcome->predicted_arena_bytes[stage] = layout.arena_bytes;
        outcome->predicted_host_bytes[stage] = layout.host_bytes;
        rk_memory_layout_free(&layout);
        rk_program_free(program);
    }
}

int case_rank(const struct training_case *test, struct training_outcome *outcome, const struct rk_place *place) {
    struct rk_architecture *architecture = malloc(sizeof *architecture);
    struct rk_candidate candidate;
    struct rk_training_options options;
    struct rk_training_report report = {0};
    struct rk_error error = {0};
    double deadline = test->deadline > 0 ? test->deadline : 30;
    RANK_CHECK(architecture != NULL);
    case_architecture(test, architecture);
    case_candidate(test, architecture, &candidate);
    case_options(test, place->rank, deadline, &options);
    case_predict(architecture, &candidate, outcome);
    options.predicted_arena_bytes = outcome->predicted_arena_bytes;
    options.predicted_host_bytes = outcome->predicted_host_bytes;
    struct rk_job *job = rank_meet(place, deadline);
    struct observed observed = {test, outcome, place->rank == 0};
    struct rk_training_observer observer = {note_step, &observed};
    outcome->status[place->rank] = rk_training_run(job, architecture, &candidate, &options, &observer, &report, &error);
    snprintf(outcome->message[place->rank], sizeof outcome->message[0], "%s", error.text);
    if (report.ranks != NULL && place->rank == 0) {
        memcpy(outcome->ranks, report.ranks, (size_t)report.world * sizeof *report.ranks);
        outcome->capacity_factor = report.capacity_factor;
    }
    rk_training_report_free(&report);
    rk_job_free(job);
    free(architecture);
    return 0;
}

struct case_context {
    const struct training_case *test;
    struct training_outcome *outcome;
};

static int run_rank(const struct rk_place *place, void *context) {
    const struct case_context *of = context;
    return case_rank(of->test, of->outcome, place);
}

void case_run(const struct training_case *test, struct training_outcome *outcome) {
    struct case_context context = {test, outcome};
    memset(outcome, 0, sizeof *outcome);
    ranks_run(case_world(test), run_rank, &context);
}

void case_run_well(const struct training_case *test, struct training_outcome *outcome) {
    case_run(test, outcome);
    for (int rank = 0; rank < case_world(test); rank++)
        if (outcome->status[rank] != RK_OK)
            fail_msg("rank %d: %s: %s", rank, rk_status_name(outcome->status[rank]), outcome->message[rank]);
    for (int rank = 0; rank < case_world(test); rank++) {
        int64_t sum = 0;
        for (int owner = 0; owner < RK_OWNER_COUNT; owner++)
            sum += outcome->ranks[rank].owner_bytes[owner];
        int64_t stage = outcome->ranks[rank].stage, predicted = outcome->predicted_arena_bytes[stage];
        assert_true(predicted > 0);
        assert_int_equal(sum, outcome->ranks[rank].arena_bytes);
        if (test->dropless && outcome->capacity_factor > test->capacity) {
            assert_true(outcome->ranks[rank].arena_bytes >= predicted);
            continue;
        }
        assert_int_equal(outcome->ranks[rank].arena_bytes, predicted);
        assert_int_equal(outcome->ranks[rank].host_bytes, outcome->predicted_host_bytes[stage]);
    }
}

static double tensor_difference(const struct rk_tensor_file *left, const struct rk_tensor_file *right,
                                const struct rk_tensor_entry *entry) {
    const struct rk_tensor_entry *other = NULL;
    struct rk_error error = {0};
    int64_t count = entry->shape[0] * entry->shape[1] * entry->shape[2];
    float *a = malloc((size_t)count * sizeof *a), *b = malloc((size_t)count * sizeof *b);
    double largest = 0, difference = 0;
    assert_true(a != NULL && b != NULL);
    if (rk_tensor_file_find(right, entry->name, entry->rank, entry->shape, &other, &error) != RK_OK ||
        rk_tensor_file_read(left, entry, 0, count, a, &error) != RK_OK ||
        rk_tensor_file_read(right, other, 0, count, b, &error) != RK_OK)
        fail_msg("%s", error.text);
    for (int64_t i = 0; i < count; i++) {
        double off = fabs((double)a[i] - (double)b[i]);
        largest = fabs((double)a[i]) > largest ? fabs((double)a[i]) : largest;
        difference = !(off <= difference) ? off : difference;
    }
    free(a);
    free(b);
    if (isnan(difference))
        return INFINITY;
    return largest > 0 ? difference / largest : difference > 0 ? INFINITY : 0;
}

double file_difference(const char *left, const char *right, char *worst) {
    struct rk_tensor_file a, b;
    struct rk_error error = {0};
    double largest = 0;
    if (rk_tensor_file_open(left, &a, &error) != RK_OK || rk_tensor_file_open(right, &b, &error) != RK_OK)
        fail_msg("%s", error.text);
    assert_int_equal(a.count, b.count);
    for (size_t i = 0; i < a.count; i++) {
        double difference = tensor_difference(&a, &b, &a.entries[i]);
        if (difference <= largest)
            continue;
        largest = difference;
        if (worst != NULL)
            memcpy(worst, a.entries[i].name, sizeof a.entries[i].name);
    }
    rk_tensor_file_close(&a);
    rk_tensor_file_close(&b);
    return largest;
}

bool files_equal(const char *left, const char *right) {
    char *a = NULL, *b = NULL;
    size_t a_length = 0, b_length = 0;
    struct rk_error error = {0};
    if (rk_read_file(left, (size_t)1 << 30, &a, &a_length, &error) != RK_OK ||
        rk_read_file(right, (size_t)1 << 30, &b, &b_length, &error) != RK_OK)
        fail_msg("%s", error.text);
    bool equal = a_length == b_length && memcmp(a, b, a_length) == 0;
    free(a);
    free(b);
    return equal;
}

void folder_make(char path[64]) {
    const char *base = getenv("TMPDIR");
    snprintf(path, 64, "%.40s/reckon-test-XXXXXX", base != NULL ? base : "/tmp");
    assert_non_null(mkdtemp(path));
}

void folder_remove(const char *path) {
    pid_t process = fork();
    if (process == 0) {
        execlp("rm", "rm", "-rf", "--", path, (char *)NULL);
        _exit(1);
    }
    waitpid(process, NULL, 0);
}

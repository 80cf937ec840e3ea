/* Windows of tokens, files of tensors, the learning rate, and the load summary. */
#include "executor/data.h"
#include "executor/load.h"
#include "executor/optimizer_options.h"
#include "executor/tensor_file.h"
#include "executor/token_file.h"
#include "tests/test.h"
#include "training_case.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static char folder[64];

static void in_folder(char path[128], const char *name) {
    snprintf(path, 128, "%s/%s", folder, name);
}

/* By the formula as the peer's script computes it (numpy, uint64), seed 1, vocabulary 4096. */
static void synthetic_tokens_are_the_peers(void **state) {
    (void)state;
    static const int32_t wanted[8] = {744, 1699, 3749, 359, 359, 1818, 2766, 586};
    for (uint64_t i = 0; i < 8; i++)
        assert_int_equal(rk_data_synthetic_token(i, 1, 4096), wanted[i]);
    for (uint64_t i = 0; i < 10000; i++) {
        int32_t token = rk_data_synthetic_token(i * 7919, 3, 48);
        assert_true(token >= 0 && token < 48);
    }
}

static void write_tokens(const char *path, int64_t count, int32_t modulus) {
    struct rk_token_writer writer;
    struct rk_error error = {0};
    assert_ok(rk_token_writer_open(path, RK_TOKEN_RAW, 2, &writer, &error), error);
    for (int32_t i = 0; i < count; i++) {
        int32_t token = i % modulus;
        assert_ok(rk_token_writer_add(&writer, &token, 1, &error), error);
    }
    assert_ok(rk_token_writer_commit(&writer, &error), error);
}

/* Window n holds tokens n·T to n·T + T, and wraps after floor((L - 1) / T) windows. */
static void windows_of_a_file(void **state) {
    (void)state;
    char path[128];
    int32_t tokens[17];
    struct rk_data *data = NULL;
    struct rk_error error = {0};
    in_folder(path, "tokens.u16");
    write_tokens(path, 100, 1000); /* (100 - 1) / 16 = 6 windows */
    struct rk_data_options options = {.path = path, .vocabulary = 1000, .window_tokens = 16};
    assert_ok(rk_data_open(&options, &data, &error), error);
    for (int64_t n = 0; n < 20; n++) {
        assert_ok(rk_data_window(data, n, tokens, &error), error);
        for (int i = 0; i < 17; i++)
            assert_int_equal(tokens[i], n % 6 * 16 + i);
    }
    rk_data_close(data);
    options.vocabulary = 50;
    assert_ok(rk_data_open(&options, &data, &error), error);
    assert_ok(rk_data_window(data, 2, tokens, &error), error);
    assert_fails(rk_data_window(data, 3, tokens, &error), RK_USAGE, error, "50");
    assert_non_null(strstr(error.text, "tokens.u16"));
    rk_data_close(data);
    options.window_tokens = 100;
    assert_fails(rk_data_open(&options, &data, &error), RK_USAGE, error, "101");
}

/* The set of windows of a step is the same for every division of the batch over ranks and micro-batches. */
static void windows_do_not_depend_on_the_layout(void **state) {
    (void)state;
    for (int64_t ranks = 1; ranks <= 8; ranks *= 2) {
        bool seen[8] = {false};
        int64_t micro_batches = 8 / ranks;
        for (int64_t micro = 0; micro < micro_batches; micro++)
            for (int64_t rank = 0; rank < ranks; rank++)
                seen[((5 * micro_batches + micro) * ranks + rank) - 40] = true;
        for (int i = 0; i < 8; i++)
            assert_true(seen[i]);
    }
}

static void learning_rates(void **state) {
    (void)state;
    struct rk_optimizer_options options = rk_optimizer_defaults();
    float steps[8];
    assert_true(rk_learning_rate(&options, 0) == 4e-4 && rk_learning_rate(&options, 1000000) == 4e-4);
    options.warmup_steps = 4;
    assert_true(fabs(rk_learning_rate(&options, 0) - 1e-4) < 1e-18);
    assert_true(rk_learning_rate(&options, 3) == 4e-4);
    options.minimum_learning_rate = 1e-4;
    options.decay_steps = 104;
    options.decay = RK_DECAY_LINEAR;
    assert_true(fabs(rk_learning_rate(&options, 54) - 2.5e-4) < 1e-15);
    options.decay = RK_DECAY_COSINE;
    assert_true(fabs(rk_learning_rate(&options, 54) - 2.5e-4) < 1e-15);
    assert_true(rk_learning_rate(&options, 29) > 3.2e-4);
    assert_true(rk_learning_rate(&options, 104) == 1e-4 && rk_learning_rate(&options, 200) == 1e-4);
    options = rk_optimizer_defaults();
    rk_optimizer_step_state(&options, 0, steps);
    assert_true(steps[0] == 4e-4F && steps[1] == (float)(1 - 0.9) && steps[2] == (float)(1 - 0.95));
    rk_optimizer_step_state(&options, 9, steps);
    assert_true(fabs((double)steps[1] - (1 - pow(0.9, 10))) < 1e-7);
}

/* Two layers, two ranks, four experts: requested and kept by hand. */
static void load_by_hand(void **state) {
    (void)state;
    struct rk_candidate candidate = {.pipeline = 1, .expert_parallel = 2, .data_parallel = 2};
    int64_t load[2][2][9] = {{{4, 0, 0, 0, 3, 0, 0, 0, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 0}},
                             {{2, 2, 0, 0, 1, 2, 0, 0, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 0}}};
    int64_t layers[2] = {2, 2};
    struct rk_load_summary summary = rk_load_summarise(&candidate, 4, &load[0][0][0], layers, 2);
    /* Layer 0: experts 6, 2, 0, 0 of 8 requested; 4, 2 of 6 kept. All rows go to rank 0. */
    assert_true(fabs(summary.requested_expert - 6 / (8 / 4.0)) < 1e-12);
    assert_true(fabs(summary.kept_expert - 4 / (6 / 4.0)) < 1e-12);
    assert_true(fabs(summary.requested_rank - 2) < 1e-12 && fabs(summary.kept_rank - 2) < 1e-12);
    layers[0] = layers[1] = 0;
    summary = rk_load_summarise(&candidate, 4, &load[0][0][0], layers, 2);
    assert_true(isnan(summary.requested_rank));
}

static void write_text(const char *path, const char *text, size_t length) {
    struct rk_error error = {0};
    assert_ok(rk_write_file(path, text, length, &error), error);
}

static void tensor_files_read_back(void **state) {
    (void)state;
    char path[128];
    struct rk_tensor_entry entries[3] = {{.name = "b", .rank = 2, .shape = {2, 3, 1}, .type = RK_F32},
                                         {.name = "a", .rank = 1, .shape = {4, 1, 1}, .type = RK_BF16},
                                         {.name = "c", .rank = 3, .shape = {1, 1, 2}, .type = RK_F32}};
    struct rk_text text = {0};
    struct rk_tensor_file file;
    struct rk_error error = {0};
    const struct rk_tensor_entry *entry = NULL;
    int64_t bytes = 0, shape[3] = {2, 3, 1};
    float values[6];
    in_folder(path, "tensors");
    assert_ok(rk_tensor_file_header(entries, 3, &text, &bytes, &error), error);
    char *whole = calloc(1, (size_t)bytes);
    assert_non_null(whole);
    memcpy(whole, text.data, text.length);
    memcpy(whole + entries[0].offset, (float[6]){1, 2, 3, 4, 5, 6}, 24);
    memcpy(whole + entries[1].offset, (uint16_t[4]){0x3F80, 0x4000, 0xBF80, 0x7F80}, 8);
    write_text(path, whole, (size_t)bytes);
    assert_ok(rk_tensor_file_open(path, &file, &error), error);
    assert_ok(rk_tensor_file_find(&file, "b", 2, shape, &entry, &error), error);
    assert_ok(rk_tensor_file_read(&file, entry, 2, 3, values, &error), error);
    assert_true(values[0] == 3 && values[2] == 5);
    shape[0] = 4, shape[1] = 1;
    assert_ok(rk_tensor_file_find(&file, "a", 1, shape, &entry, &error), error);
    assert_ok(rk_tensor_file_read(&file, entry, 0, 4, values, &error), error);
    assert_true(values[0] == 1 && values[1] == 2 && values[2] == -1 && isinf(values[3]));
    assert_fails(rk_tensor_file_find(&file, "b", 1, shape, &entry, &error), RK_USAGE, error, "[2, 3]");
    assert_fails(rk_tensor_file_find(&file, "missing", 1, shape, &entry, &error), RK_USAGE, error, "missing");
    rk_tensor_file_close(&file);
    /* Every shortened copy is refused, whatever was cut. */
    for (int64_t length = 0; length < bytes; length += length < 500 ? 23 : 1997) {
        write_text(path, whole, (size_t)length);
        if (length < entries[2].offset + 8)
            assert_int_equal(rk_tensor_file_open(path, &file, &error), RK_USAGE);
    }
    free(whole);
    rk_text_free(&text);
}

static void hostile_tensor_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "not a tensors-1 file"},
        {"hello\n", "not a tensors-1 file"},
        {"{\"format\": \"tensors-2\", \"count\": 1, \"data\": 64}\n", "tensors-2"},
        {"{\"format\": \"tensors-1\", \"count\": 1e300, \"data\": 64}\n", "count"},
        {"{\"format\": \"tensors-1\", \"count\": -1, \"data\": 64}\n", "count"},
        {"{\"format\": \"tensors-1\", \"count\": 0.5, \"data\": 64}\n", "count"},
        {"{\"format\": \"tensors-1\", \"count\": NaN, \"data\": 64}\n", "count"},
        {"{\"format\": \"tensors-1\", \"count\": \"1\", \"data\": 64}\n", "count"},
        {"{\"format\": \"tensors-1\", \"count\": 1, \"data\": 64}\n", "ends early"},
        {"{\"format\": \"tensors-1\", \"count\": 1, \"data\": 64}\n{\"name\": \"a\"}\n", "shape"},
        {"{\"format\": \"tensors-1\", \"count\": 1, \"data\": 64}\n{\"name\": \"a\", \"shape\": [], \"dtype\": \"f32\","
         " \"offset\": 200}\n",
         "dimensions"},
        {"{\"format\": \"tensors-1\", \"count\": 1, \"data\": 64}\n{\"name\": \"a\", \"shape\": [0], \"dtype\": "
         "\"f32\","
         " \"offset\": 200}\n",
         "shape[0]"},
        {"{\"format\": \"tensors-1\", \"count\": 1, \"data\": 64}\n{\"name\": \"a\", \"shape\": [-4], \"dtype\": "
         "\"f32\","
         " \"offset\": 200}\n",
         "shape[0]"},
        {"{\"format\": \"tensors-1\", \"count\": 1, \"data\": 64}\n{\"name\": \"a\", \"shape\": [1e12, 1e12], "
         "\"dtype\": "
         "\"f32\", \"offset\": 200}\n",
         "shape[1]"},
        {"{\"format\": \"tensors-1\", \"count\": 1, \"data\": 64}\n{\"name\": \"a\", \"shape\": [4], \"dtype\": "
         "\"f64\","
         " \"offset\": 200}\n",
         "f64"},
        {"{\"format\": \"tensors-1\", \"count\": 1, \"data\": 64}\n{\"name\": \"a\", \"shape\": [4], \"dtype\": "
         "\"f32\","
         " \"offset\": 8}\n",
         "over the header"},
        {"{\"format\": \"tensors-1\", \"count\": 1, \"data\": 64}\n{\"name\": \"a\", \"shape\": [4], \"dtype\": "
         "\"f32\","
         " \"offset\": 1e15}\n",
         "ends at byte"},
        {"{\"format\": \"tensors-1\", \"count\": 1, \"data\": 64}\n{\"name\": \"a\", \"shape\": [4], \"dtype\": "
         "\"f32\","
         " \"offset\": 1e300}\n",
         "offset"},
    };
    char path[128];
    struct rk_tensor_file file;
    struct rk_error error = {0};
    in_folder(path, "hostile");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text(path, cases[i].text, strlen(cases[i].text));
        assert_fails(rk_tensor_file_open(path, &file, &error), RK_USAGE, error, cases[i].words);
        assert_non_null(strstr(error.text, "hostile"));
    }
    assert_fails(rk_tensor_file_open(folder, &file, &error), RK_USAGE, error, "not a regular file");
    in_folder(path, "absent");
    assert_fails(rk_tensor_file_open(path, &file, &error), RK_USAGE, error, "absent");
}

static int set_up(void **state) {
    (void)state;
    folder_make(folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    folder_remove(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synthetic_tokens_are_the_peers),
        cmocka_unit_test(windows_of_a_file),
        cmocka_unit_test(windows_do_not_depend_on_the_layout),
        cmocka_unit_test(learning_rates),
        cmocka_unit_test(load_by_hand),
        cmocka_unit_test(tensor_files_read_back),
        cmocka_unit_test(hostile_tensor_files_are_refused),
    };
    return cmocka_run_group_tests_name("data", tests, set_up, tear_down);
}

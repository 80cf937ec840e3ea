/* The manifest of a checkpoint: what is written is read back, and memory that runs out while it is written is an error,
 * never a manifest with something missing. */
#include "base/text.h"
#include "executor/checkpoint_internal.h"
#include "tests/test.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long allocations_left = -1; /* of cJSON; -1: no limit */
static bool refused;

static void *counted_malloc(size_t size) {
    if (allocations_left >= 0 && allocations_left-- == 0) {
        refused = true;
        return NULL;
    }
    return malloc(size);
}

static void fill(struct rk_manifest *manifest, struct rk_tensor_entry entries[3], struct rk_saved_file files[2]) {
    *manifest = (struct rk_manifest){
        .facts = {.step = 12, .global_batch_tokens = 256, .seed = UINT64_MAX, .data = "synthetic"},
        .model = "a \"model\"",
        .pipeline = 2,
        .virtual_stages = 1,
        .expert_parallel = 4,
        .data_parallel = 4,
        .type = "bf16",
        .tensors = {.entries = entries, .count = 3},
        .files = files,
        .file_count = 2,
    };
    for (int i = 0; i < 3; i++) {
        entries[i] = (struct rk_tensor_entry){.rank = i + 1, .shape = {4, i > 0 ? 5 : 1, i > 1 ? 6 : 1}};
        snprintf(entries[i].name, sizeof entries[i].name, "tensor.%d", i);
    }
    for (int i = 0; i < 2; i++) {
        files[i] = (struct rk_saved_file){.bytes = ((int64_t)1 << 40) + i};
        snprintf(files[i].name, sizeof files[i].name, "rank-%05d.bin", i);
        memset(files[i].sha256, 'a' + i, sizeof files[i].sha256 - 1);
    }
}

static void assert_same(const struct rk_manifest *wanted, const struct rk_text *text) {
    char path[] = "/tmp/reckon-manifest-XXXXXX";
    struct rk_manifest read;
    struct rk_error error = {0};
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    assert_ok(rk_write_file(path, text->data, text->length, &error), error);
    assert_ok(rk_manifest_read(path, &read, &error), error);
    unlink(path);
    assert_memory_equal(&read.facts, &wanted->facts, sizeof read.facts);
    assert_string_equal(read.model, wanted->model);
    assert_string_equal(read.type, wanted->type);
    assert_int_equal(read.expert_parallel, wanted->expert_parallel);
    assert_int_equal(read.tensors.count, wanted->tensors.count);
    for (size_t i = 0; i < read.tensors.count; i++) {
        assert_string_equal(read.tensors.entries[i].name, wanted->tensors.entries[i].name);
        assert_int_equal(read.tensors.entries[i].rank, wanted->tensors.entries[i].rank);
        assert_memory_equal(read.tensors.entries[i].shape, wanted->tensors.entries[i].shape,
                            sizeof read.tensors.entries[i].shape);
    }
    assert_int_equal(read.file_count, wanted->file_count);
    for (size_t i = 0; i < read.file_count; i++) {
        assert_string_equal(read.files[i].name, wanted->files[i].name);
        assert_string_equal(read.files[i].sha256, wanted->files[i].sha256);
        assert_int_equal(read.files[i].bytes, wanted->files[i].bytes);
    }
    rk_manifest_free(&read);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    struct rk_manifest manifest;
    struct rk_tensor_entry entries[3];
    struct rk_saved_file files[2];
    cJSON_Hooks hooks = {counted_malloc, free};
    long failures = 0;
    fill(&manifest, entries, files);
    for (;; failures++) {
        struct rk_text text = {0};
        struct rk_error error = {.text = ""};
        cJSON_InitHooks(&hooks);
        allocations_left = failures;
        refused = false;
        enum rk_status status = rk_manifest_print(&manifest, &text, &error);
        allocations_left = -1;
        cJSON_InitHooks(NULL);
        if (!refused) {
            assert_ok(status, error);
            assert_same(&manifest, &text);
            rk_text_free(&text);
            break;
        }
        rk_text_free(&text);
        if (status != RK_ERROR || strstr(error.text, "memory") == NULL)
            fail_msg("allocation %ld failed: status %d, '%s'", failures, (int)status, error.text);
    }
    print_message("  %ld allocations\n", failures);
    assert_true(failures > 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("manifest", tests, NULL, NULL);
}

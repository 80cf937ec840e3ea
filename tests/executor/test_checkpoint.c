/* Checkpoints: resumed runs have the bits of uninterrupted ones, any layout reads what any other wrote, and what is
 * broken or foreign is refused by name. */
#include "training_case.h"

#include "base/text.h"
#include "executor/checkpoint.h"
#include "tests/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], directory[128], whole[128], final[128];
static struct training_outcome *outcome, *second;

static void path_in(char path[256], const char *name) {
    snprintf(path, 256, "%.127s/%.120s", directory, name);
}

static int count_folders(void) {
    int count = 0;
    DIR *stream = opendir(directory);
    assert_non_null(stream);
    for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream))
        count += strncmp(entry->d_name, "step-", 5) == 0;
    closedir(stream);
    return count;
}

/* Runs to `steps` without a stop and keeps the final weights in `whole`. */
static void run_whole(const struct training_case *like, int64_t steps) {
    struct training_case test = *like;
    test.steps = steps;
    test.final = whole;
    test.checkpoint = NULL;
    case_run_well(&test, outcome);
}

static struct training_case stopped(const struct training_case *like, int64_t steps) {
    struct training_case test = *like;
    test.steps = steps;
    test.checkpoint = directory;
    return test;
}

static void resume_has_the_same_bits(void **state) {
    (void)state;
    for (int m = 0; m < 3; m++) {
        struct training_case like = {.model = m == 0   ? model_olmoe
                                              : m == 1 ? model_qwen3
                                                       : model_glm4,
                                     .pipeline = 2,
                                     .expert_parallel = 2,
                                     .data_parallel = 2,
                                     .type = m == 1 ? RK_BF16 : RK_F32};
        folder_remove(directory);
        run_whole(&like, 6);
        struct training_case test = stopped(&like, 2);
        case_run_well(&test, second);
        test.resume = true;
        test.steps = 4;
        case_run_well(&test, second);
        assert_int_equal(second->step[0].step, 2);
        test.steps = 6;
        test.final = final;
        case_run_well(&test, second);
        assert_true(second->step[1].loss == outcome->step[5].loss);
        if (!files_equal(whole, final))
            fail_msg("model %d: the resumed run has other weights", m);
    }
}

/* Saved under one layout, read under the next and saved again: not a bit of the state changes, and the run that the
 * last layout goes on with is the one that the first would have gone on with. */
static void any_layout_reads_any_other(void **state) {
    (void)state;
    static const struct {
        int pipeline, virtual_stages, expert_parallel, data_parallel;
    } layouts[] = {{1, 1, 2, 2}, {1, 1, 1, 1}, {2, 1, 1, 1}, {4, 1, 2, 2}, {2, 2, 2, 2},
                   {1, 1, 4, 4}, {1, 1, 1, 4}, {2, 1, 2, 4}, {1, 1, 2, 2}};
    for (int m = 0; m < 3; m++) {
        struct training_case like = {.model = m == 0   ? model_olmoe
                                              : m == 1 ? model_qwen3
                                                       : model_glm4,
                                     .expert_parallel = 2,
                                     .data_parallel = 2};
        folder_remove(directory);
        struct training_case test = stopped(&like, 2);
        test.final = whole;
        case_run_well(&test, outcome);
        test.resume = true;
        test.final = final;
        /* Resuming with all steps done does nothing but load, save the weights and write no checkpoint. */
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            test.pipeline = layouts[i].pipeline;
            test.virtual_stages = layouts[i].virtual_stages;
            test.expert_parallel = layouts[i].expert_parallel;
            test.data_parallel = layouts[i].data_parallel;
            case_run_well(&test, second);
            assert_int_equal(second->steps, 0);
            if (!files_equal(whole, final))
                fail_msg("model %d, layout %zu: loaded weights differ", m, i);
        }
        /* One step under another layout writes its shards; the first layout reads them and goes on. */
        test.pipeline = 2;
        test.expert_parallel = 4;
        test.data_parallel = 4;
        test.steps = 3;
        case_run_well(&test, second);
        run_whole(&like, 4);
        test = stopped(&like, 4);
        test.resume = true;
        test.final = final;
        case_run_well(&test, second);
        assert_int_equal(second->step[0].step, 3);
        char worst[64] = "";
        double difference = file_difference(whole, final, worst);
        if (!(difference < 1e-4))
            fail_msg("model %d: weights differ by %g of the largest element of %s", m, difference, worst);
    }
}

static void precision_may_change(void **state) {
    (void)state;
    struct training_case like = {.model = model_olmoe, .expert_parallel = 2, .data_parallel = 2};
    folder_remove(directory);
    struct training_case test = stopped(&like, 2);
    test.final = whole;
    case_run_well(&test, outcome);
    test.resume = true;
    test.type = RK_BF16;
    test.final = final;
    case_run_well(&test, second);
    assert_true(files_equal(whole, final));
}

static void oldest_are_removed(void **state) {
    (void)state;
    struct training_case test = {
        .model = model_olmoe, .steps = 7, .checkpoint = directory, .checkpoint_every = 1, .checkpoint_keep = 3};
    folder_remove(directory);
    case_run_well(&test, outcome);
    assert_int_equal(count_folders(), 3);
    test.resume = true;
    test.steps = 8;
    test.checkpoint_keep = 0;
    case_run_well(&test, outcome);
    assert_int_equal(count_folders(), 4);
}

static void a_directory_is_not_overwritten(void **state) {
    (void)state;
    struct training_case test = {.model = model_olmoe, .checkpoint = directory};
    folder_remove(directory);
    case_run_well(&test, outcome);
    case_run(&test, outcome);
    assert_int_equal(outcome->status[0], RK_USAGE);
    assert_non_null(strstr(outcome->message[0], "--resume"));
}

/* A directory that no checkpoint can be written to is refused before the first step, not after it. */
static void a_directory_that_cannot_be_is_refused_first(void **state) {
    (void)state;
    char file[256], below[300];
    struct training_case test = {
        .model = model_olmoe, .expert_parallel = 2, .data_parallel = 2, .steps = 2};
    snprintf(file, sizeof file, "%s/a file", folder);
    snprintf(below, sizeof below, "%s/below", file);
    int descriptor = open(file, O_CREAT | O_WRONLY, 0600);
    assert_true(descriptor >= 0);
    close(descriptor);
    for (int where = 0; where < 2; where++) {
        test.checkpoint = where == 0 ? file : below;
        case_run(&test, outcome);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(outcome->status[rank], RK_ERROR);
            assert_non_null(strstr(outcome->message[rank], file));
            assert_non_null(strstr(outcome->message[rank], "give another directory"));
        }
        assert_int_equal(outcome->steps, 0);
    }
    unlink(file);
}

/* Makes a checkpoint of two ranks after two steps. */
static struct training_case fresh_checkpoint(void) {
    struct training_case test = {
        .model = model_olmoe, .expert_parallel = 2, .data_parallel = 2, .steps = 2, .checkpoint = directory};
    folder_remove(directory);
    case_run_well(&test, outcome);
    test.resume = true;
    test.steps = 3;
    return test;
}

static void truncate_shard(void) {
    char path[256];
    struct stat facts;
    path_in(path, "step-00000002/rank-00001.bin");
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(truncate(path, facts.st_size - 8), 0);
}

static void flip_byte(void) {
    char path[256];
    struct stat facts;
    unsigned char byte = 0;
    path_in(path, "step-00000002/rank-00000.bin");
    int descriptor = open(path, O_RDWR);
    assert_true(descriptor >= 0 && fstat(descriptor, &facts) == 0);
    assert_int_equal(pread(descriptor, &byte, 1, facts.st_size / 2), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(descriptor, &byte, 1, facts.st_size / 2), 1);
    close(descriptor);
}

static void remove_shard(void) {
    char path[256];
    path_in(path, "step-00000002/rank-00001.bin");
    assert_int_equal(unlink(path), 0);
}

static void break_header(void) {
    char path[256];
    path_in(path, "step-00000002/rank-00001.bin");
    int descriptor = open(path, O_RDWR);
    assert_true(descriptor >= 0);
    assert_int_equal(pwrite(descriptor, "?", 1, 0), 1);
    close(descriptor);
}

static void remove_manifest(void) {
    char path[256];
    path_in(path, "step-00000002/manifest.json");
    assert_int_equal(unlink(path), 0);
}

static void cut_manifest(void) {
    char path[256];
    path_in(path, "step-00000002/manifest.json");
    assert_int_equal(truncate(path, 300), 0);
}

/* Replaces the first occurrence in the manifest. */
static void edit_manifest(const char *from, const char *to) {
    char path[256], *text = NULL;
    size_t length = 0;
    struct rk_error error = {0};
    struct rk_text edited = {0};
    path_in(path, "step-00000002/manifest.json");
    assert_ok(rk_read_file(path, 1 << 20, &text, &length, &error), error);
    char *at = strstr(text, from);
    assert_non_null(at);
    rk_text_add_bytes(&edited, text, (size_t)(at - text));
    rk_text_add(&edited, to);
    rk_text_add(&edited, at + strlen(from));
    assert_ok(rk_write_file(path, edited.data, edited.length, &error), error);
    rk_text_free(&edited);
    free(text);
}

static void raise_version(void) {
    edit_manifest("\"version\": 1", "\"version\": 2");
}

static void other_format(void) {
    edit_manifest("reckon-checkpoint", "something-else");
}

static void outside_path(void) {
    edit_manifest("rank-00001.bin", "../../escape");
}

static void huge_size(void) {
    edit_manifest("\"bytes\": ", "\"bytes\": 1e300, \"was\": ");
}

static void negative_step(void) {
    edit_manifest("\"step\": 2", "\"step\": -2");
}

static void fewer_files(void) {
    edit_manifest("\"files\": [", "\"files\": [], \"were\": [");
}

static void other_shape(void) {
    edit_manifest("48,", "47,");
}

static void write_latest(const char *text) {
    char path[256];
    struct rk_error error = {0};
    path_in(path, "latest");
    assert_ok(rk_write_file(path, text, strlen(text), &error), error);
}

static void latest_nowhere(void) {
    write_latest("step-00000009\n");
}

static void latest_outside(void) {
    write_latest("../step-00000002\n");
}

static void latest_empty(void) {
    write_latest("");
}

static void broken_checkpoints_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *name;
        void (*spoil)(void);
        enum rk_status status;
        const char *words;
    } cases[] = {
        {"shard cut short", truncate_shard, RK_ERROR, "rank-00001.bin"},
        {"byte flipped", flip_byte, RK_ERROR, "rank-00000.bin"},
        {"shard missing", remove_shard, RK_ERROR, "rank-00001.bin"},
        {"shard's header broken", break_header, RK_USAGE, "rank-00001.bin"},
        {"manifest missing", remove_manifest, RK_ERROR, "manifest.json"},
        {"manifest cut short", cut_manifest, RK_USAGE, "manifest.json"},
        {"newer version", raise_version, RK_USAGE, "version 2"},
        {"other format", other_format, RK_USAGE, "something-else"},
        {"file outside the folder", outside_path, RK_USAGE, "plain file name"},
        {"huge size", huge_size, RK_USAGE, "bytes"},
        {"negative step", negative_step, RK_USAGE, "step"},
        {"no files", fewer_files, RK_USAGE, "files"},
        {"other shape", other_shape, RK_USAGE, "another model"},
        {"latest names nothing", latest_nowhere, RK_ERROR, "step-00000009"},
        {"latest outside", latest_outside, RK_ERROR, "latest"},
        {"latest empty", latest_empty, RK_ERROR, "latest"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct training_case test = fresh_checkpoint();
        cases[i].spoil();
        case_run(&test, outcome);
        for (int rank = 0; rank < 2; rank++)
            if ((outcome->status[rank] != RK_ERROR && outcome->status[rank] != RK_USAGE) ||
                strstr(outcome->message[rank], cases[i].words) == NULL)
                fail_msg("%s, rank %d: status %d, '%s'", cases[i].name, rank, (int)outcome->status[rank],
                         outcome->message[rank]);
        if (outcome->status[0] != cases[i].status)
            fail_msg("%s: status %d, '%s'", cases[i].name, (int)outcome->status[0], outcome->message[0]);
    }
}

static void foreign_checkpoints_are_refused(void **state) {
    (void)state;
    struct training_case test = fresh_checkpoint();
    test.model = model_glm4;
    case_run(&test, outcome);
    assert_int_equal(outcome->status[0], RK_USAGE);
    assert_non_null(strstr(outcome->message[0], "another model"));
    test.model = model_olmoe;
    test.global_batch = 512;
    case_run(&test, outcome);
    assert_int_equal(outcome->status[0], RK_USAGE);
    assert_non_null(strstr(outcome->message[0], "global batch"));
    test.global_batch = 0;
    case_run_well(&test, outcome);
}

static struct training_case mounted;
static int rank_without_mount;

/* One rank finds an empty folder where the others find the checkpoint. */
static int run_beside_mount(const struct rk_place *place, void *context) {
    struct training_case test = mounted;
    (void)context;
    if (place->rank == rank_without_mount)
        test.checkpoint = folder;
    return case_rank(&test, outcome, place);
}

static void ranks_must_see_the_same_checkpoint(void **state) {
    (void)state;
    mounted = fresh_checkpoint();
    for (int without = 0; without < 2; without++)
        for (int resume = 0; resume < 2; resume++) {
            rank_without_mount = without;
            mounted.resume = resume == 1;
            memset(outcome, 0, sizeof *outcome);
            ranks_run(2, run_beside_mount, NULL);
            for (int rank = 0; rank < 2; rank++) {
                assert_int_equal(outcome->status[rank], RK_USAGE);
                assert_non_null(strstr(outcome->message[rank], "rank 1 (host"));
                assert_non_null(strstr(outcome->message[rank], without == 1 ? "no checkpoint" : "a checkpoint"));
            }
            assert_int_equal(outcome->steps, 0);
        }
}

/* The limit of a file's size stands for a full disk: the write of a shard fails half-way. */
static void full_disk_leaves_the_former_checkpoint(void **state) {
    (void)state;
    struct training_case test = fresh_checkpoint();
    test.file_limit = 8192;
    case_run(&test, outcome);
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(outcome->status[rank], RK_ERROR);
        assert_non_null(strstr(outcome->message[rank], "rank-0000"));
    }
    assert_int_equal(count_folders(), 1);
    test.file_limit = 0;
    test.final = final;
    case_run_well(&test, second);
    assert_int_equal(second->step[0].step, 2);
    struct training_case like = {.model = model_olmoe, .expert_parallel = 2, .data_parallel = 2};
    run_whole(&like, 3);
    assert_true(files_equal(whole, final));
}

static int set_up(void **state) {
    (void)state;
    folder_make(folder);
    snprintf(directory, sizeof directory, "%s/checkpoints/of run", folder);
    snprintf(whole, sizeof whole, "%s/whole", folder);
    snprintf(final, sizeof final, "%s/final", folder);
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
        cmocka_unit_test(resume_has_the_same_bits),
        cmocka_unit_test(any_layout_reads_any_other),
        cmocka_unit_test(precision_may_change),
        cmocka_unit_test(oldest_are_removed),
        cmocka_unit_test(a_directory_is_not_overwritten),
        cmocka_unit_test(a_directory_that_cannot_be_is_refused_first),
        cmocka_unit_test(broken_checkpoints_are_refused),
        cmocka_unit_test(foreign_checkpoints_are_refused),
        cmocka_unit_test(ranks_must_see_the_same_checkpoint),
        cmocka_unit_test(full_disk_leaves_the_former_checkpoint),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, set_up, tear_down);
}

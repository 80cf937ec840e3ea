/* A buffer that is reused too early must not go unseen: released buffers are filled with NaN, and layouts with one
 * seeded overlap, on a pipeline with two live micro-batches, are caught by that, and by the proof of the layout. */
#include "training_case.h"

#include "executor/data.h"
#include "executor/initialise.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { DEFECTS_MAX = 512 };

/* Two instances of stage 0 that get the same bytes. */
struct defect {
    uint32_t buffer, other_buffer;
    int64_t instance, other_instance;
};

/* Shared by the ranks. */
struct poisoned_run {
    struct defect defect;
    bool seeded, poison;
    enum rk_status status[2], proof;
    struct rk_step_result result;
    char message[2][1024];
};

struct stage {
    struct rk_architecture architecture;
    struct rk_program *program;
    struct rk_memory_layout layout;
};

/* Two stages of two layers, four micro-batches: stage 0 holds two at a time. */
static struct stage *stage_make(int number) {
    struct training_case test = {.model = model_glm4, .pipeline = 2, .global_batch = 128};
    struct stage *stage = calloc(1, sizeof *stage);
    struct rk_candidate candidate;
    struct rk_error error = {0};
    RANK_CHECK(stage != NULL);
    case_architecture(&test, &stage->architecture);
    case_candidate(&test, &stage->architecture, &candidate);
    RANK_CHECK_OK(rk_program_lower(&stage->architecture, &candidate, number, &stage->program, &error), error);
    RANK_CHECK_OK(rk_memory_layout_make(stage->program, &stage->layout, &error), error);
    return stage;
}

static void stage_free(struct stage *stage) {
    rk_memory_layout_free(&stage->layout);
    rk_program_free(stage->program);
    free(stage);
}

static void seed(const struct defect *defect, struct rk_memory_layout *layout) {
    layout->offset[defect->other_buffer][defect->other_instance] = layout->offset[defect->buffer][defect->instance];
}

static enum rk_status take_step(struct stage *stage, struct rk_job *job, const struct poisoned_run *run,
                                struct rk_step_result *result, struct rk_error *error) {
    struct rk_trainer_options options = {.backend = rk_backend_cpu(),
                                         .transport = rk_transport_shm(),
                                         .deadline_seconds = 30,
                                         .predicted_arena_bytes = -1,
                                         .predicted_host_bytes = -1,
                                         .poison = run->poison};
    struct rk_data_options tokens = {.vocabulary = 48, .window_tokens = 32, .seed = 1};
    struct rk_optimizer_options optimizer = rk_optimizer_defaults();
    struct rk_step_inputs inputs = {.step = 0};
    struct rk_trainer *trainer = NULL;
    struct rk_data *data = NULL;
    int32_t windows[4 * 33];
    enum rk_status status = rk_trainer_open(job, stage->program, &stage->layout, &options, &trainer, error);
    if (status == RK_OK)
        status = rk_data_open(&tokens, &data, error);
    for (int i = 0; i < 4 && status == RK_OK; i++)
        status = rk_data_window(data, i, windows + 33 * i, error);
    if (status == RK_OK)
        status = rk_initialise(trainer, 7, 0.05, error);
    rk_optimizer_step_state(&optimizer, 0, inputs.state);
    inputs.windows = windows;
    if (status == RK_OK)
        status = rk_trainer_step(trainer, &inputs, result, error);
    rk_data_close(data);
    rk_trainer_close(trainer);
    return status;
}

static int poisoned_rank(const struct rk_place *place, void *context) {
    struct poisoned_run *run = context;
    struct stage *stage = stage_make((int)place->rank);
    struct rk_step_result result = {0};
    struct rk_error error = {0};
    struct rk_job *job = rank_meet(place, 30);
    if (place->rank == 0 && run->seeded)
        seed(&run->defect, &stage->layout);
    if (place->rank == 0)
        run->proof = rk_memory_layout_check(stage->program, &stage->layout, &error);
    run->status[place->rank] = take_step(stage, job, run, &result, &error);
    snprintf(run->message[place->rank], sizeof run->message[0], "%s", error.text);
    if (place->rank == 0)
        run->result = result;
    rk_job_free(job);
    stage_free(stage);
    return 0;
}

static struct poisoned_run *run_once(struct poisoned_run *run, const struct defect *defect, bool poison) {
    memset(run, 0, sizeof *run);
    run->seeded = defect != NULL;
    run->poison = poison;
    if (defect != NULL)
        run->defect = *defect;
    ranks_run(2, poisoned_rank, run);
    return run;
}

static bool holds_reals(const struct rk_buffer *buffer) {
    return (buffer->owner == RK_OWNER_ACTIVATIONS || buffer->owner == RK_OWNER_EXCHANGE) &&
           buffer->space == RK_SPACE_DEVICE && buffer->view_of == RK_NO_BUFFER;
}

/* Every kept buffer of reals: the second slot's instance over the first's; and over every largest transient value. */
static size_t list_defects(const struct stage *stage, struct defect *defects) {
    const struct rk_program *program = stage->program;
    size_t count = 0;
    for (uint32_t b = 0; b < program->buffer_count; b++) {
        const struct rk_buffer *buffer = &program->buffers[b];
        if (!holds_reals(buffer) || (buffer->scope != RK_SCOPE_LAYER_SLOT && buffer->scope != RK_SCOPE_SLOT))
            continue;
        if (buffer->instance_count >= 2 && count < DEFECTS_MAX)
            defects[count++] = (struct defect){b, b, 0, 1};
    }
    return count;
}

static void sound_layout_passes(void **state) {
    struct poisoned_run *run = run_once(*state, NULL, true);
    if (run->status[0] != RK_OK || run->status[1] != RK_OK)
        fail_msg("%s; %s", run->message[0], run->message[1]);
    assert_int_equal(run->proof, RK_OK);
    double norm = run->result.gradient_norm;
    run = run_once(*state, NULL, false);
    assert_true(run->result.gradient_norm == norm);
}

/* Each overlap of two live micro-batches' values must end the step with an error; without poison it would be finite. */
static void overlaps_of_micro_batches_are_caught(void **state) {
    struct stage *stage = stage_make(0);
    struct defect defects[DEFECTS_MAX];
    size_t count = list_defects(stage, defects), finite = 0;
    double sound = run_once(*state, NULL, true)->result.gradient_norm;
    assert_int_equal(stage->program->slots[0], 2);
    assert_true(count >= 8);
    for (size_t i = 0; i < count; i++) {
        const char *name = stage->program->buffers[defects[i].buffer].name;
        struct poisoned_run *run = run_once(*state, &defects[i], true);
        if (run->status[0] == RK_OK && run->status[1] == RK_OK)
            fail_msg("%s of two micro-batches in one place: not caught", name);
        assert_true(strstr(run->message[0], "poison") != NULL || strstr(run->message[1], "poison") != NULL);
        assert_int_equal(run->proof, RK_ERROR);
        run = run_once(*state, &defects[i], false);
        finite += run->status[0] == RK_OK && isfinite(run->result.gradient_norm) && run->result.gradient_norm != sound;
    }
    print_message("  %zu overlaps caught; without poison %zu of them give a finite, wrong norm\n", count, finite);
    assert_true(finite > 0);
    stage_free(stage);
}

/* A kept value over a value of visit scope: the past defect of leased buffers that were given back too early. */
static void overlaps_with_transients_are_caught(void **state) {
    struct stage *stage = stage_make(0);
    const struct rk_program *program = stage->program;
    size_t caught = 0, tried = 0;
    uint32_t kept = RK_NO_BUFFER;
    for (uint32_t b = 0; b < program->buffer_count; b++)
        if (program->buffers[b].scope == RK_SCOPE_LAYER_SLOT && strcmp(program->buffers[b].name, "moe.rows") == 0)
            kept = b;
    assert_true(kept != RK_NO_BUFFER);
    for (uint32_t b = 0; b < program->buffer_count; b++) {
        const struct rk_buffer *buffer = &program->buffers[b];
        if (buffer->scope != RK_SCOPE_VISIT || buffer->space != RK_SPACE_DEVICE || buffer->view_of != RK_NO_BUFFER ||
            strncmp(buffer->name, "moe.", 4) != 0 || buffer->owner == RK_OWNER_ROUTES ||
            buffer->bytes > program->buffers[kept].bytes)
            continue;
        struct defect defect = {kept, b, 0, 0};
        struct poisoned_run *run = run_once(*state, &defect, true);
        tried++;
        caught += run->status[0] != RK_OK || run->status[1] != RK_OK;
        assert_int_equal(run->proof, RK_ERROR);
    }
    print_message("  %zu of %zu overlaps with transients caught by poison, all by the proof\n", caught, tried);
    assert_true(tried >= 4);
    assert_int_equal(caught, tried);
    stage_free(stage);
}

static int set_up(void **state) {
    *state = mmap(NULL, sizeof(struct poisoned_run), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return *state == MAP_FAILED ? -1 : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_layout_passes),
        cmocka_unit_test(overlaps_of_micro_batches_are_caught),
        cmocka_unit_test(overlaps_with_transients_are_caught),
    };
    return cmocka_run_group_tests_name("poison", tests, set_up, NULL);
}

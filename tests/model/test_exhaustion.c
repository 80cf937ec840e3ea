/* Memory that runs out at every single allocation: lowering, layout and checks say so, leak nothing and touch nothing
 * wild (the sanitizers' builds look). The linker sends allocations through the wrappers below. */
#include "step_samples.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Names fixed by the linker's --wrap. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);

static long allocations_left = -1; /* -1: no limit */
static bool refused;

static bool refuse(void) {
    if (allocations_left < 0)
        return false;
    refused = refused || allocations_left == 0;
    return allocations_left-- == 0;
}

void *__wrap_malloc(size_t size) {
    return refuse() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
    return refuse() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size) {
    return refuse() ? NULL : __real_realloc(memory, size);
}

struct made {
    struct rk_architecture architecture;
    struct rk_candidate candidate;
    struct rk_program *program;
    struct rk_memory_layout layout;
};

typedef enum rk_status action(struct made *made, struct rk_error *error);

static enum rk_status lower(struct made *made, struct rk_error *error) {
    return rk_program_lower(&made->architecture, &made->candidate, 0, &made->program, error);
}

static enum rk_status check_program(struct made *made, struct rk_error *error) {
    return rk_program_check(made->program, error);
}

static enum rk_status lay_out(struct made *made, struct rk_error *error) {
    return rk_memory_layout_make(made->program, &made->layout, error);
}

static enum rk_status check_layout(struct made *made, struct rk_error *error) {
    return rk_memory_layout_check(made->program, &made->layout, error);
}

static enum rk_status list_releases(struct made *made, struct rk_error *error) {
    struct rk_release_list list;
    enum rk_status status = rk_memory_release_make(made->program, &list, error);
    if (status == RK_OK)
        rk_memory_release_free(&list);
    return status;
}

/* Lets the first, then the second, ... allocation fail until the action needs no more of them; returns how many failed. */
static long exhaust(action *act, struct made *made) {
    for (long n = 0;; n++) {
        struct rk_error error = {.text = ""};
        allocations_left = n;
        refused = false;
        enum rk_status status = act(made, &error);
        allocations_left = -1;
        if (!refused) {
            assert_int_equal(status, RK_OK);
            return n;
        }
        assert_int_equal(status, RK_ERROR);
        assert_non_null(strstr(error.text, "out of memory"));
    }
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    for (int sample = 0; sample < RK_SAMPLE_COUNT; sample++) {
        struct made made = {.architecture = rk_sample_architecture((enum rk_sample)sample)};
        made.candidate = rk_sample_candidate(&made.architecture);
        made.candidate.offload_percent = 100;
        rk_sample_layout(&made.architecture, &made.candidate, 2, 2, made.architecture.moe_layers > 0 ? 2 : 1, 2, 4);
        assert_true(exhaust(lower, &made) > 20);
        assert_true(exhaust(check_program, &made) > 20);
        assert_true(exhaust(lay_out, &made) > 20);
        assert_true(exhaust(check_layout, &made) > 2);
        assert_true(exhaust(list_releases, &made) > 2);
        rk_memory_layout_free(&made.layout);
        rk_program_free(made.program);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

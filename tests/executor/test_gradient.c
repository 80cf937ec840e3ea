/* The gradient of the whole model against finite differences of its loss: embedding, blocks, head and auxiliary losses
 * together. Every op is checked element by element in the kernels' tests; here each tensor is moved along its own gradient
 * and along a random direction, so that a term left out of the chain shows.
 *
 * Routes are fixed (uniform), because the loss jumps where a route changes. The forward is FP32: a loss near 4 is known to
 * about 1e-6, and two central differences cancel the third-order term (Richardson). The bound is 0.5 % of the derivative, or of
 * a tenth of the gradient's length where the direction is nearly level. */
#include "training_case.h"

#include "base/random.h"
#include "executor/tensor_file.h"
#include "tests/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char folder[64], initial[128], gradients[128], moved[128];
static struct training_outcome *outcome;

static void read_tensor(const char *path, const char *name, float **values, int64_t *count, int64_t *offset) {
    struct rk_tensor_file file;
    struct rk_error error = {0};
    assert_ok(rk_tensor_file_open(path, &file, &error), error);
    for (size_t i = 0; i < file.count; i++) {
        const struct rk_tensor_entry *entry = &file.entries[i];
        if (strcmp(entry->name, name) != 0)
            continue;
        *count = entry->shape[0] * entry->shape[1] * entry->shape[2];
        *offset = entry->offset;
        *values = malloc((size_t)*count * sizeof **values);
        assert_ok(rk_tensor_file_read(&file, entry, 0, *count, *values, &error), error);
    }
    rk_tensor_file_close(&file);
}

/* The loss with one tensor moved by step times the direction. */
static double loss_at(const struct training_case *like, const char *name, const double *direction, double step) {
    float *values = NULL;
    int64_t count = 0, offset = 0;
    struct training_case test = *like;
    read_tensor(initial, name, &values, &count, &offset);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(values[i] + step * direction[i]);
    int descriptor = open(moved, O_WRONLY);
    assert_true(descriptor >= 0);
    assert_int_equal(pwrite(descriptor, values, (size_t)count * sizeof *values, offset),
                     count * (int64_t)sizeof *values);
    test.load_weights = moved;
    test.gradients = NULL;
    test.initial = NULL;
    case_run_well(&test, outcome);
    double loss = outcome->step[0].loss;
    /* Back to the first weights for the next tensor. */
    free(values);
    read_tensor(initial, name, &values, &count, &offset);
    assert_int_equal(pwrite(descriptor, values, (size_t)count * sizeof *values, offset),
                     count * (int64_t)sizeof *values);
    close(descriptor);
    free(values);
    return loss;
}

static void check_direction(const struct training_case *test, const char *name, const char *which, const float *gradient,
                            int64_t count, double *direction) {
    double length = 0, wanted = 0, steepness = 0;
    for (int64_t i = 0; i < count; i++)
        length += direction[i] * direction[i];
    for (int64_t i = 0; i < count; i++) {
        direction[i] /= sqrt(length);
        wanted += direction[i] * (double)gradient[i];
        steepness += (double)gradient[i] * (double)gradient[i];
    }
    double step = 0.03;
    double wide = (loss_at(test, name, direction, 2 * step) - loss_at(test, name, direction, -2 * step)) / (4 * step);
    double narrow = (loss_at(test, name, direction, step) - loss_at(test, name, direction, -step)) / (2 * step);
    double found = (4 * narrow - wide) / 3;
    /* Rounding of the loss, over the step. */
    double noise = 2e-6 / step;
    if (fabs(found - wanted) > 0.005 * fmax(fabs(wanted), 0.1 * sqrt(steepness)) + noise)
        fail_msg("%s along %s: the loss changes by %g, the gradient says %g (its length is %g)", name, which, found, wanted,
                 sqrt(steepness));
}

static void check_tensor(const struct training_case *test, const char *name) {
    float *gradient = NULL;
    int64_t count = 0, offset = 0;
    uint64_t stream = rk_random_stream(5, name, 0);
    read_tensor(gradients, name, &gradient, &count, &offset);
    double *direction = malloc((size_t)count * sizeof *direction), length = 0;
    assert_true(gradient != NULL && direction != NULL);
    for (int64_t i = 0; i < count; i++) {
        assert_true(isfinite(gradient[i]));
        direction[i] = (double)gradient[i];
        length += direction[i] * direction[i];
    }
    assert_true(length > 0);
    check_direction(test, name, "its gradient", gradient, count, direction);
    for (int64_t i = 0; i < count; i++)
        direction[i] = rk_random_normal(stream, (uint64_t)i);
    check_direction(test, name, "a random direction", gradient, count, direction);
    free(gradient);
    free(direction);
}

static void check_model(const char *model) {
    struct training_case test = {.model = model, .routing = RK_ROUTING_UNIFORM, .global_batch = 64,
                                 .standard_deviation = 0.3, .balance_coefficient = 0.5, .z_coefficient = 0.05,
                                 .initial = initial, .gradients = gradients};
    struct rk_tensor_file file;
    struct rk_error error = {0};
    case_run_well(&test, outcome);
    test.initial = moved;
    case_run_well(&test, outcome);
    assert_ok(rk_tensor_file_open(gradients, &file, &error), error);
    for (size_t i = 0; i < file.count; i++)
        check_tensor(&test, file.entries[i].name);
    print_message("  %zu tensors, loss %.3f with balance %.3f and z %.3f\n", file.count, outcome->step[0].loss,
                  outcome->step[0].balance, outcome->step[0].z);
    rk_tensor_file_close(&file);
}

static void olmoe_gradient(void **state) {
    (void)state;
    check_model(model_olmoe);
}

static void qwen3_gradient(void **state) {
    (void)state;
    check_model(model_qwen3);
}

static void glm4_gradient(void **state) {
    (void)state;
    check_model(model_glm4);
}

static int set_up(void **state) {
    (void)state;
    folder_make(folder);
    snprintf(initial, sizeof initial, "%s/initial", folder);
    snprintf(gradients, sizeof gradients, "%s/gradients", folder);
    snprintf(moved, sizeof moved, "%s/moved", folder);
    outcome = outcome_make();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    folder_remove(folder);
    outcome_free(outcome);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(olmoe_gradient),
        cmocka_unit_test(qwen3_gradient),
        cmocka_unit_test(glm4_gradient),
    };
    return cmocka_run_group_tests_name("gradient", tests, set_up, tear_down);
}

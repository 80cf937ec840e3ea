/* The gradient of the whole model against finite differences of its loss: embedding, blocks, head and auxiliary losses
 * together. Every op is checked element by element in the kernels' tests; here each tensor is moved along its own
 * gradient and along a random direction, so that a term left out of the chain shows.
 *
 * Routes are fixed (uniform), because the loss jumps where a route changes. The forward is FP32: a loss near 8 is known
 * to about 1e-6, and two central differences cancel the third-order term (Richardson). The bound is 0.5 % of the
 * derivative, or of a tenth of the gradient's length where the direction is nearly level. */
#include "training_case.h"

#include "base/random.h"
#include "executor/initialise.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MICRO_BATCHES = 2, TOKENS = 32 };

/* A trainer of one rank whose learning rate is 0: after each step the weights are the masters again. */
struct fixture {
    struct rk_architecture architecture;
    struct rk_candidate candidate;
    struct rk_program *program;
    struct rk_memory_layout layout;
    struct rk_job *job;
    struct rk_trainer *trainer;
    int32_t windows[MICRO_BATCHES * (TOKENS + 1)];
};

static void fixture_open(struct fixture *fixture, const char *model) {
    struct training_case test = {.model = model,
                                 .routing = RK_ROUTING_UNIFORM,
                                 .global_batch = MICRO_BATCHES * TOKENS,
                                 .tokens = TOKENS,
                                 .balance_coefficient = 0.5,
                                 .z_coefficient = 0.05};
    struct rk_trainer_options options = {.backend = rk_backend_cpu(),
                                         .transport = rk_transport_shm(),
                                         .deadline_seconds = 30,
                                         .predicted_arena_bytes = -1,
                                         .predicted_host_bytes = -1,
                                         .poison = true};
    struct rk_place place = {.launcher = RK_LAUNCHER_SINGLE, .world = 1};
    struct rk_error error = {0};
    case_architecture(&test, &fixture->architecture);
    case_candidate(&test, &fixture->architecture, &fixture->candidate);
    assert_ok(rk_program_lower(&fixture->architecture, &fixture->candidate, 0, &fixture->program, &error), error);
    assert_ok(rk_memory_layout_make(fixture->program, &fixture->layout, &error), error);
    fixture->job = rank_meet(&place, 30);
    assert_ok(rk_trainer_open(fixture->job, fixture->program, &fixture->layout, &options, &fixture->trainer, &error),
              error);
    assert_ok(rk_initialise(fixture->trainer, 7, 0.3, &error), error);
    for (int i = 0; i < MICRO_BATCHES * (TOKENS + 1); i++)
        fixture->windows[i] = rk_data_synthetic_token((uint64_t)i, 1, fixture->architecture.vocabulary);
}

static void fixture_close(struct fixture *fixture) {
    rk_trainer_close(fixture->trainer);
    rk_memory_layout_free(&fixture->layout);
    rk_program_free(fixture->program);
    rk_job_free(fixture->job);
}

static double loss_of(struct fixture *fixture) {
    struct rk_optimizer_options optimizer = rk_optimizer_defaults();
    struct rk_step_inputs inputs = {.windows = fixture->windows};
    struct rk_step_result result;
    struct rk_error error = {0};
    optimizer.learning_rate = 0;
    rk_optimizer_step_state(&optimizer, 0, inputs.state);
    assert_ok(rk_trainer_step(fixture->trainer, &inputs, &result, &error), error);
    return result.cross_entropy + 0.5 * result.balance + 0.05 * result.z;
}

/* The loss with one tensor moved by step times the direction. */
static double loss_at(struct fixture *fixture, const struct rk_tensor *tensor, const double *direction, double step) {
    int64_t count = rk_tensor_local_elements(tensor), bytes = count * (int64_t)sizeof(float);
    float *values = malloc((size_t)bytes);
    struct rk_error error = {0};
    assert_non_null(values);
    assert_ok(rk_trainer_read(fixture->trainer, tensor->buffer, tensor->instance, 0, values, bytes, &error), error);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)((double)values[i] + step * direction[i]);
    assert_ok(rk_trainer_write(fixture->trainer, tensor->buffer, tensor->instance, 0, values, bytes, &error), error);
    free(values);
    return loss_of(fixture);
}

static void check_direction(struct fixture *fixture, const struct rk_tensor *tensor, const char *which,
                            const float *gradient, double *direction) {
    int64_t count = rk_tensor_local_elements(tensor);
    double length = 0, wanted = 0, steepness = 0, step = 0.012;
    for (int64_t i = 0; i < count; i++)
        length += direction[i] * direction[i];
    for (int64_t i = 0; i < count; i++) {
        direction[i] /= sqrt(length);
        wanted += direction[i] * (double)gradient[i];
        steepness += (double)gradient[i] * (double)gradient[i];
    }
    double wide =
        (loss_at(fixture, tensor, direction, 2 * step) - loss_at(fixture, tensor, direction, -2 * step)) / (4 * step);
    double narrow =
        (loss_at(fixture, tensor, direction, step) - loss_at(fixture, tensor, direction, -step)) / (2 * step);
    double found = (4 * narrow - wide) / 3;
    /* Rounding of the loss, over the step. */
    double noise = 2e-6 / step;
    if (!(fabs(found - wanted) <= 0.005 * fmax(fabs(wanted), 0.1 * sqrt(steepness)) + noise))
        fail_msg("%s along %s: the loss changes by %g, the gradient says %g (its length is %g)", tensor->name, which,
                 found, wanted, sqrt(steepness));
}

static void check_tensor(struct fixture *fixture, const struct rk_tensor *tensor) {
    int64_t count = rk_tensor_local_elements(tensor);
    uint64_t stream = rk_random_stream(5, tensor->name, 0);
    float *gradient = malloc((size_t)count * sizeof *gradient);
    double *direction = malloc((size_t)count * sizeof *direction), length = 0;
    struct rk_error error = {0};
    assert_true(gradient != NULL && direction != NULL);
    loss_of(fixture);
    assert_ok(rk_trainer_read(fixture->trainer, rk_tensor_space(fixture->program, tensor)->gradients, 0,
                              tensor->offset * (int64_t)sizeof *gradient, gradient, count * (int64_t)sizeof *gradient,
                              &error),
              error);
    for (int64_t i = 0; i < count; i++) {
        assert_true(isfinite(gradient[i]));
        direction[i] = (double)gradient[i];
        length += direction[i] * direction[i];
    }
    assert_true(length > 0);
    check_direction(fixture, tensor, "its gradient", gradient, direction);
    for (int64_t i = 0; i < count; i++)
        direction[i] = rk_random_normal(stream, (uint64_t)i);
    check_direction(fixture, tensor, "a random direction", gradient, direction);
    free(gradient);
    free(direction);
}

static void check_model(const char *model) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    assert_non_null(fixture);
    fixture_open(fixture, model);
    double first = loss_of(fixture);
    for (size_t i = 0; i < fixture->program->tensor_count; i++)
        check_tensor(fixture, &fixture->program->tensors[i]);
    assert_true(loss_of(fixture) == first);
    print_message("  %zu tensors, loss %.3f\n", fixture->program->tensor_count, first);
    fixture_close(fixture);
    free(fixture);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(olmoe_gradient),
        cmocka_unit_test(qwen3_gradient),
        cmocka_unit_test(glm4_gradient),
    };
    return cmocka_run_group_tests_name("gradient", tests, NULL, NULL);
}

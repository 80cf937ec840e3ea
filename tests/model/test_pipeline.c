/* Lowered stages played together: no layout and no policy waits for ever, and every stage ends with the step. */
#include "step_samples.h"
#include "synthetic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void play(const struct rk_program *const *programs, const struct rk_machine *machine, const char *text) {
    struct rk_cost_source costs = synthetic_costs(NULL);
    struct rk_simulation simulation;
    struct rk_error error = {.text = ""};
    if (rk_simulate(programs, machine, &costs, false, &simulation, &error) != RK_OK)
        fail_msg("%s: %s", text, error.text);
    assert_true(simulation.step_seconds > 0);
    rk_simulation_free(&simulation);
}

static void play_all_stages(const struct rk_architecture *architecture, const struct rk_candidate *candidate,
                            int32_t stage) {
    struct rk_program *programs[RK_STAGES_MAX];
    struct rk_machine gpu = synthetic_gpu(), cpu = synthetic_cpu(2);
    if (stage != 0)
        return;
    for (int32_t s = 0; s < candidate->pipeline; s++)
        programs[s] = rk_sample_lower(architecture, candidate, s);
    play((const struct rk_program *const *)programs, &gpu, rk_sample_text(architecture, candidate, stage));
    play((const struct rk_program *const *)programs, &cpu, rk_sample_text(architecture, candidate, stage));
    for (int32_t s = 0; s < candidate->pipeline; s++)
        rk_program_free(programs[s]);
}

static void no_layout_waits_for_ever(void **state) {
    (void)state;
    assert_true(rk_sample_grid(play_all_stages) > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_layout_waits_for_ever)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

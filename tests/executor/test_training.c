/* The training step under every layout: the mathematics does not change, and nothing of it depends on chance. */
#include "training_case.h"

#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static char folder[64];

static void one_rank_learns(void **state) {
    (void)state;
    struct training_outcome *outcome = outcome_make();
    struct training_case test = {.model = model_olmoe, .steps = 30, .learning_rate = 1e-2, .poison = true};
    case_run_well(&test, outcome);
    assert_int_equal(outcome->steps, 30);
    for (int i = 0; i < 30; i++)
        assert_true(isfinite(outcome->step[i].loss) && outcome->step[i].gradient_norm > 0);
    print_message("loss %.4f -> %.4f\n", outcome->step[0].loss, outcome->step[29].loss);
    assert_true(fabs(outcome->step[0].cross_entropy - log(48)) < 0.2);
    assert_true(outcome->step[29].loss < outcome->step[0].loss - 0.3);
    outcome_free(outcome);
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
        cmocka_unit_test(one_rank_learns),
    };
    return cmocka_run_group_tests_name("training", tests, set_up, tear_down);
}

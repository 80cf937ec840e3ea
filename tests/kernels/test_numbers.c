/* BF16 rounding and the exponential, over all or very many values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/random.h"
#include "kernels/bf16.h"
#include "kernels/cpu/exponential.h"

#include <float.h>
#include <math.h>

static void every_bf16_value_survives(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float wide = rk_bf16_widen((uint16_t)bits);
        uint16_t back = rk_bf16_round(wide);
        if (isnan(wide)) {
            assert_true(isnan(rk_bf16_widen(back)));
        } else {
            assert_int_equal(back, bits);
        }
    }
}

/* Between each value and the next: below, at and above the middle. */
static void rounding_is_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x7f80; bits++) {
        double low = (double)rk_bf16_widen((uint16_t)bits);
        double high = bits == 0x7f7f ? ldexp(1, 128) : (double)rk_bf16_widen((uint16_t)(bits + 1));
        float middle = (float)((low + high) / 2);
        uint32_t even = bits % 2 == 0 ? bits : bits + 1;
        assert_int_equal(rk_bf16_round(nextafterf(middle, 0)), bits);
        assert_int_equal(rk_bf16_round(middle), even);
        assert_int_equal(rk_bf16_round(nextafterf(middle, HUGE_VALF)), bits + 1);
        assert_int_equal(rk_bf16_round(-middle), even | 0x8000);
    }
    assert_int_equal(rk_bf16_round(HUGE_VALF), 0x7f80);
    assert_int_equal(rk_bf16_round(FLT_MAX), 0x7f80);
}

static void exponential_is_within_its_bound(void **state) {
    (void)state;
    double worst = 0;
    for (uint64_t i = 0; i < 2000000; i++) {
        float x = (float)(rk_random_uniform(1, i) * 176 - 87.3);
        double exact = exp((double)x);
        if (exact < (double)FLT_MAX) {
            worst = fmax(worst, fabs((double)rk_cpu_exp(x) - exact) / exact);
        }
    }
    assert_true(worst < 0x1p-22);
}

static void exponential_at_the_ends(void **state) {
    (void)state;
    assert_true(rk_cpu_exp(0.0f) == 1.0f);
    assert_true(rk_cpu_exp(-0.0f) == 1.0f);
    assert_true(rk_cpu_exp(-HUGE_VALF) == 0.0f);
    assert_true(rk_cpu_exp(-87.4f) == 0.0f);
    assert_true(rk_cpu_exp(-1e30f) == 0.0f);
    assert_true(rk_cpu_exp(88.72f) < HUGE_VALF);
    assert_true(rk_cpu_exp(88.73f) == HUGE_VALF);
    assert_true(rk_cpu_exp(HUGE_VALF) == HUGE_VALF);
    assert_true(isnan(rk_cpu_exp(NAN)));
    assert_true(rk_cpu_sigmoid(-HUGE_VALF) == 0.0f);
    assert_true(rk_cpu_sigmoid(HUGE_VALF) == 1.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bf16_value_survives),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(exponential_is_within_its_bound),
        cmocka_unit_test(exponential_at_the_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

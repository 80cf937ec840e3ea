#include "base/random.h"
#include "base/statistics.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

static void medians_and_quantiles(void **state) {
    (void)state;
    struct rk_error error;
    double value = 0;
    const double odd[] = {5, 1, 3}, even[] = {4, 1, 3, 2}, kept[] = {4, 1, 3, 2};
    assert_ok(rk_statistics_median(odd, 3, &value, &error), error);
    assert_true(value == 3);
    assert_ok(rk_statistics_median(even, 4, &value, &error), error);
    assert_true(value == 2.5);
    assert_memory_equal(even, kept, sizeof even);
    assert_ok(rk_statistics_quantile(even, 4, 0, &value, &error), error);
    assert_true(value == 1);
    assert_ok(rk_statistics_quantile(even, 4, 1, &value, &error), error);
    assert_true(value == 4);
    assert_ok(rk_statistics_quantile(even, 4, 0.9, &value, &error), error);
    assert_true(fabs(value - 3.7) < 1e-12);
    assert_ok(rk_statistics_median(odd, 1, &value, &error), error);
    assert_true(value == 5);
    assert_fails(rk_statistics_median(odd, 0, &value, &error), RK_USAGE, error, "no samples");
    const double bad[] = {1, NAN};
    assert_fails(rk_statistics_median(bad, 2, &value, &error), RK_USAGE, error, "sample 2 of 2");
}

/* Ranks r of the 95 % interval [x(r), x(n+1-r)] and their coverage, from tables of the sign test. */
static void median_interval_ranks(void **state) {
    (void)state;
    static const struct {
        size_t n, r;
        double coverage;
    } table[] = {{5, 1, 0.9375},       {6, 1, 0.96875},      {8, 1, 0.9921875},    {9, 2, 0.9609375},
                 {10, 2, 0.978515625}, {11, 2, 0.98828125},  {12, 3, 0.961425781}, {15, 4, 0.964843750},
                 {17, 5, 0.950958252}, {20, 6, 0.958610535}, {25, 8, 0.956714749}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        double sorted[32], coverage = 0;
        for (size_t j = 0; j < table[i].n; j++)
            sorted[j] = (double)(j + 1);
        struct rk_interval interval = rk_statistics_median_interval_sorted(sorted, table[i].n, 0.95, &coverage);
        assert_true(interval.low == (double)table[i].r);
        assert_true(interval.high == (double)(table[i].n + 1 - table[i].r));
        assert_true(fabs(coverage - table[i].coverage) < 1e-8);
    }
    const double one[] = {3};
    double coverage = 1;
    struct rk_interval interval = rk_statistics_median_interval_sorted(one, 1, 0.95, &coverage);
    assert_true(interval.low == 3 && interval.high == 3 && coverage == 0);
}

/* Whatever the distribution, the interval holds the true median at least as often as it claims. */
static void median_interval_covers(void **state) {
    (void)state;
    enum { TRIALS = 4000, N = 21 };
    int covered = 0;
    for (uint64_t trial = 0; trial < TRIALS; trial++) {
        double samples[N], median = 0;
        struct rk_interval interval;
        struct rk_error error;
        for (uint64_t i = 0; i < N; i++)
            samples[i] = exp(3 * rk_random_normal(19, trial * N + i));
        assert_ok(rk_statistics_median_interval(samples, N, 0.95, &median, &interval, &error), error);
        assert_true(interval.low <= median && median <= interval.high);
        covered += interval.low <= 1 && 1 <= interval.high;
    }
    assert_true(covered > (int)(0.94 * TRIALS) && covered < (int)(0.995 * TRIALS));
}

static void large_sample_interval(void **state) {
    (void)state;
    enum { N = 100001 };
    double *sorted = malloc(N * sizeof *sorted);
    for (int i = 0; i < N; i++)
        sorted[i] = i;
    double coverage = 0;
    struct rk_interval interval = rk_statistics_median_interval_sorted(sorted, N, 0.95, &coverage);
    /* Half width 1.96 * sqrt(n) / 2 = 310 ranks. */
    assert_true(fabs(interval.high - interval.low - 620) < 4);
    assert_true(coverage >= 0.95 && coverage < 0.952);
    free(sorted);
}

static void rank_correlation(void **state) {
    (void)state;
    struct rk_error error;
    double value = 0;
    const double x[] = {1, 2, 3, 4, 5}, squared[] = {1, 4, 9, 16, 25}, falling[] = {9, 7, 5, 3, 1};
    const double tied_x[] = {1, 2, 2, 3}, tied_y[] = {10, 30, 20, 40}, constant[] = {2, 2, 2, 2, 2};
    assert_ok(rk_statistics_rank_correlation(x, squared, 5, &value, &error), error);
    assert_true(fabs(value - 1) < 1e-12);
    assert_ok(rk_statistics_rank_correlation(x, falling, 5, &value, &error), error);
    assert_true(fabs(value + 1) < 1e-12);
    /* Ranks 1 2.5 2.5 4 against 1 3 2 4: covariance 4.5, variances 4.5 and 5. */
    assert_ok(rk_statistics_rank_correlation(tied_x, tied_y, 4, &value, &error), error);
    assert_true(fabs(value - 4.5 / sqrt(4.5 * 5)) < 1e-12);
    assert_fails(rk_statistics_rank_correlation(x, constant, 5, &value, &error), RK_USAGE, error, "differ");
    assert_fails(rk_statistics_rank_correlation(x, squared, 1, &value, &error), RK_USAGE, error, "two pairs");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians_and_quantiles),  cmocka_unit_test(median_interval_ranks),
        cmocka_unit_test(median_interval_covers), cmocka_unit_test(large_sample_interval),
        cmocka_unit_test(rank_correlation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "base/random.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

/* The reference sequence of SplitMix64 with seed 0: 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F. */
static uint64_t reference(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static void is_splitmix64(void **state) {
    (void)state;
    uint64_t seeding = 0;
    assert_true(reference(&seeding) == UINT64_C(0xE220A8397B1DCDAF));
    assert_true(reference(&seeding) == UINT64_C(0x6E789E6AA1B965F4));
    for (uint64_t seed = 0; seed < 20; seed++) {
        uint64_t of_seed = seed;
        uint64_t sequence = reference(&of_seed);
        for (uint64_t counter = 0; counter < 20; counter++)
            assert_true(rk_random_bits(seed, counter) == reference(&sequence));
    }
}

static void uniform_moments(void **state) {
    (void)state;
    enum { N = 200000 };
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = rk_random_uniform(7, i);
        assert_true(x >= 0 && x < 1);
        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum / N - 0.5) < 0.003);
    assert_true(fabs(squares / N - 1.0 / 3) < 0.003);
}

static void normal_moments(void **state) {
    (void)state;
    enum { N = 200000 };
    double sums[5] = {0}, lagged = 0, previous = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = rk_random_normal(11, i);
        assert_true(isfinite(x));
        for (int power = 1; power <= 4; power++)
            sums[power] += pow(x, power);
        lagged += x * previous;
        previous = x;
    }
    assert_true(fabs(sums[1] / N) < 0.01);
    assert_true(fabs(sums[2] / N - 1) < 0.02);
    assert_true(fabs(sums[3] / N) < 0.05);
    assert_true(fabs(sums[4] / N - 3) < 0.1);
    assert_true(fabs(lagged / N) < 0.01);
}

static void below_covers_its_range_evenly(void **state) {
    (void)state;
    int counts[7] = {0};
    for (uint64_t i = 0; i < 70000; i++)
        counts[rk_random_below(3, i, 7)]++;
    for (int i = 0; i < 7; i++)
        assert_true(abs(counts[i] - 10000) < 400);
    for (uint64_t i = 0; i < 1000; i++) {
        assert_true(rk_random_below(3, i, 1) == 0);
        assert_true(rk_random_below(3, i, UINT64_MAX) < UINT64_MAX);
        /* The high half of the 128-bit product, against the bound 2^63 for which it is a shift. */
        assert_true(rk_random_below(3, i, UINT64_C(1) << 63) == rk_random_bits(3, i) >> 1);
        assert_true(rk_random_below(3, i, UINT64_C(1) << 20) == rk_random_bits(3, i) >> 44);
    }
}

static void streams_differ(void **state) {
    (void)state;
    uint64_t seeds[] = {rk_random_stream(1, "a", 0), rk_random_stream(1, "a", 1), rk_random_stream(1, "b", 0),
                        rk_random_stream(2, "a", 0), rk_random_stream(1, "", 0),  rk_random_stream(1, "ab", 0),
                        rk_random_stream(1, "ba", 0)};
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(seeds[i] != seeds[j]);
    assert_true(rk_random_stream(1, "a", 1) == seeds[1]);
}

static void permutations(void **state) {
    (void)state;
    int64_t order[1000], seen[1000] = {0}, fixed = 0;
    rk_random_permutation(5, 1000, order);
    for (int i = 0; i < 1000; i++) {
        assert_in_range(order[i], 0, 999);
        assert_int_equal(seen[order[i]]++, 0);
        fixed += order[i] == i;
    }
    assert_true(fixed < 10);
    rk_random_permutation(5, 0, order);
    rk_random_permutation(5, 1, order);
    assert_int_equal(order[0], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_splitmix64),  cmocka_unit_test(uniform_moments),
        cmocka_unit_test(normal_moments), cmocka_unit_test(below_covers_its_range_evenly),
        cmocka_unit_test(streams_differ), cmocka_unit_test(permutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

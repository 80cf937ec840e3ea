#include "base/random.h"

#include <math.h>

static const double TWO_PI = 6.28318530717958647692;

static uint64_t finalise(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static const uint64_t GOLDEN = UINT64_C(0x9E3779B97F4A7C15);

uint64_t rk_random_bits(uint64_t seed, uint64_t counter) {
    return finalise(finalise(seed + GOLDEN) + (counter + 1) * GOLDEN);
}

double rk_random_uniform(uint64_t seed, uint64_t counter) {
    return (double)(rk_random_bits(seed, counter) >> 11) * 0x1p-53;
}

uint64_t rk_random_below(uint64_t seed, uint64_t counter, uint64_t bound) {
    /* The high half of bits * bound (Lemire 2019), in 32-bit parts so that no 128-bit type is needed. */
    uint64_t bits = rk_random_bits(seed, counter);
    uint64_t low = (bits & 0xFFFFFFFF) * (bound & 0xFFFFFFFF);
    uint64_t cross = (bits >> 32) * (bound & 0xFFFFFFFF) + (low >> 32);
    uint64_t other = (bits & 0xFFFFFFFF) * (bound >> 32) + (cross & 0xFFFFFFFF);
    return (bits >> 32) * (bound >> 32) + (cross >> 32) + (other >> 32);
}

double rk_random_normal(uint64_t seed, uint64_t counter) {
    /* 1 - uniform lies in (0, 1], so that the logarithm is finite. */
    double radius = sqrt(-2 * log(1 - rk_random_uniform(seed, 2 * counter)));
    return radius * cos(TWO_PI * rk_random_uniform(seed, 2 * counter + 1));
}

uint64_t rk_random_stream(uint64_t seed, const char *name, uint64_t index) {
    uint64_t stream = finalise(seed + GOLDEN);
    for (const char *at = name; *at != '\0'; at++)
        stream = finalise((stream ^ (unsigned char)*at) + GOLDEN);
    return finalise((stream ^ index) + GOLDEN);
}

void rk_random_permutation(uint64_t seed, int64_t count, int64_t *order) {
    for (int64_t i = 0; i < count; i++)
        order[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t other = (int64_t)rk_random_below(seed, (uint64_t)i, (uint64_t)i + 1);
        int64_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

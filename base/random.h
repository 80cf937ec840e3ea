/* Counter-based random numbers: a pure function of (seed, counter), so that any layout of ranks draws the same values.
 *
 * The generator is SplitMix64 (Steele, Lea, Flood 2014): its finaliser over seed + (counter + 1) * golden ratio, with
 * the seed finalised first so that neighbouring seeds give unrelated sequences. */
#ifndef RK_BASE_RANDOM_H
#define RK_BASE_RANDOM_H

#include <stdint.h>

/* Uniform over all 64-bit values. */
uint64_t rk_random_bits(uint64_t seed, uint64_t counter);
/* Uniform in [0, 1), multiples of 2^-53. */
double rk_random_uniform(uint64_t seed, uint64_t counter);
/* Uniform in [0, bound), bound > 0; the bias is below bound / 2^64. */
uint64_t rk_random_below(uint64_t seed, uint64_t counter, uint64_t bound);
/* Normal with mean 0 and variance 1 (Box-Muller over the counters 2 * counter and 2 * counter + 1). */
double rk_random_normal(uint64_t seed, uint64_t counter);

/* A seed for a named stream: the same (seed, name, index) give the same stream, others unrelated ones. */
uint64_t rk_random_stream(uint64_t seed, const char *name, uint64_t index);

/* Fisher-Yates: order[0..count-1] becomes a permutation of 0..count-1. */
void rk_random_permutation(uint64_t seed, int64_t count, int64_t *order);

#endif

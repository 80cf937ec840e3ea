/* exp in FP32 without a call, so that loops over it vectorise. */
#ifndef RK_KERNELS_CPU_EXPONENTIAL_H
#define RK_KERNELS_CPU_EXPONENTIAL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Relative error below 2^-22 (two units in the last place) for results that are normal numbers; 0 where the true value
 * is below 2^-126, infinity above the largest float, NaN for NaN. exp(0) is exactly 1.
 *
 * x = n·ln 2 + r with |r| <= ln 2 / 2: n from adding 1.5 · 2^23, which leaves the rounded integer in the low bits; ln 2
 * in two parts, so that n · high is exact; e^r by its series up to r^7 (the remainder is below 2^-27). */
static inline float rk_cpu_exp(float x) {
    const float magic = 12582912.0f, log2e = 1.44269504088896341f;
    const float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    float clamped = x > 89.0f ? 89.0f : x;
    clamped = clamped < -88.0f ? -88.0f : clamped;
    float shifted = clamped * log2e + magic;
    float n = shifted - magic;
    float r = (clamped - n * ln2_high) - n * ln2_low;
    float series = 1.0f / 5040;
    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * (r * r) + r;
    series = series + 1.0f;
    /* 2^n in two steps, because n may be 128 or -127 at the ends: half the exponent each */
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    int32_t exponent = bits - 0x4b400000;
    uint32_t first_bits = (uint32_t)((exponent >> 1) + 127) << 23;
    uint32_t second_bits = (uint32_t)(exponent - (exponent >> 1) + 127) << 23;
    float first, second;
    memcpy(&first, &first_bits, sizeof first);
    memcpy(&second, &second_bits, sizeof second);
    float result = series * first * second;
    return x < -87.336544f ? 0.0f : result;
}

static inline float rk_cpu_sigmoid(float x) {
    return 1.0f / (1.0f + rk_cpu_exp(-x));
}

#endif

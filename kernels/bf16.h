/* BF16 as storage: exact widening to FP32, rounding to nearest even. */
#ifndef RK_KERNELS_BF16_H
#define RK_KERNELS_BF16_H

#include <stdint.h>
#include <string.h>

static inline float rk_bf16_widen(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* A NaN stays a NaN (made quiet); what is past the largest finite value becomes infinite. */
static inline uint16_t rk_bf16_round(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#endif

/* The routes of RK_OP_FLAG_ROUTE_RANDOM, for every back end: pure functions of the call's serial and the token, so that
 * recomputation and every layout draw the same ones. Compiles as C and as CUDA C++. */
#ifndef RK_KERNELS_ROUTE_RANDOM_H
#define RK_KERNELS_ROUTE_RANDOM_H

#include "model/routing_limits.h"

#include <stdint.h>

#ifdef __CUDACC__
#define RK_ROUTE_INLINE __host__ __device__ static inline
#else
#define RK_ROUTE_INLINE static inline
#endif

RK_ROUTE_INLINE uint64_t rk_route_finalise(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

/* Uniform in [0, bound), bound < 2^32: SplitMix64 over (serial, counter) as in base/random.h, upper 32 bits scaled. */
RK_ROUTE_INLINE int32_t rk_route_random_below(uint64_t serial, uint64_t counter, int32_t bound) {
    const uint64_t golden = 0x9E3779B97F4A7C15u;
    uint64_t bits = rk_route_finalise(rk_route_finalise(serial + golden) + (counter + 1) * golden);
    return (int32_t)(((bits >> 32) * (uint64_t)bound) >> 32);
}

/* Draws the first `count` experts of a token into chosen[] (count <= K <= N): the j-th is the r-th of those not drawn
 * yet, in ascending order, with r uniform in [0, N - j) from counter token · K + j. */
RK_ROUTE_INLINE void rk_route_random_experts(uint64_t serial, int64_t token, int32_t top_k, int32_t experts,
                                             int32_t count, int32_t *chosen) {
    int32_t ascending[RK_ROUTES_MAX];
    for (int32_t j = 0; j < count; j++) {
        uint64_t counter = (uint64_t)token * (uint64_t)top_k + (uint64_t)j;
        int32_t expert = rk_route_random_below(serial, counter, experts - j);
        int32_t place = 0;
        while (place < j && ascending[place] <= expert) {
            expert++;
            place++;
        }
        for (int32_t i = j; i > place; i--) {
            ascending[i] = ascending[i - 1];
        }
        ascending[place] = expert;
        chosen[j] = expert;
    }
}

#endif

#include "kernels/cpu/blas.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
/* Exported by every OpenBLAS with DYNAMIC_ARCH, absent from others: quit forgets the chosen kernels, init chooses
 * again, by OPENBLAS_CORETYPE if it is set. */
void gotoblas_dynamic_quit(void) __attribute__((weak));
void gotoblas_dynamic_init(void) __attribute__((weak));

/* An OpenBLAS older than the processor takes it for a Prescott of 2004, whose kernels are five times slower than those
 * of its real family. The user's own choice stands. */
static void choose_kernels(void) {
    const char *better = NULL;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        better = "Haswell";
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
        better = "SkylakeX";
    }
    if (better == NULL || getenv("OPENBLAS_CORETYPE") != NULL || gotoblas_dynamic_quit == NULL ||
        gotoblas_dynamic_init == NULL || strcmp(openblas_get_corename(), "Prescott") != 0) {
        return;
    }
    if (setenv("OPENBLAS_CORETYPE", better, 1) == 0) {
        gotoblas_dynamic_quit();
        gotoblas_dynamic_init();
    }
}
#else
static void choose_kernels(void) {
}
#endif

void rk_cpu_blas_prepare(void) {
    choose_kernels();
    /* A rank is one core's worth of work: ranks share the cores, and sums must not depend on a number of threads. */
    openblas_set_num_threads(1);
}

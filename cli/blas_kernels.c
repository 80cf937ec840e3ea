#include "cli/blas_kernels.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
/* Kernels without AVX: what OpenBLAS takes when it does not know the processor's model number. */
static bool is_fallback(const char *core) {
    static const char *const names[] = {"Prescott", "Core2", "Penryn", "Nehalem", "Generic", "Katmai", "Northwood"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(core, names[i]) == 0)
            return true;
    return false;
}

static const char *fitting_kernels(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell" : NULL;
}

void rk_cli_choose_blas_kernels(char **argv) {
    const char *kernels = fitting_kernels();
    if (kernels == NULL || getenv("OPENBLAS_CORETYPE") != NULL || !is_fallback(openblas_get_corename()))
        return;
    /* Should execv fail, the program goes on with the slow kernels: the variable must not stay for its children. */
    if (setenv("OPENBLAS_CORETYPE", kernels, 1) == 0 && execv("/proc/self/exe", argv) != 0)
        unsetenv("OPENBLAS_CORETYPE");
}
#else
void rk_cli_choose_blas_kernels(char **argv) {
    (void)argv;
}
#endif

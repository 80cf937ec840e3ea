/* OpenBLAS chooses its kernels by the processor's model number when it is loaded. Releases older than the processor
 * fall back to kernels without vector instructions, four times slower. */
#ifndef RK_CLI_BLAS_KERNELS_H
#define RK_CLI_BLAS_KERNELS_H

#include <stdbool.h>

/* When OpenBLAS fell back although the processor has AVX2 or AVX-512, starts this program again with OPENBLAS_CORETYPE
 * set; then it does not return. A variable that the user has set is left alone. To be called first in main. */
void rk_cli_choose_blas_kernels(char **argv);

#endif

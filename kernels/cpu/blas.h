/* OpenBLAS as the CPU back end wants it. */
#ifndef RK_KERNELS_CPU_BLAS_H
#define RK_KERNELS_CPU_BLAS_H

/* One thread, and kernels that fit the processor. Changes the whole process; cheap to call again. */
void rk_cpu_blas_prepare(void);

#endif

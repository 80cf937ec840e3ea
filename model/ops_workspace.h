/* Block sizes on which rk_op_workspace_bytes and the kernels agree. */
#ifndef RK_MODEL_OPS_WORKSPACE_H
#define RK_MODEL_OPS_WORKSPACE_H

enum {
    RK_CPU_BLOCK_ROWS = 256,       /* rows of a product that are widened from BF16 together */
    RK_CPU_PANEL_ROWS = 256,       /* rows of a weight that are widened together */
    RK_CPU_QUERY_ROWS = 64,        /* queries of one head whose scores are held at once */
    RK_CUDA_PARTIAL_ROWS = 264,    /* blocks that leave a partial sum each: two for each multiprocessor of Hopper */
    RK_CUDA_GEMM_BYTES = 32 << 20  /* cuBLASLt on Hopper */
};

#endif

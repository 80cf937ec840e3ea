/* Dense matrix products through cuBLASLt. FP32 products run in FP32 (no TF32); BF16 products accumulate in FP32.
 *
 * The algorithm of a shape is asked for once and kept, so that a run repeats bit for bit. */
#include "kernels/cuda/internal.cuh"

#include <stdlib.h>
#include <string.h>

enum product { PRODUCT_FORWARD, PRODUCT_DGRAD, PRODUCT_WGRAD };

/* Row-major out[rows, columns] = beta · addend + left · right, inner the summed dimension. */
struct gemm_key {
    enum product product;
    enum rk_data_type input, output;
    int64_t m, n, k;
    int alignment;
    bool addend;
};

struct gemm_entry {
    struct gemm_key key;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
};

enum { GEMMS_MAX = 512 };

struct rk_cuda_gemm_cache {
    struct gemm_entry entries[GEMMS_MAX];
    int count;
};

static enum rk_status cublas_status(cublasStatus_t result, const char *what, struct rk_error *error) {
    return rk_fail(error, RK_ERROR, "%s: cuBLASLt says %s", what, cublasLtGetStatusName(result));
}

#define CUBLAS_TRY(call, what)                                                                                         \
    do {                                                                                                               \
        cublasStatus_t rk_result = (call);                                                                             \
        if (rk_result != CUBLAS_STATUS_SUCCESS)                                                                        \
            return cublas_status(rk_result, what, error);                                                              \
    } while (0)

enum rk_status rk_cuda_gemm_open(struct rk_device *device, struct rk_error *error) {
    device->gemms = (struct rk_cuda_gemm_cache *)calloc(1, sizeof *device->gemms);
    if (!device->gemms)
        return rk_fail(error, RK_ERROR, "opening cuBLASLt: out of host memory");
    cublasStatus_t result = cublasLtCreate(&device->cublas);
    if (result == CUBLAS_STATUS_SUCCESS)
        return RK_OK;
    free(device->gemms);
    return cublas_status(result, "opening cuBLASLt", error);
}

static void entry_free(struct gemm_entry *entry) {
    cublasLtMatmulDescDestroy(entry->operation);
    cublasLtMatrixLayoutDestroy(entry->a);
    cublasLtMatrixLayoutDestroy(entry->b);
    cublasLtMatrixLayoutDestroy(entry->c);
}

void rk_cuda_gemm_close(struct rk_device *device) {
    for (int i = 0; i < device->gemms->count; i++)
        entry_free(&device->gemms->entries[i]);
    free(device->gemms);
    cublasLtDestroy(device->cublas);
}

static cudaDataType_t cuda_type(enum rk_data_type type) {
    return type == RK_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* cuBLASLt is column major: a row-major matrix is its transpose there. The product's first factor is our right one.
 *   forward  yᵀ[n,m]  = (wᵀ)ᵀ[n,k] · xᵀ[k,m]     A = w (k×n, transposed), B = x (k×m)
 *   dgrad    dxᵀ[k,m] = wᵀ[k,n] · dyᵀ[n,m]       A = w (k×n),             B = dy (n×m)
 *   wgrad    dwᵀ[k,n] = xᵀ[k,m] · dy[m,n]        A = x (k×m),             B = dy (n×m, transposed) */
static enum rk_status entry_make(struct rk_device *device, const struct gemm_key *key, size_t workspace,
                                 struct gemm_entry *entry, struct rk_error *error) {
    uint64_t m = (uint64_t)key->m, n = (uint64_t)key->n, k = (uint64_t)key->k;
    cublasOperation_t transposed = CUBLAS_OP_T;
    cudaDataType_t in = cuda_type(key->input), out = cuda_type(key->output);
    CUBLAS_TRY(cublasLtMatmulDescCreate(&entry->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
    if (key->product == PRODUCT_FORWARD) {
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(entry->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                                  sizeof transposed),
                   "describing a product");
        CUBLAS_TRY(cublasLtMatrixLayoutCreate(&entry->a, in, k, n, (int64_t)k), "describing a matrix");
        CUBLAS_TRY(cublasLtMatrixLayoutCreate(&entry->b, in, k, m, (int64_t)k), "describing a matrix");
        CUBLAS_TRY(cublasLtMatrixLayoutCreate(&entry->c, out, n, m, (int64_t)n), "describing a matrix");
    } else if (key->product == PRODUCT_DGRAD) {
        CUBLAS_TRY(cublasLtMatrixLayoutCreate(&entry->a, in, k, n, (int64_t)k), "describing a matrix");
        CUBLAS_TRY(cublasLtMatrixLayoutCreate(&entry->b, in, n, m, (int64_t)n), "describing a matrix");
        CUBLAS_TRY(cublasLtMatrixLayoutCreate(&entry->c, out, k, m, (int64_t)k), "describing a matrix");
    } else {
        CUBLAS_TRY(cublasLtMatmulDescSetAttribute(entry->operation, CUBLASLT_MATMUL_DESC_TRANSB, &transposed,
                                                  sizeof transposed),
                   "describing a product");
        CUBLAS_TRY(cublasLtMatrixLayoutCreate(&entry->a, in, k, m, (int64_t)k), "describing a matrix");
        CUBLAS_TRY(cublasLtMatrixLayoutCreate(&entry->b, in, n, m, (int64_t)n), "describing a matrix");
        CUBLAS_TRY(cublasLtMatrixLayoutCreate(&entry->c, out, k, n, (int64_t)k), "describing a matrix");
    }
    cublasLtMatmulPreference_t preference;
    CUBLAS_TRY(cublasLtMatmulPreferenceCreate(&preference), "choosing a product's algorithm");
    uint32_t alignment = (uint32_t)key->alignment;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                         sizeof workspace);
    const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4; i++)
        cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment, sizeof alignment);
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t result = cublasLtMatmulAlgoGetHeuristic(device->cublas, entry->operation, entry->a, entry->b,
                                                           entry->c, entry->c, preference, 1, &found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (result != CUBLAS_STATUS_SUCCESS || count == 0)
        return rk_fail(error, RK_ERROR, "no cuBLASLt algorithm for a product of m=%lld n=%lld k=%lld",
                       (long long)key->m, (long long)key->n, (long long)key->k);
    entry->algorithm = found.algo;
    entry->workspace = found.workspaceSize;
    entry->key = *key;
    return RK_OK;
}

static bool same_key(const struct gemm_key *left, const struct gemm_key *right) {
    return left->product == right->product && left->input == right->input && left->output == right->output &&
           left->m == right->m && left->n == right->n && left->k == right->k && left->alignment == right->alignment &&
           left->addend == right->addend;
}

static enum rk_status entry_find(struct rk_device *device, const struct gemm_key *key, size_t workspace,
                                 struct gemm_entry **entry, struct rk_error *error) {
    struct rk_cuda_gemm_cache *cache = device->gemms;
    for (int i = 0; i < cache->count; i++)
        if (same_key(&cache->entries[i].key, key)) {
            *entry = &cache->entries[i];
            return RK_OK;
        }
    if (cache->count == GEMMS_MAX)
        return rk_fail(error, RK_ERROR, "more than %d different matrix products in one process", (int)GEMMS_MAX);
    struct gemm_entry made;
    memset(&made, 0, sizeof made);
    enum rk_status status = entry_make(device, key, workspace, &made, error);
    if (status != RK_OK) {
        entry_free(&made);
        return status;
    }
    cache->entries[cache->count] = made;
    *entry = &cache->entries[cache->count++];
    return RK_OK;
}

/* The largest power of two up to 256 that divides all addresses. */
static int common_alignment(const void *a, const void *b, const void *c, const void *d) {
    uintptr_t bits = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | 256u;
    return (int)(bits & (~bits + 1));
}

struct product_call {
    enum product product;
    enum rk_data_type input, output;
    int64_t m, n, k;
    const void *a, *b, *addend;
    void *out;
    void *workspace;
    size_t workspace_bytes;
};

static enum rk_status multiply(struct rk_stream *stream, const struct product_call *call, struct rk_error *error) {
    struct gemm_key key;
    memset(&key, 0, sizeof key);
    key.product = call->product;
    key.input = call->input;
    key.output = call->output;
    key.m = call->m;
    key.n = call->n;
    key.k = call->k;
    key.addend = call->addend != NULL;
    const void *addend = call->addend ? call->addend : call->out;
    key.alignment = common_alignment(call->a, call->b, addend, call->out);
    struct gemm_entry *entry = NULL;
    enum rk_status status = entry_find(stream->device, &key, call->workspace_bytes, &entry, error);
    if (status != RK_OK)
        return status;
    float alpha = 1, beta = call->addend ? 1.0f : 0.0f;
    CUBLAS_TRY(cublasLtMatmul(stream->device->cublas, entry->operation, &alpha, call->a, entry->a, call->b, entry->b,
                              &beta, addend, entry->c, call->out, entry->c, &entry->algorithm, call->workspace,
                              entry->workspace, stream->handle),
               "matrix product");
    stream->device->counters.launches++;
    return RK_OK;
}

/* FP32 gradients against BF16 factors: a value is the sum of two BF16 values to 2^-17, so one BF16 product over
 * [high | low] and the factor twice gives FP32's accuracy with one rounding of the result. */
__global__ void split(const float *values, int64_t rows, int64_t columns, __nv_bfloat16 *halves) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * columns)
        return;
    __nv_bfloat16 high = __float2bfloat16_rn(values[i]);
    __nv_bfloat16 *row = halves + i / columns * 2 * columns + i % columns;
    row[0] = high;
    row[columns] = __float2bfloat16_rn(values[i] - __bfloat162float(high));
}

static enum rk_status split_gradient(struct rk_stream *stream, const struct rk_op_call *call, __nv_bfloat16 *halves,
                                     struct rk_error *error) {
    int64_t m = call->shape->dim[0], n = call->shape->dim[1];
    split<<<(unsigned)((m * n + 255) / 256), 256, 0, stream->handle>>>((const float *)call->operand[0], m, n, halves);
    return rk_cuda_launched(stream, "splitting an FP32 gradient", error);
}

static struct product_call product_of(const struct rk_op_call *call, enum product product, int workspace_operand) {
    const struct rk_op_shape *shape = call->shape;
    struct product_call made = {};
    made.product = product;
    made.input = made.output = shape->type;
    made.m = shape->dim[0];
    made.n = shape->dim[1];
    made.k = shape->dim[2];
    made.workspace = call->operand[workspace_operand];
    made.workspace_bytes = RK_CUDA_GEMM_BYTES;
    return made;
}

__global__ void widen(const __nv_bfloat16 *values, int64_t count, float *wide) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        wide[i] = __bfloat162float(values[i]);
}

RK_CUDA_OP(gemm_forward) {
    struct product_call product = product_of(call, PRODUCT_FORWARD, 4);
    if (product.m == 0)
        return RK_OK;
    product.a = call->operand[1];
    product.b = call->operand[0];
    product.addend = call->operand[2];
    product.out = call->operand[3];
    if (call->shape->flags & RK_OP_FLAG_F32_OUTPUT)
        product.output = RK_F32;
    if (product.addend && product.output != call->shape->type) {
        int64_t count = product.m * product.n;
        widen<<<(unsigned)((count + 255) / 256), 256, 0, stream->handle>>>((const __nv_bfloat16 *)product.addend, count,
                                                                           (float *)product.out);
        product.addend = product.out;
        enum rk_status status = rk_cuda_launched(stream, "widening an addend", error);
        if (status != RK_OK)
            return status;
    }
    return multiply(stream, &product, error);
}

static bool split_input(const struct rk_op_call *call) {
    return call->shape->type == RK_BF16 && (call->shape->flags & RK_OP_FLAG_F32_INPUT) != 0;
}

RK_CUDA_OP(gemm_dgrad) {
    struct product_call product = product_of(call, PRODUCT_DGRAD, 4);
    if (product.m == 0)
        return RK_OK;
    product.a = call->operand[1];
    product.b = call->operand[0];
    product.addend = call->operand[2];
    product.out = call->operand[3];
    if (split_input(call)) {
        __nv_bfloat16 *halves = (__nv_bfloat16 *)((char *)product.workspace + RK_CUDA_GEMM_BYTES);
        __nv_bfloat16 *twice = halves + 2 * product.m * product.n;
        enum rk_status status = split_gradient(stream, call, halves, error);
        if (status != RK_OK)
            return status;
        size_t bytes = (size_t)(product.n * product.k) * sizeof *twice;
        for (int copy = 0; copy < 2; copy++)
            RK_CUDA_TRY(cudaMemcpyAsync((char *)twice + (size_t)copy * bytes, call->operand[1], bytes,
                                        cudaMemcpyDeviceToDevice, stream->handle),
                        "doubling a factor");
        product.a = twice;
        product.b = halves;
        product.n *= 2;
    }
    return multiply(stream, &product, error);
}

RK_CUDA_OP(gemm_wgrad) {
    struct product_call product = product_of(call, PRODUCT_WGRAD, 3);
    if (product.m == 0)
        return RK_OK;
    product.output = RK_F32;
    product.a = call->operand[1];
    product.b = call->operand[0];
    product.addend = product.out = call->operand[2];
    if (!split_input(call))
        return multiply(stream, &product, error);
    /* [high | low]ᵀ · x has the two halves' products one below the other; they are added to dw in turn. */
    __nv_bfloat16 *halves = (__nv_bfloat16 *)((char *)product.workspace + RK_CUDA_GEMM_BYTES);
    float *both = (float *)(halves + 2 * product.m * product.n);
    enum rk_status status = split_gradient(stream, call, halves, error);
    if (status != RK_OK)
        return status;
    int64_t elements = product.n * product.k;
    product.b = halves;
    product.n *= 2;
    product.addend = NULL;
    product.out = both;
    status = multiply(stream, &product, error);
    if (status != RK_OK)
        return status;
    return rk_cuda_add_partials(stream, both, 2, elements, (float *)call->operand[2], error);
}

/* One table of cases for every back end's kernels, and the running and comparing of a case.
 *
 * The CPU back end is compared with the FP64 reference (reference.h); another back end with the CPU back end:
 *     struct rk_oracle_result expected, actual;
 *     rk_oracle_run(rk_backend_cpu(), cpu_device, &rk_op_cases[i], type, seed, &expected, &error);
 *     rk_oracle_run(rk_backend_cuda(), cuda_device, &rk_op_cases[i], type, seed, &actual, &error);
 *     rk_oracle_compare(&rk_op_cases[i], type, &expected, &actual, factor, &error);
 * Both draw the same operands. */
#ifndef RK_TESTS_KERNELS_ORACLE_H
#define RK_TESTS_KERNELS_ORACLE_H

#include "kernels/operands.h"
#include "reference.h"

struct rk_op_case {
    const char *name;
    struct rk_op_shape shape;   /* the type is set by the caller */
    uint32_t absent, present;   /* bit 1 << operand: optional operands to leave out, or to put in */
    int8_t output, in_place_of; /* the output lies in the memory of this input; both 0: nowhere */
    int32_t group_rank;
    int32_t offsets[9];                /* of up to 8 experts; all 0: as drawn */
    float parameter[RK_OP_PARAMETERS]; /* all 0: as rk_operands_make sets them */
    /* Largest difference over (|expected| + root mean square of the operand), for what is stored in FP32 (and FP64) and
     * for what is stored in BF16. */
    double tolerance[RK_DATA_TYPE_COUNT];
};

extern const struct rk_op_case rk_op_cases[];
extern const int64_t rk_op_case_count;

/* What a case's operands were before and after it ran. Operands that the call leaves out are NULL. */
struct rk_oracle_result {
    struct rk_op_shape shape;
    int64_t elements[RK_OP_OPERANDS], valid[RK_OP_OPERANDS]; /* valid: within the prefix */
    double *before[RK_OP_OPERANDS], *after[RK_OP_OPERANDS];
    void *bytes_before[RK_OP_OPERANDS], *bytes_after[RK_OP_OPERANDS]; /* as stored; owned, as the arrays above */
    struct rk_operands operands; /* closed; parameters and serial of the call stay readable */
};

enum rk_status rk_oracle_run(const struct rk_backend *backend, struct rk_device *device,
                             const struct rk_op_case *op_case, enum rk_data_type type, uint64_t seed,
                             struct rk_oracle_result *result, struct rk_error *error);
void rk_oracle_result_free(struct rk_oracle_result *result);

/* RK_ERROR with the first place where a rule is broken: inputs are unchanged, rows past the valid prefix untouched. */
enum rk_status rk_oracle_check_untouched(const struct rk_op_case *op_case, const struct rk_oracle_result *result,
                                         struct rk_error *error);

/* Compares all outputs (integers exactly, NaN equal to NaN); tolerances times factor. */
enum rk_status rk_oracle_compare(const struct rk_op_case *op_case, const struct rk_oracle_result *expected,
                                 const struct rk_oracle_result *actual, double factor, struct rk_error *error);
/* Compares all outputs with the reference: forward ops entirely, gradients at up to `samples` elements. */
enum rk_status rk_oracle_compare_reference(const struct rk_op_case *op_case, const struct rk_oracle_result *actual,
                                           int64_t samples, uint64_t seed, struct rk_error *error);
/* Whether all outputs are the same bytes. */
bool rk_oracle_same_bytes(const struct rk_oracle_result *left, const struct rk_oracle_result *right);

#endif

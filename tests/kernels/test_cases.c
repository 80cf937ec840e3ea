/* Every case of the table on the CPU back end, against the FP64 reference: values, gradients, untouched bytes, repeats.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "oracle.h"

#include <stdio.h>

#ifdef RK_SANITIZED
enum { SEEDS = 1, GRADIENT_SAMPLES = 10 }; /* accesses are what is checked there */
#else
enum { SEEDS = 3, GRADIENT_SAMPLES = 40 };
#endif

static struct rk_device *open_device(void) {
    struct rk_device *device = NULL;
    struct rk_error error;
    assert_int_equal(rk_backend_cpu()->device_open(0, NULL, &device, &error), RK_OK);
    return device;
}

static void check(enum rk_status status, const struct rk_error *error) {
    if (status != RK_OK) {
        fail_msg("%s", error->text);
    }
}

static void check_case(struct rk_device *device, const struct rk_op_case *op_case, enum rk_data_type type,
                       uint64_t seed) {
    struct rk_oracle_result result, again;
    struct rk_error error;
    check(rk_oracle_run(rk_backend_cpu(), device, op_case, type, seed, &result, &error), &error);
    check(rk_oracle_check_untouched(op_case, &result, &error), &error);
    check(rk_oracle_compare_reference(op_case, &result, GRADIENT_SAMPLES, seed, &error), &error);
    check(rk_oracle_run(rk_backend_cpu(), device, op_case, type, seed, &again, &error), &error);
    if (!rk_oracle_same_bytes(&result, &again)) {
        fail_msg("%s, %s: two runs differ", op_case->name, rk_data_type_name(type));
    }
    rk_oracle_result_free(&again);
    rk_oracle_result_free(&result);
}

static void run_type(enum rk_data_type type) {
    struct rk_device *device = open_device();
    for (int64_t i = 0; i < rk_op_case_count; i++) {
        /* what takes the reference long is drawn once */
        uint64_t seeds = rk_op_flops(&rk_op_cases[i].shape) > 3e5 ? 1 : SEEDS;
        for (uint64_t seed = 1; seed <= seeds; seed++) {
            check_case(device, &rk_op_cases[i], type, seed);
        }
    }
    rk_backend_cpu()->device_close(device);
}

static void cases_in_fp32(void **state) {
    (void)state;
    run_type(RK_F32);
}

static void cases_in_bf16(void **state) {
    (void)state;
    run_type(RK_BF16);
}

/* A kind without a case would be a kernel without a test. */
static void every_kernel_has_a_case(void **state) {
    (void)state;
    for (int kind = 0; kind < RK_OP_KIND_COUNT; kind++) {
        int64_t cases = 0;
        for (int64_t i = 0; i < rk_op_case_count; i++) {
            cases += (int)rk_op_cases[i].shape.kind == kind;
        }
        bool kernel = rk_op_executor((enum rk_op_kind)kind) == RK_BY_KERNEL;
        assert_int_equal(rk_backend_cpu()->op[kind] != NULL, kernel);
        assert_int_equal(cases > 0, kernel);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_has_a_case),
        cmocka_unit_test(cases_in_fp32),
        cmocka_unit_test(cases_in_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

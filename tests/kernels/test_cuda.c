/* Every case of the table on the CUDA back end: against the CPU back end, untouched bytes, repeats bit for bit.
 * Skipped, with the reason, where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS = 2 };

/* Both sides round on their own, and the tensor cores round the attention's weights to BF16 before they multiply: twice
 * what one side may differ from FP64, and the sums' other order in FP32. */
#define FACTOR_F32 4.0
#define FACTOR_BF16 3.0

struct devices {
    struct rk_device *cpu, *cuda;
};

/* RK_TEST_CASE restricts the cases to those whose name contains it; RK_TEST_SEEDS sets how often each is drawn: once is
 * enough under a memory checker. */
static bool chosen(const struct rk_op_case *op_case) {
    const char *part = getenv("RK_TEST_CASE");
    return part == NULL || strstr(op_case->name, part) != NULL;
}

static uint64_t seeds(void) {
    const char *count = getenv("RK_TEST_SEEDS");
    return count == NULL ? SEEDS : strtoull(count, NULL, 10);
}

static int64_t check_case(const struct devices *devices, const struct rk_op_case *op_case, enum rk_data_type type,
                          uint64_t seed) {
    struct rk_oracle_result expected, actual, again;
    struct rk_error error = {0};
    double factor = type == RK_F32 ? FACTOR_F32 : FACTOR_BF16;
    if (rk_oracle_run(rk_backend_cpu(), devices->cpu, op_case, type, seed, &expected, &error) != RK_OK)
        fail_msg("on the CPU: %s", error.text);
    enum rk_status status = rk_oracle_run(rk_backend_cuda(), devices->cuda, op_case, type, seed, &actual, &error);
    if (status == RK_OK)
        status = rk_oracle_check_untouched(op_case, &actual, &error);
    if (status == RK_OK)
        status = rk_oracle_compare(op_case, &expected, &actual, factor, &error);
    if (status == RK_OK)
        status = rk_oracle_run(rk_backend_cuda(), devices->cuda, op_case, type, seed, &again, &error);
    if (status == RK_OK && !rk_oracle_same_bytes(&actual, &again))
        status = rk_fail(&error, RK_ERROR, "two runs differ");
    if (status != RK_OK) /* the others still run: one pass shows every failure */
        fprintf(stderr, "FAILED %s, %s, seed %d: %s\n", op_case->name, rk_data_type_name(type), (int)seed, error.text);
    return status != RK_OK;
}

static void run_type(const struct devices *devices, enum rk_data_type type) {
    int64_t failed = 0;
    for (int64_t i = 0; i < rk_op_case_count; i++)
        for (uint64_t seed = 1; seed <= seeds() && chosen(&rk_op_cases[i]); seed++)
            failed += check_case(devices, &rk_op_cases[i], type, seed);
    assert_int_equal(failed, 0);
}

static void cases_in_fp32(void **state) {
    run_type(*state, RK_F32);
}

static void cases_in_bf16(void **state) {
    run_type(*state, RK_BF16);
}

static void every_kernel_is_there(void **state) {
    (void)state;
    for (int kind = 0; kind < RK_OP_KIND_COUNT; kind++)
        assert_int_equal(rk_backend_cuda()->op[kind] != NULL, rk_op_executor((enum rk_op_kind)kind) == RK_BY_KERNEL);
}

enum { SKIPPED = 77 };

int main(void) {
    struct devices devices = {NULL, NULL};
    struct rk_error error = {0};
    int count = 0;
    if (rk_backend_cuda()->device_count(&count, &error) != RK_OK || count == 0) {
        printf("skipped: no GPU here (%s)\n", error.text);
        return SKIPPED;
    }
    if (rk_backend_cpu()->device_open(0, NULL, &devices.cpu, &error) != RK_OK ||
        rk_backend_cuda()->device_open(0, NULL, &devices.cuda, &error) != RK_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_is_there),
        cmocka_unit_test_prestate(cases_in_fp32, &devices),
        cmocka_unit_test_prestate(cases_in_bf16, &devices),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rk_backend_cuda()->device_close(devices.cuda);
    rk_backend_cpu()->device_close(devices.cpu);
    return failed;
}

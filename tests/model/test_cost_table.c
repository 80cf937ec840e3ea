#include "model/cost.h"
#include "model/cost_cache.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct rk_cost_row row_of(enum rk_op_kind kind, enum rk_data_type type, int64_t a, int64_t b, int64_t c,
                                 double seconds) {
    return (struct rk_cost_row){.shape = {.kind = kind, .type = type, .dim = {a, b, c}},
                                .place = {.group_size = 1, .concurrent = 1, .row_share = 1},
                                .seconds = seconds,
                                .low = seconds * 0.99,
                                .high = seconds * 1.01,
                                .origin = RK_ORIGIN_MEASURED};
}

static struct rk_cost_table *table_of(const struct rk_cost_row *rows, size_t count) {
    struct rk_cost_table *table = NULL;
    struct rk_error error = {0};
    if (rk_cost_table_make(rows, count, "test", &table, &error) != RK_OK)
        fail_msg("%s", error.text);
    return table;
}

static struct rk_cost price_of(struct rk_cost_table *table, const struct rk_cost_row *like) {
    struct rk_cost_source source = rk_cost_table_source(table);
    struct rk_cost cost;
    struct rk_error error = {0};
    if (source.price(source.context, &like->shape, &like->place, &cost, &error) != RK_OK)
        fail_msg("%s", error.text);
    return cost;
}

static void assert_near(double value, double expected, double relative) {
    if (!(fabs(value - expected) <= relative * fabs(expected)))
        fail_msg("%.9g instead of %.9g", value, expected);
}

static void test_measured(void **state) {
    (void)state;
    struct rk_cost_row rows[2] = {row_of(RK_OP_GEMM_FORWARD, RK_F32, 128, 64, 32, 1e-3),
                                  row_of(RK_OP_GEMM_FORWARD, RK_F32, 256, 64, 32, 2e-3)};
    rows[0].process_spread = 0.04;
    rows[1].measurement = 17;
    struct rk_cost_table *table = table_of(rows, 2);
    struct rk_cost cost = price_of(table, &rows[0]);
    assert_near(cost.seconds, 1e-3, 0);
    assert_int_equal(cost.origin, RK_ORIGIN_MEASURED);
    assert_near(cost.relative_uncertainty, sqrt(0.01 * 0.01 + 0.04 * 0.04), 1e-9);
    assert_string_equal(price_of(table, &rows[1]).source, "test, measurement 17");
    rk_cost_table_free(table);
}

static void test_between_sizes(void **state) {
    (void)state;
    struct rk_cost_row rows[3];
    for (int i = 0; i < 3; i++)
        rows[i] = row_of(RK_OP_COPY_D2H, RK_F32, 1024LL << (2 * i), 0, 0, 1e-6 * pow(1 << (2 * i), 0.8));
    struct rk_cost_table *table = table_of(rows, 3);
    struct rk_cost_row asked = row_of(RK_OP_COPY_D2H, RK_F32, 2048, 0, 0, 1);
    struct rk_cost cost = price_of(table, &asked);
    assert_near(cost.seconds, 1e-6 * pow(2, 0.8), 1e-9);
    assert_int_equal(cost.origin, RK_ORIGIN_INTERPOLATED);
    assert_true(cost.relative_uncertainty > 0.01);
    /* The type of bytes does not matter. */
    asked.shape.type = RK_BF16;
    assert_near(price_of(table, &asked).seconds, cost.seconds, 0);
    rk_cost_table_free(table);
}

static void test_outside(void **state) {
    (void)state;
    struct rk_cost_row rows[3] = {row_of(RK_OP_COPY_D2H, RK_F32, 1 << 20, 0, 0, 1e-3),
                                  row_of(RK_OP_COPY_D2H, RK_F32, 1 << 21, 0, 0, 1.4e-3),
                                  row_of(RK_OP_COPY_D2H, RK_F32, 1 << 22, 0, 0, 1.9e-3)};
    struct rk_cost_table *table = table_of(rows, 3);
    struct rk_cost_row asked = row_of(RK_OP_COPY_D2H, RK_F32, 1 << 23, 0, 0, 1);
    struct rk_cost once = price_of(table, &asked);
    asked.shape.dim[0] = 1 << 25;
    struct rk_cost far = price_of(table, &asked);
    assert_int_equal(once.origin, RK_ORIGIN_EXTRAPOLATED);
    assert_true(far.relative_uncertainty > once.relative_uncertainty);
    /* Along the last segment the rate would pass the best that was measured: it may not. */
    assert_near(far.seconds, 1.9e-3 * 8, 1e-9);
    asked.shape.dim[0] = 1;
    assert_true(price_of(table, &asked).seconds <= 1e-3);
    rk_cost_table_free(table);
}

static uint32_t dice(uint64_t *random, uint32_t sides) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33) % sides;
}

/* Noisy rows of several widths; at any width, asked or not, a larger size never costs less. */
static void test_monotone(void **state) {
    (void)state;
    uint64_t random = 3;
    struct rk_cost_row rows[48];
    for (int i = 0; i < 48; i++) {
        int64_t m = 16LL << dice(&random, 8), n = 64LL << dice(&random, 3), k = 64LL << dice(&random, 3);
        double noise = 1 + (double)dice(&random, 100) / 250;
        rows[i] = row_of(RK_OP_GEMM_FORWARD, RK_BF16, m, n, k, noise * (2e-6 + 2e-12 * (double)(m * n * k)));
    }
    struct rk_cost_table *table = table_of(rows, 48);
    for (int round = 0; round < 200; round++) {
        struct rk_cost_row asked =
            row_of(RK_OP_GEMM_FORWARD, RK_BF16, 1, 32 + dice(&random, 512), 32 + dice(&random, 512), 1);
        bool exact_curve = round % 4 == 0;
        if (exact_curve)
            memcpy(&asked.shape.dim[1], &rows[dice(&random, 48)].shape.dim[1], 2 * sizeof asked.shape.dim[0]);
        double before = 0;
        for (int64_t m = 1; m < 1 << 15; m += 1 + m / 5) {
            asked.shape.dim[0] = m;
            struct rk_cost cost = price_of(table, &asked);
            /* A measured row is given as measured, though the curve through noisy rows is smoothed. */
            if (cost.origin == RK_ORIGIN_MEASURED)
                continue;
            assert_true(cost.seconds >= before * (1 - 1e-12));
            before = cost.seconds;
        }
    }
    rk_cost_table_free(table);
}

/* One rate at every shape: any other shape has it too. */
static void test_constant_rate(void **state) {
    (void)state;
    struct rk_cost_row rows[27];
    for (int i = 0; i < 27; i++) {
        int64_t m = 128 << (i % 3), n = 256 << (i / 3 % 3), k = 512 << (i / 9);
        rows[i] = row_of(RK_OP_GEMM_WGRAD, RK_BF16, m, n, k, 2.0 * (double)(m * n * k) / 1e12);
    }
    struct rk_cost_table *table = table_of(rows, 27);
    struct rk_cost_row asked = row_of(RK_OP_GEMM_WGRAD, RK_BF16, 300, 700, 900, 1);
    struct rk_cost cost = price_of(table, &asked);
    assert_near(cost.seconds, 2.0 * 300 * 700 * 900 / 1e12, 1e-9);
    assert_int_equal(cost.origin, RK_ORIGIN_INTERPOLATED);
    struct rk_leave_one_out result;
    assert_int_equal(rk_cost_table_leave_one_out(table, RK_OP_GEMM_WGRAD, &result, NULL), RK_OK);
    assert_int_equal(result.count, 27);
    assert_true(result.p90 < 1e-9);
    assert_int_equal(rk_cost_table_leave_one_out(table, RK_OP_ADAMW, &result, NULL), RK_OK);
    assert_int_equal(result.count, 0);
    rk_cost_table_free(table);
}

/* Only valid rows of a receive buffer cost: half of 512 rows is 256 rows. */
static void test_valid_rows(void **state) {
    (void)state;
    struct rk_cost_row rows[2];
    for (int i = 0; i < 2; i++) {
        rows[i] = row_of(RK_OP_GROUPED_GEMM_FORWARD, RK_BF16, 256 << i, 4, 128, 1e-3 * (1 + i));
        rows[i].shape.dim[3] = 64;
    }
    struct rk_cost_table *table = table_of(rows, 2);
    struct rk_cost_row asked = rows[1];
    asked.place.row_share = 0.5;
    struct rk_cost cost = price_of(table, &asked);
    assert_near(cost.seconds, 1e-3, 0);
    assert_int_equal(cost.origin, RK_ORIGIN_MEASURED);
    rk_cost_table_free(table);
}

static void test_place(void **state) {
    (void)state;
    struct rk_cost_row rows[2];
    for (int i = 0; i < 2; i++) {
        rows[i] = row_of(RK_OP_ALL_REDUCE, RK_F32, 1 << 20, 2 << (2 * i), 0, 1e-3 * (1 + 3 * i));
        rows[i].place.group_size = rows[i].place.concurrent = 2 << (2 * i);
    }
    struct rk_cost_table *table = table_of(rows, 2);
    assert_int_equal(price_of(table, &rows[1]).origin, RK_ORIGIN_MEASURED);
    struct rk_cost_row asked = rows[0];
    asked.shape.dim[1] = asked.place.group_size = asked.place.concurrent = 4;
    struct rk_cost cost = price_of(table, &asked);
    assert_int_equal(cost.origin, RK_ORIGIN_INTERPOLATED);
    assert_near(cost.seconds, 2e-3, 1e-9);
    /* The group's kind does not change the price of a group of that size. */
    asked = rows[0];
    asked.shape.group = RK_GROUP_DATA;
    assert_int_equal(price_of(table, &asked).origin, RK_ORIGIN_MEASURED);
    rk_cost_table_free(table);
}

static void test_refusals(void **state) {
    (void)state;
    struct rk_cost_row row = row_of(RK_OP_GEMM_FORWARD, RK_F32, 128, 64, 32, 1e-3);
    struct rk_cost_table *table = table_of(&row, 1);
    struct rk_cost_source source = rk_cost_table_source(table);
    struct rk_cost cost;
    struct rk_error error = {0};
    struct rk_cost_row asked = row_of(RK_OP_ADAMW, RK_F32, 1000, 0, 0, 1);
    assert_int_equal(source.price(source.context, &asked.shape, &asked.place, &cost, &error), RK_UNCALIBRATED);
    assert_non_null(strstr(error.text, "adamw"));
    asked = row;
    asked.shape.type = RK_BF16;
    assert_int_equal(source.price(source.context, &asked.shape, &asked.place, &cost, &error), RK_UNCALIBRATED);
    assert_non_null(strstr(error.text, "data type"));
    asked = row;
    asked.place.crosses_hosts = true;
    assert_int_equal(source.price(source.context, &asked.shape, &asked.place, &cost, &error), RK_UNCALIBRATED);
    assert_non_null(strstr(error.text, "between hosts"));
    assert_non_null(strstr(error.text, "`reckon calibrate` under a launcher on all of them"));
    /* Other flags stand in, wider and marked. */
    asked = row;
    asked.shape.flags = RK_OP_FLAG_F32_OUTPUT;
    assert_int_equal(source.price(source.context, &asked.shape, &asked.place, &cost, &error), RK_OK);
    assert_int_equal(cost.origin, RK_ORIGIN_INTERPOLATED);
    assert_true(cost.relative_uncertainty > 0.05);
    rk_cost_table_free(table);

    static const double bad[][4] = {
        {0, 0, 0, 0},     {-1, -1, -1, 0},  {NAN, 1, 1, 0},      {1, 2, 3, 0},
        {1, 0.5, 0.9, 0}, {1, 0.5, 2, NAN}, {INFINITY, 1, 2, 0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct rk_cost_row wrong = row;
        wrong.seconds = bad[i][0];
        wrong.low = bad[i][1];
        wrong.high = bad[i][2];
        wrong.process_spread = bad[i][3];
        assert_int_equal(rk_cost_table_make(&wrong, 1, "bad", &table, &error), RK_USAGE);
    }
    row.place.concurrent = 0;
    assert_int_equal(rk_cost_table_make(&row, 1, "bad", &table, &error), RK_USAGE);
}

/* Three processes measured the same case: the median counts, and their distance is in the interval. */
static void test_repeated_rows(void **state) {
    (void)state;
    struct rk_cost_row rows[3];
    for (int i = 0; i < 3; i++)
        rows[i] = row_of(RK_OP_ADAMW, RK_F32, 1 << 20, 0, 0, 1e-3 + 1e-4 * i);
    struct rk_cost_table *table = table_of(rows, 3);
    struct rk_cost cost = price_of(table, &rows[0]);
    assert_near(cost.seconds, 1.1e-3, 1e-9);
    assert_true(cost.relative_uncertainty > 0.09);
    assert_string_equal(cost.source, "test, 3 rows");
    rk_cost_table_free(table);
}

static enum rk_status counting_price(void *context, const struct rk_op_shape *shape, const struct rk_cost_place *place,
                                     struct rk_cost *cost, struct rk_error *error) {
    (void)place;
    (void)error;
    ++*(int *)context;
    *cost = (struct rk_cost){.seconds = (double)shape->dim[0]};
    return RK_OK;
}

static void test_cache_asks_once(void **state) {
    (void)state;
    int asked = 0;
    struct rk_cost_source source = {counting_price, &asked};
    struct rk_cost_cache *cache = NULL;
    assert_int_equal(rk_cost_cache_make(&source, &cache, NULL), RK_OK);
    struct rk_cost_source cached = rk_cost_cache_source(cache);
    struct rk_cost cost;
    for (int round = 0; round < 3; round++)
        for (int64_t i = 1; i <= 1000; i++) {
            struct rk_cost_row row = row_of(RK_OP_ADAMW, RK_F32, i, 0, 0, 1);
            row.place.concurrent = 1 + (int32_t)(i % 3);
            assert_int_equal(cached.price(cached.context, &row.shape, &row.place, &cost, NULL), RK_OK);
            assert_near(cost.seconds, (double)i, 0);
        }
    assert_int_equal(asked, 1000);
    rk_cost_cache_free(cache);
}

/* ---- Public tables of real machines, when they are there ---- */

static void test_public_gemm_table(void **state) {
    (void)state;
    FILE *file = fopen("../shared/data/h200_gemm_bf16.csv", "r");
    if (file == NULL)
        skip();
    struct rk_cost_row *rows = calloc(40000, sizeof *rows);
    assert_non_null(rows);
    size_t count = 0;
    char line[512];
    while (fgets(line, sizeof line, file) != NULL) {
        const char *at = line;
        for (int comma = 0; comma < 6 && at != NULL; comma++)
            at = (at = strchr(at, ',')) != NULL ? at + 1 : NULL;
        long m, n, k;
        double milliseconds;
        /* A tenth of the table is enough for a figure; whole (n, k) families are kept together. */
        if (at == NULL || sscanf(at, "%ld,%ld,%ld,%lf", &m, &n, &k, &milliseconds) != 4 || (n / 64 + k / 64) % 10 != 0)
            continue;
        rows[count++] = row_of(RK_OP_GEMM_FORWARD, RK_BF16, m, n, k, milliseconds / 1e3);
    }
    fclose(file);
    assert_true(count > 500);
    struct rk_cost_table *table = table_of(rows, count);
    struct rk_leave_one_out result;
    assert_int_equal(rk_cost_table_leave_one_out(table, RK_OP_GEMM_FORWARD, &result, NULL), RK_OK);
    print_message("GEMM of H200, %zu rows: leave-one-out median %.2f %%, p90 %.2f %%, signed mean %+.2f %%\n", count,
                  100 * result.median, 100 * result.p90, 100 * result.signed_mean);
    assert_true(result.median < 0.0487);
    assert_true(result.p90 < 0.156);
    rk_cost_table_free(table);
    free(rows);
}

static void test_public_collective_table(void **state) {
    (void)state;
    FILE *file = fopen("../shared/data/h200_nccl_2.29.2.csv", "r");
    if (file == NULL)
        skip();
    struct rk_cost_row rows[600];
    size_t count = 0;
    char line[512];
    while (count < 600 && fgets(line, sizeof line, file) != NULL) {
        long ranks, bytes;
        double milliseconds;
        const char *at = strstr(line, ",half,");
        if (strstr(line, ",all_reduce,") == NULL || at == NULL ||
            sscanf(at, ",half,%ld,%ld,%lf", &ranks, &bytes, &milliseconds) != 3)
            continue;
        rows[count] = row_of(RK_OP_ALL_REDUCE, RK_F32, bytes / 4, ranks, 0, milliseconds / 1e3);
        rows[count].place.group_size = rows[count].place.concurrent = (int32_t)ranks;
        count++;
    }
    fclose(file);
    assert_true(count > 30);
    struct rk_cost_table *table = table_of(rows, count);
    struct rk_leave_one_out result;
    assert_int_equal(rk_cost_table_leave_one_out(table, RK_OP_ALL_REDUCE, &result, NULL), RK_OK);
    print_message("all-reduce of H200, %zu rows: leave-one-out median %.2f %%, p90 %.2f %%\n", count,
                  100 * result.median, 100 * result.p90);
    assert_true(result.median < 0.0487);
    assert_true(result.p90 < 0.156);
    rk_cost_table_free(table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measured),
        cmocka_unit_test(test_between_sizes),
        cmocka_unit_test(test_outside),
        cmocka_unit_test(test_monotone),
        cmocka_unit_test(test_constant_rate),
        cmocka_unit_test(test_valid_rows),
        cmocka_unit_test(test_place),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_repeated_rows),
        cmocka_unit_test(test_cache_asks_once),
        cmocka_unit_test(test_public_gemm_table),
        cmocka_unit_test(test_public_collective_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A folder for a test's files, a made-up machine and campaign, and cmocka's headers. */
#ifndef RK_TESTS_DB_FIXTURE_H
#define RK_TESTS_DB_FIXTURE_H

#include "db/calibration.h"
#include "db/plan_store.h"
#include "db/run_store.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct fixture {
    char folder[PATH_MAX - 64];
    char path[PATH_MAX]; /* of the database, in folder */
    struct rk_error error;
};

int fixture_setup(void **state);
int fixture_teardown(void **state); /* removes the folder and all in it */

/* Opens fixture->path for writing or reading; fails the test with the error's text when that fails. */
struct rk_db *fixture_open(struct fixture *fixture, enum rk_db_access access);

/* Fails the test, with the text, unless status is wanted. */
void expect_status(const struct fixture *fixture, enum rk_status status, enum rk_status wanted);
/* Fails the test unless the error's text holds part. */
void expect_text(const struct fixture *fixture, const char *part);

/* A CPU machine with the driver text given (software differs by it), and one with two GPUs. */
struct rk_machine_identity cpu_machine(const char *driver);
struct rk_machine_identity gpu_machine(void);

struct rk_campaign_row campaign_row(void);
/* gemm_forward m × n × k on normal operands, sustained. */
struct rk_case_row gemm_case(int64_t m, int64_t n, int64_t k);
/* A measurement whose figures are those of the samples. */
struct rk_measurement_row measurement_of(int64_t campaign, int64_t bench_case, const double *samples, size_t count);

/* Begins a campaign, stores count GEMM cases of m = 64, 128, ... with 11 samples each, ends it finished. */
int64_t store_campaign(struct fixture *fixture, struct rk_db *db, const struct rk_machine_identity *machine,
                       size_t count);
/* Stores a plan with three candidates (chosen, feasible, refused) and two terms. */
int64_t store_plan(struct fixture *fixture, struct rk_db *db, const char *document);
/* Stores a finished run of the plan with steps, ops, memory and one comparison. */
int64_t store_run(struct fixture *fixture, struct rk_db *db, int64_t plan_id);

#endif

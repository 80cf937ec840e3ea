/* A stored run with all its rows. */
#ifndef RK_CLI_RUN_ROWS_H
#define RK_CLI_RUN_ROWS_H

#include "db/run_store.h"

struct rk_run_rows {
    struct rk_run_row run;
    struct rk_step_row *steps;
    struct rk_run_op_row *ops;
    struct rk_run_memory_row *memory;
    struct rk_comparison_row *comparison; /* the newest one */
    size_t step_count, op_count, memory_count, comparison_count;
};

/* *rows must be zero-initialised; free it also after a failure. */
enum rk_status rk_run_rows_read(struct rk_db *db, int64_t run, struct rk_run_rows *rows, struct rk_error *error);
void rk_run_rows_free(struct rk_run_rows *rows);

#endif

#include "cli/run_rows.h"

#include <stdlib.h>

enum rk_status rk_run_rows_read(struct rk_db *db, int64_t run, struct rk_run_rows *rows, struct rk_error *error) {
    enum rk_status status = rk_run_get(db, run, &rows->run, error);
    if (status == RK_OK)
        status = rk_run_steps(db, run, &rows->steps, &rows->step_count, error);
    if (status == RK_OK)
        status = rk_run_ops(db, run, &rows->ops, &rows->op_count, error);
    if (status == RK_OK)
        status = rk_run_memory(db, run, &rows->memory, &rows->memory_count, error);
    if (status == RK_OK)
        status = rk_comparison_list(db, run, &rows->comparison, &rows->comparison_count, error);
    return status;
}

void rk_run_rows_free(struct rk_run_rows *rows) {
    free(rows->steps);
    free(rows->ops);
    free(rows->memory);
    free(rows->comparison);
}

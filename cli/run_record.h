/* What `reckon run` writes of a run: a line per step, the file of losses, the rows of the data base, the summary. */
#ifndef RK_CLI_RUN_RECORD_H
#define RK_CLI_RUN_RECORD_H

#include "base/atomic_file.h"
#include "cli/cli.h"
#include "db/run_store.h"
#include "executor/training.h"
#include "model/plan.h"

/* Of rank 0; on the others everything stays empty and every call is harmless. */
struct rk_run_record {
    struct rk_cli *cli;
    const struct rk_plan *plan;
    struct rk_db *db; /* NULL: not stored */
    int64_t run;      /* its row, 0: none */
    bool losses_open;
    struct rk_atomic_file losses;
    struct rk_step_row *rows; /* of all steps; owned */
    size_t row_count, row_capacity, rows_stored;
    double next_store; /* clock */
};

struct rk_run_origin {
    const char *document; /* text of plan.json */
    const char *command, *data, *routing;
    int64_t seed;
    const struct rk_machine_identity *machine;
    double lock_seconds; /* how long a locked data base is waited for: the other ranks wait meanwhile */
};

/* Opens the data base and begins the run's row; store false: only the table. losses: file or NULL. */
enum rk_status rk_run_record_open(struct rk_run_record *record, struct rk_cli *cli, const struct rk_plan *plan,
                                  const struct rk_run_origin *origin, bool store, const char *losses,
                                  struct rk_error *error);
/* An observer of the training run: context is the record. */
enum rk_status rk_run_record_step(void *context, const struct rk_training_step *step, struct rk_error *error);
/* Stores what the ranks reported, and writes the summary. */
enum rk_status rk_run_record_report(struct rk_run_record *record, const struct rk_training_report *report,
                                    struct rk_error *error);
/* Ends the run's row by the status and closes everything. Returns status, or the first failure of storing. */
enum rk_status rk_run_record_close(struct rk_run_record *record, enum rk_status status, struct rk_error *error);

#endif

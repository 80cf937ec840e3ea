/* reckon compare: a run held against its plan. */
#include "report/compare.h"

#include "base/clock.h"
#include "cli/cli.h"
#include "db/plan_store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct compare_options {
    double tolerance;
};

static const struct rk_option options[] = {
    {.name = "tolerance",
     .letter = 't',
     .type = RK_OPTION_NUMBER,
     .offset = offsetof(struct compare_options, tolerance),
     .value = "PERCENT",
     .minimum = 0.001,
     .maximum = 1000,
     .help = "end with exit code 5 when the step's error is larger (default: any error is accepted)"},
};

const struct rk_arguments rk_cli_compare_arguments = {
    .name = "compare",
    .summary = "Hold a run against its plan: time by phase and op, memory by owner",
    .operands = "[RUN]",
    .minimum_operands = 0,
    .maximum_operands = 1,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .description =
        "RUN is the number that `run` printed (default: the newest run). The step is the median of the untraced steps\n"
        "after the warm-up; accounts, phases and ops come from the traced steps. Errors are predicted / measured - 1:\n"
        "negative when the run took longer than planned. For each op: where its price came from, by which factor it\n"
        "would have to be wrong to explain the step's difference alone, and the factor that was found. The\n"
        "comparison is stored beside the run.",
    .examples = "  reckon compare\n"
                "  reckon compare 12 --tolerance 15\n"
                "  reckon compare 12 --json",
};

struct loaded {
    struct rk_plan *plan;
    struct rk_step_row *steps;
    struct rk_run_op_row *ops;
    struct rk_run_memory_row *memory;
    struct rk_compare_input input;
};

static void free_loaded(struct loaded *loaded) {
    rk_plan_free(loaded->plan);
    free(loaded->steps);
    free(loaded->ops);
    free(loaded->memory);
}

static enum rk_status load(struct rk_db *db, int64_t run, struct loaded *loaded, struct rk_error *error) {
    struct rk_run_row row;
    struct rk_compare_input *input = &loaded->input;
    char *document = NULL, name[64];
    enum rk_status status = rk_run_get(db, run, &row, error);
    if (status == RK_OK)
        status = rk_plan_document(db, row.plan_id, &document, error);
    if (status != RK_OK)
        return status;
    snprintf(name, sizeof name, "the plan of run %lld", (long long)run);
    status = rk_plan_read(name, document, strlen(document), &loaded->plan, error);
    free(document);
    if (status == RK_OK)
        status = rk_run_steps(db, run, &loaded->steps, &input->step_count, error);
    if (status == RK_OK)
        status = rk_run_ops(db, run, &loaded->ops, &input->op_count, error);
    if (status == RK_OK)
        status = rk_run_memory(db, run, &loaded->memory, &input->memory_count, error);
    input->plan = loaded->plan;
    input->steps = loaded->steps;
    input->ops = loaded->ops;
    input->memory = loaded->memory;
    return status;
}

static enum rk_status print(struct rk_cli *cli, int64_t run, const struct rk_comparison *comparison) {
    struct rk_text text = {0};
    enum rk_status status = RK_OK;
    if (cli->json) {
        rk_comparison_print_json(comparison, run, &text);
    } else {
        rk_text_format(&text, "run %lld\n", (long long)run);
        rk_comparison_print(comparison, &text);
    }
    if (text.failed)
        status = rk_fail(&cli->error, RK_ERROR, "compare: out of memory");
    else
        fputs(text.data, cli->out);
    rk_text_free(&text);
    return status;
}

static enum rk_status compare_run(struct rk_cli *cli, struct rk_db *db, int64_t run, double tolerance) {
    struct loaded loaded = {.input = {.tolerance = tolerance}};
    struct rk_comparison comparison = {0};
    enum rk_status status = load(db, run, &loaded, &cli->error);
    if (status == RK_OK)
        status = rk_compare(&loaded.input, &comparison, &cli->error);
    if (status == RK_OK && rk_db_read_only_reason(db) != NULL)
        rk_log_write(&cli->log, RK_LOG_WARNING, "the comparison is not stored: %s", rk_db_read_only_reason(db));
    else if (status == RK_OK)
        status = rk_comparison_store(db, run, (int64_t)(rk_clock_wall() * 1e6), comparison.rows, comparison.row_count,
                                     &cli->error);
    if (status == RK_OK)
        status = print(cli, run, &comparison);
    if (status == RK_OK && !comparison.within)
        status = rk_fail(&cli->error, RK_OUTSIDE_TOLERANCE,
                         "run %lld: the step took %.4g s and %.4g s were predicted, %+.1f %%, outside --tolerance %g",
                         (long long)run, comparison.measured_seconds, comparison.predicted_seconds,
                         100 * rk_comparison_error(&comparison.rows[0]), 100 * tolerance);
    rk_comparison_free(&comparison);
    free_loaded(&loaded);
    return status;
}

enum rk_status rk_cli_compare(struct rk_cli *cli, int argc, char **argv) {
    struct compare_options values = {.tolerance = NAN};
    struct rk_string_list operands = {0};
    struct rk_db_options access = {.access = RK_DB_READ, .log = &cli->log};
    struct rk_db *db = NULL;
    int64_t run = 0;
    enum rk_status status = rk_cli_parse(cli, &rk_cli_compare_arguments, argc, argv, &values, &operands);
    if (status == RK_OK && operands.count > 0)
        status = rk_parse_count("RUN", operands.items[0], &run, &cli->error);
    if (status == RK_OK)
        status = rk_db_open(cli->database, &access, &db, &cli->error);
    rk_db_close(db);
    db = NULL;
    /* Only an existing file is opened for writing: comparing makes no empty data base. */
    access.access = RK_DB_WRITE;
    if (status == RK_OK)
        status = rk_db_open(cli->database, &access, &db, &cli->error);
    if (status == RK_OK && operands.count == 0)
        status = rk_run_newest(db, 0, &run, &cli->error);
    if (status == RK_OK)
        status = compare_run(cli, db, run, values.tolerance / 100);
    if (db != NULL)
        rk_db_close(db);
    rk_string_list_free(&operands);
    return status;
}

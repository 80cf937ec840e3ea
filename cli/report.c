/* reckon report: a run or a plan as one HTML file. */
#include "report/html.h"

#include "base/json.h"
#include "cli/cli.h"
#include "cli/play.h"
#include "cli/run_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PLAN_BYTES = 1 << 28 };

struct report_options {
    const char *out;
    int64_t plan;
};

static const struct rk_option options[] = {
    {.name = "out",
     .letter = 'o',
     .type = RK_OPTION_STRING,
     .offset = offsetof(struct report_options, out),
     .value = "FILE.html",
     .help = "where the page is written; appears whole or not at all (default standard output)"},
    {.name = "plan",
     .type = RK_OPTION_INTEGER,
     .offset = offsetof(struct report_options, plan),
     .value = "ID",
     .minimum = 1,
     .maximum = 9e15,
     .help = "report the stored plan with this number, without a run"},
};

const struct rk_arguments rk_cli_report_arguments = {
    .name = "report",
    .summary = "Write a run against its plan, or a plan alone, as one HTML page",
    .operands = "[RUN|PLAN.json]",
    .maximum_operands = 1,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .description =
        "Without an operand: the newest run. The page needs no other file, no network and no script; it holds\n"
        "where the time and the memory go, predicted against measured, the loss, the candidates, and the source\n"
        "of every price, each chart with its table. With --json the error statistics are printed as well.",
    .examples = "  reckon report --out run.html\n"
                "  reckon report 12 --out run-12.html --json\n"
                "  reckon report plan.json --out plan.html\n"
                "  reckon report --plan 3 --out plan.html",
};

/* What is reported, and all that belongs to it. */
struct loaded {
    struct rk_db *db; /* NULL for a plan.json from a file */
    struct rk_run_rows rows;
    bool has_run;
    struct rk_plan *plan;
    struct rk_plan_row plan_row;
    struct rk_candidate_row *candidates;
    size_t candidate_count;
    struct rk_comparison comparison;
    bool compared;
    struct rk_play play;
    char simulation_note[256];
    char name[PATH_MAX];
};

static void free_loaded(struct loaded *loaded) {
    rk_run_rows_free(&loaded->rows);
    rk_plan_free(loaded->plan);
    free(loaded->candidates);
    rk_comparison_free(&loaded->comparison);
    rk_play_free(&loaded->play);
    rk_db_close(loaded->db);
}

static enum rk_status load_plan_file(const char *path, struct loaded *loaded, struct rk_error *error) {
    char *text = NULL;
    size_t length = 0;
    enum rk_status status = rk_read_file(path, PLAN_BYTES, &text, &length, error);
    if (status == RK_OK)
        status = rk_plan_read(path, text, length, &loaded->plan, error);
    snprintf(loaded->name, sizeof loaded->name, "%s", path);
    free(text);
    return status;
}

static enum rk_status load_stored_plan(int64_t id, struct loaded *loaded, struct rk_error *error) {
    char *text = NULL;
    snprintf(loaded->name, sizeof loaded->name, "plan %lld", (long long)id);
    enum rk_status status = rk_plan_get(loaded->db, id, &loaded->plan_row, error);
    if (status == RK_OK)
        status = rk_plan_document(loaded->db, id, &text, error);
    if (status == RK_OK)
        status = rk_plan_read(loaded->name, text, strlen(text), &loaded->plan, error);
    if (status == RK_OK)
        status = rk_candidate_list(loaded->db, id, &loaded->candidates, &loaded->candidate_count, error);
    free(text);
    return status;
}

/* A run that was cut before a step counts is still worth a page: its comparison is left out. */
static enum rk_status compare_run(struct rk_cli *cli, struct loaded *loaded) {
    struct rk_compare_input input = {.plan = loaded->plan,
                                     .steps = loaded->rows.steps,
                                     .step_count = loaded->rows.step_count,
                                     .ops = loaded->rows.ops,
                                     .op_count = loaded->rows.op_count,
                                     .memory = loaded->rows.memory,
                                     .memory_count = loaded->rows.memory_count,
                                     .tolerance = NAN};
    struct rk_error reason = {RK_OK, ""};
    enum rk_status status = rk_compare(&input, &loaded->comparison, &reason);
    loaded->compared = status == RK_OK;
    if (status == RK_USAGE) {
        rk_log_write(&cli->log, RK_LOG_WARNING, "run %lld: %s; the page has no comparison",
                     (long long)loaded->rows.run.id, reason.text);
        return RK_OK;
    }
    return status == RK_OK ? RK_OK : rk_fail(&cli->error, status, "%s", reason.text);
}

static enum rk_status load_run(struct rk_cli *cli, int64_t id, struct loaded *loaded) {
    enum rk_status status = RK_OK;
    if (id == 0)
        status = rk_run_newest(loaded->db, 0, &id, &cli->error);
    if (status == RK_OK)
        status = rk_run_rows_read(loaded->db, id, &loaded->rows, &cli->error);
    if (status == RK_OK)
        status = load_stored_plan(loaded->rows.run.plan_id, loaded, &cli->error);
    if (status == RK_OK)
        status = compare_run(cli, loaded);
    loaded->has_run = true;
    return status;
}

static bool is_number(const char *text) {
    return text[0] != '\0' && strspn(text, "0123456789") == strlen(text);
}

static enum rk_status load(struct rk_cli *cli, const struct report_options *values, const char *operand,
                           struct loaded *loaded) {
    int64_t run = 0;
    if (operand != NULL && !is_number(operand))
        return load_plan_file(operand, loaded, &cli->error);
    enum rk_status status = operand == NULL ? RK_OK : rk_parse_count("RUN", operand, &run, &cli->error);
    if (status == RK_OK && operand != NULL && run == 0)
        status = rk_fail(&cli->error, RK_USAGE, "RUN: runs are numbered from 1; `reckon db list runs` shows them");
    struct rk_db_options database = {.access = RK_DB_READ, .log = &cli->log};
    if (status == RK_OK)
        status = rk_db_open(cli->database, &database, &loaded->db, &cli->error);
    if (status != RK_OK)
        return status;
    return values->plan != 0 ? load_stored_plan(values->plan, loaded, &cli->error) : load_run(cli, run, loaded);
}

/* The timeline needs today's prices of what the plan was priced with; without them the page does without it. */
static enum rk_status play(struct rk_cli *cli, struct loaded *loaded) {
    struct rk_play_request request = {.timeline = true};
    enum rk_status status = rk_play_plan(cli, loaded->plan, loaded->name, &request, &loaded->play);
    if (status == RK_OK) {
        snprintf(
            loaded->simulation_note, sizeof loaded->simulation_note,
            "Played anew with the prices of %s: one rank of each stage, a lane for each stream, coloured by phase.",
            loaded->plan->calibration != 0 ? "the plan's calibration" : loaded->play.pricing.machine.name);
        return RK_OK;
    }
    if (status == RK_UNCALIBRATED || status == RK_USAGE || status == RK_DATABASE) {
        rk_log_write(&cli->log, RK_LOG_WARNING, "the page has no timeline: %s", cli->error.text);
        cli->error = (struct rk_error){RK_OK, ""};
        return RK_OK;
    }
    return status;
}

static enum rk_status write_page(struct rk_cli *cli, const char *out, const struct rk_text *html) {
    if (out == NULL) {
        fwrite(html->data, 1, html->length, cli->out);
        return RK_OK;
    }
    enum rk_status status = rk_write_file(out, html->data, html->length, &cli->error);
    if (status == RK_OK)
        rk_log_write(&cli->log, RK_LOG_INFO, "%s: %zu bytes; open it in a browser", out, html->length);
    return status;
}

static void add_statistics(cJSON *root, const char *level, const struct rk_error_statistics *statistics) {
    const struct {
        const char *name;
        double value;
    } fields[] = {{"median", statistics->median},
                  {"p90", statistics->p90},
                  {"max", statistics->largest},
                  {"signed_mean", statistics->signed_mean},
                  {"rank_correlation", statistics->rank_correlation}};
    cJSON *item = cJSON_AddObjectToObject(root, level);
    cJSON_AddNumberToObject(item, "count", (double)statistics->count);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (isfinite(fields[i].value))
            cJSON_AddNumberToObject(item, fields[i].name, fields[i].value);
        else
            cJSON_AddNullToObject(item, fields[i].name);
    }
}

static enum rk_status print_json(struct rk_cli *cli, const struct report_options *values, const struct loaded *loaded) {
    static const char *const levels[] = {"op", "family", "phase", "account"};
    struct rk_text text = {0};
    enum rk_status status = RK_OK;
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "out", values->out);
    cJSON_AddStringToObject(root, "plan", loaded->name);
    if (loaded->has_run)
        cJSON_AddNumberToObject(root, "run", (double)loaded->rows.run.id);
    cJSON_AddNumberToObject(root, "predicted_seconds", loaded->plan->seconds);
    if (loaded->compared)
        cJSON_AddNumberToObject(root, "measured_seconds", loaded->comparison.measured_seconds);
    cJSON *errors = loaded->compared ? cJSON_AddObjectToObject(root, "errors") : NULL;
    for (size_t i = 0; loaded->compared && status == RK_OK && i < sizeof levels / sizeof levels[0]; i++) {
        struct rk_error_statistics statistics;
        status = rk_error_statistics_make(&loaded->comparison, levels[i], &statistics, &cli->error);
        if (status == RK_OK)
            add_statistics(errors, levels[i], &statistics);
    }
    if (status == RK_OK)
        status = rk_json_print(root, &text, &cli->error);
    if (status == RK_OK)
        fputs(text.data, cli->out);
    rk_text_free(&text);
    cJSON_Delete(root);
    return status;
}

static enum rk_status make_page(struct rk_cli *cli, const struct loaded *loaded, struct rk_text *html) {
    bool played = loaded->play.simulation.timeline != NULL;
    struct rk_html_input input = {.plan = loaded->plan,
                                  .plan_name = loaded->name,
                                  .plan_row = loaded->db != NULL ? &loaded->plan_row : NULL,
                                  .candidates = loaded->candidates,
                                  .candidate_count = loaded->candidate_count,
                                  .run = loaded->has_run ? &loaded->rows.run : NULL,
                                  .steps = loaded->rows.steps,
                                  .step_count = loaded->rows.step_count,
                                  .memory = loaded->rows.memory,
                                  .memory_count = loaded->rows.memory_count,
                                  .comparison = loaded->compared ? &loaded->comparison : NULL,
                                  .simulation = played ? &loaded->play.simulation : NULL,
                                  .programs = (const struct rk_program *const *)loaded->play.programs,
                                  .simulation_note = loaded->simulation_note};
    return rk_html_write(&input, html, &cli->error);
}

static enum rk_status report(struct rk_cli *cli, const struct report_options *values, const char *operand,
                             struct loaded *loaded) {
    struct rk_text html = {0};
    enum rk_status status = load(cli, values, operand, loaded);
    if (status == RK_OK)
        status = play(cli, loaded);
    if (status == RK_OK)
        status = make_page(cli, loaded, &html);
    if (status == RK_OK)
        status = write_page(cli, values->out, &html);
    if (status == RK_OK && cli->json)
        status = print_json(cli, values, loaded);
    rk_text_free(&html);
    return status;
}

enum rk_status rk_cli_report(struct rk_cli *cli, int argc, char **argv) {
    struct report_options values = {0};
    struct rk_string_list operands = {0};
    struct loaded *loaded = NULL;
    enum rk_status status = rk_cli_parse(cli, &rk_cli_report_arguments, argc, argv, &values, &operands);
    if (status == RK_OK && cli->json && values.out == NULL)
        status = rk_fail(&cli->error, RK_USAGE,
                         "report --json: name the page with --out, the figures go to standard output");
    if (status == RK_OK && operands.count > 0 && values.plan != 0)
        status = rk_fail(&cli->error, RK_USAGE, "report: give a run, a plan.json or --plan ID, not two of them");
    if (status == RK_OK)
        status = rk_cli_check_outputs(operands.items, operands.count, &values.out, 1, &cli->error);
    if (status != RK_OK)
        goto free_operands;
    loaded = calloc(1, sizeof *loaded);
    if (loaded == NULL) {
        status = rk_fail(&cli->error, RK_ERROR, "out of memory for the report");
        goto free_operands;
    }
    status = report(cli, &values, operands.count > 0 ? operands.items[0] : NULL, loaded);
    free_loaded(loaded);
    free(loaded);
free_operands:
    rk_string_list_free(&operands);
    return status;
}

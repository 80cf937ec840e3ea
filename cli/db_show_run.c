/* reckon db show run. */
#include "cli/db_show.h"

#include "base/clock.h"
#include "cli/db_json.h"
#include "cli/run_rows.h"

#include <inttypes.h>
#include <math.h>

static const char *time_text(double seconds, char *buffer, size_t size) {
    return isfinite(seconds) ? rk_format_seconds(seconds, buffer, size) : "-";
}

static void print_steps(FILE *out, const struct rk_run_rows *rows) {
    char time[32];
    fprintf(out, "\n  %6s  %10s  %10s  %10s  %10s  %9s  %s\n", "step", "time", "tokens/s", "loss", "grad norm",
            "dropped", "load (hottest rank over mean)");
    for (size_t i = 0; i < rows->step_count; i++) {
        const struct rk_step_row *step = &rows->steps[i];
        fprintf(out, "  %6" PRId64 "  %10s  %10.0f  %10.5f  %10.4g  %9" PRId64 "  %.3f%s\n", step->step,
                time_text(step->seconds, time, sizeof time), (double)step->tokens / step->seconds, step->loss,
                step->grad_norm, step->dropped_routes, step->requested_load, step->traced ? "  traced" : "");
    }
}

static void print_ops(FILE *out, const struct rk_run_rows *rows) {
    char median[32], total[32], wait[32];
    if (rows->op_count > 0)
        fprintf(out, "\n  %5s  %-22s  %-10s  %8s  %10s  %10s  %10s  %s\n", "stage", "op", "phase", "count", "median",
                "per step", "waiting", "shape");
    for (size_t i = 0; i < rows->op_count; i++) {
        const struct rk_run_op_row *op = &rows->ops[i];
        fprintf(out, "  %5" PRId64 "  %-22s  %-10s  %8" PRId64 "  %10s  %10s  %10s  %s\n", op->stage, op->kind,
                op->phase, op->count, time_text(op->median_seconds, median, sizeof median),
                time_text(op->total_seconds, total, sizeof total), time_text(op->wait_seconds, wait, sizeof wait),
                op->shape);
    }
}

static void print_memory(FILE *out, const struct rk_run_rows *rows) {
    if (rows->memory_count > 0)
        fprintf(out, "\n  %5s  %-14s  %-8s  %16s  %16s  %s\n", "rank", "owner", "space", "predicted (B)",
                "allocated (B)", "difference (B)");
    for (size_t i = 0; i < rows->memory_count; i++) {
        const struct rk_run_memory_row *memory = &rows->memory[i];
        fprintf(out, "  %5" PRId64 "  %-14s  %-8s  %16" PRId64 "  %16" PRId64 "  %" PRId64 "\n", memory->rank,
                memory->owner, memory->space, memory->predicted_bytes, memory->allocated_bytes,
                memory->allocated_bytes - memory->predicted_bytes);
    }
}

static void print_comparison(FILE *out, const struct rk_run_rows *rows) {
    if (rows->comparison_count > 0)
        fprintf(out, "\n  %-8s  %-28s  %5s  %12s  %12s  %-6s  %8s  %-13s  %s\n", "level", "name", "stage", "predicted",
                "measured", "unit", "error", "origin", "note");
    for (size_t i = 0; i < rows->comparison_count; i++) {
        const struct rk_comparison_row *row = &rows->comparison[i];
        fprintf(out, "  %-8s  %-28s  %5" PRId64 "  %12.6g  %12.6g  %-6s  %+6.1f %%  %-13s  %s%s\n", row->level,
                row->name, row->stage, row->predicted, row->measured, row->unit,
                100 * (row->predicted - row->measured) / row->measured, row->origin, row->within ? "" : "OUTSIDE ",
                row->note);
    }
}

static void print_run(FILE *out, const struct rk_run_rows *rows) {
    char time[32];
    const struct rk_run_row *run = &rows->run;
    fprintf(out, "Run %" PRId64 " (%s) of plan %" PRId64 ": %s%s%s\n", run->id, run->uuid, run->plan_id,
            rk_run_state_name(run->state), run->message[0] != '\0' ? ": " : "", run->message);
    fprintf(out, "%-12s%s\n", "started", rk_clock_utc_at(run->started_us / 1000000, time, sizeof time));
    fprintf(out, "%-12s%s\n", "command", run->command);
    fprintf(out, "%-12s%s\n", "revision", run->git_revision);
    fprintf(out, "%-12s%" PRId64 ", seed %" PRId64 ", data %s, routing %s\n", "ranks", run->world_size, run->seed,
            run->data, run->routing);
    print_steps(out, rows);
    print_ops(out, rows);
    print_memory(out, rows);
    print_comparison(out, rows);
}

static cJSON *steps_json(const struct rk_run_rows *rows) {
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < rows->step_count; i++) {
        const struct rk_step_row *step = &rows->steps[i];
        cJSON *item = cJSON_CreateObject();
        rk_cli_json_integer(item, "step", step->step);
        cJSON_AddBoolToObject(item, "traced", step->traced);
        rk_cli_json_real(item, "seconds", step->seconds);
        rk_cli_json_integer(item, "tokens", step->tokens);
        rk_cli_json_real(item, "loss", step->loss);
        rk_cli_json_real(item, "balance_loss", step->balance_loss);
        rk_cli_json_real(item, "z_loss", step->z_loss);
        rk_cli_json_real(item, "grad_norm", step->grad_norm);
        rk_cli_json_integer(item, "dropped_routes", step->dropped_routes);
        rk_cli_json_integer(item, "routes", step->routes);
        rk_cli_json_real(item, "requested_load", step->requested_load);
        rk_cli_json_real(item, "kept_load", step->kept_load);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

static cJSON *ops_json(const struct rk_run_rows *rows) {
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < rows->op_count; i++) {
        const struct rk_run_op_row *op = &rows->ops[i];
        cJSON *item = cJSON_CreateObject();
        rk_cli_json_integer(item, "rank", op->rank);
        rk_cli_json_integer(item, "stage", op->stage);
        cJSON_AddStringToObject(item, "kind", op->kind);
        cJSON_AddStringToObject(item, "shape", op->shape);
        cJSON_AddStringToObject(item, "phase", op->phase);
        cJSON_AddStringToObject(item, "stream", op->stream);
        rk_cli_json_integer(item, "count", op->count);
        rk_cli_json_real(item, "median_seconds", op->median_seconds);
        rk_cli_json_real(item, "total_seconds", op->total_seconds);
        rk_cli_json_real(item, "wait_seconds", op->wait_seconds);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

static cJSON *memory_json(const struct rk_run_rows *rows) {
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < rows->memory_count; i++) {
        cJSON *item = cJSON_CreateObject();
        rk_cli_json_integer(item, "rank", rows->memory[i].rank);
        cJSON_AddStringToObject(item, "owner", rows->memory[i].owner);
        cJSON_AddStringToObject(item, "space", rows->memory[i].space);
        rk_cli_json_known(item, "predicted_bytes", rows->memory[i].predicted_bytes);
        rk_cli_json_known(item, "allocated_bytes", rows->memory[i].allocated_bytes);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

static cJSON *comparison_json(const struct rk_run_rows *rows) {
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < rows->comparison_count; i++) {
        const struct rk_comparison_row *row = &rows->comparison[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "level", row->level);
        cJSON_AddStringToObject(item, "name", row->name);
        rk_cli_json_integer(item, "stage", row->stage);
        cJSON_AddStringToObject(item, "unit", row->unit);
        rk_cli_json_real(item, "predicted", row->predicted);
        rk_cli_json_real(item, "measured", row->measured);
        rk_cli_json_real(item, "relative_uncertainty", row->relative_uncertainty);
        cJSON_AddStringToObject(item, "origin", row->origin);
        rk_cli_json_real(item, "tolerance", row->tolerance);
        cJSON_AddBoolToObject(item, "within", row->within);
        cJSON_AddStringToObject(item, "note", row->note);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

enum rk_status rk_cli_db_show_run(struct rk_cli *cli, struct rk_db *db, int64_t id) {
    struct rk_run_rows rows = {0};
    enum rk_status status = rk_run_rows_read(db, id, &rows, &cli->error);
    if (status == RK_OK && cli->json) {
        cJSON *root = rk_cli_run_json(&rows.run);
        cJSON_DeleteItemFromObject(root, "steps");
        cJSON_AddItemToObject(root, "steps", steps_json(&rows));
        cJSON_AddItemToObject(root, "ops", ops_json(&rows));
        cJSON_AddItemToObject(root, "memory", memory_json(&rows));
        cJSON_AddItemToObject(root, "comparison", comparison_json(&rows));
        status = rk_cli_json_print(cli, root);
        cJSON_Delete(root);
    } else if (status == RK_OK) {
        print_run(cli->out, &rows);
    }
    rk_run_rows_free(&rows);
    return status;
}

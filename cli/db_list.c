/* reckon db list. */
#include "cli/db_show.h"

#include "base/clock.h"
#include "cli/db_json.h"
#include "db/run_store.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static char *when(int64_t microseconds, char *buffer, size_t size) {
    return rk_clock_utc_at(microseconds / 1000000, buffer, size);
}

cJSON *rk_cli_campaign_json(const struct rk_campaign_row *row) {
    cJSON *item = cJSON_CreateObject();
    rk_cli_json_integer(item, "id", row->id);
    cJSON_AddStringToObject(item, "uuid", row->uuid);
    cJSON_AddStringToObject(item, "origin", row->imported ? "imported" : "measured");
    cJSON_AddStringToObject(item, "tool", row->tool);
    cJSON_AddStringToObject(item, "state", rk_campaign_state_name(row->state));
    cJSON_AddStringToObject(item, "mode", row->mode);
    cJSON_AddStringToObject(item, "backend", row->backend);
    cJSON_AddStringToObject(item, "machine_key", row->machine_key);
    cJSON_AddStringToObject(item, "fingerprint", row->fingerprint);
    cJSON_AddStringToObject(item, "git_revision", row->git_revision);
    cJSON_AddStringToObject(item, "command", row->command);
    rk_cli_json_integer(item, "seed", row->seed);
    rk_cli_json_integer(item, "world_size", row->world_size);
    cJSON_AddBoolToObject(item, "forced_unfit", row->forced_unfit);
    cJSON_AddStringToObject(item, "unfit_reason", row->unfit_reason);
    rk_cli_json_known(item, "planned_cases", row->planned_cases);
    rk_cli_json_integer(item, "started_us", row->started_us);
    rk_cli_json_known(item, "ended_us", row->ended_us);
    rk_cli_json_integer(item, "measurements", row->measurements);
    return item;
}

cJSON *rk_cli_plan_json(const struct rk_plan_row *row) {
    cJSON *item = cJSON_CreateObject();
    rk_cli_json_integer(item, "id", row->id);
    cJSON_AddStringToObject(item, "uuid", row->uuid);
    rk_cli_json_integer(item, "created_us", row->created_us);
    rk_cli_json_known(item, "campaign", row->campaign_id == 0 ? -1 : row->campaign_id);
    cJSON_AddStringToObject(item, "reckon", row->reckon);
    cJSON_AddStringToObject(item, "git_revision", row->git_revision);
    cJSON_AddStringToObject(item, "model", row->model);
    cJSON_AddStringToObject(item, "hardware", row->hardware);
    rk_cli_json_integer(item, "ranks", row->ranks);
    rk_cli_json_integer(item, "sequence_tokens", row->sequence_tokens);
    rk_cli_json_integer(item, "global_batch_tokens", row->global_batch_tokens);
    rk_cli_json_integer(item, "considered", row->considered);
    rk_cli_json_integer(item, "refused", row->refused);
    rk_cli_json_real(item, "predicted_seconds", row->predicted_seconds);
    rk_cli_json_real(item, "predicted_low_seconds", row->predicted_low_seconds);
    rk_cli_json_real(item, "predicted_high_seconds", row->predicted_high_seconds);
    rk_cli_json_real(item, "predicted_tokens_per_second", row->predicted_tokens_per_second);
    rk_cli_json_known(item, "predicted_peak_bytes", row->predicted_peak_bytes);
    return item;
}

cJSON *rk_cli_run_json(const struct rk_run_row *row) {
    cJSON *item = cJSON_CreateObject();
    rk_cli_json_integer(item, "id", row->id);
    cJSON_AddStringToObject(item, "uuid", row->uuid);
    rk_cli_json_integer(item, "plan", row->plan_id);
    cJSON_AddStringToObject(item, "state", rk_run_state_name(row->state));
    cJSON_AddStringToObject(item, "message", row->message);
    cJSON_AddStringToObject(item, "fingerprint", row->fingerprint);
    cJSON_AddStringToObject(item, "git_revision", row->git_revision);
    cJSON_AddStringToObject(item, "command", row->command);
    cJSON_AddStringToObject(item, "data", row->data);
    cJSON_AddStringToObject(item, "routing", row->routing);
    rk_cli_json_integer(item, "seed", row->seed);
    rk_cli_json_integer(item, "world_size", row->world_size);
    cJSON_AddBoolToObject(item, "forced_unfit", row->forced_unfit);
    rk_cli_json_integer(item, "started_us", row->started_us);
    rk_cli_json_known(item, "ended_us", row->ended_us);
    rk_cli_json_integer(item, "steps", row->steps);
    return item;
}

enum rk_status rk_cli_json_print(struct rk_cli *cli, const cJSON *root) {
    struct rk_text text = {0};
    enum rk_status status = rk_json_print(root, &text, &cli->error);
    if (status == RK_OK)
        fputs(text.data, cli->out);
    rk_text_free(&text);
    return status;
}

static void print_campaigns(struct rk_cli *cli, const struct rk_campaign_row *rows, size_t count) {
    fprintf(cli->out, "Campaigns (%zu)\n", count);
    if (count > 0)
        fprintf(cli->out, "  %4s  %-20s  %-9s  %-8s  %-11s  %12s  %-16s  %s\n", "ID", "started (UTC)", "mode",
                "back end", "state", "measurements", "machine", "tool");
    for (size_t i = 0; i < count; i++) {
        char time[32];
        fprintf(cli->out, "  %4" PRId64 "  %-20s  %-9s  %-8s  %-11s  %12" PRId64 "  %-16s  %s%s\n", rows[i].id,
                when(rows[i].started_us, time, sizeof time), rows[i].mode, rows[i].backend,
                rk_campaign_state_name(rows[i].state), rows[i].measurements, rows[i].machine_key, rows[i].tool,
                rows[i].forced_unfit ? " (forced on an unfit machine)" : "");
    }
}

static void print_plans(struct rk_cli *cli, const struct rk_plan_row *rows, size_t count) {
    fprintf(cli->out, "Plans (%zu)\n", count);
    if (count > 0)
        fprintf(cli->out, "  %4s  %-20s  %-24s  %-16s  %6s  %12s  %10s  %8s\n", "ID", "made (UTC)", "model", "hardware",
                "ranks", "step", "candidates", "refused");
    for (size_t i = 0; i < count; i++) {
        char time[32], step[32] = "-";
        if (!isnan(rows[i].predicted_seconds))
            rk_format_seconds(rows[i].predicted_seconds, step, sizeof step);
        fprintf(cli->out, "  %4" PRId64 "  %-20s  %-24s  %-16s  %6" PRId64 "  %12s  %10" PRId64 "  %8" PRId64 "\n",
                rows[i].id, when(rows[i].created_us, time, sizeof time), rows[i].model, rows[i].hardware, rows[i].ranks,
                step, rows[i].considered, rows[i].refused);
    }
}

static void print_runs(struct rk_cli *cli, const struct rk_run_row *rows, size_t count) {
    fprintf(cli->out, "Runs (%zu)\n", count);
    if (count > 0)
        fprintf(cli->out, "  %4s  %-20s  %4s  %6s  %6s  %-11s  %s\n", "ID", "started (UTC)", "plan", "ranks", "steps",
                "state", "data");
    for (size_t i = 0; i < count; i++) {
        char time[32];
        fprintf(cli->out, "  %4" PRId64 "  %-20s  %4" PRId64 "  %6" PRId64 "  %6" PRId64 "  %-11s  %s\n", rows[i].id,
                when(rows[i].started_us, time, sizeof time), rows[i].plan_id, rows[i].world_size, rows[i].steps,
                rk_run_state_name(rows[i].state), rows[i].data);
    }
}

/* Every table and how many rows it has. */
static enum rk_status list_tables(struct rk_cli *cli, struct rk_db *db) {
    struct rk_db_table_size *tables = NULL;
    size_t count = 0;
    enum rk_status status = rk_db_table_sizes(db, &tables, &count, &cli->error);
    cJSON *root = cli->json ? cJSON_CreateObject() : NULL;
    for (size_t i = 0; status == RK_OK && i < count; i++) {
        if (cli->json)
            rk_cli_json_integer(root, tables[i].name, tables[i].rows);
        else
            fprintf(cli->out, "%-14s%12" PRId64 "\n", tables[i].name, tables[i].rows);
    }
    if (status == RK_OK && cli->json)
        status = rk_cli_json_print(cli, root);
    cJSON_Delete(root);
    free(tables);
    return status;
}

struct lists {
    struct rk_campaign_row *campaigns;
    struct rk_plan_row *plans;
    struct rk_run_row *runs;
    size_t campaign_count, plan_count, run_count;
    bool campaigns_wanted, plans_wanted, runs_wanted;
};

static enum rk_status read_lists(struct rk_cli *cli, struct rk_db *db, struct lists *lists) {
    enum rk_status status = RK_OK;
    if (lists->campaigns_wanted)
        status = rk_campaign_list(db, &lists->campaigns, &lists->campaign_count, &cli->error);
    if (status == RK_OK && lists->plans_wanted)
        status = rk_plan_list(db, &lists->plans, &lists->plan_count, &cli->error);
    if (status == RK_OK && lists->runs_wanted)
        status = rk_run_list(db, &lists->runs, &lists->run_count, &cli->error);
    return status;
}

static enum rk_status print_json(struct rk_cli *cli, struct rk_db *db, const struct lists *lists) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "database", rk_db_path(db));
    rk_cli_json_integer(root, "version", rk_db_version(db));
    cJSON *campaigns = lists->campaigns_wanted ? cJSON_AddArrayToObject(root, "campaigns") : NULL;
    for (size_t i = 0; i < lists->campaign_count; i++)
        cJSON_AddItemToArray(campaigns, rk_cli_campaign_json(&lists->campaigns[i]));
    cJSON *plans = lists->plans_wanted ? cJSON_AddArrayToObject(root, "plans") : NULL;
    for (size_t i = 0; i < lists->plan_count; i++)
        cJSON_AddItemToArray(plans, rk_cli_plan_json(&lists->plans[i]));
    cJSON *runs = lists->runs_wanted ? cJSON_AddArrayToObject(root, "runs") : NULL;
    for (size_t i = 0; i < lists->run_count; i++)
        cJSON_AddItemToArray(runs, rk_cli_run_json(&lists->runs[i]));
    enum rk_status status = rk_cli_json_print(cli, root);
    cJSON_Delete(root);
    return status;
}

enum rk_status rk_cli_db_list(struct rk_cli *cli, struct rk_db *db, const char *what) {
    struct lists lists = {.campaigns_wanted = what == NULL || strcmp(what, "campaigns") == 0,
                          .plans_wanted = what == NULL || strcmp(what, "plans") == 0,
                          .runs_wanted = what == NULL || strcmp(what, "runs") == 0};
    if (what != NULL && strcmp(what, "tables") == 0)
        return list_tables(cli, db);
    if (!lists.campaigns_wanted && !lists.plans_wanted && !lists.runs_wanted)
        return rk_fail(&cli->error, RK_USAGE, "db list: '%.40s' is not campaigns, plans, runs or tables", what);
    enum rk_status status = read_lists(cli, db, &lists);
    if (status == RK_OK && cli->json) {
        status = print_json(cli, db, &lists);
    } else if (status == RK_OK) {
        fprintf(cli->out, "Database %s, version %" PRId64 "\n", rk_db_path(db), rk_db_version(db));
        if (lists.campaigns_wanted)
            print_campaigns(cli, lists.campaigns, lists.campaign_count);
        if (lists.plans_wanted)
            print_plans(cli, lists.plans, lists.plan_count);
        if (lists.runs_wanted)
            print_runs(cli, lists.runs, lists.run_count);
    }
    free(lists.campaigns);
    free(lists.plans);
    free(lists.runs);
    return status;
}

/* reckon db show: one campaign, plan or run with all its rows. */
#include "cli/db_show.h"

#include "base/clock.h"
#include "cli/db_json.h"
#include "db/run_store.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* "-" for an unknown time. */
static const char *seconds_text(double seconds, char *buffer, size_t size) {
    return isfinite(seconds) ? rk_format_seconds(seconds, buffer, size) : "-";
}

static const char *bytes_text(int64_t bytes, char *buffer, size_t size) {
    return bytes >= 0 ? rk_format_bytes(bytes, buffer, size) : "-";
}

static void print_time(FILE *out, const char *label, int64_t microseconds) {
    char time[32];
    fprintf(out, "%-12s%s\n", label,
            microseconds < 0 ? "-" : rk_clock_utc_at(microseconds / 1000000, time, sizeof time));
}

static void print_text(FILE *out, const char *label, const char *text) {
    if (text[0] != '\0')
        fprintf(out, "%-12s%s\n", label, text);
}

/* ---- campaign ---- */

struct machine_rows {
    struct rk_host_row host;
    struct rk_software_row software;
    struct rk_topology_row topology;
    struct rk_gpu_row *gpus;
    size_t gpu_count;
};

static enum rk_status read_machine(struct rk_cli *cli, struct rk_db *db, int64_t host, int64_t software,
                                   int64_t topology, struct machine_rows *rows) {
    enum rk_status status = rk_host_get(db, host, &rows->host, &cli->error);
    if (status == RK_OK)
        status = rk_software_get(db, software, &rows->software, &cli->error);
    if (status == RK_OK)
        status = rk_topology_get(db, topology, &rows->topology, &cli->error);
    if (status == RK_OK)
        status = rk_gpu_list(db, host, &rows->gpus, &rows->gpu_count, &cli->error);
    return status;
}

static void print_machine(FILE *out, const struct machine_rows *rows) {
    char memory[32];
    fprintf(out, "%-12s%s, %s, %" PRId64 " cores, %s, %s\n", "host", rows->host.hostname, rows->host.cpu_model,
            rows->host.cores, bytes_text(rows->host.memory_bytes, memory, sizeof memory), rows->host.operating_system);
    for (size_t i = 0; i < rows->gpu_count; i++)
        fprintf(out, "%-12s%" PRId64 " %s, %s, %s\n", i == 0 ? "GPUs" : "", rows->gpus[i].ordinal, rows->gpus[i].name,
                bytes_text(rows->gpus[i].memory_bytes, memory, sizeof memory), rows->gpus[i].uuid);
    print_text(out, "topology", rows->topology.summary);
    const char *const versions[][2] = {{"reckon", rows->software.reckon}, {"compiler", rows->software.compiler},
                                       {"driver", rows->software.driver}, {"CUDA", rows->software.cuda},
                                       {"NCCL", rows->software.nccl},     {"cuDNN", rows->software.cudnn},
                                       {"BLAS", rows->software.blas}};
    const char *separator = "";
    fprintf(out, "%-12s", "software");
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        if (versions[i][1][0] != '\0') {
            fprintf(out, "%s%s %s", separator, versions[i][0], versions[i][1]);
            separator = ", ";
        }
    }
    fputc('\n', out);
}

static void add_machine_json(cJSON *root, const struct machine_rows *rows) {
    cJSON *host = cJSON_AddObjectToObject(root, "host");
    cJSON_AddStringToObject(host, "hostname", rows->host.hostname);
    cJSON_AddStringToObject(host, "cpu_model", rows->host.cpu_model);
    rk_cli_json_known(host, "cores", rows->host.cores);
    rk_cli_json_known(host, "memory_bytes", rows->host.memory_bytes);
    cJSON_AddStringToObject(host, "kernel", rows->host.kernel);
    cJSON_AddStringToObject(host, "operating_system", rows->host.operating_system);
    cJSON *gpus = cJSON_AddArrayToObject(root, "gpus");
    for (size_t i = 0; i < rows->gpu_count; i++) {
        cJSON *gpu = cJSON_CreateObject();
        cJSON_AddStringToObject(gpu, "name", rows->gpus[i].name);
        cJSON_AddStringToObject(gpu, "uuid", rows->gpus[i].uuid);
        rk_cli_json_known(gpu, "memory_bytes", rows->gpus[i].memory_bytes);
        rk_cli_json_real(gpu, "power_limit_watts", rows->gpus[i].power_limit_watts);
        cJSON_AddItemToArray(gpus, gpu);
    }
    cJSON_AddStringToObject(root, "topology", rows->topology.summary);
    cJSON *software = cJSON_AddObjectToObject(root, "software");
    cJSON_AddStringToObject(software, "reckon", rows->software.reckon);
    cJSON_AddStringToObject(software, "compiler", rows->software.compiler);
    cJSON_AddStringToObject(software, "driver", rows->software.driver);
    cJSON_AddStringToObject(software, "cuda", rows->software.cuda);
    cJSON_AddStringToObject(software, "nccl", rows->software.nccl);
    cJSON_AddStringToObject(software, "cudnn", rows->software.cudnn);
    cJSON_AddStringToObject(software, "blas", rows->software.blas);
}

/* "gemm_forward f32 m=64 n=128 k=256"; a case that is no op of the table has bare numbers. */
static void describe_case(const struct rk_case_row *row, char *text, size_t size) {
    struct rk_op_shape shape;
    struct rk_cost_place place;
    if (rk_case_to_shape(row, &shape, &place)) {
        rk_op_shape_text(&shape, text, size);
        return;
    }
    size_t used = (size_t)snprintf(text, size, "%s%s%s", row->op, row->type[0] != '\0' ? " " : "", row->type);
    for (int i = 0; i < RK_OP_DIMS && used < size; i++)
        if (row->dim[i] != 0)
            used += (size_t)snprintf(text + used, size - used, " %" PRId64, row->dim[i]);
}

static void print_measurement(FILE *out, const struct rk_measured_case *row) {
    const struct rk_measurement_row *measured = &row->measurement;
    char name[192], median[32], rate[32] = "", interval[32] = "-";
    describe_case(&row->bench_case, name, sizeof name);
    double half = (measured->high_seconds - measured->low_seconds) / 2 / measured->median_seconds;
    if (isfinite(half))
        snprintf(interval, sizeof interval, "±%.1f %%", 100 * half);
    if (measured->flops > 0 && measured->median_seconds > 0)
        snprintf(rate, sizeof rate, "%.4g GFLOP/s", measured->flops / measured->median_seconds / 1e9);
    else if (measured->bytes > 0 && measured->median_seconds > 0)
        snprintf(rate, sizeof rate, "%.4g GB/s", measured->bytes / measured->median_seconds / 1e9);
    fprintf(out, "  %-60s  %5" PRId64 "  %-9s  %-7s  %10s  %8s  %7" PRId64 "  %-14s  %s%s%s\n", name,
            row->bench_case.concurrent_ranks, row->bench_case.mode, row->bench_case.operands,
            seconds_text(measured->median_seconds, median, sizeof median), interval, measured->sample_count, rate,
            strcmp(measured->status, "ok") == 0 ? "" : measured->status, measured->message[0] != '\0' ? ": " : "",
            measured->message);
}

static cJSON *measurement_json(const struct rk_measured_case *row) {
    const struct rk_measurement_row *measured = &row->measurement;
    cJSON *item = cJSON_CreateObject();
    rk_cli_json_integer(item, "id", measured->id);
    cJSON_AddStringToObject(item, "op", row->bench_case.op);
    cJSON_AddStringToObject(item, "type", row->bench_case.type);
    rk_cli_json_integer(item, "flags", row->bench_case.flags);
    cJSON *dims = cJSON_AddArrayToObject(item, "dims");
    for (int i = 0; i < RK_OP_DIMS; i++)
        cJSON_AddItemToArray(dims, cJSON_CreateNumber((double)row->bench_case.dim[i]));
    cJSON_AddStringToObject(item, "group", row->bench_case.group_kind);
    rk_cli_json_integer(item, "group_size", row->bench_case.group_size);
    rk_cli_json_integer(item, "concurrent_ranks", row->bench_case.concurrent_ranks);
    cJSON_AddStringToObject(item, "operands", row->bench_case.operands);
    cJSON_AddStringToObject(item, "mode", row->bench_case.mode);
    cJSON_AddStringToObject(item, "status", measured->status);
    cJSON_AddStringToObject(item, "message", measured->message);
    cJSON_AddStringToObject(item, "stop_reason", measured->stop_reason);
    rk_cli_json_integer(item, "process", measured->process);
    rk_cli_json_real(item, "median_seconds", measured->median_seconds);
    rk_cli_json_real(item, "low_seconds", measured->low_seconds);
    rk_cli_json_real(item, "high_seconds", measured->high_seconds);
    rk_cli_json_real(item, "flops", measured->flops);
    rk_cli_json_real(item, "bytes", measured->bytes);
    rk_cli_json_integer(item, "samples", measured->sample_count);
    rk_cli_json_integer(item, "throttled", measured->throttled);
    cJSON_AddStringToObject(item, "algorithm", measured->algorithm);
    return item;
}

/* A campaign with all that belongs to it. */
struct campaign_rows {
    struct rk_campaign_row campaign;
    struct machine_rows machine;
    struct rk_measured_case *measured;
    struct rk_fit_row *fits;
    size_t measured_count, fit_count;
};

static enum rk_status print_campaign_json(struct rk_cli *cli, const struct campaign_rows *rows) {
    cJSON *root = rk_cli_campaign_json(&rows->campaign);
    add_machine_json(root, &rows->machine);
    cJSON *list = cJSON_AddArrayToObject(root, "rows");
    for (size_t i = 0; i < rows->measured_count; i++)
        cJSON_AddItemToArray(list, measurement_json(&rows->measured[i]));
    list = cJSON_AddArrayToObject(root, "fits");
    for (size_t i = 0; i < rows->fit_count; i++) {
        const struct rk_fit_row *fit = &rows->fits[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "op", fit->op);
        cJSON_AddStringToObject(item, "form", fit->form);
        cJSON_AddItemToObject(item, "parameters", cJSON_Parse(fit->parameters));
        rk_cli_json_integer(item, "train", fit->train_count);
        rk_cli_json_integer(item, "held_out", fit->held_out_count);
        rk_cli_json_real(item, "leave_one_out_median", fit->leave_one_out_median);
        rk_cli_json_real(item, "leave_one_out_p90", fit->leave_one_out_p90);
        rk_cli_json_real(item, "held_out_median", fit->held_out_median);
        rk_cli_json_real(item, "held_out_p90", fit->held_out_p90);
        cJSON_AddItemToArray(list, item);
    }
    enum rk_status status = rk_cli_json_print(cli, root);
    cJSON_Delete(root);
    return status;
}

static const char *percent_text(double fraction, char *buffer, size_t size) {
    snprintf(buffer, size, "%.1f %%", 100 * fraction);
    return isfinite(fraction) ? buffer : "-";
}

static void print_fits(FILE *out, const struct rk_fit_row *fits, size_t count) {
    char median[24], p90[24], left_median[24], left_p90[24];
    if (count > 0)
        fprintf(out, "\n  %-22s  %-24s  %6s  %8s  %15s  %9s  %17s  %9s\n", "fit", "form", "inputs", "held out",
                "hold-out median", "p90", "left-one-out med.", "p90");
    for (size_t i = 0; i < count; i++)
        fprintf(out, "  %-22s  %-24s  %6" PRId64 "  %8" PRId64 "  %15s  %9s  %17s  %9s\n", fits[i].op, fits[i].form,
                fits[i].train_count, fits[i].held_out_count,
                percent_text(fits[i].held_out_median, median, sizeof median),
                percent_text(fits[i].held_out_p90, p90, sizeof p90),
                percent_text(fits[i].leave_one_out_median, left_median, sizeof left_median),
                percent_text(fits[i].leave_one_out_p90, left_p90, sizeof left_p90));
}

static void print_campaign(FILE *out, const struct campaign_rows *rows) {
    const struct rk_campaign_row *campaign = &rows->campaign;
    fprintf(out, "Campaign %" PRId64 " (%s): %s, %s back end, %s by %s\n", campaign->id, campaign->uuid,
            rk_campaign_state_name(campaign->state), campaign->backend, campaign->imported ? "imported" : "measured",
            campaign->tool);
    print_time(out, "started", campaign->started_us);
    print_time(out, "ended", campaign->ended_us);
    print_text(out, "command", campaign->command);
    print_text(out, "revision", campaign->git_revision);
    fprintf(out, "%-12s%" PRId64 "\n", "seed", campaign->seed);
    fprintf(out, "%-12s%s (hardware %s)\n", "fingerprint", campaign->fingerprint, campaign->machine_key);
    if (campaign->forced_unfit)
        fprintf(out, "%-12s%s\n", "UNFIT", campaign->unfit_reason);
    print_machine(out, &rows->machine);
    fprintf(out, "\n  %-60s  %5s  %-9s  %-7s  %10s  %8s  %7s  %s\n", "case", "ranks", "mode", "values", "median",
            "95 %", "samples", "rate");
    for (size_t i = 0; i < rows->measured_count; i++)
        print_measurement(out, &rows->measured[i]);
    print_fits(out, rows->fits, rows->fit_count);
}

enum rk_status rk_cli_db_show_campaign(struct rk_cli *cli, struct rk_db *db, int64_t id) {
    struct campaign_rows rows = {0};
    struct rk_campaign_row *campaign = &rows.campaign;
    enum rk_status status = rk_campaign_get(db, id, campaign, &cli->error);
    if (status == RK_OK)
        status = read_machine(cli, db, campaign->host_id, campaign->software_id, campaign->topology_id, &rows.machine);
    if (status == RK_OK)
        status = rk_measurement_list(db, id, &rows.measured, &rows.measured_count, &cli->error);
    if (status == RK_OK)
        status = rk_fit_list(db, id, &rows.fits, &rows.fit_count, &cli->error);
    if (status == RK_OK && cli->json)
        status = print_campaign_json(cli, &rows);
    else if (status == RK_OK)
        print_campaign(cli->out, &rows);
    free(rows.machine.gpus);
    free(rows.measured);
    free(rows.fits);
    return status;
}

/* ---- plan ---- */

enum rk_status rk_cli_db_show_document(struct rk_cli *cli, struct rk_db *db, int64_t id) {
    char *document = NULL;
    enum rk_status status = rk_plan_document(db, id, &document, &cli->error);
    if (status == RK_OK)
        fputs(document, cli->out);
    free(document);
    return status;
}

static void print_candidate(FILE *out, const struct rk_candidate_row *row) {
    char step[32], peak[32], reason[320];
    fprintf(out, "  %4" PRId64 "  %-9s  %-64s  %11s  %11s  %s\n", row->ordinal, row->verdict, row->label,
            seconds_text(row->seconds, step, sizeof step), bytes_text(row->peak_bytes, peak, sizeof peak),
            rk_candidate_row_reason(row, reason, sizeof reason));
}

static void print_plan(FILE *out, const struct rk_plan_row *plan, const struct rk_candidate_row *candidates,
                       size_t candidate_count, const struct rk_term_row *terms, size_t term_count) {
    char step[32], low[32], high[32];
    fprintf(out, "Plan %" PRId64 " (%s): %s on %s, %" PRId64 " ranks\n", plan->id, plan->uuid, plan->model,
            plan->hardware, plan->ranks);
    print_time(out, "made", plan->created_us);
    print_text(out, "revision", plan->git_revision);
    if (plan->campaign_id != 0)
        fprintf(out, "%-12scampaign %" PRId64 "\n", "priced by", plan->campaign_id);
    fprintf(out, "%-12s%s (%s to %s)\n", "step", seconds_text(plan->predicted_seconds, step, sizeof step),
            seconds_text(plan->predicted_low_seconds, low, sizeof low),
            seconds_text(plan->predicted_high_seconds, high, sizeof high));
    fprintf(out, "%-12s%" PRId64 " considered, %" PRId64 " refused, %zu stored\n", "candidates", plan->considered,
            plan->refused, candidate_count);
    if (candidate_count > 0)
        fprintf(out, "\n  %4s  %-9s  %-64s  %11s  %11s  %s\n", "rank", "verdict", "candidate", "step", "peak",
                "reason");
    for (size_t i = 0; i < candidate_count; i++)
        print_candidate(out, &candidates[i]);
    if (term_count > 0)
        fprintf(out, "\n  %-28s  %-16s  %8s  %12s  %6s  %-13s  %s\n", "term", "family", "count", "per step", "±",
                "origin", "source");
    for (size_t i = 0; i < term_count; i++)
        fprintf(out, "  %-28s  %-16s  %8" PRId64 "  %12s  %4.0f %%  %-13s  %s\n", terms[i].term, terms[i].family,
                terms[i].count, seconds_text(terms[i].seconds, step, sizeof step), 100 * terms[i].relative_uncertainty,
                rk_origin_name(terms[i].origin), terms[i].source);
}

static cJSON *candidate_json(const struct rk_candidate_row *row) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "verdict", row->verdict);
    cJSON_AddItemToObject(item, "settings", cJSON_Parse(row->settings));
    rk_cli_json_real(item, "seconds", row->seconds);
    rk_cli_json_known(item, "peak_bytes", row->peak_bytes);
    if (row->reason[0] != '\0') {
        cJSON_AddStringToObject(item, "reason", row->reason);
        rk_cli_json_real(item, "need", row->need);
        rk_cli_json_real(item, "have", row->have);
        cJSON_AddStringToObject(item, "unit", row->unit);
        cJSON_AddStringToObject(item, "remedy", row->remedy);
    }
    return item;
}

static enum rk_status print_plan_json(struct rk_cli *cli, const struct rk_plan_row *plan,
                                      const struct rk_candidate_row *candidates, size_t candidate_count,
                                      const struct rk_term_row *terms, size_t term_count) {
    cJSON *root = rk_cli_plan_json(plan);
    cJSON *list = cJSON_AddArrayToObject(root, "candidates");
    for (size_t i = 0; i < candidate_count; i++)
        cJSON_AddItemToArray(list, candidate_json(&candidates[i]));
    list = cJSON_AddArrayToObject(root, "terms");
    for (size_t i = 0; i < term_count; i++) {
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "term", terms[i].term);
        rk_cli_json_integer(item, "count", terms[i].count);
        rk_cli_json_real(item, "seconds", terms[i].seconds);
        rk_cli_json_real(item, "relative_uncertainty", terms[i].relative_uncertainty);
        cJSON_AddStringToObject(item, "origin", rk_origin_name(terms[i].origin));
        cJSON_AddStringToObject(item, "source", terms[i].source);
        cJSON_AddItemToArray(list, item);
    }
    enum rk_status status = rk_cli_json_print(cli, root);
    cJSON_Delete(root);
    return status;
}

enum rk_status rk_cli_db_show_plan(struct rk_cli *cli, struct rk_db *db, int64_t id) {
    struct rk_plan_row plan;
    struct rk_candidate_row *candidates = NULL;
    struct rk_term_row *terms = NULL;
    size_t candidate_count = 0, term_count = 0;
    enum rk_status status = rk_plan_get(db, id, &plan, &cli->error);
    if (status == RK_OK)
        status = rk_candidate_list(db, id, &candidates, &candidate_count, &cli->error);
    if (status == RK_OK)
        status = rk_term_list(db, id, &terms, &term_count, &cli->error);
    if (status == RK_OK && cli->json)
        status = print_plan_json(cli, &plan, candidates, candidate_count, terms, term_count);
    else if (status == RK_OK)
        print_plan(cli->out, &plan, candidates, candidate_count, terms, term_count);
    free(candidates);
    free(terms);
    return status;
}

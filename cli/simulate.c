/* reckon simulate: plays the step of a plan and shows where the time goes; writes its timeline. */
#include "base/atomic_file.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/plan_print.h"
#include "cli/play.h"

#include <stdlib.h>
#include <string.h>

enum { PLAN_MAX = 64 << 20, TRACE_CHUNK = 1 << 20 };

struct simulate_options {
    const char *hardware, *backend, *spill, *trace;
    bool transfer;
};

static const struct rk_option options[] = {
    {.name = "hardware", .letter = 'w', .type = RK_OPTION_STRING, .offset = offsetof(struct simulate_options, hardware),
     .value = "NAME|FILE|this",
     .help = "what to price with (default: what the plan was priced with)"},
    {.name = "trace", .letter = 't', .type = RK_OPTION_STRING, .offset = offsetof(struct simulate_options, trace),
     .value = "FILE", .help = "write the timeline as Chrome trace JSON, for ui.perfetto.dev"},
    {.name = "backend", .type = RK_OPTION_STRING, .offset = offsetof(struct simulate_options, backend),
     .choices = "auto|cpu|cuda", .help = "of this machine (default: the plan's)"},
    {.name = "transfer", .type = RK_OPTION_FLAG, .offset = offsetof(struct simulate_options, transfer),
     .help = "without a calibration of this machine, price with the newest of other hardware, marked as transferred"},
    {.name = "spill", .type = RK_OPTION_STRING, .offset = offsetof(struct simulate_options, spill), .value = "DIR",
     .help = "where CPU ranks offload to (default: /var/tmp)"},
};

const struct rk_arguments rk_cli_simulate_arguments = {
    .name = "simulate",
    .summary = "Play the step of a plan on the streams of every stage",
    .operands = "PLAN.json",
    .minimum_operands = 1,
    .maximum_operands = 1,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .description = "Lowers the plan to its step programs, prices every op and plays them: accounts of every stage,\n"
                   "and with --trace one row per stream of every stage (a process per stage, a thread per stream).",
    .examples = "  reckon simulate plan.json\n"
                "  reckon simulate plan.json --trace step.json\n"
                "  reckon simulate plan.json --hardware h200",
};

struct simulating {
    struct rk_cli *cli;
    const struct simulate_options *values;
    const char *path;
    struct rk_plan *plan;
    struct rk_play play;
};

static void simulating_free(struct simulating *simulating) {
    rk_play_free(&simulating->play);
    rk_plan_free(simulating->plan);
}

static enum rk_status read_plan(struct simulating *simulating) {
    struct rk_cli *cli = simulating->cli;
    char *text = NULL;
    size_t length = 0;
    enum rk_status status = rk_read_file(simulating->path, PLAN_MAX, &text, &length, &cli->error);
    if (status == RK_OK)
        status = rk_plan_read(simulating->path, text, length, &simulating->plan, &cli->error);
    free(text);
    return status;
}

/* ---- the trace ---- */

static void name_row(struct rk_text *text, const char *kind, int32_t stage, int thread, const char *name) {
    rk_text_format(text, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n", kind,
                   stage, thread, name);
}

static void name_rows(const struct simulating *simulating, struct rk_text *text) {
    for (int32_t s = 0; s < simulating->plan->candidate.pipeline; s++) {
        char name[32];
        snprintf(name, sizeof name, "stage %d", s);
        name_row(text, "process_name", s, 0, name);
        for (int stream = 0; stream < RK_STREAM_COUNT; stream++)
            name_row(text, "thread_name", s, stream, rk_stream_name((enum rk_stream_kind)stream));
    }
}

static void event(const struct simulating *simulating, const struct rk_timeline_entry *entry, struct rk_text *text) {
    const struct rk_program *program = simulating->play.programs[entry->stage];
    const struct rk_op *op = &program->ops[entry->op];
    const struct rk_visit *visit = &program->schedule[entry->visit];
    rk_text_format(text,
                   "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,"
                   "\"args\":{\"phase\":\"%s\",\"layer\":%d,\"micro_batch\":%d,\"segment\":",
                   rk_op_name(op->shape.kind), rk_op_family_name(rk_op_family(op->shape.kind)), entry->stage,
                   (int)entry->stream, 1e6 * entry->start, 1e6 * (entry->end - entry->start), rk_phase_name(op->phase),
                   visit->layer, visit->micro_batch);
    rk_json_add_quoted(text, program->segments[visit->segment].name);
    rk_text_add(text, "}}");
}

/* Writes what has gathered, so that a long timeline needs no long text. */
static enum rk_status flush(struct rk_atomic_file *file, struct rk_text *text, size_t least, struct rk_error *error) {
    if (text->failed)
        return rk_fail(error, RK_ERROR, "simulate: out of memory");
    if (text->length < least)
        return RK_OK;
    enum rk_status status = rk_atomic_file_write(file, text->data, text->length, error);
    text->length = 0;
    return status;
}

static enum rk_status write_trace(const struct simulating *simulating) {
    struct rk_error *error = &simulating->cli->error;
    struct rk_atomic_file file;
    struct rk_text text = {0};
    enum rk_status status = rk_atomic_file_open(simulating->values->trace, &file, error);
    if (status != RK_OK)
        return status;
    rk_text_add(&text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    name_rows(simulating, &text);
    const struct rk_simulation *simulation = &simulating->play.simulation;
    for (size_t i = 0; status == RK_OK && i < simulation->timeline_count; i++) {
        event(simulating, &simulation->timeline[i], &text);
        rk_text_add(&text, i + 1 < simulation->timeline_count ? ",\n" : "\n");
        status = flush(&file, &text, TRACE_CHUNK, error);
    }
    rk_text_add(&text, "]}\n");
    if (status == RK_OK)
        status = flush(&file, &text, 0, error);
    rk_text_free(&text);
    if (status != RK_OK) {
        rk_atomic_file_abandon(&file);
        return status;
    }
    return rk_atomic_file_commit(&file, error);
}

/* ---- output ---- */

static void print_text(const struct simulating *simulating) {
    const struct rk_simulation *simulation = &simulating->play.simulation;
    const struct rk_plan *plan = simulating->plan;
    struct rk_text text = {0};
    char seconds[32], low[32], high[32], planned[32];
    rk_text_format(&text, "plan        %s: ", simulating->path);
    rk_plan_print_candidate(&plan->candidate, &text);
    rk_text_format(&text, "\nmachine     %s\n", simulating->play.pricing.machine.name);
    rk_text_format(&text, "step time   %s, 95 %% interval %s to %s; the plan says %s\n\n",
                   rk_format_seconds(simulation->step_seconds, seconds, sizeof seconds),
                   rk_format_seconds(simulation->low, low, sizeof low),
                   rk_format_seconds(simulation->high, high, sizeof high),
                   rk_format_seconds(plan->seconds, planned, sizeof planned));
    rk_plan_print_stages(simulation->stages, simulation->stage_count, &text);
    fputs(text.data != NULL ? text.data : "", simulating->cli->out);
    rk_text_free(&text);
}

static void print_json(const struct simulating *simulating) {
    const struct rk_simulation *simulation = &simulating->play.simulation;
    FILE *out = simulating->cli->out;
    fprintf(out,
            "{\n  \"step_seconds\": %.17g,\n  \"low\": %.17g,\n  \"high\": %.17g,\n  \"planned_seconds\": %.17g,\n",
            simulation->step_seconds, simulation->low, simulation->high, simulating->plan->seconds);
    fprintf(out, "  \"stages\": [");
    for (int32_t s = 0; s < simulation->stage_count; s++) {
        const struct rk_stage_time *time = &simulation->stages[s];
        fprintf(out, "%s\n    {", s > 0 ? "," : "");
        for (int account = 0; account < RK_STAGE_ACCOUNT_COUNT; account++)
            fprintf(out, "\"%s\": %.17g, ", rk_stage_account_member(account),
                    rk_stage_account_seconds(time, account));
        fprintf(out, "\"total\": %.17g}", time->total);
    }
    fprintf(out, "\n  ]\n}\n");
}

enum rk_status rk_cli_simulate(struct rk_cli *cli, int argc, char **argv) {
    struct simulate_options values = {0};
    struct rk_string_list operands = {0};
    struct simulating simulating = {.cli = cli, .values = &values};
    enum rk_status status = rk_cli_parse(cli, &rk_cli_simulate_arguments, argc, argv, &values, &operands);
    if (status == RK_OK) {
        simulating.path = operands.items[0];
        status = rk_cli_check_outputs(&simulating.path, 1, &values.trace, 1, &cli->error);
    }
    if (status == RK_OK) {
        status = read_plan(&simulating);
    }
    struct rk_play_request request = {.hardware = values.hardware,
                                      .backend = values.backend,
                                      .spill = values.spill,
                                      .transfer = values.transfer,
                                      .timeline = values.trace != NULL};
    if (status == RK_OK)
        status = rk_play_plan(cli, simulating.plan, simulating.path, &request, &simulating.play);
    if (status == RK_OK && values.trace != NULL)
        status = write_trace(&simulating);
    if (status == RK_OK && cli->json)
        print_json(&simulating);
    else if (status == RK_OK)
        print_text(&simulating);
    simulating_free(&simulating);
    rk_string_list_free(&operands);
    return status;
}

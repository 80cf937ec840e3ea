/* reckon plan: chooses a training plan for a model on a machine, and says why. */
#include "base/clock.h"
#include "base/version.h"
#include "cli/cli.h"
#include "cli/plan_print.h"
#include "cli/pricing.h"
#include "db/plan_store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of a large space the data base keeps this many candidates of each verdict. */
enum { STORED_EACH = 200 };

struct plan_options {
    const char *model, *hardware, *backend, *spill, *recompute, *precision, *routing, *out;
    int64_t gpus, sequence, global_batch, memory_limit, calibration;
    int64_t expert, pipeline, virtual_stages, micro_batch, offload, replay;
    double capacity;
    bool transfer, explain;
};

#define OPTION(field) .offset = offsetof(struct plan_options, field)
static const struct rk_option options[] = {
    {.name = "model",
     .letter = 'm',
     .type = RK_OPTION_STRING,
     OPTION(model),
     .value = "FILE",
     .help = "the model's Hugging Face config.json (needed)"},
    {.name = "hardware",
     .letter = 'w',
     .type = RK_OPTION_STRING,
     OPTION(hardware),
     .value = "NAME|FILE|this",
     .help = "what to plan for: a profile such as b300 or its file, or this machine as calibrated (default: this)"},
    {.name = "gpus",
     .letter = 'n',
     .type = RK_OPTION_COUNT,
     OPTION(gpus),
     .value = "N",
     .minimum = 1,
     .maximum = 1048576,
     .help = "ranks, all of them used: GPUs, or processes on CPUs (needed)"},
    {.name = "seq",
     .letter = 's',
     .type = RK_OPTION_COUNT,
     OPTION(sequence),
     .value = "S",
     .minimum = 1,
     .maximum = 1 << 24,
     .help = "sequence length in tokens (needed)"},
    {.name = "global-batch",
     .letter = 'b',
     .type = RK_OPTION_COUNT,
     OPTION(global_batch),
     .value = "TOKENS",
     .minimum = 1,
     .maximum = 1e15,
     .help = "tokens of one step over all ranks: 512Ki, 64Mi (needed)"},
    {.name = "memory-limit",
     .type = RK_OPTION_BYTES,
     OPTION(memory_limit),
     .value = "BYTES",
     .minimum = 1,
     .maximum = 1e18,
     .help = "of one rank (default: the machine's, less what driver and libraries hold)"},
    {.name = "ep",
     .type = RK_OPTION_COUNT,
     OPTION(expert),
     .value = "N",
     .minimum = 1,
     .maximum = 1048576,
     .help = "fix EP-MP, the ranks one expert pool is spread over"},
    {.name = "pp",
     .type = RK_OPTION_COUNT,
     OPTION(pipeline),
     .value = "N",
     .minimum = 1,
     .maximum = RK_STAGES_MAX,
     .help = "fix the pipeline stages"},
    {.name = "virtual-stages",
     .type = RK_OPTION_COUNT,
     OPTION(virtual_stages),
     .value = "N",
     .minimum = 1,
     .maximum = RK_VIRTUAL_STAGES_MAX,
     .help = "fix the chunks of the model on each stage"},
    {.name = "micro-batch",
     .type = RK_OPTION_COUNT,
     OPTION(micro_batch),
     .value = "TOKENS",
     .minimum = 1,
     .maximum = 1e12,
     .help = "fix the tokens of a micro-batch on one rank"},
    {.name = "recompute",
     .type = RK_OPTION_STRING,
     OPTION(recompute),
     .choices = "none|attention|block",
     .help = "fix what is recomputed in backward"},
    {.name = "offload",
     .type = RK_OPTION_INTEGER,
     OPTION(offload),
     .value = "PERCENT",
     .minimum = 0,
     .maximum = 100,
     .help = "fix the share of activations that leave the device"},
    {.name = "precision",
     .type = RK_OPTION_STRING,
     OPTION(precision),
     .choices = "f32|bf16",
     .help = "of weights and activations (default: bf16, f32 on this machine's CPUs)"},
    {.name = "capacity-factor",
     .type = RK_OPTION_NUMBER,
     OPTION(capacity),
     .value = "C",
     .minimum = 0.01,
     .maximum = 65536,
     .help = "rows of a receive buffer over those under balance (default: EP, so that none is dropped)"},
    {.name = "routing",
     .type = RK_OPTION_STRING,
     OPTION(routing),
     .choices = "learned|random|uniform",
     .help = "of tokens to experts (default: learned)"},
    {.name = "backend",
     .type = RK_OPTION_STRING,
     OPTION(backend),
     .choices = "auto|cpu|cuda",
     .help = "of this machine (default: auto, the GPUs when there are any)"},
    {.name = "calibration",
     .type = RK_OPTION_COUNT,
     OPTION(calibration),
     .value = "N",
     .minimum = 1,
     .maximum = 1e15,
     .help = "price with exactly this calibration of the data base"},
    {.name = "transfer",
     .type = RK_OPTION_FLAG,
     OPTION(transfer),
     .help = "without a calibration of this machine, price with the newest of other hardware, marked as transferred"},
    {.name = "spill",
     .type = RK_OPTION_STRING,
     OPTION(spill),
     .value = "DIR",
     .help = "where CPU ranks offload to (default: /var/tmp)"},
    {.name = "replay",
     .type = RK_OPTION_COUNT,
     OPTION(replay),
     .value = "N",
     .minimum = 1,
     .maximum = 1e9,
     .help = "how many of the best the simulator replays (default: 16)"},
    {.name = "explain",
     .letter = 'e',
     .type = RK_OPTION_FLAG,
     OPTION(explain),
     .help = "time by term, memory by owner, runners-up, and what was refused and why"},
    {.name = "out",
     .letter = 'o',
     .type = RK_OPTION_STRING,
     OPTION(out),
     .value = "PLAN.json",
     .help = "write the plan, which is all that `reckon run` needs"},
};

const struct rk_arguments rk_cli_plan_arguments = {
    .name = "plan",
    .summary = "Choose a training plan: parallelism, micro-batch, recompute and offload",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .description =
        "Judges every candidate of the space: whether it divides, whether its groups stay on fast links, whether its "
        "bytes\n"
        "fit (exactly those that the run will allocate), whether its offload fits the host link, and how long its "
        "step\n"
        "takes. Closed forms rank them, the simulator replays the best, and the fastest is chosen. Options that fix a\n"
        "variable narrow the space. Exit code 3: nothing fits, and the nearest miss is named; 4: a measurement is\n"
        "missing (`reckon calibrate`).",
    .examples =
        "  reckon plan --model config.json --gpus 4 --seq 128 --global-batch 16Ki --explain --out plan.json\n"
        "  reckon plan --model examples/models/report-ultra-128e.json --hardware b300 --gpus 512 --seq 8192 \\\n"
        "      --global-batch 64Mi --explain\n"
        "  reckon plan --model config.json --hardware h200 --gpus 64 --seq 4096 --global-batch 4Mi --json",
};

/* What lives through the verb. */
struct planning {
    struct rk_cli *cli;
    const struct plan_options *values;
    struct rk_architecture architecture;
    char *config;
    struct rk_pricing pricing;
    struct rk_search_request request;
    struct rk_search_result result;
    struct rk_plan *plan;
    double search_seconds;
};

static void planning_free(struct planning *planning) {
    rk_plan_free(planning->plan);
    rk_search_result_free(&planning->result);
    rk_pricing_free(&planning->pricing);
    free(planning->config);
}

static enum rk_status check_options(struct rk_cli *cli, const struct plan_options *values) {
    const struct {
        const char *name;
        bool missing;
    } needed[] = {{"--model FILE", values->model == NULL},
                  {"--gpus N", values->gpus == 0},
                  {"--seq S", values->sequence == 0},
                  {"--global-batch TOKENS", values->global_batch == 0}};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (needed[i].missing)
            return rk_fail(&cli->error, RK_USAGE, "plan: %s is needed; `reckon plan --help` shows an example",
                           needed[i].name);
    bool profile = values->hardware != NULL && strcmp(values->hardware, "this") != 0;
    if (profile && (values->calibration > 0 || values->transfer))
        return rk_fail(&cli->error, RK_USAGE, "%s prices with a calibration, --hardware %s with a profile; leave one out",
                       values->calibration > 0 ? "--calibration" : "--transfer", values->hardware);
    if (values->capacity > 0 && values->capacity < 1)
        rk_log_write(&cli->log, RK_LOG_WARNING,
                     "--capacity-factor %g drops %.0f %% of the routes between ranks even when the load is balanced",
                     values->capacity, 100 * (1 - values->capacity));
    return RK_OK;
}

static enum rk_status read_model(struct planning *planning) {
    enum { CONFIG_MAX = 1 << 22 };
    struct rk_cli *cli = planning->cli;
    struct rk_text warnings = {0};
    size_t length = 0;
    const char *path = planning->values->model;
    enum rk_status status = rk_read_file(path, CONFIG_MAX, &planning->config, &length, &cli->error);
    if (status == RK_OK)
        status = rk_architecture_parse(path, planning->config, length, &planning->architecture, &warnings, &cli->error);
    if (status == RK_OK && warnings.length > 1)
        rk_log_write(&cli->log, RK_LOG_WARNING, "%.*s", (int)warnings.length - 1, warnings.data);
    rk_text_free(&warnings);
    if (status == RK_OK && planning->architecture.max_positions > 0 &&
        planning->values->sequence > planning->architecture.max_positions)
        rk_log_write(&cli->log, RK_LOG_WARNING, "--seq %lld is longer than the model's %lld positions",
                     (long long)planning->values->sequence, (long long)planning->architecture.max_positions);
    return status;
}

static enum rk_status open_pricing(struct planning *planning) {
    const struct plan_options *values = planning->values;
    struct rk_pricing_request request = {.hardware = values->hardware,
                                         .backend = values->backend,
                                         .spill = values->spill,
                                         .calibration = values->calibration,
                                         .transfer = values->transfer,
                                         .architecture = &planning->architecture,
                                         .sequence = values->sequence,
                                         .ranks = values->gpus};
    return rk_pricing_open(planning->cli, &request, &planning->pricing);
}

static void fill_request(struct planning *planning) {
    const struct plan_options *values = planning->values;
    bool cpu = planning->pricing.machine.backend == RK_BACKEND_CPU;
    const char *precision = values->precision != NULL ? values->precision : cpu ? "f32" : "bf16";
    planning->request = (struct rk_search_request){
        .architecture = &planning->architecture,
        .machine = &planning->pricing.machine,
        .costs = &planning->pricing.costs,
        .world = values->gpus,
        .sequence = values->sequence,
        .global_batch_tokens = values->global_batch,
        .type = strcmp(precision, "f32") == 0 ? RK_F32 : RK_BF16,
        .memory_limit_bytes = values->memory_limit,
        .capacity_factor = values->capacity,
        .routing = values->routing != NULL ? rk_routing_from_name(values->routing) : RK_ROUTING_LEARNED,
        .pipeline = (int32_t)values->pipeline,
        .virtual_stages = (int32_t)values->virtual_stages,
        .expert_parallel = (int32_t)values->expert,
        .micro_batch_tokens = values->micro_batch,
        .offload_percent = (int32_t)values->offload,
        .recompute = values->recompute != NULL ? (int32_t)rk_recompute_from_name(values->recompute) : -1,
        .replayed = (size_t)values->replay,
    };
}

/* ---- output ---- */

static void view_of(const struct planning *planning, struct rk_plan_view *view) {
    *view = (struct rk_plan_view){.architecture = &planning->architecture,
                                  .machine = &planning->pricing.machine,
                                  .request = &planning->request,
                                  .result = &planning->result,
                                  .plan = planning->plan,
                                  .search_seconds = planning->search_seconds};
}

static enum rk_status print_text(struct planning *planning) {
    struct rk_text text = {0};
    struct rk_plan_view view;
    view_of(planning, &view);
    if (planning->values->explain)
        rk_plan_print_explanation(&view, &text);
    else
        rk_plan_print_summary(&view, &text);
    enum rk_status status = RK_OK;
    if (text.failed)
        status = rk_fail(&planning->cli->error, RK_ERROR, "plan: out of memory");
    else
        fputs(text.data, planning->cli->out);
    rk_text_free(&text);
    return status;
}

/* Without a plan --json still says what was judged. */
static void print_refusals_json(const struct planning *planning) {
    const struct rk_search_result *result = &planning->result;
    FILE *out = planning->cli->out;
    fprintf(out, "{\n  \"candidates\": %zu,\n  \"feasible\": 0,\n  \"refused\": {", result->count);
    const char *separator = "";
    for (int kind = RK_REFUSAL_NONE + 1; kind < RK_REFUSAL_COUNT; kind++) {
        fprintf(out, "%s\n    \"%s\": %zu", separator, rk_refusal_name((enum rk_refusal)kind), result->refused[kind]);
        separator = ",";
    }
    fprintf(out, "\n  }\n}\n");
}

/* ---- the data base ---- */

static size_t candidate_rows(const struct planning *planning, struct rk_candidate_row *rows) {
    const struct rk_search_result *result = &planning->result;
    size_t taken[RK_REFUSAL_COUNT] = {0}, count = 0;
    for (size_t i = 0; i < result->kept; i++)
        if (taken[result->judgements[i].refusal]++ < STORED_EACH) {
            rk_candidate_row_make(&result->judgements[i], (int64_t)i, i == 0, &rows[count]);
            count++;
        }
    return count;
}

static size_t term_rows(const struct rk_plan *plan, struct rk_term_row *rows) {
    for (size_t i = 0; i < plan->term_count; i++) {
        const struct rk_plan_term *term = &plan->terms[i];
        rows[i] = (struct rk_term_row){.ordinal = (int64_t)i,
                                       .count = term->count,
                                       .seconds = term->seconds,
                                       .relative_uncertainty = term->relative_uncertainty,
                                       .origin = term->origin};
        snprintf(rows[i].term, sizeof rows[i].term, "%s", rk_op_name(term->kind));
        snprintf(rows[i].family, sizeof rows[i].family, "%s", rk_op_family_name(rk_op_family(term->kind)));
        snprintf(rows[i].source, sizeof rows[i].source, "%s", term->source);
    }
    return plan->term_count;
}

static enum rk_status store(struct planning *planning, const char *document, struct rk_error *error) {
    struct rk_candidate_row *candidates = calloc((size_t)STORED_EACH * RK_REFUSAL_COUNT, sizeof *candidates);
    struct rk_term_row *terms = calloc(RK_OP_KIND_COUNT, sizeof *terms);
    struct rk_db_options access = {.access = RK_DB_WRITE, .log = &planning->cli->log};
    struct rk_db *db = NULL;
    enum rk_status status = candidates != NULL && terms != NULL
                                ? rk_db_open(planning->cli->database, &access, &db, error)
                                : rk_fail(error, RK_ERROR, "plan: out of memory");
    if (status == RK_OK) {
        struct rk_plan_row row;
        int64_t known = 0;
        rk_plan_row_make(planning->plan, &row);
        status = rk_plan_find(db, document, &known, error);
        if (status == RK_OK && known == 0)
            status = rk_plan_store(db, &row, document, candidates, candidate_rows(planning, candidates), terms,
                                   term_rows(planning->plan, terms), NULL, error);
    }
    rk_db_close(db);
    free(candidates);
    free(terms);
    return status;
}

/* A plan is worth having without its row: what goes wrong with the data base is a warning. */
static void store_if_there(struct planning *planning, const char *document) {
    struct rk_cli *cli = planning->cli;
    struct rk_error error = {0};
    if (!cli->database_given && access(cli->database, F_OK) != 0)
        return;
    if (store(planning, document, &error) != RK_OK)
        rk_log_write(&cli->log, RK_LOG_WARNING, "the plan is not stored in the data base: %s", error.text);
}

/* ---- the verb ---- */

/* What to do with the plan, or why it cannot be run. */
static void say_how_to_run(const struct planning *planning, const char *out) {
    const struct rk_log *log = &planning->cli->log;
    const struct rk_machine *machine = &planning->pricing.machine;
    long long ranks = (long long)planning->values->gpus;
    struct rk_error reason = {0};
    if (rk_architecture_runnable(&planning->plan->architecture, &reason) != RK_OK)
        rk_log_write(log, RK_LOG_INFO, "plan written to %s, to look at only: %s", out, reason.text);
    else if (!machine->shared_devices && machine->devices_per_host > 0 && ranks > machine->devices_per_host)
        rk_log_write(log, RK_LOG_INFO,
                     "plan written to %s; run it with one process a GPU on every host, by Slurm: srun reckon run %s "
                     "--data TOKENS (examples/launch has more)",
                     out, out);
    else
        rk_log_write(log, RK_LOG_INFO, "plan written to %s; run it with: reckon run %s --nproc %lld --data TOKENS", out,
                     out, ranks);
}

static enum rk_status write_out(struct planning *planning) {
    struct rk_cli *cli = planning->cli;
    const char *out = planning->values->out;
    struct rk_text document = {0};
    enum rk_status status = rk_plan_write(planning->plan, &document, &cli->error);
    if (status == RK_OK && document.failed)
        status = rk_fail(&cli->error, RK_ERROR, "plan: out of memory");
    if (status == RK_OK && out != NULL)
        status = rk_write_file(out, document.data, document.length, &cli->error);
    if (status == RK_OK && cli->json)
        fwrite(document.data, 1, document.length, cli->out);
    else if (status == RK_OK)
        status = print_text(planning);
    if (status == RK_OK)
        store_if_there(planning, document.data);
    fflush(cli->out); /* what goes to the log comes after it */
    if (status == RK_OK && out != NULL)
        say_how_to_run(planning, out);
    rk_text_free(&document);
    return status;
}

/* Nothing fits: the refusals are the answer, and the error names the nearest miss. */
static enum rk_status print_nothing(struct planning *planning, enum rk_status status) {
    struct rk_error reason = planning->cli->error;
    if (planning->result.count > 0 && planning->cli->json)
        print_refusals_json(planning);
    else if (planning->result.count > 0)
        print_text(planning);
    planning->cli->error = reason;
    return status;
}

static enum rk_status choose(struct planning *planning) {
    struct rk_cli *cli = planning->cli;
    double before = rk_clock_seconds();
    enum rk_status status = rk_search(&planning->request, &planning->result, &cli->error);
    planning->search_seconds = rk_clock_seconds() - before;
    if (status != RK_OK)
        return print_nothing(planning, status);
    status = rk_plan_make(&planning->architecture, planning->config, &planning->result.judgements[0].candidate,
                          &planning->pricing.machine, &planning->pricing.costs, &planning->result, &planning->plan,
                          &cli->error);
    if (status != RK_OK)
        return status;
    planning->plan->calibration = planning->pricing.calibration;
    struct rk_error limit = {0};
    if (rk_candidate_check_routing(&planning->architecture, &planning->plan->candidate, &limit) != RK_OK)
        rk_log_write(&cli->log, RK_LOG_WARNING, "this plan cannot be run: %s", limit.text);
    return write_out(planning);
}

enum rk_status rk_cli_plan(struct rk_cli *cli, int argc, char **argv) {
    struct plan_options values = {.hardware = "this", .backend = "auto", .offload = -1};
    struct planning planning = {.cli = cli, .values = &values};
    enum rk_status status = rk_cli_parse(cli, &rk_cli_plan_arguments, argc, argv, &values, NULL);
    if (status == RK_OK)
        status = check_options(cli, &values);
    if (status == RK_OK)
        status = rk_cli_check_outputs((const char *const[]){values.model, values.hardware}, 2, &values.out, 1,
                                      &cli->error);
    if (status == RK_OK)
        status = read_model(&planning);
    if (status == RK_OK)
        status = open_pricing(&planning);
    if (status == RK_OK) {
        fill_request(&planning);
        status = choose(&planning);
    }
    planning_free(&planning);
    return status;
}

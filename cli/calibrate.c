/* reckon calibrate: measures on this machine every op and transfer that a plan will be priced with. */
#include "base/hash.h"
#include "base/json.h"
#include "base/version.h"
#include "calibrate/campaign.h"
#include "calibrate/fitness.h"
#include "cli/cli.h"
#include "cli/pricing.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MODELS_MAX = 8, MICRO_BATCHES_MAX = 16 };

struct calibrate_options {
    bool quick, full, resume, force;
    struct rk_string_list models, micro_batches;
    const char *backend, *precision, *spill, *unfit;
    int64_t ranks, sequence, global_batch, seed, process, processes;
    double deadline;
};

#define OPTION(field) .offset = offsetof(struct calibrate_options, field)
static const struct rk_option options[] = {
    {.name = "quick", .type = RK_OPTION_FLAG, OPTION(quick), .help = "under two minutes: fewer samples, one process"},
    {.name = "full", .type = RK_OPTION_FLAG, OPTION(full), .help = "no time budget; isolated calls too"},
    {.name = "model",
     .letter = 'm',
     .type = RK_OPTION_LIST,
     OPTION(models),
     .value = "FILE",
     .help = "a model whose plans will be priced (repeatable; default: the example for the back end)"},
    {.name = "ranks",
     .letter = 'n',
     .type = RK_OPTION_COUNT,
     OPTION(ranks),
     .value = "N",
     .minimum = 1,
     .maximum = 1024,
     .help = "ranks of the plans, all on this host (default: its GPUs, or 4 on CPUs)"},
    {.name = "seq",
     .type = RK_OPTION_COUNT,
     OPTION(sequence),
     .value = "S",
     .minimum = 1,
     .maximum = 1 << 24,
     .help = "sequence length (default: 128 on CPUs, 4096 on GPUs)"},
    {.name = "global-batch",
     .type = RK_OPTION_COUNT,
     OPTION(global_batch),
     .value = "TOKENS",
     .minimum = 1,
     .maximum = 1e15,
     .help = "tokens per step (default: 32 sequences for each rank)"},
    {.name = "micro-batch",
     .type = RK_OPTION_LIST,
     OPTION(micro_batches),
     .value = "TOKENS",
     .help = "tokens of a micro-batch on one rank (repeatable; default: 1, 2, 4 ... 32 sequences, as `plan` tries)"},
    {.name = "precision",
     .type = RK_OPTION_STRING,
     OPTION(precision),
     .choices = "f32|bf16",
     .help = "of weights and activations (default: f32 on CPUs, bf16 on GPUs)"},
    {.name = "backend",
     .type = RK_OPTION_STRING,
     OPTION(backend),
     .choices = "auto|cpu|cuda",
     .help = "what to measure (default: auto, the GPUs when there are any)"},
    {.name = "resume", .type = RK_OPTION_FLAG, OPTION(resume), .help = "continue the newest unfinished calibration"},
    {.name = "force", .type = RK_OPTION_FLAG, OPTION(force), .help = "measure an unfit machine, and store that it was"},
    {.name = "spill",
     .type = RK_OPTION_STRING,
     OPTION(spill),
     .value = "DIR",
     .help = "where CPU ranks offload to (default: /var/tmp)"},
    {.name = "seed",
     .type = RK_OPTION_COUNT,
     OPTION(seed),
     .value = "N",
     .maximum = 1e15,
     .help = "of the order of cases and of operand values (default: 1)"},
    {.name = "process",
     .type = RK_OPTION_COUNT,
     OPTION(process),
     .value = "N",
     .maximum = 2,
     .help =
         "under a launcher: which fresh set of processes this is; 0 measures all cases, 1 and 2 repeat the anchors"},
    {.name = "processes",
     .type = RK_OPTION_COUNT,
     OPTION(processes),
     .value = "N",
     .minimum = 1,
     .maximum = 3,
     .help = "how many sets of processes there are (default: by mode; 1 under a launcher)"},
    {.name = "unfit",
     .type = RK_OPTION_STRING,
     OPTION(unfit),
     .value = "REASON",
     .help = "under a launcher: store that the machine was unfit, and why; without one this is looked at"},
    {.name = "deadline",
     .type = RK_OPTION_NUMBER,
     OPTION(deadline),
     .value = "SECONDS",
     .minimum = 1,
     .maximum = 86400,
     .help = "of every wait for another rank (default: 60)"},
};

const struct rk_arguments rk_cli_calibrate_arguments = {
    .name = "calibrate",
    .summary = "Measure this machine: every op and transfer that plans are priced with",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .description =
        "Lowers the candidates of the model for the given ranks, sequence and batch, collects the distinct ops of "
        "their\n"
        "programs and times each with the kernels and transports that `run` uses: in random order, with rotated\n"
        "operands, until the 95 % interval of the median is within 1 % or the time of a case is over. Everything is\n"
        "stored with its raw samples as it is measured; an interrupt loses nothing.",
    .examples = "  reckon calibrate --quick\n"
                "  reckon calibrate --model config.json --ranks 8 --seq 4096 --global-batch 4Mi\n"
                "  reckon calibrate --resume",
};

static bool is_gpu(const struct rk_backend *backend) {
    return backend->kind == RK_BACKEND_CUDA;
}

static enum rk_status read_models(struct rk_cli *cli, const struct calibrate_options *values,
                                  const struct rk_backend *backend, struct rk_architecture *models, size_t *count) {
    char path[PATH_MAX];
    if (values->models.count > MODELS_MAX)
        return rk_fail(&cli->error, RK_USAGE, "--model: at most %d models in one calibration", MODELS_MAX);
    if (values->models.count == 0) {
        const char *name = is_gpu(backend) ? "examples/models/olmoe-1b-7b.json" : "examples/models/olmoe-cpu-tiny.json";
        enum rk_status status = rk_cli_data_file(cli, name, path, &cli->error);
        if (status == RK_OK)
            status = rk_architecture_read_file(path, &models[0], NULL, &cli->error);
        *count = 1;
        return status;
    }
    for (size_t i = 0; i < values->models.count; i++) {
        enum rk_status status = rk_architecture_read_file(values->models.items[i], &models[i], NULL, &cli->error);
        if (status == RK_OK)
            status = rk_architecture_runnable(&models[i], &cli->error);
        if (status != RK_OK)
            return status;
    }
    *count = values->models.count;
    return RK_OK;
}

static enum rk_status read_micro_batches(struct rk_cli *cli, const struct calibrate_options *values, int64_t sequence,
                                         int64_t *micro_batches, size_t *count) {
    if (values->micro_batches.count > MICRO_BATCHES_MAX)
        return rk_fail(&cli->error, RK_USAGE, "--micro-batch: at most %d of them", MICRO_BATCHES_MAX);
    for (size_t i = 0; i < values->micro_batches.count; i++) {
        enum rk_status status =
            rk_parse_count("--micro-batch", values->micro_batches.items[i], &micro_batches[i], &cli->error);
        if (status != RK_OK)
            return status;
    }
    *count = values->micro_batches.count;
    for (int size = 0; values->micro_batches.count == 0 && size < RK_MICRO_BATCH_SIZES; size++)
        micro_batches[(*count)++] = sequence << size;
    return RK_OK;
}

static void fill_defaults(struct calibrate_options *values, const struct rk_backend *backend) {
    int gpus = 0;
    if (is_gpu(backend))
        backend->device_count(&gpus, NULL);
    if (values->ranks == 0)
        values->ranks = is_gpu(backend) ? gpus : 4;
    if (values->sequence == 0)
        values->sequence = is_gpu(backend) ? 4096 : 128;
    if (values->global_batch == 0)
        values->global_batch = 32 * values->ranks * values->sequence;
    if (!values->precision)
        values->precision = is_gpu(backend) ? "bf16" : "f32";
}

static enum rk_calibration_mode mode_of(const struct calibrate_options *values) {
    return values->quick ? RK_CALIBRATION_QUICK : values->full ? RK_CALIBRATION_FULL : RK_CALIBRATION_DEFAULT;
}

static void print_summary(struct rk_cli *cli, const struct rk_campaign_summary *summary) {
    if (cli->json) {
        fprintf(cli->out,
                "{\n  \"calibration\": %lld,\n  \"cases\": %zu,\n  \"measured\": %zu,\n  \"skipped\": %zu,\n"
                "  \"wrong\": %zu,\n  \"seconds\": %.3f,\n  \"held_out\": %zu,\n  \"held_out_median_error\": %.5f,\n"
                "  \"held_out_p90_error\": %.5f\n}\n",
                (long long)summary->campaign, summary->cases, summary->measured, summary->skipped, summary->wrong,
                summary->seconds, summary->held_out, summary->held_out_median, summary->held_out_p90);
        return;
    }
    fprintf(cli->out, "calibration %lld: %zu cases measured in %.0f s", (long long)summary->campaign, summary->measured,
            summary->seconds);
    if (summary->skipped > 0)
        fprintf(cli->out, ", %zu not repeated", summary->skipped);
    if (summary->wrong > 0)
        fprintf(cli->out, ", %zu with WRONG RESULTS", summary->wrong);
    fprintf(cli->out, "\n");
    if (summary->held_out > 0)
        fprintf(cli->out,
                "interpolation: %zu held-out shapes predicted from the others, error median %.1f %%, 90th percentile "
                "%.1f %%\n",
                summary->held_out, 100 * summary->held_out_median, 100 * summary->held_out_p90);
}

/* The command as typed, for provenance. */
static void join_command(int argc, char **argv, struct rk_text *text) {
    rk_text_add(text, "reckon");
    for (int i = 0; i < argc; i++)
        rk_text_format(text, " %s", argv[i]);
}

/* One rank of one set of processes. */
static enum rk_status calibrate_rank(struct rk_cli *cli, const struct calibrate_options *values,
                                     const struct rk_place *place, const struct rk_backend *backend,
                                     const char *command) {
    static struct rk_architecture models[MODELS_MAX];
    int64_t micro_batches[MICRO_BATCHES_MAX];
    struct rk_identity identity;
    struct rk_campaign_request request = {.mode = mode_of(values),
                                          .process = (int)values->process,
                                          .last_process = values->process + 1 >= values->processes,
                                          .resume = values->resume,
                                          .forced_unfit = values->unfit != NULL,
                                          .unfit_reason = values->unfit,
                                          .command = command,
                                          .git_revision = rk_revision(),
                                          .database = cli->database,
                                          .spill_folder = values->spill,
                                          .backend = backend,
                                          .transport = is_gpu(backend) ? rk_transport_nccl() : rk_transport_shm(),
                                          .identity = &identity,
                                          .log = &cli->log,
                                          .interrupted = cli->interrupted};
    struct rk_case_request *cases = &request.cases;
    enum rk_status status = rk_identity_read(backend, rk_version(), rk_revision(), &identity, &cli->error);
    if (status == RK_OK)
        status = read_models(cli, values, backend, models, &cases->architecture_count);
    if (status == RK_OK)
        status = read_micro_batches(cli, values, values->sequence, micro_batches, &cases->micro_batch_count);
    if (status != RK_OK)
        return status;
    cases->architectures = models;
    cases->micro_batches = micro_batches;
    struct rk_machine machine;
    rk_identity_machine(&identity, backend, place->world, values->spill, &machine);
    cases->machine = &machine;
    cases->type = strcmp(values->precision, "bf16") == 0 ? RK_BF16 : RK_F32;
    cases->world = place->world;
    cases->alone = rk_calibration_mode_alone(request.mode);
    cases->sequence = values->sequence;
    cases->global_batch_tokens = values->global_batch;
    cases->seed = (uint64_t)values->seed;
    struct rk_peer self = {.local_rank = place->local_rank};
    if (is_gpu(backend) && place->local_rank < (int64_t)identity.machine.gpu_count)
        snprintf(self.device, sizeof self.device, "%.63s", identity.gpus[place->local_rank].uuid);
    uint8_t agreement[32];
    struct rk_sha256 hash;
    rk_sha256_begin(&hash);
    rk_sha256_add(&hash, command, strlen(command));
    rk_sha256_end(&hash, agreement);
    struct rk_job *job = NULL;
    status = rk_launch_meet(place, NULL, agreement, &self, values->deadline, &job, &cli->error);
    if (status != RK_OK)
        return status;
    struct rk_campaign_summary summary;
    status = rk_campaign_run(job, &request, &summary, &cli->error);
    if (status == RK_OK && place->rank == 0 && request.last_process)
        print_summary(cli, &summary);
    rk_job_free(job);
    return status;
}

/* Seconds for which other programs are watched before a calibration. */
static const double watch_seconds = 0.5;

/* An unfit machine is refused, or with --force the reason goes into reason and from there into the data base. */
static enum rk_status check_fitness(struct rk_cli *cli, const struct calibrate_options *values,
                                    struct rk_error *reason) {
    struct rk_machine_facts *facts = calloc(1, sizeof *facts);
    struct rk_fitness *fitness = calloc(1, sizeof *fitness);
    enum rk_status status = facts && fitness
                                ? rk_machine_facts_read(cli->database, values->spill, watch_seconds, facts, &cli->error)
                                : rk_fail(&cli->error, RK_ERROR, "calibrate: out of memory");
    reason->text[0] = '\0';
    if (status == RK_OK) {
        rk_fitness_check(facts, fitness);
        status = rk_fitness_status(fitness, reason);
        if (status != RK_OK && !values->force)
            status = rk_fail(&cli->error, status, "%s; or --force, which is stored with the figures", reason->text);
        else if (status != RK_OK)
            rk_log_write(&cli->log, RK_LOG_WARNING, "%s; measured all the same", reason->text);
    }
    free(fitness);
    free(facts);
    return status == RK_HARDWARE_UNFIT && values->force ? RK_OK : status;
}

/* Starts the sets of processes one after the other, each of `ranks` ranks of this program. */
static enum rk_status start_sets(struct rk_cli *cli, const struct calibrate_options *values, int argc, char **argv,
                                 char *unfit) {
    enum rk_status status = RK_OK;
    for (int64_t process = 0; status == RK_OK && process < values->processes; process++) {
        char number[24], total[24];
        snprintf(number, sizeof number, "%lld", (long long)process);
        snprintf(total, sizeof total, "%lld", (long long)values->processes);
        char **arguments = calloc((size_t)argc + 8, sizeof *arguments);
        if (!arguments)
            return rk_fail(&cli->error, RK_ERROR, "calibrate: out of memory");
        arguments[0] = cli->program;
        memcpy(arguments + 1, argv, (size_t)argc * sizeof *arguments);
        char *added[] = {"--process", number, "--processes", total, "--unfit", unfit};
        size_t used = sizeof added / sizeof *added - (unfit[0] == '\0' ? 2 : 0);
        memcpy(arguments + 1 + argc, added, used * sizeof *added);
        status = rk_launch_local(values->ranks, arguments, &cli->log, 5, &cli->error);
        free(arguments);
    }
    return status;
}

enum rk_status rk_cli_calibrate(struct rk_cli *cli, int argc, char **argv) {
    struct calibrate_options values = {.backend = "auto", .seed = 1, .deadline = 60};
    struct rk_text command = {0};
    join_command(argc, argv, &command);
    char **typed = calloc((size_t)argc + 1, sizeof *typed);
    if (!typed || command.failed)
        return rk_fail(&cli->error, RK_ERROR, "calibrate: out of memory");
    memcpy(typed, argv, (size_t)argc * sizeof *typed);
    const struct rk_backend *backend = NULL;
    struct rk_place place;
    enum rk_status status = rk_cli_parse(cli, &rk_cli_calibrate_arguments, argc, argv, &values, NULL);
    if (status == RK_OK && values.quick && values.full)
        status = rk_fail(&cli->error, RK_USAGE, "--quick and --full exclude each other");
    if (status == RK_OK)
        status = rk_pricing_backend(values.backend, &backend, &cli->error);
    if (status == RK_OK)
        status = rk_launch_discover(-1, 0, NULL, 0, &place, &cli->error);
    if (status == RK_OK) {
        fill_defaults(&values, backend);
        bool alone = place.launcher == RK_LAUNCHER_SINGLE;
        if (values.processes == 0)
            values.processes = alone ? rk_calibration_mode_processes(mode_of(&values)) : 1;
        struct rk_error unfit = {0};
        bool checked_before = values.unfit || values.process > 0 || !alone;
        if (!checked_before)
            status = check_fitness(cli, &values, &unfit);
        if (!checked_before && unfit.text[0] != '\0')
            values.unfit = unfit.text;
        if (status == RK_OK && alone && (values.ranks > 1 || values.processes > 1))
            status = start_sets(cli, &values, argc, typed, unfit.text);
        else if (status == RK_OK)
            status = calibrate_rank(cli, &values, &place, backend, command.data);
    }
    free(typed);
    rk_text_free(&command);
    rk_string_list_free(&values.models);
    rk_string_list_free(&values.micro_batches);
    return status;
}

/* reckon run: trains as a plan says. */
#include "base/hash.h"
#include "base/version.h"
#include "calibrate/identity.h"
#include "cli/run_record.h"
#include "executor/agreement.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST_PLAN = 64 << 20 };
static const double GRACE_SECONDS = 10.0;

struct run_options {
    int64_t nproc, rank, world, port, steps, seed, warmup, decay_steps, checkpoint_every, checkpoint_keep, trace_steps;
    const char *master, *data, *routing, *decay, *checkpoint, *load_weights, *save_weights, *save_final, *dump_losses,
        *dump_gradients, *spill;
    bool synthetic, dropless, resume, poison, no_store;
    double learning_rate, minimum_learning_rate, beta1, beta2, epsilon, clip, init_std, deadline;
    double balance_loss, z_loss, weight_decay; /* NaN: as planned */
};

#define OPTION(field) .offset = offsetof(struct run_options, field)
static const struct rk_option options[] = {
    {.name = "nproc", .letter = 'n', .type = RK_OPTION_COUNT, OPTION(nproc), .value = "N", .minimum = 1,
     .maximum = 4096, .help = "start N local ranks (without it: one rank, or the place that a launcher gave)"},
    {.name = "rank", .type = RK_OPTION_COUNT, OPTION(rank), .value = "R", .maximum = 1 << 24,
     .help = "place of this process, when no launcher says it; with --world, --master and --port"},
    {.name = "world", .type = RK_OPTION_COUNT, OPTION(world), .value = "N", .minimum = 1, .maximum = 1 << 24,
     .help = "number of ranks, when no launcher says it"},
    {.name = "master", .type = RK_OPTION_STRING, OPTION(master), .value = "HOST",
     .help = "host of rank 0, when no launcher says it"},
    {.name = "port", .type = RK_OPTION_COUNT, OPTION(port), .value = "P", .minimum = 1, .maximum = 65535,
     .help = "port of rank 0's exchange, when no launcher says it"},
    {.name = "data", .letter = 'd', .type = RK_OPTION_STRING, OPTION(data), .value = "FILE",
     .help = "token file: raw uint16 or uint32, llm.c or .npy (`reckon tokenize` makes one)"},
    {.name = "synthetic", .type = RK_OPTION_FLAG, OPTION(synthetic), .help = "train on tokens made by a formula"},
    {.name = "steps", .letter = 'k', .type = RK_OPTION_COUNT, OPTION(steps), .value = "K", .minimum = 1,
     .maximum = 1e12, .help = "end when K steps are done, those before a resume included (default 20)"},
    {.name = "seed", .type = RK_OPTION_COUNT, OPTION(seed), .value = "N", .maximum = 9e15,
     .help = "of first weights and synthetic tokens (default 1)"},
    {.name = "lr", .type = RK_OPTION_NUMBER, OPTION(learning_rate), .value = "X", .maximum = 1e6,
     .help = "highest learning rate (default 4e-4)"},
    {.name = "lr-min", .type = RK_OPTION_NUMBER, OPTION(minimum_learning_rate), .value = "X", .maximum = 1e6,
     .help = "learning rate at the end of the decay (default 0)"},
    {.name = "lr-warmup", .type = RK_OPTION_COUNT, OPTION(warmup), .value = "STEPS", .maximum = 1e12,
     .help = "steps of linear rise (default 0)"},
    {.name = "lr-decay", .type = RK_OPTION_STRING, OPTION(decay), .choices = "constant|linear|cosine",
     .help = "shape of the fall from --lr to --lr-min (default constant)"},
    {.name = "lr-decay-steps", .type = RK_OPTION_COUNT, OPTION(decay_steps), .value = "STEPS", .maximum = 1e12,
     .help = "the step at which --lr-min is reached (default: the last step)"},
    {.name = "beta1", .type = RK_OPTION_NUMBER, OPTION(beta1), .value = "X", .maximum = 0.999999,
     .help = "AdamW, first moment (default 0.9)"},
    {.name = "beta2", .type = RK_OPTION_NUMBER, OPTION(beta2), .value = "X", .maximum = 0.999999,
     .help = "AdamW, second moment (default 0.95)"},
    {.name = "eps-adam", .type = RK_OPTION_NUMBER, OPTION(epsilon), .value = "X", .minimum = 1e-30, .maximum = 1,
     .help = "AdamW, added to the root (default 1e-8)"},
    {.name = "clip", .type = RK_OPTION_NUMBER, OPTION(clip), .value = "X", .maximum = 1e9,
     .help = "gradient norm above which gradients are scaled down; 0: never (default 1)"},
    {.name = "weight-decay", .type = RK_OPTION_NUMBER, OPTION(weight_decay), .value = "X", .maximum = 1e3,
     .help = "AdamW, of matrices and not of norms (default: as planned)"},
    {.name = "lb-loss", .type = RK_OPTION_NUMBER, OPTION(balance_loss), .value = "X", .maximum = 1e6,
     .help = "weight of the load-balancing loss (default: as planned)"},
    {.name = "z-loss", .type = RK_OPTION_NUMBER, OPTION(z_loss), .value = "X", .maximum = 1e6,
     .help = "weight of the routers' z loss (default: as planned)"},
    {.name = "init-std", .type = RK_OPTION_NUMBER, OPTION(init_std), .value = "X", .minimum = 1e-9, .maximum = 10,
     .help = "standard deviation of first weights (default 0.02)"},
    {.name = "routing", .type = RK_OPTION_STRING, OPTION(routing), .choices = "learned|random|uniform",
     .help = "who chooses the experts (default: as planned)"},
    {.name = "dropless", .type = RK_OPTION_FLAG, OPTION(dropless),
     .help = "repeat a step that dropped routes, before its update, with larger receive buffers"},
    {.name = "checkpoint", .type = RK_OPTION_STRING, OPTION(checkpoint), .value = "DIR",
     .help = "write a checkpoint there at the end, and when interrupted"},
    {.name = "checkpoint-every", .type = RK_OPTION_COUNT, OPTION(checkpoint_every), .value = "K", .minimum = 1,
     .maximum = 1e12, .help = "and after every K steps"},
    {.name = "checkpoint-keep", .type = RK_OPTION_COUNT, OPTION(checkpoint_keep), .value = "N", .minimum = 1,
     .maximum = 1e6, .help = "remove all but the newest N (default: none is removed)"},
    {.name = "resume", .type = RK_OPTION_FLAG, OPTION(resume),
     .help = "go on from the newest checkpoint in --checkpoint DIR, when there is one"},
    {.name = "load-weights", .type = RK_OPTION_STRING, OPTION(load_weights), .value = "FILE",
     .help = "first weights from a tensors-1 file"},
    {.name = "save-weights", .type = RK_OPTION_STRING, OPTION(save_weights), .value = "FILE",
     .help = "write the weights before the first step"},
    {.name = "save-final", .type = RK_OPTION_STRING, OPTION(save_final), .value = "FILE",
     .help = "write the weights after the last step"},
    {.name = "dump-losses", .type = RK_OPTION_STRING, OPTION(dump_losses), .value = "FILE",
     .help = "a line a step: step, loss, cross-entropy, balance loss, router z loss, gradient norm"},
    {.name = "dump-gradients", .type = RK_OPTION_STRING, OPTION(dump_gradients), .value = "FILE",
     .help = "write the gradients of the last step, before clipping"},
    {.name = "trace-steps", .type = RK_OPTION_COUNT, OPTION(trace_steps), .value = "N", .maximum = 1000,
     .help = "time every op in N steps, at most a third of all; they count in no throughput (default 3)"},
    {.name = "poison", .type = RK_OPTION_FLAG, OPTION(poison),
     .help = "fill buffers with NaN once nothing reads them (default in debug builds)"},
    {.name = "spill", .type = RK_OPTION_STRING, OPTION(spill), .value = "DIR",
     .help = "where CPU ranks offload to (default /var/tmp)"},
    {.name = "no-store", .type = RK_OPTION_FLAG, OPTION(no_store), .help = "keep the run out of the database"},
    {.name = "deadline", .type = RK_OPTION_NUMBER, OPTION(deadline), .value = "SECONDS", .minimum = 0.1,
     .maximum = 86400, .help = "of every wait for another rank or a device (default 60)"},
};

const struct rk_arguments rk_cli_run_arguments = {
    .name = "run",
    .summary = "Train as a plan says, and store what it took",
    .operands = "PLAN.json",
    .minimum_operands = 1,
    .maximum_operands = 1,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .description =
        "Lowers the plan's candidate, allocates the memory that was predicted, and trains. One line a step: loss with\n"
        "auxiliary terms, cross-entropy, gradient norm before clipping, tokens per second, dropped routes, milliseconds,\n"
        "and the hottest rank's routes over the mean. Steps, phases, ops and memory go to the database for `compare`.\n"
        "Start it once with --nproc N, or on every rank by torchrun, mpirun or srun.",
    .examples = "  reckon run plan.json --nproc 4 --data text.u16 --steps 100\n"
                "  reckon run plan.json --nproc 4 --synthetic --checkpoint ckpt --checkpoint-every 50 --resume\n"
                "  srun reckon run plan.json --data tokens.npy --steps 10K --lr 3e-4 --lr-warmup 500 --lr-decay cosine",
};

struct run {
    struct rk_cli *cli;
    const struct run_options *values;
    const char *path;              /* of the plan */
    const char *command;
    char *document;                /* text of the plan; owned */
    size_t length;
    struct rk_plan *plan;          /* owned */
    struct rk_place place;
    const struct rk_backend *backend;
};

static enum rk_status check_options(const struct run_options *values, struct rk_error *error) {
    if (values->synthetic && values->data != NULL)
        return rk_fail(error, RK_USAGE, "--synthetic and --data exclude each other");
    if (!values->synthetic && values->data == NULL)
        return rk_fail(error, RK_USAGE, "run: what to train on? Give --data FILE (a token file) or --synthetic");
    if (values->minimum_learning_rate > values->learning_rate)
        return rk_fail(error, RK_USAGE, "--lr-min: %g is above --lr %g", values->minimum_learning_rate,
                       values->learning_rate);
    const struct rk_training_options training = {.checkpoint = values->checkpoint,
                                                 .checkpoint_every = values->checkpoint_every,
                                                 .resume = values->resume,
                                                 .load_weights = values->load_weights};
    return rk_training_check_options(&training, error);
}

static enum rk_status check_files(const struct run *run, struct rk_error *error) {
    const struct run_options *values = run->values;
    const char *const inputs[] = {run->path, values->data, values->load_weights, run->cli->database};
    const char *const outputs[] = {values->save_weights, values->save_final, values->dump_losses,
                                   values->dump_gradients};
    return rk_cli_check_outputs(inputs, sizeof inputs / sizeof *inputs, outputs, sizeof outputs / sizeof *outputs,
                                error);
}

/* The plan's model must have a forward, and its back end must be in this program. */
static enum rk_status check_runnable(struct run *run, struct rk_error *error) {
    enum rk_status status = rk_architecture_runnable(&run->plan->architecture, error);
    if (status == RK_OK)
        status = rk_candidate_check_routing(&run->plan->architecture, &run->plan->candidate, error);
    if (status != RK_OK)
        return status;
    run->backend = rk_backend_of(run->plan->candidate.backend);
    if (run->backend == NULL)
        return rk_fail(error, RK_HARDWARE_UNFIT,
                       "%s: is for GPUs, and this program was built without CUDA; build it where nvcc is found, or plan "
                       "for CPUs",
                       run->path);
    if (run->backend->kind == RK_BACKEND_CUDA && rk_transport_nccl() == NULL)
        return rk_fail(error, RK_HARDWARE_UNFIT,
                       "%s: is for GPUs, and this program was built without NCCL; build it where nccl.h and libnccl are",
                       run->path);
    return RK_OK;
}

/* What a run may change of a plan without changing its time or memory. */
static void override_candidate(const struct run_options *values, struct rk_candidate *candidate) {
    if (values->routing != NULL)
        candidate->routing = rk_routing_from_name(values->routing);
    if (!isnan(values->balance_loss))
        candidate->balance_coefficient = values->balance_loss;
    if (!isnan(values->z_loss))
        candidate->z_coefficient = values->z_loss;
    if (!isnan(values->weight_decay))
        candidate->weight_decay = values->weight_decay;
}

static enum rk_status read_plan(struct run *run, struct rk_error *error) {
    enum rk_status status = rk_read_file(run->path, LARGEST_PLAN, &run->document, &run->length, error);
    if (status == RK_OK)
        status = rk_plan_read(run->path, run->document, run->length, &run->plan, error);
    if (status == RK_OK)
        status = check_runnable(run, error);
    if (status == RK_OK)
        override_candidate(run->values, &run->plan->candidate);
    return status;
}

static enum rk_status check_world(const struct run *run, int64_t ranks, struct rk_error *error) {
    const struct rk_candidate *candidate = &run->plan->candidate;
    int64_t world = rk_candidate_world(candidate);
    if (world == ranks)
        return RK_OK;
    return rk_fail(error, RK_USAGE,
                   "%s: is a plan for %lld ranks (PP %d x D %d), and there %s %lld; start it with `reckon run %s "
                   "--nproc %lld ...` on one host, or with torchrun, mpirun or srun and %lld ranks",
                   run->path, (long long)world, candidate->pipeline, candidate->data_parallel,
                   ranks == 1 ? "is" : "are", (long long)ranks, run->path, (long long)world, (long long)world);
}

static void training_options(const struct run *run, struct rk_training_options *training) {
    const struct run_options *values = run->values;
    const struct rk_plan *plan = run->plan;
    *training = (struct rk_training_options){
        .steps = values->steps,
        .data = values->data,
        .seed = (uint64_t)values->seed,
        .standard_deviation = values->init_std,
        .optimizer = {.learning_rate = values->learning_rate,
                      .minimum_learning_rate = values->minimum_learning_rate,
                      .warmup_steps = values->warmup,
                      .decay_steps = values->decay_steps > 0 ? values->decay_steps : values->steps,
                      .decay = rk_decay_from_name(values->decay),
                      .beta1 = values->beta1,
                      .beta2 = values->beta2,
                      .epsilon = values->epsilon,
                      .clip_norm = values->clip},
        .trace_steps = values->trace_steps,
        .dropless = values->dropless,
        .checkpoint = values->checkpoint,
        .checkpoint_every = values->checkpoint_every,
        .checkpoint_keep = values->checkpoint_keep,
        .resume = values->resume,
        .load_weights = values->load_weights,
        .save_weights = values->save_weights,
        .save_final = values->save_final,
        .dump_gradients = values->dump_gradients,
        .interrupted = run->cli->interrupted,
        .log = &run->cli->log,
        .predicted_arena_bytes = plan->arena_bytes,
        .predicted_host_bytes = plan->host_bytes,
        .trainer = {.backend = run->backend,
                    .transport = run->backend->kind == RK_BACKEND_CUDA ? rk_transport_nccl() : rk_transport_shm(),
                    .device = run->backend->kind == RK_BACKEND_CUDA ? (int)run->place.local_rank : 0,
                    .spill_folder = values->spill,
                    .deadline_seconds = values->deadline,
                    .poison = values->poison || rk_trainer_default_poison()},
    };
}

/* Rank 0 opens the record; all ranks learn whether it could. */
static enum rk_status open_record(struct run *run, struct rk_job *job, struct rk_run_record *record,
                                  const struct rk_identity *identity, struct rk_error *error) {
    const struct run_options *values = run->values;
    struct rk_run_origin origin = {
        .document = run->document,
        .command = run->command,
        .data = values->data != NULL ? values->data : "synthetic",
        .routing = rk_routing_name(run->plan->candidate.routing),
        .seed = values->seed,
        .machine = &identity->machine,
        .lock_seconds = values->deadline / 3,
    };
    enum rk_status status = RK_OK;
    if (job->place.rank == 0)
        status = rk_run_record_open(record, run->cli, run->plan, &origin, !values->no_store, values->dump_losses, error);
    return rk_job_agree(job, status, error);
}

static enum rk_status train(struct run *run, struct rk_job *job, const struct rk_identity *identity,
                            struct rk_error *error) {
    struct rk_training_options training;
    struct rk_training_report report = {0};
    struct rk_run_record record = {0};
    struct rk_training_observer observer = {rk_run_record_step, &record};
    struct rk_error reporting;
    training_options(run, &training);
    enum rk_status status = open_record(run, job, &record, identity, error);
    if (status == RK_OK)
        status = rk_training_run(job, &run->plan->architecture, &run->plan->candidate, &training, &observer, &report,
                                 error);
    if (status == RK_OK || (status == RK_INTERRUPTED && report.ranks != NULL)) {
        enum rk_status reported = rk_run_record_report(&record, &report, status == RK_OK ? error : &reporting);
        status = status == RK_OK ? reported : status;
    }
    rk_training_report_free(&report);
    return rk_run_record_close(&record, status, error);
}

/* The options that ranks may give differently: where a rank is, what only rank 0 writes, and a folder of the rank's
 * host. */
static bool own_option(size_t offset) {
    static const size_t own[] = {
        offsetof(struct run_options, nproc),       offsetof(struct run_options, rank),
        offsetof(struct run_options, world),       offsetof(struct run_options, master),
        offsetof(struct run_options, port),        offsetof(struct run_options, spill),
        offsetof(struct run_options, dump_losses), offsetof(struct run_options, no_store),
    };
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (own[i] == offset)
            return true;
    return false;
}

/* Adds an option's value. The bytes of a number are its own: those not given hold the same NaN everywhere. */
static void add_option(struct rk_sha256 *hash, const struct rk_option *option, const void *value) {
    if (option->type == RK_OPTION_FLAG)
        rk_sha256_add(hash, value, sizeof(bool));
    else if (option->type == RK_OPTION_NUMBER)
        rk_sha256_add(hash, value, sizeof(double));
    else if (option->type != RK_OPTION_STRING)
        rk_sha256_add(hash, value, sizeof(int64_t));
    else {
        /* What is not given differs from every text, and the end of a text belongs to it. */
        const char *text = *(const char *const *)value;
        rk_sha256_add(hash, text == NULL ? "-" : "+", 1);
        if (text != NULL)
            rk_sha256_add(hash, text, strlen(text) + 1);
    }
}

/* What all ranks must agree on: the plan, and every option that is not a rank's own. Option by option, since the
 * padding of a struct may differ. */
static void agreement_of(const struct run *run, uint8_t digest[32]) {
    struct rk_sha256 hash;
    rk_sha256_begin(&hash);
    rk_sha256_add(&hash, run->document, run->length);
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (!own_option(options[i].offset))
            add_option(&hash, &options[i], (const char *)run->values + options[i].offset);
    rk_sha256_end(&hash, digest);
}

static enum rk_status run_rank(struct run *run, struct rk_error *error) {
    struct rk_identity identity;
    uint8_t digest[32];
    struct rk_job *job = NULL;
    struct rk_peer self = {.local_rank = run->place.local_rank};
    enum rk_status status = check_world(run, run->place.world, error);
    if (status == RK_OK)
        status = rk_identity_read(run->backend, rk_version(), rk_revision(), &identity, error);
    if (status != RK_OK)
        return status;
    if (run->backend->kind == RK_BACKEND_CUDA && run->place.local_rank < (int64_t)identity.machine.gpu_count)
        snprintf(self.device, sizeof self.device, "%.63s", identity.gpus[run->place.local_rank].uuid);
    agreement_of(run, digest);
    status = rk_launch_meet(&run->place, NULL, digest, &self, run->values->deadline, &job, error);
    if (status != RK_OK)
        return status;
    if (run->cli->log.rank < 0 && run->place.rank > 0)
        run->cli->log.rank = (int)run->place.rank;
    status = train(run, job, &identity, error);
    rk_job_free(job);
    return status;
}

static enum rk_status start_ranks(struct run *run, int argc, char *const *typed, struct rk_error *error) {
    enum rk_status status = check_world(run, run->values->nproc, error);
    if (status != RK_OK)
        return status;
    char **arguments = calloc((size_t)argc + 2, sizeof *arguments);
    if (arguments == NULL)
        return rk_fail(error, RK_ERROR, "run: out of memory");
    arguments[0] = run->cli->program;
    memcpy(arguments + 1, typed, (size_t)argc * sizeof *arguments);
    status = rk_launch_local(run->values->nproc, arguments, &run->cli->log, GRACE_SECONDS, error);
    free(arguments);
    return status;
}

static enum rk_status run_plan(struct run *run, int argc, char *const *typed) {
    const struct run_options *values = run->values;
    struct rk_error *error = &run->cli->error;
    enum rk_status status = check_options(values, error);
    if (status == RK_OK)
        status = check_files(run, error);
    if (status == RK_OK)
        status = rk_launch_discover(values->rank, values->world, values->master, (int32_t)values->port, &run->place,
                                    error);
    if (status == RK_OK)
        status = read_plan(run, error);
    if (status != RK_OK)
        return status;
    /* The ranks that --nproc starts see the same flags, and their place in the launcher's variables. */
    bool launched = run->place.launcher != RK_LAUNCHER_SINGLE;
    if (launched && values->nproc > 0 && values->nproc != run->place.world)
        return rk_fail(error, RK_USAGE, "--nproc %lld: but %s started %lld ranks; leave --nproc out",
                       (long long)values->nproc, rk_launcher_name(run->place.launcher), (long long)run->place.world);
    return !launched && values->nproc > 1 ? start_ranks(run, argc, typed, error) : run_rank(run, error);
}

enum rk_status rk_cli_run(struct rk_cli *cli, int argc, char **argv) {
    struct rk_optimizer_options defaults = rk_optimizer_defaults();
    struct run_options values = {
        .rank = -1,
        .steps = 20,
        .seed = 1,
        .learning_rate = defaults.learning_rate,
        .beta1 = defaults.beta1,
        .beta2 = defaults.beta2,
        .epsilon = defaults.epsilon,
        .clip = defaults.clip_norm,
        .decay = "constant",
        .init_std = 0.02,
        .trace_steps = 3,
        .deadline = 60,
        .balance_loss = NAN,
        .z_loss = NAN,
        .weight_decay = NAN,
    };
    struct rk_string_list operands = {0};
    struct rk_text command = {0};
    struct run run = {.cli = cli, .values = &values};
    enum rk_status status = RK_OK;
    char **typed = calloc((size_t)argc + 1, sizeof *typed);
    rk_text_add(&command, "reckon");
    for (int i = 0; i < argc; i++)
        rk_text_format(&command, " %s", argv[i]);
    if (typed == NULL || command.failed) {
        status = rk_fail(&cli->error, RK_ERROR, "run: out of memory");
        goto free_command;
    }
    memcpy(typed, argv, (size_t)argc * sizeof *typed);
    status = rk_cli_parse(cli, &rk_cli_run_arguments, argc, argv, &values, &operands);
    if (status == RK_OK) {
        run.path = operands.items[0];
        run.command = command.data;
        status = run_plan(&run, argc, typed);
    }
    rk_plan_free(run.plan);
    free(run.document);
    rk_string_list_free(&operands);
free_command:
    free(typed);
    rk_text_free(&command);
    return status;
}

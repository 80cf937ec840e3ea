/* The program: the table of verbs, the options that all share, signals, and the exit code. */
#include "base/version.h"
#include "cli/blas_kernels.h"
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <gsl/gsl_errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum rk_status verb_function(struct rk_cli *cli, int argc, char **argv);

#define RK_VERB(verb) &rk_cli_##verb##_arguments,
const struct rk_arguments *const rk_cli_verbs[] = {
#include "cli/verbs.inc"
};
#undef RK_VERB
#define RK_VERB(verb) rk_cli_##verb,
static verb_function *const functions[] = {
#include "cli/verbs.inc"
};
#undef RK_VERB
const size_t rk_cli_verb_count = sizeof rk_cli_verbs / sizeof rk_cli_verbs[0];

struct common_options {
    bool help, json, quiet, verbose;
    const char *database;
};

static const struct rk_option common_table[] = {
    {.name = "db",
     .type = RK_OPTION_STRING,
     .offset = offsetof(struct common_options, database),
     .value = "FILE",
     .help = "the database of measurements, plans and runs (default reckon/reckon.db in $XDG_DATA_HOME or "
             "~/.local/share)"},
    {.name = "json",
     .type = RK_OPTION_FLAG,
     .offset = offsetof(struct common_options, json),
     .help = "write the data as JSON"},
    {.name = "quiet",
     .letter = 'q',
     .type = RK_OPTION_FLAG,
     .offset = offsetof(struct common_options, quiet),
     .help = "write only warnings and errors to standard error"},
    {.name = "verbose",
     .letter = 'v',
     .type = RK_OPTION_FLAG,
     .offset = offsetof(struct common_options, verbose),
     .help = "write more to standard error"},
    {.name = "help",
     .letter = 'h',
     .type = RK_OPTION_FLAG,
     .offset = offsetof(struct common_options, help),
     .help = "explain this verb"},
};

const struct rk_arguments rk_cli_common_arguments = {
    .name = "reckon",
    .options = common_table,
    .option_count = sizeof common_table / sizeof common_table[0],
};

static volatile sig_atomic_t interrupted;

static void note_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

/* SIGPIPE is ignored: a peer or a reader that went away must be an error of the write, seen where it happened. The
 * handler of an interrupt acts once: the second Ctrl-C ends a process that hangs. */
static void set_signals(void) {
    struct sigaction action = {.sa_handler = note_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* A terminal that went away ends a run as Ctrl-C does, with its checkpoint; under nohup it stays ignored. */
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* A closed standard descriptor would be given to the next file opened, and messages would then be written into a
 * database. The read-only /dev/null in its place makes writing to it fail. */
static void hold_standard_descriptors(void) {
    for (int descriptor = 0; descriptor <= 2; descriptor++)
        if (fcntl(descriptor, F_GETFD) == -1 && open("/dev/null", O_RDONLY) != descriptor)
            return;
}

static enum rk_status set_database(struct rk_cli *cli, const char *given) {
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    int length;
    if (given != NULL && given[0] == '\0')
        return rk_fail(&cli->error, RK_USAGE, "--db: the file name is empty");
    cli->database_given = given != NULL;
    if (given != NULL)
        length = snprintf(cli->database, sizeof cli->database, "%s", given);
    else if (data != NULL && data[0] == '/') /* relative ones are to be ignored, says the XDG specification */
        length = snprintf(cli->database, sizeof cli->database, "%s/reckon/reckon.db", data);
    else if (home != NULL && home[0] != '\0')
        length = snprintf(cli->database, sizeof cli->database, "%s/.local/share/reckon/reckon.db", home);
    else
        length = snprintf(cli->database, sizeof cli->database, "reckon.db");
    if (length < 0 || (size_t)length >= sizeof cli->database)
        return rk_fail(&cli->error, RK_USAGE, "--db: the file name is too long");
    return RK_OK;
}

enum rk_status rk_cli_parse(struct rk_cli *cli, const struct rk_arguments *verb, int argc, char **argv, void *values,
                            struct rk_string_list *operands) {
    return rk_arguments_parse(verb, values, &rk_cli_common_arguments, NULL, argc, argv, operands, &cli->error);
}

static enum rk_status run_verb(struct rk_cli *cli, size_t index, int argc, char **argv) {
    const struct rk_arguments *verb = rk_cli_verbs[index];
    struct common_options common = {0};
    struct rk_string_list operands = {0};
    enum rk_status status =
        rk_arguments_parse(verb, NULL, &rk_cli_common_arguments, &common, argc, argv, &operands, &cli->error);
    if (status == RK_OK && common.help) {
        struct rk_text text = {0};
        rk_arguments_help("reckon", verb, &rk_cli_common_arguments, &text);
        if (text.data != NULL)
            fputs(text.data, cli->out);
        rk_text_free(&text);
        goto free_operands;
    }
    if (status == RK_OK)
        status = rk_arguments_check_operands(verb, &operands, &cli->error);
    if (status == RK_OK)
        status = set_database(cli, common.database);
    if (status != RK_OK)
        goto free_operands;
    cli->json = common.json;
    cli->log.level = common.quiet ? RK_LOG_WARNING : common.verbose ? RK_LOG_DEBUG : RK_LOG_INFO;
    status = functions[index](cli, argc, argv);
free_operands:
    rk_string_list_free(&operands);
    return status;
}

static enum rk_status choose_verb(struct rk_cli *cli, int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "help";
    if (strcmp(name, "--version") == 0) {
        fprintf(cli->out, "reckon %s (%s; %s)\n", rk_version(), rk_revision(), rk_build());
        return RK_OK;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    const char *names[sizeof rk_cli_verbs / sizeof rk_cli_verbs[0]];
    for (size_t i = 0; i < rk_cli_verb_count; i++) {
        names[i] = rk_cli_verbs[i]->name;
        if (strcmp(name, names[i]) != 0)
            continue;
        char help[] = "help";
        char *only_help[] = {help, NULL};
        bool spelled = argc > 1 && strcmp(argv[1], name) == 0;
        enum rk_status status = spelled ? run_verb(cli, i, argc - 1, argv + 1) : run_verb(cli, i, 1, only_help);
        /* No verb at all is a mistake, but the overview is what helps. */
        return status == RK_OK && argc < 2 ? RK_USAGE : status;
    }
    const char *nearest = rk_nearest_name(name, names, rk_cli_verb_count);
    if (nearest != NULL)
        return rk_fail(&cli->error, RK_USAGE, "'%.80s' is not a verb; did you mean '%s'?", name, nearest);
    return rk_fail(&cli->error, RK_USAGE, "'%.80s' is not a verb; `reckon help` lists them", name);
}

/* Data that did not reach its place is a failure like any other: a full disk must not end in exit code 0. A reader
 * that closed the pipe (`reckon db list | head`) wanted no more: end as programs do that do not ignore SIGPIPE. */
static enum rk_status finish_output(struct rk_cli *cli, enum rk_status status) {
    errno = 0;
    bool failed = fflush(cli->out) != 0;
    int reason = errno;
    failed = failed || ferror(cli->out);
    if (!failed)
        failed = close(STDOUT_FILENO) != 0 && (reason = errno) != EINTR;
    if (!failed)
        return status;
    /* The reason of an earlier failure is lost, but a pipe without a reader still shows it. */
    struct pollfd pipe = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (reason == EPIPE || (reason == 0 && poll(&pipe, 1, 0) == 1 && (pipe.revents & POLLERR) != 0)) {
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    if (status != RK_OK)
        return status;
    return rk_fail(&cli->error, RK_ERROR, "standard output: cannot write: %s; the output is not complete",
                   reason != 0 ? strerror(reason) : "an earlier write failed");
}

int main(int argc, char **argv) {
    rk_cli_choose_blas_kernels(argv);
    hold_standard_descriptors();
    set_signals();
    /* GSL's default is to abort; its results are checked here. */
    gsl_set_error_handler_off();

    double progress_seconds = 0;
    const char *no_colour = getenv("NO_COLOR");
    struct rk_cli cli = {
        .log = {.stream = stderr,
                .level = RK_LOG_INFO,
                .terminal = isatty(STDERR_FILENO) == 1,
                .rank = -1,
                .progress_seconds = &progress_seconds},
        .out = stdout,
        .colour = isatty(STDOUT_FILENO) == 1 && (no_colour == NULL || no_colour[0] == '\0'),
        .interrupted = &interrupted,
    };
    ssize_t length = readlink("/proc/self/exe", cli.program, sizeof cli.program - 1);
    if (length <= 0)
        snprintf(cli.program, sizeof cli.program, "%s", argc > 0 ? argv[0] : "reckon");

    enum rk_status status = choose_verb(&cli, argc, argv);
    status = finish_output(&cli, status);
    if (status != RK_OK && cli.error.text[0] != '\0')
        rk_log_write(&cli.log, RK_LOG_ERROR, "%s", cli.error.text);
    return (int)status;
}

/* What every verb is given, and what it must offer.
 *
 * A verb is one file cli/<verb>.c that defines its table rk_cli_<verb>_arguments and the function rk_cli_<verb>, and
 * one line rk_verb(<verb> ...) in cli/CMakeLists.txt. The function parses with rk_cli_parse, writes data to cli->out
 * and messages to cli->log, and on failure writes cli->error and returns its status, which is the exit code. --help,
 * --json,
 * --db, unknown options and the number of operands were dealt with before it is called. */
#ifndef RK_CLI_CLI_H
#define RK_CLI_CLI_H

#include "base/arguments.h"
#include "base/log.h"
#include "base/status.h"

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

struct rk_cli {
    struct rk_log log;       /* standard error; --quiet leaves warnings and errors, --verbose adds debug */
    FILE *out;               /* standard output: data only */
    bool json;               /* --json: data as one JSON value */
    bool colour;             /* out is a terminal and NO_COLOR is not set */
    char program[PATH_MAX];  /* this binary, to start ranks with */
    char database[PATH_MAX]; /* --db, else $XDG_DATA_HOME/reckon/reckon.db, else ~/.local/share/reckon/reckon.db */
    bool database_given;     /* by --db */
    const volatile sig_atomic_t *interrupted; /* not 0 after SIGINT, SIGTERM or SIGHUP: finish, keep what is done, and return
                                                 RK_INTERRUPTED; a second signal ends the process at once */
    struct rk_error error;
};

/* Fills values by the verb's table. operands may be NULL; free with rk_string_list_free. */
enum rk_status rk_cli_parse(struct rk_cli *cli, const struct rk_arguments *verb, int argc, char **argv, void *values,
                            struct rk_string_list *operands);

/* RK_USAGE when a file that is to be written is one that is read: writing would lose it. NULL entries are not given. */
enum rk_status rk_cli_check_outputs(const char *const *inputs, size_t input_count, const char *const *outputs,
                                    size_t output_count, struct rk_error *error);

/* Finds a file that comes with reckon ("hardware/b300.json"): in $RECKON_DATA, beside or above the binary, in
 * ../share/reckon. Writes its path, or fails with RK_USAGE and the places that were tried. */
enum rk_status rk_cli_data_file(const struct rk_cli *cli, const char *name, char path[PATH_MAX],
                                struct rk_error *error);

/* The verbs of this build, in the order of help. */
#define RK_VERB(verb)                                                                                                  \
    extern const struct rk_arguments rk_cli_##verb##_arguments;                                                        \
    enum rk_status rk_cli_##verb(struct rk_cli *cli, int argc, char **argv);
#include "cli/verbs.inc"
#undef RK_VERB

/* The table of verbs and the common options, for help. */
extern const struct rk_arguments *const rk_cli_verbs[];
extern const size_t rk_cli_verb_count;
extern const struct rk_arguments rk_cli_common_arguments;

#endif

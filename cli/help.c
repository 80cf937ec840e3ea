/* reckon help: the verbs, one verb, the completion script and the manual page. */
#include "base/version.h"
#include "cli/cli.h"

#include <string.h>

struct help_options {
    const char *completion;
    bool manual;
};

static const struct rk_option options[] = {
    {.name = "completion",
     .type = RK_OPTION_STRING,
     .offset = offsetof(struct help_options, completion),
     .choices = "bash",
     .help = "print a completion script: source <(reckon help --completion bash)"},
    {.name = "manual",
     .type = RK_OPTION_FLAG,
     .offset = offsetof(struct help_options, manual),
     .help = "print the manual page: reckon help --manual | man -l -"},
};

const struct rk_arguments rk_cli_help_arguments = {
    .name = "help",
    .summary = "Explain reckon or one verb",
    .operands = "[VERB]",
    .maximum_operands = 1,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = "  reckon help\n  reckon help plan\n  reckon help --manual | man -l -",
};

static const char summary[] = "measure a machine, plan Mixture-of-Experts training on it, run the plan, compare";

static void add_overview(struct rk_text *text) {
    rk_text_format(text, "reckon: %s\n\nUsage: reckon VERB [options]\n\nVerbs:\n", summary);
    for (size_t i = 0; i < rk_cli_verb_count; i++)
        rk_text_format(text, "  %-12s%s\n", rk_cli_verbs[i]->name, rk_cli_verbs[i]->summary);
    rk_text_add(
        text,
        "\n`reckon VERB --help` explains a verb and its options; `reckon --version` names this build.\n"
        "Exit codes: 0 ok, 1 error, 2 usage, 3 nothing feasible, 4 calibration missing or stale,\n"
        "  5 outside tolerance, 6 hardware unfit, 7 a rank failed, 8 database locked or corrupt, 130 interrupted.\n");
}

static const struct rk_arguments *find_verb(const char *name) {
    for (size_t i = 0; i < rk_cli_verb_count; i++)
        if (strcmp(rk_cli_verbs[i]->name, name) == 0)
            return rk_cli_verbs[i];
    return NULL;
}

enum rk_status rk_cli_help(struct rk_cli *cli, int argc, char **argv) {
    struct help_options values = {0};
    struct rk_string_list operands = {0};
    struct rk_text text = {0};
    enum rk_status status = rk_cli_parse(cli, &rk_cli_help_arguments, argc, argv, &values, &operands);
    if (status != RK_OK)
        goto free_operands;
    if (values.completion != NULL)
        rk_arguments_completion("reckon", rk_cli_verbs, rk_cli_verb_count, &rk_cli_common_arguments, &text);
    else if (values.manual)
        rk_arguments_manual("reckon", rk_version(), summary, rk_cli_verbs, rk_cli_verb_count, &rk_cli_common_arguments,
                            &text);
    else if (operands.count == 0)
        add_overview(&text);
    else {
        const struct rk_arguments *verb = find_verb(operands.items[0]);
        if (verb == NULL) {
            status =
                rk_fail(&cli->error, RK_USAGE, "'%.80s' is not a verb; `reckon help` lists them", operands.items[0]);
            goto free_operands;
        }
        rk_arguments_help("reckon", verb, &rk_cli_common_arguments, &text);
    }
    if (text.failed)
        status = rk_fail(&cli->error, RK_ERROR, "help: not enough memory");
    else
        fputs(text.data, cli->out);
    rk_text_free(&text);
free_operands:
    rk_string_list_free(&operands);
    return status;
}

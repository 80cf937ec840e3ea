/* The texts made from the tables of options: --help, the completion script and the manual page. */
#include "base/arguments.h"

#include <stdio.h>
#include <string.h>

enum { HELP_COLUMN = 30, HELP_WIDTH = 100 };

/* Words of string from column `indent` on, broken before HELP_WIDTH. The cursor stands at `column`. */
static void add_wrapped(struct rk_text *text, const char *string, size_t column, size_t indent) {
    while (*string != '\0') {
        size_t word = strcspn(string, " ");
        if (column + word + 1 > HELP_WIDTH && column > indent) {
            rk_text_format(text, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            rk_text_add(text, " ");
            column++;
        }
        rk_text_add_bytes(text, string, word);
        column += word;
        string += word + strspn(string + word, " ");
    }
    rk_text_add(text, "\n");
}

static void add_option_help(const struct rk_option *option, struct rk_text *text) {
    char left[120];
    int used = option->letter != 0 ? snprintf(left, sizeof left, "  -%c, ", option->letter)
                                   : snprintf(left, sizeof left, "      ");
    const char *value = option->choices != NULL ? option->choices : option->value;
    snprintf(left + used, sizeof left - (size_t)used, "--%s%s%s", option->name,
             option->type == RK_OPTION_FLAG ? "" : " ",
             option->type == RK_OPTION_FLAG ? ""
             : value != NULL                ? value
                                            : "VALUE");
    rk_text_add(text, left);
    size_t column = strlen(left);
    if (column + 2 > HELP_COLUMN)
        rk_text_format(text, "\n%*s", HELP_COLUMN, "");
    else
        rk_text_format(text, "%*s", (int)(HELP_COLUMN - column), "");
    add_wrapped(text, option->help, HELP_COLUMN, HELP_COLUMN);
}

void rk_arguments_help(const char *program, const struct rk_arguments *verb, const struct rk_arguments *common,
                       struct rk_text *text) {
    rk_text_format(text, "Usage: %s %s [options]%s%s\n\n", program, verb->name, verb->operands != NULL ? " " : "",
                   verb->operands != NULL ? verb->operands : "");
    add_wrapped(text, verb->summary, 0, 0);
    if (verb->description != NULL)
        rk_text_format(text, "\n%s\n", verb->description);
    if (verb->option_count > 0) {
        rk_text_add(text, "\nOptions:\n");
        for (size_t i = 0; i < verb->option_count; i++)
            add_option_help(&verb->options[i], text);
    }
    rk_text_add(text, "\nCommon options:\n");
    for (size_t i = 0; i < common->option_count; i++)
        add_option_help(&common->options[i], text);
    if (verb->examples != NULL)
        rk_text_format(text, "\nExamples:\n%s\n", verb->examples);
}

static void add_option_words(const struct rk_arguments *table, struct rk_text *text) {
    for (size_t i = 0; i < table->option_count; i++)
        rk_text_format(text, " --%s", table->options[i].name);
}

/* One branch for each option with choices: "verb --name". */
static void add_choice_cases(const struct rk_arguments *table, const char *verb, struct rk_text *text) {
    for (size_t i = 0; i < table->option_count; i++) {
        const struct rk_option *option = &table->options[i];
        if (option->choices == NULL)
            continue;
        rk_text_format(text, "    '%s --%s') words='", verb, option->name);
        for (const char *at = option->choices; *at != '\0'; at++)
            rk_text_add_bytes(text, *at == '|' ? " " : at, 1);
        rk_text_add(text, "' ;;\n");
    }
}

void rk_arguments_completion(const char *program, const struct rk_arguments *const *verbs, size_t verb_count,
                             const struct rk_arguments *common, struct rk_text *text) {
    rk_text_format(text,
                   "# Completion of %s for bash: source <(%s help --completion bash)\n"
                   "_%s() {\n"
                   "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
                   "    local verb=${COMP_WORDS[1]} words=''\n"
                   "    COMPREPLY=()\n"
                   "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                   "        mapfile -t COMPREPLY < <(compgen -W '",
                   program, program, program);
    for (size_t i = 0; i < verb_count; i++)
        rk_text_format(text, "%s ", verbs[i]->name);
    rk_text_add(text, "--help --version' -- \"$current\")\n        return\n    fi\n    case \"$verb $previous\" in\n");
    for (size_t i = 0; i < verb_count; i++)
        add_choice_cases(verbs[i], verbs[i]->name, text);
    rk_text_add(text, "    *)\n        if [[ $current == -* ]]; then\n            case $verb in\n");
    for (size_t i = 0; i < verb_count; i++) {
        rk_text_format(text, "            %s) words='", verbs[i]->name);
        add_option_words(verbs[i], text);
        add_option_words(common, text);
        rk_text_add(text, "' ;;\n");
    }
    rk_text_format(text,
                   "            esac\n"
                   "        fi\n"
                   "        ;;\n"
                   "    esac\n"
                   "    if [ -n \"$words\" ]; then\n"
                   "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
                   "    else\n"
                   "        mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
                   "    fi\n"
                   "}\n"
                   "complete -o filenames -F _%s %s\n",
                   program, program);
}

/* Roff reads a backslash as an escape, and a full stop or apostrophe at the start of a line as a request. */
static void add_roff(struct rk_text *text, const char *string) {
    bool line_start = true;
    for (const char *at = string; *at != '\0'; at++) {
        if (line_start && (*at == '.' || *at == '\''))
            rk_text_add(text, "\\&");
        if (*at == '\\')
            rk_text_add(text, "\\e");
        else if (*at == '-')
            rk_text_add(text, "\\-");
        else
            rk_text_add_bytes(text, at, 1);
        line_start = *at == '\n';
    }
}

static void add_roff_options(const struct rk_arguments *table, struct rk_text *text) {
    for (size_t i = 0; i < table->option_count; i++) {
        const struct rk_option *option = &table->options[i];
        rk_text_add(text, ".TP\n\\fB\\-\\-");
        add_roff(text, option->name);
        rk_text_add(text, "\\fR");
        if (option->letter != 0)
            rk_text_format(text, ", \\fB\\-%c\\fR", option->letter);
        if (option->type != RK_OPTION_FLAG) {
            rk_text_add(text, " \\fI");
            add_roff(text, option->choices != NULL ? option->choices : option->value != NULL ? option->value : "VALUE");
            rk_text_add(text, "\\fR");
        }
        rk_text_add(text, "\n");
        add_roff(text, option->help);
        rk_text_add(text, "\n");
    }
}

void rk_arguments_manual(const char *program, const char *version, const char *summary,
                         const struct rk_arguments *const *verbs, size_t verb_count, const struct rk_arguments *common,
                         struct rk_text *text) {
    rk_text_format(text, ".TH %s 1 \"\" \"%s %s\"\n.SH NAME\n%s \\- ", program, program, version, program);
    add_roff(text, summary);
    rk_text_format(text, "\n.SH SYNOPSIS\n.B %s\n.I VERB\n[options]\n.SH VERBS\n", program);
    for (size_t i = 0; i < verb_count; i++) {
        rk_text_format(text, ".SS %s %s", program, verbs[i]->name);
        if (verbs[i]->operands != NULL) {
            rk_text_add(text, " ");
            add_roff(text, verbs[i]->operands);
        }
        rk_text_add(text, "\n");
        add_roff(text, verbs[i]->summary);
        rk_text_add(text, ".\n");
        if (verbs[i]->description != NULL) {
            rk_text_add(text, ".PP\n");
            add_roff(text, verbs[i]->description);
            rk_text_add(text, "\n");
        }
        add_roff_options(verbs[i], text);
        if (verbs[i]->examples != NULL) {
            rk_text_add(text, ".PP\nExamples:\n.PP\n.nf\n");
            add_roff(text, verbs[i]->examples);
            rk_text_add(text, "\n.fi\n");
        }
    }
    rk_text_add(text, ".SH COMMON OPTIONS\n");
    add_roff_options(common, text);
}

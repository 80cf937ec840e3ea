/* Command-line options from one table per verb: parsing, --help, shell completion and the manual page all read it. */
#ifndef RK_BASE_ARGUMENTS_H
#define RK_BASE_ARGUMENTS_H

#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rk_option_type {
    RK_OPTION_FLAG,    /* bool: set to true */
    RK_OPTION_STRING,  /* const char *, points into argv */
    RK_OPTION_LIST,    /* struct rk_string_list: the option may be repeated */
    RK_OPTION_COUNT,   /* int64_t, rk_parse_count: 64Ki, 2Gi, 1e6 */
    RK_OPTION_BYTES,   /* int64_t, rk_parse_bytes: 96MiB, 1.5GiB */
    RK_OPTION_INTEGER, /* int64_t with an optional sign, no units */
    RK_OPTION_NUMBER   /* double, finite */
};

struct rk_option {
    const char *name; /* without dashes: "global-batch" */
    char letter;      /* short form, 0 for none */
    enum rk_option_type type;
    size_t offset;           /* offsetof the value in the struct that is filled */
    const char *value;       /* what help calls the value: "FILE", "DIR", "N"; NULL for flags */
    const char *help;        /* one sentence without a full stop, with the default */
    const char *choices;     /* "none|two-batch": other strings are refused; NULL: any */
    double minimum, maximum; /* of counts, bytes, integers and numbers; both 0: no limits (counts and bytes from 0) */
};

/* Strings in the order given. Zero-initialise; the strings stay the caller's. */
struct rk_string_list {
    const char **items;
    size_t count;
};
void rk_string_list_free(struct rk_string_list *list);

/* One verb, or the options common to all (then only options and option_count are read). */
struct rk_arguments {
    const char *name;     /* "plan" */
    const char *summary;  /* one line for `reckon help` */
    const char *operands; /* "PLAN.json [MORE...]" for the usage line; NULL: none */
    int minimum_operands;
    int maximum_operands; /* -1: any number */
    const struct rk_option *options;
    size_t option_count;
    const char *description; /* paragraphs for --help; NULL: none */
    const char *examples;    /* lines "reckon plan ..." for --help; NULL: none */
};

/* Reads argv[1..argc-1] (argv[0] is the verb) and fills values by the verb's table and common_values by the common one;
 * either may be NULL: its options are checked but not stored. Options and operands may be mixed, "--" ends the options,
 * a unique prefix of a long name is taken. What is not given keeps the value that the caller put there. Operands are
 * appended to operands (may be NULL), their number is not checked. argv is reordered, options first. Unknown options
 * (the nearest name is suggested), missing and wrong values are RK_USAGE. */
enum rk_status rk_arguments_parse(const struct rk_arguments *verb, void *values, const struct rk_arguments *common,
                                  void *common_values, int argc, char **argv, struct rk_string_list *operands,
                                  struct rk_error *error);

/* RK_USAGE with the usage line when the number of operands is not what the verb takes. */
enum rk_status rk_arguments_check_operands(const struct rk_arguments *verb, const struct rk_string_list *operands,
                                           struct rk_error *error);

/* The text of --help. */
void rk_arguments_help(const char *program, const struct rk_arguments *verb, const struct rk_arguments *common,
                       struct rk_text *text);

/* A completion script for bash (also read by zsh's bashcompinit), and a manual page in roff. */
void rk_arguments_completion(const char *program, const struct rk_arguments *const *verbs, size_t verb_count,
                             const struct rk_arguments *common, struct rk_text *text);
void rk_arguments_manual(const char *program, const char *version, const char *summary,
                         const struct rk_arguments *const *verbs, size_t verb_count, const struct rk_arguments *common,
                         struct rk_text *text);

/* The name that word was probably meant to be, NULL when none is near. */
const char *rk_nearest_name(const char *word, const char *const *names, size_t count);

#endif

#include "base/arguments.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rk_string_list_free(struct rk_string_list *list) {
    free(list->items);
    *list = (struct rk_string_list){0};
}

static enum rk_status list_add(struct rk_string_list *list, const char *item, struct rk_error *error) {
    const char **items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (items == NULL)
        return rk_fail(error, RK_ERROR, "arguments: not enough memory");
    list->items = items;
    list->items[list->count++] = item;
    return RK_OK;
}

/* Edits (insert, delete, replace) that turn one name into the other; names longer than the row are far from all. */
static size_t edit_distance(const char *left, const char *right) {
    enum { LONGEST = 63 };
    size_t row[LONGEST + 1], width = strlen(right), height = strlen(left);
    if (width > LONGEST || height > LONGEST)
        return LONGEST;
    for (size_t i = 0; i <= width; i++)
        row[i] = i;
    for (size_t y = 1; y <= height; y++) {
        size_t diagonal = row[0];
        row[0] = y;
        for (size_t x = 1; x <= width; x++) {
            size_t replaced = diagonal + (left[y - 1] != right[x - 1]);
            size_t shorter = (row[x] < row[x - 1] ? row[x] : row[x - 1]) + 1;
            diagonal = row[x];
            row[x] = replaced < shorter ? replaced : shorter;
        }
    }
    return row[width];
}

const char *rk_nearest_name(const char *word, const char *const *names, size_t count) {
    size_t length = strlen(word);
    size_t best = length < 4 ? 2 : length / 3 + 2;
    const char *nearest = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t distance = edit_distance(word, names[i]);
        if (length >= 3 && strncmp(word, names[i], length) == 0)
            distance = 1;
        if (distance < best && distance < strlen(names[i])) {
            best = distance;
            nearest = names[i];
        }
    }
    return nearest;
}

/* The two tables as one list, each option with the struct that it fills. */
struct tables {
    const struct rk_arguments *verb, *common;
    void *values, *common_values;
};

static size_t option_count(const struct tables *tables) {
    return tables->verb->option_count + (tables->common != NULL ? tables->common->option_count : 0);
}

static const struct rk_option *option_at(const struct tables *tables, size_t index) {
    size_t own = tables->verb->option_count;
    return index < own ? &tables->verb->options[index] : &tables->common->options[index - own];
}

static void *values_of(const struct tables *tables, size_t index) {
    return index < tables->verb->option_count ? tables->values : tables->common_values;
}

static bool is_choice(const char *choices, const char *string) {
    size_t length = strlen(string);
    for (const char *at = choices;; at++) {
        size_t span = strcspn(at, "|");
        if (span == length && memcmp(at, string, length) == 0)
            return true;
        at += span;
        if (*at == '\0')
            return false;
    }
}

static enum rk_status check_limits(const struct rk_option *option, const char *what, const char *string, double value,
                                   struct rk_error *error) {
    if ((option->minimum == 0 && option->maximum == 0) || (value >= option->minimum && value <= option->maximum))
        return RK_OK;
    return rk_fail(error, RK_USAGE, "%s: %.80s is outside %.15g to %.15g", what, string, option->minimum,
                   option->maximum);
}

static enum rk_status parse_integer(const char *what, const char *string, int64_t *value, struct rk_error *error) {
    char *end = NULL;
    errno = 0;
    long long parsed = strtoll(string, &end, 10);
    bool digits = string[0] != '\0' && strspn(string, "+-0123456789") == strlen(string) && *end == '\0';
    if (!digits || errno == ERANGE)
        return rk_fail(error, RK_USAGE, "%s: '%.80s' is %s", what, string,
                       digits ? "too large" : "not a whole number; write digits such as 42");
    *value = parsed;
    return RK_OK;
}

static enum rk_status store_number(const struct rk_option *option, const char *what, const char *string, char *place,
                                   struct rk_error *error) {
    int64_t whole = 0;
    double number = 0;
    enum rk_status status;
    if (option->type == RK_OPTION_NUMBER)
        status = rk_parse_number(what, string, -1e308, 1e308, &number, error);
    else if (option->type == RK_OPTION_COUNT)
        status = rk_parse_count(what, string, &whole, error);
    else if (option->type == RK_OPTION_BYTES)
        status = rk_parse_bytes(what, string, &whole, error);
    else
        status = parse_integer(what, string, &whole, error);
    if (status == RK_OK)
        status = check_limits(option, what, string, option->type == RK_OPTION_NUMBER ? number : (double)whole, error);
    if (status != RK_OK || place == NULL)
        return status;
    if (option->type == RK_OPTION_NUMBER)
        memcpy(place, &number, sizeof number);
    else
        memcpy(place, &whole, sizeof whole);
    return RK_OK;
}

static enum rk_status store(const struct rk_option *option, const char *string, void *values, struct rk_error *error) {
    char what[80];
    snprintf(what, sizeof what, "--%s", option->name);
    char *place = values != NULL ? (char *)values + option->offset : NULL;
    switch (option->type) {
    case RK_OPTION_FLAG:
        if (place != NULL)
            *(bool *)place = true;
        return RK_OK;
    case RK_OPTION_STRING:
    case RK_OPTION_LIST:
        if (option->choices != NULL && !is_choice(option->choices, string))
            return rk_fail(error, RK_USAGE, "%s: '%.80s' is not one of %s", what, string, option->choices);
        if (place == NULL)
            return RK_OK;
        if (option->type == RK_OPTION_LIST)
            return list_add((struct rk_string_list *)(void *)place, string, error);
        memcpy(place, &string, sizeof string);
        return RK_OK;
    case RK_OPTION_COUNT:
    case RK_OPTION_BYTES:
    case RK_OPTION_INTEGER:
    case RK_OPTION_NUMBER:
        break;
    }
    return store_number(option, what, string, place, error);
}

/* What getopt_long reads, made from the tables. Long options return their index past the letters. */
enum { FIRST_INDEX = 256 };

struct getopt_tables {
    struct option *longs;
    const char **names;
    char *shorts;
};

static bool make_getopt_tables(const struct tables *tables, struct getopt_tables *made) {
    size_t count = option_count(tables);
    made->longs = calloc(count + 1, sizeof *made->longs);
    made->names = calloc(count + 1, sizeof *made->names);
    made->shorts = calloc(2 * count + 2, 1);
    if (made->longs == NULL || made->names == NULL || made->shorts == NULL)
        return false;
    char *letter = made->shorts;
    *letter++ = ':'; /* a missing value is told apart from an unknown option */
    for (size_t i = 0; i < count; i++) {
        const struct rk_option *option = option_at(tables, i);
        bool flag = option->type == RK_OPTION_FLAG;
        made->names[i] = option->name;
        made->longs[i] = (struct option){
            .name = option->name, .has_arg = flag ? no_argument : required_argument, .val = FIRST_INDEX + (int)i};
        if (option->letter != 0) {
            *letter++ = option->letter;
            if (!flag)
                *letter++ = ':';
        }
    }
    return true;
}

static void free_getopt_tables(struct getopt_tables *made) {
    free(made->longs);
    free(made->names);
    free(made->shorts);
}

static enum rk_status fail_unknown(const struct tables *tables, const struct getopt_tables *made, const char *given,
                                   int letter, struct rk_error *error) {
    const char *verb = tables->verb->name;
    size_t count = option_count(tables);
    if (letter >= FIRST_INDEX) {
        const struct rk_option *option = option_at(tables, (size_t)(letter - FIRST_INDEX));
        return rk_fail(error, RK_USAGE, "--%s: takes no value, but '%.80s' gives one", option->name, given);
    }
    if (letter != 0)
        return rk_fail(error, RK_USAGE, "-%c: unknown option of '%s'; see '%s --help'", letter, verb, verb);
    char name[80];
    snprintf(name, sizeof name, "%s", given + strspn(given, "-"));
    name[strcspn(name, "=")] = '\0';
    /* A prefix of several names is unknown to getopt too. */
    size_t matches = 0;
    for (size_t i = 0; i < count; i++)
        matches += strncmp(made->names[i], name, strlen(name)) == 0;
    if (matches > 1)
        return rk_fail(error, RK_USAGE, "--%s: may mean several options of '%s'; write it in full", name, verb);
    const char *nearest = rk_nearest_name(name, made->names, count);
    if (nearest != NULL)
        return rk_fail(error, RK_USAGE, "--%s: unknown option of '%s'; did you mean --%s?", name, verb, nearest);
    return rk_fail(error, RK_USAGE, "--%s: unknown option of '%s'; see '%s --help'", name, verb, verb);
}

static enum rk_status fail_no_value(const struct tables *tables, int code, struct rk_error *error) {
    for (size_t i = 0; i < option_count(tables); i++) {
        const struct rk_option *option = option_at(tables, i);
        if (code == FIRST_INDEX + (int)i || (option->letter != 0 && code == option->letter))
            return rk_fail(error, RK_USAGE, "--%s: needs a value (%s); see '%s --help'", option->name,
                           option->value != NULL ? option->value : "VALUE", tables->verb->name);
    }
    return rk_fail(error, RK_USAGE, "an option of '%s' needs a value", tables->verb->name);
}

static size_t index_of(const struct tables *tables, int code) {
    if (code >= FIRST_INDEX)
        return (size_t)(code - FIRST_INDEX);
    for (size_t i = 0; i < option_count(tables); i++)
        if (option_at(tables, i)->letter == code)
            return i;
    return 0;
}

enum rk_status rk_arguments_parse(const struct rk_arguments *verb, void *values, const struct rk_arguments *common,
                                  void *common_values, int argc, char **argv, struct rk_string_list *operands,
                                  struct rk_error *error) {
    struct tables tables = {verb, common, values, common_values};
    struct getopt_tables made = {0};
    enum rk_status status = RK_OK;
    if (!make_getopt_tables(&tables, &made)) {
        status = rk_fail(error, RK_ERROR, "arguments: not enough memory");
        goto free_tables;
    }
    opterr = 0;
    optind = 0; /* glibc: begins anew, and forgets where it stood in an argument of several letters */
    for (;;) {
        int code = getopt_long(argc, argv, made.shorts, made.longs, NULL);
        if (code == -1)
            break;
        if (code == '?')
            status = fail_unknown(&tables, &made, argv[optind - 1], optopt, error);
        else if (code == ':')
            status = fail_no_value(&tables, optopt, error);
        else {
            size_t index = index_of(&tables, code);
            status = store(option_at(&tables, index), optarg, values_of(&tables, index), error);
        }
        if (status != RK_OK)
            goto free_tables;
    }
    for (int i = optind; i < argc && operands != NULL && status == RK_OK; i++)
        status = list_add(operands, argv[i], error);
free_tables:
    free_getopt_tables(&made);
    return status;
}

enum rk_status rk_arguments_check_operands(const struct rk_arguments *verb, const struct rk_string_list *operands,
                                           struct rk_error *error) {
    const char *usage = verb->operands != NULL ? verb->operands : "";
    if (operands->count < (size_t)verb->minimum_operands)
        return rk_fail(error, RK_USAGE, "%s: too few arguments; usage: reckon %s [options] %s", verb->name, verb->name,
                       usage);
    if (verb->maximum_operands >= 0 && operands->count > (size_t)verb->maximum_operands)
        return rk_fail(error, RK_USAGE, "%s: unexpected argument '%.80s'; usage: reckon %s [options]%s%s", verb->name,
                       operands->items[verb->maximum_operands], verb->name, usage[0] != '\0' ? " " : "", usage);
    return RK_OK;
}

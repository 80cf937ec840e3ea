#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST_NESTING = 64 };
static const size_t LARGEST_FILE = (size_t)64 << 20;
/* The byte FF is never part of UTF-8, and no escape makes it. */
#define NAN_MARK "\"\xFF\""

/* A position in the text, for messages. */
static enum rk_status fail_at(const char *name, const char *text, size_t offset, const char *what,
                              struct rk_error *error) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < offset; i++) {
        column = text[i] == '\n' ? 1 : column + 1;
        line += text[i] == '\n';
    }
    return rk_fail(error, RK_USAGE, "%s: line %zu, column %zu: %s", name, line, column, what);
}

/* The length of the UTF-8 character at text, 0 when it is none (overlong forms and surrogates included). */
static size_t utf8_length(const unsigned char *text, size_t left) {
    unsigned char first = text[0];
    if (first < 0x80)
        return 1;
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || left < length)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xC0) != 0x80)
            return 0;
    unsigned char second = text[1];
    bool bad = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
               (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
    return bad ? 0 : length;
}

/* What the pre-pass knows: cJSON takes more than JSON (control characters, "01", "1.", any depth), and less of what
 * real files hold (Infinity, NaN). */
struct scan {
    const char *name;
    char *text;
    size_t length;
    size_t at;
    size_t depth; /* open brackets */
    struct rk_error *error;
};

static enum rk_status scan_string(struct scan *scan) {
    size_t start = scan->at++;
    while (scan->at < scan->length) {
        unsigned char byte = (unsigned char)scan->text[scan->at];
        if (byte == '"') {
            scan->at++;
            return RK_OK;
        }
        if (byte < 0x20)
            return fail_at(scan->name, scan->text, scan->at, "a control character inside a string", scan->error);
        if (byte == '\\') {
            if (scan->length - scan->at >= 6 && memcmp(scan->text + scan->at, "\\u0000", 6) == 0)
                return fail_at(scan->name, scan->text, scan->at, "a zero character inside a string", scan->error);
            scan->at += 2;
            continue;
        }
        size_t length = utf8_length((const unsigned char *)scan->text + scan->at, scan->length - scan->at);
        if (length == 0)
            return fail_at(scan->name, scan->text, scan->at, "not valid UTF-8", scan->error);
        scan->at += length;
    }
    return fail_at(scan->name, scan->text, start, "a string that starts here does not end; is the file cut short?",
                   scan->error);
}

static size_t count_digits(const struct scan *scan, size_t at) {
    size_t start = at;
    while (at < scan->length && scan->text[at] >= '0' && scan->text[at] <= '9')
        at++;
    return at - start;
}

/* Numbers, true, false, null and the three bare words: everything up to the next punctuation. */
static enum rk_status scan_word(struct scan *scan) {
    static const char *const replaced[] = {"Infinity", "-Infinity", "NaN"};
    size_t start = scan->at;
    char *word = scan->text + start;
    while (scan->at < scan->length && strchr(" \t\r\n,:[]{}\"", scan->text[scan->at]) == NULL)
        scan->at++;
    size_t length = scan->at - start;
    for (size_t i = 0; i < sizeof replaced / sizeof replaced[0]; i++) {
        if (length != strlen(replaced[i]) || memcmp(word, replaced[i], length) != 0)
            continue;
        size_t next = scan->at + strspn(scan->text + scan->at, " \t\r\n");
        if (scan->text[next] == ':')
            return fail_at(scan->name, scan->text, start, "a key must stand in quotes", scan->error);
        /* "NaN" has no room for "null": a string that no valid text can hold (see check_tree) stands for it. */
        memset(word, ' ', length);
        memcpy(word, length >= 4 ? "null" : NAN_MARK, length >= 4 ? 4 : 3);
        return RK_OK;
    }
    if ((length == 4 && (memcmp(word, "null", 4) == 0 || memcmp(word, "true", 4) == 0)) ||
        (length == 5 && memcmp(word, "false", 5) == 0))
        return RK_OK;
    size_t at = start + (word[0] == '-');
    size_t whole = count_digits(scan, at);
    bool good = whole > 0 && (whole == 1 || scan->text[at] != '0');
    at += whole;
    if (good && at < scan->at && scan->text[at] == '.') {
        size_t digits = count_digits(scan, at + 1);
        good = digits > 0;
        at += 1 + digits;
    }
    if (good && at < scan->at && (scan->text[at] == 'e' || scan->text[at] == 'E')) {
        at++;
        at += at < scan->at && (scan->text[at] == '+' || scan->text[at] == '-');
        size_t digits = count_digits(scan, at);
        good = digits > 0;
        at += digits;
    }
    if (!good || at != scan->at)
        return fail_at(scan->name, scan->text, start, "neither a value nor punctuation of JSON", scan->error);
    if (length >= 64)
        return fail_at(scan->name, scan->text, start, "a number of more than 63 characters", scan->error);
    return RK_OK;
}

static enum rk_status scan_text(struct scan *scan) {
    while (scan->at < scan->length) {
        char byte = scan->text[scan->at];
        enum rk_status status = RK_OK;
        if (byte == '"')
            status = scan_string(scan);
        else if (byte != '\0' && strchr(" \t\r\n,:", byte) != NULL)
            scan->at++;
        else if (byte == '[' || byte == '{') {
            scan->at++;
            if (++scan->depth > DEEPEST_NESTING)
                status = fail_at(scan->name, scan->text, scan->at - 1, "nested deeper than 64 levels", scan->error);
        } else if (byte == ']' || byte == '}') {
            scan->at++;
            scan->depth -= scan->depth > 0;
        } else if ((unsigned char)byte < 0x20 || byte == 0x7F)
            status =
                fail_at(scan->name, scan->text, scan->at, "a control character; is this a JSON file?", scan->error);
        else
            status = scan_word(scan);
        if (status != RK_OK)
            return status;
    }
    return RK_OK;
}

static int compare_names(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Sorted, because a hostile object may have a million members. */
static enum rk_status refuse_duplicates(const char *name, const cJSON *object, struct rk_error *error) {
    size_t count = 0;
    for (const cJSON *member = object->child; member != NULL; member = member->next)
        count++;
    if (count < 2)
        return RK_OK;
    const char **names = malloc(count * sizeof *names);
    if (names == NULL)
        return rk_fail(error, RK_ERROR, "%s: not enough memory to read it", name);
    size_t at = 0;
    for (const cJSON *member = object->child; member != NULL; member = member->next)
        names[at++] = member->string;
    qsort(names, count, sizeof *names, compare_names);
    enum rk_status status = RK_OK;
    for (size_t i = 1; i < count && status == RK_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = rk_fail(error, RK_USAGE, "%s: key '%.80s' stands twice in one object; remove one", name, names[i]);
    free(names);
    return status;
}

static enum rk_status check_tree(const char *name, cJSON *value, struct rk_error *error) {
    if (cJSON_IsString(value) && strcmp(value->valuestring, "\xFF") == 0) {
        cJSON_free(value->valuestring);
        value->valuestring = NULL;
        value->type = cJSON_NULL;
    }
    if (cJSON_IsNumber(value) && !isfinite(value->valuedouble))
        return rk_fail(error, RK_USAGE, "%s: a number of '%.80s' is too large to be read", name,
                       value->string != NULL ? value->string : "an array");
    if (cJSON_IsObject(value)) {
        enum rk_status status = refuse_duplicates(name, value, error);
        if (status != RK_OK)
            return status;
    }
    for (cJSON *member = value->child; member != NULL; member = member->next) {
        enum rk_status status = check_tree(name, member, error);
        if (status != RK_OK)
            return status;
    }
    return RK_OK;
}

enum rk_status rk_json_parse(const char *name, const char *text, size_t length, cJSON **root, struct rk_error *error) {
    if (length >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        text += 3;
        length -= 3;
    }
    char *copy = malloc(length + 1);
    if (copy == NULL)
        return rk_fail(error, RK_ERROR, "%s: not enough memory to read it", name);
    memcpy(copy, text, length);
    copy[length] = '\0';

    struct scan scan = {.name = name, .text = copy, .length = length, .error = error};
    enum rk_status status = scan_text(&scan);
    cJSON *tree = NULL;
    if (status != RK_OK)
        goto free_copy;
    const char *end = copy;
    tree = cJSON_ParseWithLengthOpts(copy, length + 1, &end, 1);
    if (tree == NULL) {
        size_t offset = (size_t)(end - copy);
        status = strspn(copy, " \t\r\n") == length
                     ? rk_fail(error, RK_USAGE, "%s: is empty; a JSON object was expected", name)
                     : fail_at(name, copy, offset < length ? offset : length,
                               scan.depth == 0 ? "not valid JSON here"
                                               : "the text ends inside a value; is the file cut short?",
                               error);
        goto free_copy;
    }
    status = check_tree(name, tree, error);
    if (status == RK_OK)
        *root = tree;
    else
        cJSON_Delete(tree);
free_copy:
    free(copy);
    return status;
}

enum rk_status rk_json_read_file(const char *path, cJSON **root, struct rk_error *error) {
    char *text = NULL;
    size_t length = 0;
    enum rk_status status = rk_read_file(path, LARGEST_FILE, &text, &length, error);
    if (status != RK_OK)
        return status;
    status = rk_json_parse(path, text, length, root, error);
    free(text);
    return status;
}

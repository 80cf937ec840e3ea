/* Canonical JSON text. */
#include "base/json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST_NESTING = 64 };

void rk_json_add_quoted(struct rk_text *text, const char *string) {
    rk_text_add(text, "\"");
    const char *plain = string;
    for (const char *at = string;; at++) {
        unsigned char byte = (unsigned char)*at;
        if (byte >= 0x20 && byte != '"' && byte != '\\')
            continue;
        rk_text_add_bytes(text, plain, (size_t)(at - plain));
        plain = at + 1;
        if (byte == '\0')
            break;
        static const char letters[] = "\"\\\b\f\n\r\t", escapes[] = "\"\\bfnrt";
        const char *found = strchr(letters, byte);
        if (found != NULL)
            rk_text_format(text, "\\%c", escapes[found - letters]);
        else
            rk_text_format(text, "\\u%04x", byte);
    }
    rk_text_add(text, "\"");
}

static enum rk_status print_number(double number, struct rk_text *text, struct rk_error *error) {
    if (!isfinite(number))
        return rk_fail(error, RK_ERROR, "JSON: a number that is not finite cannot be written");
    if (number == floor(number) && fabs(number) <= 9007199254740992.0) {
        rk_text_format(text, "%.0f", number);
        return RK_OK;
    }
    /* %g drops trailing zeros and every decimal of at most 15 digits survives a normal double: 15 digits that read back
     * are the fewest. Subnormal doubles have fewer digits to give. */
    char digits[40];
    for (int precision = fabs(number) < DBL_MIN ? 1 : 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, number);
        if (strtod(digits, NULL) == number)
            break;
    }
    rk_text_add(text, digits);
    return RK_OK;
}

static void new_line(struct rk_text *text, int depth) {
    rk_text_format(text, "\n%*s", depth * 2, "");
}

static enum rk_status print_value(const cJSON *value, int depth, struct rk_text *text, struct rk_error *error);

/* An array without arrays and objects in it stands on one line: lists of numbers stay readable. */
static enum rk_status print_members(const cJSON *value, int depth, struct rk_text *text, struct rk_error *error) {
    bool object = cJSON_IsObject(value), one_line = !object;
    if (value->child == NULL) {
        rk_text_add(text, object ? "{}" : "[]");
        return RK_OK;
    }
    for (const cJSON *member = value->child; member != NULL; member = member->next)
        one_line = one_line && !cJSON_IsObject(member) && !cJSON_IsArray(member);
    rk_text_add(text, object ? "{" : "[");
    for (const cJSON *member = value->child; member != NULL; member = member->next) {
        if (!one_line)
            new_line(text, depth + 1);
        if (object) {
            rk_json_add_quoted(text, member->string != NULL ? member->string : "");
            rk_text_add(text, ": ");
        }
        enum rk_status status = print_value(member, depth + 1, text, error);
        if (status != RK_OK)
            return status;
        if (member->next != NULL)
            rk_text_add(text, one_line ? ", " : ",");
    }
    if (!one_line)
        new_line(text, depth);
    rk_text_add(text, object ? "}" : "]");
    return RK_OK;
}

static enum rk_status print_value(const cJSON *value, int depth, struct rk_text *text, struct rk_error *error) {
    if (depth > DEEPEST_NESTING)
        return rk_fail(error, RK_ERROR, "JSON: nested deeper than %d levels", DEEPEST_NESTING);
    if (cJSON_IsNumber(value))
        return print_number(value->valuedouble, text, error);
    if (cJSON_IsArray(value) || cJSON_IsObject(value))
        return print_members(value, depth, text, error);
    if (cJSON_IsString(value))
        rk_json_add_quoted(text, value->valuestring);
    else if (cJSON_IsBool(value))
        rk_text_add(text, cJSON_IsTrue(value) ? "true" : "false");
    else if (cJSON_IsNull(value))
        rk_text_add(text, "null");
    else
        return rk_fail(error, RK_ERROR, "JSON: a value of no JSON type cannot be written");
    return RK_OK;
}

enum rk_status rk_json_print(const cJSON *root, struct rk_text *text, struct rk_error *error) {
    enum rk_status status = print_value(root, 0, text, error);
    if (status != RK_OK)
        return status;
    rk_text_add(text, "\n");
    if (text->failed)
        return rk_fail(error, RK_ERROR, "JSON: not enough memory to write it");
    return RK_OK;
}

#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cuts are made at the start of a UTF-8 character, so that a message stays valid text. */
static void mark_cut(char *text, size_t size) {
    size_t at = size - sizeof "...";
    while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80)
        at--;
    memcpy(text + at, "...", sizeof "...");
}

enum rk_status rk_fail(struct rk_error *error, enum rk_status status, const char *format, ...) {
    if (error == NULL)
        return status;
    /* The arguments may point into the old text (wrapping an error by hand), so the new one is made apart. */
    char text[sizeof error->text];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0)
        text[0] = '\0';
    else if ((size_t)length >= sizeof text)
        mark_cut(text, sizeof text);
    memcpy(error->text, text, sizeof text);
    error->status = status;
    return status;
}

enum rk_status rk_fail_context(struct rk_error *error, const char *format, ...) {
    if (error == NULL)
        return RK_ERROR;
    char context[sizeof error->text];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(context, sizeof context, format, arguments);
    va_end(arguments);
    if (length < 0)
        context[0] = '\0';
    return rk_fail(error, error->status, "%s: %s", context, error->text);
}

const char *rk_status_name(enum rk_status status) {
    static const struct {
        enum rk_status status;
        const char *name;
    } names[] = {
        {RK_OK, "ok"},
        {RK_ERROR, "error"},
        {RK_USAGE, "usage"},
        {RK_INFEASIBLE, "infeasible"},
        {RK_UNCALIBRATED, "uncalibrated"},
        {RK_OUTSIDE_TOLERANCE, "outside tolerance"},
        {RK_HARDWARE_UNFIT, "hardware unfit"},
        {RK_RANK_FAILED, "rank failed"},
        {RK_DATABASE, "database"},
        {RK_INTERRUPTED, "interrupted"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].status == status)
            return names[i].name;
    return "unknown status";
}

/* The one status type and the one error path.
 *
 * A status is the exit code that the command line ends with when nobody handles it, so that the meaning of a failure is
 * decided once, where it is found. The function that finds the failure writes its text; callers only pass it on. */
#ifndef RK_BASE_STATUS_H
#define RK_BASE_STATUS_H

#include <stddef.h>

enum rk_status {
    RK_OK = 0,
    RK_ERROR = 1,              /* anything that has no code of its own: I/O, memory, a damaged file */
    RK_USAGE = 2,              /* flags, files or values that the user must change */
    RK_INFEASIBLE = 3,         /* no candidate can run */
    RK_UNCALIBRATED = 4,       /* a measurement is missing or stale */
    RK_OUTSIDE_TOLERANCE = 5,  /* compare: prediction and measurement part */
    RK_HARDWARE_UNFIT = 6,     /* the machine would give wrong or useless figures */
    RK_RANK_FAILED = 7,        /* a rank died, timed out or reported an error */
    RK_DATABASE = 8,           /* the database is locked, damaged or newer than this program */
    RK_INTERRUPTED = 130       /* SIGINT, SIGTERM or SIGHUP; what was done is kept */
};

/* What went wrong: which input, what was found, what to do next. One sentence or two, no trailing newline. */
struct rk_error {
    enum rk_status status;
    char text[1024];
};

#if defined(__GNUC__)
#define RK_PRINTF_LIKE(format_index, first_argument) __attribute__((format(printf, format_index, first_argument)))
#else
#define RK_PRINTF_LIKE(format_index, first_argument)
#endif

/* Writes status and text into *error (which may be NULL) and returns status, so that a failure is one statement:
 *     return rk_fail(error, RK_USAGE, "%s: ...", path);
 * A text that is too long is cut and ends in "...". */
enum rk_status rk_fail(struct rk_error *error, enum rk_status status, const char *format, ...) RK_PRINTF_LIKE(3, 4);

/* Puts "context: " before the text of an error that was already written, and returns its status. */
enum rk_status rk_fail_context(struct rk_error *error, const char *format, ...) RK_PRINTF_LIKE(2, 3);

/* A short English name: "ok", "usage", "rank failed". Never NULL. */
const char *rk_status_name(enum rk_status status);

#endif

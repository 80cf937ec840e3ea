/* The one path of messages to people: standard error, one line each, never inside the data on standard output.
 *
 * The command line owns the log and passes it down; library code that has nothing to say to a person takes none. */
#ifndef RK_BASE_LOG_H
#define RK_BASE_LOG_H

#include "base/status.h"

#include <stdbool.h>
#include <stdio.h>

enum rk_log_level { RK_LOG_ERROR, RK_LOG_WARNING, RK_LOG_INFO, RK_LOG_DEBUG };

struct rk_log {
    FILE *stream;               /* usually stderr */
    enum rk_log_level level;    /* messages above it are not written */
    bool terminal;              /* progress bars and colour only here (isatty, NO_COLOR honoured by the command line) */
    int rank;                   /* written before the message when >= 0 */
    double *progress_seconds;   /* when the last line of progress was written; NULL: only the line at the end */
};

/* A NULL log swallows the message. */
void rk_log_write(const struct rk_log *log, enum rk_log_level level, const char *format, ...) RK_PRINTF_LIKE(3, 4);

/* Progress of a long job: done of total, with the time left estimated from the rate so far. Redraws one line on a
 * terminal; elsewhere writes a line at most every ten seconds. seconds_elapsed is given by the caller (no clock here). */
void rk_log_progress(const struct rk_log *log, const char *what, double done, double total, double seconds_elapsed);

#endif

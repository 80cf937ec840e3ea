#include "base/log.h"

#include "base/text.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

enum { BAR_WIDTH = 30 };
#define SECONDS_BETWEEN_LINES 10.0

void rk_log_write(const struct rk_log *log, enum rk_log_level level, const char *format, ...) {
    if (log == NULL || log->stream == NULL || level > log->level)
        return;
    static const char *const prefixes[] = {
        [RK_LOG_ERROR] = "error: ", [RK_LOG_WARNING] = "warning: ", [RK_LOG_INFO] = "", [RK_LOG_DEBUG] = "debug: "};
    char line[2048];
    int used = 0;
    if (log->rank >= 0)
        used = snprintf(line, sizeof line, "[rank %d] ", log->rank);
    used += snprintf(line + used, sizeof line - (size_t)used, "%s", prefixes[level]);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
    va_end(arguments);
    size_t total = length < 0 ? (size_t)used : (size_t)used + (size_t)length;
    if (total >= sizeof line)
        total = sizeof line - 1;
    while (total > 0 && line[total - 1] == '\n')
        total--;
    /* A message is one line: a file name with a line break or an escape sequence in it must not act on the terminal. */
    for (size_t i = 0; i < total; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F)
            line[i] = ' ';
    line[total] = '\0';
    /* One call for the whole line, so that the lines of several ranks do not mix. */
    fprintf(log->stream, "%s%s\n", log->terminal ? "\r\033[K" : "", line);
    fflush(log->stream);
}

static void format_left(double seconds, char *buffer, size_t size) {
    if (!isfinite(seconds))
        snprintf(buffer, size, "time left unknown");
    else if (seconds < 90)
        snprintf(buffer, size, "%.0f s left", ceil(seconds));
    else if (seconds < 5400)
        snprintf(buffer, size, "%.0f min left", ceil(seconds / 60));
    else
        snprintf(buffer, size, "%.1f h left", seconds / 3600);
}

void rk_log_progress(const struct rk_log *log, const char *what, double done, double total, double seconds_elapsed) {
    if (log == NULL || log->stream == NULL || log->level < RK_LOG_INFO || !(total > 0))
        return;
    double fraction = done / total;
    fraction = fraction < 0 ? 0 : fraction > 1 ? 1 : fraction;
    char left[48];
    format_left(done > 0 ? seconds_elapsed * (1 - fraction) / fraction : INFINITY, left, sizeof left);
    bool finished = done >= total;
    if (log->terminal) {
        char bar[BAR_WIDTH + 1];
        int filled = (int)(fraction * BAR_WIDTH);
        memset(bar, '-', BAR_WIDTH);
        memset(bar, '#', (size_t)filled);
        bar[BAR_WIDTH] = '\0';
        fprintf(log->stream, "\r\033[K%s [%s] %3.0f %%, %s%s", what, bar, fraction * 100, left, finished ? "\n" : "");
        fflush(log->stream);
        return;
    }
    if (!finished) {
        /* A later job starts its seconds anew, so a time before the last line is a line too. */
        double *last = log->progress_seconds;
        if (last == NULL || (*last > 0 && seconds_elapsed >= *last && seconds_elapsed - *last < SECONDS_BETWEEN_LINES))
            return;
        *last = seconds_elapsed;
    } else if (log->progress_seconds != NULL) {
        *log->progress_seconds = 0;
    }
    fprintf(log->stream, "%s: %.0f %%, %s\n", what, fraction * 100, finished ? "done" : left);
    fflush(log->stream);
}

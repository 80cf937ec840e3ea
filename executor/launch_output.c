#include "executor/launch_local.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void write_line(const struct rk_log *log, const char *line) {
    FILE *stream = log != NULL && log->stream != NULL ? log->stream : stderr;
    fprintf(stream, "%s%s\n", log != NULL && log->terminal ? "\r\033[K" : "", line);
    fflush(stream);
}

/* The words after "error: " of a held line, which several ranks may share. */
static const char *words_of(const char *line) {
    const char *error = strstr(line, "error: ");
    return error != NULL ? error : line;
}

static bool hold(struct rk_held_errors *held, const char *line) {
    for (int i = 0; i < held->count; i++)
        if (strcmp(words_of(held->line[i]), words_of(line)) == 0)
            return true;
    if (held->count == RK_OUTPUT_HELD)
        return false;
    char *copy = strdup(line);
    if (copy == NULL)
        return false;
    held->line[held->count++] = copy;
    return true;
}

static void pass_line(struct rk_output *output, int64_t rank, const struct rk_log *log, struct rk_held_errors *held) {
    char line[RK_OUTPUT_LINE + 32];
    output->line[output->length] = '\0';
    output->length = 0;
    /* A rank's own log may have named it already. */
    if (strncmp(output->line, "[rank ", 6) == 0)
        snprintf(line, sizeof line, "%s", output->line);
    else
        snprintf(line, sizeof line, "[rank %lld] %s", (long long)rank, output->line);
    if (strstr(line, "] error: ") == NULL || !hold(held, line))
        write_line(log, line);
}

void rk_output_read(struct rk_output *output, int64_t rank, const struct rk_log *log, struct rk_held_errors *held) {
    char bytes[4096];
    for (;;) {
        ssize_t got = read(output->descriptor, bytes, sizeof bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (got <= 0) {
            rk_output_close(output, rank, log, held);
            return;
        }
        for (ssize_t i = 0; i < got; i++) {
            /* A line that is too long is passed on in pieces. */
            if (bytes[i] == '\n' || output->length == sizeof output->line - 1)
                pass_line(output, rank, log, held);
            if (bytes[i] != '\n')
                output->line[output->length++] = bytes[i];
        }
    }
}

void rk_output_close(struct rk_output *output, int64_t rank, const struct rk_log *log, struct rk_held_errors *held) {
    if (output->descriptor < 0)
        return;
    if (output->length > 0)
        pass_line(output, rank, log, held);
    close(output->descriptor);
    output->descriptor = -1;
}

void rk_held_errors_release(struct rk_held_errors *held, bool print, const struct rk_log *log) {
    for (int i = 0; i < held->count; i++) {
        if (print)
            write_line(log, held->line[i]);
        free(held->line[i]);
    }
    held->count = 0;
}

/* Growing strings, and the reading and writing of numbers with units. */
#ifndef RK_BASE_TEXT_H
#define RK_BASE_TEXT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A growing string. Zero-initialise; data is NUL-terminated once anything was added. Free with rk_text_free.
 * Running out of memory sets failed and leaves the text as it was; check failed once at the end. */
struct rk_text {
    char *data;
    size_t length;
    size_t capacity;
    bool failed;
};

void rk_text_add(struct rk_text *text, const char *string);
void rk_text_add_bytes(struct rk_text *text, const void *bytes, size_t length);
void rk_text_format(struct rk_text *text, const char *format, ...) RK_PRINTF_LIKE(2, 3);
void rk_text_free(struct rk_text *text);

/* Reads a whole count: "64", "64Ki", "64Mi", "2Gi" (powers of 1024), "64K", "64M", "1G" (powers of 1000), "1e6".
 * Refuses signs, fractions that do not come out whole, overflow and trailing letters, and names `what` in the error. */
enum rk_status rk_parse_count(const char *what, const char *string, int64_t *value, struct rk_error *error);

/* Reads bytes: as rk_parse_count with an optional "B": "96MiB", "1.5GiB", "500MB". */
enum rk_status rk_parse_bytes(const char *what, const char *string, int64_t *value, struct rk_error *error);

/* Reads a finite decimal number within [minimum, maximum]. */
enum rk_status rk_parse_number(const char *what, const char *string, double minimum, double maximum, double *value,
                               struct rk_error *error);

/* A name with something before its ending: "a.npy" ends in ".npy", ".npy" does not. */
bool rk_ends_in(const char *name, const char *ending);

/* Formats into a caller's buffer and returns it: "13.25 GiB", "96.0 MiB"; "1.234 ms"; "53.0 GB/s" (GB = 1e9 bytes). */
char *rk_format_bytes(int64_t bytes, char *buffer, size_t size);
char *rk_format_seconds(double seconds, char *buffer, size_t size);

/* Reads a file of at most limit bytes into a fresh NUL-terminated allocation (*data, caller frees). A larger file, a
 * directory or a missing file is an error that names the path and the remedy. */
enum rk_status rk_read_file(const char *path, size_t limit, char **data, size_t *length, struct rk_error *error);

/* Writes path atomically: a temporary file beside it, fsync, rename, fsync of the folder. On failure the old file stands
 * and the temporary is removed. */
enum rk_status rk_write_file(const char *path, const void *data, size_t length, struct rk_error *error);

#endif

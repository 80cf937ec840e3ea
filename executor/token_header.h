/* The headers of token files, in memory: shared by reader and writer. */
#ifndef RK_EXECUTOR_TOKEN_HEADER_H
#define RK_EXECUTOR_TOKEN_HEADER_H

#include "executor/token_file.h"

#include <stdbool.h>
#include <stddef.h>

enum { RK_TOKEN_LARGEST_HEADER = 1024 };

struct rk_token_header {
    enum rk_token_format format;
    int token_bytes;
    int64_t first_byte;
    int64_t count; /* -1: not said (raw) */
};

/* Reads the header from the first `length` bytes of the file at path (for messages). A file without one gives
 * RK_TOKEN_RAW with token_bytes 0. */
enum rk_status rk_token_header_read(const char *path, const unsigned char *bytes, size_t length,
                                    struct rk_token_header *header, struct rk_error *error);

/* Writes a header of the same size for any count, so that it can be written again when the count is known. Returns its
 * size (0 for raw); buffer has RK_TOKEN_LARGEST_HEADER bytes. */
size_t rk_token_header_write(enum rk_token_format format, int token_bytes, int64_t count, unsigned char *buffer);

#endif

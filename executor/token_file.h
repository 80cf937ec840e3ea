/* Token files: one-dimensional arrays of little-endian unsigned tokens, as other trainers write them.
 *
 *   raw    no header, uint16 or uint32 (nanoGPT's .bin, OLMo's .npy, which is a bare memory map in spite of its name)
 *   llm.c  256 int32: magic, version, number of tokens, zeros; magic 20240520 version 1 holds uint16 (GPT-2), magic
 *          20240801 version 7 holds uint32 (Llama 3)
 *   npy    NumPy's format, versions 1.0 to 3.0, dtype <u2, <u4 or <i4, one dimension
 *
 * Headers are recognised by content. Raw files: the width is given, or follows from the name (.u16, .bin and .npy: 2,
 * .u32: 4). Files are read with pread: a file that another program cuts short while it is in use is an error, where a
 * memory map would kill the process. */
#ifndef RK_EXECUTOR_TOKEN_FILE_H
#define RK_EXECUTOR_TOKEN_FILE_H

#include "base/atomic_file.h"
#include "base/status.h"

#include <stdint.h>

enum rk_token_format { RK_TOKEN_RAW, RK_TOKEN_LLMC, RK_TOKEN_NPY };
/* "raw", "llm.c", "npy". */
const char *rk_token_format_name(enum rk_token_format format);

struct rk_token_file {
    char *path;
    int descriptor;
    enum rk_token_format format;
    int token_bytes;    /* 2 or 4 */
    int64_t first_byte; /* where the tokens begin */
    int64_t count;      /* tokens, at least 1 */
    int64_t vocabulary; /* tokens are below it; 0: only below 2^31 */
};

/* token_bytes: 2, 4, or 0 (by header or name); a header that says otherwise is refused. vocabulary 0: not checked.
 * RK_USAGE: missing, empty, truncated or longer than its header says, unknown dtype, byte order or dimensions, a raw
 * size that is no multiple of the width, a raw file whose width was only guessed and whose content says 4. */
enum rk_status rk_token_file_open(const char *path, int token_bytes, int64_t vocabulary, struct rk_token_file *file,
                                  struct rk_error *error);
void rk_token_file_close(struct rk_token_file *file);

/* Reads tokens first .. first + count - 1 into out. RK_USAGE: outside the file, or a token outside the vocabulary (its
 * position is named). Safe from several threads. */
enum rk_status rk_token_file_read(const struct rk_token_file *file, int64_t first, int64_t count, int32_t *out,
                                  struct rk_error *error);

/* Writing: the file appears whole at commit or not at all. */
struct rk_token_writer {
    struct rk_atomic_file file;
    enum rk_token_format format;
    int token_bytes;
    int64_t count;
    unsigned char buffer[8192];
    int used; /* bytes in buffer */
};

enum rk_status rk_token_writer_open(const char *path, enum rk_token_format format, int token_bytes,
                                    struct rk_token_writer *writer, struct rk_error *error);
/* RK_USAGE when a token does not fit the width. */
enum rk_status rk_token_writer_add(struct rk_token_writer *writer, const int32_t *tokens, int64_t count,
                                   struct rk_error *error);
/* RK_USAGE when there are no tokens, or more than the format can count. */
enum rk_status rk_token_writer_commit(struct rk_token_writer *writer, struct rk_error *error);
void rk_token_writer_abandon(struct rk_token_writer *writer);

#endif

/* Files of named tensors in the format "tensors-1":
 *   line 1      {"format": "tensors-1", "count": N, "data": D}
 *   N lines     {"name": "blocks.0.attn.wo", "shape": [256, 256], "dtype": "f32" or "bf16", "offset": bytes from the
 * start} blanks up to byte D, then raw little-endian values, row major. */
#ifndef RK_EXECUTOR_TENSOR_FILE_H
#define RK_EXECUTOR_TENSOR_FILE_H

#include "base/status.h"
#include "base/text.h"
#include "model/ops.h"

#include <stddef.h>
#include <stdint.h>

struct rk_tensor_entry {
    char name[64];
    int32_t rank;     /* 1 to 3 */
    int64_t shape[3]; /* unused ones 1 */
    enum rk_data_type type;
    int64_t offset; /* bytes from the start of the file */
};

struct rk_tensor_file {
    char *path; /* owned */
    int descriptor;
    struct rk_tensor_entry *entries; /* owned */
    size_t count;
};

/* Opens and checks a file: every tensor inside the file, none over another, no name twice. Anything else is RK_USAGE
 * and names the file and the line. Close with rk_tensor_file_close. */
enum rk_status rk_tensor_file_open(const char *path, struct rk_tensor_file *file, struct rk_error *error);
void rk_tensor_file_close(struct rk_tensor_file *file);

/* The entry of that name and shape. RK_USAGE says what was wanted and what the file holds. */
enum rk_status rk_tensor_file_find(const struct rk_tensor_file *file, const char *name, int32_t rank,
                                   const int64_t shape[3], const struct rk_tensor_entry **entry,
                                   struct rk_error *error);

/* Elements first to first + count of a tensor, as FP32. */
enum rk_status rk_tensor_file_read(const struct rk_tensor_file *file, const struct rk_tensor_entry *entry,
                                   int64_t first, int64_t count, float *values, struct rk_error *error);

/* Gives the entries their offsets, one after another at multiples of 64 bytes, and appends the header to text, padded
 * to its end. *file_bytes is the size of the whole file. RK_ERROR when memory runs out. */
enum rk_status rk_tensor_file_header(struct rk_tensor_entry *entries, size_t count, struct rk_text *text,
                                     int64_t *file_bytes, struct rk_error *error);

#endif

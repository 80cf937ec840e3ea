/* Files that appear whole or not at all.
 *
 * Bytes go to a temporary file beside the target; commit syncs it, renames it over the target and syncs the folder. A
 * target that is a device or a pipe (/dev/stdout) is written directly. */
#ifndef RK_BASE_ATOMIC_FILE_H
#define RK_BASE_ATOMIC_FILE_H

#include "base/status.h"

#include <limits.h>

struct rk_atomic_file {
    int descriptor;                /* -1 when not open */
    char path[PATH_MAX];           /* the target, symbolic links resolved */
    char temporary[PATH_MAX + 16]; /* empty when the target is written directly */
};

/* A path that holds a database is refused with RK_USAGE: measurements are never replaced by what is made of them. */
enum rk_status rk_atomic_file_open(const char *path, struct rk_atomic_file *file, struct rk_error *error);
/* Appends. After a failure only rk_atomic_file_abandon may follow. */
enum rk_status rk_atomic_file_write(struct rk_atomic_file *file, const void *data, size_t length,
                                    struct rk_error *error);
/* Overwrites bytes that were already written, for headers whose counts are known last. Not for pipes. */
enum rk_status rk_atomic_file_rewrite(struct rk_atomic_file *file, size_t offset, const void *data, size_t length,
                                      struct rk_error *error);
/* On failure the old file stands and the temporary is removed. The file is closed in both cases. */
enum rk_status rk_atomic_file_commit(struct rk_atomic_file *file, struct rk_error *error);
/* Closes and removes the temporary. Harmless after commit. */
void rk_atomic_file_abandon(struct rk_atomic_file *file);

#endif

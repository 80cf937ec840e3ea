#include "base/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum rk_status fail_errno(struct rk_error *error, const char *path, const char *what) {
    int number = errno;
    const char *remedy = "check the path";
    if (number == ENOSPC || number == EDQUOT)
        remedy = "free space on that file system, or write elsewhere";
    else if (number == EACCES || number == EPERM || number == EROFS)
        remedy = "choose a folder that you may write to";
    else if (number == ENOENT)
        remedy = "create its folder first";
    return rk_fail(error, RK_ERROR, "%s: %s: %s; %s", path, what, strerror(number), remedy);
}

/* The permissions of a plain creation: mkstemp makes files that only the owner may read. */
static mode_t creation_mode(const char *path) {
    struct stat status;
    if (stat(path, &status) == 0)
        return status.st_mode & 07777;
    mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

/* SQLite's file format, section 1.3: every database begins with this text and its final zero. */
static bool is_database(const char *path) {
    static const char magic[16] = "SQLite format 3";
    char head[sizeof magic] = {0};
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    bool same = read(descriptor, head, sizeof head) == (ssize_t)sizeof head && memcmp(head, magic, sizeof head) == 0;
    close(descriptor);
    return same;
}

enum rk_status rk_atomic_file_open(const char *path, struct rk_atomic_file *file, struct rk_error *error) {
    file->descriptor = -1;
    file->temporary[0] = '\0';
    struct stat status;
    bool exists = stat(path, &status) == 0;
    if (exists && S_ISDIR(status.st_mode))
        return rk_fail(error, RK_ERROR, "%s: is a folder; give the name of a file", path);
    if (path[0] == '\0' || strlen(path) >= sizeof file->path)
        return rk_fail(error, RK_ERROR, "'%.80s': not a usable file name", path);
    if (!exists || realpath(path, file->path) == NULL)
        memcpy(file->path, path, strlen(path) + 1);
    if (exists && !S_ISREG(status.st_mode)) {
        file->descriptor = open(file->path, O_WRONLY | O_CLOEXEC);
        return file->descriptor < 0 ? fail_errno(error, path, "cannot open for writing") : RK_OK;
    }
    if (exists && is_database(file->path))
        return rk_fail(error, RK_USAGE, "%s: is a database, which would be lost; write to another file", path);
    snprintf(file->temporary, sizeof file->temporary, "%s.XXXXXX", file->path);
    file->descriptor = mkostemp(file->temporary, O_CLOEXEC);
    if (file->descriptor < 0) {
        file->temporary[0] = '\0';
        return fail_errno(error, path, "cannot create");
    }
    if (fchmod(file->descriptor, creation_mode(file->path)) != 0) {
        enum rk_status failed = fail_errno(error, path, "cannot set permissions");
        rk_atomic_file_abandon(file);
        return failed;
    }
    return RK_OK;
}

enum rk_status rk_atomic_file_write(struct rk_atomic_file *file, const void *data, size_t length,
                                    struct rk_error *error) {
    const char *bytes = data;
    while (length > 0) {
        ssize_t written = write(file->descriptor, bytes, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return fail_errno(error, file->path, "cannot write");
        bytes += written;
        length -= (size_t)written;
    }
    return RK_OK;
}

enum rk_status rk_atomic_file_rewrite(struct rk_atomic_file *file, size_t offset, const void *data, size_t length,
                                      struct rk_error *error) {
    const char *bytes = data;
    while (length > 0) {
        ssize_t written = pwrite(file->descriptor, bytes, length, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return fail_errno(error, file->path, "cannot write");
        bytes += written;
        offset += (size_t)written;
        length -= (size_t)written;
    }
    return RK_OK;
}

/* Without this the rename itself may be lost in a crash. Some file systems cannot sync a folder: not an error. */
static void sync_folder(const char *path) {
    char copy[PATH_MAX];
    memcpy(copy, path, strlen(path) + 1);
    int folder = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
}

enum rk_status rk_atomic_file_commit(struct rk_atomic_file *file, struct rk_error *error) {
    enum rk_status status = RK_OK;
    bool direct = file->temporary[0] == '\0';
    if (!direct && fsync(file->descriptor) != 0) {
        status = fail_errno(error, file->path, "cannot write to the device");
        goto abandon;
    }
    int closed = close(file->descriptor);
    file->descriptor = -1;
    if (closed != 0) {
        status = fail_errno(error, file->path, "cannot finish writing");
        goto abandon;
    }
    if (direct)
        return RK_OK;
    if (rename(file->temporary, file->path) != 0) {
        status = fail_errno(error, file->path, "cannot put the new file in place");
        goto abandon;
    }
    file->temporary[0] = '\0';
    sync_folder(file->path);
    return RK_OK;
abandon:
    rk_atomic_file_abandon(file);
    return status;
}

void rk_atomic_file_abandon(struct rk_atomic_file *file) {
    if (file->descriptor >= 0)
        close(file->descriptor);
    file->descriptor = -1;
    if (file->temporary[0] != '\0')
        unlink(file->temporary);
    file->temporary[0] = '\0';
}

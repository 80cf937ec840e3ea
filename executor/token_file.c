#include "executor/token_file.h"

#include "base/text.h"
#include "executor/token_header.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *rk_token_format_name(enum rk_token_format format) {
    static const char *const names[] = {[RK_TOKEN_RAW] = "raw", [RK_TOKEN_LLMC] = "llm.c", [RK_TOKEN_NPY] = "npy"};
    return names[format];
}

static int width_by_name(const char *path) {
    if (rk_ends_in(path, ".u32"))
        return 4;
    return rk_ends_in(path, ".u16") || rk_ends_in(path, ".bin") || rk_ends_in(path, ".npy") ? 2 : 0;
}

/* Reads until length bytes are there or the file ends. */
static ssize_t read_at(int descriptor, unsigned char *bytes, size_t length, int64_t offset) {
    size_t used = 0;
    while (used < length) {
        ssize_t got = pread(descriptor, bytes + used, length - used, (off_t)(offset + (int64_t)used));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        used += (size_t)got;
    }
    return (ssize_t)used;
}

/* Tokens of 4 bytes read as 2 look like every second token being 0 or 1, as no vocabulary under 131,072 needs more. */
static bool looks_like_four_bytes(const unsigned char *bytes, size_t length, int64_t file_bytes) {
    if (file_bytes % 4 != 0 || length < 64)
        return false;
    for (size_t i = 0; i + 4 <= length; i += 4)
        if (bytes[i + 2] > 1 || bytes[i + 3] != 0)
            return false;
    for (size_t i = 0; i + 4 <= length; i += 4)
        if (bytes[i] > 1 || bytes[i + 1] != 0)
            return true;
    return false;
}

static enum rk_status choose_raw_width(const char *path, int given, const unsigned char *bytes, size_t length,
                                       int64_t file_bytes, struct rk_token_header *header, struct rk_error *error) {
    int width = given != 0 ? given : width_by_name(path);
    if (width == 0)
        return rk_fail(
            error, RK_USAGE,
            "%s: has no header and no known ending (.bin, .u16, .u32, .npy); say how wide its tokens are with "
            "--token-bytes 2 or 4; a text must be tokenized first (reckon tokenize)",
            path);
    if (given == 0 && width == 2 && looks_like_four_bytes(bytes, length, file_bytes))
        return rk_fail(
            error, RK_USAGE,
            "%s: looks like tokens of 4 bytes, its name says 2; say --token-bytes 4 (or 2 if it really is so)", path);
    if (file_bytes % width != 0)
        return rk_fail(error, RK_USAGE,
                       "%s: %lld bytes are no multiple of %d; it is cut short or has tokens of another width", path,
                       (long long)file_bytes, width);
    header->token_bytes = width;
    header->count = file_bytes / width;
    return RK_OK;
}

static enum rk_status check_size(const char *path, const struct rk_token_header *header, int64_t file_bytes,
                                 struct rk_error *error) {
    int64_t held = (file_bytes - header->first_byte) / header->token_bytes;
    if (header->count > held)
        return rk_fail(error, RK_USAGE, "%s: the header says %lld tokens, the file holds %lld; it is cut short", path,
                       (long long)header->count, (long long)held);
    if (header->first_byte + header->count * header->token_bytes != file_bytes)
        return rk_fail(error, RK_USAGE, "%s: the header says %lld tokens, the file holds more bytes; it is damaged",
                       path, (long long)header->count);
    if (header->count == 0)
        return rk_fail(error, RK_USAGE, "%s: holds no tokens", path);
    return RK_OK;
}

static enum rk_status open_descriptor(const char *path, int *descriptor, int64_t *file_bytes, struct rk_error *error) {
    /* Without O_NONBLOCK the open of a pipe nobody writes to would wait forever. */
    *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*descriptor < 0)
        return rk_fail(error, RK_USAGE, "%s: cannot open: %s; check the name and its permissions", path,
                       strerror(errno));
    struct stat information;
    if (fstat(*descriptor, &information) != 0)
        return rk_fail(error, RK_ERROR, "%s: cannot examine: %s", path, strerror(errno));
    if (!S_ISREG(information.st_mode))
        return rk_fail(error, RK_USAGE, "%s: is not a plain file; tokens are read at random places", path);
    *file_bytes = information.st_size;
    return RK_OK;
}

enum rk_status rk_token_file_open(const char *path, int token_bytes, int64_t vocabulary, struct rk_token_file *file,
                                  struct rk_error *error) {
    int descriptor = -1;
    int64_t file_bytes = 0;
    struct rk_token_header header;
    unsigned char start[RK_TOKEN_LARGEST_HEADER];
    enum rk_status status = open_descriptor(path, &descriptor, &file_bytes, error);
    if (status != RK_OK)
        goto close_descriptor;
    ssize_t length = read_at(descriptor, start, sizeof start, 0);
    if (length < 0) {
        status = rk_fail(error, RK_ERROR, "%s: cannot read: %s", path, strerror(errno));
        goto close_descriptor;
    }
    status = rk_token_header_read(path, start, (size_t)length, &header, error);
    if (status == RK_OK && header.format == RK_TOKEN_RAW)
        status = choose_raw_width(path, token_bytes, start, (size_t)length, file_bytes, &header, error);
    else if (status == RK_OK && token_bytes != 0 && token_bytes != header.token_bytes)
        status = rk_fail(error, RK_USAGE, "%s: its header says tokens of %d bytes, --token-bytes says %d", path,
                         header.token_bytes, token_bytes);
    if (status == RK_OK)
        status = check_size(path, &header, file_bytes, error);
    if (status != RK_OK)
        goto close_descriptor;
    char *name = strdup(path);
    if (name == NULL) {
        status = rk_fail(error, RK_ERROR, "%s: not enough memory", path);
        goto close_descriptor;
    }
    *file = (struct rk_token_file){.path = name,
                                   .descriptor = descriptor,
                                   .format = header.format,
                                   .token_bytes = header.token_bytes,
                                   .first_byte = header.first_byte,
                                   .count = header.count,
                                   .vocabulary = vocabulary};
    return RK_OK;
close_descriptor:
    if (descriptor >= 0)
        close(descriptor);
    return status;
}

void rk_token_file_close(struct rk_token_file *file) {
    if (file->path == NULL)
        return;
    close(file->descriptor);
    free(file->path);
    *file = (struct rk_token_file){.descriptor = -1};
}

static enum rk_status convert(const struct rk_token_file *file, const unsigned char *bytes, int64_t first,
                              int64_t count, int32_t *out, struct rk_error *error) {
    uint32_t limit =
        file->vocabulary > 0 && file->vocabulary <= INT32_MAX ? (uint32_t)file->vocabulary : (uint32_t)INT32_MAX + 1;
    for (int64_t i = 0; i < count; i++, bytes += file->token_bytes) {
        uint32_t token = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8;
        if (file->token_bytes == 4)
            token |= (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
        if (token >= limit)
            return rk_fail(
                error, RK_USAGE,
                "%s: token %lld is %u, but the vocabulary has %u; the file was made with another tokenizer or "
                "has tokens of another width",
                file->path, (long long)(first + i), token, limit);
        out[i] = (int32_t)token;
    }
    return RK_OK;
}

enum rk_status rk_token_file_read(const struct rk_token_file *file, int64_t first, int64_t count, int32_t *out,
                                  struct rk_error *error) {
    if (first < 0 || count < 0 || first > file->count || count > file->count - first)
        return rk_fail(error, RK_USAGE, "%s: %lld tokens from %lld on were asked for, the file holds %lld", file->path,
                       (long long)count, (long long)first, (long long)file->count);
    unsigned char bytes[16384];
    const int64_t most = (int64_t)sizeof bytes / file->token_bytes;
    for (int64_t done = 0; done < count;) {
        int64_t part = count - done < most ? count - done : most;
        size_t length = (size_t)(part * file->token_bytes);
        ssize_t got = read_at(file->descriptor, bytes, length, file->first_byte + (first + done) * file->token_bytes);
        if (got < 0)
            return rk_fail(error, RK_ERROR, "%s: cannot read: %s", file->path, strerror(errno));
        if ((size_t)got < length)
            return rk_fail(error, RK_ERROR, "%s: became shorter while it was in use; restore it and resume",
                           file->path);
        enum rk_status status = convert(file, bytes, first + done, part, out + done, error);
        if (status != RK_OK)
            return status;
        done += part;
    }
    return RK_OK;
}

#include "executor/token_file.h"
#include "executor/token_header.h"

enum rk_status rk_token_writer_open(const char *path, enum rk_token_format format, int token_bytes,
                                    struct rk_token_writer *writer, struct rk_error *error) {
    writer->format = format;
    writer->token_bytes = token_bytes;
    writer->count = 0;
    writer->used = 0;
    enum rk_status status = rk_atomic_file_open(path, &writer->file, error);
    if (status != RK_OK)
        return status;
    unsigned char header[RK_TOKEN_LARGEST_HEADER];
    size_t length = rk_token_header_write(format, token_bytes, 0, header);
    if (length > 0 && writer->file.temporary[0] == '\0')
        status = rk_fail(error, RK_USAGE, "%s: a header is written last, so the output must be a plain file", path);
    else
        status = rk_atomic_file_write(&writer->file, header, length, error);
    if (status != RK_OK)
        rk_atomic_file_abandon(&writer->file);
    return status;
}

static enum rk_status flush(struct rk_token_writer *writer, struct rk_error *error) {
    enum rk_status status = rk_atomic_file_write(&writer->file, writer->buffer, (size_t)writer->used, error);
    writer->used = 0;
    return status;
}

enum rk_status rk_token_writer_add(struct rk_token_writer *writer, const int32_t *tokens, int64_t count,
                                   struct rk_error *error) {
    const int32_t highest = writer->token_bytes == 2 ? UINT16_MAX : INT32_MAX;
    for (int64_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] > highest)
            return rk_fail(error, RK_USAGE, "%s: token %d does not fit into %d bytes; choose a wider format",
                           writer->file.path, tokens[i], writer->token_bytes);
        if (writer->used + writer->token_bytes > (int)sizeof writer->buffer) {
            enum rk_status status = flush(writer, error);
            if (status != RK_OK)
                return status;
        }
        for (int byte = 0; byte < writer->token_bytes; byte++)
            writer->buffer[writer->used++] = (unsigned char)((uint32_t)tokens[i] >> (8 * byte));
        writer->count++;
    }
    return RK_OK;
}

enum rk_status rk_token_writer_commit(struct rk_token_writer *writer, struct rk_error *error) {
    enum rk_status status = RK_OK;
    if (writer->count == 0)
        status = rk_fail(error, RK_USAGE, "%s: there are no tokens to write", writer->file.path);
    else if (writer->format == RK_TOKEN_LLMC && writer->count > INT32_MAX)
        status = rk_fail(error, RK_USAGE, "%s: the header of llm.c counts at most %d tokens; choose another format",
                         writer->file.path, INT32_MAX);
    else
        status = flush(writer, error);
    if (status == RK_OK && writer->format != RK_TOKEN_RAW) {
        unsigned char header[RK_TOKEN_LARGEST_HEADER];
        size_t length = rk_token_header_write(writer->format, writer->token_bytes, writer->count, header);
        status = rk_atomic_file_rewrite(&writer->file, 0, header, length, error);
    }
    if (status == RK_OK)
        return rk_atomic_file_commit(&writer->file, error);
    rk_atomic_file_abandon(&writer->file);
    return status;
}

void rk_token_writer_abandon(struct rk_token_writer *writer) {
    rk_atomic_file_abandon(&writer->file);
}

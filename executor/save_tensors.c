#include "executor/save_tensors.h"

#include "executor/agreement.h"
#include "executor/tensor_table.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 16 };

static enum rk_status write_at(int descriptor, const char *path, const void *data, int64_t bytes, int64_t offset,
                               struct rk_error *error) {
    const char *at = data;
    while (bytes > 0) {
        ssize_t written = pwrite(descriptor, at, (size_t)bytes, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return rk_fail(error, RK_ERROR, "%s: cannot write: %s; free space or write elsewhere", path,
                           strerror(errno));
        at += written;
        offset += written;
        bytes -= written;
    }
    return RK_OK;
}

/* Rank 0: the header and the file's whole size. */
static enum rk_status create_file(const char *path, const struct rk_text *header, int64_t bytes,
                                  struct rk_error *error) {
    int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return rk_fail(error, RK_ERROR, "%s: cannot create: %s", path, strerror(errno));
    enum rk_status status = write_at(descriptor, path, header->data, (int64_t)header->length, 0, error);
    if (status == RK_OK && ftruncate(descriptor, (off_t)bytes) != 0)
        status = rk_fail(error, RK_ERROR, "%s: cannot grow to %lld bytes: %s", path, (long long)bytes, strerror(errno));
    close(descriptor);
    return status;
}

static enum rk_status copy_values(struct rk_trainer *trainer, uint32_t buffer, int64_t instance, int64_t first,
                                  int64_t count, int descriptor, const char *path, int64_t offset,
                                  struct rk_error *error) {
    enum rk_status status = RK_OK;
    float *values = malloc(CHUNK * sizeof *values);
    if (values == NULL)
        return rk_fail(error, RK_ERROR, "out of memory");
    for (int64_t done = 0; done < count && status == RK_OK; done += CHUNK) {
        int64_t bytes = (count - done < CHUNK ? count - done : CHUNK) * (int64_t)sizeof *values;
        int64_t begin = done * (int64_t)sizeof *values;
        status =
            rk_trainer_read(trainer, buffer, instance, first * (int64_t)sizeof *values + begin, values, bytes, error);
        if (status == RK_OK)
            status = write_at(descriptor, path, values, bytes, offset + begin, error);
    }
    free(values);
    return status;
}

static enum rk_status write_pieces(struct rk_trainer *trainer, enum rk_saved_values values,
                                   const struct rk_tensor_table *table, int descriptor, const char *path,
                                   struct rk_error *error) {
    const struct rk_program *program = rk_trainer_program(trainer);
    const struct rk_shards *shards = rk_trainer_shards(trainer);
    enum rk_status status = RK_OK;
    for (size_t i = 0; i < shards->count && status == RK_OK; i++) {
        const struct rk_shard_piece *piece = &shards->pieces[i];
        const struct rk_tensor *tensor = &program->tensors[piece->tensor];
        const struct rk_flat_space *space = rk_tensor_space(program, tensor);
        if (tensor->tied_copy)
            continue;
        int64_t offset =
            rk_tensor_table_find(table, tensor->name)->offset + piece->global_first * (int64_t)sizeof(float);
        bool masters = values == RK_SAVED_MASTERS;
        status = copy_values(trainer, masters ? space->master : space->gradients, 0,
                             masters ? piece->shard : piece->flat, piece->count, descriptor, path, offset, error);
    }
    for (size_t i = 0; i < program->tensor_count && status == RK_OK; i++) {
        const struct rk_tensor *tensor = &program->tensors[i];
        if (tensor->trained || values != RK_SAVED_MASTERS || rk_trainer_data_rank(trainer) != 0)
            continue;
        status = copy_values(trainer, tensor->buffer, tensor->instance, 0, rk_tensor_local_elements(tensor), descriptor,
                             path, rk_tensor_table_find(table, tensor->name)->offset, error);
    }
    return status;
}

static enum rk_status write_own(struct rk_trainer *trainer, enum rk_saved_values values,
                                const struct rk_tensor_table *table, const char *path, struct rk_error *error) {
    int descriptor = open(path, O_WRONLY | O_CLOEXEC);
    if (descriptor < 0)
        return rk_fail(error, RK_ERROR, "%s: cannot open: %s; do all ranks see this file system?", path,
                       strerror(errno));
    enum rk_status status = write_pieces(trainer, values, table, descriptor, path, error);
    if (status == RK_OK && fsync(descriptor) != 0)
        status = rk_fail(error, RK_ERROR, "%s: cannot write to the device: %s", path, strerror(errno));
    close(descriptor);
    return status;
}

enum rk_status rk_save_tensors(struct rk_trainer *trainer, const struct rk_architecture *architecture,
                               enum rk_saved_values values, const char *path, struct rk_error *error) {
    struct rk_job *job = rk_trainer_job(trainer);
    struct rk_tensor_table table = {0};
    struct rk_text header = {0};
    int64_t bytes = 0;
    char partial[PATH_MAX];
    enum rk_status status = RK_OK;
    if (snprintf(partial, sizeof partial, "%s.partial", path) >= (int)sizeof partial)
        return rk_fail(error, RK_USAGE, "'%.80s...': the name is too long", path);
    status = rk_tensor_table_make(architecture, &rk_trainer_program(trainer)->candidate, values == RK_SAVED_GRADIENTS,
                                  &table, error);
    if (status == RK_OK)
        status = rk_tensor_file_header(table.entries, table.count, &header, &bytes, error);
    if (status == RK_OK && job->place.rank == 0)
        status = create_file(partial, &header, bytes, error);
    status = rk_job_agree(job, status, error);
    if (status != RK_OK)
        goto free_table;
    status = rk_job_agree(job, write_own(trainer, values, &table, partial, error), error);
    if (status == RK_OK && job->place.rank == 0 && rename(partial, path) != 0)
        status = rk_fail(error, RK_ERROR, "%s: cannot put the new file in place: %s", path, strerror(errno));
    else if (status != RK_OK && job->place.rank == 0)
        unlink(partial);
    status = rk_job_agree(job, status, error);
free_table:
    rk_text_free(&header);
    rk_tensor_table_free(&table);
    return status;
}

#include "executor/checkpoint_internal.h"

#include "base/atomic_file.h"
#include "executor/agreement.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 16 };

static void join(char path[PATH_MAX], const char *directory, const char *folder, const char *file) {
    int length = snprintf(path, PATH_MAX, "%s/%s%s%s", directory, folder, file[0] == '\0' ? "" : "/", file);
    if (length >= PATH_MAX)
        path[0] = '\0'; /* an empty name fails where it is used */
}

/* Removes a folder and the files in it; the manifest first, so that what a crash leaves is no checkpoint. */
static void remove_folder(const char *directory, const char *folder) {
    char path[PATH_MAX], file[PATH_MAX];
    join(file, directory, folder, "manifest.json");
    unlink(file);
    join(path, directory, folder, "");
    DIR *stream = opendir(path);
    if (stream == NULL)
        return;
    for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        join(file, directory, folder, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(file);
    }
    closedir(stream);
    rmdir(path);
}

static bool has_manifest(const char *directory, const char *folder) {
    char path[PATH_MAX];
    struct stat facts;
    join(path, directory, folder, "manifest.json");
    return stat(path, &facts) == 0;
}

static enum rk_status make_folders(const char *path, struct rk_error *error) {
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = part + 1;; slash++) {
        if (*slash != '/' && *slash != '\0')
            continue;
        bool last = *slash == '\0';
        *slash = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return rk_fail(error, RK_ERROR, "%s: cannot make the folder: %s; give another directory with --checkpoint",
                           part, strerror(errno));
        if (last)
            return RK_OK;
        *slash = '/';
    }
}

enum rk_status rk_checkpoint_prepare(const char *directory, struct rk_error *error) {
    struct stat facts;
    if (strlen(directory) + RK_CHECKPOINT_NAME >= PATH_MAX)
        return rk_fail(error, RK_USAGE, "--checkpoint: the name '%.80s...' is too long", directory);
    enum rk_status status = make_folders(directory, error);
    if (status != RK_OK)
        return status;
    if (stat(directory, &facts) == 0 && !S_ISDIR(facts.st_mode))
        return rk_fail(error, RK_ERROR, "%s: is no folder; give another directory with --checkpoint", directory);
    if (access(directory, W_OK | X_OK) != 0)
        return rk_fail(error, RK_ERROR, "%s: cannot be written to: %s; give another directory with --checkpoint",
                       directory, strerror(errno));
    return RK_OK;
}

/* Rank 0 chooses a name that no valid checkpoint has, and makes the folder. */
static enum rk_status choose_folder(const char *directory, int64_t step, char folder[RK_CHECKPOINT_NAME],
                                    struct rk_error *error) {
    char path[PATH_MAX];
    snprintf(folder, RK_CHECKPOINT_NAME, "step-%08lld", (long long)step);
    for (int attempt = 1; has_manifest(directory, folder); attempt++)
        snprintf(folder, RK_CHECKPOINT_NAME, "step-%08lld.%d", (long long)step, attempt);
    remove_folder(directory, folder);
    join(path, directory, folder, "");
    if (path[0] == '\0')
        return rk_fail(error, RK_USAGE, "--checkpoint: the name '%.80s...' is too long", directory);
    return make_folders(path, error);
}

struct shard_writer {
    struct rk_trainer *trainer;
    struct rk_atomic_file file;
    struct rk_sha256 hash;
    float *values; /* CHUNK */
};

static enum rk_status write_bytes(struct shard_writer *writer, const void *data, int64_t bytes,
                                  struct rk_error *error) {
    rk_sha256_add(&writer->hash, data, (size_t)bytes);
    return rk_atomic_file_write(&writer->file, data, (size_t)bytes, error);
}

static enum rk_status write_buffer(struct shard_writer *writer, uint32_t buffer, int64_t instance, int64_t first,
                                   int64_t count, struct rk_error *error) {
    enum rk_status status = RK_OK;
    for (int64_t done = 0; done < count && status == RK_OK; done += CHUNK) {
        int64_t bytes = (count - done < CHUNK ? count - done : CHUNK) * (int64_t)sizeof(float);
        status = rk_trainer_read(writer->trainer, buffer, instance, (first + done) * (int64_t)sizeof(float),
                                 writer->values, bytes, error);
        if (status == RK_OK)
            status = write_bytes(writer, writer->values, bytes, error);
    }
    return status;
}

/* Trained pieces in the order of the shards, then untrained tensors. */
static enum rk_status write_values(struct shard_writer *writer, struct rk_error *error) {
    const struct rk_program *program = rk_trainer_program(writer->trainer);
    const struct rk_shards *shards = rk_trainer_shards(writer->trainer);
    enum rk_status status = RK_OK;
    for (size_t i = 0; i < shards->count && status == RK_OK; i++) {
        const struct rk_shard_piece *piece = &shards->pieces[i];
        const struct rk_tensor *tensor = &program->tensors[piece->tensor];
        const struct rk_flat_space *space = rk_tensor_space(program, tensor);
        const uint32_t buffers[] = {space->master, space->first_moment, space->second_moment};
        for (size_t b = 0; b < 3 && status == RK_OK && !tensor->tied_copy; b++)
            status = write_buffer(writer, buffers[b], 0, piece->shard, piece->count, error);
    }
    for (size_t i = 0; i < program->tensor_count && status == RK_OK; i++) {
        const struct rk_tensor *tensor = &program->tensors[i];
        if (!tensor->trained && rk_trainer_data_rank(writer->trainer) == 0)
            status = write_buffer(writer, tensor->buffer, tensor->instance, 0, rk_tensor_local_elements(tensor), error);
    }
    return status;
}

/* In the same order as write_values. */
static enum rk_status list_pieces(struct rk_trainer *trainer, struct rk_saved_piece **pieces, size_t *count,
                                  struct rk_error *error) {
    const struct rk_program *program = rk_trainer_program(trainer);
    const struct rk_shards *shards = rk_trainer_shards(trainer);
    struct rk_saved_piece *made = calloc(shards->count + program->tensor_count + 1, sizeof *made);
    size_t used = 0;
    if (made == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the list of pieces");
    for (size_t i = 0; i < shards->count; i++) {
        const struct rk_shard_piece *piece = &shards->pieces[i];
        const struct rk_tensor *tensor = &program->tensors[piece->tensor];
        if (tensor->tied_copy)
            continue;
        made[used].first = piece->global_first;
        made[used].count = piece->count;
        made[used].state = RK_SHARD_OPTIMIZER;
        memcpy(made[used++].tensor, tensor->name, sizeof tensor->name);
    }
    for (size_t i = 0; i < program->tensor_count; i++) {
        const struct rk_tensor *tensor = &program->tensors[i];
        if (tensor->trained || rk_trainer_data_rank(trainer) != 0)
            continue;
        made[used].count = rk_tensor_local_elements(tensor);
        made[used].state = RK_SHARD_VALUE;
        memcpy(made[used++].tensor, tensor->name, sizeof tensor->name);
    }
    *pieces = made;
    *count = used;
    return RK_OK;
}

static enum rk_status write_shard(struct rk_trainer *trainer, const char *directory, const char *folder,
                                  struct rk_saved_file *saved, struct rk_error *error) {
    struct shard_writer writer = {.trainer = trainer};
    struct rk_saved_piece *pieces = NULL;
    struct rk_text header = {0};
    size_t count = 0;
    char path[PATH_MAX];
    snprintf(saved->name, sizeof saved->name, "rank-%05lld.bin", (long long)rk_trainer_job(trainer)->place.rank);
    join(path, directory, folder, saved->name);
    enum rk_status status = list_pieces(trainer, &pieces, &count, error);
    if (status == RK_OK)
        status = rk_shard_header_print(pieces, count, &header, &saved->bytes, error);
    if (status != RK_OK)
        goto free_pieces;
    writer.values = malloc(CHUNK * sizeof *writer.values);
    if (writer.values == NULL) {
        status = rk_fail(error, RK_ERROR, "out of memory for writing a checkpoint");
        goto free_pieces;
    }
    status = rk_atomic_file_open(path, &writer.file, error);
    if (status != RK_OK)
        goto free_values;
    rk_sha256_begin(&writer.hash);
    status = write_bytes(&writer, header.data, (int64_t)header.length, error);
    if (status == RK_OK)
        status = write_values(&writer, error);
    if (status == RK_OK)
        status = rk_atomic_file_commit(&writer.file, error);
    rk_atomic_file_abandon(&writer.file);
    rk_sha256_end_hex(&writer.hash, saved->sha256);
free_values:
    free(writer.values);
free_pieces:
    rk_text_free(&header);
    free(pieces);
    return status;
}

static enum rk_status write_manifest(struct rk_trainer *trainer, const struct rk_architecture *architecture,
                                     const char *directory, const char *folder, const struct rk_checkpoint_facts *facts,
                                     struct rk_saved_file *files, struct rk_error *error) {
    const struct rk_candidate *candidate = &rk_trainer_program(trainer)->candidate;
    struct rk_manifest manifest = {
        .facts = *facts,
        .pipeline = candidate->pipeline,
        .virtual_stages = candidate->virtual_stages,
        .expert_parallel = candidate->expert_parallel,
        .data_parallel = candidate->data_parallel,
        .files = files,
        .file_count = (size_t)rk_trainer_job(trainer)->place.world,
    };
    struct rk_text text = {0};
    char path[PATH_MAX], name[RK_CHECKPOINT_NAME + 2];
    snprintf(manifest.model, sizeof manifest.model, "%s", architecture->name);
    snprintf(manifest.type, sizeof manifest.type, "%s", rk_data_type_name(candidate->type));
    enum rk_status status = rk_tensor_table_make(architecture, candidate, false, &manifest.tensors, error);
    if (status == RK_OK)
        status = rk_manifest_print(&manifest, &text, error);
    join(path, directory, folder, "manifest.json");
    if (status == RK_OK)
        status = rk_write_file(path, text.data, text.length, error);
    join(path, directory, "latest", "");
    snprintf(name, sizeof name, "%s\n", folder);
    if (status == RK_OK)
        status = rk_write_file(path, name, strlen(name), error);
    rk_text_free(&text);
    rk_tensor_table_free(&manifest.tensors);
    return status;
}

struct old_folder {
    char name[RK_CHECKPOINT_NAME];
    int64_t step;
    bool valid;
};

static int compare_folders(const void *left, const void *right) {
    const struct old_folder *a = left, *b = right;
    return a->step != b->step ? (a->step < b->step) - (a->step > b->step) : -strcmp(a->name, b->name);
}

/* Keeps the newest valid folders, and `current` in any case; what crashes left behind goes too. Failing to remove is no
 * failure of the checkpoint. */
static void prune(const char *directory, const char *current, int64_t keep) {
    struct old_folder *folders = NULL;
    size_t count = 0;
    int64_t kept = 1;
    DIR *stream = opendir(directory);
    if (stream == NULL)
        return;
    for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        int64_t step = 0;
        if (!rk_checkpoint_folder_step(entry->d_name, &step) || strcmp(entry->d_name, current) == 0)
            continue;
        struct old_folder *grown = realloc(folders, (count + 1) * sizeof *grown);
        if (grown == NULL)
            break;
        folders = grown;
        folders[count] = (struct old_folder){.step = step, .valid = has_manifest(directory, entry->d_name)};
        snprintf(folders[count++].name, sizeof folders->name, "%.39s", entry->d_name);
    }
    closedir(stream);
    if (count > 0)
        qsort(folders, count, sizeof *folders, compare_folders);
    for (size_t i = 0; i < count; i++) {
        if (folders[i].valid && (keep == 0 || kept < keep))
            kept++;
        else
            remove_folder(directory, folders[i].name);
    }
    free(folders);
}

/* Rank 0's choice, told to all. */
static enum rk_status agree_on_folder(struct rk_job *job, const char *directory, int64_t step,
                                      char folder[RK_CHECKPOINT_NAME], struct rk_error *error) {
    char mine[RK_CHECKPOINT_NAME] = "";
    enum rk_status status = RK_OK;
    if (job->place.rank == 0)
        status = choose_folder(directory, step, mine, error);
    status = rk_job_agree(job, status, error);
    if (status != RK_OK)
        return status;
    char *all = calloc((size_t)job->place.world, RK_CHECKPOINT_NAME);
    if (all == NULL)
        return rk_fail(error, RK_ERROR, "out of memory");
    status = rk_job_all_gather(job, mine, RK_CHECKPOINT_NAME, all, error);
    memcpy(folder, all, RK_CHECKPOINT_NAME);
    folder[RK_CHECKPOINT_NAME - 1] = '\0';
    free(all);
    return status;
}

enum rk_status rk_checkpoint_save(struct rk_trainer *trainer, const struct rk_architecture *architecture,
                                  const char *directory, int64_t keep, const struct rk_checkpoint_facts *facts,
                                  struct rk_error *error) {
    struct rk_job *job = rk_trainer_job(trainer);
    struct rk_saved_file mine = {0};
    char folder[RK_CHECKPOINT_NAME] = "";
    enum rk_status status = agree_on_folder(job, directory, facts->step, folder, error);
    if (status != RK_OK)
        return status;
    struct rk_saved_file *files = calloc((size_t)job->place.world, sizeof *files);
    if (files == NULL)
        status = rk_fail(error, RK_ERROR, "out of memory for the list of files");
    if (status == RK_OK)
        status = write_shard(trainer, directory, folder, &mine, error);
    status = rk_job_agree(job, status, error);
    if (status == RK_OK)
        status = rk_job_all_gather(job, &mine, sizeof mine, files, error);
    if (status == RK_OK && job->place.rank == 0)
        status = write_manifest(trainer, architecture, directory, folder, facts, files, error);
    /* From here on the checkpoint is valid and `latest` names it, even if a rank is lost before all have agreed. When
     * one was lost before, others may still be writing: what they leave goes with the next checkpoint. */
    if (job->place.rank == 0 && status == RK_OK)
        prune(directory, folder, keep);
    else if (job->place.rank == 0 && status != RK_RANK_FAILED)
        remove_folder(directory, folder);
    status = rk_job_agree(job, status, error);
    free(files);
    return status;
}

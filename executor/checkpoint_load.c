#include "executor/checkpoint_internal.h"

#include "executor/agreement.h"
#include "executor/initialise.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 16 };

/* A checkpoint being read. Files are opened and verified when they are first needed, so that a rank under the layout
 * that wrote it reads little more than its own shard's stage. */
struct reader {
    char folder[PATH_MAX];
    struct rk_manifest manifest;
    int *descriptors;              /* of each file, -1: not open */
    struct rk_saved_piece *pieces; /* of all files, sorted by tensor and place */
    size_t piece_count;
    int value; /* which of a piece's values is read: 0 master, 1 and 2 moments */
};

static void file_path(const struct reader *reader, size_t file, char path[PATH_MAX]) {
    if (snprintf(path, PATH_MAX, "%s/%s", reader->folder, reader->manifest.files[file].name) >= PATH_MAX)
        path[0] = '\0';
}

static enum rk_status find_latest(const char *directory, char folder[PATH_MAX], struct rk_error *error) {
    char path[PATH_MAX], *name = NULL;
    size_t length = 0;
    int64_t step = 0;
    if (snprintf(path, sizeof path, "%s/latest", directory) >= (int)sizeof path)
        return rk_fail(error, RK_USAGE, "--checkpoint: the name '%.80s...' is too long", directory);
    enum rk_status status = rk_read_file(path, 4096, &name, &length, error);
    if (status != RK_OK)
        return rk_fail_context(error, "no checkpoint to resume from");
    while (length > 0 && (name[length - 1] == '\n' || name[length - 1] == '\r'))
        name[--length] = '\0';
    if (strlen(name) != length || !rk_checkpoint_folder_step(name, &step))
        status = rk_fail(
            error, RK_ERROR,
            "%s: does not name a checkpoint; write the name of a folder step-... of this directory into it", path);
    else if (snprintf(folder, PATH_MAX, "%s/%s", directory, name) >= PATH_MAX)
        status = rk_fail(error, RK_USAGE, "--checkpoint: the name '%.80s...' is too long", directory);
    free(name);
    return status;
}

/* What a rank sees of `latest`. */
struct sight {
    int64_t exists;
    char name[RK_CHECKPOINT_NAME];
};

static struct sight look_for_latest(const char *directory) {
    char path[PATH_MAX], *name = NULL;
    size_t length = 0;
    struct stat facts;
    struct sight seen = {0};
    if (snprintf(path, sizeof path, "%s/latest", directory) >= (int)sizeof path || stat(path, &facts) != 0)
        return seen;
    seen.exists = 1;
    /* One that cannot be read is found out, and named, where it is loaded. */
    if (rk_read_file(path, 4096, &name, &length, NULL) == RK_OK)
        memcpy(seen.name, name, length < sizeof seen.name ? length : sizeof seen.name);
    free(name);
    return seen;
}

enum rk_status rk_checkpoint_find(struct rk_job *job, const char *directory, bool *exists, struct rk_error *error) {
    struct sight mine = look_for_latest(directory);
    struct sight *all = calloc((size_t)job->place.world, sizeof *all);
    if (all == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the answers of %lld ranks", (long long)job->place.world);
    enum rk_status status = rk_job_all_gather(job, &mine, sizeof mine, all, error);
    for (int64_t rank = 1; rank < job->place.world && status == RK_OK; rank++)
        if (memcmp(&all[rank], &all[0], sizeof all[0]) != 0)
            status =
                rk_fail(error, RK_USAGE,
                        "%s: rank %lld (host %s) sees %s there, and rank 0 (host %s) %s; give a directory on a file "
                        "system that all ranks see",
                        directory, (long long)rank, job->peers[rank].host,
                        all[rank].exists == 0 ? "no checkpoint"
                        : all[0].exists == 0  ? "a checkpoint"
                                              : "another checkpoint",
                        job->peers[0].host, all[0].exists == 0 ? "none" : "one");
    if (status == RK_OK)
        status = rk_job_agree(job, job->place.rank == 0 ? rk_checkpoint_prepare(directory, error) : RK_OK, error);
    if (status == RK_OK)
        *exists = all[0].exists != 0;
    free(all);
    return status;
}

static enum rk_status check_tensors(const struct rk_manifest *manifest, const struct rk_tensor_table *wanted,
                                    const char *path, struct rk_error *error) {
    for (size_t i = 0; i < wanted->count; i++) {
        const struct rk_tensor_entry *want = &wanted->entries[i];
        const struct rk_tensor_entry *have = rk_tensor_table_find(&manifest->tensors, want->name);
        if (have == NULL)
            return rk_fail(error, RK_USAGE, "%s: holds no tensor '%s': it is a checkpoint of another model (%s)", path,
                           want->name, manifest->model);
        if (have->rank != want->rank || memcmp(have->shape, want->shape, sizeof have->shape) != 0)
            return rk_fail(error, RK_USAGE,
                           "%s: %s has %lld x %lld x %lld elements, the plan's model wants %lld x %lld x %lld: it is a "
                           "checkpoint of another model (%s)",
                           path, want->name, (long long)have->shape[0], (long long)have->shape[1],
                           (long long)have->shape[2], (long long)want->shape[0], (long long)want->shape[1],
                           (long long)want->shape[2], manifest->model);
    }
    if (manifest->tensors.count != wanted->count)
        return rk_fail(error, RK_USAGE, "%s: holds %zu tensors, the plan's model has %zu: it is of another model (%s)",
                       path, manifest->tensors.count, wanted->count, manifest->model);
    return RK_OK;
}

static enum rk_status check_manifest(const struct reader *reader, const struct rk_candidate *candidate,
                                     const struct rk_architecture *architecture, const char *path,
                                     struct rk_error *error) {
    struct rk_tensor_table wanted = {0};
    const struct rk_manifest *manifest = &reader->manifest;
    enum rk_status status = rk_tensor_table_make(architecture, candidate, false, &wanted, error);
    if (status == RK_OK)
        status = check_tensors(manifest, &wanted, path, error);
    if (status == RK_OK && manifest->facts.global_batch_tokens != candidate->global_batch_tokens)
        status =
            rk_fail(error, RK_USAGE,
                    "%s: was written with a global batch of %lld tokens, the plan has %lld; plan with the same", path,
                    (long long)manifest->facts.global_batch_tokens, (long long)candidate->global_batch_tokens);
    rk_tensor_table_free(&wanted);
    return status;
}

static int compare_pieces(const void *left, const void *right) {
    const struct rk_saved_piece *a = left, *b = right;
    int order = strcmp(a->tensor, b->tensor);
    return order != 0 ? order : (a->first > b->first) - (a->first < b->first);
}

static enum rk_status check_size(const char *path, int64_t wanted, struct rk_error *error) {
    struct stat facts;
    if (stat(path, &facts) != 0)
        return rk_fail(error, RK_ERROR, "%s: is listed in the manifest but cannot be read: %s", path, strerror(errno));
    if (facts.st_size != wanted)
        return rk_fail(error, RK_ERROR,
                       "%s: has %lld bytes, the manifest says %lld: it is truncated or of another checkpoint; resume "
                       "from an older one by writing its folder's name into 'latest'",
                       path, (long long)facts.st_size, (long long)wanted);
    return RK_OK;
}

static enum rk_status read_headers(struct reader *reader, struct rk_error *error) {
    enum rk_status status = RK_OK;
    for (size_t i = 0; i < reader->manifest.file_count && status == RK_OK; i++) {
        char path[PATH_MAX];
        file_path(reader, i, path);
        status = check_size(path, reader->manifest.files[i].bytes, error);
        if (status == RK_OK)
            status = rk_shard_header_read(path, i, reader->manifest.files[i].bytes, &reader->pieces,
                                          &reader->piece_count, error);
    }
    if (status == RK_OK && reader->piece_count > 0)
        qsort(reader->pieces, reader->piece_count, sizeof *reader->pieces, compare_pieces);
    return status;
}

static enum rk_status open_reader(const char *directory, const struct rk_candidate *candidate,
                                  const struct rk_architecture *architecture, struct reader *reader,
                                  struct rk_error *error) {
    char path[PATH_MAX];
    enum rk_status status = find_latest(directory, reader->folder, error);
    if (status != RK_OK)
        return status;
    if (snprintf(path, sizeof path, "%s/manifest.json", reader->folder) >= (int)sizeof path)
        return rk_fail(error, RK_USAGE, "--checkpoint: the name '%.80s...' is too long", directory);
    if (access(path, F_OK) != 0)
        return rk_fail(error, RK_ERROR,
                       "%s: is missing: this checkpoint was never finished or was removed; resume from an older one by "
                       "writing its folder's name into 'latest'",
                       path);
    status = rk_manifest_read(path, &reader->manifest, error);
    if (status == RK_OK)
        status = check_manifest(reader, candidate, architecture, path, error);
    if (status != RK_OK)
        return status;
    reader->descriptors = calloc(reader->manifest.file_count, sizeof *reader->descriptors);
    if (reader->descriptors == NULL)
        return rk_fail(error, RK_ERROR, "%s: out of memory", path);
    for (size_t i = 0; i < reader->manifest.file_count; i++)
        reader->descriptors[i] = -1;
    return read_headers(reader, error);
}

static void close_reader(struct reader *reader) {
    for (size_t i = 0; reader->descriptors != NULL && i < reader->manifest.file_count; i++)
        if (reader->descriptors[i] >= 0)
            close(reader->descriptors[i]);
    free(reader->descriptors);
    free(reader->pieces);
    rk_manifest_free(&reader->manifest);
}

/* The first use of a file verifies the whole of it. */
static enum rk_status open_verified(struct reader *reader, size_t file, struct rk_error *error) {
    char path[PATH_MAX], found[RK_SHA256_HEX];
    if (reader->descriptors[file] >= 0)
        return RK_OK;
    file_path(reader, file, path);
    enum rk_status status = rk_sha256_file(path, found, error);
    if (status != RK_OK)
        return status;
    if (strcmp(found, reader->manifest.files[file].sha256) != 0)
        return rk_fail(error, RK_ERROR,
                       "%s: its SHA-256 is not the manifest's: it is damaged; resume from an older checkpoint by "
                       "writing its folder's name into 'latest'",
                       path);
    reader->descriptors[file] = open(path, O_RDONLY | O_CLOEXEC);
    if (reader->descriptors[file] < 0)
        return rk_fail(error, RK_ERROR, "%s: cannot open: %s", path, strerror(errno));
    return RK_OK;
}

static enum rk_status read_piece(struct reader *reader, const struct rk_saved_piece *piece, int64_t skip, int64_t count,
                                 float *values, struct rk_error *error) {
    char path[PATH_MAX], *at = (char *)values;
    enum rk_status status = open_verified(reader, piece->file, error);
    if (status != RK_OK)
        return status;
    int64_t element = (piece->state == RK_SHARD_OPTIMIZER ? reader->value * piece->count : 0) + skip;
    int64_t offset = piece->offset + element * (int64_t)sizeof *values;
    int64_t bytes = count * (int64_t)sizeof *values;
    while (bytes > 0) {
        ssize_t got = pread(reader->descriptors[piece->file], at, (size_t)bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            file_path(reader, piece->file, path);
            return rk_fail(error, RK_ERROR, "%s: cannot read at byte %lld: %s", path, (long long)offset,
                           got == 0 ? "the file ends" : strerror(errno));
        }
        at += got;
        offset += got;
        bytes -= got;
    }
    return RK_OK;
}

/* The last piece of the tensor that begins at or before the element; NULL when there is none. */
static const struct rk_saved_piece *find_piece(const struct reader *reader, const char *tensor, int64_t element) {
    size_t low = 0, high = reader->piece_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct rk_saved_piece *piece = &reader->pieces[middle];
        int order = strcmp(piece->tensor, tensor);
        if (order < 0 || (order == 0 && piece->first <= element))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 || strcmp(reader->pieces[low - 1].tensor, tensor) != 0)
        return NULL;
    return &reader->pieces[low - 1];
}

static enum rk_status read_saved(void *context, const struct rk_program *program, const struct rk_tensor *tensor,
                                 int64_t first, int64_t count, float *values, struct rk_error *error) {
    struct reader *reader = context;
    (void)program;
    while (count > 0) {
        const struct rk_saved_piece *piece = find_piece(reader, tensor->name, first);
        if (piece == NULL || first - piece->first >= piece->count)
            return rk_fail(error, RK_ERROR, "%s/manifest.json: no file holds element %lld of %s", reader->folder,
                           (long long)first, tensor->name);
        int64_t skip = first - piece->first;
        int64_t part = piece->count - skip < count ? piece->count - skip : count;
        enum rk_status status = read_piece(reader, piece, skip, part, values, error);
        if (status != RK_OK)
            return status;
        first += part;
        values += part;
        count -= part;
    }
    return RK_OK;
}

static enum rk_status load_moments(struct rk_trainer *trainer, struct reader *reader, struct rk_error *error) {
    const struct rk_program *program = rk_trainer_program(trainer);
    const struct rk_shards *shards = rk_trainer_shards(trainer);
    enum rk_status status = RK_OK;
    float *values = malloc(CHUNK * sizeof *values);
    if (values == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the loading of moments");
    for (size_t i = 0; i < 2 * shards->count && status == RK_OK; i++) {
        const struct rk_shard_piece *piece = &shards->pieces[i / 2];
        const struct rk_tensor *tensor = &program->tensors[piece->tensor];
        const struct rk_flat_space *space = rk_tensor_space(program, tensor);
        reader->value = i % 2 == 0 ? 1 : 2;
        for (int64_t done = 0; done < piece->count && status == RK_OK; done += CHUNK) {
            int64_t count = piece->count - done < CHUNK ? piece->count - done : CHUNK;
            status = read_saved(reader, program, tensor, piece->global_first + done, count, values, error);
            if (status == RK_OK)
                status = rk_trainer_write(trainer, i % 2 == 0 ? space->first_moment : space->second_moment, 0,
                                          (piece->shard + done) * (int64_t)sizeof *values, values,
                                          count * (int64_t)sizeof *values, error);
        }
    }
    free(values);
    return status;
}

enum rk_status rk_checkpoint_load(struct rk_trainer *trainer, const struct rk_architecture *architecture,
                                  const char *directory, struct rk_checkpoint_facts *facts, struct rk_error *error) {
    struct reader reader = {.value = 0};
    struct rk_tensor_source source = {read_saved, &reader};
    enum rk_status status =
        open_reader(directory, &rk_trainer_program(trainer)->candidate, architecture, &reader, error);
    if (status == RK_OK)
        status = rk_load_weights(trainer, &source, error);
    if (status == RK_OK)
        status = load_moments(trainer, &reader, error);
    struct rk_checkpoint_facts read = reader.manifest.facts;
    close_reader(&reader);
    status = rk_job_agree(rk_trainer_job(trainer), status, error);
    if (status == RK_OK)
        *facts = read;
    return status;
}

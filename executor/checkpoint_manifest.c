#include "executor/checkpoint_internal.h"

#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_LINE = 1024, MOST_PIECES = 1 << 22, MOST_FILES = 1 << 20, MOST_TENSORS = 1 << 20, ALIGNMENT = 4096 };
static const int64_t LARGEST_NUMBER = (int64_t)1 << 50;

static const char *const state_names[RK_SHARD_STATE_COUNT] = {
#define RK_SHARD_STATE_TEXT(name, text, values) text,
    RK_SHARD_STATE_TABLE(RK_SHARD_STATE_TEXT)
#undef RK_SHARD_STATE_TEXT
};

static const int64_t state_values[RK_SHARD_STATE_COUNT] = {
#define RK_SHARD_STATE_VALUES(name, text, values) values,
    RK_SHARD_STATE_TABLE(RK_SHARD_STATE_VALUES)
#undef RK_SHARD_STATE_VALUES
};

bool rk_checkpoint_folder_step(const char *name, int64_t *step) {
    char again[64];
    long long found = 0, suffix = 0;
    int fields = sscanf(name, "step-%lld.%lld", &found, &suffix);
    if (fields < 1 || found < 0 || suffix < 0)
        return false;
    if (fields == 2 && suffix > 0)
        snprintf(again, sizeof again, "step-%08lld.%lld", found, suffix);
    else
        snprintf(again, sizeof again, "step-%08lld", found);
    *step = found;
    return strcmp(name, again) == 0;
}

/* Each returns false when memory ran out: a manifest without its lists would pass for a checkpoint. */
static bool add_number(cJSON *object, const char *key, double value) {
    return cJSON_AddNumberToObject(object, key, value) != NULL;
}

static bool add_string(cJSON *object, const char *key, const char *value) {
    return cJSON_AddStringToObject(object, key, value) != NULL;
}

static cJSON *add_object(cJSON *list) {
    cJSON *item = cJSON_CreateObject();
    if (cJSON_AddItemToArray(list, item))
        return item;
    cJSON_Delete(item);
    return NULL;
}

static bool add_shape(cJSON *object, const struct rk_tensor_entry *entry) {
    double shape[3];
    for (int d = 0; d < 3; d++)
        shape[d] = (double)entry->shape[d];
    cJSON *list = cJSON_CreateDoubleArray(shape, entry->rank);
    if (cJSON_AddItemToObject(object, "shape", list))
        return true;
    cJSON_Delete(list);
    return false;
}

static bool print_tensors(cJSON *root, const struct rk_tensor_table *table) {
    cJSON *list = cJSON_AddArrayToObject(root, "tensors");
    bool complete = list != NULL;
    for (size_t i = 0; i < table->count && complete; i++) {
        cJSON *item = add_object(list);
        complete =
            item != NULL && add_string(item, "name", table->entries[i].name) && add_shape(item, &table->entries[i]);
    }
    return complete;
}

static bool print_files(cJSON *root, const struct rk_manifest *manifest) {
    cJSON *list = cJSON_AddArrayToObject(root, "files");
    bool complete = list != NULL;
    for (size_t i = 0; i < manifest->file_count && complete; i++) {
        const struct rk_saved_file *file = &manifest->files[i];
        cJSON *item = add_object(list);
        complete = item != NULL && add_string(item, "name", file->name) &&
                   add_number(item, "bytes", (double)file->bytes) && add_string(item, "sha256", file->sha256);
    }
    return complete;
}

static bool print_layout(cJSON *root, const struct rk_manifest *manifest) {
    cJSON *layout = cJSON_AddObjectToObject(root, "layout");
    return layout != NULL && add_number(layout, "pipeline", (double)manifest->pipeline) &&
           add_number(layout, "virtual_stages", (double)manifest->virtual_stages) &&
           add_number(layout, "expert_parallel", (double)manifest->expert_parallel) &&
           add_number(layout, "data_parallel", (double)manifest->data_parallel) &&
           add_string(layout, "type", manifest->type);
}

static bool print_head(cJSON *root, const struct rk_manifest *manifest) {
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)manifest->facts.seed);
    return add_string(root, "format", RK_CHECKPOINT_FORMAT) && add_number(root, "version", RK_CHECKPOINT_VERSION) &&
           add_number(root, "step", (double)manifest->facts.step) && add_string(root, "model", manifest->model) &&
           add_number(root, "global_batch_tokens", (double)manifest->facts.global_batch_tokens) &&
           add_string(root, "seed", seed) && add_string(root, "data", manifest->facts.data);
}

enum rk_status rk_manifest_print(const struct rk_manifest *manifest, struct rk_text *text, struct rk_error *error) {
    cJSON *root = cJSON_CreateObject();
    enum rk_status status = RK_OK;
    if (root == NULL || !print_head(root, manifest) || !print_layout(root, manifest) ||
        !print_tensors(root, &manifest->tensors) || !print_files(root, manifest))
        status = rk_fail(error, RK_ERROR, "out of memory for the manifest of a checkpoint");
    if (status == RK_OK)
        status = rk_json_print(root, text, error);
    cJSON_Delete(root);
    return status;
}

static enum rk_status read_tensor(const char *path, int index, const cJSON *item, struct rk_tensor_entry *entry,
                                  struct rk_error *error) {
    char place[40];
    struct rk_json_object object;
    const cJSON *shape = NULL;
    snprintf(place, sizeof place, "tensors[%d]", index);
    enum rk_status status = rk_json_open(path, place, item, &object, error);
    if (status == RK_OK)
        status = rk_json_string(&object, "name", entry->name, sizeof entry->name, error);
    if (status == RK_OK)
        status = rk_json_array(&object, "shape", &shape, error);
    if (status != RK_OK)
        return status;
    entry->rank = cJSON_GetArraySize(shape);
    if (entry->rank < 1 || entry->rank > 3)
        return rk_fail(error, RK_USAGE, "%s: %s.shape: 1 to 3 dimensions are known", path, place);
    for (int d = 0; d < 3; d++) {
        const cJSON *size = d < entry->rank ? cJSON_GetArrayItem(shape, d) : NULL;
        double value = size == NULL ? 1 : cJSON_IsNumber(size) ? size->valuedouble : 0;
        if (!(value >= 1 && value <= (double)LARGEST_NUMBER) || value != (double)(int64_t)value)
            return rk_fail(error, RK_USAGE, "%s: %s.shape[%d] is not a whole positive number", path, place, d);
        entry->shape[d] = (int64_t)value;
    }
    return RK_OK;
}

static enum rk_status read_tensors(const char *path, struct rk_json_object *root, struct rk_manifest *manifest,
                                   struct rk_error *error) {
    const cJSON *list = NULL;
    enum rk_status status = rk_json_array(root, "tensors", &list, error);
    if (status != RK_OK)
        return status;
    int count = cJSON_GetArraySize(list), index = 0;
    if (count < 1 || count > MOST_TENSORS)
        return rk_fail(error, RK_USAGE, "%s: tensors: %d of them", path, count);
    manifest->tensors.entries = calloc((size_t)count, sizeof *manifest->tensors.entries);
    if (manifest->tensors.entries == NULL)
        return rk_fail(error, RK_ERROR, "%s: out of memory", path);
    manifest->tensors.count = (size_t)count;
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, list) {
        status = read_tensor(path, index, item, &manifest->tensors.entries[index], error);
        if (status != RK_OK)
            return status;
        index++;
    }
    return RK_OK;
}

static enum rk_status read_file_entry(const char *path, int index, const cJSON *item, struct rk_saved_file *file,
                                      struct rk_error *error) {
    char place[40];
    struct rk_json_object object;
    snprintf(place, sizeof place, "files[%d]", index);
    enum rk_status status = rk_json_open(path, place, item, &object, error);
    if (status == RK_OK)
        status = rk_json_string(&object, "name", file->name, sizeof file->name, error);
    if (status == RK_OK)
        status = rk_json_integer(&object, "bytes", 1, LARGEST_NUMBER, &file->bytes, error);
    if (status == RK_OK)
        status = rk_json_string(&object, "sha256", file->sha256, sizeof file->sha256, error);
    if (status == RK_OK && (strchr(file->name, '/') != NULL || file->name[0] == '.' || file->name[0] == '\0'))
        status = rk_fail(error, RK_USAGE, "%s: %s.name '%s' is not a plain file name", path, place, file->name);
    return status;
}

static enum rk_status read_files(const char *path, struct rk_json_object *root, struct rk_manifest *manifest,
                                 struct rk_error *error) {
    const cJSON *list = NULL;
    enum rk_status status = rk_json_array(root, "files", &list, error);
    if (status != RK_OK)
        return status;
    int count = cJSON_GetArraySize(list), index = 0;
    if (count < 1 || count > MOST_FILES)
        return rk_fail(error, RK_USAGE, "%s: files: %d of them", path, count);
    manifest->files = calloc((size_t)count, sizeof *manifest->files);
    if (manifest->files == NULL)
        return rk_fail(error, RK_ERROR, "%s: out of memory", path);
    manifest->file_count = (size_t)count;
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, list) {
        status = read_file_entry(path, index, item, &manifest->files[index], error);
        if (status != RK_OK)
            return status;
        index++;
    }
    return RK_OK;
}

static enum rk_status read_layout(struct rk_json_object *root, struct rk_manifest *manifest, struct rk_error *error) {
    struct rk_json_object layout;
    enum rk_status status = rk_json_child(root, "layout", &layout, error);
    if (status == RK_OK)
        status = rk_json_integer(&layout, "pipeline", 1, RK_STAGES_MAX, &manifest->pipeline, error);
    if (status == RK_OK)
        status = rk_json_integer(&layout, "virtual_stages", 1, RK_VIRTUAL_STAGES_MAX, &manifest->virtual_stages, error);
    if (status == RK_OK)
        status = rk_json_integer(&layout, "expert_parallel", 1, INT32_MAX, &manifest->expert_parallel, error);
    if (status == RK_OK)
        status = rk_json_integer(&layout, "data_parallel", 1, INT32_MAX, &manifest->data_parallel, error);
    if (status == RK_OK)
        status = rk_json_string(&layout, "type", manifest->type, sizeof manifest->type, error);
    return status;
}

static enum rk_status read_head(const char *path, struct rk_json_object *root, struct rk_manifest *manifest,
                                struct rk_error *error) {
    char format[32], seed[24], *end = NULL;
    int64_t version = 0;
    enum rk_status status = rk_json_string(root, "format", format, sizeof format, error);
    if (status == RK_OK && strcmp(format, RK_CHECKPOINT_FORMAT) != 0)
        status = rk_fail(error, RK_USAGE, "%s: format '%s' is not a checkpoint's", path, format);
    if (status == RK_OK)
        status = rk_json_integer(root, "version", 1, INT32_MAX, &version, error);
    if (status == RK_OK && version != RK_CHECKPOINT_VERSION)
        status = rk_fail(error, RK_USAGE, "%s: version %lld; this program reads version %d", path, (long long)version,
                         RK_CHECKPOINT_VERSION);
    if (status == RK_OK)
        status = rk_json_integer(root, "step", 0, LARGEST_NUMBER, &manifest->facts.step, error);
    if (status == RK_OK)
        status = rk_json_string(root, "model", manifest->model, sizeof manifest->model, error);
    if (status == RK_OK)
        status = rk_json_integer(root, "global_batch_tokens", 1, LARGEST_NUMBER, &manifest->facts.global_batch_tokens,
                                 error);
    if (status == RK_OK)
        status = rk_json_string(root, "seed", seed, sizeof seed, error);
    if (status == RK_OK)
        status = rk_json_string(root, "data", manifest->facts.data, sizeof manifest->facts.data, error);
    if (status != RK_OK)
        return status;
    manifest->facts.seed = strtoull(seed, &end, 10);
    if (end == seed || *end != '\0')
        return rk_fail(error, RK_USAGE, "%s: seed '%s' is not a whole number", path, seed);
    return RK_OK;
}

enum rk_status rk_manifest_read(const char *path, struct rk_manifest *manifest, struct rk_error *error) {
    cJSON *tree = NULL;
    struct rk_json_object root;
    struct rk_manifest made = {0};
    enum rk_status status = rk_json_read_file(path, &tree, error);
    if (status != RK_OK)
        return status;
    status = rk_json_open(path, "", tree, &root, error);
    if (status == RK_OK)
        status = read_head(path, &root, &made, error);
    if (status == RK_OK)
        status = read_layout(&root, &made, error);
    if (status == RK_OK)
        status = read_tensors(path, &root, &made, error);
    if (status == RK_OK)
        status = read_files(path, &root, &made, error);
    cJSON_Delete(tree);
    if (status != RK_OK) {
        rk_manifest_free(&made);
        return status;
    }
    *manifest = made;
    return RK_OK;
}

void rk_manifest_free(struct rk_manifest *manifest) {
    rk_tensor_table_free(&manifest->tensors);
    free(manifest->files);
    memset(manifest, 0, sizeof *manifest);
}

static int64_t piece_bytes(const struct rk_saved_piece *piece) {
    return piece->count * state_values[piece->state] * (int64_t)sizeof(float);
}

enum rk_status rk_shard_header_print(struct rk_saved_piece *pieces, size_t count, struct rk_text *text, int64_t *bytes,
                                     struct rk_error *error) {
    int64_t data = ((int64_t)(count + 1) * 256 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, end = data;
    rk_text_format(text, "{\"format\": \"%s\", \"count\": %zu, \"data\": %lld}\n", RK_SHARD_FORMAT, count,
                   (long long)data);
    for (size_t i = 0; i < count; i++) {
        pieces[i].offset = end;
        end += piece_bytes(&pieces[i]);
        rk_text_format(text,
                       "{\"tensor\": \"%s\", \"first\": %lld, \"count\": %lld, \"state\": \"%s\", \"offset\": %lld}\n",
                       pieces[i].tensor, (long long)pieces[i].first, (long long)pieces[i].count,
                       state_names[pieces[i].state], (long long)pieces[i].offset);
    }
    while (!text->failed && (int64_t)text->length < data)
        rk_text_add_bytes(text, " ", 1);
    *bytes = end;
    return text->failed ? rk_fail(error, RK_ERROR, "out of memory for the header of %zu pieces", count) : RK_OK;
}

static enum rk_status read_piece(const char *path, size_t number, const char *line, int64_t bytes,
                                 struct rk_saved_piece *piece, struct rk_error *error) {
    char name[PATH_MAX + 32], state[16];
    cJSON *tree = NULL;
    struct rk_json_object object;
    snprintf(name, sizeof name, "%s: line %zu", path, number);
    enum rk_status status = rk_json_parse(name, line, strlen(line), &tree, error);
    if (status != RK_OK)
        return status;
    status = rk_json_open(name, "", tree, &object, error);
    if (status == RK_OK)
        status = rk_json_string(&object, "tensor", piece->tensor, sizeof piece->tensor, error);
    if (status == RK_OK)
        status = rk_json_integer(&object, "first", 0, LARGEST_NUMBER, &piece->first, error);
    if (status == RK_OK)
        status = rk_json_integer(&object, "count", 1, LARGEST_NUMBER / 16, &piece->count, error);
    if (status == RK_OK)
        status = rk_json_integer(&object, "offset", 1, LARGEST_NUMBER, &piece->offset, error);
    if (status == RK_OK)
        status = rk_json_string(&object, "state", state, sizeof state, error);
    if (status == RK_OK) {
        int kind = 0;
        while (kind < RK_SHARD_STATE_COUNT && strcmp(state_names[kind], state) != 0)
            kind++;
        piece->state = (enum rk_shard_state)kind;
        if (kind == RK_SHARD_STATE_COUNT)
            status = rk_fail(error, RK_USAGE, "%s: state '%s' is not known", name, state);
        else if (piece->offset > bytes - piece_bytes(piece))
            status = rk_fail(error, RK_ERROR, "%s: %s ends behind the end of the file", name, piece->tensor);
    }
    cJSON_Delete(tree);
    return status;
}

static enum rk_status read_piece_count(const char *path, const char *line, int64_t *count, struct rk_error *error) {
    char format[32];
    cJSON *tree = NULL;
    struct rk_json_object object;
    enum rk_status status = rk_json_parse(path, line, strlen(line), &tree, error);
    if (status != RK_OK)
        return status;
    status = rk_json_open(path, "", tree, &object, error);
    if (status == RK_OK)
        status = rk_json_string(&object, "format", format, sizeof format, error);
    if (status == RK_OK && strcmp(format, RK_SHARD_FORMAT) != 0)
        status = rk_fail(error, RK_USAGE, "%s: format '%s'; this program reads %s", path, format, RK_SHARD_FORMAT);
    if (status == RK_OK)
        status = rk_json_integer(&object, "count", 0, MOST_PIECES, count, error);
    cJSON_Delete(tree);
    return status;
}

enum rk_status rk_shard_header_read(const char *path, size_t file, int64_t bytes, struct rk_saved_piece **pieces,
                                    size_t *count, struct rk_error *error) {
    char line[LONGEST_LINE];
    int64_t more = 0;
    enum rk_status status = RK_OK;
    FILE *stream = fopen(path, "re");
    if (stream == NULL)
        return rk_fail(error, RK_ERROR, "%s: cannot open: %s", path, strerror(errno));
    if (fgets(line, sizeof line, stream) == NULL)
        status = rk_fail(error, RK_ERROR, "%s: has no header; it is damaged", path);
    if (status == RK_OK)
        status = read_piece_count(path, line, &more, error);
    if (status != RK_OK)
        goto close_stream;
    struct rk_saved_piece *grown = realloc(*pieces, (*count + (size_t)more + 1) * sizeof *grown);
    if (grown == NULL) {
        status = rk_fail(error, RK_ERROR, "%s: out of memory for %lld pieces", path, (long long)more);
        goto close_stream;
    }
    *pieces = grown;
    for (int64_t i = 0; i < more && status == RK_OK; i++) {
        if (fgets(line, sizeof line, stream) == NULL)
            status = rk_fail(error, RK_ERROR, "%s: the header ends at line %lld of %lld; it is damaged", path,
                             (long long)i + 1, (long long)more + 1);
        else
            status = read_piece(path, (size_t)i + 2, line, bytes, &grown[*count], error);
        if (status == RK_OK)
            grown[(*count)++].file = file;
    }
close_stream:
    fclose(stream);
    return status;
}

#include "executor/tensor_file.h"

#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LONGEST_LINE = 4096,
    MOST_TENSORS = 1 << 20,
    DATA_ALIGNMENT = 4096,
    TENSOR_ALIGNMENT = 64,
    READ_CHUNK = 1 << 16
};
static const int64_t LARGEST_DIMENSION = (int64_t)1 << 40;
static const int64_t LARGEST_FILE = (int64_t)1 << 50;

static int64_t entry_elements(const struct rk_tensor_entry *entry) {
    return entry->shape[0] * entry->shape[1] * entry->shape[2];
}

static int64_t entry_bytes(const struct rk_tensor_entry *entry) {
    return entry_elements(entry) * rk_data_type_bytes(entry->type);
}

/* The header is read through a stream; the descriptor serves the data. */
static enum rk_status read_line(FILE *stream, const char *path, size_t number, char *line, size_t *length,
                                struct rk_error *error) {
    if (fgets(line, LONGEST_LINE, stream) == NULL)
        return rk_fail(error, RK_USAGE, "%s: line %zu: the header ends early; is the file cut short?", path, number);
    *length = strlen(line);
    if (*length == 0 || line[*length - 1] != '\n')
        return rk_fail(error, RK_USAGE, "%s: line %zu: not a line of a tensors-1 header", path, number);
    return RK_OK;
}

static enum rk_status read_shape(const char *name, struct rk_json_object *object, struct rk_tensor_entry *entry,
                                 struct rk_error *error) {
    const cJSON *shape = NULL;
    enum rk_status status = rk_json_array(object, "shape", &shape, error);
    if (status != RK_OK)
        return status;
    int count = cJSON_GetArraySize(shape);
    if (count < 1 || count > 3)
        return rk_fail(error, RK_USAGE, "%s: shape has %d dimensions; 1 to 3 are known", name, count);
    entry->rank = count;
    int64_t elements = 1;
    for (int i = 0; i < 3; i++) {
        const cJSON *item = i < count ? cJSON_GetArrayItem(shape, i) : NULL;
        double value = item == NULL ? 1 : cJSON_IsNumber(item) ? item->valuedouble : 0;
        entry->shape[i] = value >= 1 && value <= (double)LARGEST_DIMENSION ? (int64_t)value : 0;
        if (entry->shape[i] == 0 || (double)entry->shape[i] != value || entry->shape[i] > LARGEST_FILE / elements)
            return rk_fail(error, RK_USAGE, "%s: shape[%d] is not a whole positive number in range", name, i);
        elements *= entry->shape[i];
    }
    return RK_OK;
}

static enum rk_status read_entry(const char *path, size_t number, const char *line, size_t length,
                                 struct rk_tensor_entry *entry, struct rk_error *error) {
    char name[4200], type[8];
    snprintf(name, sizeof name, "%s: line %zu", path, number);
    cJSON *root = NULL;
    struct rk_json_object object;
    enum rk_status status = rk_json_parse(name, line, length, &root, error);
    if (status != RK_OK)
        return status;
    status = rk_json_open(name, "", root, &object, error);
    if (status == RK_OK)
        status = rk_json_string(&object, "name", entry->name, sizeof entry->name, error);
    if (status == RK_OK)
        status = read_shape(name, &object, entry, error);
    if (status == RK_OK)
        status = rk_json_string(&object, "dtype", type, sizeof type, error);
    if (status == RK_OK)
        status = rk_json_integer(&object, "offset", 0, LARGEST_FILE, &entry->offset, error);
    if (status == RK_OK) {
        entry->type = strcmp(type, "f32") == 0 ? RK_F32 : RK_BF16;
        if (strcmp(type, rk_data_type_name(entry->type)) != 0)
            status = rk_fail(error, RK_USAGE, "%s: dtype '%s' is not known; f32 and bf16 are", name, type);
    }
    cJSON_Delete(root);
    return status;
}

static enum rk_status read_first_line(const char *path, FILE *stream, int64_t *count, int64_t *data,
                                      struct rk_error *error) {
    char line[LONGEST_LINE], format[32];
    size_t length = 0;
    if (fgets(line, sizeof line, stream) == NULL || line[0] != '{')
        return rk_fail(error, RK_USAGE, "%s: not a tensors-1 file (its first line is no JSON object)", path);
    length = strlen(line);
    cJSON *root = NULL;
    struct rk_json_object object;
    enum rk_status status = rk_json_parse(path, line, length, &root, error);
    if (status != RK_OK)
        return status;
    status = rk_json_open(path, "", root, &object, error);
    if (status == RK_OK)
        status = rk_json_string(&object, "format", format, sizeof format, error);
    if (status == RK_OK && strcmp(format, "tensors-1") != 0)
        status = rk_fail(error, RK_USAGE, "%s: format '%s' is not known; this program reads tensors-1", path, format);
    if (status == RK_OK)
        status = rk_json_integer(&object, "count", 1, MOST_TENSORS, count, error);
    if (status == RK_OK)
        status = rk_json_integer(&object, "data", 1, LARGEST_FILE, data, error);
    cJSON_Delete(root);
    return status;
}

static int compare_offsets(const void *left, const void *right) {
    const struct rk_tensor_entry *a = left, *b = right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

static int compare_names(const void *left, const void *right) {
    return strcmp(((const struct rk_tensor_entry *)left)->name, ((const struct rk_tensor_entry *)right)->name);
}

/* Leaves the entries sorted by name, for the search. */
static enum rk_status check_entries(struct rk_tensor_file *file, int64_t data, int64_t file_bytes,
                                    struct rk_error *error) {
    int64_t end = data;
    qsort(file->entries, file->count, sizeof *file->entries, compare_offsets);
    for (size_t i = 0; i < file->count; i++) {
        const struct rk_tensor_entry *entry = &file->entries[i];
        int64_t bytes = entry_bytes(entry);
        if (entry->offset < end)
            return rk_fail(error, RK_USAGE, "%s: %s: lies over the header or over another tensor", file->path,
                           entry->name);
        if (bytes > file_bytes || entry->offset > file_bytes - bytes)
            return rk_fail(error, RK_USAGE, "%s: %s: ends at byte %lld of a file of %lld; is the file cut short?",
                           file->path, entry->name, (long long)entry->offset + (long long)bytes, (long long)file_bytes);
        end = entry->offset + bytes;
    }
    qsort(file->entries, file->count, sizeof *file->entries, compare_names);
    for (size_t i = 1; i < file->count; i++)
        if (strcmp(file->entries[i - 1].name, file->entries[i].name) == 0)
            return rk_fail(error, RK_USAGE, "%s: %s: is listed twice", file->path, file->entries[i].name);
    return RK_OK;
}

static enum rk_status read_header(struct rk_tensor_file *file, FILE *stream, int64_t file_bytes,
                                  struct rk_error *error) {
    int64_t count = 0, data = 0;
    char line[LONGEST_LINE];
    enum rk_status status = read_first_line(file->path, stream, &count, &data, error);
    if (status != RK_OK)
        return status;
    file->entries = calloc((size_t)count + 1, sizeof *file->entries);
    if (file->entries == NULL)
        return rk_fail(error, RK_ERROR, "%s: out of memory for %lld tensors", file->path, (long long)count);
    for (; file->count < (size_t)count; file->count++) {
        size_t length = 0;
        status = read_line(stream, file->path, file->count + 2, line, &length, error);
        if (status == RK_OK)
            status = read_entry(file->path, file->count + 2, line, length, &file->entries[file->count], error);
        if (status != RK_OK)
            return status;
    }
    return check_entries(file, data, file_bytes, error);
}

enum rk_status rk_tensor_file_open(const char *path, struct rk_tensor_file *file, struct rk_error *error) {
    struct rk_tensor_file opened = {.path = strdup(path), .descriptor = -1};
    enum rk_status status = RK_OK;
    struct stat facts;
    FILE *stream = NULL;
    if (opened.path == NULL)
        return rk_fail(error, RK_ERROR, "out of memory");
    opened.descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (opened.descriptor < 0 || fstat(opened.descriptor, &facts) != 0) {
        status = rk_fail(error, RK_USAGE, "%s: cannot open: %s", path, strerror(errno));
        goto close_file;
    }
    if (!S_ISREG(facts.st_mode)) {
        status = rk_fail(error, RK_USAGE, "%s: is not a regular file", path);
        goto close_file;
    }
    stream = fopen(path, "re");
    if (stream == NULL) {
        status = rk_fail(error, RK_USAGE, "%s: cannot open: %s", path, strerror(errno));
        goto close_file;
    }
    status = read_header(&opened, stream, facts.st_size, error);
    fclose(stream);
    if (status != RK_OK)
        goto close_file;
    *file = opened;
    return RK_OK;
close_file:
    rk_tensor_file_close(&opened);
    return status;
}

void rk_tensor_file_close(struct rk_tensor_file *file) {
    if (file->descriptor >= 0)
        close(file->descriptor);
    file->descriptor = -1;
    free(file->entries);
    free(file->path);
    file->entries = NULL;
    file->path = NULL;
    file->count = 0;
}

static void describe_shape(int32_t rank, const int64_t shape[3], char *text, size_t size) {
    size_t used = 0;
    for (int32_t i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i == 0 ? "[" : ", ", (long long)shape[i]);
    if (used < size)
        snprintf(text + used, size - used, "]");
}

enum rk_status rk_tensor_file_find(const struct rk_tensor_file *file, const char *name, int32_t rank,
                                   const int64_t shape[3], const struct rk_tensor_entry **entry,
                                   struct rk_error *error) {
    struct rk_tensor_entry key;
    char wanted[96], found[96];
    snprintf(key.name, sizeof key.name, "%s", name);
    describe_shape(rank, shape, wanted, sizeof wanted);
    const struct rk_tensor_entry *at = bsearch(&key, file->entries, file->count, sizeof key, compare_names);
    if (at == NULL)
        return rk_fail(error, RK_USAGE, "%s: holds no tensor '%s' (wanted %s); is it of another model?", file->path,
                       name, wanted);
    if (at->rank != rank || memcmp(at->shape, shape, sizeof at->shape) != 0) {
        describe_shape(at->rank, at->shape, found, sizeof found);
        return rk_fail(error, RK_USAGE, "%s: %s has shape %s, the model wants %s", file->path, name, found, wanted);
    }
    *entry = at;
    return RK_OK;
}

static enum rk_status read_bytes(const struct rk_tensor_file *file, void *to, int64_t bytes, int64_t offset,
                                 struct rk_error *error) {
    char *at = to;
    while (bytes > 0) {
        ssize_t got = pread(file->descriptor, at, (size_t)bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return rk_fail(error, RK_ERROR, "%s: cannot read at byte %lld: %s", file->path, (long long)offset,
                           got == 0 ? "the file ends; was it cut while being read?" : strerror(errno));
        at += got;
        offset += got;
        bytes -= got;
    }
    return RK_OK;
}

static enum rk_status read_bf16(const struct rk_tensor_file *file, int64_t offset, int64_t count, float *values,
                                struct rk_error *error) {
    uint16_t raw[READ_CHUNK / sizeof(uint16_t)];
    while (count > 0) {
        int64_t part =
            count < (int64_t)(READ_CHUNK / sizeof(uint16_t)) ? count : (int64_t)(READ_CHUNK / sizeof(uint16_t));
        enum rk_status status = read_bytes(file, raw, part * 2, offset, error);
        if (status != RK_OK)
            return status;
        for (int64_t i = 0; i < part; i++) {
            uint32_t bits = (uint32_t)raw[i] << 16;
            memcpy(&values[i], &bits, sizeof bits);
        }
        values += part;
        offset += part * 2;
        count -= part;
    }
    return RK_OK;
}

enum rk_status rk_tensor_file_read(const struct rk_tensor_file *file, const struct rk_tensor_entry *entry,
                                   int64_t first, int64_t count, float *values, struct rk_error *error) {
    int64_t offset = entry->offset + first * rk_data_type_bytes(entry->type);
    if (entry->type == RK_F32)
        return read_bytes(file, values, count * (int64_t)sizeof *values, offset, error);
    return read_bf16(file, offset, count, values, error);
}

static int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

static void write_header(const struct rk_tensor_entry *entries, size_t count, int64_t data, struct rk_text *text) {
    rk_text_format(text, "{\"format\": \"tensors-1\", \"count\": %zu, \"data\": %lld}\n", count, (long long)data);
    for (size_t i = 0; i < count; i++) {
        char shape[96];
        describe_shape(entries[i].rank, entries[i].shape, shape, sizeof shape);
        rk_text_format(text, "{\"name\": \"%s\", \"shape\": %s, \"dtype\": \"%s\", \"offset\": %lld}\n",
                       entries[i].name, shape, rk_data_type_name(entries[i].type),
                       (long long)(data + entries[i].offset));
    }
}

enum rk_status rk_tensor_file_header(struct rk_tensor_entry *entries, size_t count, struct rk_text *text,
                                     int64_t *file_bytes, struct rk_error *error) {
    int64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        entries[i].offset = end;
        end = round_up(end + entry_bytes(&entries[i]), TENSOR_ALIGNMENT);
    }
    int64_t data = round_up(256 * (int64_t)(count + 1), DATA_ALIGNMENT);
    write_header(entries, count, data, text);
    while (!text->failed && (int64_t)text->length < data)
        rk_text_add_bytes(text, " ", 1);
    if (text->failed)
        return rk_fail(error, RK_ERROR, "out of memory for the header of %zu tensors", count);
    for (size_t i = 0; i < count; i++)
        entries[i].offset += data;
    *file_bytes = data + end;
    return RK_OK;
}

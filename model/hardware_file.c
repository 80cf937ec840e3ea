/* The JSON form of a hardware profile. */
#include "model/hardware.h"

#include <string.h>

static const char format_name[] = "reckon-hardware";

static const char *const origin_names[RK_PROFILE_ORIGIN_COUNT] = {
#define RK_ORIGIN_NAME(name, text, origin, uncertainty) [RK_PROFILE_ORIGIN_##name] = text,
    RK_PROFILE_ORIGIN_TABLE(RK_ORIGIN_NAME)
#undef RK_ORIGIN_NAME
};

static const char *const published_names[RK_PUBLISHED_COUNT] = {
#define RK_PUBLISHED_NAME(name, text) [RK_PUBLISHED_##name] = text,
    RK_PUBLISHED_TABLE(RK_PUBLISHED_NAME)
#undef RK_PUBLISHED_NAME
};

static const struct {
    double minimum, maximum;
} ranges[RK_HARDWARE_FIGURE_COUNT] = {
#define RK_FIGURE_RANGE(name, key, unit, minimum, maximum) [RK_HARDWARE_##name] = {minimum, maximum},
    RK_HARDWARE_FIGURE_TABLE(RK_FIGURE_RANGE)
#undef RK_FIGURE_RANGE
};

/* The whole numbers of a published row, in the order of the file. */
static const struct {
    const char *key;
    size_t offset;
} published_fields[] = {
    {"tokens", offsetof(struct rk_published_time, tokens)},
    {"hidden", offsetof(struct rk_published_time, hidden)},
    {"query_width", offsetof(struct rk_published_time, query_width)},
    {"kv_width", offsetof(struct rk_published_time, kv_width)},
    {"expert_hidden", offsetof(struct rk_published_time, expert_hidden)},
    {"shared_hidden", offsetof(struct rk_published_time, shared_hidden)},
    {"top_k", offsetof(struct rk_published_time, top_k)},
    {"layers", offsetof(struct rk_published_time, layers)},
    {"expert_parallel", offsetof(struct rk_published_time, expert_parallel)},
};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static enum rk_status refuse_unknown(const struct rk_json_object *object, struct rk_error *error) {
    struct rk_text names = {0};
    enum rk_status status = RK_OK;
    if (rk_json_unknown(object, &names) > 0) {
        status = rk_fail(error, RK_USAGE, "%s: %s%sunknown keys: %.400s; a profile holds only figures that are used",
                         object->file, object->path, object->path[0] ? ": " : "", names.data ? names.data : "");
    }
    rk_text_free(&names);
    return status;
}

static int find_name(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

static enum rk_status refuse_name(const struct rk_json_object *object, const char *key, const char *name,
                                  const char *const *names, int count, struct rk_error *error) {
    struct rk_text list = {0};
    for (int i = 0; i < count; i++) {
        rk_text_format(&list, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    enum rk_status status = rk_fail(error, RK_USAGE, "%s: %s.%s is '%s', which is none of: %s", object->file,
                                    object->path, key, name, list.data ? list.data : "");
    rk_text_free(&list);
    return status;
}

static enum rk_status read_range(struct rk_json_object *object, struct rk_profile_figure *figure,
                                 struct rk_error *error) {
    figure->low = figure->value;
    figure->high = figure->value;
    enum rk_status status = rk_json_optional_number(object, "low", 0.0, figure->value, &figure->low, error);
    if (status == RK_OK) {
        status = rk_json_optional_number(object, "high", figure->value, 1e300, &figure->high, error);
    }
    return status;
}

static enum rk_status read_figure(struct rk_json_object *object, const char *unit, double minimum, double maximum,
                                  struct rk_profile_figure *figure, struct rk_error *error) {
    char text[32] = "";
    struct rk_profile_figure made = {.known = true};
    enum rk_status status = rk_json_number(object, "value", minimum, maximum, &made.value, error);
    if (status == RK_OK) {
        status = read_range(object, &made, error);
    }
    if (status == RK_OK) {
        status = rk_json_string(object, "unit", text, sizeof text, error);
    }
    if (status == RK_OK && strcmp(text, unit) != 0) {
        status = rk_fail(error, RK_USAGE, "%s: %s.unit is '%s'; this figure is given in '%s'", object->file,
                         object->path, text, unit);
    }
    if (status == RK_OK) {
        status = rk_json_string(object, "origin", text, sizeof text, error);
    }
    const int origin = find_name(origin_names, RK_PROFILE_ORIGIN_COUNT, text);
    if (status == RK_OK && origin < 0) {
        status = refuse_name(object, "origin", text, origin_names, RK_PROFILE_ORIGIN_COUNT, error);
    }
    if (status == RK_OK) {
        made.origin = (enum rk_profile_origin)origin;
        status = rk_json_string(object, "source", made.source, sizeof made.source, error);
    }
    if (status == RK_OK && made.source[0] == '\0') {
        status = rk_fail(error, RK_USAGE, "%s: %s.source is empty; say where the figure is printed", object->file,
                         object->path);
    }
    if (status == RK_OK) {
        status = rk_json_optional_string(object, "condition", made.condition, sizeof made.condition, error);
    }
    if (status == RK_OK && made.origin == RK_PROFILE_ORIGIN_MEASURED && made.condition[0] == '\0') {
        status = rk_fail(error, RK_USAGE, "%s: %s is measured, so it needs a condition", object->file, object->path);
    }
    if (status == RK_OK) {
        status = refuse_unknown(object, error);
    }
    if (status == RK_OK) {
        *figure = made;
    }
    return status;
}

static enum rk_status read_figures(struct rk_json_object *root, struct rk_hardware *hardware, struct rk_error *error) {
    struct rk_json_object figures;
    enum rk_status status = rk_json_child(root, "figures", &figures, error);
    for (int i = 0; i < RK_HARDWARE_FIGURE_COUNT && status == RK_OK; i++) {
        const char *key = rk_hardware_figure_key((enum rk_hardware_figure)i);
        struct rk_json_object member;
        if (!rk_json_has(&figures, key)) {
            continue;
        }
        status = rk_json_child(&figures, key, &member, error);
        if (status == RK_OK) {
            status = read_figure(&member, rk_hardware_figure_unit((enum rk_hardware_figure)i), ranges[i].minimum,
                                 ranges[i].maximum, &hardware->figures[i], error);
        }
    }
    return status == RK_OK ? refuse_unknown(&figures, error) : status;
}

static enum rk_status read_published_row(struct rk_json_object *object, struct rk_published_time *row,
                                         struct rk_error *error) {
    char kind[48] = "";
    struct rk_json_object time;
    enum rk_status status = rk_json_string(object, "kind", kind, sizeof kind, error);
    const int found = find_name(published_names, RK_PUBLISHED_COUNT, kind);
    if (status == RK_OK && found < 0) {
        status = refuse_name(object, "kind", kind, published_names, RK_PUBLISHED_COUNT, error);
    }
    if (status != RK_OK) {
        return status;
    }
    row->kind = (enum rk_published_kind)found;
    for (size_t i = 0; i < COUNT(published_fields) && status == RK_OK; i++) {
        int64_t *field = (int64_t *)(void *)((char *)row + published_fields[i].offset);
        status = rk_json_integer(object, published_fields[i].key, 0, (int64_t)1 << 40, field, error);
    }
    if (status == RK_OK) {
        status = rk_json_child(object, "seconds", &time, error);
    }
    if (status == RK_OK) {
        status = read_figure(&time, "s", 1e-12, 1e9, &row->seconds, error);
    }
    return status == RK_OK ? refuse_unknown(object, error) : status;
}

static enum rk_status read_published(struct rk_json_object *root, struct rk_hardware *hardware,
                                     struct rk_error *error) {
    const cJSON *rows = NULL;
    if (!rk_json_has(root, "published")) {
        return RK_OK;
    }
    enum rk_status status = rk_json_array(root, "published", &rows, error);
    if (status == RK_OK && cJSON_GetArraySize(rows) > RK_HARDWARE_PUBLISHED_MAX) {
        return rk_fail(error, RK_USAGE, "%s: published has more than %d rows", root->file, RK_HARDWARE_PUBLISHED_MAX);
    }
    for (const cJSON *item = status == RK_OK ? rows->child : NULL; item != NULL && status == RK_OK; item = item->next) {
        struct rk_json_object object;
        status = rk_json_open(root->file, "published", item, &object, error);
        if (status == RK_OK) {
            status = read_published_row(&object, &hardware->published[hardware->published_count], error);
            hardware->published_count++;
        }
    }
    return status;
}

static enum rk_status read_tree(const char *name, const cJSON *root, struct rk_hardware *hardware,
                                struct rk_error *error) {
    struct rk_json_object object;
    struct rk_hardware made = {.published_count = 0};
    char format[32] = "";
    int64_t version = 0;
    enum rk_status status = rk_json_open(name, "", root, &object, error);
    if (status == RK_OK) {
        status = rk_json_string(&object, "format", format, sizeof format, error);
    }
    if (status == RK_OK && strcmp(format, format_name) != 0) {
        status = rk_fail(error, RK_USAGE, "%s: format is '%s', not '%s'; this is no hardware profile", name, format,
                         format_name);
    }
    if (status == RK_OK) {
        status = rk_json_integer(&object, "version", 1, RK_HARDWARE_VERSION, &version, error);
    }
    if (status == RK_OK) {
        status = rk_json_string(&object, "name", made.name, sizeof made.name, error);
    }
    if (status == RK_OK) {
        status = read_figures(&object, &made, error);
    }
    if (status == RK_OK) {
        status = read_published(&object, &made, error);
    }
    if (status == RK_OK) {
        status = refuse_unknown(&object, error);
    }
    if (status == RK_OK) {
        *hardware = made;
    }
    return status;
}

enum rk_status rk_hardware_parse(const char *name, const char *text, size_t length, struct rk_hardware *hardware,
                                 struct rk_error *error) {
    cJSON *root = NULL;
    enum rk_status status = rk_json_parse(name, text, length, &root, error);
    if (status == RK_OK) {
        status = read_tree(name, root, hardware, error);
        cJSON_Delete(root);
    }
    return status;
}

enum rk_status rk_hardware_read_file(const char *path, struct rk_hardware *hardware, struct rk_error *error) {
    cJSON *root = NULL;
    enum rk_status status = rk_json_read_file(path, &root, error);
    if (status == RK_OK) {
        status = read_tree(path, root, hardware, error);
        cJSON_Delete(root);
    }
    return status;
}

/* Adds an object under key; false when out of memory. */
static bool add_figure(cJSON *parent, const char *key, const char *unit, const struct rk_profile_figure *figure) {
    cJSON *object = cJSON_AddObjectToObject(parent, key);
    const bool ranged = figure->low < figure->value || figure->high > figure->value;
    return object != NULL && cJSON_AddNumberToObject(object, "value", figure->value) != NULL &&
           (!ranged || (cJSON_AddNumberToObject(object, "low", figure->low) != NULL &&
                        cJSON_AddNumberToObject(object, "high", figure->high) != NULL)) &&
           cJSON_AddStringToObject(object, "unit", unit) != NULL &&
           cJSON_AddStringToObject(object, "origin", origin_names[figure->origin]) != NULL &&
           cJSON_AddStringToObject(object, "source", figure->source) != NULL &&
           (figure->condition[0] == '\0' || cJSON_AddStringToObject(object, "condition", figure->condition) != NULL);
}

static bool add_published(cJSON *rows, const struct rk_published_time *row) {
    cJSON *object = cJSON_CreateObject();
    if (object == NULL || !cJSON_AddItemToArray(rows, object)) {
        cJSON_Delete(object);
        return false;
    }
    bool added = cJSON_AddStringToObject(object, "kind", published_names[row->kind]) != NULL;
    for (size_t i = 0; i < COUNT(published_fields) && added; i++) {
        const int64_t *field = (const int64_t *)(const void *)((const char *)row + published_fields[i].offset);
        added = cJSON_AddNumberToObject(object, published_fields[i].key, (double)*field) != NULL;
    }
    return added && add_figure(object, "seconds", "s", &row->seconds);
}

static bool build_tree(const struct rk_hardware *hardware, cJSON *root) {
    bool built = cJSON_AddStringToObject(root, "format", format_name) != NULL &&
                 cJSON_AddNumberToObject(root, "version", RK_HARDWARE_VERSION) != NULL &&
                 cJSON_AddStringToObject(root, "name", hardware->name) != NULL;
    cJSON *figures = built ? cJSON_AddObjectToObject(root, "figures") : NULL;
    built = figures != NULL;
    for (int i = 0; i < RK_HARDWARE_FIGURE_COUNT && built; i++) {
        const enum rk_hardware_figure figure = (enum rk_hardware_figure)i;
        if (hardware->figures[i].known) {
            built = add_figure(figures, rk_hardware_figure_key(figure), rk_hardware_figure_unit(figure),
                               &hardware->figures[i]);
        }
    }
    cJSON *rows = built ? cJSON_AddArrayToObject(root, "published") : NULL;
    built = rows != NULL;
    for (int64_t i = 0; i < hardware->published_count && built; i++) {
        built = add_published(rows, &hardware->published[i]);
    }
    return built;
}

enum rk_status rk_hardware_write(const struct rk_hardware *hardware, struct rk_text *text, struct rk_error *error) {
    cJSON *root = cJSON_CreateObject();
    enum rk_status status = root != NULL && build_tree(hardware, root)
                                ? rk_json_print(root, text, error)
                                : rk_fail(error, RK_ERROR, "%s: out of memory", hardware->name);
    cJSON_Delete(root);
    return status;
}

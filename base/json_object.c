/* Reading the members of one object, with every error naming the file and the path of the key. */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Above it a double no longer tells neighbouring whole numbers apart. */
static const double LARGEST_EXACT = 9007199254740992.0;

static const char *type_name(const cJSON *value) {
    if (cJSON_IsNull(value))
        return "null";
    if (cJSON_IsBool(value))
        return "a boolean";
    if (cJSON_IsNumber(value))
        return "a number";
    if (cJSON_IsString(value))
        return "a string";
    return cJSON_IsArray(value) ? "an array" : "an object";
}

static const char *dot(const struct rk_json_object *object) {
    return object->path[0] != '\0' ? "." : "";
}

enum rk_status rk_json_open(const char *file, const char *path, const cJSON *value, struct rk_json_object *object,
                            struct rk_error *error) {
    if (!cJSON_IsObject(value))
        return rk_fail(error, RK_USAGE, "%s: %s%smust be an object, not %s", file, path, path[0] != '\0' ? " " : "",
                       value != NULL ? type_name(value) : "absent");
    *object = (struct rk_json_object){.file = file, .object = value};
    snprintf(object->path, sizeof object->path, "%s", path);
    return RK_OK;
}

/* The member with its mark set, NULL when absent or null. */
static const cJSON *find(struct rk_json_object *object, const char *key) {
    size_t index = 0;
    for (const cJSON *member = object->object->child; member != NULL; member = member->next, index++) {
        if (strcmp(member->string, key) != 0)
            continue;
        if (index / 64 < sizeof object->seen / sizeof object->seen[0])
            object->seen[index / 64] |= (uint64_t)1 << (index % 64);
        return cJSON_IsNull(member) ? NULL : member;
    }
    return NULL;
}

bool rk_json_has(struct rk_json_object *object, const char *key) {
    return find(object, key) != NULL;
}

static enum rk_status fail_absent(const struct rk_json_object *object, const char *key, struct rk_error *error) {
    bool is_null = cJSON_GetObjectItemCaseSensitive(object->object, key) != NULL;
    return rk_fail(error, RK_USAGE, "%s: %s%s%s is %s but required", object->file, object->path, dot(object), key,
                   is_null ? "null" : "missing");
}

static enum rk_status fail_type(const struct rk_json_object *object, const char *key, const cJSON *value,
                                const char *wanted, struct rk_error *error) {
    return rk_fail(error, RK_USAGE, "%s: %s%s%s must be %s, not %s", object->file, object->path, dot(object), key,
                   wanted, type_name(value));
}

static enum rk_status read_integer(const struct rk_json_object *object, const char *key, const cJSON *member,
                                   int64_t minimum, int64_t maximum, int64_t *value, struct rk_error *error) {
    if (!cJSON_IsNumber(member))
        return fail_type(object, key, member, "a whole number", error);
    double number = member->valuedouble;
    if (number != floor(number))
        return rk_fail(error, RK_USAGE, "%s: %s%s%s must be a whole number, not %.17g", object->file, object->path,
                       dot(object), key, number);
    bool exact = fabs(number) <= LARGEST_EXACT;
    if (!exact || (int64_t)number < minimum || (int64_t)number > maximum)
        return rk_fail(error, RK_USAGE, "%s: %s%s%s is %.17g; it must be from %lld to %lld%s", object->file,
                       object->path, dot(object), key, number, (long long)minimum, (long long)maximum,
                       exact ? "" : ", and numbers above 2^53 cannot be read exactly");
    *value = (int64_t)number;
    return RK_OK;
}

static enum rk_status read_number(const struct rk_json_object *object, const char *key, const cJSON *member,
                                  double minimum, double maximum, double *value, struct rk_error *error) {
    if (!cJSON_IsNumber(member))
        return fail_type(object, key, member, "a number", error);
    double number = member->valuedouble;
    if (!(number >= minimum && number <= maximum))
        return rk_fail(error, RK_USAGE, "%s: %s%s%s is %.17g; it must be from %g to %g", object->file, object->path,
                       dot(object), key, number, minimum, maximum);
    *value = number;
    return RK_OK;
}

static enum rk_status read_boolean(const struct rk_json_object *object, const char *key, const cJSON *member,
                                   bool *value, struct rk_error *error) {
    if (!cJSON_IsBool(member))
        return fail_type(object, key, member, "true or false", error);
    *value = cJSON_IsTrue(member);
    return RK_OK;
}

static enum rk_status read_string(const struct rk_json_object *object, const char *key, const cJSON *member,
                                  char *buffer, size_t size, struct rk_error *error) {
    if (!cJSON_IsString(member))
        return fail_type(object, key, member, "a string", error);
    size_t length = strlen(member->valuestring);
    if (length >= size)
        return rk_fail(error, RK_USAGE, "%s: %s%s%s is %zu bytes long; at most %zu fit", object->file, object->path,
                       dot(object), key, length, size - 1);
    memcpy(buffer, member->valuestring, length + 1);
    return RK_OK;
}

enum rk_status rk_json_integer(struct rk_json_object *object, const char *key, int64_t minimum, int64_t maximum,
                               int64_t *value, struct rk_error *error) {
    const cJSON *member = find(object, key);
    return member == NULL ? fail_absent(object, key, error)
                          : read_integer(object, key, member, minimum, maximum, value, error);
}

enum rk_status rk_json_number(struct rk_json_object *object, const char *key, double minimum, double maximum,
                              double *value, struct rk_error *error) {
    const cJSON *member = find(object, key);
    return member == NULL ? fail_absent(object, key, error)
                          : read_number(object, key, member, minimum, maximum, value, error);
}

enum rk_status rk_json_boolean(struct rk_json_object *object, const char *key, bool *value, struct rk_error *error) {
    const cJSON *member = find(object, key);
    return member == NULL ? fail_absent(object, key, error) : read_boolean(object, key, member, value, error);
}

enum rk_status rk_json_string(struct rk_json_object *object, const char *key, char *buffer, size_t size,
                              struct rk_error *error) {
    const cJSON *member = find(object, key);
    return member == NULL ? fail_absent(object, key, error) : read_string(object, key, member, buffer, size, error);
}

enum rk_status rk_json_array(struct rk_json_object *object, const char *key, const cJSON **array,
                             struct rk_error *error) {
    const cJSON *member = find(object, key);
    if (member == NULL)
        return fail_absent(object, key, error);
    if (!cJSON_IsArray(member))
        return fail_type(object, key, member, "an array", error);
    *array = member;
    return RK_OK;
}

enum rk_status rk_json_child(struct rk_json_object *object, const char *key, struct rk_json_object *child,
                             struct rk_error *error) {
    const cJSON *member = find(object, key);
    if (member == NULL)
        return fail_absent(object, key, error);
    if (!cJSON_IsObject(member))
        return fail_type(object, key, member, "an object", error);
    struct rk_json_object opened = {.file = object->file, .object = member};
    /* A path that is too long for a message is cut. */
    size_t used = (size_t)snprintf(opened.path, sizeof opened.path, "%s%s", object->path, dot(object));
    if (used < sizeof opened.path)
        snprintf(opened.path + used, sizeof opened.path - used, "%s", key);
    *child = opened;
    return RK_OK;
}

enum rk_status rk_json_optional_integer(struct rk_json_object *object, const char *key, int64_t minimum,
                                        int64_t maximum, int64_t *value, struct rk_error *error) {
    const cJSON *member = find(object, key);
    return member == NULL ? RK_OK : read_integer(object, key, member, minimum, maximum, value, error);
}

enum rk_status rk_json_optional_number(struct rk_json_object *object, const char *key, double minimum, double maximum,
                                       double *value, struct rk_error *error) {
    const cJSON *member = find(object, key);
    return member == NULL ? RK_OK : read_number(object, key, member, minimum, maximum, value, error);
}

enum rk_status rk_json_optional_boolean(struct rk_json_object *object, const char *key, bool *value,
                                        struct rk_error *error) {
    const cJSON *member = find(object, key);
    return member == NULL ? RK_OK : read_boolean(object, key, member, value, error);
}

enum rk_status rk_json_optional_string(struct rk_json_object *object, const char *key, char *buffer, size_t size,
                                       struct rk_error *error) {
    const cJSON *member = find(object, key);
    return member == NULL ? RK_OK : read_string(object, key, member, buffer, size, error);
}

size_t rk_json_unknown(const struct rk_json_object *object, struct rk_text *names) {
    size_t index = 0, unknown = 0;
    for (const cJSON *member = object->object->child; member != NULL; member = member->next, index++) {
        bool counted = index / 64 < sizeof object->seen / sizeof object->seen[0];
        if (counted && (object->seen[index / 64] >> (index % 64) & 1) != 0)
            continue;
        if (unknown++ > 0)
            rk_text_add(names, ", ");
        rk_text_add(names, member->string);
    }
    return unknown;
}

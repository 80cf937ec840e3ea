/* Strict reading of JSON objects over cJSON, and canonical writing.
 *
 * Numbers are read as doubles and checked whole and in range (cJSON's valueint saturates). null counts as absent. Every
 * error names the file and the path of the key. */
#ifndef RK_BASE_JSON_H
#define RK_BASE_JSON_H

#include "base/status.h"
#include "base/text.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

/* Parses text (length bytes). Accepts the bare words Infinity, -Infinity and NaN that some real files hold, as null
 * values (they are refused later if a required key has them). Refuses nesting deeper than 64, duplicate keys in one
 * object and trailing bytes. *root is the caller's (cJSON_Delete). `name` is the file's name for messages. */
enum rk_status rk_json_parse(const char *name, const char *text, size_t length, cJSON **root, struct rk_error *error);
enum rk_status rk_json_read_file(const char *path, cJSON **root, struct rk_error *error);

/* An object being read: remembers which keys were asked for, so that the unknown ones can be listed. */
struct rk_json_object {
    const char *file;     /* for messages */
    char path[160];       /* "model.rope" for messages; empty at the root */
    const cJSON *object;
    uint64_t seen[16];    /* one bit for each of the first 1,024 members that was asked for */
};

enum rk_status rk_json_open(const char *file, const char *path, const cJSON *value, struct rk_json_object *object,
                            struct rk_error *error);

/* Present and not null. Marks the key as known. */
bool rk_json_has(struct rk_json_object *object, const char *key);

/* Required members: absent, null, of the wrong type or out of range is RK_USAGE. */
enum rk_status rk_json_integer(struct rk_json_object *object, const char *key, int64_t minimum, int64_t maximum,
                               int64_t *value, struct rk_error *error);
enum rk_status rk_json_number(struct rk_json_object *object, const char *key, double minimum, double maximum,
                              double *value, struct rk_error *error);
enum rk_status rk_json_boolean(struct rk_json_object *object, const char *key, bool *value, struct rk_error *error);
/* Copies into buffer; a longer string is an error. */
enum rk_status rk_json_string(struct rk_json_object *object, const char *key, char *buffer, size_t size,
                              struct rk_error *error);
/* The array or object itself, owned by the tree. */
enum rk_status rk_json_array(struct rk_json_object *object, const char *key, const cJSON **array, struct rk_error *error);
enum rk_status rk_json_child(struct rk_json_object *object, const char *key, struct rk_json_object *child,
                             struct rk_error *error);

/* Optional members: absent or null leaves *value as it is and is RK_OK; a wrong type is still an error. */
enum rk_status rk_json_optional_integer(struct rk_json_object *object, const char *key, int64_t minimum, int64_t maximum,
                                        int64_t *value, struct rk_error *error);
enum rk_status rk_json_optional_number(struct rk_json_object *object, const char *key, double minimum, double maximum,
                                       double *value, struct rk_error *error);
enum rk_status rk_json_optional_boolean(struct rk_json_object *object, const char *key, bool *value,
                                        struct rk_error *error);
enum rk_status rk_json_optional_string(struct rk_json_object *object, const char *key, char *buffer, size_t size,
                                       struct rk_error *error);

/* Appends the keys that nobody asked for, separated by ", ". Returns how many. */
size_t rk_json_unknown(const struct rk_json_object *object, struct rk_text *names);

/* Canonical text: two-space indent, arrays that hold neither arrays nor objects on one line, keys in the order of the
 * tree, integers without a fraction, other numbers with the fewest digits that read back to the same double, a final
 * newline. Writing what was read gives the same bytes. */
enum rk_status rk_json_print(const cJSON *root, struct rk_text *text, struct rk_error *error);

/* Appends string as a JSON string with its quotes. */
void rk_json_add_quoted(struct rk_text *text, const char *string);

#endif

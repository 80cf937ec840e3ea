/* Any bytes as JSON: refused with a message, or canonical text that reads back to itself. */
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_members(const cJSON *root) {
    struct rk_json_object object;
    struct rk_error error;
    if (rk_json_open("fuzz", "", root, &object, &error) != RK_OK)
        return;
    int64_t integer = 0;
    double number = 0;
    char string[16];
    for (const cJSON *member = root->child; member != NULL; member = member->next) {
        (void)rk_json_integer(&object, member->string, -100, INT64_MAX, &integer, &error);
        (void)rk_json_number(&object, member->string, -1, 1e9, &number, &error);
        (void)rk_json_string(&object, member->string, string, sizeof string, &error);
    }
    struct rk_text names = {0};
    if (rk_json_unknown(&object, &names) > 0 && cJSON_GetArraySize(root) <= 1024)
        abort();
    rk_text_free(&names);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct rk_error error = {0};
    struct rk_text first = {0}, second = {0};
    cJSON *root = NULL, *again = NULL;
    if (rk_json_parse("fuzz", (const char *)data, size, &root, &error) != RK_OK) {
        if (error.text[0] == '\0' || error.status != RK_USAGE)
            abort();
        return 0;
    }
    if (rk_json_print(root, &first, &error) != RK_OK ||
        rk_json_parse("fuzz", first.data, first.length, &again, &error) != RK_OK ||
        rk_json_print(again, &second, &error) != RK_OK || first.length != second.length ||
        memcmp(first.data, second.data, first.length) != 0) {
        fprintf(stderr, "%s\n%s\n%s\n", error.text, first.data, second.data != NULL ? second.data : "");
        abort();
    }
    read_members(root);
    rk_text_free(&first);
    rk_text_free(&second);
    cJSON_Delete(root);
    cJSON_Delete(again);
    return 0;
}

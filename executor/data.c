#include "executor/data.h"

#include "executor/token_file.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct rk_data {
    struct rk_data_options options;
    bool from_file;
    struct rk_token_file file;
    int64_t windows; /* of the file */
};

int32_t rk_data_synthetic_token(uint64_t index, uint64_t seed, int64_t vocabulary) {
    uint64_t x = (index + 1) * UINT64_C(0x9E3779B97F4A7C15) + seed;
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    uint64_t u = (x ^ (x >> 31)) >> 40;
    return (int32_t)(((((u * u) >> 24) * u) >> 24) * (uint64_t)vocabulary >> 24);
}

enum rk_status rk_data_open(const struct rk_data_options *options, struct rk_data **data, struct rk_error *error) {
    enum rk_status status = RK_OK;
    struct rk_data *opened = calloc(1, sizeof *opened);
    if (opened == NULL)
        return rk_fail(error, RK_ERROR, "out of memory");
    opened->options = *options;
    if (options->path == NULL) {
        *data = opened;
        return RK_OK;
    }
    status = rk_token_file_open(options->path, 0, options->vocabulary, &opened->file, error);
    if (status != RK_OK)
        goto free_data;
    opened->from_file = true;
    opened->windows = (opened->file.count - 1) / options->window_tokens;
    if (opened->windows == 0) {
        status = rk_fail(error, RK_USAGE,
                         "%s: holds %lld tokens, one micro-batch needs %lld; give a longer file or plan a smaller "
                         "micro-batch",
                         options->path, (long long)opened->file.count, (long long)options->window_tokens + 1);
        goto free_data;
    }
    *data = opened;
    return RK_OK;
free_data:
    rk_data_close(opened);
    return status;
}

void rk_data_close(struct rk_data *data) {
    if (data == NULL)
        return;
    if (data->from_file)
        rk_token_file_close(&data->file);
    free(data);
}

enum rk_status rk_data_window(const struct rk_data *data, int64_t window, int32_t *tokens, struct rk_error *error) {
    int64_t count = data->options.window_tokens + 1;
    if (data->from_file)
        return rk_token_file_read(&data->file, window % data->windows * data->options.window_tokens, count, tokens,
                                  error);
    uint64_t first = (uint64_t)window * (uint64_t)data->options.window_tokens;
    for (int64_t i = 0; i < count; i++)
        tokens[i] = rk_data_synthetic_token(first + (uint64_t)i, data->options.seed, data->options.vocabulary);
    return RK_OK;
}

void rk_data_describe(const struct rk_data *data, char *text, size_t size) {
    if (data->from_file)
        snprintf(text, size, "%s (%s), %lld tokens", data->options.path, rk_token_format_name(data->file.format),
                 (long long)data->file.count);
    else
        snprintf(text, size, "synthetic, seed %llu", (unsigned long long)data->options.seed);
}

/* Any bytes as an import: refused with a message and nothing stored, or taken and exported without complaint. */
#include "db/exchange.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct rk_db *database;
static char folder[] = "/tmp/reckon-fuzz-XXXXXX";
static char database_path[64], input_path[64];

static void remove_files(void) {
    rk_db_close(database);
    unlink(database_path);
    unlink(input_path);
    rmdir(folder);
}

static void open_once(void) {
    struct rk_db_options options = {.access = RK_DB_WRITE};
    struct rk_error error;
    if (database != NULL)
        return;
    if (mkdtemp(folder) == NULL)
        abort();
    snprintf(database_path, sizeof database_path, "%s/db", folder);
    snprintf(input_path, sizeof input_path, "%s/input", folder);
    if (rk_db_open(database_path, &options, &database, &error) != RK_OK)
        abort();
    atexit(remove_files);
}

static enum rk_status discard(void *context, const void *data, size_t length, struct rk_error *error) {
    (void)context;
    (void)data;
    (void)length;
    (void)error;
    return RK_OK;
}

static int64_t count_rows(void) {
    struct rk_db_table_size *sizes = NULL;
    size_t count = 0;
    int64_t rows = 0;
    if (rk_db_table_sizes(database, &sizes, &count, NULL) != RK_OK)
        abort();
    for (size_t i = 0; i < count; i++)
        rows += sizes[i].rows;
    free(sizes);
    return rows;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct rk_import_options options = {.nvbandwidth_bytes = 1 << 20, .now_us = 1};
    struct rk_export_sink sink = {discard, NULL};
    struct rk_import_result result;
    struct rk_error error = {RK_OK, ""};
    open_once();
    int file = open(input_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, data, size) != (ssize_t)size || close(file) != 0)
        abort();
    /* Inside a transaction that is taken back: every input meets an empty database. */
    if (rk_db_begin(database, &error) != RK_OK)
        abort();
    if (rk_db_import(database, input_path, &options, &result, &error) != RK_OK) {
        if (error.text[0] == '\0' || count_rows() != 0)
            abort();
    } else if (rk_db_export_jsonl(database, &sink, &error) != RK_OK) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    rk_db_rollback(database);
    return 0;
}

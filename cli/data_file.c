#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool try(const char *folder, size_t folder_length, const char *below, const char *name, char path[PATH_MAX]) {
    int length = snprintf(path, PATH_MAX, "%.*s%s/%s", (int)folder_length, folder, below, name);
    return length > 0 && length < PATH_MAX && access(path, R_OK) == 0;
}

enum rk_status rk_cli_data_file(const struct rk_cli *cli, const char *name, char path[PATH_MAX],
                                struct rk_error *error) {
    const char *given = getenv("RECKON_DATA");
    if (given != NULL && given[0] != '\0') {
        if (try(given, strlen(given), "", name, path))
            return RK_OK;
        return rk_fail(error, RK_USAGE, "%s: not found in RECKON_DATA=%s; correct or unset that variable", name, given);
    }
    /* From the binary's folder upwards: build/default/reckon finds the source tree, bin/reckon finds share/reckon. */
    size_t length = strlen(cli->program);
    for (int level = 0; level < 4 && length > 0; level++) {
        while (length > 0 && cli->program[length - 1] != '/')
            length--;
        length -= length > 0;
        if (try(cli->program, length, "", name, path) || try(cli->program, length, "/share/reckon", name, path))
            return RK_OK;
    }
    if (try(RK_SOURCE_FOLDER, strlen(RK_SOURCE_FOLDER), "", name, path))
        return RK_OK;
    return rk_fail(
        error, RK_USAGE,
        "%s: not found beside or above %s, nor in its share/reckon; set RECKON_DATA to the folder that holds it", name,
        cli->program);
}

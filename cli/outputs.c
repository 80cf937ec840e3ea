#include "cli/cli.h"

#include <sys/stat.h>

enum rk_status rk_cli_check_outputs(const char *const *inputs, size_t input_count, const char *const *outputs,
                                    size_t output_count, struct rk_error *error) {
    for (size_t o = 0; o < output_count; o++) {
        struct stat output;
        if (outputs[o] == NULL || stat(outputs[o], &output) != 0 || !S_ISREG(output.st_mode))
            continue;
        for (size_t i = 0; i < input_count; i++) {
            struct stat input;
            if (inputs[i] != NULL && stat(inputs[i], &input) == 0 && input.st_dev == output.st_dev &&
                input.st_ino == output.st_ino)
                return rk_fail(error, RK_USAGE, "%s: is input and output, and would be lost; write to another file",
                               outputs[o]);
        }
    }
    return RK_OK;
}

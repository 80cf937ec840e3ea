/* Any bytes as a token file: refused with a message, or every token of it can be read. */
#include "base/text.h"
#include "executor/token_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int descriptor = memfd_create("tokens", MFD_CLOEXEC);
    char path[64];
    struct rk_error error = {0};
    struct rk_token_file file;
    if (descriptor < 0 || (size > 0 && write(descriptor, data, size) != (ssize_t)size))
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    for (int width = 0; width <= 4; width += 2) {
        error.text[0] = '\0';
        if (rk_token_file_open(path, width, 0, &file, &error) != RK_OK) {
            if (error.text[0] == '\0')
                abort();
            continue;
        }
        /* What was accepted must lie inside the file. */
        if (file.count < 1 || (uint64_t)file.count > size / (uint64_t)file.token_bytes)
            abort();
        int32_t token;
        for (int64_t i = 0; i < file.count; i++)
            if (rk_token_file_read(&file, i, 1, &token, &error) == RK_OK && token < 0)
                abort();
        rk_token_file_close(&file);
    }
    close(descriptor);
    return 0;
}

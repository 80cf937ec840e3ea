/* Replays every file of the folders given through a fuzz target, for builds without a fuzzer. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path) {
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(1 << 20);
    size_t size = file != NULL && data != NULL ? fread(data, 1, 1 << 20, file) : 0;
    int failed = file == NULL || data == NULL;
    if (!failed) {
        /* A copy of exactly the size lets the address sanitizer see a read past the end. */
        uint8_t *exact = malloc(size > 0 ? size : 1);
        failed = exact == NULL;
        for (size_t i = 0; i < size && !failed; i++) {
            exact[i] = data[i];
        }
        failed = failed || LLVMFuzzerTestOneInput(exact, size) != 0;
        free(exact);
    }
    if (file != NULL) {
        fclose(file);
    }
    free(data);
    return failed;
}

int main(int argc, char **argv) {
    int replayed = 0;
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        for (struct dirent *entry = folder != NULL ? readdir(folder) : NULL; entry != NULL; entry = readdir(folder)) {
            char path[1024];
            if (entry->d_name[0] == '.') {
                continue;
            }
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            failed += replay_file(path);
            replayed++;
        }
        if (folder != NULL) {
            closedir(folder);
        }
    }
    printf("%d files replayed, %d failed\n", replayed, failed);
    return failed > 0 || replayed == 0;
}

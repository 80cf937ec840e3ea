#include "kernels/gpu_module.h"

#ifndef RK_GPU_MODULE

const struct rk_gpu_module *rk_gpu_module(const char **reason) {
    *reason = "";
    return NULL;
}

#else

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct loaded {
    bool tried;
    const struct rk_gpu_module *module;
    char reason[512];
};

static void *open_beside(const char *folder, const char *way) {
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s%s" RK_GPU_MODULE, folder, way);
    return access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

/* The program's folder with its last slash, or "". */
static void own_folder(char folder[PATH_MAX]) {
    ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[1] = '\0';
}

static void *open_library(void) {
    static const char *const ways[] = {"", "../lib/", "../lib/reckon/"};
    char folder[PATH_MAX];
    own_folder(folder);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        void *library = open_beside(folder, ways[i]);
        if (library != NULL)
            return library;
    }
    void *library = open_beside(RK_GPU_MODULE_FOLDER "/", "");
    return library != NULL ? library : dlopen(RK_GPU_MODULE, RTLD_NOW | RTLD_LOCAL);
}

static void load(struct loaded *loaded) {
    static const size_t layout[] = RK_GPU_MODULE_LAYOUT;
    void *library = open_library();
    if (library == NULL) {
        const char *error = dlerror();
        snprintf(loaded->reason, sizeof loaded->reason, "the GPU module cannot be loaded: %s",
                 error != NULL ? error : RK_GPU_MODULE);
        return;
    }
    /* POSIX lets a pointer to data stand for one to a function; C does not, so the bytes are copied. */
    void *symbol = dlsym(library, RK_GPU_MODULE_ENTRY);
    rk_gpu_module_entry *entry = NULL;
    memcpy(&entry, &symbol, sizeof entry);
    const struct rk_gpu_module *module = entry != NULL ? entry() : NULL;
    if (module == NULL || memcmp(module->layout, layout, sizeof layout) != 0)
        snprintf(loaded->reason, sizeof loaded->reason,
                 RK_GPU_MODULE " is of another build of the program; build both");
    else
        loaded->module = module;
}

const struct rk_gpu_module *rk_gpu_module(const char **reason) {
    static struct loaded loaded;
    if (!loaded.tried) {
        loaded.tried = true;
        load(&loaded);
    }
    *reason = loaded.reason;
    return loaded.module;
}

#endif

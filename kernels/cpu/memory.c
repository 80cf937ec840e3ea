#include "kernels/cpu/memory.h"
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGNMENT = 256 };

enum rk_status rk_cpu_memory_allocate(struct rk_device *device, int64_t bytes, void **address, struct rk_error *error) {
    void *memory = NULL;
    size_t size = bytes > 0 ? (size_t)bytes : ALIGNMENT;
    if (bytes < 0 || posix_memalign(&memory, ALIGNMENT, size) != 0) {
        return rk_fail(error, RK_ERROR, "CPU device %d: %" PRId64 " bytes of memory are not to be had", device->ordinal,
                       bytes);
    }
    device->counters.allocations++;
    device->counters.device_bytes += bytes;
    *address = memory;
    return RK_OK;
}

void rk_cpu_memory_free(struct rk_device *device, void *address) {
    (void)device;
    free(address);
}

/* Opens a file without a name in the folder. */
static enum rk_status open_nameless(const char *folder, int *descriptor, struct rk_error *error) {
    int opened = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (opened < 0 &&
        (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) { /* file systems without O_TMPFILE */
        char path[PATH_MAX];
        int length = snprintf(path, sizeof path, "%s/reckon-spill-XXXXXX", folder);
        if (length < 0 || (size_t)length >= sizeof path) {
            return rk_fail(error, RK_USAGE, "spill folder: the path is longer than %d bytes", PATH_MAX);
        }
        opened = mkostemp(path, O_CLOEXEC);
        if (opened >= 0) {
            unlink(path);
        }
    }
    if (opened < 0) {
        return rk_fail(error, RK_USAGE, "spill folder %s: %s; name a folder that exists and can be written", folder,
                       strerror(errno));
    }
    *descriptor = opened;
    return RK_OK;
}

enum rk_status rk_cpu_host_allocate(struct rk_device *device, int64_t bytes, void **address, struct rk_error *error) {
    int64_t size = bytes > 0 ? bytes : ALIGNMENT;
    int descriptor = -1;
    struct rk_cpu_spill *spill = malloc(sizeof *spill);
    if (spill == NULL) {
        return rk_fail(error, RK_ERROR, "spill folder %s: out of memory", device->spill_folder);
    }
    enum rk_status status = open_nameless(device->spill_folder, &descriptor, error);
    if (status != RK_OK) {
        goto free_spill;
    }
    /* The blocks are taken now: a disk that fills up is an error here, not a signal in the middle of a step. */
    int failure = posix_fallocate(descriptor, 0, size);
    if (failure != 0) {
        status = rk_fail(error, RK_ERROR,
                         "spill folder %s: no room for %" PRId64 " bytes (%s); free some space or name "
                         "another folder",
                         device->spill_folder, size, strerror(failure));
        goto close_file;
    }
    void *memory = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) {
        status = rk_fail(error, RK_ERROR, "spill folder %s: %" PRId64 " bytes cannot be mapped (%s)",
                         device->spill_folder, size, strerror(errno));
        goto close_file;
    }
    close(descriptor);
    *spill = (struct rk_cpu_spill){memory, size, device->spills};
    device->spills = spill;
    device->counters.allocations++;
    device->counters.host_bytes += bytes;
    *address = memory;
    return RK_OK;

close_file:
    close(descriptor);
free_spill:
    free(spill);
    return status;
}

void rk_cpu_host_free(struct rk_device *device, void *address) {
    for (struct rk_cpu_spill **link = &device->spills; *link != NULL; link = &(*link)->next) {
        struct rk_cpu_spill *spill = *link;
        if (spill->address == address) {
            *link = spill->next;
            munmap(spill->address, (size_t)spill->bytes);
            free(spill);
            return;
        }
    }
}

void rk_cpu_spills_free(struct rk_device *device) {
    while (device->spills != NULL) {
        rk_cpu_host_free(device, device->spills->address);
    }
}

enum rk_status rk_cpu_spill_sync(struct rk_device *device, void *address, int64_t bytes, struct rk_error *error) {
    const struct rk_cpu_spill *spill = device->spills;
    char *first = address;
    while (spill != NULL && (first < spill->address || first >= spill->address + spill->bytes)) {
        spill = spill->next;
    }
    if (spill == NULL) {
        return RK_OK;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t before = (size_t)(first - spill->address) % page;
    if (msync(first - before, (size_t)bytes + before, MS_SYNC) != 0) {
        return rk_fail(error, RK_ERROR, "spill folder %s: %" PRId64 " bytes could not be written (%s)",
                       device->spill_folder, bytes, strerror(errno));
    }
    return RK_OK;
}

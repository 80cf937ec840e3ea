/* The CPU back end's table: streams, events and copies that happen at once. */
#include "kernels/cpu/blas.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/memory.h"

#include "base/clock.h"

#include <cblas.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static enum rk_status device_count(int *count, struct rk_error *error) {
    (void)error;
    cpu_set_t cores;
    *count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return RK_OK;
}

static enum rk_status device_open(int ordinal, const char *spill_folder, struct rk_device **device,
                                  struct rk_error *error) {
    if (ordinal < 0) {
        return rk_fail(error, RK_ERROR, "CPU device %d: device numbers start at 0", ordinal);
    }
    struct rk_device *opened = calloc(1, sizeof *opened);
    char *folder = strdup(spill_folder != NULL ? spill_folder : "/var/tmp");
    if (opened == NULL || folder == NULL) {
        free(folder);
        free(opened);
        return rk_fail(error, RK_ERROR, "CPU device %d: out of memory", ordinal);
    }
    opened->ordinal = ordinal;
    opened->spill_folder = folder;
    rk_cpu_blas_prepare();
    *device = opened;
    return RK_OK;
}

static void device_close(struct rk_device *device) {
    if (device == NULL) {
        return;
    }
    rk_cpu_spills_free(device);
    free(device->spill_folder);
    free(device);
}

/* The processor's name as Linux tells it, or "CPU". */
static void processor_name(char *name, size_t size) {
    snprintf(name, size, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (file == NULL) {
        return;
    }
    char line[256];
    while (fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(name, size, "%.*s", (int)size - 1, colon + 1 + strspn(colon + 1, " "));
            break;
        }
    }
    fclose(file);
}

/* Resident bytes of this process; 0 where the system does not say. */
static int64_t resident_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    long total = 0, resident = 0;
    if (file == NULL) {
        return 0;
    }
    int fields = fscanf(file, "%ld %ld", &total, &resident);
    fclose(file);
    return fields == 2 ? (int64_t)resident * sysconf(_SC_PAGESIZE) : 0;
}

static enum rk_status device_facts(struct rk_device *device, struct rk_device_facts *facts, struct rk_error *error) {
    (void)device;
    (void)error;
    struct utsname system;
    memset(facts, 0, sizeof *facts);
    processor_name(facts->name, sizeof facts->name);
    facts->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    facts->used_bytes = resident_bytes();
    facts->multiprocessors = 1;
    long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    facts->l2_bytes = l2 > 0 ? l2 : 0;
    if (uname(&system) == 0) {
        snprintf(facts->driver, sizeof facts->driver, "%.31s", system.release);
        snprintf(facts->runtime, sizeof facts->runtime, "%.31s", system.machine);
    }
    snprintf(facts->libraries, sizeof facts->libraries, "%.159s", openblas_get_config());
    return RK_OK;
}

static enum rk_status device_describe(int ordinal, struct rk_device_facts *facts, struct rk_error *error) {
    (void)ordinal;
    enum rk_status status = device_facts(NULL, facts, error);
    facts->used_bytes = 0;
    return status;
}

static enum rk_status stream_create(struct rk_device *device, bool high_priority, struct rk_stream **stream,
                                    struct rk_error *error) {
    (void)high_priority; /* calls run at once: there is nothing to come before */
    struct rk_stream *created = malloc(sizeof *created);
    if (created == NULL) {
        return rk_fail(error, RK_ERROR, "CPU stream: out of memory");
    }
    created->device = device;
    *stream = created;
    return RK_OK;
}

static void stream_destroy(struct rk_stream *stream) {
    free(stream);
}

static enum rk_status stream_synchronize(struct rk_stream *stream, double deadline_seconds, struct rk_error *error) {
    (void)deadline_seconds;
    (void)error;
    stream->device->counters.host_waits++;
    return RK_OK;
}

static enum rk_status event_create(struct rk_device *device, bool timed, struct rk_event_handle **event,
                                   struct rk_error *error) {
    struct rk_event_handle *created = calloc(1, sizeof *created);
    if (created == NULL) {
        return rk_fail(error, RK_ERROR, "CPU event: out of memory");
    }
    created->device = device;
    created->timed = timed;
    *event = created;
    return RK_OK;
}

static void event_destroy(struct rk_event_handle *event) {
    free(event);
}

static enum rk_status event_record(struct rk_event_handle *event, struct rk_stream *stream, struct rk_error *error) {
    (void)stream;
    (void)error;
    event->recorded = true;
    if (event->timed) {
        event->seconds = rk_clock_seconds();
    }
    return RK_OK;
}

/* Whatever was recorded has happened. What was not recorded yet counts as complete, as the contract says; if it is
 * recorded later in program order, another back end would not have waited for it either, so it is counted. */
static enum rk_status event_wait(struct rk_stream *stream, struct rk_event_handle *event, struct rk_error *error) {
    (void)error;
    stream->device->counters.unrecorded_waits += event->recorded ? 0 : 1;
    return RK_OK;
}

static enum rk_status event_done(struct rk_event_handle *event, bool *done, struct rk_error *error) {
    (void)event;
    (void)error;
    *done = true;
    return RK_OK;
}

static enum rk_status event_elapsed(struct rk_event_handle *from, struct rk_event_handle *to, double *seconds,
                                    struct rk_error *error) {
    if (!from->timed || !to->timed || !from->recorded || !to->recorded) {
        return rk_fail(error, RK_ERROR, "CPU event: time asked of an event that is %s",
                       from->timed && to->timed ? "not recorded yet" : "not timed");
    }
    *seconds = to->seconds - from->seconds;
    return RK_OK;
}

static enum rk_status copy(struct rk_stream *stream, void *to, const void *from, int64_t bytes,
                           enum rk_copy_direction direction, struct rk_error *error) {
    struct rk_device *device = stream->device;
    device->counters.copies_to_host += direction == RK_COPY_D2H;
    device->counters.copies_to_device += direction == RK_COPY_H2D;
    if (bytes <= 0) {
        return RK_OK;
    }
    memmove(to, from, (size_t)bytes);
    return direction == RK_COPY_D2H ? rk_cpu_spill_sync(device, to, bytes, error) : RK_OK;
}

static enum rk_status fill(struct rk_stream *stream, void *address, int byte, int64_t bytes, struct rk_error *error) {
    (void)stream;
    (void)error;
    if (bytes > 0) {
        memset(address, byte, (size_t)bytes);
    }
    return RK_OK;
}

static void counters_reset(struct rk_device *device) {
    memset(&device->counters, 0, sizeof device->counters);
}

static void counters_read(struct rk_device *device, struct rk_device_counters *counters) {
    *counters = device->counters;
}

const struct rk_backend *rk_backend_cpu(void) {
    static const struct rk_backend backend = {
        .kind = RK_BACKEND_CPU,
        .name = "cpu",
        .device_count = device_count,
        .device_open = device_open,
        .device_close = device_close,
        .device_facts = device_facts,
        .device_describe = device_describe,
        .memory_allocate = rk_cpu_memory_allocate,
        .memory_free = rk_cpu_memory_free,
        .host_allocate = rk_cpu_host_allocate,
        .host_free = rk_cpu_host_free,
        .stream_create = stream_create,
        .stream_destroy = stream_destroy,
        .stream_synchronize = stream_synchronize,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_record = event_record,
        .event_wait = event_wait,
        .event_done = event_done,
        .event_elapsed = event_elapsed,
        .copy = copy,
        .fill = fill,
        .counters_reset = counters_reset,
        .counters_read = counters_read,
#define KERNEL(kind) [RK_OP_##kind] = rk_cpu_##kind,
#define TRANSPORT(kind)
#define COPY(kind)
#define ROW(kind, name, family, executor, dimensions, operands) executor(kind)
        .op = {RK_OP_TABLE(ROW)},
#undef ROW
#undef COPY
#undef TRANSPORT
#undef KERNEL
    };
    return &backend;
}

#include "base/host.h"

#include "base/clock.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double LEAST_SHOWN = 0.05;

/* Processor time so far, in clock ticks. */
struct usage {
    int64_t process;
    char name[64];
    long long ticks;
};

struct snapshot {
    double seconds;
    long long busy, stolen; /* of the allowed threads; -1 when unknown */
    struct usage *processes;
    size_t count, capacity;
};

static void read_processors(struct snapshot *snapshot) {
    snapshot->busy = snapshot->stolen = -1;
    cpu_set_t allowed;
    FILE *file = fopen("/proc/stat", "re");
    if (file == NULL || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        goto close_file;
    char line[512];
    long long busy = 0, stolen = 0, seen = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        int processor;
        long long user, nice, system, idle, wait, interrupt, soft, steal = 0;
        if (sscanf(line, "cpu%d %lld %lld %lld %lld %lld %lld %lld %lld", &processor, &user, &nice, &system, &idle,
                   &wait, &interrupt, &soft, &steal) < 8 ||
            processor < 0 || processor >= CPU_SETSIZE || !CPU_ISSET((size_t)processor, &allowed))
            continue;
        busy += user + nice + system + interrupt + soft;
        stolen += steal;
        seen++;
    }
    if (seen > 0) {
        snapshot->busy = busy;
        snapshot->stolen = stolen;
    }
close_file:
    if (file != NULL)
        fclose(file);
}

/* The name stands in brackets and may hold anything, brackets and blanks too: the last one ends it. */
static bool read_process(int64_t process, struct usage *usage) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)process);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    char *open = read ? strchr(line, '(') : NULL, *close = read ? strrchr(line, ')') : NULL;
    long long user, system;
    if (open == NULL || close == NULL ||
        sscanf(close + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld", &user, &system) != 2)
        return false;
    usage->process = process;
    usage->ticks = user + system;
    snprintf(usage->name, sizeof usage->name, "%.*s", (int)(close - open - 1), open + 1);
    return true;
}

static enum rk_status take(struct snapshot *snapshot, struct rk_error *error) {
    snapshot->seconds = rk_clock_seconds();
    read_processors(snapshot);
    DIR *folder = opendir("/proc");
    if (folder == NULL)
        return RK_OK;
    enum rk_status status = RK_OK;
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        struct usage usage;
        if (!isdigit((unsigned char)entry->d_name[0]) || !read_process(strtoll(entry->d_name, NULL, 10), &usage))
            continue;
        if (snapshot->count == snapshot->capacity) {
            size_t capacity = snapshot->capacity == 0 ? 256 : 2 * snapshot->capacity;
            struct usage *larger = realloc(snapshot->processes, capacity * sizeof *larger);
            if (larger == NULL) {
                status = rk_fail(error, RK_ERROR, "processes: not enough memory to list them");
                break;
            }
            snapshot->processes = larger;
            snapshot->capacity = capacity;
        }
        snapshot->processes[snapshot->count++] = usage;
    }
    closedir(folder);
    return status;
}

static int by_process(const void *left, const void *right) {
    const struct usage *a = left, *b = right;
    return (a->process > b->process) - (a->process < b->process);
}

/* Keeps the heaviest few, in falling order. */
static void insert(struct rk_host_activity *activity, const struct usage *usage, double processors) {
    int64_t at = activity->heavy_count;
    while (at > 0 && activity->heavy[at - 1].processors < processors)
        at--;
    if (at == RK_HOST_HEAVY_MAX)
        return;
    int64_t kept = activity->heavy_count < RK_HOST_HEAVY_MAX ? activity->heavy_count : RK_HOST_HEAVY_MAX - 1;
    memmove(&activity->heavy[at + 1], &activity->heavy[at], (size_t)(kept - at) * sizeof activity->heavy[0]);
    activity->heavy[at] = (struct rk_host_process){.process = usage->process, .processors = processors};
    memcpy(activity->heavy[at].name, usage->name, sizeof usage->name);
    activity->heavy_count = kept + 1;
}

static void compare(const struct snapshot *before, const struct snapshot *after, struct rk_host_activity *activity) {
    double ticks = (double)sysconf(_SC_CLK_TCK) * (after->seconds - before->seconds);
    double own = 0;
    *activity = (struct rk_host_activity){.busy_processors = NAN, .stolen_processors = NAN};
    for (size_t i = 0; i < after->count; i++) {
        const struct usage *now = &after->processes[i];
        const struct usage *then = before->processes != NULL ? bsearch(now, before->processes, before->count,
                                                                       sizeof *before->processes, by_process)
                                                             : NULL;
        /* A process that began in between spent all its time in between. */
        double processors = (double)(now->ticks - (then != NULL ? then->ticks : 0)) / ticks;
        if (now->process == getpid())
            own = processors;
        else if (processors >= LEAST_SHOWN)
            insert(activity, now, processors);
    }
    if (before->busy >= 0 && after->busy >= 0) {
        activity->busy_processors = fmax(0, (double)(after->busy - before->busy) / ticks - own);
        activity->stolen_processors = fmax(0, (double)(after->stolen - before->stolen) / ticks);
    }
}

enum rk_status rk_host_observe(double seconds, struct rk_host_activity *activity, struct rk_error *error) {
    struct snapshot before = {0}, after = {0};
    enum rk_status status = take(&before, error);
    if (status != RK_OK)
        goto free_snapshots;
    if (before.processes != NULL)
        qsort(before.processes, before.count, sizeof *before.processes, by_process);
    struct timespec left = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&left, NULL);
    status = take(&after, error);
    if (status == RK_OK)
        compare(&before, &after, activity);
free_snapshots:
    free(before.processes);
    free(after.processes);
    return status;
}

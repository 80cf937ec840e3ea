#include "base/host.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static FILE *open_below(const char *root, const char *path) {
    char full[PATH_MAX];
    int length = snprintf(full, sizeof full, "%s%s", root, path);
    return length > 0 && (size_t)length < sizeof full ? fopen(full, "re") : NULL;
}

/* The first line without its end; false when there is none. */
static bool read_line(const char *root, const char *path, char *line, size_t size) {
    FILE *file = open_below(root, path);
    if (file == NULL)
        return false;
    bool read = fgets(line, (int)size, file) != NULL;
    if (read)
        line[strcspn(line, "\n")] = '\0';
    fclose(file);
    return read;
}

/* The text after key and separator in the first line that begins with key; quotes are taken off. */
static void read_field(const char *root, const char *path, const char *key, char separator, char *value, size_t size) {
    FILE *file = open_below(root, path);
    if (file == NULL)
        return;
    char line[1024];
    while (fgets(line, sizeof line, file) != NULL) {
        const char *at = line + strlen(key);
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        at += strspn(at, " \t");
        if (*at != separator)
            continue;
        at += 1 + strspn(at + 1, " \t\"");
        snprintf(value, size, "%.*s", (int)strcspn(at, "\"\n"), at);
        break;
    }
    fclose(file);
}

static int64_t read_kibibytes(const char *root, const char *key) {
    char value[64] = "";
    long long kibibytes;
    read_field(root, "/proc/meminfo", key, ':', value, sizeof value);
    return sscanf(value, "%lld", &kibibytes) == 1 && kibibytes >= 0 && kibibytes < INT64_MAX / 1024
               ? (int64_t)kibibytes * 1024
               : -1;
}

/* The number of entries of a list such as "0-3,8,10-11"; -1 when it is none. */
static int64_t count_list(const char *list) {
    int64_t count = 0;
    for (const char *at = list; *at != '\0';) {
        char *end;
        long first = strtol(at, &end, 10);
        if (end == at)
            return -1;
        long last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        if (last < first)
            return -1;
        count += last - first + 1;
        at = *end == ',' ? end + 1 : end;
        if (*end != ',' && *end != '\0')
            return -1;
    }
    return count > 0 ? count : -1;
}

static int64_t read_list_count(const char *root, const char *path) {
    char line[1024];
    return read_line(root, path, line, sizeof line) ? count_list(line) : -1;
}

/* Threads, physical cores and sockets from /proc/cpuinfo; cores are the pairs of physical id and core id that differ.
 */
static void read_cores(const char *root, struct rk_host_facts *facts) {
    enum { MOST = 4096 };
    FILE *file = open_below(root, "/proc/cpuinfo");
    if (file == NULL)
        return;
    static const char thread_key[] = "processor", socket_key[] = "physical id", core_key[] = "core id";
    int64_t pairs[MOST];
    int64_t threads = 0, cores = 0, socket = 0, highest_socket = -1;
    char line[1024];
    while (fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (colon == NULL)
            continue;
        threads += strncmp(line, thread_key, sizeof thread_key - 1) == 0;
        if (strncmp(line, socket_key, sizeof socket_key - 1) == 0) {
            socket = strtol(colon + 1, NULL, 10);
            highest_socket = socket > highest_socket ? socket : highest_socket;
        }
        if (strncmp(line, core_key, sizeof core_key - 1) != 0)
            continue;
        int64_t pair = socket << 32 | (strtol(colon + 1, NULL, 10) & 0xFFFFFFFF);
        bool known = false;
        for (int64_t i = 0; i < cores && !known; i++)
            known = pairs[i] == pair;
        if (!known && cores < MOST)
            pairs[cores++] = pair;
    }
    fclose(file);
    facts->threads = threads > 0 ? threads : -1;
    facts->cores = cores > 0 ? cores : -1;
    facts->sockets = highest_socket >= 0 ? highest_socket + 1 : -1;
}

static void read_hypervisor(const char *root, struct rk_host_facts *facts) {
    char flags[4096] = "";
    FILE *file = open_below(root, "/proc/cpuinfo");
    if (file == NULL)
        return;
    while (fgets(flags, sizeof flags, file) != NULL)
        if (strncmp(flags, "flags", 5) == 0 && strstr(flags, " hypervisor") != NULL) {
            facts->virtual_machine = true;
            break;
        }
    fclose(file);
}

/* The limits of one control group (version 2), kept when they are smaller than those of its children. */
static void apply_group(const char *root, const char *group, struct rk_host_facts *facts) {
    char path[PATH_MAX + 64], line[128];
    long long limit, used, quota, period;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
    if (read_line(root, path, line, sizeof line) && sscanf(line, "%lld", &limit) == 1 &&
        (facts->memory_limit_bytes < 0 || limit < facts->memory_limit_bytes)) {
        facts->memory_limit_bytes = limit;
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", group);
        facts->memory_limit_used_bytes =
            read_line(root, path, line, sizeof line) && sscanf(line, "%lld", &used) == 1 ? used : -1;
    }
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
    if (read_line(root, path, line, sizeof line) && sscanf(line, "%lld %lld", &quota, &period) == 2 && period > 0)
        facts->quota = fmin(isnan(facts->quota) ? INFINITY : facts->quota, (double)quota / (double)period);
}

static void apply_version_1(const char *root, struct rk_host_facts *facts) {
    char line[128];
    long long limit, quota, period;
    /* Without a limit version 1 says a number near 2^63. */
    if (read_line(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", line, sizeof line) &&
        sscanf(line, "%lld", &limit) == 1 && limit < (1LL << 60))
        facts->memory_limit_bytes = limit;
    if (read_line(root, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof line) &&
        sscanf(line, "%lld", &quota) == 1 && quota > 0 &&
        read_line(root, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", line, sizeof line) &&
        sscanf(line, "%lld", &period) == 1 && period > 0)
        facts->quota = (double)quota / (double)period;
}

/* A limit may stand on the process's own group or on any above it. */
static void read_limits(const char *root, struct rk_host_facts *facts) {
    char group[PATH_MAX] = "";
    FILE *file = open_below(root, "/proc/self/cgroup");
    char line[PATH_MAX];
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "0::", 3) == 0)
            snprintf(group, sizeof group, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    if (file != NULL)
        fclose(file);
    apply_version_1(root, facts);
    for (;;) {
        if (strcmp(group, "/") == 0)
            group[0] = '\0';
        apply_group(root, group, facts);
        char *slash = strrchr(group, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
    }
}

void rk_host_read(const char *root, struct rk_host_facts *facts) {
    *facts = (struct rk_host_facts){.threads = -1,
                                    .sockets = -1,
                                    .cores = -1,
                                    .memory_limit_bytes = -1,
                                    .memory_limit_used_bytes = -1,
                                    .quota = NAN,
                                    .load_average = NAN};
    struct utsname system;
    if (uname(&system) == 0) {
        snprintf(facts->kernel, sizeof facts->kernel, "%.50s %.70s", system.sysname, system.release);
        snprintf(facts->architecture, sizeof facts->architecture, "%.31s", system.machine);
        snprintf(facts->hostname, sizeof facts->hostname, "%.127s", system.nodename);
    }
    read_field(root, "/etc/os-release", "PRETTY_NAME", '=', facts->operating_system, sizeof facts->operating_system);
    read_field(root, "/proc/cpuinfo", "model name", ':', facts->processor, sizeof facts->processor);
    read_cores(root, facts);
    read_hypervisor(root, facts);
    int64_t online = read_list_count(root, "/sys/devices/system/cpu/online");
    if (online > 0)
        facts->threads = online;
    facts->numa_nodes = read_list_count(root, "/sys/devices/system/node/online");
    cpu_set_t allowed;
    facts->allowed_threads = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : facts->threads;
    facts->memory_bytes = read_kibibytes(root, "MemTotal");
    facts->memory_available_bytes = read_kibibytes(root, "MemAvailable");
    read_limits(root, facts);
    char line[128];
    if (read_line(root, "/proc/loadavg", line, sizeof line))
        facts->load_average = strtod(line, NULL);
    read_line(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", facts->governor, sizeof facts->governor);
}

void rk_host_processor_list(char *text, size_t size) {
    cpu_set_t allowed;
    size_t used = 0;
    text[0] = '\0';
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    for (size_t first = 0, last = 0; first < CPU_SETSIZE; first = last + 1) {
        last = first;
        if (!CPU_ISSET(first, &allowed))
            continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &allowed))
            last++;
        char range[48];
        const char *comma = used > 0 ? "," : "";
        int length = last > first ? snprintf(range, sizeof range, "%s%zu-%zu", comma, first, last)
                                  : snprintf(range, sizeof range, "%s%zu", comma, first);
        if (used + (size_t)length + sizeof "..." > size) {
            snprintf(text + used, size - used, "...");
            return;
        }
        memcpy(text + used, range, (size_t)length + 1);
        used += (size_t)length;
    }
}

int64_t rk_host_usable_processors(const struct rk_host_facts *facts) {
    int64_t usable = facts->allowed_threads > 0 ? facts->allowed_threads : 1;
    if (!isnan(facts->quota) && facts->quota < (double)usable)
        usable = (int64_t)facts->quota;
    return usable > 0 ? usable : 1;
}

int64_t rk_host_usable_memory(const struct rk_host_facts *facts) {
    int64_t limit = facts->memory_limit_bytes;
    return limit > 0 && (facts->memory_bytes < 0 || limit < facts->memory_bytes) ? limit : facts->memory_bytes;
}

#include "base/host.h"
#include "tests/test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[] = "/tmp/reckon-test-XXXXXX";

static void put(const char *path, const char *content) {
    char full[500];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(content, file);
    fclose(file);
}

static void clear(void) {
    char command[200];
    snprintf(command, sizeof command, "rm -rf %s/proc %s/sys %s/etc", root, root, root);
    assert_int_equal(system(command), 0);
}

static void an_empty_system_is_unknown(void **state) {
    (void)state;
    struct rk_host_facts facts;
    rk_host_read(root, &facts);
    assert_int_equal(facts.threads, -1);
    assert_int_equal(facts.cores, -1);
    assert_int_equal(facts.memory_bytes, -1);
    assert_int_equal(facts.memory_limit_bytes, -1);
    assert_true(isnan(facts.quota));
    assert_true(isnan(facts.load_average));
    assert_string_equal(facts.processor, "");
    assert_true(rk_host_usable_processors(&facts) >= 1);
}

static void facts_are_read(void **state) {
    (void)state;
    put("/proc/cpuinfo",
        "processor\t: 0\nmodel name\t: Some CPU 3000\nphysical id\t: 0\ncore id\t: 0\nflags\t: fpu hypervisor\n\n"
        "processor\t: 1\nphysical id\t: 0\ncore id\t: 0\n\nprocessor\t: 2\nphysical id\t: 1\ncore id\t: 0\n");
    put("/proc/meminfo", "MemTotal:       24576000 kB\nMemFree: 5 kB\nMemAvailable:   1000 kB\n");
    put("/proc/loadavg", "3.25 1.00 0.50 1/200 999\n");
    put("/etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
    put("/sys/devices/system/cpu/online", "0-3,8,10-11\n");
    put("/sys/devices/system/node/online", "0-1\n");
    put("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    struct rk_host_facts facts;
    rk_host_read(root, &facts);
    assert_string_equal(facts.processor, "Some CPU 3000");
    assert_string_equal(facts.operating_system, "Debian GNU/Linux 12 (bookworm)");
    assert_string_equal(facts.governor, "powersave");
    assert_int_equal(facts.cores, 2);
    assert_int_equal(facts.sockets, 2);
    assert_int_equal(facts.threads, 7);
    assert_int_equal(facts.numa_nodes, 2);
    assert_int_equal(facts.memory_bytes, 24576000LL * 1024);
    assert_int_equal(facts.memory_available_bytes, 1024000);
    assert_true(facts.load_average == 3.25);
    assert_true(facts.virtual_machine);
    clear();
    /* Without /sys, as in some chroots, the processors of /proc count. */
    put("/proc/cpuinfo", "processor\t: 0\n\nprocessor\t: 1\n\nprocessor\t: 2\n");
    rk_host_read(root, &facts);
    assert_int_equal(facts.threads, 3);
    assert_int_equal(facts.cores, -1);
    clear();
}

/* The smallest limit on the way from the process's group to the root holds. */
static void nested_groups_limit(void **state) {
    (void)state;
    put("/proc/meminfo", "MemTotal: 1048576 kB\n");
    put("/proc/self/cgroup", "0::/user.slice/job 1/step\n");
    put("/sys/fs/cgroup/user.slice/memory.max", "536870912\n");
    put("/sys/fs/cgroup/user.slice/memory.current", "1000\n");
    put("/sys/fs/cgroup/user.slice/job 1/memory.max", "max\n");
    put("/sys/fs/cgroup/user.slice/job 1/step/memory.max", "805306368\n");
    put("/sys/fs/cgroup/user.slice/job 1/step/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/user.slice/job 1/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/user.slice/cpu.max", "400000 100000\n");
    struct rk_host_facts facts;
    rk_host_read(root, &facts);
    assert_int_equal(facts.memory_limit_bytes, 536870912);
    assert_int_equal(facts.memory_limit_used_bytes, 1000);
    assert_true(facts.quota == 1.5);
    assert_int_equal(rk_host_usable_memory(&facts), 536870912);
    facts.allowed_threads = 8;
    assert_int_equal(rk_host_usable_processors(&facts), 1);
    facts.quota = 3.9;
    assert_int_equal(rk_host_usable_processors(&facts), 3);
    facts.quota = 0.2;
    assert_int_equal(rk_host_usable_processors(&facts), 1);
    facts.quota = NAN;
    assert_int_equal(rk_host_usable_processors(&facts), 8);
    clear();
}

static void version_1_groups_limit(void **state) {
    (void)state;
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    struct rk_host_facts facts;
    rk_host_read(root, &facts);
    assert_int_equal(facts.memory_limit_bytes, -1);
    assert_true(isnan(facts.quota));
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
    rk_host_read(root, &facts);
    assert_int_equal(facts.memory_limit_bytes, 1000000);
    assert_true(facts.quota == 2.5);
    clear();
}

static void odd_content_is_unknown(void **state) {
    (void)state;
    put("/sys/devices/system/cpu/online", "3-1\n");
    put("/sys/devices/system/node/online", "x\n");
    put("/proc/meminfo", "MemTotal: -5 kB\nMemAvailable: 99999999999999999999 kB\n");
    put("/sys/fs/cgroup/cpu.max", "100 0\n");
    struct rk_host_facts facts;
    rk_host_read(root, &facts);
    assert_int_equal(facts.threads, -1);
    assert_int_equal(facts.numa_nodes, -1);
    assert_int_equal(facts.memory_bytes, -1);
    assert_int_equal(facts.memory_available_bytes, -1);
    assert_true(isnan(facts.quota));
    clear();
}

static void this_host_is_known(void **state) {
    (void)state;
    struct rk_host_facts facts;
    rk_host_read("", &facts);
    assert_true(facts.threads >= 1);
    assert_true(facts.allowed_threads >= 1);
    assert_true(facts.memory_bytes > 1 << 20);
    assert_true(facts.memory_available_bytes > 0);
}

/* A child that spins is seen, by name and with most of a processor; its parent, asleep, is not. */
static void busy_processes_are_seen(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0)
        for (;;)
            getppid();
    struct rk_host_activity activity;
    struct rk_error error;
    enum rk_status status = rk_host_observe(0.4, &activity, &error);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(status, RK_OK);
    bool found = false;
    for (int64_t i = 0; i < activity.heavy_count; i++) {
        assert_int_not_equal(activity.heavy[i].process, getpid());
        assert_true(i == 0 || activity.heavy[i - 1].processors >= activity.heavy[i].processors);
        found = found || activity.heavy[i].process == child;
    }
    assert_true(found);
    assert_true(activity.busy_processors > 0.1);
}

static void file_systems_are_told_apart(void **state) {
    (void)state;
    struct rk_file_system file_system;
    rk_host_file_system("/dev/shm/not/yet/there", &file_system);
    assert_string_equal(file_system.folder, "/dev/shm");
    assert_string_equal(file_system.type, "tmpfs");
    assert_true(file_system.memory);
    assert_false(file_system.network);
    rk_host_file_system("/proc/nothing", &file_system);
    assert_string_equal(file_system.folder, "/proc");
    assert_true(file_system.network); /* not known to be a local disk */
    rk_host_file_system("no-such-folder/file", &file_system);
    assert_string_equal(file_system.folder, ".");
    rk_host_file_system("no-such-file", &file_system);
    assert_string_equal(file_system.folder, ".");
    rk_host_file_system("/no-such-folder/file", &file_system);
    assert_string_equal(file_system.folder, "/");
    assert_true(file_system.free_bytes >= 0);
}

static void processors_are_listed(void **state) {
    (void)state;
    struct rk_host_facts facts;
    char list[4096], cut[6];
    int64_t count = 0;
    rk_host_read("", &facts);
    rk_host_processor_list(list, sizeof list);
    for (char *at = list; *at != '\0';) {
        long first = strtol(at, &at, 10), last = first;
        if (*at == '-')
            last = strtol(at + 1, &at, 10);
        assert_true(last >= first && (*at == ',' || *at == '\0'));
        count += last - first + 1;
        at += *at == ',';
    }
    assert_int_equal(count, facts.allowed_threads);
    rk_host_processor_list(cut, sizeof cut);
    if (strlen(list) + sizeof "..." > sizeof cut)
        assert_string_equal(cut + strlen(cut) - 3, "...");
    else
        assert_string_equal(cut, list);
}

static int make_root(void **state) {
    (void)state;
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state) {
    (void)state;
    return rmdir(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_system_is_unknown), cmocka_unit_test(facts_are_read),
        cmocka_unit_test(nested_groups_limit),        cmocka_unit_test(version_1_groups_limit),
        cmocka_unit_test(odd_content_is_unknown),     cmocka_unit_test(this_host_is_known),
        cmocka_unit_test(busy_processes_are_seen),    cmocka_unit_test(file_systems_are_told_apart),
        cmocka_unit_test(processors_are_listed),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}

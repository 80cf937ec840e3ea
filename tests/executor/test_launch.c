/* Discovery: what each launcher leaves in the environment, and what must be refused. Slurm's host lists. */
#include "executor/launch.h"
#include "executor/launch_slurm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct discovery {
    const char *environment; /* "NAME=value NAME=value" */
    int64_t flag_rank, flag_world;
    const char *flag_master;
    int32_t flag_port;
    enum rk_status status;
    enum rk_launcher launcher;
    int64_t rank, world;
    const char *master;   /* NULL: not looked at */
    int32_t port;         /* 0: not looked at */
    const char *words[3]; /* that the error must hold */
};

#define NO_FLAGS -1, 0, NULL, 0
#define FOUND(launcher, rank, world, master, port)                                                                     \
    RK_OK, RK_LAUNCHER_##launcher, rank, world, master, port, {                                                        \
        NULL                                                                                                           \
    }
#define REFUSED(...)                                                                                                   \
    RK_USAGE, 0, 0, 0, NULL, 0, {                                                                                      \
        __VA_ARGS__                                                                                                    \
    }

static const struct discovery discoveries[] = {
    {"", NO_FLAGS, FOUND(SINGLE, 0, 1, "", 0)},
    /* Flags. */
    {"", 2, 4, "n1", 5000, FOUND(FLAGS, 2, 4, "n1", 5000)},
    {"MASTER_ADDR=n2 MASTER_PORT=6000", 0, 2, NULL, 0, FOUND(FLAGS, 0, 2, "n2", 6000)},
    {"", 0, 2, "n1", 0, FOUND(FLAGS, 0, 2, "n1", 24317)},
    {"", 1, 0, NULL, 0, REFUSED("--rank", "--world")},
    {"", -1, 2, NULL, 0, REFUSED("--world", "--rank")},
    {"", 2, 2, NULL, 0, REFUSED("--rank 2", "--world 2")},
    {"", 0, 2, NULL, 0, REFUSED("--master", "MASTER_ADDR")},
    {"MASTER_ADDR=b", 0, 2, "a", 0, REFUSED("--master", "MASTER_ADDR", "b")},
    {"MASTER_PORT=1", 0, 2, "a", 2, REFUSED("--port", "MASTER_PORT")},
    {"", 0, 2, "a", 65536, REFUSED("--port 65536")},
    {"", 0, 1, NULL, 0, FOUND(FLAGS, 0, 1, "", 0)},
    /* torchrun. */
    {"RANK=3 WORLD_SIZE=8 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=29500", NO_FLAGS,
     FOUND(TORCHRUN, 3, 8, "h", 29500)},
    {"RANK=3 WORLD_SIZE=8 MASTER_ADDR=h MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True", NO_FLAGS,
     FOUND(TORCHRUN, 3, 8, "h", 29501)},
    {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", NO_FLAGS, FOUND(TORCHRUN, 0, 2, "127.0.0.1", 24317)},
    {"RANK=0 WORLD_SIZE=2", NO_FLAGS, REFUSED("torchrun", "MASTER_ADDR")},
    {"RANK=3", NO_FLAGS, REFUSED("RANK", "WORLD_SIZE is not")},
    {"WORLD_SIZE=3", NO_FLAGS, REFUSED("WORLD_SIZE is set", "RANK")},
    {"RANK=x WORLD_SIZE=3", NO_FLAGS, REFUSED("RANK is \"x\"")},
    {"RANK=-1 WORLD_SIZE=3", NO_FLAGS, REFUSED("RANK is \"-1\"")},
    {"RANK=3 WORLD_SIZE=3", NO_FLAGS, REFUSED("RANK is \"3\"", "0 to 2")},
    {"RANK=0 WORLD_SIZE=0", NO_FLAGS, REFUSED("WORLD_SIZE is \"0\"")},
    {"RANK=0 WORLD_SIZE=99999999999999999999", NO_FLAGS, REFUSED("WORLD_SIZE")},
    {"RANK=1e0 WORLD_SIZE=4", NO_FLAGS, REFUSED("RANK is \"1e0\"")},
    {"RANK= WORLD_SIZE=", NO_FLAGS, FOUND(SINGLE, 0, 1, "", 0)},
    {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", NO_FLAGS, REFUSED("LOCAL_RANK")},
    {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=3", NO_FLAGS, REFUSED("LOCAL_WORLD_SIZE")},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000", NO_FLAGS, REFUSED("MASTER_PORT")},
    {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=http", NO_FLAGS, REFUSED("MASTER_PORT")},
    /* Open MPI. */
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
     "PMIX_RANK=1 PMIX_NAMESPACE=ns",
     NO_FLAGS, FOUND(OPENMPI, 1, 2, "127.0.0.1", 0)},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
     NO_FLAGS, REFUSED("Open MPI", "MASTER_ADDR")},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
     "MASTER_ADDR=h MASTER_PORT=1234",
     NO_FLAGS, FOUND(OPENMPI, 1, 4, "h", 1234)},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=0", NO_FLAGS, REFUSED("Open MPI", "PMIx", "PMIX_RANK=0")},
    /* PMIx tells no size. */
    {"PMIX_RANK=2 PMIX_NAMESPACE=a.1", NO_FLAGS, REFUSED("PMIx", "--world")},
    {"PMIX_RANK=2 PMIX_NAMESPACE=a.1 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=n[1-2] "
     "SLURM_JOB_ID=9",
     NO_FLAGS, FOUND(PMIX, 2, 4, "n1", 0)},
    /* PMI. */
    {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", NO_FLAGS, FOUND(PMI, 1, 2, "127.0.0.1", 0)},
    {"PMI_RANK=1 PMI_SIZE=2 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", NO_FLAGS,
     REFUSED("PMI_RANK=1", "SLURM_PROCID=0")},
    /* Slurm. */
    {"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=1 "
     "SLURM_STEP_NODELIST=gpu[007-008,011],x1",
     NO_FLAGS, FOUND(SLURM, 5, 8, "gpu007", 0)},
    {"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_JOB_NODELIST=a,b", NO_FLAGS,
     FOUND(SLURM, 5, 8, "a", 0)},
    {"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_JOB_NODELIST=a[3-", NO_FLAGS,
     REFUSED("host list", "character")},
    {"SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=1", NO_FLAGS, FOUND(SINGLE, 0, 1, "", 0)},
    /* An allocation for several tasks, but no srun: one process. */
    {"SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4", NO_FLAGS, FOUND(SINGLE, 0, 1, "", 0)},
    {"SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4", 0, 1, NULL, 0, FOUND(FLAGS, 0, 1, "", 0)},
    /* A launcher with one process has started no ranks; a rank started alone by --nproc is one. */
    {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", NO_FLAGS, FOUND(SINGLE, 0, 1, "", 0)},
    {"RANK=0 WORLD_SIZE=1 RECKON_JOB_TOKEN=x", NO_FLAGS, FOUND(TORCHRUN, 0, 1, "", 0)},
    /* The launcher says more than one, and the world is one. */
    {"SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4", 0, 1, NULL, 0,
     REFUSED("flags", "--rank 0 --world 1", "SLURM_PROCID=2")},
    {"RANK=0 WORLD_SIZE=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4", NO_FLAGS,
     REFUSED("torchrun", "WORLD_SIZE=1", "SLURM_STEP_NUM_TASKS=4")},
    {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2", 0, 1, NULL, 0, REFUSED("--world 1", "OMPI_COMM_WORLD_SIZE=2")},
    {"RANK=1 WORLD_SIZE=4", 0, 4, NULL, 0, REFUSED("--rank 0", "RANK=1")},
    /* A launcher inside another that has started one daemon on each node. */
    {"RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 MASTER_ADDR=h MASTER_PORT=1 TORCHELASTIC_RUN_ID=q "
     "GROUP_WORLD_SIZE=2 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2",
     NO_FLAGS, FOUND(TORCHRUN, 9, 16, "h", 1)},
    {"OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
     "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NUM_NODES=1 SLURM_JOB_NODELIST=m[3-4]",
     NO_FLAGS, FOUND(OPENMPI, 5, 8, "m3", 0)},
    /* Left-over variables of a larger job inside a smaller one. */
    {"RANK=9 WORLD_SIZE=16 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2", NO_FLAGS,
     REFUSED("WORLD_SIZE=16", "SLURM_STEP_NUM_TASKS=4")},
};

static void set_environment(const char *environment) {
    clearenv();
    char copy[1024];
    snprintf(copy, sizeof copy, "%s", environment);
    for (char *rest = copy, *pair; (pair = strtok_r(rest, " ", &rest)) != NULL;) {
        char *equals = strchr(pair, '=');
        *equals = '\0';
        setenv(pair, equals + 1, 1);
    }
}

static void discovery_follows_the_table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof discoveries / sizeof discoveries[0]; i++) {
        const struct discovery *test = &discoveries[i];
        set_environment(test->environment);
        struct rk_place place = {.world = -77};
        struct rk_error error = {0};
        enum rk_status status =
            rk_launch_discover(test->flag_rank, test->flag_world, test->flag_master, test->flag_port, &place, &error);
        if (status != test->status)
            fail_msg("case %zu (%s): status %d, %s", i, test->environment, status, error.text);
        if (status != RK_OK) {
            assert_int_equal(place.world, -77); /* outputs are written only on success */
            for (int word = 0; word < 3 && test->words[word] != NULL; word++)
                if (strstr(error.text, test->words[word]) == NULL)
                    fail_msg("case %zu (%s): \"%s\" is not in: %s", i, test->environment, test->words[word],
                             error.text);
            continue;
        }
        if (place.launcher != test->launcher || place.rank != test->rank || place.world != test->world ||
            (test->master != NULL && strcmp(place.master, test->master) != 0) ||
            (test->port != 0 && place.port != test->port))
            fail_msg("case %zu (%s): %s rank %d of %d at %s port %d", i, test->environment,
                     rk_launcher_name(place.launcher), (int)place.rank, (int)place.world, place.master, place.port);
    }
    clearenv();
}

static void jobs_have_ports_and_tokens_of_their_own(void **state) {
    (void)state;
    struct rk_place first, second;
    struct rk_error error = {0};
    const char *job =
        "SLURM_JOB_ID=%d SLURM_STEP_ID=%d SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=n[1-2]";
    char environment[256];
    snprintf(environment, sizeof environment, job, 100, 0);
    set_environment(environment);
    assert_int_equal(rk_launch_discover(NO_FLAGS, &first, &error), RK_OK);
    assert_string_equal(first.token, "100.0");
    assert_in_range(first.port, 20000, 31999);
    assert_int_equal(rk_launch_discover(NO_FLAGS, &second, &error), RK_OK);
    assert_int_equal(first.port, second.port);
    snprintf(environment, sizeof environment, job, 100, 1);
    set_environment(environment);
    assert_int_equal(rk_launch_discover(NO_FLAGS, &second, &error), RK_OK);
    assert_string_equal(second.token, "100.1");
    assert_int_not_equal(first.port, second.port);
    clearenv();
}

struct host_list {
    const char *list;
    const char *hosts; /* joined by spaces; NULL: refused */
};

static const struct host_list host_lists[] = {
    {"n1", "n1"},
    {"n[01-03,7]", "n01 n02 n03 n7"},
    {"n[01-03,7],login1", "n01 n02 n03 n7 login1"},
    {"a,b,c", "a b c"},
    {"n[9-11]", "n9 n10 n11"},
    {"n[09-11]", "n09 n10 n11"},
    {"n[099-101]", "n099 n100 n101"},
    {"n[5]", "n5"},
    {"rack[1-2]n[08-09]", "rack1n08 rack1n09 rack2n08 rack2n09"},
    {"x[1-2].cluster,y-[3].c", "x1.cluster x2.cluster y-3.c"},
    {"n_1", "n_1"},
    {"1.2.3.4", "1.2.3.4"},
    {"[1-2]", "1 2"},
    {"", NULL},
    {",", NULL},
    {"a,", NULL},
    {",a", NULL},
    {"a,,b", NULL},
    {"n[", NULL},
    {"n]", NULL},
    {"n[]", NULL},
    {"n[1", NULL},
    {"n[1-", NULL},
    {"n[1-]", NULL},
    {"n[-1]", NULL},
    {"n[1,]", NULL},
    {"n[,1]", NULL},
    {"n[1-2-3]", NULL},
    {"n[3-1]", NULL},
    {"n[a-b]", NULL},
    {"n[1 2]", NULL},
    {"n[[1]]", NULL},
    {"n[1]]", NULL},
    {"n[1-9999999999999999999999]", NULL},
    {"n[0-999999999]", NULL},
    {"n[0-99999]m[0-99999]", NULL},
    {"n[0-1048575],m", NULL},
    {"a b", NULL},
    {"$(reboot)", NULL},
    {"a;b", NULL},
    {"../../etc", NULL},
    {"n\n1", NULL},
    {"n\xff", NULL},
    {"n%d%s%n", NULL},
};

static void host_lists_follow_the_table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof host_lists / sizeof host_lists[0]; i++) {
        const struct host_list *test = &host_lists[i];
        char host[64] = "untouched";
        int64_t count = -1;
        struct rk_error error = {0};
        enum rk_status status = rk_slurm_host(test->list, 0, host, sizeof host, &count, &error);
        if (test->hosts == NULL) {
            if (status != RK_USAGE || strcmp(host, "untouched") != 0 || count != -1)
                fail_msg("\"%s\" was taken as %s", test->list, host);
            continue;
        }
        if (status != RK_OK)
            fail_msg("\"%s\": %s", test->list, error.text);
        char all[512] = "";
        size_t used = 0;
        for (int64_t index = 0; index < count; index++) {
            int64_t same;
            assert_int_equal(rk_slurm_host(test->list, index, host, sizeof host, &same, &error), RK_OK);
            assert_int_equal(same, count);
            used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", index > 0 ? " " : "", host);
        }
        assert_string_equal(all, test->hosts);
        assert_int_equal(rk_slurm_host(test->list, count, host, sizeof host, &count, &error), RK_USAGE);
        assert_int_equal(rk_slurm_host(test->list, -1, host, sizeof host, &count, &error), RK_USAGE);
    }
}

static void long_names_are_refused(void **state) {
    (void)state;
    char list[600], host[256] = "untouched";
    int64_t count;
    struct rk_error error = {0};
    memset(list, 'a', sizeof list - 1);
    list[sizeof list - 1] = '\0';
    assert_int_equal(rk_slurm_host(list, 0, host, sizeof host, &count, &error), RK_USAGE);
    assert_string_equal(host, "untouched");
    char small[4];
    assert_int_equal(rk_slurm_host("abcd", 0, small, sizeof small, &count, &error), RK_USAGE);
    assert_int_equal(rk_slurm_host("abc", 0, small, sizeof small, &count, &error), RK_OK);
    assert_string_equal(small, "abc");
}

/* Random strings over the alphabet of the format: nothing may crash or hang, and what is accepted must be consistent.
 */
static void random_lists_do_no_harm(void **state) {
    (void)state;
    static const char alphabet[] = "n01239[]-,. x";
    uint64_t random = 88172645463325252u;
    int accepted = 0;
    for (int trial = 0; trial < 200000; trial++) {
        char list[24], host[32];
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        uint64_t bits = random;
        size_t length = 1 + bits % (sizeof list - 1);
        for (size_t i = 0; i < length; i++) {
            bits = bits * 6364136223846793005u + 1442695040888963407u;
            list[i] = alphabet[(bits >> 33) % (sizeof alphabet - 1)];
        }
        list[length] = '\0';
        int64_t count = 0, again;
        struct rk_error error = {0};
        if (rk_slurm_host(list, 0, host, sizeof host, &count, &error) != RK_OK)
            continue;
        accepted++;
        assert_true(count >= 1 && count <= RK_SLURM_HOSTS_MAX);
        assert_int_equal(strcspn(host, "[], "), strlen(host));
        assert_int_equal(rk_slurm_host(list, count - 1, host, sizeof host, &again, &error), RK_OK);
    }
    assert_true(accepted > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(discovery_follows_the_table), cmocka_unit_test(jobs_have_ports_and_tokens_of_their_own),
        cmocka_unit_test(host_lists_follow_the_table), cmocka_unit_test(long_names_are_refused),
        cmocka_unit_test(random_lists_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

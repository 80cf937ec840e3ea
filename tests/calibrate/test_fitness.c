#include "calibrate/fitness.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A machine with nothing to say against it. */
static struct rk_machine_facts quiet_machine(void) {
    struct rk_machine_facts facts = {0};
    facts.host = (struct rk_host_facts){.threads = 8,
                                        .allowed_threads = 8,
                                        .quota = NAN,
                                        .load_average = 0.1,
                                        .memory_bytes = (int64_t)64 << 30,
                                        .memory_available_bytes = (int64_t)60 << 30,
                                        .memory_limit_bytes = -1,
                                        .memory_limit_used_bytes = -1,
                                        .governor = "performance"};
    facts.activity = (struct rk_host_activity){.busy_processors = 0.01, .stolen_processors = 0};
    facts.database = (struct rk_file_system){"/home/u", "ext4", false, false, (int64_t)50 << 30, true};
    facts.spill = (struct rk_file_system){"/var/tmp", "ext4", false, false, (int64_t)50 << 30, true};
    facts.shared_memory = (struct rk_file_system){"/dev/shm", "tmpfs", false, true, (int64_t)8 << 30, true};
    snprintf(facts.gpus.reason, sizeof facts.gpus.reason, "no NVIDIA driver library was found");
    return facts;
}

static const struct rk_finding *find(const struct rk_fitness *fitness, const char *check, const char *part) {
    for (size_t i = 0; i < fitness->count; i++)
        if (strcmp(fitness->findings[i].check, check) == 0 && strstr(fitness->findings[i].text, part) != NULL)
            return &fitness->findings[i];
    return NULL;
}

static void expect(const struct rk_machine_facts *facts, enum rk_finding_level level, const char *check,
                   const char *part) {
    struct rk_fitness fitness;
    rk_fitness_check(facts, &fitness);
    const struct rk_finding *found = find(&fitness, check, part);
    if (found == NULL) {
        fail_msg("no finding of '%s' with '%s'", check, part);
        return;
    }
    assert_int_equal(found->level, level);
    assert_true(level < RK_FINDING_WARNING || found->remedy[0] != '\0');
    assert_true(fitness.worst >= level);
    struct rk_error error;
    assert_int_equal(rk_fitness_status(&fitness, &error), level == RK_FINDING_UNFIT ? RK_HARDWARE_UNFIT : RK_OK);
    if (level == RK_FINDING_UNFIT)
        assert_non_null(strstr(error.text, part));
}

static void quiet_machine_is_fit(void **state) {
    (void)state;
    struct rk_machine_facts facts = quiet_machine();
    struct rk_fitness fitness;
    rk_fitness_check(&facts, &fitness);
    assert_int_equal(fitness.worst, RK_FINDING_NOTE); /* no GPU */
    expect(&facts, RK_FINDING_NOTE, "gpu", "ranks run on processors");
    expect(&facts, RK_FINDING_GOOD, "load", "0.01 of 8");
}

static void processors(void **state) {
    (void)state;
    struct rk_machine_facts facts = quiet_machine();
    facts.host.allowed_threads = 2;
    expect(&facts, RK_FINDING_NOTE, "processors", "2 of 8");
    facts.host.quota = 1.5;
    expect(&facts, RK_FINDING_WARNING, "processors", "1.50 of 2");
    facts.host.quota = 0.5;
    expect(&facts, RK_FINDING_UNFIT, "processors", "0.50 processors");
    snprintf(facts.host.governor, sizeof facts.host.governor, "powersave");
    facts.host.quota = NAN;
    expect(&facts, RK_FINDING_WARNING, "frequency", "powersave");
}

static void load(void **state) {
    (void)state;
    struct rk_machine_facts facts = quiet_machine();
    facts.activity.busy_processors = 0.9;
    facts.activity.heavy_count = 1;
    facts.activity.heavy[0] = (struct rk_host_process){1234, "cc1", 0.9};
    expect(&facts, RK_FINDING_WARNING, "load", "cc1 (1234) 0.90");
    facts.activity.busy_processors = 4.5;
    expect(&facts, RK_FINDING_UNFIT, "load", "4.5 of 8");
    facts.activity.busy_processors = NAN;
    expect(&facts, RK_FINDING_NOTE, "load", "does not say");
    facts.activity.stolen_processors = 1;
    expect(&facts, RK_FINDING_WARNING, "hypervisor", "1.00 of 8");
    facts.activity.stolen_processors = 3;
    expect(&facts, RK_FINDING_UNFIT, "hypervisor", "3.00 of 8");
}

static void memory(void **state) {
    (void)state;
    struct rk_machine_facts facts = quiet_machine();
    facts.host.memory_available_bytes = (int64_t)2 << 30;
    expect(&facts, RK_FINDING_NOTE, "memory", "2.00 GiB of 64.00 GiB");
    facts.host.memory_available_bytes = (int64_t)500 << 20;
    expect(&facts, RK_FINDING_UNFIT, "memory", "500.0 MiB");
    facts.host.memory_available_bytes = (int64_t)60 << 30;
    facts.host.memory_limit_bytes = (int64_t)3 << 30;
    facts.host.memory_limit_used_bytes = (int64_t)5 << 29;
    expect(&facts, RK_FINDING_UNFIT, "memory", "512.0 MiB of 3.00 GiB are free (limit");
}

static void file_systems(void **state) {
    (void)state;
    struct rk_machine_facts facts = quiet_machine();
    facts.database.network = true;
    expect(&facts, RK_FINDING_WARNING, "database", "write-ahead log");
    facts.database = (struct rk_file_system){"/ro", "ext4", false, false, 1, false};
    expect(&facts, RK_FINDING_WARNING, "database", "cannot be written");
    facts.database = (struct rk_file_system){"/run", "tmpfs", false, true, 1, true};
    expect(&facts, RK_FINDING_WARNING, "database", "lost");
    facts.spill.memory = true;
    expect(&facts, RK_FINDING_WARNING, "spill", "stay in memory");
    facts.spill = (struct rk_file_system){"/var/tmp", "ext4", false, false, 1000, true};
    expect(&facts, RK_FINDING_WARNING, "spill", "less than 2 GiB");
    facts.shared_memory.free_bytes = (int64_t)64 << 20;
    expect(&facts, RK_FINDING_WARNING, "shared memory", "64.0 MiB");
    facts.shared_memory = (struct rk_file_system){"/dev", "devtmpfs", true, false, 1, true};
    expect(&facts, RK_FINDING_UNFIT, "shared memory", "missing");
}

static void gpus(void **state) {
    (void)state;
    struct rk_machine_facts facts = quiet_machine();
    static const struct {
        const char *fake;
        enum rk_finding_level level;
        const char *part;
    } cases[] = {
        {"mismatch", RK_FINDING_UNFIT, "another version than the kernel module"},
        {"busy", RK_FINDING_UNFIT, "GPU 1 is 97 % busy"},
        {"slowed", RK_FINDING_UNFIT, "GPU 0 is slowed down (reasons 0x40)"},
        {"power", RK_FINDING_WARNING, "GPU 1 has a power limit of 500 W"},
        {"well", RK_FINDING_GOOD, "2 GPUs, driver 580.65.06"},
    };
    facts.cuda_built = true;
    facts.nccl_built = true;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("FAKE_NVML", cases[i].fake, 1);
        rk_nvml_read(RK_FAKE_NVML, &facts.gpus);
        expect(&facts, cases[i].level, "gpu", cases[i].part);
    }
    assert_true(facts.gpus.loaded);
    assert_string_equal(facts.gpus.cuda, "13.0");
    assert_string_equal(facts.gpus.gpus[1].uuid, "GPU-1");
    assert_int_equal(facts.gpus.gpus[1].memory_bytes, (int64_t)1 << 37);
    assert_int_equal(facts.gpus.gpus[0].temperature_celsius, -1); /* this library does not tell */
    facts.nccl_built = false;
    expect(&facts, RK_FINDING_WARNING, "gpu", "built without NCCL");
    snprintf(facts.gpu_module_reason, sizeof facts.gpu_module_reason, "libcudart.so.13: cannot open");
    expect(&facts, RK_FINDING_WARNING, "gpu", "ranks run on processors: libcudart.so.13");
    facts.cuda_built = false;
    expect(&facts, RK_FINDING_WARNING, "gpu", "built without CUDA");
    snprintf(facts.gpus.gpus[1].name, sizeof facts.gpus.gpus[1].name, "NVIDIA Other");
    expect(&facts, RK_FINDING_WARNING, "gpu", "GPU 1 is a NVIDIA Other");
}

static void a_library_that_is_none_is_told(void **state) {
    (void)state;
    struct rk_nvml_report report;
    rk_nvml_read("/nonexistent.so", &report);
    assert_false(report.loaded);
    assert_non_null(strstr(report.reason, "no NVIDIA driver"));
    rk_nvml_read("libm.so.6", &report);
    assert_false(report.loaded);
    assert_non_null(strstr(report.reason, "too old"));
}

static void many_findings_do_not_overflow(void **state) {
    (void)state;
    struct rk_machine_facts facts = quiet_machine();
    facts.cuda_built = true;
    facts.gpus.loaded = true;
    facts.gpus.gpu_count = RK_NVML_GPUS_MAX;
    for (int i = 0; i < RK_NVML_GPUS_MAX; i++)
        facts.gpus.gpus[i] = (struct rk_nvml_gpu){
            .utilisation_percent = 50, .throttle_reasons = 8, .partitioned = true, .temperature_celsius = 90};
    struct rk_fitness fitness;
    rk_fitness_check(&facts, &fitness);
    assert_int_equal(fitness.count, RK_FINDINGS_MAX);
    assert_int_equal(fitness.worst, RK_FINDING_UNFIT);
}

static void this_machine_can_be_read(void **state) {
    (void)state;
    struct rk_machine_facts facts;
    struct rk_error error;
    assert_ok(rk_machine_facts_read("/tmp/x.db", NULL, 0.05, &facts, &error), error);
    assert_string_equal(facts.spill.folder, "/var/tmp");
    struct rk_fitness fitness;
    rk_fitness_check(&facts, &fitness);
    assert_true(fitness.count >= 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quiet_machine_is_fit),
        cmocka_unit_test(processors),
        cmocka_unit_test(load),
        cmocka_unit_test(memory),
        cmocka_unit_test(file_systems),
        cmocka_unit_test(gpus),
        cmocka_unit_test(a_library_that_is_none_is_told),
        cmocka_unit_test(many_findings_do_not_overflow),
        cmocka_unit_test(this_machine_can_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

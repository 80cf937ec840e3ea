/* Who the machine is: asked of the back end without opening a device. */
#include "calibrate/identity.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

enum { GPUS = 3 };
static int described, opened;

static enum rk_status count_gpus(int *count, struct rk_error *error) {
    (void)error;
    *count = GPUS;
    return RK_OK;
}

static enum rk_status open_gpu(int ordinal, const char *spill_folder, struct rk_device **device,
                               struct rk_error *error) {
    (void)ordinal;
    (void)spill_folder;
    (void)device;
    opened++;
    return rk_fail(error, RK_ERROR, "opened");
}

static enum rk_status describe_gpu(int ordinal, struct rk_device_facts *facts, struct rk_error *error) {
    (void)error;
    *facts = (struct rk_device_facts){.name = "GPU", .memory_bytes = 1000 + ordinal, .driver = "13.0"};
    snprintf(facts->uuid, sizeof facts->uuid, "GPU-%d", ordinal);
    described++;
    return RK_OK;
}

static void gpus_are_not_opened(void **state) {
    (void)state;
    const struct rk_backend backend = {.kind = RK_BACKEND_CUDA,
                                       .name = "cuda",
                                       .device_count = count_gpus,
                                       .device_open = open_gpu,
                                       .device_describe = describe_gpu};
    struct rk_identity identity;
    struct rk_error error;
    assert_ok(rk_identity_read(&backend, "1", "abc", &identity, &error), error);
    assert_int_equal(opened, 0);
    assert_int_equal(described, GPUS);
    assert_int_equal(identity.machine.gpu_count, GPUS);
    for (int i = 0; i < GPUS; i++) {
        char uuid[16];
        snprintf(uuid, sizeof uuid, "GPU-%d", i);
        assert_string_equal(identity.gpus[i].uuid, uuid);
        assert_int_equal(identity.gpus[i].memory_bytes, 1000 + i);
    }
    assert_string_equal(identity.machine.software.driver, "13.0");
}

static void the_cpu_describes_itself(void **state) {
    (void)state;
    const struct rk_backend *cpu = rk_backend_cpu();
    struct rk_device *device = NULL;
    struct rk_device_facts facts, opened_facts;
    struct rk_error error;
    assert_ok(cpu->device_open(0, NULL, &device, &error), error);
    assert_ok(cpu->device_facts(device, &opened_facts, &error), error);
    assert_ok(cpu->device_describe(0, &facts, &error), error);
    cpu->device_close(device);
    assert_string_equal(facts.name, opened_facts.name);
    assert_string_equal(facts.libraries, opened_facts.libraries);
    assert_int_equal(facts.memory_bytes, opened_facts.memory_bytes);
    assert_int_equal(facts.used_bytes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_are_not_opened),
        cmocka_unit_test(the_cpu_describes_itself),
    };
    return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}

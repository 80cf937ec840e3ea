/* The CPU device: memory, spill files, copies, events, counters, facts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/kernels.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct rk_device *open_in(const char *folder) {
    struct rk_device *device = NULL;
    assert_int_equal(rk_backend_cpu()->device_open(0, folder, &device, NULL), RK_OK);
    return device;
}

static void device_memory_is_aligned(void **state) {
    (void)state;
    const struct rk_backend *cpu = rk_backend_cpu();
    struct rk_device *device = open_in(NULL);
    struct rk_error error;
    struct rk_device_counters counters;
    const int64_t sizes[] = {0, 1, 255, 257, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        void *memory = NULL;
        assert_int_equal(cpu->memory_allocate(device, sizes[i], &memory, NULL), RK_OK);
        assert_int_equal((uintptr_t)memory % 256, 0);
        memset(memory, 1, (size_t)sizes[i]);
        cpu->memory_free(device, memory);
    }
    void *memory = NULL;
#ifndef RK_SANITIZED /* the sanitizers' allocator reports such a size by itself */
    assert_int_equal(cpu->memory_allocate(device, INT64_MAX, &memory, &error), RK_ERROR);
#endif
    assert_int_equal(cpu->memory_allocate(device, -1, &memory, &error), RK_ERROR);
    assert_null(memory);
    cpu->counters_read(device, &counters);
    assert_int_equal(counters.allocations, 5); /* what was refused does not count */
    assert_int_equal(counters.device_bytes, 1 + 255 + 257 + (1 << 20));
    assert_int_equal(counters.host_bytes, 0);
    cpu->device_close(device);
}

static int64_t entries(const char *folder) {
    DIR *opened = opendir(folder);
    int64_t count = 0;
    if (opened == NULL) {
        return -1;
    }
    while (readdir(opened) != NULL) {
        count++;
    }
    closedir(opened);
    return count;
}

static void host_memory_leaves_no_file(void **state) {
    (void)state;
    const struct rk_backend *cpu = rk_backend_cpu();
    char folder[] = "/tmp/reckon-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    struct rk_device *device = open_in(folder);
    struct rk_stream *stream = NULL;
    assert_int_equal(cpu->stream_create(device, false, &stream, NULL), RK_OK);
    int64_t before = entries(folder);
    void *first = NULL, *second = NULL;
    assert_int_equal(cpu->host_allocate(device, 100000, &first, NULL), RK_OK);
    assert_int_equal(cpu->host_allocate(device, 0, &second, NULL), RK_OK);
    assert_int_equal(entries(folder), before);
    char data[50000], back[50000];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (char)(i * 31);
    }
    /* not at a page boundary, so that the sync must round down */
    char *place = (char *)first + 4097;
    assert_int_equal(cpu->copy(stream, place, data, sizeof data, RK_COPY_D2H, NULL), RK_OK);
    assert_int_equal(cpu->copy(stream, back, place, sizeof back, RK_COPY_H2D, NULL), RK_OK);
    assert_memory_equal(data, back, sizeof data);
    struct rk_device_counters counters;
    cpu->counters_read(device, &counters);
    assert_true(counters.device_bytes == 0 && counters.host_bytes == 100000);
    cpu->host_free(device, first);
    cpu->stream_destroy(stream);
    cpu->device_close(device); /* frees the second */
    assert_int_equal(rmdir(folder), 0);
}

static void impossible_host_memory_is_refused(void **state) {
    (void)state;
    const struct rk_backend *cpu = rk_backend_cpu();
    struct rk_error error;
    void *memory = NULL;
    struct rk_device *device = open_in("/no/such/folder");
    assert_int_equal(cpu->host_allocate(device, 100, &memory, &error), RK_USAGE);
    assert_non_null(strstr(error.text, "/no/such/folder"));
    cpu->device_close(device);
    device = open_in("/tmp");
    assert_int_equal(cpu->host_allocate(device, (int64_t)1 << 60, &memory, &error), RK_ERROR);
    assert_non_null(strstr(error.text, "/tmp"));
    assert_null(memory);
    cpu->device_close(device);
    assert_int_equal(cpu->device_open(-1, NULL, &device, &error), RK_ERROR);
}

static void copies_and_waits_are_counted(void **state) {
    (void)state;
    const struct rk_backend *cpu = rk_backend_cpu();
    struct rk_device *device = open_in(NULL);
    struct rk_device_counters counters;
    struct rk_stream *stream = NULL;
    struct rk_event_handle *event = NULL;
    void *memory = NULL;
    char host[64];
    assert_int_equal(cpu->stream_create(device, true, &stream, NULL), RK_OK);
    assert_int_equal(cpu->event_create(device, false, &event, NULL), RK_OK);
    assert_int_equal(cpu->memory_allocate(device, 64, &memory, NULL), RK_OK);
    cpu->counters_reset(device);
    assert_int_equal(cpu->fill(stream, memory, 0xFF, 64, NULL), RK_OK);
    assert_int_equal(cpu->copy(stream, host, memory, 64, RK_COPY_D2H, NULL), RK_OK);
    assert_int_equal(host[63], (char)0xFF);
    assert_int_equal(cpu->copy(stream, memory, host, 64, RK_COPY_H2D, NULL), RK_OK);
    assert_int_equal(cpu->copy(stream, memory, host, 0, RK_COPY_H2D, NULL), RK_OK);
    assert_int_equal(cpu->copy(stream, memory, (char *)memory + 32, 32, RK_COPY_D2D, NULL), RK_OK);
    assert_int_equal(cpu->event_wait(stream, event, NULL), RK_OK); /* nothing recorded it yet */
    assert_int_equal(cpu->event_record(event, stream, NULL), RK_OK);
    assert_int_equal(cpu->event_wait(stream, event, NULL), RK_OK);
    assert_int_equal(cpu->stream_synchronize(stream, 1, NULL), RK_OK);
    struct rk_op_shape shape = {.kind = RK_OP_ZERO, .dim = {64}};
    struct rk_op_call call = {.shape = &shape, .operand = {memory}};
    assert_int_equal(rk_kernel_run(cpu, stream, &call, NULL), RK_OK);
    assert_int_equal(*(char *)memory, 0);
    cpu->counters_read(device, &counters);
    assert_int_equal(counters.copies_to_host, 1);
    assert_int_equal(counters.copies_to_device, 2);
    assert_int_equal(counters.unrecorded_waits, 1);
    assert_int_equal(counters.host_waits, 1);
    assert_int_equal(counters.launches, 1);
    assert_int_equal(counters.allocations, 0);
    assert_true(counters.device_bytes == 0 && counters.host_bytes == 0);
    cpu->memory_free(device, memory);
    cpu->event_destroy(event);
    cpu->stream_destroy(stream);
    cpu->device_close(device);
}

static void timed_events_measure(void **state) {
    (void)state;
    const struct rk_backend *cpu = rk_backend_cpu();
    struct rk_device *device = open_in(NULL);
    struct rk_stream *stream = NULL;
    struct rk_event_handle *from = NULL, *to = NULL, *untimed = NULL;
    struct rk_error error;
    double seconds = -1;
    assert_int_equal(cpu->stream_create(device, false, &stream, NULL), RK_OK);
    assert_int_equal(cpu->event_create(device, true, &from, NULL), RK_OK);
    assert_int_equal(cpu->event_create(device, true, &to, NULL), RK_OK);
    assert_int_equal(cpu->event_create(device, false, &untimed, NULL), RK_OK);
    assert_int_equal(cpu->event_record(from, stream, NULL), RK_OK);
    assert_int_equal(cpu->event_record(untimed, stream, NULL), RK_OK);
    assert_int_equal(cpu->event_elapsed(from, to, &seconds, &error), RK_ERROR);
    assert_int_equal(cpu->event_elapsed(from, untimed, &seconds, &error), RK_ERROR);
    usleep(20000);
    assert_int_equal(cpu->event_record(to, stream, NULL), RK_OK);
    assert_int_equal(cpu->event_elapsed(from, to, &seconds, &error), RK_OK);
    assert_true(seconds >= 0.02 && seconds < 10);
    cpu->event_destroy(from);
    cpu->event_destroy(to);
    cpu->event_destroy(untimed);
    cpu->stream_destroy(stream);
    cpu->device_close(device);
}

static void facts_say_what_the_machine_is(void **state) {
    (void)state;
    const struct rk_backend *cpu = rk_backend_cpu();
    struct rk_device *device = open_in(NULL);
    struct rk_device_facts facts;
    int count = 0;
    assert_int_equal(cpu->device_count(&count, NULL), RK_OK);
    assert_true(count >= 1);
    assert_int_equal(cpu->device_facts(device, &facts, NULL), RK_OK);
    assert_true(strlen(facts.name) > 0 && strlen(facts.libraries) > 0);
    assert_true(facts.memory_bytes > 0 && facts.used_bytes > 0 && facts.used_bytes < facts.memory_bytes);
    assert_int_equal(facts.multiprocessors, 1);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) { /* the kernels of a processor of 2004 */
        assert_null(strstr(facts.libraries, "Prescott"));
    }
#endif
    cpu->device_close(device);
}

static void back_ends_are_found_by_kind(void **state) {
    (void)state;
    assert_ptr_equal(rk_backend_of(RK_BACKEND_CPU), rk_backend_cpu());
    assert_ptr_equal(rk_backend_of(RK_BACKEND_CUDA), rk_backend_cuda());
    assert_int_equal(rk_backend_cpu()->kind, RK_BACKEND_CPU);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_memory_is_aligned),
        cmocka_unit_test(host_memory_leaves_no_file),
        cmocka_unit_test(impossible_host_memory_is_refused),
        cmocka_unit_test(copies_and_waits_are_counted),
        cmocka_unit_test(timed_events_measure),
        cmocka_unit_test(facts_say_what_the_machine_is),
        cmocka_unit_test(back_ends_are_found_by_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

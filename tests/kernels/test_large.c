/* More than 2^31 elements: the last rows are right. The operands are virtual: one small file mapped again and again, or
 * pages that are never touched, so that the test needs little memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/bf16.h"
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const int64_t MANY = (int64_t)1 << 31;

static struct rk_device *device;
static struct rk_stream *stream;

static int open_device(void **state) {
    (void)state;
    const struct rk_backend *cpu = rk_backend_cpu();
    return cpu->device_open(0, NULL, &device, NULL) != RK_OK ||
           cpu->stream_create(device, false, &stream, NULL) != RK_OK;
}

static int close_device(void **state) {
    (void)state;
    rk_backend_cpu()->stream_destroy(stream);
    rk_backend_cpu()->device_close(device);
    return 0;
}

static void run(const struct rk_op_call *call) {
    struct rk_error error;
    if (rk_kernel_run(rk_backend_cpu(), stream, call, &error) != RK_OK) {
        fail_msg("%s", error.text);
    }
}

/* Zero pages that cost memory only where they are written. */
static void *untouched(int64_t bytes) {
    void *memory =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        skip();
    }
    return memory;
}

enum { PERIOD = 64 << 20 };

/* `bytes` of address space over one file of PERIOD bytes. */
static void *repeated(int64_t bytes) {
    int file = memfd_create("repeated", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, PERIOD) != 0) {
        skip();
    }
    char *memory = untouched(bytes);
    for (int64_t at = 0; at < bytes; at += PERIOD) {
        size_t some = (size_t)(bytes - at < PERIOD ? bytes - at : PERIOD);
        if (mmap(memory + at, some, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
            skip();
        }
    }
    close(file);
    return memory;
}

static void embedding_rows_past_2_31(void **state) {
    (void)state;
    enum { WIDTH = 1031 };
    int64_t vocabulary = MANY / WIDTH + 2, bytes = vocabulary * WIDTH * 4;
    float *table = untouched(bytes), x[2 * WIDTH];
    int32_t tokens[2] = {(int32_t)(vocabulary - 1), 0};
    for (int i = 0; i < WIDTH; i++) {
        table[(vocabulary - 1) * WIDTH + i] = (float)i;
    }
    struct rk_op_shape shape = {.kind = RK_OP_EMBEDDING_FORWARD, .dim = {2, vocabulary, WIDTH}};
    struct rk_op_call call = {.shape = &shape, .operand = {tokens, table, x}};
    run(&call);
    shape.kind = RK_OP_EMBEDDING_BACKWARD;
    call.operand[1] = x;
    call.operand[2] = table;
    run(&call);
    for (int i = 0; i < WIDTH; i++) {
        assert_true(x[i] == (float)i && x[WIDTH + i] == 0.0f);
        assert_true(table[(vocabulary - 1) * WIDTH + i] == (float)(2 * i));
    }
    munmap(table, (size_t)bytes);
}

static void weights_of_experts_past_2_31(void **state) {
    (void)state;
    enum { N = 257, K = 263, ROWS = 3 };
    int64_t experts = MANY / (N * K) + 2, last = (experts - 1) * N * K, bytes = experts * N * K * 4;
    float *w = untouched(bytes), x[ROWS * K], y[ROWS * N];
    int32_t *offsets = untouched((experts + 1) * 4);
    offsets[experts] = ROWS;
    for (int i = 0; i < ROWS * K; i++) {
        x[i] = 1;
    }
    for (int i = 0; i < N * K; i++) {
        int row = i / K;
        w[last + i] = (float)row; /* row j of the last expert is all j */
    }
    struct rk_op_shape shape = {.kind = RK_OP_GROUPED_GEMM_FORWARD, .dim = {ROWS, experts, N, K}};
    struct rk_op_call call = {.shape = &shape, .operand = {x, w, offsets, y}};
    run(&call);
    for (int i = 0; i < ROWS * N; i++) {
        assert_true(y[i] == (float)(i % N * K));
    }
    for (int i = 0; i < ROWS * N; i++) {
        y[i] = 1;
    }
    shape.kind = RK_OP_GROUPED_GEMM_DGRAD;
    call = (struct rk_op_call){.shape = &shape, .operand = {y, w, offsets, x}};
    run(&call);
    for (int i = 0; i < ROWS * K; i++) {
        assert_int_equal((int)x[i], N * (N - 1) / 2);
        x[i] = 1;
    }
    shape.kind = RK_OP_GROUPED_GEMM_WGRAD;
    call = (struct rk_op_call){.shape = &shape, .operand = {y, x, offsets, w}};
    run(&call);
    for (int i = 0; i < N * K; i++) {
        assert_int_equal((int)w[last + i], i / K + ROWS);
    }
    munmap(w, (size_t)bytes);
    munmap(offsets, (size_t)(experts + 1) * 4);
}

static void norm_rows_past_2_31(void **state) {
    (void)state;
    enum { WIDTH = 4099 };
    int64_t rows = MANY / WIDTH + 2, bytes = rows * WIDTH * 2;
    uint16_t *x = repeated(bytes), *y = repeated(bytes), *gain = untouched(WIDTH * 2);
    float *rstd = untouched(rows * 4);
    for (int i = 0; i < WIDTH; i++) {
        gain[i] = rk_bf16_round(2);
        x[(rows - 1) * WIDTH + i] = rk_bf16_round(i % 2 == 0 ? 3.0f : -3.0f);
    }
    struct rk_op_shape shape = {.kind = RK_OP_RMSNORM_FORWARD, .type = RK_BF16, .dim = {rows, WIDTH}};
    struct rk_op_call call = {.shape = &shape, .operand = {x, gain, y, rstd}, .parameter = {1e-6f}};
    run(&call);
    assert_true(fabsf(rstd[rows - 1] - 1.0f / 3) < 1e-6f);
    for (int i = 0; i < WIDTH; i++) {
        assert_true(rk_bf16_widen(y[(rows - 1) * WIDTH + i]) == (i % 2 == 0 ? 2.0f : -2.0f));
    }
    munmap(x, (size_t)bytes);
    munmap(y, (size_t)bytes);
    munmap(gain, WIDTH * 2);
    munmap(rstd, (size_t)rows * 4);
}

static void swiglu_rows_past_2_31(void **state) {
    (void)state;
    enum { WIDTH = 2053 };
    int64_t rows = MANY / (2 * WIDTH) + 2, bytes = rows * 2 * WIDTH * 2;
    uint16_t *in = repeated(bytes), *out = repeated(bytes / 2);
    for (int i = 0; i < WIDTH; i++) {
        in[(rows - 1) * 2 * WIDTH + i] = rk_bf16_round(100); /* silu(100) = 100 */
        in[(rows - 1) * 2 * WIDTH + WIDTH + i] = rk_bf16_round(0.5f);
    }
    struct rk_op_shape shape = {.kind = RK_OP_SWIGLU_FORWARD, .type = RK_BF16, .dim = {rows, WIDTH, 0}};
    struct rk_op_call call = {.shape = &shape, .operand = {in, NULL, NULL, out}};
    run(&call);
    for (int i = 0; i < WIDTH; i++) {
        assert_true(rk_bf16_widen(out[(rows - 1) * WIDTH + i]) == 50.0f);
    }
    munmap(in, (size_t)bytes);
    munmap(out, (size_t)bytes / 2);
}

static void gradient_norm_past_2_31(void **state) {
    (void)state;
    int64_t elements = MANY + 5;
    float *gradient = repeated(elements * 4);
    gradient[elements - 1] = 0; /* also places inside: count how often the file repeats */
    gradient[elements - 3] = 3;
    int64_t period = PERIOD / 4, place = (elements - 3) % period;
    int64_t times = (elements - 1 - place) / period + 1;
    double sum = 1;
    struct rk_op_shape shape = {.kind = RK_OP_GRAD_NORM, .dim = {elements}};
    struct rk_op_call call = {.shape = &shape, .operand = {gradient, &sum}};
    run(&call);
    assert_true(sum == (double)(1 + 9 * times));
    munmap(gradient, (size_t)elements * 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_rows_past_2_31), cmocka_unit_test(weights_of_experts_past_2_31),
        cmocka_unit_test(norm_rows_past_2_31),      cmocka_unit_test(swiglu_rows_past_2_31),
        cmocka_unit_test(gradient_norm_past_2_31),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}

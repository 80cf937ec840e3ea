/* Every kernel of a back end at the sizes of one MoE block: bytes, operations, time, and the share of what the same
 * device reached in the same run with a plain copy and a large dense product. The copy goes through memory; a kernel
 * whose operands stay in a cache passes 100 %. */
#include "base/arguments.h"
#include "base/clock.h"
#include "kernels/operands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Dimensions of the block, by back end: a CPU core gets a small one. */
struct sizes {
    int64_t tokens, sequence, hidden, heads, kv_heads, head, experts, top_k, ranks, expert_hidden, vocabulary;
    int64_t copy_bytes, product; /* of the two limits */
};
static const struct sizes cpu_sizes = {1024, 512, 512, 8, 2, 64, 16, 2, 4, 512, 8192, 256 << 20, 1024};
static const struct sizes gpu_sizes = {8192, 4096, 4096, 32, 8, 128, 64, 8, 8, 1536, 65536, (int64_t)4 << 30, 8192};

/* X(kind, flags, dimensions): all kernels of a block, its loss and its optimizer. R is what a rank receives under
 * balance. */
#define BENCH_TABLE(X)                                                                                                 \
    X(ZERO, 0, s->tokens * s->hidden * 4)                                                                              \
    X(EMBEDDING_FORWARD, 0, s->tokens, s->vocabulary, s->hidden)                                                       \
    X(EMBEDDING_BACKWARD, 0, s->tokens, s->vocabulary, s->hidden)                                                      \
    X(RMSNORM_FORWARD, 0, s->tokens, s->hidden)                                                                        \
    X(RMSNORM_BACKWARD, 0, s->tokens, s->hidden)                                                                       \
    X(GEMM_FORWARD, 0, s->tokens, s->hidden, s->hidden)                                                                \
    X(GEMM_DGRAD, 0, s->tokens, s->hidden, s->hidden)                                                                  \
    X(GEMM_WGRAD, 0, s->tokens, s->hidden, s->hidden)                                                                  \
    X(GEMM_FORWARD, RK_OP_FLAG_F32_OUTPUT, s->tokens, s->experts, s->hidden)                                           \
    X(ROPE_FORWARD, 0, s->tokens, s->sequence, s->heads, s->kv_heads, s->head)                                         \
    X(ROPE_FORWARD, RK_OP_FLAG_QK_NORM_HEAD, s->tokens, s->sequence, s->heads, s->kv_heads, s->head)                   \
    X(ROPE_BACKWARD, 0, s->tokens, s->sequence, s->heads, s->kv_heads, s->head)                                        \
    X(ROPE_BACKWARD, RK_OP_FLAG_QK_NORM_HEAD, s->tokens, s->sequence, s->heads, s->kv_heads, s->head)                  \
    X(ATTENTION_FORWARD, 0, s->tokens, s->sequence, s->heads, s->kv_heads, s->head)                                    \
    X(ATTENTION_BACKWARD, 0, s->tokens, s->sequence, s->heads, s->kv_heads, s->head)                                   \
    X(ROUTE_FORWARD, RK_OP_FLAG_NORMALIZE_TOP_K, s->tokens, s->experts, s->top_k)                                      \
    X(ROUTE_BACKWARD, RK_OP_FLAG_NORMALIZE_TOP_K, s->tokens, s->experts, s->top_k)                                     \
    X(ROUTE_MAP, 0, s->tokens, s->experts, s->top_k, s->ranks, s->tokens * s->top_k)                                   \
    X(GROUPED_GEMM_FORWARD, 0, s->tokens * s->top_k, s->experts / s->ranks, 2 * s->expert_hidden, s->hidden)           \
    X(GROUPED_GEMM_DGRAD, 0, s->tokens * s->top_k, s->experts / s->ranks, 2 * s->expert_hidden, s->hidden)             \
    X(GROUPED_GEMM_WGRAD, 0, s->tokens * s->top_k, s->experts / s->ranks, 2 * s->expert_hidden, s->hidden)             \
    X(SWIGLU_FORWARD, 0, s->tokens * s->top_k, s->expert_hidden, s->experts / s->ranks)                                \
    X(SWIGLU_BACKWARD, 0, s->tokens * s->top_k, s->expert_hidden, s->experts / s->ranks)                               \
    X(CROSS_ENTROPY, 0, s->tokens, s->vocabulary)                                                                      \
    X(GRAD_NORM, 0, s->hidden * s->expert_hidden * s->experts)                                                         \
    X(ADAMW, 0, s->hidden * s->expert_hidden * s->experts)

struct options {
    const char *backend, *type;
    double seconds;
};

struct common_options {
    bool json, help;
};

static const struct rk_option option_table[] = {
    {"backend", 'b', RK_OPTION_STRING, offsetof(struct options, backend), "NAME", "Back end (default cpu)", "cpu|cuda",
     0, 0},
    {"type", 't', RK_OPTION_STRING, offsetof(struct options, type), "TYPE", "Data type of activations (default f32)",
     "f32|bf16", 0, 0},
    {"seconds", 's', RK_OPTION_NUMBER, offsetof(struct options, seconds), "SECONDS",
     "Time for each kernel (default 0.3)", NULL, 0.001, 3600},
};

static const struct rk_option common_table[] = {
    {"json", 'j', RK_OPTION_FLAG, offsetof(struct common_options, json), NULL,
     "Print one JSON object instead of a table", NULL, 0, 0},
    {"help", 'h', RK_OPTION_FLAG, offsetof(struct common_options, help), NULL, "Print this help", NULL, 0, 0},
};

static const struct rk_arguments arguments = {
    .name = "kernels",
    .summary = "times every kernel of a back end",
    .options = option_table,
    .option_count = sizeof option_table / sizeof option_table[0],
};

static const struct rk_arguments common_arguments = {
    .options = common_table,
    .option_count = sizeof common_table / sizeof common_table[0],
};

/* The device under test and the limits found on it. */
struct bench {
    const struct rk_backend *backend;
    struct rk_device *device;
    struct rk_stream *stream;
    struct rk_event_handle *from, *to;
    enum rk_data_type type;
    double seconds;      /* for each kernel */
    double copy_rate;    /* bytes/s read and written by a copy on the device */
    double product_rate; /* FLOP/s of a large square product */
};

/* What is timed: a kernel, or the copy between two halves of a buffer when call is NULL. */
struct work {
    const struct rk_op_call *call;
    char *memory;
    int64_t bytes;
};

static enum rk_status do_work(const struct bench *bench, const struct work *work, struct rk_error *error) {
    if (work->call != NULL) {
        return rk_kernel_run(bench->backend, bench->stream, work->call, error);
    }
    return bench->backend->copy(bench->stream, work->memory, work->memory + work->bytes, work->bytes, RK_COPY_D2D,
                                error);
}

/* Seconds of `count` repetitions on the device. */
static enum rk_status time_batch(const struct bench *bench, const struct work *work, int64_t count, double *seconds,
                                 struct rk_error *error) {
    const struct rk_backend *backend = bench->backend;
    enum rk_status status = backend->event_record(bench->from, bench->stream, error);
    for (int64_t i = 0; i < count && status == RK_OK; i++) {
        status = do_work(bench, work, error);
    }
    if (status == RK_OK) {
        status = backend->event_record(bench->to, bench->stream, error);
    }
    if (status == RK_OK) {
        status = backend->stream_synchronize(bench->stream, 600, error);
    }
    return status != RK_OK ? status : backend->event_elapsed(bench->from, bench->to, seconds, error);
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Median seconds of one repetition: one warm-up, then batches of at least a hundredth of the time that is given. */
static enum rk_status measure(const struct bench *bench, const struct work *work, double *median,
                              struct rk_error *error) {
    enum { BATCHES = 101 };
    double samples[BATCHES], one = 0, total = 0;
    int64_t taken = 0;
    enum rk_status status = time_batch(bench, work, 1, &one, error);
    if (status == RK_OK) {
        status = time_batch(bench, work, 1, &one, error);
    }
    int64_t count = one > 0 ? (int64_t)(bench->seconds / 100 / one) + 1 : 1000;
    while (status == RK_OK && taken < BATCHES && (taken < 3 || total < bench->seconds)) {
        double seconds = 0;
        status = time_batch(bench, work, count, &seconds, error);
        total += seconds;
        samples[taken++] = seconds / (double)count;
    }
    if (status == RK_OK) {
        qsort(samples, (size_t)taken, sizeof samples[0], ascending);
        *median = samples[taken / 2];
    }
    return status;
}

static enum rk_status time_shape(const struct bench *bench, const struct rk_op_shape *shape, double *median,
                                 struct rk_error *error) {
    struct rk_operands operands;
    enum rk_status status =
        rk_operands_make(bench->backend, bench->device, shape, 0, RK_DISTRIBUTION_NORMAL, 1, &operands, error);
    if (status != RK_OK) {
        return status;
    }
    struct work work = {.call = &operands.call};
    status = measure(bench, &work, median, error);
    rk_operands_free(&operands);
    return status;
}

static enum rk_status find_limits(struct bench *bench, const struct sizes *sizes, struct rk_error *error) {
    void *memory = NULL;
    double seconds = 0;
    enum rk_status status = bench->backend->memory_allocate(bench->device, 2 * sizes->copy_bytes, &memory, error);
    if (status != RK_OK) {
        return status;
    }
    struct work work = {.memory = memory, .bytes = sizes->copy_bytes};
    status = bench->backend->fill(bench->stream, memory, 1, 2 * sizes->copy_bytes, error);
    if (status == RK_OK) {
        status = measure(bench, &work, &seconds, error);
    }
    bench->backend->memory_free(bench->device, memory);
    if (status != RK_OK) {
        return status;
    }
    bench->copy_rate = 2 * (double)sizes->copy_bytes / seconds;
    int64_t n = sizes->product;
    struct rk_op_shape product = {.kind = RK_OP_GEMM_FORWARD, .type = bench->type, .dim = {n, n, n}};
    status = time_shape(bench, &product, &seconds, error);
    bench->product_rate = rk_op_flops(&product) / seconds;
    return status;
}

static void print_row(const struct bench *bench, const struct rk_op_shape *shape, double seconds, bool json,
                      bool first) {
    char name[128];
    double bytes = rk_op_bytes(shape), flops = rk_op_flops(shape);
    double by_memory = bytes / bench->copy_rate, by_product = flops / bench->product_rate;
    const char *bound = by_memory > by_product ? "copy" : "product";
    double share = (by_memory > by_product ? by_memory : by_product) / seconds;
    rk_op_shape_text(shape, name, sizeof name);
    if (json) {
        printf("%s\n    {\"op\": \"%s\", \"shape\": \"%s\", \"bytes\": %.0f, \"flops\": %.0f, \"seconds\": %.9g, "
               "\"limit\": \"%s\", \"share_of_limit\": %.4f}",
               first ? "" : ",", rk_op_name(shape->kind), name, bytes, flops, seconds, bound, share);
    } else {
        printf("%-62s %10.3f %10.3f %11.4f %8.1f %9.1f  %-7s %6.1f%%\n", name, bytes / 1e6, flops / 1e6, seconds * 1e3,
               bytes / seconds / 1e9, flops / seconds / 1e9, bound, share * 100);
    }
    fflush(stdout);
}

static void print_head(const struct bench *bench, const struct rk_device_facts *facts, bool json) {
    if (json) {
        printf("{\n  \"backend\": \"%s\",\n  \"device\": \"%s\",\n  \"type\": \"%s\",\n  \"copy_bytes_per_second\": "
               "%.6g,\n"
               "  \"product_flops_per_second\": %.6g,\n  \"kernels\": [",
               bench->backend->name, facts->name, rk_data_type_name(bench->type), bench->copy_rate,
               bench->product_rate);
    } else {
        printf("%s, %s: copy %.1f GB/s (read and written), product %.1f GFLOP/s\n\n", facts->name,
               rk_data_type_name(bench->type), bench->copy_rate / 1e9, bench->product_rate / 1e9);
        printf("%-62s %10s %10s %11s %8s %9s  %-7s %7s\n", "kernel", "MB", "MFLOP", "ms", "GB/s", "GFLOP/s", "limit",
               "share");
    }
}

static enum rk_status run_table(struct bench *bench, const struct sizes *s, bool json, struct rk_error *error) {
    struct rk_device_facts facts;
#define SHAPE(op, flag_bits, ...) {.kind = RK_OP_##op, .type = bench->type, .flags = (flag_bits), .dim = {__VA_ARGS__}},
    const struct rk_op_shape shapes[] = {BENCH_TABLE(SHAPE)};
#undef SHAPE
    enum rk_status status = bench->backend->device_facts(bench->device, &facts, error);
    if (status == RK_OK) {
        status = find_limits(bench, s, error);
    }
    if (status != RK_OK) {
        return status;
    }
    print_head(bench, &facts, json);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && status == RK_OK; i++) {
        double seconds = 0;
        status = time_shape(bench, &shapes[i], &seconds, error);
        if (status == RK_OK) {
            print_row(bench, &shapes[i], seconds, json, i == 0);
        }
    }
    if (json) {
        printf("\n  ]\n}\n");
    }
    return status;
}

static enum rk_status open_and_run(struct bench *bench, bool json, struct rk_error *error) {
    const struct rk_backend *backend = bench->backend;
    enum rk_status status = backend->device_open(0, NULL, &bench->device, error);
    if (status != RK_OK) {
        return status;
    }
    status = backend->stream_create(bench->device, false, &bench->stream, error);
    if (status != RK_OK) {
        goto close_device;
    }
    status = backend->event_create(bench->device, true, &bench->from, error);
    if (status != RK_OK) {
        goto destroy_stream;
    }
    status = backend->event_create(bench->device, true, &bench->to, error);
    if (status != RK_OK) {
        goto destroy_from;
    }
    status = run_table(bench, backend->kind == RK_BACKEND_CPU ? &cpu_sizes : &gpu_sizes, json, error);
    backend->event_destroy(bench->to);
destroy_from:
    backend->event_destroy(bench->from);
destroy_stream:
    backend->stream_destroy(bench->stream);
close_device:
    backend->device_close(bench->device);
    return status;
}

static enum rk_status run(int argc, char **argv, struct rk_error *error) {
    struct options options = {.backend = "cpu", .type = "f32", .seconds = 0.3};
    struct common_options common = {false, false};
    struct rk_string_list operands = {0};
    enum rk_status status =
        rk_arguments_parse(&arguments, &options, &common_arguments, &common, argc, argv, &operands, error);
    if (status == RK_OK) {
        status = rk_arguments_check_operands(&arguments, &operands, error);
    }
    rk_string_list_free(&operands);
    if (status != RK_OK) {
        return status;
    }
    if (common.help) {
        struct rk_text text = {0};
        rk_arguments_help("bench", &arguments, &common_arguments, &text);
        fputs(text.data != NULL ? text.data : "", stdout);
        rk_text_free(&text);
        return RK_OK;
    }
    struct bench bench = {
        .backend = rk_backend_of(strcmp(options.backend, "cuda") == 0 ? RK_BACKEND_CUDA : RK_BACKEND_CPU),
        .type = strcmp(options.type, "bf16") == 0 ? RK_BF16 : RK_F32,
        .seconds = options.seconds,
    };
    if (bench.backend == NULL) {
        return rk_fail(error, RK_USAGE, "--backend cuda: this program was built without CUDA; build it where nvcc is");
    }
    return open_and_run(&bench, common.json, error);
}

int main(int argc, char **argv) {
    struct rk_error error;
    enum rk_status status = run(argc, argv, &error);
    if (status != RK_OK) {
        fprintf(stderr, "kernels: %s\n", error.text);
    }
    return (int)status;
}

/* What the files of the CPU back end share: its objects, chunks of FP32 or BF16 rows, and the kernels' prototypes.
 *
 * Kernels compute in FP32 with a fixed order of summation. A row is worked through in chunks: an FP32 chunk is used
 * where it lies, a BF16 chunk is widened into a buffer on the stack. */
#ifndef RK_KERNELS_CPU_CPU_H
#define RK_KERNELS_CPU_CPU_H

#include "kernels/bf16.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stddef.h>

/* Host memory that lies in a file. */
struct rk_cpu_spill {
    char *address;
    int64_t bytes;
    struct rk_cpu_spill *next;
};

struct rk_device {
    int ordinal;
    char *spill_folder;
    struct rk_cpu_spill *spills;
    struct rk_device_counters counters;
};

struct rk_stream {
    struct rk_device *device;
};

struct rk_event_handle {
    struct rk_device *device;
    bool timed, recorded;
    double seconds;
};

/* Compiles a function also for AVX2 and AVX-512, chosen when the program starts, so that one binary is fast everywhere.
 * The bits are the same: sums are written in lanes, and products are not fused. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(RK_SANITIZED)
#define RK_CPU_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define RK_CPU_CLONES
#endif

enum { RK_CPU_CHUNK = 512 }; /* values of a row that are worked on together; their buffers stay in the first cache */

/* Values first .. first + count of an act array as FP32: where they lie, or widened into buffer. */
static inline const float *rk_cpu_load(enum rk_data_type type, const void *base, int64_t first, int64_t count,
                                       float *restrict buffer) {
    if (type == RK_F32) {
        return (const float *)base + first;
    }
    const uint16_t *values = (const uint16_t *)base + first;
    for (int64_t i = 0; i < count; i++) {
        buffer[i] = rk_bf16_widen(values[i]);
    }
    return buffer;
}

/* Stores count FP32 values at first of an act array; BF16 rounds to nearest even. The buffer does not overlap the
 * array. */
static inline void rk_cpu_store(enum rk_data_type type, void *base, int64_t first, int64_t count,
                                const float *restrict buffer) {
    if (type == RK_F32) {
        memcpy((float *)base + first, buffer, (size_t)count * sizeof(float));
        return;
    }
    uint16_t *values = (uint16_t *)base + first;
    for (int64_t i = 0; i < count; i++) {
        values[i] =
            rk_bf16_round(buffer[i]); /* NOLINT(clang-analyzer-core.CallAndMessage): cannot add up halves of a head */
    }
}

static inline int64_t rk_cpu_smaller(int64_t left, int64_t right) {
    return left < right ? left : right;
}

static inline void *rk_cpu_at(enum rk_data_type type, const void *base, int64_t first) {
    return (char *)(uintptr_t)base + first * rk_data_type_bytes(type);
}

enum { RK_CPU_LANES = 16 };

/* Sum of left[i] · right[i]: RK_CPU_LANES interleaved FP32 sums, added in FP64. */
static inline double rk_cpu_dot(const float *left, const float *right, int64_t count) {
    float lanes[RK_CPU_LANES] = {0};
    int64_t whole = count - count % RK_CPU_LANES;
    for (int64_t i = 0; i < whole; i += RK_CPU_LANES) {
        for (int lane = 0; lane < RK_CPU_LANES; lane++) {
            lanes[lane] += left[i + lane] * right[i + lane];
        }
    }
    double sum = 0;
    for (int lane = 0; lane < RK_CPU_LANES; lane++) {
        sum += (double)lanes[lane];
    }
    for (int64_t i = whole; i < count; i++) {
        sum += (double)(left[i] * right[i]);
    }
    return sum;
}

/* Sum of the values, in the same order as rk_cpu_dot. */
static inline double rk_cpu_sum(const float *values, int64_t count) {
    float lanes[RK_CPU_LANES] = {0};
    int64_t whole = count - count % RK_CPU_LANES;
    for (int64_t i = 0; i < whole; i += RK_CPU_LANES) {
        for (int lane = 0; lane < RK_CPU_LANES; lane++) {
            lanes[lane] += values[i + lane];
        }
    }
    double sum = 0;
    for (int lane = 0; lane < RK_CPU_LANES; lane++) {
        sum += (double)lanes[lane];
    }
    for (int64_t i = whole; i < count; i++) {
        sum += (double)values[i];
    }
    return sum;
}

/* The largest of the values, -infinity of none. NaNs are passed over. */
static inline float rk_cpu_largest(const float *values, int64_t count) {
    float lanes[RK_CPU_LANES];
    for (int lane = 0; lane < RK_CPU_LANES; lane++) {
        lanes[lane] = -HUGE_VALF;
    }
    int64_t whole = count - count % RK_CPU_LANES;
    for (int64_t i = 0; i < whole; i += RK_CPU_LANES) {
        for (int lane = 0; lane < RK_CPU_LANES; lane++) {
            lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
        }
    }
    for (int64_t i = whole; i < count; i++) {
        lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
    }
    for (int lane = 1; lane < RK_CPU_LANES; lane++) {
        lanes[0] = lanes[lane] > lanes[0] ? lanes[lane] : lanes[0];
    }
    return lanes[0];
}

/* The kernels, one for each kind that a kernel executes: rk_cpu_GEMM_FORWARD and so on, named as the table names them.
 */
#define RK_CPU_DECLARE_KERNEL(kind)                                                                                    \
    enum rk_status rk_cpu_##kind(struct rk_stream *stream, const struct rk_op_call *call, struct rk_error *error);
#define RK_CPU_DECLARE_TRANSPORT(kind)
#define RK_CPU_DECLARE_COPY(kind)
#define RK_CPU_DECLARE(kind, name, family, executor, dimensions, operands) RK_CPU_DECLARE_##executor(kind)
RK_OP_TABLE(RK_CPU_DECLARE)
#undef RK_CPU_DECLARE
#undef RK_CPU_DECLARE_COPY
#undef RK_CPU_DECLARE_TRANSPORT
#undef RK_CPU_DECLARE_KERNEL

/* The body of a kernel that cannot fail. Every kernel counts one launch. */
#define RK_CPU_KERNEL(kind)                                                                                            \
    static RK_CPU_CLONES void run_##kind(const struct rk_op_call *call);                                               \
    enum rk_status rk_cpu_##kind(struct rk_stream *stream, const struct rk_op_call *call, struct rk_error *error) {    \
        (void)error;                                                                                                   \
        stream->device->counters.launches++;                                                                           \
        run_##kind(call);                                                                                              \
        return RK_OK;                                                                                                  \
    }                                                                                                                  \
    static RK_CPU_CLONES void run_##kind(const struct rk_op_call *call)

#endif

/* Timing of one case on all ranks together, by the method of docs/calibration.md: rotated operands, batches far above
 * the timer's resolution, for each sample the maximum over ranks, and a stop when the 95 % interval of the median is
 * narrow. */
#ifndef RK_CALIBRATE_MEASURE_H
#define RK_CALIBRATE_MEASURE_H

#include "calibrate/cases.h"
#include "executor/transport.h"
#include "kernels/operands.h"

enum rk_measure_mode {
    RK_MEASURE_SUSTAINED, /* back to back, as in a step */
    RK_MEASURE_ISOLATED   /* each call alone, after a pause, caches as the rotation leaves them */
};

enum rk_measure_stop { RK_STOP_INTERVAL, RK_STOP_TIME };

enum { RK_SAMPLES_MIN = 10, RK_SAMPLES_MAX = 400 };

struct rk_measurer {
    struct rk_job *job;
    int64_t rank; /* world rank */
    const struct rk_backend *backend;
    struct rk_device *device;
    struct rk_stream *stream;
    const struct rk_transport_table *transport_table;
    struct rk_transport *transport;       /* open for the case's layout; NULL for kernel cases */
    const struct rk_candidate *candidate; /* of the layout; NULL for kernel cases */
    int64_t l2_bytes;
    double target_relative;  /* half width of the interval over the median: 0.01 */
    double seconds_per_case; /* time cap */
    double batch_seconds;    /* shortest timed batch: 50 timer resolutions or more */
    enum rk_distribution distribution;
    uint64_t seed;
};

struct rk_measurement_result {
    double samples[RK_SAMPLES_MAX]; /* seconds per call; maximum over ranks */
    int64_t sample_count;
    int64_t calls_per_sample;
    double median, low, high;
    enum rk_measure_stop stop;
    bool verified; /* every output was written, with numbers */
};

/* Collective: all ranks call it with the same case. *interrupted is set alike on all ranks when any rank's flag is set.
 */
enum rk_status rk_measure_case(const struct rk_measurer *measurer, const struct rk_calibration_case *item,
                               enum rk_measure_mode mode, const volatile int *interrupt_flag,
                               struct rk_measurement_result *result, bool *interrupted, struct rk_error *error);

#endif

/* The one interface through which costs reach the model: an op's shape and where it runs go in; seconds, uncertainty
 * and origin come out. model/ never knows whether a database, a hardware profile or a test stands behind it. */
#ifndef RK_MODEL_COST_H
#define RK_MODEL_COST_H

#include "base/status.h"
#include "model/ops.h"

#include <stddef.h>

/* Where a figure comes from, best first. X(name, text) */
#define RK_ORIGIN_TABLE(X)                                                                                             \
    X(MEASURED, "measured")           /* this shape on this machine */                                                 \
    X(INTERPOLATED, "interpolated")   /* between measured shapes of this machine */                                    \
    X(EXTRAPOLATED, "extrapolated")   /* outside them */                                                               \
    X(PUBLISHED, "published")         /* measured by others on this kind of hardware, source stated */                 \
    X(TRANSFERRED, "transferred")     /* measured on other hardware, scaled by a roofline ratio */                     \
    X(SPECIFICATION, "specification") /* a data sheet's limit */

enum rk_origin {
#define RK_ORIGIN_KIND(name, text) RK_ORIGIN_##name,
    RK_ORIGIN_TABLE(RK_ORIGIN_KIND)
#undef RK_ORIGIN_KIND
    RK_ORIGIN_COUNT
};
const char *rk_origin_name(enum rk_origin origin);
enum rk_origin rk_origin_from_name(const char *name); /* RK_ORIGIN_COUNT if none */

/* Where an op runs. */
struct rk_cost_place {
    int32_t group_size;      /* ranks of the op's group; 1 for local ops */
    bool crosses_hosts;      /* the group spans hosts */
    int32_t concurrent;      /* ranks that are busy on the same host at the same time, this one and its group included;
                                the seconds of a row are those of one rank while that many are busy */
    double row_share;        /* of the R rows of GROUPED_GEMM and SWIGLU (with offsets) that are valid: T · K / R under
                                balance, more on the hot rank; 1 for every other op */
};

struct rk_cost {
    double seconds;              /* median, sustained */
    double relative_uncertainty; /* half width of the 95 % interval over the value */
    enum rk_origin origin;
    char source[96];             /* "calibration 3, 2 rows", "hardware/b300.json: routed block forward" */
};

/* Prices an op. RK_UNCALIBRATED when nothing supports a figure, with what to measure. */
struct rk_cost_source {
    enum rk_status (*price)(void *context, const struct rk_op_shape *shape, const struct rk_cost_place *place,
                            struct rk_cost *cost, struct rk_error *error);
    void *context;
};

/* What the machine is beyond the price of ops, from a calibration or a hardware profile. Every figure has its origin.
 * */
struct rk_figure {
    double value;
    double relative_uncertainty;
    enum rk_origin origin;
    char source[96];
};

struct rk_machine {
    char name[64];
    enum rk_backend_kind backend;
    int32_t devices_per_host;          /* GPUs; on CPUs the cores that ranks share */
    bool shared_devices;               /* ranks may outnumber devices and share them in equal parts (CPU ranks) */
    bool serial_streams;               /* a rank's streams take turns on one lane (CPU back end): nothing overlaps */
    int64_t memory_bytes;              /* what one rank may use, all of host memory shared for CPUs */
    int64_t reserved_bytes;            /* context, NCCL, library workspaces: not for the arena */
    int64_t host_memory_bytes;         /* for the offload pool, per rank */
    struct rk_figure d2h, h2d;         /* bytes/s of one rank with all ranks of the host copying at once */
    struct rk_figure d2h_specification, h2d_specification; /* bytes/s; value 0 when unknown */
    struct rk_figure both_directions;  /* factor on each direction when both copy */
    struct rk_figure launch;           /* seconds of host time to submit one op */
    struct rk_figure host_wait;        /* seconds of one host-device round trip */
    struct rk_figure dense_peak;       /* FLOP/s per rank, for MFU; value 0 when unknown */
    struct rk_figure step_overhead;    /* seconds per step outside all ops (data, host reads) */
};

/* One measured figure of an op, as calibrate writes and the data base returns. */
struct rk_cost_row {
    struct rk_op_shape shape;
    struct rk_cost_place place;
    double seconds, low, high;     /* median and its 95 % interval */
    double process_spread;         /* relative spread between processes, 0 unknown */
    enum rk_origin origin;         /* MEASURED, PUBLISHED */
    int64_t measurement;           /* row id in its data base, or 0 */
};

/* A cost source over an array of rows. Rows of the same shape and place are merged (median; their spread widens the
 * interval). Rows that differ only in size (the first dimension: tokens, rows, elements, bytes) form a curve, monotone
 * by pooling neighbours that fall. A price is
 *   - measured: the shape and place of a row;
 *   - interpolated: on curves between their sizes, log-log; between curves, time per unit of work (FLOPs for products
 *     and attention, else bytes), weighted by the inverse squared distance of the nearest curves in the logarithms of
 *     all other dimensions, the group's size and the busy ranks;
 *   - extrapolated: past a curve's ends along its last segment, never faster than the best time per unit of work that
 *     was measured for the kind, with an interval that widens by the octave.
 * Along the size a price never falls. Its interval holds that of the rows, their spread between processes and, unless
 * measured, the leave-one-out error of the kind. The rows are copied. Free with rk_cost_table_free. */
struct rk_cost_table;
enum rk_status rk_cost_table_make(const struct rk_cost_row *rows, size_t row_count, const char *source_name,
                                  struct rk_cost_table **table, struct rk_error *error);
void rk_cost_table_free(struct rk_cost_table *table);
struct rk_cost_source rk_cost_table_source(struct rk_cost_table *table);

/* How well the table predicts its own rows: each distinct shape and place of the kind is priced from all the others.
 * Relative errors, |predicted - measured| / measured; signed mean > 0: predicted too slow. count 0: fewer than two
 * shapes, nothing to say. */
struct rk_leave_one_out {
    size_t count;
    double median, p90, signed_mean;
};
enum rk_status rk_cost_table_leave_one_out(const struct rk_cost_table *table, enum rk_op_kind kind,
                                           struct rk_leave_one_out *result, struct rk_error *error);

#endif

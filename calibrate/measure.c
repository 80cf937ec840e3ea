#include "calibrate/measure.h"

#include "base/clock.h"
#include "base/random.h"
#include "base/statistics.h"
#include "kernels/bf16.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SETS_MAX = 8,      /* operand sets that calls rotate over */
    ROUND_SAMPLES = 5, /* samples between two looks at the interval */
    WARM_CALLS = 2,
    CALLS_MAX = 100000
};
static const double confidence = 0.95;
static const double isolated_pause_seconds = 200e-6;

/* One case being timed on this rank. */
struct timing {
    const struct rk_measurer *measurer;
    const struct rk_calibration_case *item;
    bool takes_part; /* kernels run on the first `concurrent` ranks only */
    int64_t group_rank;
    enum rk_stream_kind stream_kind;
    struct rk_operands sets[SETS_MAX];
    int set_count;
    int64_t next; /* call number, for the rotation */
    struct rk_event_handle *begin, *end;
    struct rk_transport_position position;
};

static int64_t operand_bytes(const struct rk_op_shape *shape) {
    int64_t bytes = 0;
    for (int i = 0; i < rk_op_operand_count(shape->kind); i++)
        bytes += rk_op_operand_bytes(shape, i);
    return bytes;
}

/* The place of a rank among those that could run a stage transfer: its number among the senders or receivers of that
 * direction. Both ends of a message have the same. */
static int64_t transfer_ordinal(const struct rk_measurer *measurer, const struct rk_op_shape *shape) {
    bool forward = (shape->kind == RK_OP_SEND) == (shape->group == RK_GROUP_PIPELINE_NEXT);
    bool late_end = forward == (shape->kind == RK_OP_RECEIVE);
    return measurer->rank - (late_end ? measurer->candidate->data_parallel : 0);
}

/* Whether this rank runs the case, and its index in the op's group. As many ranks as the case says are busy: kernels on
 * the first ones, transfers on the first links, collectives in the group of rank 0 or, when all ranks are to be busy,
 * in all. */
static bool takes_part(const struct rk_measurer *measurer, const struct rk_calibration_case *item, int64_t *index) {
    *index = 0;
    enum rk_group_kind group = item->shape.group;
    if (item->layout < 0 || group == RK_GROUP_NONE || item->place.group_size == 1)
        return measurer->rank < item->place.concurrent;
    struct rk_rank_place place = rk_candidate_place(measurer->candidate, measurer->rank);
    int32_t last = measurer->candidate->pipeline - 1;
    if (group == RK_GROUP_PIPELINE_NEXT || group == RK_GROUP_PIPELINE_PREVIOUS)
        return (group == RK_GROUP_PIPELINE_NEXT ? place.stage < last : place.stage > 0) &&
               transfer_ordinal(measurer, &item->shape) < item->place.concurrent;
    if (group == RK_GROUP_EMBEDDING && place.stage != 0 && place.stage != last)
        return false;
    int64_t leader = 0;
    rk_candidate_group(measurer->candidate, measurer->rank, group, &leader, 1, index);
    return leader == 0 || item->place.concurrent >= rk_candidate_world(measurer->candidate);
}

static enum rk_status run_call(struct timing *timing, const struct rk_op_call *call, struct rk_error *error) {
    const struct rk_measurer *measurer = timing->measurer;
    switch (rk_op_executor(call->shape->kind)) {
    case RK_BY_TRANSPORT:
        return measurer->transport_table->run(measurer->transport, measurer->stream, call, rk_op_stream(call->shape),
                                              &timing->position, error);
    case RK_BY_COPY:
        return measurer->backend->copy(measurer->stream, call->operand[1], call->operand[0], call->shape->dim[0],
                                       call->shape->kind == RK_OP_COPY_D2H ? RK_COPY_D2H : RK_COPY_H2D, error);
    default:
        return rk_kernel_run(measurer->backend, measurer->stream, call, error);
    }
}

static void timing_free(struct timing *timing) {
    for (int i = 0; i < timing->set_count; i++)
        rk_operands_free(&timing->sets[i]);
    if (timing->begin)
        timing->measurer->backend->event_destroy(timing->begin);
    if (timing->end)
        timing->measurer->backend->event_destroy(timing->end);
}

/* Leaves only the case's share of the receive rows valid, spread over the experts at random. */
static enum rk_status share_rows(const struct timing *timing, struct rk_operands *operands, struct rk_error *error) {
    const struct rk_op_shape *shape = &timing->item->shape;
    bool swiglu = shape->kind == RK_OP_SWIGLU_FORWARD || shape->kind == RK_OP_SWIGLU_BACKWARD;
    int64_t groups = shape->dim[swiglu ? 2 : 1];
    int64_t rows = llround(timing->item->place.row_share * (double)shape->dim[0]);
    int32_t *offsets = calloc((size_t)groups + 1, sizeof *offsets);
    if (!offsets)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory");
    for (int64_t row = 0; row < rows; row++)
        offsets[1 + rk_random_below(timing->measurer->seed, (uint64_t)row, (uint64_t)groups)]++;
    for (int64_t group = 0; group < groups; group++)
        offsets[group + 1] += offsets[group];
    enum rk_status status = rk_operands_set_offsets(operands, offsets, error);
    free(offsets);
    return status;
}

/* Operand sets that together pass twice the L2 cache, so that no call finds its operands there from the call before. */
static enum rk_status timing_make(struct timing *timing, struct rk_error *error) {
    const struct rk_measurer *measurer = timing->measurer;
    const struct rk_op_shape *shape = &timing->item->shape;
    enum rk_status status = measurer->backend->event_create(measurer->device, true, &timing->begin, error);
    if (status == RK_OK)
        status = measurer->backend->event_create(measurer->device, true, &timing->end, error);
    int64_t bytes = operand_bytes(shape);
    int64_t wanted = bytes > 0 ? 1 + 2 * measurer->l2_bytes / bytes : 1;
    int sets = (int)(wanted < SETS_MAX ? wanted : SETS_MAX);
    for (int i = 0; status == RK_OK && i < sets; i++) {
        status = rk_operands_make(measurer->backend, measurer->device, shape, (int32_t)timing->group_rank,
                                  measurer->distribution, measurer->seed + (uint64_t)i, &timing->sets[i], error);
        if (status != RK_OK)
            break;
        timing->set_count++;
        if (timing->item->place.row_share < 1)
            status = share_rows(timing, &timing->sets[i], error);
    }
    return status;
}

/* Seconds of `calls` calls in a row on this rank, 0 when it takes no part. */
static enum rk_status time_batch(struct timing *timing, int64_t calls, double *seconds, struct rk_error *error) {
    const struct rk_measurer *measurer = timing->measurer;
    const struct rk_backend *backend = measurer->backend;
    *seconds = 0;
    if (!timing->takes_part)
        return RK_OK;
    enum rk_status status = backend->event_record(timing->begin, measurer->stream, error);
    for (int64_t i = 0; status == RK_OK && i < calls; i++)
        status = run_call(timing, &timing->sets[timing->next++ % timing->set_count].call, error);
    if (status == RK_OK)
        status = backend->event_record(timing->end, measurer->stream, error);
    if (status == RK_OK)
        status = backend->stream_synchronize(measurer->stream, measurer->job->deadline_seconds, error);
    if (status == RK_OK)
        status = backend->event_elapsed(timing->begin, timing->end, seconds, error);
    return status;
}

/* The op that stands on the other side of a stage transfer. */
static struct rk_op_shape partner_of(const struct rk_op_shape *shape) {
    struct rk_op_shape partner = *shape;
    partner.kind = shape->kind == RK_OP_SEND ? RK_OP_RECEIVE : RK_OP_SEND;
    partner.group = shape->group == RK_GROUP_PIPELINE_NEXT ? RK_GROUP_PIPELINE_PREVIOUS : RK_GROUP_PIPELINE_NEXT;
    return partner;
}

static bool is_transfer(enum rk_op_kind kind) {
    return kind == RK_OP_SEND || kind == RK_OP_RECEIVE;
}

/* One message between neighbours. The CPU transport buffers: its two ends are timed apart, the receiver with the
 * message already there. On GPUs both ends move together and share one time. */
static enum rk_status time_transfer(struct timing *timing, double *seconds, struct rk_error *error) {
    const struct rk_measurer *measurer = timing->measurer;
    const struct rk_op_shape *shape = &timing->item->shape;
    struct rk_op_shape partner = partner_of(shape);
    struct rk_calibration_case other = *timing->item;
    other.shape = partner;
    int64_t unused;
    bool is_partner = takes_part(measurer, &other, &unused);
    bool send_first = shape->kind == RK_OP_RECEIVE;
    bool buffered = measurer->backend->kind == RK_BACKEND_CPU;
    *seconds = 0;
    for (int turn = 0; turn < 2; turn++) {
        bool measured = buffered ? turn == (send_first ? 1 : 0) : turn == 0;
        enum rk_status status = rk_job_barrier(measurer->job, error);
        if (status == RK_OK && measured)
            status = time_batch(timing, 1, seconds, error);
        bool partner_turn = buffered ? !measured : turn == 0;
        if (status == RK_OK && partner_turn && is_partner) {
            struct rk_op_call call = timing->sets[0].call;
            call.shape = &partner;
            status = run_call(timing, &call, error);
        }
        if (status != RK_OK)
            return status;
    }
    return measurer->backend->stream_synchronize(measurer->stream, measurer->job->deadline_seconds, error);
}

static void pause_for(double seconds) {
    double end = rk_clock_seconds() + seconds;
    while (rk_clock_seconds() < end) {
    }
}

/* Fills times[ROUND_SAMPLES] with this rank's seconds per call. */
static enum rk_status time_round(struct timing *timing, enum rk_measure_mode mode, int64_t calls, double *times,
                                 struct rk_error *error) {
    for (int i = 0; i < ROUND_SAMPLES; i++) {
        enum rk_status status;
        if (is_transfer(timing->item->shape.kind)) {
            status = time_transfer(timing, &times[i], error);
        } else {
            status = rk_job_barrier(timing->measurer->job, error);
            if (mode == RK_MEASURE_ISOLATED)
                pause_for(isolated_pause_seconds);
            if (status == RK_OK)
                status = time_batch(timing, calls, &times[i], error);
            times[i] /= (double)calls;
        }
        if (status != RK_OK)
            return status;
    }
    return RK_OK;
}

/* Values that ranks compare after each round; the last tells of an interrupt. */
struct round_report {
    double times[ROUND_SAMPLES];
    double interrupted, elapsed;
};

/* Replaces *report by the maximum of each value over ranks. */
static enum rk_status agree(const struct rk_measurer *measurer, struct round_report *report, struct rk_error *error) {
    int64_t world = measurer->job->place.world;
    struct round_report *all = calloc((size_t)world, sizeof *all);
    if (!all)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory");
    enum rk_status status = rk_job_all_gather(measurer->job, report, sizeof *report, all, error);
    for (int64_t rank = 0; status == RK_OK && rank < world; rank++) {
        for (int i = 0; i < ROUND_SAMPLES; i++)
            report->times[i] = fmax(report->times[i], all[rank].times[i]);
        report->interrupted = fmax(report->interrupted, all[rank].interrupted);
        report->elapsed = fmax(report->elapsed, all[rank].elapsed);
    }
    free(all);
    return status;
}

/* Calls in one sample so that it lasts at least the measurer's batch; agreed over ranks. */
static enum rk_status choose_calls(struct timing *timing, enum rk_measure_mode mode, int64_t *calls,
                                   struct rk_error *error) {
    struct round_report report = {0};
    *calls = 1;
    if (is_transfer(timing->item->shape.kind))
        return RK_OK;
    enum rk_status status = rk_job_barrier(timing->measurer->job, error);
    if (status == RK_OK)
        status = time_batch(timing, WARM_CALLS, &report.times[0], error);
    if (status == RK_OK)
        status = rk_job_barrier(timing->measurer->job, error);
    if (status == RK_OK)
        status = time_batch(timing, 1, &report.times[0], error);
    if (status == RK_OK)
        status = agree(timing->measurer, &report, error);
    if (status != RK_OK || mode == RK_MEASURE_ISOLATED)
        return status;
    double wanted = timing->measurer->batch_seconds / fmax(report.times[0], 1e-9);
    *calls = (int64_t)fmin(fmax(ceil(wanted), 1), CALLS_MAX);
    return RK_OK;
}

static enum rk_status take_samples(struct timing *timing, enum rk_measure_mode mode, const volatile int *interrupt_flag,
                                   struct rk_measurement_result *result, bool *interrupted, struct rk_error *error) {
    const struct rk_measurer *measurer = timing->measurer;
    enum rk_status status = choose_calls(timing, mode, &result->calls_per_sample, error);
    double begin = rk_clock_seconds();
    while (status == RK_OK) {
        struct round_report report = {0};
        status = time_round(timing, mode, result->calls_per_sample, report.times, error);
        report.interrupted = interrupt_flag && *interrupt_flag ? 1 : 0;
        report.elapsed = rk_clock_seconds() - begin;
        if (status == RK_OK)
            status = agree(measurer, &report, error);
        if (status != RK_OK)
            break;
        memcpy(result->samples + result->sample_count, report.times, sizeof report.times);
        result->sample_count += ROUND_SAMPLES;
        struct rk_interval interval;
        status = rk_statistics_median_interval(result->samples, (size_t)result->sample_count, confidence,
                                               &result->median, &interval, error);
        result->low = interval.low;
        result->high = interval.high;
        *interrupted = report.interrupted > 0;
        bool narrow = result->sample_count >= RK_SAMPLES_MIN &&
                      result->high - result->low <= 2 * measurer->target_relative * result->median;
        result->stop = narrow ? RK_STOP_INTERVAL : RK_STOP_TIME;
        bool out_of_time = result->sample_count >= RK_SAMPLES_MIN && report.elapsed > measurer->seconds_per_case;
        if (narrow || out_of_time || *interrupted || result->sample_count + ROUND_SAMPLES > RK_SAMPLES_MAX)
            break;
    }
    return status;
}

/* Values of an output that must be numbers now: outputs were NaN before the first call. */
static int64_t written_values(const struct rk_operands *operands, int operand) {
    const struct rk_op_shape *shape = &operands->shape;
    int64_t values = operands->bytes[operand] / rk_element_bytes(rk_op_operand_element(shape, operand));
    if (rk_op_operand_is_prefix(shape->kind, operand) && operands->valid_rows >= 0 &&
        operands->valid_rows < shape->dim[0])
        values = values / shape->dim[0] * operands->valid_rows;
    return values;
}

static enum rk_status check_output(const struct rk_operands *operands, int operand, bool *verified,
                                   struct rk_error *error) {
    enum rk_element element = rk_op_operand_element(&operands->shape, operand);
    if (element != RK_ELEMENT_F32 && element != RK_ELEMENT_BF16)
        return RK_OK;
    void *copy = malloc((size_t)operands->bytes[operand] + 1);
    if (!copy)
        return rk_fail(error, RK_ERROR, "calibrate: out of memory");
    enum rk_status status = rk_operands_read(operands, operand, copy, error);
    int64_t count = written_values(operands, operand);
    for (int64_t i = 0; status == RK_OK && i < count; i++) {
        float value = element == RK_ELEMENT_F32 ? ((float *)copy)[i] : rk_bf16_widen(((uint16_t *)copy)[i]);
        *verified = *verified && !isnan(value);
    }
    free(copy);
    return status;
}

/* Large outputs are not read back: the tests hold every kernel to the oracle, this catches a call that did nothing. */
static const int64_t checked_bytes_max = 64 << 20;

static enum rk_status verify(const struct timing *timing, bool *verified, struct rk_error *error) {
    const struct rk_operands *operands = &timing->sets[0];
    enum rk_op_kind kind = operands->shape.kind;
    enum rk_status status = RK_OK;
    for (int i = 0; status == RK_OK && i < rk_op_operand_count(kind); i++)
        if (operands->call.operand[i] && i != rk_op_workspace_operand(kind) &&
            rk_op_operand_access(kind, i) == RK_ACCESS_WRITE && operands->bytes[i] <= checked_bytes_max)
            status = check_output(operands, i, verified, error);
    return status;
}

enum rk_status rk_measure_case(const struct rk_measurer *measurer, const struct rk_calibration_case *item,
                               enum rk_measure_mode mode, const volatile int *interrupt_flag,
                               struct rk_measurement_result *result, bool *interrupted, struct rk_error *error) {
    struct timing timing = {.measurer = measurer, .item = item};
    timing.position = (struct rk_transport_position){.layer = -1, .micro_batch = -1, .segment = "calibrate"};
    timing.takes_part = takes_part(measurer, item, &timing.group_rank);
    struct rk_measurement_result made = {.verified = true};
    bool stop = false;
    enum rk_status status = timing_make(&timing, error);
    if (status == RK_OK)
        status = take_samples(&timing, mode, interrupt_flag, &made, &stop, error);
    if (status == RK_OK && timing.takes_part && rk_op_executor(item->shape.kind) == RK_BY_KERNEL)
        status = verify(&timing, &made.verified, error);
    timing_free(&timing);
    if (status != RK_OK)
        return status;
    *result = made;
    *interrupted = stop;
    return RK_OK;
}

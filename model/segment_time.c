#include "model/segment_time.h"

enum { EVENTS_MAX = 256 };

static double larger(double left, double right) {
    return left > right ? left : right;
}

double rk_segment_seconds(const struct rk_program *program, uint32_t segment_index, const double *op_seconds,
                          bool serial) {
    const struct rk_segment *segment = &program->segments[segment_index];
    double lanes[RK_STREAM_COUNT] = {0}, events[EVENTS_MAX] = {0}, end = 0;
    for (size_t i = segment->first_op; i < segment->first_op + segment->op_count; i++) {
        const struct rk_op *op = &program->ops[i];
        double *lane = &lanes[serial ? 0 : op->stream];
        double start = *lane;
        for (int w = 0; w < RK_OP_WAITS; w++)
            if (op->wait[w].event < EVENTS_MAX)
                start = larger(start, events[op->wait[w].event]);
        *lane = start + op_seconds[i];
        for (int r = 0; r < RK_OP_RECORDS; r++)
            if (op->record[r].event < EVENTS_MAX)
                events[op->record[r].event] = *lane;
        end = larger(end, *lane);
    }
    return end;
}

bool rk_segment_is_block(const struct rk_program *program, uint32_t segment_index, bool backward) {
    const struct rk_segment *segment = &program->segments[segment_index];
    bool forward_core = false, backward_core = false;
    for (size_t i = segment->first_op; i < segment->first_op + segment->op_count; i++) {
        forward_core = forward_core || program->ops[i].shape.kind == RK_OP_ATTENTION_FORWARD;
        backward_core = backward_core || program->ops[i].shape.kind == RK_OP_ATTENTION_BACKWARD;
    }
    return backward ? backward_core : forward_core && !backward_core;
}

#include "model/program_clock.h"

#include <stdlib.h>

enum rk_status rk_clocks_open(const struct rk_program *program, struct rk_clocks *clocks, struct rk_error *error) {
    size_t instances = 0;
    *clocks = (struct rk_clocks){.program = program};
    clocks->first_event = calloc(program->event_count + 1, sizeof *clocks->first_event);
    if (clocks->first_event != NULL) {
        for (size_t i = 0; i < program->event_count; i++) {
            clocks->first_event[i] = instances;
            instances += (size_t)program->events[i].instance_count;
        }
        clocks->event = calloc(instances + 1, sizeof *clocks->event);
    }
    if (clocks->event != NULL)
        return RK_OK;
    rk_clocks_close(clocks);
    return rk_fail(error, RK_ERROR, "step program: out of memory");
}

void rk_clocks_close(struct rk_clocks *clocks) {
    free(clocks->event);
    free(clocks->first_event);
    *clocks = (struct rk_clocks){0};
}

static struct rk_clock *event_clock(const struct rk_clocks *clocks, const struct rk_event_reference *reference,
                                    const struct rk_visit *visit) {
    int64_t instance = rk_program_event_instance(clocks->program, reference, visit);
    return instance < 0 ? NULL : &clocks->event[clocks->first_event[reference->event] + (size_t)instance];
}

static void join(struct rk_clock *clock, const struct rk_clock *other) {
    for (int i = 0; i < RK_STREAM_COUNT; i++)
        if (other->over[i] > clock->over[i])
            clock->over[i] = other->over[i];
}

int64_t rk_clocks_next(struct rk_clocks *clocks, const struct rk_op *op, const struct rk_visit *visit,
                       struct rk_clock *before) {
    struct rk_clock *stream = &clocks->stream[op->stream];
    for (int i = 0; i < RK_OP_WAITS && op->wait[i].event != RK_NO_EVENT; i++) {
        const struct rk_clock *event = event_clock(clocks, &op->wait[i], visit);
        if (event != NULL)
            join(stream, event);
    }
    *before = *stream;
    stream->over[op->stream]++;
    for (int i = 0; i < RK_OP_RECORDS && op->record[i].event != RK_NO_EVENT; i++) {
        struct rk_clock *event = event_clock(clocks, &op->record[i], visit);
        if (event != NULL)
            *event = *stream;
    }
    return stream->over[op->stream];
}

/* From chosen experts to rows of the receive buffers. */
#include "kernels/cpu/cpu.h"

/* Rows kept for each (source, expert): on every destination rank, experts in order, then sources in order, until its R
 * rows are full. Notes for the rank itself where its rows begin on each destination, and where its own experts' rows
 * begin. */
static void keep_rows(const struct rk_op_call *call, int64_t *first_row) {
    const int64_t *dim = call->shape->dim;
    int64_t experts = dim[1], ranks = dim[3], capacity = dim[4], held = experts / ranks;
    const int32_t *requested = call->operand[1];
    int32_t *kept = call->operand[3], *offsets = call->operand[4];
    for (int64_t destination = 0; destination < ranks; destination++) {
        int64_t used = 0;
        for (int64_t e = destination * held; e < (destination + 1) * held; e++) {
            if (destination == call->group_rank) {
                offsets[e - destination * held] = (int32_t)used;
            }
            for (int64_t source = 0; source < ranks; source++) {
                int64_t rows = rk_cpu_smaller(requested[source * experts + e], capacity - used);
                kept[source * experts + e] = (int32_t)rows;
                if (source == call->group_rank) {
                    first_row[e] = used;
                }
                used += rows;
            }
        }
        if (destination == call->group_rank) {
            offsets[held] = (int32_t)used;
        }
    }
}

/* Counts the routes of each expert and leaves the place of each expert's first one in the sorted order. */
static void order_starts(const struct rk_op_call *call, int64_t *place) {
    int64_t routes = call->shape->dim[0] * call->shape->dim[2], experts = call->shape->dim[1], before = 0;
    const int32_t *index = call->operand[0];
    memset(place, 0, (size_t)experts * sizeof *place);
    for (int64_t route = 0; route < routes; route++) {
        place[index[route]]++;
    }
    for (int64_t e = 0; e < experts; e++) {
        int64_t count = place[e];
        place[e] = before;
        before += count;
    }
}

RK_CPU_KERNEL(ROUTE_MAP) {
    int64_t routes = call->shape->dim[0] * call->shape->dim[2], experts = call->shape->dim[1];
    const int32_t *index = call->operand[0];
    const int32_t *kept = (const int32_t *)call->operand[3] + call->group_rank * experts;
    int32_t *row = call->operand[2], *order = call->operand[5];
    int64_t *load = call->operand[6];
    int64_t *place = call->operand[7], *first_row = place + experts, *taken = first_row + experts;
    keep_rows(call, first_row);
    order_starts(call, place);
    memset(taken, 0, (size_t)experts * sizeof *taken);
    for (int64_t route = 0; route < routes; route++) {
        int32_t e = index[route];
        order[place[e]++] = (int32_t)route;
        row[route] = taken[e] < kept[e] ? (int32_t)(first_row[e] + taken[e]) : -1;
        taken[e]++;
    }
    for (int64_t e = 0; e < experts && load != NULL; e++) {
        load[e] += taken[e];
        load[experts + e] += kept[e];
        load[2 * experts] += taken[e] - kept[e];
    }
}

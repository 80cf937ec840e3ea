#include "model/cost_hardware.h"

#include "model/cost_place.h"
#include "model/cost_shape.h"
#include "model/segment_time.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is left of the limit when nobody published an efficiency. */
static const double LIMIT_UNCERTAINTY = 0.5;

enum direction { FORWARD, BACKWARD, DIRECTION_COUNT };

struct rk_cost_hardware {
    struct rk_hardware hardware;
    struct rk_machine machine;
    int64_t vocabulary;             /* tells the head's products from a block's; 0 without published times */
    double factor[DIRECTION_COUNT]; /* of a routed block's ops; 1 without published times */
    double published_uncertainty;
    struct rk_cost_shape *published; /* shapes of the published case */
    size_t published_count;
};

/* A price under construction: terms multiply in, the worst origin and the uncertainties stay. */
struct term {
    double seconds, squares;
    enum rk_origin origin;
};

static void use_figure(const struct rk_figure *figure, struct term *term) {
    term->squares += figure->relative_uncertainty * figure->relative_uncertainty;
    if (figure->origin > term->origin)
        term->origin = figure->origin;
}

/* A rate or time that there is no price without. */
static enum rk_status need(const struct rk_cost_hardware *costs, enum rk_hardware_figure figure, struct term *term,
                           double *value, struct rk_error *error) {
    const struct rk_profile_figure *known = rk_hardware_figure(&costs->hardware, figure);
    if (known == NULL)
        return rk_fail(error, RK_UNCALIBRATED, "hardware profile %s: no figure '%s'; add it with its origin and source",
                       costs->hardware.name, rk_hardware_figure_key(figure));
    struct rk_figure used = rk_hardware_term(known, costs->hardware.name);
    use_figure(&used, term);
    *value = used.value;
    return RK_OK;
}

static double efficiency(const struct rk_cost_hardware *costs, enum rk_hardware_figure figure, struct term *term) {
    const struct rk_profile_figure *known = rk_hardware_figure(&costs->hardware, figure);
    struct rk_figure used = {.value = 1, .relative_uncertainty = LIMIT_UNCERTAINTY, .origin = RK_ORIGIN_SPECIFICATION};
    if (known != NULL)
        used = rk_hardware_term(known, costs->hardware.name);
    use_figure(&used, term);
    return used.value;
}

static enum rk_status at_rate(const struct rk_cost_hardware *costs, double amount, enum rk_hardware_figure rate,
                              enum rk_hardware_figure share, struct term *term, struct rk_error *error) {
    double value = 0;
    enum rk_status status = need(costs, rate, term, &value, error);
    if (status == RK_OK)
        term->seconds = amount / (value * efficiency(costs, share, term));
    return status;
}

/* Receive rows that are not valid cost nothing. */
static double valid_share(const struct rk_cost_place *place) {
    return place->row_share;
}

static enum rk_status memory_price(const struct rk_cost_hardware *costs, const struct rk_op_shape *shape,
                                   const struct rk_cost_place *place, struct term *term, struct rk_error *error) {
    double bytes = rk_op_bytes(shape) * valid_share(place);
    return at_rate(costs, bytes, RK_HARDWARE_MEMORY_BANDWIDTH, RK_HARDWARE_EFFICIENCY_MEMORY, term, error);
}

static enum rk_hardware_figure product_efficiency(const struct rk_op_shape *shape) {
    switch (rk_op_family(shape->kind)) {
    case RK_OP_FAMILY_GROUPED_GEMM:
        return RK_HARDWARE_EFFICIENCY_GROUPED_GEMM;
    case RK_OP_FAMILY_ATTENTION:
        return shape->kind == RK_OP_ATTENTION_FORWARD ? RK_HARDWARE_EFFICIENCY_ATTENTION_FORWARD
                                                      : RK_HARDWARE_EFFICIENCY_ATTENTION_BACKWARD;
    default:
        return RK_HARDWARE_EFFICIENCY_GEMM;
    }
}

static enum rk_status product_price(const struct rk_cost_hardware *costs, const struct rk_op_shape *shape,
                                    const struct rk_cost_place *place, struct term *term, struct rk_error *error) {
    struct term memory = {0};
    enum rk_hardware_figure peak = shape->type == RK_BF16 ? RK_HARDWARE_PEAK_BF16 : RK_HARDWARE_PEAK_FP32;
    double flops = rk_op_flops(shape) * valid_share(place);
    enum rk_status status = at_rate(costs, flops, peak, product_efficiency(shape), term, error);
    if (status == RK_OK)
        status = memory_price(costs, shape, place, &memory, error);
    if (status == RK_OK && memory.seconds > term->seconds)
        *term = memory;
    return status;
}

static enum rk_status copy_price(const struct rk_cost_hardware *costs, const struct rk_op_shape *shape,
                                 struct term *term, struct rk_error *error) {
    const struct rk_figure *link = shape->kind == RK_OP_COPY_D2H ? &costs->machine.d2h : &costs->machine.h2d;
    if (link->value <= 0)
        return rk_fail(error, RK_UNCALIBRATED, "hardware profile %s: no figure '%s'; add it with its origin and source",
                       costs->hardware.name, shape->kind == RK_OP_COPY_D2H ? "d2h_specification" : "h2d_specification");
    use_figure(link, term);
    term->seconds = rk_op_bytes(shape) / 2 / link->value; /* read on one side, written on the other */
    return RK_OK;
}

/* Of the peers of a rank in a group that spans hosts, the share on other hosts. */
static double outside_share(const struct rk_cost_hardware *costs, const struct rk_cost_place *place) {
    double ranks = place->group_size, near = costs->machine.devices_per_host;
    if (!place->crosses_hosts || ranks <= 1)
        return 0;
    return near >= ranks ? 1 : (ranks - near) / (ranks - 1);
}

static enum rk_status link_price(const struct rk_cost_hardware *costs, double bytes, double outside, double messages,
                                 enum rk_hardware_figure share, struct term *term, struct rk_error *error) {
    double latency = 0;
    struct term inside = {0}, rail = {0};
    enum rk_status status = need(costs, RK_HARDWARE_MESSAGE, term, &latency, error);
    if (status == RK_OK && outside < 1)
        status = at_rate(costs, bytes * (1 - outside), RK_HARDWARE_NODE_LINK, share, &inside, error);
    if (status == RK_OK && outside > 0)
        status = at_rate(costs, bytes * outside, RK_HARDWARE_RAIL, RK_HARDWARE_EFFICIENCY_RAIL, &rail, error);
    const struct term *slower = rail.seconds > inside.seconds ? &rail : &inside;
    term->seconds = messages * latency + slower->seconds;
    term->squares = fmax(term->squares, slower->squares);
    if (slower->origin > term->origin)
        term->origin = slower->origin;
    return status;
}

static enum rk_status transport_price(const struct rk_cost_hardware *costs, const struct rk_op_shape *shape,
                                      const struct rk_cost_place *place, struct term *term, struct rk_error *error) {
    double bytes = rk_op_remote_bytes(shape);
    switch (rk_op_family(shape->kind)) {
    case RK_OP_FAMILY_EXPERT_EXCHANGE:
        if (place->group_size == 1)
            return memory_price(costs, shape, place, term, error);
        return link_price(costs, bytes, outside_share(costs, place), 1, RK_HARDWARE_EFFICIENCY_EXCHANGE, term, error);
    case RK_OP_FAMILY_PIPELINE:
        return link_price(costs, (double)shape->dim[0], place->crosses_hosts ? 1 : 0, 1,
                          RK_HARDWARE_EFFICIENCY_COLLECTIVE, term, error);
    default:
        /* A ring passes every byte over its slowest link. */
        return link_price(costs, bytes, place->crosses_hosts ? 1 : 0, ceil(log2(fmax(2, place->group_size))),
                          RK_HARDWARE_EFFICIENCY_COLLECTIVE, term, error);
    }
}

static enum rk_status roofline(const struct rk_cost_hardware *costs, const struct rk_op_shape *shape,
                               const struct rk_cost_place *place, struct rk_cost *cost, struct rk_error *error) {
    struct term term = {0};
    enum rk_op_family family = rk_op_family(shape->kind);
    enum rk_status status;
    if (rk_op_executor(shape->kind) == RK_BY_COPY)
        status = copy_price(costs, shape, &term, error);
    else if (rk_op_executor(shape->kind) == RK_BY_TRANSPORT)
        status = transport_price(costs, shape, place, &term, error);
    else if (family == RK_OP_FAMILY_GEMM || family == RK_OP_FAMILY_GROUPED_GEMM || family == RK_OP_FAMILY_ATTENTION)
        status = product_price(costs, shape, place, &term, error);
    else
        status = memory_price(costs, shape, place, &term, error);
    if (status != RK_OK)
        return status;
    *cost =
        (struct rk_cost){.seconds = term.seconds, .relative_uncertainty = sqrt(term.squares), .origin = term.origin};
    snprintf(cost->source, sizeof cost->source, "profile %s", costs->hardware.name);
    return RK_OK;
}

/* ---- Published times of a block ---- */

/* Which factor an op takes when it belongs to a routed block; DIRECTION_COUNT for kinds outside blocks. Exchanges occur
 * in both directions and take the forward's. */
static enum direction direction_of(const struct rk_op_shape *shape, int64_t vocabulary) {
    switch (shape->kind) {
    case RK_OP_GEMM_FORWARD:
    case RK_OP_GEMM_DGRAD:
    case RK_OP_GEMM_WGRAD:
        if (shape->dim[1] == vocabulary)
            return DIRECTION_COUNT;
        return shape->kind == RK_OP_GEMM_FORWARD ? FORWARD : BACKWARD;
    case RK_OP_RMSNORM_FORWARD:
    case RK_OP_ROPE_FORWARD:
    case RK_OP_ATTENTION_FORWARD:
    case RK_OP_ROUTE_FORWARD:
    case RK_OP_ROUTE_MAP:
    case RK_OP_COUNT_EXCHANGE:
    case RK_OP_DISPATCH:
    case RK_OP_COMBINE:
    case RK_OP_GROUPED_GEMM_FORWARD:
    case RK_OP_SWIGLU_FORWARD:
        return FORWARD;
    case RK_OP_RMSNORM_BACKWARD:
    case RK_OP_ROPE_BACKWARD:
    case RK_OP_ATTENTION_BACKWARD:
    case RK_OP_ROUTE_BACKWARD:
    case RK_OP_GROUPED_GEMM_DGRAD:
    case RK_OP_GROUPED_GEMM_WGRAD:
    case RK_OP_SWIGLU_BACKWARD:
        return BACKWARD;
    default:
        return DIRECTION_COUNT;
    }
}

static bool is_published_shape(const struct rk_cost_hardware *costs, const struct rk_op_shape *shape,
                               const struct rk_cost_place *place) {
    struct rk_cost_shape asked;
    rk_cost_shape_of(shape, place, &asked);
    for (size_t i = 0; i < costs->published_count; i++)
        if (rk_cost_shape_same_work(&costs->published[i], &asked))
            return true;
    return false;
}

static enum rk_status price(void *context, const struct rk_op_shape *shape, const struct rk_cost_place *place,
                            struct rk_cost *cost, struct rk_error *error) {
    const struct rk_cost_hardware *costs = context;
    struct rk_cost made;
    enum rk_status status = roofline(costs, shape, place, &made, error);
    if (status != RK_OK)
        return status;
    enum direction direction = direction_of(shape, costs->vocabulary);
    if (costs->published_count > 0 && direction != DIRECTION_COUNT) {
        made.seconds *= costs->factor[direction];
        bool published = is_published_shape(costs, shape, place);
        made.origin = published ? RK_ORIGIN_PUBLISHED : RK_ORIGIN_TRANSFERRED;
        /* The sum over the block is as sure as the publication; its parts keep the profile's doubt. */
        if (published)
            made.relative_uncertainty = costs->published_uncertainty;
        snprintf(made.source, sizeof made.source, "profile %.40s, scaled to published block times",
                 costs->hardware.name);
    }
    *cost = made;
    return RK_OK;
}

static void published_candidate(const struct rk_published_time *published, int64_t sequence,
                                const struct rk_architecture *architecture, struct rk_candidate *candidate) {
    *candidate = (struct rk_candidate){.pipeline = 1,
                                       .virtual_stages = 1,
                                       .expert_parallel = (int32_t)published->expert_parallel,
                                       .data_parallel = (int32_t)published->expert_parallel,
                                       .micro_batch_tokens = published->tokens,
                                       .sequence = published->tokens % sequence == 0 ? sequence : published->tokens,
                                       .global_batch_tokens = published->tokens * published->expert_parallel,
                                       .type = RK_BF16,
                                       .backend = RK_BACKEND_CUDA,
                                       .capacity_factor = 1};
    rk_candidate_defaults(candidate);
    rk_candidate_even_chunks(architecture, candidate);
}

static double visit_seconds(const struct rk_program *program, uint32_t segment, const double *seconds, double *scaled,
                            const double factor[DIRECTION_COUNT], int64_t vocabulary) {
    const struct rk_segment *part = &program->segments[segment];
    for (size_t i = part->first_op; i < part->first_op + part->op_count; i++) {
        enum direction direction = direction_of(&program->ops[i].shape, vocabulary);
        scaled[i] = seconds[i] * (direction == DIRECTION_COUNT ? 1 : factor[direction]);
    }
    return rk_segment_seconds(program, segment, scaled, false);
}

/* The factor of one direction with which the segment takes `target` seconds. Time grows with it: halving finds it. */
static double find_factor(const struct rk_program *program, uint32_t segment, const double *seconds, double *scaled,
                          double factor[DIRECTION_COUNT], enum direction direction, int64_t vocabulary, double target) {
    double low = 1e-4, high = 1e4;
    for (int i = 0; i < 100; i++) {
        factor[direction] = sqrt(low * high);
        if (visit_seconds(program, segment, seconds, scaled, factor, vocabulary) < target)
            low = factor[direction];
        else
            high = factor[direction];
    }
    return factor[direction];
}

/* A segment of a routed block of the wanted direction, UINT32_MAX when there is none. */
static uint32_t routed_segment(const struct rk_program *program, bool backward) {
    for (size_t v = 0; v < program->visit_count; v++) {
        const struct rk_visit *visit = &program->schedule[v];
        if (visit->ordinal >= 0 && program->layer_kinds[visit->ordinal] == RK_BLOCK_MOE &&
            rk_segment_is_block(program, visit->segment, backward))
            return visit->segment;
    }
    return UINT32_MAX;
}

static enum rk_status keep_shapes(struct rk_cost_hardware *costs, const struct rk_program *program,
                                  const uint32_t segments[DIRECTION_COUNT], struct rk_error *error) {
    size_t count = 0;
    int64_t routed_rows = rk_cost_routed_rows(program);
    for (int d = 0; d < DIRECTION_COUNT; d++)
        count += program->segments[segments[d]].op_count;
    costs->published = calloc(count, sizeof *costs->published);
    if (costs->published == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for %zu published shapes", count);
    for (int d = 0; d < DIRECTION_COUNT; d++) {
        const struct rk_segment *segment = &program->segments[segments[d]];
        for (size_t i = segment->first_op; i < segment->first_op + segment->op_count; i++) {
            struct rk_cost_place place;
            rk_cost_place_of(program, &costs->machine, &program->ops[i], routed_rows, RK_BUSY_ALL, &place);
            rk_cost_shape_of(&program->ops[i].shape, &place, &costs->published[costs->published_count++]);
        }
    }
    return RK_OK;
}

static enum rk_status fit_factors(struct rk_cost_hardware *costs, const struct rk_program *program,
                                  const struct rk_published_time *const times[DIRECTION_COUNT], int64_t vocabulary,
                                  struct rk_error *error) {
    uint32_t segments[DIRECTION_COUNT] = {routed_segment(program, false), routed_segment(program, true)};
    if (segments[FORWARD] == UINT32_MAX || segments[BACKWARD] == UINT32_MAX)
        return RK_OK;
    double *seconds = calloc(2 * program->op_count, sizeof *seconds);
    if (seconds == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the published block");
    int64_t routed_rows = rk_cost_routed_rows(program);
    enum rk_status status = RK_OK;
    for (int d = 0; d < DIRECTION_COUNT; d++) {
        const struct rk_segment *segment = &program->segments[segments[d]];
        for (size_t i = segment->first_op; status == RK_OK && i < segment->first_op + segment->op_count; i++) {
            struct rk_cost_place place;
            struct rk_cost cost = {0};
            rk_cost_place_of(program, &costs->machine, &program->ops[i], routed_rows, RK_BUSY_ALL, &place);
            status = roofline(costs, &program->ops[i].shape, &place, &cost, error);
            seconds[i] = cost.seconds;
        }
    }
    double factor[DIRECTION_COUNT] = {1, 1};
    double *scaled = seconds + program->op_count;
    for (int d = 0; status == RK_OK && d < DIRECTION_COUNT; d++)
        costs->factor[d] = find_factor(program, segments[d], seconds, scaled, factor, (enum direction)d, vocabulary,
                                       times[d]->seconds.value);
    free(seconds);
    if (status != RK_OK)
        return status;
    costs->vocabulary = vocabulary;
    costs->published_uncertainty =
        rk_hardware_term(&times[FORWARD]->seconds, costs->hardware.name).relative_uncertainty;
    return keep_shapes(costs, program, segments, error);
}

/* The profile's times for a routed block of this model, at the micro-batch they were published for. */
static bool find_published(const struct rk_hardware *hardware, const struct rk_architecture *architecture,
                           const struct rk_published_time *times[DIRECTION_COUNT]) {
    for (int64_t i = 0; i < hardware->published_count; i++) {
        int64_t tokens = hardware->published[i].tokens;
        times[FORWARD] = rk_hardware_published(hardware, RK_PUBLISHED_MOE_BLOCK_FORWARD, architecture, tokens);
        times[BACKWARD] = rk_hardware_published(hardware, RK_PUBLISHED_MOE_BLOCK_BACKWARD, architecture, tokens);
        if (times[FORWARD] != NULL && times[BACKWARD] != NULL)
            return true;
    }
    return false;
}

static enum rk_status use_published(struct rk_cost_hardware *costs, const struct rk_architecture *architecture,
                                    int64_t sequence, struct rk_error *error) {
    const struct rk_published_time *times[DIRECTION_COUNT];
    if (!find_published(&costs->hardware, architecture, times))
        return RK_OK;
    struct rk_candidate candidate;
    published_candidate(times[FORWARD], sequence, architecture, &candidate);
    struct rk_program *program = NULL;
    enum rk_status status = rk_program_lower(architecture, &candidate, 0, &program, error);
    /* Times published for an expert parallelism or a micro-batch that this model cannot have say nothing about it. */
    if (status == RK_USAGE || status == RK_INFEASIBLE)
        return RK_OK;
    if (status != RK_OK)
        return rk_fail_context(error, "hardware profile %s, published block", costs->hardware.name);
    status = fit_factors(costs, program, times, architecture->vocabulary, error);
    rk_program_free(program);
    return status;
}

enum rk_status rk_cost_hardware_make(const struct rk_hardware *hardware, const struct rk_architecture *architecture,
                                     int64_t sequence, struct rk_cost_hardware **costs, struct rk_error *error) {
    struct rk_cost_hardware *made = calloc(1, sizeof *made);
    if (made == NULL)
        return rk_fail(error, RK_ERROR, "out of memory for the prices of %s", hardware->name);
    made->hardware = *hardware;
    made->factor[FORWARD] = made->factor[BACKWARD] = 1;
    enum rk_status status = rk_hardware_machine(hardware, &made->machine, error);
    if (status == RK_OK && architecture != NULL && architecture->moe_layers > 0)
        status = use_published(made, architecture, sequence, error);
    if (status != RK_OK) {
        rk_cost_hardware_free(made);
        return status;
    }
    *costs = made;
    return RK_OK;
}

void rk_cost_hardware_free(struct rk_cost_hardware *costs) {
    if (costs == NULL)
        return;
    free(costs->published);
    free(costs);
}

struct rk_cost_source rk_cost_hardware_source(struct rk_cost_hardware *costs) {
    return (struct rk_cost_source){.price = price, .context = costs};
}

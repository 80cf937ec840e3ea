#include "kernels/operands_routing.h"
#include "base/random.h"
#include "kernels/kernels.h"
#include "kernels/route_random.h"

#include <inttypes.h>
#include <stdlib.h>

/* Draws the routes of one rank: counts them, and keeps them if index is given. */
static void draw_routes(const struct rk_routing_example *example, uint64_t seed, int32_t *index, int32_t *requested) {
    int32_t chosen[RK_ROUTES_MAX];
    int32_t top_k = (int32_t)example->top_k;
    for (int64_t t = 0; t < example->tokens; t++) {
        rk_route_random_experts(seed, t, top_k, (int32_t)example->experts, top_k, chosen);
        for (int32_t j = 0; j < top_k; j++) {
            requested[chosen[j]]++;
            if (index != NULL) {
                index[t * top_k + j] = chosen[j];
            }
        }
    }
}

/* The maps by the CPU back end's own kernel. */
static enum rk_status map_routes(struct rk_routing_example *example, int32_t group_rank, struct rk_error *error) {
    const struct rk_backend *cpu = rk_backend_cpu();
    struct rk_op_shape shape = {
        .kind = RK_OP_ROUTE_MAP,
        .dim = {example->tokens, example->experts, example->top_k, example->ranks, example->capacity},
    };
    struct rk_device *device = NULL;
    struct rk_stream *stream = NULL;
    enum rk_status status = cpu->device_open(0, NULL, &device, error);
    if (status != RK_OK) {
        return status;
    }
    void *workspace = NULL;
    status = cpu->memory_allocate(device, rk_op_workspace_bytes(&shape, RK_BACKEND_CPU), &workspace, error);
    if (status != RK_OK) {
        goto close_device;
    }
    status = cpu->stream_create(device, false, &stream, error);
    if (status != RK_OK) {
        goto free_workspace;
    }
    struct rk_op_call call = {
        .shape = &shape,
        .operand = {example->index, example->requested_all, example->row, example->kept, example->offsets,
                    example->order, NULL, workspace},
        .group_rank = group_rank,
    };
    status = rk_kernel_run(cpu, stream, &call, error);
    cpu->stream_destroy(stream);
free_workspace:
    cpu->memory_free(device, workspace);
close_device:
    cpu->device_close(device);
    return status;
}

static int32_t *integers(int64_t count) {
    return calloc((size_t)(count > 0 ? count : 1), sizeof(int32_t));
}

enum rk_status rk_routing_example_make(int64_t tokens, int64_t experts, int64_t top_k, int64_t ranks, int64_t capacity,
                                       int32_t group_rank, uint64_t seed, struct rk_routing_example *example,
                                       struct rk_error *error) {
    if (top_k > RK_ROUTES_MAX || top_k > experts || ranks < 1 || experts % ranks != 0 || group_rank < 0 ||
        group_rank >= ranks) {
        return rk_fail(error, RK_USAGE,
                       "random routing: %" PRId64 " routes to %" PRId64 " experts on %" PRId64
                       " ranks, rank %d; experts must divide by ranks and routes be at most experts and %d",
                       top_k, experts, ranks, group_rank, RK_ROUTES_MAX);
    }
    struct rk_routing_example made = {
        .tokens = tokens,
        .experts = experts,
        .top_k = top_k,
        .ranks = ranks,
        .capacity = capacity,
        .index = integers(tokens * top_k),
        .requested_all = integers(ranks * experts),
        .row = integers(tokens * top_k),
        .kept = integers(ranks * experts),
        .offsets = integers(experts / ranks + 1),
        .order = integers(tokens * top_k),
    };
    enum rk_status status = RK_OK;
    if (made.index == NULL || made.requested_all == NULL || made.row == NULL || made.kept == NULL ||
        made.offsets == NULL || made.order == NULL) {
        status = rk_fail(error, RK_ERROR, "random routing of %" PRId64 " tokens: out of memory", tokens);
    }
    for (int64_t rank = 0; rank < ranks && status == RK_OK; rank++) {
        draw_routes(&made, rk_random_stream(seed, "routes of a rank", (uint64_t)rank),
                    rank == group_rank ? made.index : NULL, made.requested_all + rank * experts);
    }
    if (status == RK_OK) {
        status = map_routes(&made, group_rank, error);
    }
    if (status != RK_OK) {
        rk_routing_example_free(&made);
        return status;
    }
    *example = made;
    return RK_OK;
}

void rk_routing_example_free(struct rk_routing_example *example) {
    free(example->index);
    free(example->requested_all);
    free(example->row);
    free(example->kept);
    free(example->offsets);
    free(example->order);
}

/* Windows for the exchange with the experts: allocated, and mapped by the peers where they can. */
#include "executor/transport_nccl.cuh"

#include <stdlib.h>
#include <string.h>

static int64_t largest(int64_t left, int64_t right) {
    return left > right ? left : right;
}

static int64_t align(int64_t bytes) {
    return (bytes + 255) / 256 * 256;
}

/* What the exchange of any rank can need. */
struct needs {
    int64_t exchanges; /* 0: no rank has one */
    int64_t routes, tokens, row_bytes;
};

static struct needs needs_of(const struct rk_program *program) {
    struct needs needs = {0, 0, 0, 0};
    for (size_t i = 0; i < program->op_count; i++) {
        const struct rk_op_shape *shape = &program->ops[i].shape;
        if (shape->kind != RK_OP_DISPATCH && shape->kind != RK_OP_COMBINE)
            continue;
        needs.exchanges = 1;
        needs.tokens = largest(needs.tokens, shape->dim[0]);
        needs.routes = largest(needs.routes, shape->dim[0] * shape->dim[2]);
        needs.row_bytes = largest(needs.row_bytes, shape->dim[1] * rk_data_type_bytes(shape->type));
    }
    return needs;
}

/* The largest of any rank, so that all windows are laid out alike. */
static enum rk_status agree_on_needs(const struct rk_transport *transport, struct needs *needs,
                                     struct rk_error *error) {
    struct needs *all = (struct needs *)calloc((size_t)transport->world, sizeof *all);
    if (!all)
        return rk_fail(error, RK_ERROR, "transport: out of memory");
    enum rk_status status = rk_job_all_gather(transport->job, needs, sizeof *needs, all, error);
    for (int64_t rank = 0; status == RK_OK && rank < transport->world; rank++) {
        needs->exchanges = largest(needs->exchanges, all[rank].exchanges);
        needs->tokens = largest(needs->tokens, all[rank].tokens);
        needs->routes = largest(needs->routes, all[rank].routes);
        needs->row_bytes = largest(needs->row_bytes, all[rank].row_bytes);
    }
    free(all);
    return status;
}

static void lay_out(struct nccl_window *window, const struct needs *needs, int64_t members) {
    window->routes = needs->routes;
    window->row_bytes = needs->row_bytes;
    window->tokens_at = align(NCCL_SLICE_HEADER + needs->routes * 8);
    window->dispatch_slice = align(window->tokens_at + needs->tokens * needs->row_bytes);
    window->combine_slice = align(needs->routes * 4) + align(needs->routes * needs->row_bytes);
    /* Peers that store by themselves know where each owner's rows begin; NCCL moves whole slices. */
    int64_t combine = window->direct ? window->combine_slice : members * window->combine_slice;
    window->bytes = NCCL_CONTROL_BYTES + largest(members * window->dispatch_slice, combine);
}

/* What a rank shows of its window, and what it could open of the others'. */
struct offer {
    cudaIpcMemHandle_t handle;
    int32_t valid;
};

static enum rk_status allocate(struct nccl_window *window, char **memory, struct rk_error *error) {
    cudaError_t result = cudaMalloc((void **)memory, (size_t)window->bytes);
    if (result == cudaSuccess)
        result = cudaMemset(*memory, 0, NCCL_CONTROL_BYTES);
    if (result == cudaSuccess)
        result = cudaDeviceSynchronize();
    if (result == cudaSuccess)
        return RK_OK;
    cudaGetLastError();
    return rk_fail(error, RK_ERROR, "allocating %.2f GiB on the GPU for the exchange with the experts: %s",
                   (double)window->bytes / (1 << 30), cudaGetErrorString(result));
}

/* Maps the peers' windows. *mapped: all of this rank's group. */
static void map_peers(struct rk_transport *transport, const struct offer *offers, bool *mapped) {
    struct nccl_window *window = &transport->window;
    const struct nccl_group *group = &transport->group[RK_GROUP_EXPERT_PARALLEL];
    *mapped = true;
    for (int64_t member = 0; member < group->count; member++) {
        void *address = NULL;
        const struct offer *offer = &offers[group->ranks[member]];
        if (member == group->index) {
            window->peers[member] = window->own;
        } else if (offer->valid &&
                   cudaIpcOpenMemHandle(&address, offer->handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess) {
            window->peers[member] = (char *)address;
        } else {
            cudaGetLastError();
            *mapped = false;
        }
    }
}

static void unmap_peers(struct rk_transport *transport) {
    struct nccl_window *window = &transport->window;
    const struct nccl_group *group = &transport->group[RK_GROUP_EXPERT_PARALLEL];
    for (int64_t member = 0; window->peers && member < group->count; member++) {
        if (window->peers[member] && member != group->index)
            cudaIpcCloseMemHandle(window->peers[member]);
        window->peers[member] = NULL;
    }
}

/* Offers the window to all and maps those of the group. *direct: every rank of the job could. */
static enum rk_status share(struct rk_transport *transport, bool *direct, struct rk_error *error) {
    struct nccl_window *window = &transport->window;
    struct offer mine, *offers = (struct offer *)calloc((size_t)transport->world, sizeof *offers);
    int32_t *all = (int32_t *)calloc((size_t)transport->world, sizeof *all);
    enum rk_status status = RK_OK;
    if (!offers || !all)
        status = rk_fail(error, RK_ERROR, "transport: out of memory");
    memset(&mine, 0, sizeof mine);
    mine.valid = cudaIpcGetMemHandle(&mine.handle, window->own) == cudaSuccess;
    if (status == RK_OK)
        status = rk_job_all_gather(transport->job, &mine, sizeof mine, offers, error);
    bool mapped = false;
    if (status == RK_OK)
        map_peers(transport, offers, &mapped);
    int32_t mine_mapped = mapped;
    if (status == RK_OK)
        status = rk_job_all_gather(transport->job, &mine_mapped, sizeof mine_mapped, all, error);
    *direct = status == RK_OK;
    for (int64_t rank = 0; rank < transport->world && status == RK_OK; rank++)
        *direct = *direct && all[rank];
    free(all);
    free(offers);
    return status;
}

/* Ranks of one host first try to reach one another's memory; when one cannot, all take NCCL's way. */
enum rk_status rk_nccl_window_open(struct rk_transport *transport, const struct rk_program *program,
                                   struct rk_error *error) {
    struct nccl_window *window = &transport->window;
    const struct nccl_group *group = &transport->group[RK_GROUP_EXPERT_PARALLEL];
    struct needs needs = needs_of(program);
    int64_t members = group->count > 0 ? group->count : 1;
    int64_t experts = 0;
    for (size_t i = 0; i < program->op_count; i++)
        if (program->ops[i].shape.kind == RK_OP_COMBINE)
            experts = largest(experts, program->ops[i].shape.dim[3]);
    if (members > (NCCL_CONTROL_BYTES - (int64_t)sizeof(struct nccl_control)) / 8)
        return rk_fail(error, RK_USAGE, "the experts are spread over %lld ranks, more than the exchange takes",
                       (long long)members);
    enum rk_status status = agree_on_needs(transport, &needs, error);
    if (status != RK_OK || !needs.exchanges)
        return status;
    NCCL_CUDA_TRY(cudaMalloc((void **)&window->tables, (size_t)(3 * experts + 2) * sizeof *window->tables),
                  "allocating GPU memory for the exchange");
    window->direct = true;
    window->bytes = NCCL_CONTROL_BYTES;
    if (members > 1)
        lay_out(window, &needs, members);
    status = allocate(window, &window->own, error);
    window->peers = (char **)calloc((size_t)members, sizeof *window->peers);
    if (status == RK_OK && !window->peers)
        status = rk_fail(error, RK_ERROR, "transport: out of memory");
    if (status == RK_OK && transport->world > 1)
        status = share(transport, &window->direct, error);
    if (status == RK_OK && !window->direct) {
        unmap_peers(transport);
        status = rk_job_barrier(transport->job, error);
        cudaFree(window->own);
        window->own = NULL;
        lay_out(window, &needs, members);
        if (status == RK_OK)
            status = allocate(window, &window->own, error);
        if (status == RK_OK)
            status = allocate(window, &window->stage, error);
    }
    if (status != RK_OK)
        return status;
    size_t bytes = (size_t)members * sizeof *window->peers;
    NCCL_CUDA_TRY(cudaMalloc((void **)&window->peers_on_device, bytes), "allocating GPU memory for the exchange");
    NCCL_CUDA_TRY(cudaMemcpy(window->peers_on_device, window->peers, bytes, cudaMemcpyHostToDevice),
                  "writing the peers' addresses");
    return RK_OK;
}

void rk_nccl_window_close(struct rk_transport *transport) {
    struct nccl_window *window = &transport->window;
    unmap_peers(transport);
    /* A window is freed once nobody maps it any more. */
    if (window->peers && window->direct && transport->world > 1 && !transport->failed)
        (void)rk_job_barrier(transport->job, NULL);
    cudaFree(window->own);
    cudaFree(window->stage);
    cudaFree(window->peers_on_device);
    cudaFree(window->tables);
    free(window->peers);
}

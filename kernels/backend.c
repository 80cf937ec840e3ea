/* The back ends by kind, and the one checked way to run a kernel. */
#include "kernels/gpu_module.h"
#include "kernels/kernels.h"

#include <inttypes.h>

/* What stands for the CUDA back end when its module cannot be loaded: it has no devices, and says why. */
static enum rk_status no_devices(int *count, struct rk_error *error) {
    const char *reason;
    (void)rk_gpu_module(&reason);
    (void)rk_fail(error, RK_HARDWARE_UNFIT, "%s", reason);
    *count = 0;
    return RK_OK;
}

static enum rk_status open_nothing(int ordinal, const char *spill_folder, struct rk_device **device,
                                   struct rk_error *error) {
    const char *reason;
    (void)ordinal;
    (void)spill_folder;
    (void)device;
    (void)rk_gpu_module(&reason);
    return rk_fail(error, RK_HARDWARE_UNFIT, "%s", reason);
}

const struct rk_backend *rk_backend_cuda(void) {
    static const struct rk_backend unloadable = {
        .kind = RK_BACKEND_CUDA, .name = "cuda", .device_count = no_devices, .device_open = open_nothing};
    const char *reason;
    const struct rk_gpu_module *module = rk_gpu_module(&reason);
    if (module != NULL)
        return module->backend;
    return reason[0] != '\0' ? &unloadable : NULL;
}

const struct rk_backend *rk_backend_of(enum rk_backend_kind kind) {
    return kind == RK_BACKEND_CUDA ? rk_backend_cuda() : rk_backend_cpu();
}

/* Whether a call with these flags needs the operand although other calls go without: the gains of a normalised
 * rotation, and the values from before it. */
static bool needed_by_flags(const struct rk_op_shape *shape, int operand) {
    bool normalises = (shape->flags & (RK_OP_FLAG_QK_NORM_HEAD | RK_OP_FLAG_QK_NORM_FULL)) != 0;
    return normalises && (shape->kind == RK_OP_ROPE_FORWARD || shape->kind == RK_OP_ROPE_BACKWARD) &&
           operand != rk_op_workspace_operand(shape->kind);
}

enum rk_status rk_kernel_run(const struct rk_backend *backend, struct rk_stream *stream, const struct rk_op_call *call,
                             struct rk_error *error) {
    const struct rk_op_shape *shape = call->shape;
    if (backend->op[shape->kind] == NULL) {
        return rk_fail(error, RK_ERROR, "%s: no kernel of the %s back end executes it", rk_op_name(shape->kind),
                       backend->name);
    }
    int workspace = rk_op_workspace_operand(shape->kind);
    for (int operand = 0; operand < rk_op_operand_count(shape->kind); operand++) {
        bool needed = !rk_op_operand_optional(shape->kind, operand) || needed_by_flags(shape, operand);
        int64_t bytes =
            operand == workspace ? rk_op_workspace_bytes(shape, backend->kind) : rk_op_operand_bytes(shape, operand);
        if (call->operand[operand] == NULL && bytes > 0 && (needed || operand == workspace)) {
            return rk_fail(error, RK_ERROR, "%s: operand %d (%s, %" PRId64 " bytes) is missing",
                           rk_op_name(shape->kind), operand, rk_op_operand_name(shape->kind, operand), bytes);
        }
    }
    return backend->op[shape->kind](stream, call, error);
}

/* A cost source from a hardware profile: rooflines of its specification with its efficiencies, and published times of a
 * block where the profile has them for the model.
 *
 * Seconds of
 *   products, attention   max(FLOPs / (peak · efficiency), bytes / (memory bandwidth · efficiency))
 *   other kernels         bytes / (memory bandwidth · efficiency)
 *   copies to and from the host   bytes / the link's rate with all GPUs copying, else its specification
 *   EP exchange           one message + remote bytes / (node link · efficiency); what leaves the host over one rail
 *   collectives           log2(ranks) messages + remote bytes / (node link · efficiency), or over one rail
 *   stage transfers       one message + bytes / (node link or rail · efficiency)
 * Peak: dense BF16 or FP32 by the op's type. An efficiency that the profile lacks counts as 1 and the price as the
 * specification's limit; a rate that it lacks is RK_UNCALIBRATED and named.
 *
 * Where the profile publishes the forward and the backward of a routed block of this model, all ops of such blocks are
 * scaled by one factor each so that the two visits take the published times: published for the shapes of the published
 * case, transferred for the same kinds at other sizes. */
#ifndef RK_MODEL_COST_HARDWARE_H
#define RK_MODEL_COST_HARDWARE_H

#include "model/hardware.h"

struct rk_cost_hardware;

/* architecture may be NULL: no published times then. sequence: of the runs to be priced. hardware is copied. Free with
 * rk_cost_hardware_free. */
enum rk_status rk_cost_hardware_make(const struct rk_hardware *hardware, const struct rk_architecture *architecture,
                                     int64_t sequence, struct rk_cost_hardware **costs, struct rk_error *error);
void rk_cost_hardware_free(struct rk_cost_hardware *costs);
struct rk_cost_source rk_cost_hardware_source(struct rk_cost_hardware *costs);

#endif

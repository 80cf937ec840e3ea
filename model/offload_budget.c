#include "model/offload_budget.h"

#include <math.h>

void rk_offload_budget(const struct rk_offload_demand *demand, const struct rk_offload_link *link,
                       struct rk_offload_budget *budget) {
    struct rk_offload_budget result;
    result.need_device_to_host = demand->activation_bytes / demand->forward_seconds;
    result.need_host_to_device = demand->activation_bytes / demand->backward_seconds;
    result.excess_device_to_host = result.need_device_to_host / link->device_to_host;
    result.excess_host_to_device = result.need_host_to_device / link->host_to_device;
    result.fraction = 1.0 / fmax(1.0, fmax(result.excess_device_to_host, result.excess_host_to_device));
    *budget = result;
}

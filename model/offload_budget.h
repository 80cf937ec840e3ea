/* How fast a host link must be for activations to leave and return in time (claim 4 of the Olmo-core MoE report).
 *
 * A block's kept activations, A bytes, must reach the host while the block's forward runs, t_f seconds, and come back
 * while its backward runs, t_b seconds. A fraction f of them fits when
 *     f <= min(1, B_d2h * t_f / A, B_h2d * t_b / A). */
#ifndef RK_MODEL_OFFLOAD_BUDGET_H
#define RK_MODEL_OFFLOAD_BUDGET_H

/* Bytes, seconds, bytes per second. The rates are those that the link sustains in the state it will be in: with every
 * GPU of the host copying, and with the other direction in use. */
struct rk_offload_demand {
    double activation_bytes;
    double forward_seconds;
    double backward_seconds;
};

struct rk_offload_link {
    double device_to_host;
    double host_to_device;
};

struct rk_offload_budget {
    double need_device_to_host;   /* A / t_f: bytes per second for f = 1 */
    double need_host_to_device;   /* A / t_b */
    double excess_device_to_host; /* need / have, the report's rho; > 1: does not fit */
    double excess_host_to_device;
    double fraction; /* largest f that fits, in [0, 1] */
};

/* All members of demand and link must be > 0; activation_bytes may be 0 (needs 0, fraction 1). */
void rk_offload_budget(const struct rk_offload_demand *demand, const struct rk_offload_link *link,
                       struct rk_offload_budget *budget);

#endif

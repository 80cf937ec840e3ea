/* How much routing the executor has room for, by back end: the one place that the kernels, the transports, `plan` and
 * `run` read. A lane of a warp holds every 32nd expert of a token, and one of its routes. Compiles as C and as CUDA
 * C++. rk_candidate_check_routing (model/candidate.h) compares a candidate with them. */
#ifndef RK_MODEL_ROUTING_LIMITS_H
#define RK_MODEL_ROUTING_LIMITS_H

enum {
    RK_CPU_EXPERTS_MAX = 4096,
    RK_CPU_ROUTES_MAX = 64, /* routes of a token */
    RK_CUDA_EXPERTS_MAX = 1024,
    RK_CUDA_ROUTES_MAX = 32,
    RK_CUDA_EXPERT_RANKS_MAX = 64, /* ranks of an EP-MP group */
    RK_ROUTES_MAX = RK_CPU_ROUTES_MAX /* on any back end */
};

#endif

/* Playing the step of a plan: its programs, its prices, and what the simulator makes of them. */
#ifndef RK_CLI_PLAY_H
#define RK_CLI_PLAY_H

#include "cli/pricing.h"
#include "model/plan.h"

struct rk_play_request {
    const char *hardware; /* NULL: what the plan was priced with, its calibration or the profile of its name */
    const char *backend;  /* of "this"; NULL: the plan's */
    const char *spill;    /* where CPU ranks offload to; NULL: /var/tmp */
    bool transfer;        /* of "this": also a calibration of other hardware */
    bool timeline;
};

struct rk_play {
    struct rk_pricing pricing;
    struct rk_program *programs[RK_STAGES_MAX]; /* owned */
    int32_t stage_count;
    struct rk_simulation simulation;
};

/* name is the plan's, for messages. *play must be zero-initialised; free it also after a failure. */
enum rk_status rk_play_plan(struct rk_cli *cli, const struct rk_plan *plan, const char *name,
                            const struct rk_play_request *request, struct rk_play *play);
void rk_play_free(struct rk_play *play);

#endif

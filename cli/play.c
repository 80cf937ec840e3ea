#include "cli/play.h"

static enum rk_status open_pricing(struct rk_cli *cli, const struct rk_plan *plan, const char *name,
                                   const struct rk_play_request *request, struct rk_pricing *pricing) {
    const char *backend = plan->candidate.backend == RK_BACKEND_CPU ? "cpu" : "cuda";
    bool calibrated = request->hardware == NULL && plan->calibration > 0;
    struct rk_pricing_request priced = {.hardware = request->hardware != NULL ? request->hardware
                                                    : calibrated              ? "this"
                                                                              : plan->machine,
                                        .backend = request->backend != NULL ? request->backend : backend,
                                        .spill = request->spill,
                                        .calibration = calibrated ? plan->calibration : 0,
                                        .transfer = request->transfer,
                                        .architecture = &plan->architecture,
                                        .sequence = plan->candidate.sequence,
                                        .ranks = rk_candidate_world(&plan->candidate)};
    enum rk_status status = rk_pricing_open(cli, &priced, pricing);
    if (status == RK_OK && pricing->machine.backend != plan->candidate.backend)
        rk_log_write(&cli->log, RK_LOG_WARNING, "%s is a plan for %s; it is played with the prices of %s", name,
                     backend, pricing->machine.name);
    return status;
}

enum rk_status rk_play_plan(struct rk_cli *cli, const struct rk_plan *plan, const char *name,
                            const struct rk_play_request *request, struct rk_play *play) {
    enum rk_status status = open_pricing(cli, plan, name, request, &play->pricing);
    for (int32_t s = 0; status == RK_OK && s < plan->candidate.pipeline; s++) {
        status = rk_program_lower(&plan->architecture, &plan->candidate, s, &play->programs[s], &cli->error);
        play->stage_count += status == RK_OK ? 1 : 0;
    }
    if (status == RK_OK)
        status = rk_simulate((const struct rk_program *const *)play->programs, &play->pricing.machine,
                             &play->pricing.costs, request->timeline, &play->simulation, &cli->error);
    return status;
}

void rk_play_free(struct rk_play *play) {
    for (int32_t s = 0; s < play->stage_count; s++)
        rk_program_free(play->programs[s]);
    rk_simulation_free(&play->simulation);
    rk_pricing_free(&play->pricing);
}

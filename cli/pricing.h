/* What a plan is priced with: this machine's calibration, or a hardware profile. */
#ifndef RK_CLI_PRICING_H
#define RK_CLI_PRICING_H

#include "cli/cli.h"
#include "kernels/kernels.h"
#include "model/cost_hardware.h"

struct rk_pricing_request {
    const char *hardware; /* "this", a profile's name ("b300") or its file */
    const char *backend;  /* of "this": "auto", "cpu", "cuda" */
    const char *spill;    /* where CPU ranks offload to; NULL: /var/tmp */
    int64_t calibration;  /* exactly this one; 0: what fits this machine */
    bool transfer;        /* where nothing fits, the newest calibration of another machine's hardware */
    const struct rk_architecture *architecture;
    int64_t sequence, ranks;
};

struct rk_pricing {
    struct rk_machine machine;
    struct rk_cost_source costs;
    int64_t calibration;         /* campaign that priced, 0 for a profile */
    struct rk_cost_table *table; /* owned, as the next */
    struct rk_cost_hardware *profile;
};

/* The back end that a name means here: "cpu", "cuda" (RK_HARDWARE_UNFIT without a GPU or CUDA in the program), or
 * "auto", the GPUs when there are any. */
enum rk_status rk_pricing_backend(const char *name, const struct rk_backend **backend, struct rk_error *error);

/* RK_UNCALIBRATED when the data base holds nothing for this machine. What a calibration or a profile warns of goes to
 * the log. Free with rk_pricing_free. */
enum rk_status rk_pricing_open(struct rk_cli *cli, const struct rk_pricing_request *request,
                               struct rk_pricing *pricing);
void rk_pricing_free(struct rk_pricing *pricing);

#endif

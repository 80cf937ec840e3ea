#include "cli/pricing.h"

#include "base/version.h"
#include "calibrate/identity.h"
#include "db/cost_source.h"

#include <string.h>
#include <unistd.h>

/* ---- this machine ---- */

enum rk_status rk_pricing_backend(const char *name, const struct rk_backend **backend, struct rk_error *error) {
    const struct rk_backend *cuda = rk_backend_cuda();
    int gpus = 0;
    struct rk_error reason = {0};
    if (cuda != NULL && strcmp(name, "cpu") != 0)
        cuda->device_count(&gpus, &reason);
    if (strcmp(name, "cuda") == 0 && gpus == 0)
        return rk_fail(error, RK_HARDWARE_UNFIT, "--backend cuda: %s",
                       cuda != NULL ? reason.text
                                    : "this program was built without CUDA; build it where nvcc is found");
    *backend = gpus > 0 ? cuda : rk_backend_cpu();
    return RK_OK;
}

static enum rk_status find_rows(struct rk_cli *cli, const struct rk_pricing_request *request,
                                const struct rk_identity *identity, const struct rk_backend *backend,
                                struct rk_match *match) {
    struct rk_match_request wanted = {.backend = backend->name,
                                      .campaign_id = request->calibration,
                                      .allow_other_hardware = request->transfer};
    memcpy(wanted.machine_key, identity->machine_key, sizeof wanted.machine_key);
    memcpy(wanted.fingerprint, identity->fingerprint, sizeof wanted.fingerprint);
    struct rk_db_options options = {.access = RK_DB_READ, .log = &cli->log};
    struct rk_db *db = NULL;
    enum rk_status status = rk_db_open(cli->database, &options, &db, &cli->error);
    if (status == RK_OK)
        status = rk_match_find(db, &wanted, match, &cli->error);
    rk_db_close(db);
    return status;
}

static enum rk_status price_this(struct rk_cli *cli, const struct rk_pricing_request *request,
                                 struct rk_pricing *pricing) {
    static struct rk_identity identity;
    const struct rk_backend *backend = rk_backend_cpu();
    struct rk_match match = {0};
    enum rk_status status = rk_pricing_backend(request->backend, &backend, &cli->error);
    if (status == RK_OK)
        status = rk_identity_read(backend, rk_version(), rk_revision(), &identity, &cli->error);
    if (status == RK_OK)
        status = find_rows(cli, request, &identity, backend, &match);
    if (status != RK_OK)
        return status;
    if (match.warning[0] != '\0')
        rk_log_write(&cli->log, RK_LOG_WARNING, "%s", match.warning);
    rk_identity_machine(&identity, backend, request->ranks, request->spill, &pricing->machine);
    rk_machine_figures(&match, &pricing->machine);
    pricing->calibration = match.campaign_id;
    status = rk_cost_source_make(&match, &pricing->table, &cli->error);
    rk_match_free(&match);
    if (status == RK_OK)
        pricing->costs = rk_cost_table_source(pricing->table);
    return status;
}

/* ---- profiles ---- */

/* A name stands for hardware/NAME.json; what has a slash or ends in .json is a file. */
static enum rk_status find_profile(struct rk_cli *cli, const char *hardware, char path[PATH_MAX]) {
    size_t length = strlen(hardware);
    bool file = strchr(hardware, '/') != NULL || (length > 5 && strcmp(hardware + length - 5, ".json") == 0);
    char name[256];
    if (file) {
        snprintf(path, PATH_MAX, "%s", hardware);
        return RK_OK;
    }
    snprintf(name, sizeof name, "hardware/%.200s.json", hardware);
    if (rk_cli_data_file(cli, name, path, &cli->error) != RK_OK)
        return rk_fail(
            &cli->error, RK_USAGE,
            "--hardware: there is no profile '%s' (hardware/%s.json); say 'this', a profile's name or its file",
            hardware, hardware);
    return RK_OK;
}

static enum rk_status price_profile(struct rk_cli *cli, const struct rk_pricing_request *request,
                                    struct rk_pricing *pricing) {
    static struct rk_hardware hardware;
    char path[PATH_MAX];
    enum rk_status status = find_profile(cli, request->hardware, path);
    if (status == RK_OK)
        status = rk_hardware_read_file(path, &hardware, &cli->error);
    if (status == RK_OK)
        status = rk_hardware_machine(&hardware, &pricing->machine, &cli->error);
    if (status == RK_OK)
        status =
            rk_cost_hardware_make(&hardware, request->architecture, request->sequence, &pricing->profile, &cli->error);
    if (status == RK_OK)
        pricing->costs = rk_cost_hardware_source(pricing->profile);
    return status;
}

enum rk_status rk_pricing_open(struct rk_cli *cli, const struct rk_pricing_request *request,
                               struct rk_pricing *pricing) {
    *pricing = (struct rk_pricing){0};
    enum rk_status status = strcmp(request->hardware, "this") == 0 ? price_this(cli, request, pricing)
                                                                   : price_profile(cli, request, pricing);
    if (status != RK_OK)
        rk_pricing_free(pricing);
    return status;
}

void rk_pricing_free(struct rk_pricing *pricing) {
    rk_cost_table_free(pricing->table);
    rk_cost_hardware_free(pricing->profile);
    *pricing = (struct rk_pricing){0};
}

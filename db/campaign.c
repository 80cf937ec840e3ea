/* Campaigns: their life, their ranks, their telemetry. */
#include "db/calibration.h"
#include "db/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static const char *const state_names[] = {"running", "finished", "interrupted"};

const char *rk_campaign_state_name(enum rk_campaign_state state) {
    return state_names[state];
}

static enum rk_campaign_state state_from_name(const char *name) {
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, state_names[i]) == 0) {
            return (enum rk_campaign_state)i;
        }
    }
    return RK_CAMPAIGN_INTERRUPTED;
}

enum rk_status rk_uuid_make(char *uuid, struct rk_error *error) {
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
        return rk_fail(error, RK_ERROR, "no random numbers from the system: %s", strerror(errno));
    }
    bytes[6] = (unsigned char)((bytes[6] & 0x0f) | 0x40);
    bytes[8] = (unsigned char)((bytes[8] & 0x3f) | 0x80);
    size_t length = 0;
    for (size_t i = 0; i < sizeof(bytes); i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) {
            uuid[length++] = '-';
        }
        length += (size_t)snprintf(uuid + length, RK_UUID_SIZE - length, "%02x", bytes[i]);
    }
    return RK_OK;
}

enum rk_status rk_begin_on_machine(struct rk_db *db, const struct rk_machine_identity *machine, char *uuid,
                                   struct rk_machine_ids *ids, struct rk_error *error) {
    enum rk_status status = uuid[0] == '\0' ? rk_uuid_make(uuid, error) : RK_OK;
    if (status == RK_OK) {
        status = rk_db_begin(db, error);
    }
    if (status != RK_OK) {
        return status;
    }
    status = rk_machine_store(db, machine, ids, error);
    if (status != RK_OK) {
        rk_db_rollback(db);
    }
    return status;
}

static enum rk_status insert_campaign(struct rk_db *db, const struct rk_campaign_row *row, int64_t *id,
                                      struct rk_error *error) {
    static const char sql[] =
        "INSERT INTO campaign (uuid, origin, tool, state, mode, backend, machine_key, fingerprint, host_id, "
        "software_id,"
        " topology_id, git_revision, command, seed, world_size, forced_unfit, unfit_reason, planned_cases, started_us)"
        " VALUES (?, ?, ?, 'running', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    struct rk_query query;
    enum rk_status status = rk_query_open(db, sql, "beginning a campaign", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_text(&query, row->uuid);
    rk_bind_text(&query, row->imported ? "imported" : "measured");
    rk_bind_text(&query, row->tool);
    rk_bind_text(&query, row->mode);
    rk_bind_text(&query, row->backend);
    rk_bind_text(&query, row->machine_key);
    rk_bind_text(&query, row->fingerprint);
    rk_bind_integer(&query, row->host_id);
    rk_bind_integer(&query, row->software_id);
    rk_bind_integer(&query, row->topology_id);
    rk_bind_text(&query, row->git_revision);
    rk_bind_text(&query, row->command);
    rk_bind_integer(&query, row->seed);
    rk_bind_integer(&query, row->world_size);
    rk_bind_integer(&query, row->forced_unfit);
    rk_bind_text(&query, row->unfit_reason);
    rk_bind_known(&query, row->planned_cases);
    rk_bind_integer(&query, row->started_us);
    return rk_query_insert(&query, id, error);
}

enum rk_status rk_campaign_begin(struct rk_db *db, const struct rk_machine_identity *machine,
                                 const struct rk_campaign_row *row, int64_t *id, struct rk_error *error) {
    struct rk_campaign_row campaign = *row;
    struct rk_machine_ids ids;
    int64_t inserted = 0;
    rk_machine_keys(machine, campaign.machine_key, campaign.fingerprint);
    enum rk_status status = rk_begin_on_machine(db, machine, campaign.uuid, &ids, error);
    if (status != RK_OK) {
        return status;
    }
    campaign.host_id = ids.host;
    campaign.software_id = ids.software;
    campaign.topology_id = ids.topology;
    status = rk_db_end(db, insert_campaign(db, &campaign, &inserted, error), error);
    if (status == RK_OK) {
        *id = inserted;
    }
    return status;
}

/* Changes the state of one campaign; a finished or unknown one is refused by name. */
static enum rk_status change_state(struct rk_db *db, int64_t id, enum rk_campaign_state state, int64_t ended_us,
                                   struct rk_error *error) {
    struct rk_query query;
    struct rk_campaign_row row;
    enum rk_status status = rk_campaign_get(db, id, &row, error);
    if (status != RK_OK) {
        return status;
    }
    if (row.state == RK_CAMPAIGN_FINISHED) {
        return rk_fail(error, RK_USAGE, "%s: campaign %" PRId64 " is finished and cannot change; begin a new one",
                       db->path, id);
    }
    status = rk_db_require_writable(db, error);
    if (status == RK_OK) {
        status = rk_query_open(db, "UPDATE campaign SET state = ?, ended_us = ? WHERE id = ?",
                               "changing the state of a campaign", &query, error);
    }
    if (status != RK_OK) {
        return status;
    }
    rk_bind_text(&query, state_names[state]);
    rk_bind_known(&query, ended_us);
    rk_bind_integer(&query, id);
    return rk_query_insert(&query, NULL, error);
}

enum rk_status rk_campaign_end(struct rk_db *db, int64_t id, enum rk_campaign_state state, int64_t ended_us,
                               struct rk_error *error) {
    return change_state(db, id, state, ended_us, error);
}

enum rk_status rk_campaign_resume(struct rk_db *db, int64_t id, struct rk_error *error) {
    return change_state(db, id, RK_CAMPAIGN_RUNNING, -1, error);
}

#define CAMPAIGN_COLUMNS                                                                                               \
    "id, uuid, origin = 'imported', tool, state, mode, backend, machine_key, fingerprint, host_id, software_id,"       \
    " topology_id, git_revision, command, seed, world_size, forced_unfit, unfit_reason, planned_cases, started_us,"    \
    " ended_us, (SELECT count(*) FROM measurement WHERE campaign_id = campaign.id AND status = 'ok')"

static bool read_campaign(struct rk_query *query, void *place) {
    struct rk_campaign_row *row = place;
    char state[16];
    row->id = rk_read_integer(query);
    rk_read_text(query, row->uuid, sizeof(row->uuid));
    row->imported = rk_read_integer(query) != 0;
    rk_read_text(query, row->tool, sizeof(row->tool));
    rk_read_text(query, state, sizeof(state));
    row->state = state_from_name(state);
    rk_read_text(query, row->mode, sizeof(row->mode));
    rk_read_text(query, row->backend, sizeof(row->backend));
    rk_read_text(query, row->machine_key, sizeof(row->machine_key));
    rk_read_text(query, row->fingerprint, sizeof(row->fingerprint));
    row->host_id = rk_read_integer(query);
    row->software_id = rk_read_integer(query);
    row->topology_id = rk_read_integer(query);
    rk_read_text(query, row->git_revision, sizeof(row->git_revision));
    rk_read_text(query, row->command, sizeof(row->command));
    row->seed = rk_read_integer(query);
    row->world_size = rk_read_integer(query);
    row->forced_unfit = rk_read_integer(query) != 0;
    rk_read_text(query, row->unfit_reason, sizeof(row->unfit_reason));
    row->planned_cases = rk_read_known(query);
    row->started_us = rk_read_integer(query);
    row->ended_us = rk_read_known(query);
    row->measurements = rk_read_integer(query);
    return true;
}

enum rk_status rk_campaign_get(struct rk_db *db, int64_t id, struct rk_campaign_row *row, struct rk_error *error) {
    struct rk_query query;
    enum rk_status status = rk_query_open(db, "SELECT " CAMPAIGN_COLUMNS " FROM campaign WHERE id = ?",
                                          "reading a campaign", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, id);
    status = rk_query_only(&query, "campaign", id, error);
    if (status == RK_OK) {
        read_campaign(&query, row);
        rk_query_close(&query);
    }
    return status;
}

enum rk_status rk_campaign_list(struct rk_db *db, struct rk_campaign_row **rows, size_t *count,
                                struct rk_error *error) {
    struct rk_query query;
    void *found = NULL;
    enum rk_status status =
        rk_query_open(db, "SELECT " CAMPAIGN_COLUMNS " FROM campaign ORDER BY started_us DESC, id DESC",
                      "listing campaigns", &query, error);
    if (status != RK_OK) {
        return status;
    }
    status = rk_query_list(&query, sizeof(**rows), read_campaign, &found, count, error);
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

enum rk_status rk_campaign_unfinished(struct rk_db *db, const char *fingerprint, const char *mode, const char *backend,
                                      int64_t *id, struct rk_error *error) {
    struct rk_query query;
    enum rk_status status =
        rk_query_open(db,
                      "SELECT id FROM campaign WHERE fingerprint = ? AND mode = ? AND backend = ? AND"
                      " state <> 'finished' AND origin = 'measured' ORDER BY started_us DESC, id DESC LIMIT 1",
                      "looking for an unfinished campaign", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_text(&query, fingerprint);
    rk_bind_text(&query, mode);
    rk_bind_text(&query, backend);
    return rk_query_find(&query, id, error);
}

enum rk_status rk_campaign_count_ranks(struct rk_db *db, int64_t campaign_id, int64_t process, int64_t *count,
                                       struct rk_error *error) {
    static const char sql[] = "SELECT count(*) FROM campaign_rank WHERE campaign_id = ? AND process = ?";
    struct rk_query query;
    enum rk_status status = rk_query_open(db, sql, "counting the ranks of a campaign", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, campaign_id);
    rk_bind_integer(&query, process);
    return rk_query_find(&query, count, error);
}

enum rk_status rk_campaign_add_rank(struct rk_db *db, const struct rk_campaign_rank_row *row, struct rk_error *error) {
    static const char sql[] = "INSERT INTO campaign_rank (campaign_id, process, rank, host_id, device, cpu_list,"
                              " numa_node, clock_hz, power_watts) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
    struct rk_query query;
    enum rk_status status = rk_query_open(db, sql, "storing a rank of a campaign", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, row->campaign_id);
    rk_bind_integer(&query, row->process);
    rk_bind_integer(&query, row->rank);
    rk_bind_integer(&query, row->host_id);
    rk_bind_text(&query, row->device);
    rk_bind_text(&query, row->cpu_list);
    rk_bind_known(&query, row->numa_node);
    rk_bind_real(&query, row->clock_hz);
    rk_bind_real(&query, row->power_watts);
    return rk_query_insert(&query, NULL, error);
}

enum rk_status rk_telemetry_store(struct rk_db *db, const struct rk_telemetry_row *row, struct rk_error *error) {
    static const char sql[] =
        "INSERT INTO telemetry (campaign_id, rank, time_us, clock_hz, memory_clock_hz, power_watts,"
        " temperature_celsius, throttle_reasons) VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    struct rk_query query;
    enum rk_status status = rk_query_open(db, sql, "storing telemetry", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, row->campaign_id);
    rk_bind_integer(&query, row->rank);
    rk_bind_integer(&query, row->time_us);
    rk_bind_real(&query, row->clock_hz);
    rk_bind_real(&query, row->memory_clock_hz);
    rk_bind_real(&query, row->power_watts);
    rk_bind_real(&query, row->temperature_celsius);
    rk_bind_text(&query, row->throttle_reasons);
    return rk_query_insert(&query, NULL, error);
}

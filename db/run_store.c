#include "db/run_store.h"
#include "db/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const state_names[] = {"running", "finished", "failed", "interrupted"};

const char *rk_run_state_name(enum rk_run_state state) {
    return state_names[state];
}

static enum rk_run_state state_from_name(const char *name) {
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, state_names[i]) == 0) {
            return (enum rk_run_state)i;
        }
    }
    return RK_RUN_FAILED;
}

static enum rk_status insert_run(struct rk_db *db, const struct rk_run_row *row, int64_t *id, struct rk_error *error) {
    static const char sql[] =
        "INSERT INTO run (uuid, plan_id, host_id, software_id, topology_id, fingerprint, state, message, command,"
        " git_revision, data, routing, seed, world_size, forced_unfit, clock_hz, power_watts, started_us)"
        " VALUES (?, ?, ?, ?, ?, ?, 'running', '', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    struct rk_query query;
    enum rk_status status = rk_query_open(db, sql, "beginning a run", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_text(&query, row->uuid);
    rk_bind_integer(&query, row->plan_id);
    rk_bind_integer(&query, row->host_id);
    rk_bind_integer(&query, row->software_id);
    rk_bind_integer(&query, row->topology_id);
    rk_bind_text(&query, row->fingerprint);
    rk_bind_text(&query, row->command);
    rk_bind_text(&query, row->git_revision);
    rk_bind_text(&query, row->data);
    rk_bind_text(&query, row->routing);
    rk_bind_integer(&query, row->seed);
    rk_bind_integer(&query, row->world_size);
    rk_bind_integer(&query, row->forced_unfit);
    rk_bind_real(&query, row->clock_hz);
    rk_bind_real(&query, row->power_watts);
    rk_bind_integer(&query, row->started_us);
    return rk_query_insert(&query, id, error);
}

enum rk_status rk_run_begin(struct rk_db *db, const struct rk_machine_identity *machine, const struct rk_run_row *row,
                            int64_t *id, struct rk_error *error) {
    struct rk_run_row run = *row;
    struct rk_machine_ids ids;
    char machine_key[RK_MACHINE_KEY_SIZE];
    int64_t inserted = 0;
    rk_machine_keys(machine, machine_key, run.fingerprint);
    enum rk_status status = rk_begin_on_machine(db, machine, run.uuid, &ids, error);
    if (status != RK_OK) {
        return status;
    }
    run.host_id = ids.host;
    run.software_id = ids.software;
    run.topology_id = ids.topology;
    status = rk_db_end(db, insert_run(db, &run, &inserted, error), error);
    if (status == RK_OK) {
        *id = inserted;
    }
    return status;
}

enum rk_status rk_run_end(struct rk_db *db, int64_t id, enum rk_run_state state, const char *message, int64_t ended_us,
                          struct rk_error *error) {
    struct rk_run_row row;
    struct rk_query query;
    char text[sizeof(row.message)];
    enum rk_status status = rk_run_get(db, id, &row, error);
    if (status != RK_OK) {
        return status;
    }
    if (row.state != RK_RUN_RUNNING) {
        return rk_fail(error, RK_USAGE, "%s: run %" PRId64 " has ended already (%s)", db->path, id,
                       state_names[row.state]);
    }
    status = rk_query_open(db, "UPDATE run SET state = ?, message = ?, ended_us = ? WHERE id = ?", "ending a run",
                           &query, error);
    if (status != RK_OK) {
        return status;
    }
    snprintf(text, sizeof(text), "%s", message == NULL ? "" : message);
    rk_bind_text(&query, state_names[state]);
    rk_bind_text(&query, text);
    rk_bind_integer(&query, ended_us);
    rk_bind_integer(&query, id);
    return rk_query_insert(&query, NULL, error);
}

#define RUN_COLUMNS                                                                                                    \
    "id, uuid, plan_id, host_id, software_id, topology_id, fingerprint, state, message, command, git_revision, data,"  \
    " routing, seed, world_size, forced_unfit, clock_hz, power_watts, started_us, ended_us,"                           \
    " (SELECT count(*) FROM run_step WHERE run_id = run.id)"

static bool read_run(struct rk_query *query, void *place) {
    struct rk_run_row *row = place;
    char state[16];
    row->id = rk_read_integer(query);
    rk_read_text(query, row->uuid, sizeof(row->uuid));
    row->plan_id = rk_read_integer(query);
    row->host_id = rk_read_integer(query);
    row->software_id = rk_read_integer(query);
    row->topology_id = rk_read_integer(query);
    rk_read_text(query, row->fingerprint, sizeof(row->fingerprint));
    rk_read_text(query, state, sizeof(state));
    row->state = state_from_name(state);
    rk_read_text(query, row->message, sizeof(row->message));
    rk_read_text(query, row->command, sizeof(row->command));
    rk_read_text(query, row->git_revision, sizeof(row->git_revision));
    rk_read_text(query, row->data, sizeof(row->data));
    rk_read_text(query, row->routing, sizeof(row->routing));
    row->seed = rk_read_integer(query);
    row->world_size = rk_read_integer(query);
    row->forced_unfit = rk_read_integer(query) != 0;
    row->clock_hz = rk_read_real(query);
    row->power_watts = rk_read_real(query);
    row->started_us = rk_read_integer(query);
    row->ended_us = rk_read_known(query);
    row->steps = rk_read_integer(query);
    return true;
}

enum rk_status rk_run_get(struct rk_db *db, int64_t id, struct rk_run_row *row, struct rk_error *error) {
    struct rk_query query;
    enum rk_status status =
        rk_query_open(db, "SELECT " RUN_COLUMNS " FROM run WHERE id = ?", "reading a run", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, id);
    status = rk_query_only(&query, "run", id, error);
    if (status == RK_OK) {
        read_run(&query, row);
        rk_query_close(&query);
    }
    return status;
}

enum rk_status rk_run_list(struct rk_db *db, struct rk_run_row **rows, size_t *count, struct rk_error *error) {
    struct rk_query query;
    void *found = NULL;
    enum rk_status status = rk_query_open(db, "SELECT " RUN_COLUMNS " FROM run ORDER BY started_us DESC, id DESC",
                                          "listing runs", &query, error);
    if (status == RK_OK) {
        status = rk_query_list(&query, sizeof(**rows), read_run, &found, count, error);
    }
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

enum rk_status rk_run_newest(struct rk_db *db, int64_t plan_id, int64_t *id, struct rk_error *error) {
    struct rk_query query;
    int64_t found = 0;
    enum rk_status status = rk_query_open(db,
                                          "SELECT id FROM run WHERE plan_id = coalesce(?, plan_id)"
                                          " AND EXISTS (SELECT 1 FROM run_step WHERE run_id = run.id)"
                                          " ORDER BY started_us DESC, id DESC LIMIT 1",
                                          "looking for the newest run", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_reference(&query, plan_id);
    status = rk_query_find(&query, &found, error);
    if (status == RK_OK && found == 0) {
        status = rk_fail(error, RK_USAGE, "%s: no run with a step is stored yet; run `reckon run PLAN.json` first", db->path);
    }
    if (status == RK_OK) {
        *id = found;
    }
    return status;
}

/* Stores count rows of a run with one statement, all or nothing. bind binds row i after the run's number. */
static enum rk_status add_rows(struct rk_db *db, const char *sql, const char *action, int64_t run_id, const void *rows,
                               size_t count, void (*bind)(struct rk_query *query, const void *rows, size_t i),
                               struct rk_error *error) {
    struct rk_query query;
    enum rk_status status = rk_db_begin(db, error);
    if (status != RK_OK) {
        return status;
    }
    status = rk_query_open(db, sql, action, &query, error);
    if (status != RK_OK) {
        return rk_db_end(db, status, error);
    }
    for (size_t i = 0; status == RK_OK && i < count; i++) {
        rk_query_again(&query);
        rk_bind_integer(&query, run_id);
        bind(&query, rows, i);
        status = rk_query_run(&query, error);
    }
    rk_query_close(&query);
    return rk_db_end(db, status, error);
}

static void bind_step(struct rk_query *query, const void *rows, size_t i) {
    const struct rk_step_row *row = (const struct rk_step_row *)rows + i;
    rk_bind_integer(query, row->step);
    rk_bind_integer(query, row->traced);
    rk_bind_real(query, row->seconds);
    rk_bind_real(query, row->host_submit_seconds);
    rk_bind_integer(query, row->tokens);
    rk_bind_real(query, row->loss);
    rk_bind_real(query, row->balance_loss);
    rk_bind_real(query, row->z_loss);
    rk_bind_real(query, row->grad_norm);
    rk_bind_real(query, row->learning_rate);
    rk_bind_integer(query, row->dropped_routes);
    rk_bind_integer(query, row->routes);
    rk_bind_real(query, row->requested_load);
    rk_bind_real(query, row->kept_load);
    rk_bind_real(query, row->requested_expert_load);
    rk_bind_real(query, row->kept_expert_load);
    rk_bind_real(query, row->remote_bytes);
    rk_bind_real(query, row->local_bytes);
    rk_bind_real(query, row->clock_hz);
    rk_bind_real(query, row->power_watts);
}

enum rk_status rk_run_add_steps(struct rk_db *db, int64_t run_id, const struct rk_step_row *rows, size_t count,
                                struct rk_error *error) {
    static const char sql[] =
        "INSERT INTO run_step (run_id, step, traced, seconds, host_submit_seconds, tokens, loss, balance_loss, z_loss,"
        " grad_norm, learning_rate, dropped_routes, routes, requested_load, kept_load, requested_expert_load,"
        " kept_expert_load, remote_bytes, local_bytes, clock_hz, power_watts)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    return add_rows(db, sql, "storing steps", run_id, rows, count, bind_step, error);
}

static bool read_step(struct rk_query *query, void *place) {
    struct rk_step_row *row = place;
    row->step = rk_read_integer(query);
    row->traced = rk_read_integer(query) != 0;
    row->seconds = rk_read_real(query);
    row->host_submit_seconds = rk_read_real(query);
    row->tokens = rk_read_integer(query);
    row->loss = rk_read_real(query);
    row->balance_loss = rk_read_real(query);
    row->z_loss = rk_read_real(query);
    row->grad_norm = rk_read_real(query);
    row->learning_rate = rk_read_real(query);
    row->dropped_routes = rk_read_integer(query);
    row->routes = rk_read_integer(query);
    row->requested_load = rk_read_real(query);
    row->kept_load = rk_read_real(query);
    row->requested_expert_load = rk_read_real(query);
    row->kept_expert_load = rk_read_real(query);
    row->remote_bytes = rk_read_real(query);
    row->local_bytes = rk_read_real(query);
    row->clock_hz = rk_read_real(query);
    row->power_watts = rk_read_real(query);
    return true;
}

enum rk_status rk_run_steps(struct rk_db *db, int64_t run_id, struct rk_step_row **rows, size_t *count,
                            struct rk_error *error) {
    static const char sql[] =
        "SELECT step, traced, seconds, host_submit_seconds, tokens, loss, balance_loss, z_loss, grad_norm,"
        " learning_rate, dropped_routes, routes, requested_load, kept_load, requested_expert_load, kept_expert_load,"
        " remote_bytes, local_bytes, clock_hz, power_watts FROM run_step WHERE run_id = ? ORDER BY step";
    void *found = NULL;
    enum rk_status status =
        rk_query_children(db, sql, "listing steps", run_id, sizeof(**rows), read_step, &found, count, error);
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

static void bind_op(struct rk_query *query, const void *rows, size_t i) {
    const struct rk_run_op_row *row = (const struct rk_run_op_row *)rows + i;
    rk_bind_integer(query, row->rank);
    rk_bind_integer(query, row->stage);
    rk_bind_text(query, row->kind);
    rk_bind_text(query, row->shape);
    rk_bind_text(query, row->phase);
    rk_bind_text(query, row->stream);
    rk_bind_integer(query, row->count);
    rk_bind_real(query, row->median_seconds);
    rk_bind_real(query, row->total_seconds);
    rk_bind_real(query, row->wait_seconds);
}

enum rk_status rk_run_add_ops(struct rk_db *db, int64_t run_id, const struct rk_run_op_row *rows, size_t count,
                              struct rk_error *error) {
    static const char sql[] =
        "INSERT INTO run_op (run_id, ordinal, rank, stage, kind, shape, phase, stream, count, median_seconds,"
        " total_seconds, wait_seconds) VALUES (?1,"
        " (SELECT coalesce(max(ordinal) + 1, 0) FROM run_op WHERE run_id = ?1), ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, "
        "?11)";
    return add_rows(db, sql, "storing the ops of a run", run_id, rows, count, bind_op, error);
}

static bool read_op(struct rk_query *query, void *place) {
    struct rk_run_op_row *row = place;
    row->rank = rk_read_integer(query);
    row->stage = rk_read_integer(query);
    rk_read_text(query, row->kind, sizeof(row->kind));
    rk_read_text(query, row->shape, sizeof(row->shape));
    rk_read_text(query, row->phase, sizeof(row->phase));
    rk_read_text(query, row->stream, sizeof(row->stream));
    row->count = rk_read_integer(query);
    row->median_seconds = rk_read_real(query);
    row->total_seconds = rk_read_real(query);
    row->wait_seconds = rk_read_real(query);
    return true;
}

enum rk_status rk_run_ops(struct rk_db *db, int64_t run_id, struct rk_run_op_row **rows, size_t *count,
                          struct rk_error *error) {
    static const char sql[] = "SELECT rank, stage, kind, shape, phase, stream, count, median_seconds, total_seconds,"
                              " wait_seconds FROM run_op WHERE run_id = ? ORDER BY ordinal";
    void *found = NULL;
    enum rk_status status =
        rk_query_children(db, sql, "listing the ops of a run", run_id, sizeof(**rows), read_op, &found, count, error);
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

static void bind_memory(struct rk_query *query, const void *rows, size_t i) {
    const struct rk_run_memory_row *row = (const struct rk_run_memory_row *)rows + i;
    rk_bind_integer(query, row->rank);
    rk_bind_text(query, row->owner);
    rk_bind_text(query, row->space);
    rk_bind_known(query, row->predicted_bytes);
    rk_bind_known(query, row->allocated_bytes);
}

enum rk_status rk_run_add_memory(struct rk_db *db, int64_t run_id, const struct rk_run_memory_row *rows, size_t count,
                                 struct rk_error *error) {
    static const char sql[] = "INSERT INTO run_memory (run_id, rank, owner, space, predicted_bytes, allocated_bytes)"
                              " VALUES (?, ?, ?, ?, ?, ?)";
    return add_rows(db, sql, "storing the memory of a run", run_id, rows, count, bind_memory, error);
}

static bool read_memory(struct rk_query *query, void *place) {
    struct rk_run_memory_row *row = place;
    row->rank = rk_read_integer(query);
    rk_read_text(query, row->owner, sizeof(row->owner));
    rk_read_text(query, row->space, sizeof(row->space));
    row->predicted_bytes = rk_read_known(query);
    row->allocated_bytes = rk_read_known(query);
    return true;
}

enum rk_status rk_run_memory(struct rk_db *db, int64_t run_id, struct rk_run_memory_row **rows, size_t *count,
                             struct rk_error *error) {
    static const char sql[] = "SELECT rank, owner, space, predicted_bytes, allocated_bytes FROM run_memory"
                              " WHERE run_id = ? ORDER BY rank, space, owner";
    void *found = NULL;
    enum rk_status status = rk_query_children(db, sql, "listing the memory of a run", run_id, sizeof(**rows),
                                              read_memory, &found, count, error);
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

/* What add_rows passes through for comparisons: the rows with the series they belong to. */
struct series {
    const struct rk_comparison_row *rows;
    int64_t number, created_us;
};

static void bind_comparison(struct rk_query *query, const void *rows, size_t i) {
    const struct series *series = rows;
    const struct rk_comparison_row *row = &series->rows[i];
    rk_bind_integer(query, series->number);
    rk_bind_integer(query, (int64_t)i);
    rk_bind_integer(query, series->created_us);
    rk_bind_text(query, row->level);
    rk_bind_text(query, row->name);
    rk_bind_integer(query, row->stage);
    rk_bind_text(query, row->unit);
    rk_bind_real(query, row->predicted);
    rk_bind_real(query, row->measured);
    rk_bind_real(query, row->relative_uncertainty);
    rk_bind_text(query, row->origin);
    rk_bind_real(query, row->tolerance);
    rk_bind_integer(query, row->within);
    rk_bind_text(query, row->note);
}

static enum rk_status next_series(struct rk_db *db, int64_t run_id, int64_t *number, struct rk_error *error) {
    struct rk_query query;
    enum rk_status status = rk_query_open(db, "SELECT coalesce(max(series) + 1, 0) FROM comparison WHERE run_id = ?",
                                          "numbering a comparison", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, run_id);
    return rk_query_find(&query, number, error);
}

enum rk_status rk_comparison_store(struct rk_db *db, int64_t run_id, int64_t created_us,
                                   const struct rk_comparison_row *rows, size_t count, struct rk_error *error) {
    static const char sql[] =
        "INSERT INTO comparison (run_id, series, ordinal, created_us, level, name, stage, unit, predicted, measured,"
        " relative_uncertainty, origin, tolerance, within, note) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    struct series series = {rows, 0, created_us};
    enum rk_status status = rk_db_begin(db, error);
    if (status != RK_OK) {
        return status;
    }
    status = next_series(db, run_id, &series.number, error);
    if (status == RK_OK) {
        status = add_rows(db, sql, "storing a comparison", run_id, &series, count, bind_comparison, error);
    }
    return rk_db_end(db, status, error);
}

static bool read_comparison(struct rk_query *query, void *place) {
    struct rk_comparison_row *row = place;
    rk_read_text(query, row->level, sizeof(row->level));
    rk_read_text(query, row->name, sizeof(row->name));
    row->stage = rk_read_integer(query);
    rk_read_text(query, row->unit, sizeof(row->unit));
    row->predicted = rk_read_real(query);
    row->measured = rk_read_real(query);
    row->relative_uncertainty = rk_read_real(query);
    rk_read_text(query, row->origin, sizeof(row->origin));
    row->tolerance = rk_read_real(query);
    row->within = rk_read_integer(query) != 0;
    rk_read_text(query, row->note, sizeof(row->note));
    return true;
}

enum rk_status rk_comparison_list(struct rk_db *db, int64_t run_id, struct rk_comparison_row **rows, size_t *count,
                                  struct rk_error *error) {
    static const char sql[] =
        "SELECT level, name, stage, unit, predicted, measured, relative_uncertainty, origin, tolerance, within, note"
        " FROM comparison WHERE run_id = ?1 AND series = (SELECT max(series) FROM comparison WHERE run_id = ?1)"
        " ORDER BY ordinal";
    void *found = NULL;
    enum rk_status status = rk_query_children(db, sql, "listing a comparison", run_id, sizeof(**rows), read_comparison,
                                              &found, count, error);
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

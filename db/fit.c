/* Fits: what was drawn through the measurements, and how well it foretells those it has not seen. */
#include "db/calibration.h"
#include "db/internal.h"

static enum rk_status insert_fit(struct rk_db *db, const struct rk_fit_row *row, int64_t held_out, int64_t train,
                                 int64_t *id, struct rk_error *error) {
    static const char sql[] = "INSERT INTO fit (campaign_id, op, type, group_kind, group_size, form, parameters,"
                              " train_count, held_out_count, leave_one_out_median, leave_one_out_p90, held_out_median,"
                              " held_out_p90) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    struct rk_query query;
    enum rk_status status = rk_query_open(db, sql, "storing a fit", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, row->campaign_id);
    rk_bind_text(&query, row->op);
    rk_bind_text(&query, row->type);
    rk_bind_text(&query, row->group_kind);
    rk_bind_integer(&query, row->group_size);
    rk_bind_text(&query, row->form);
    rk_bind_text(&query, row->parameters);
    rk_bind_integer(&query, train);
    rk_bind_integer(&query, held_out);
    rk_bind_real(&query, row->leave_one_out_median);
    rk_bind_real(&query, row->leave_one_out_p90);
    rk_bind_real(&query, row->held_out_median);
    rk_bind_real(&query, row->held_out_p90);
    return rk_query_insert(&query, id, error);
}

static enum rk_status insert_input(struct rk_db *db, int64_t fit_id, const struct rk_fit_input *input,
                                   struct rk_error *error) {
    struct rk_query query;
    enum rk_status status = rk_query_open(db, "INSERT INTO fit_input (fit_id, measurement_id, role) VALUES (?, ?, ?)",
                                          "storing a fit's input", &query, error);
    if (status != RK_OK) {
        return status;
    }
    rk_bind_integer(&query, fit_id);
    rk_bind_integer(&query, input->measurement_id);
    rk_bind_text(&query, input->held_out ? "held out" : "train");
    return rk_query_insert(&query, NULL, error);
}

enum rk_status rk_fit_store(struct rk_db *db, const struct rk_fit_row *row, const struct rk_fit_input *inputs,
                            size_t input_count, int64_t *id, struct rk_error *error) {
    int64_t held_out = 0;
    for (size_t i = 0; i < input_count; i++) {
        held_out += inputs[i].held_out ? 1 : 0;
    }
    int64_t inserted = 0;
    enum rk_status status = rk_db_begin(db, error);
    if (status != RK_OK) {
        return status;
    }
    status = insert_fit(db, row, held_out, (int64_t)input_count - held_out, &inserted, error);
    for (size_t i = 0; status == RK_OK && i < input_count; i++) {
        status = insert_input(db, inserted, &inputs[i], error);
    }
    status = rk_db_end(db, status, error);
    if (status == RK_OK && id != NULL) {
        *id = inserted;
    }
    return status;
}

static bool read_fit(struct rk_query *query, void *place) {
    struct rk_fit_row *row = place;
    row->id = rk_read_integer(query);
    row->campaign_id = rk_read_integer(query);
    rk_read_text(query, row->op, sizeof(row->op));
    rk_read_text(query, row->type, sizeof(row->type));
    rk_read_text(query, row->group_kind, sizeof(row->group_kind));
    row->group_size = rk_read_integer(query);
    rk_read_text(query, row->form, sizeof(row->form));
    rk_read_text(query, row->parameters, sizeof(row->parameters));
    row->train_count = rk_read_integer(query);
    row->held_out_count = rk_read_integer(query);
    row->leave_one_out_median = rk_read_real(query);
    row->leave_one_out_p90 = rk_read_real(query);
    row->held_out_median = rk_read_real(query);
    row->held_out_p90 = rk_read_real(query);
    return true;
}

enum rk_status rk_fit_list(struct rk_db *db, int64_t campaign_id, struct rk_fit_row **rows, size_t *count,
                           struct rk_error *error) {
    static const char sql[] = "SELECT id, campaign_id, op, type, group_kind, group_size, form, parameters, train_count,"
                              " held_out_count, leave_one_out_median, leave_one_out_p90, held_out_median, held_out_p90"
                              " FROM fit WHERE campaign_id = ? ORDER BY id";
    void *found = NULL;
    enum rk_status status =
        rk_query_children(db, sql, "listing fits", campaign_id, sizeof(**rows), read_fit, &found, count, error);
    if (status == RK_OK) {
        *rows = found;
    }
    return status;
}

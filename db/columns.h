/* Column lists that more than one query reads, each with the one function that reads them; and the packing of samples.
 * Private to db/. */
#ifndef RK_DB_COLUMNS_H
#define RK_DB_COLUMNS_H

#include "db/calibration.h"
#include "db/internal.h"

/* Of bench_case under the alias c. */
#define RK_CASE_COLUMNS                                                                                                \
    "c.id, c.op, c.type, c.flags, c.dim0, c.dim1, c.dim2, c.dim3, c.dim4, c.dim5, c.dim6, c.dim7, c.group_kind,"       \
    " c.group_size, c.crosses_hosts, c.concurrent_ranks, c.row_share, c.operands, c.mode, c.partner"
void rk_read_case(struct rk_query *query, struct rk_case_row *row);

/* Little-endian IEEE 754 doubles, 8 bytes each, on any machine. */
void rk_pack_seconds(const double *values, size_t count, unsigned char *bytes);
void rk_unpack_seconds(const unsigned char *bytes, size_t count, double *values);
/* Stores the samples of a measurement that has none yet; throttled may be NULL. */
enum rk_status rk_sample_store(struct rk_db *db, int64_t measurement_id, const double *samples, const bool *throttled,
                               size_t count, struct rk_error *error);

#endif

/* What export and import share. Private to db/. */
#ifndef RK_DB_EXCHANGE_INTERNAL_H
#define RK_DB_EXCHANGE_INTERNAL_H

#include "db/exchange.h"
#include "db/internal.h"
#include "db/schema.h"

enum { RK_EXCHANGE_VERSION = 1, RK_TABLE_COLUMNS = 40, RK_COLUMN_NAME = 48 };

enum rk_column_type { RK_COLUMN_INTEGER, RK_COLUMN_REAL, RK_COLUMN_TEXT, RK_COLUMN_BLOB };

struct rk_column {
    char name[RK_COLUMN_NAME];
    enum rk_column_type type;
    int parent; /* index into rk_db_tables of the table that it refers to, or -1 */
};

/* A table as the open file declares it. */
struct rk_table_columns {
    const struct rk_db_table *table;
    struct rk_column column[RK_TABLE_COLUMNS];
    int count;
};
enum rk_status rk_table_columns_read(struct rk_db *db, size_t table, struct rk_table_columns *columns,
                                     struct rk_error *error);

/* The table named so, or rk_db_table_count. */
size_t rk_db_table_find(const char *name);
/* Samples are expanded in text, so their table is treated apart. */
bool rk_is_sample_table(const struct rk_db_table *table);
/* The first line of sample.csv. */
#define RK_SAMPLE_CSV_HEADER "measurement_id,ordinal,seconds,throttled"

/* A value of a row on its way in. text is borrowed. */
enum rk_value_kind { RK_VALUE_NULL, RK_VALUE_INTEGER, RK_VALUE_REAL, RK_VALUE_TEXT };
struct rk_value {
    enum rk_value_kind kind;
    int64_t integer;
    double real;
    const char *text;
};
/* Reads text as the column's type: whole integers, finite or infinite reals. */
enum rk_status rk_value_parse(const struct rk_column *column, const char *text, struct rk_value *value,
                              struct rk_error *error);

/* One import under way. */
struct rk_import;
/* Takes one row, its values in the order of the columns. */
enum rk_status rk_import_row(struct rk_import *import, size_t table, const struct rk_value *values,
                             struct rk_error *error);
/* Takes the samples of one measurement; throttled may be NULL. */
enum rk_status rk_import_samples(struct rk_import *import, int64_t measurement_id, const double *seconds,
                                 const bool *throttled, size_t count, struct rk_error *error);
const struct rk_table_columns *rk_import_columns(const struct rk_import *import, size_t table);

/* The readers: feed everything that path holds into the import. */
enum rk_status rk_import_jsonl(struct rk_import *import, const char *path, struct rk_error *error);
enum rk_status rk_import_csv(struct rk_import *import, const char *folder, struct rk_error *error);
/* root is the parsed file; these use the rooms' own interfaces. *rows counts measurements. */
struct cJSON;
enum rk_status rk_import_nccl_tests(struct rk_db *db, const char *path, const struct cJSON *root,
                                    const struct rk_import_options *options, int64_t *rows, struct rk_error *error);
enum rk_status rk_import_nvbandwidth(struct rk_db *db, const char *path, const struct cJSON *root,
                                     const struct rk_import_options *options, int64_t *rows, struct rk_error *error);

/* Compares the counts of a manifest or last line ({"host":1,...}) with the rows that came; where names the file. */
enum rk_status rk_import_check_counts(const struct rk_import *import, const char *where, const struct cJSON *counts,
                                      struct rk_error *error);
/* Refuses the formats and schemas of newer versions. */
enum rk_status rk_import_check_version(const char *where, const struct cJSON *header, struct rk_error *error);

#endif

/* The schema: its versions and its tables. Private to db/ and its tests.
 *
 * A migration, once released, is never edited: a new version is a new entry. Times are microseconds since 1970 (UTC);
 * durations are seconds; sizes are bytes; rates say their unit in the column's name. Unknown numbers are NULL. */
#ifndef RK_DB_SCHEMA_H
#define RK_DB_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "RCKN", stored in the header of the file. */
enum { RK_DB_APPLICATION_ID = 0x52434B4E };

struct rk_db_migration {
    const char *const *statements;  /* NULL-terminated */
    const char *const *append_only; /* NULL-terminated: tables whose rows may neither change nor go */
};

/* Entry i brings a file from version i to version i + 1. */
extern const struct rk_db_migration rk_db_migrations[];
extern const int64_t rk_db_migration_count;

/* A table, in an order in which every table comes after those it refers to. */
struct rk_db_table {
    const char *name;
    const char *order; /* its primary key, by which it is exported; "id": an integer of its own */
    /* Columns that make a row the same row in another database, separated by spaces; an import meets an existing row
     * with the same values and uses it. NULL: imported rows are always new. */
    const char *identity;
    /* With identity: the same row coming twice means that the same unit is imported twice, and is refused. */
    bool identity_is_unit;
};
extern const struct rk_db_table rk_db_tables[];
extern const size_t rk_db_table_count;

#endif

/* The database as text that other programs read, and back without loss.
 *
 * JSONL: a line {"reckon_export":1,"schema_version":N}; one line {"table":T,"row":{column:value,...}} for each row,
 * tables and rows in an order in which every row comes after those it refers to; a last line
 * {"end":true,"rows":{T:count,...}}. CSV: a folder with one file T.csv for each table (RFC 4180, first line the
 * columns) and manifest.json, written last, with the version and the counts. In both: numbers have as many digits as
 * read back to the same value; an unknown number is null (CSV: an empty field, while an empty text is ""); infinite
 * ones are the texts Infinity and -Infinity; integers past 2^53 are texts in JSON. Raw samples are expanded: in JSONL
 * "seconds":[...] with "throttled":[0,1,...] or null; in CSV one line for each sample. */
#ifndef RK_DB_EXCHANGE_H
#define RK_DB_EXCHANGE_H

#include "db/database.h"

/* Where an export goes. write appends length bytes. */
struct rk_export_sink {
    enum rk_status (*write)(void *context, const void *data, size_t length, struct rk_error *error);
    void *context;
};

enum rk_status rk_db_export_jsonl(struct rk_db *db, const struct rk_export_sink *sink, struct rk_error *error);
/* folder must not exist or be empty. */
enum rk_status rk_db_export_csv(struct rk_db *db, const char *folder, struct rk_error *error);

struct rk_import_options {
    int64_t nvbandwidth_bytes; /* size of the copies of an nvbandwidth file that does not say it; 0: not given */
    int64_t now_us;            /* the time of import, for files that do not say when they were measured */
};
struct rk_import_result {
    char format[32]; /* "jsonl", "csv", "nccl-tests", "nvbandwidth" */
    int64_t rows;    /* read */
    int64_t known;   /* of them, machines and cases that were there already */
};

/* Imports a file (JSONL, or the JSON of nccl-tests -J or nvbandwidth -j) or a folder (CSV) in one transaction: all of
 * it or nothing. Row numbers are given anew where they are taken. Everything is checked as `db check` does; broken, cut
 * short, unknown or repeated input is RK_USAGE with file, line and column. Figures of other tools become a campaign
 * with origin imported, which `db show` shows and planning leaves out. */
enum rk_status rk_db_import(struct rk_db *db, const char *path, const struct rk_import_options *options,
                            struct rk_import_result *result, struct rk_error *error);

#endif

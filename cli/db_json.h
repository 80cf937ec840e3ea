/* Rows of the database as JSON objects, for --json. */
#ifndef RK_CLI_DB_JSON_H
#define RK_CLI_DB_JSON_H

#include "base/json.h"
#include "cli/cli.h"
#include "db/run_store.h"

#include <math.h>

cJSON *rk_cli_campaign_json(const struct rk_campaign_row *row);
cJSON *rk_cli_plan_json(const struct rk_plan_row *row);
cJSON *rk_cli_run_json(const struct rk_run_row *row);

/* Prints a value to the data stream. */
enum rk_status rk_cli_json_print(struct rk_cli *cli, const cJSON *root);

static inline void rk_cli_json_integer(cJSON *object, const char *key, int64_t value) {
    cJSON_AddNumberToObject(object, key, (double)value);
}
/* -1 is unknown: null. */
static inline void rk_cli_json_known(cJSON *object, const char *key, int64_t value) {
    if (value < 0)
        cJSON_AddNullToObject(object, key);
    else
        cJSON_AddNumberToObject(object, key, (double)value);
}
/* NaN and infinite values have no JSON number: null. */
static inline void rk_cli_json_real(cJSON *object, const char *key, double value) {
    if (isfinite(value))
        cJSON_AddNumberToObject(object, key, value);
    else
        cJSON_AddNullToObject(object, key);
}

#endif

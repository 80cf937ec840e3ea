/* What `reckon db list` and `reckon db show` print, as tables or with --json as one value. */
#ifndef RK_CLI_DB_SHOW_H
#define RK_CLI_DB_SHOW_H

#include "cli/cli.h"
#include "db/database.h"

/* what: "campaigns", "plans", "runs", "tables" or NULL for the first three. */
enum rk_status rk_cli_db_list(struct rk_cli *cli, struct rk_db *db, const char *what);
enum rk_status rk_cli_db_show_campaign(struct rk_cli *cli, struct rk_db *db, int64_t id);
enum rk_status rk_cli_db_show_plan(struct rk_cli *cli, struct rk_db *db, int64_t id);
enum rk_status rk_cli_db_show_run(struct rk_cli *cli, struct rk_db *db, int64_t id);
enum rk_status rk_cli_db_show_document(struct rk_cli *cli, struct rk_db *db, int64_t id);

#endif

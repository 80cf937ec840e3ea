/* reckon db: look into the database, move its rows, check it. */
#include "cli/db_show.h"

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/json.h"
#include "cli/cli.h"
#include "db/exchange.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct db_options {
    const char *out, *format;
    int64_t buffer_bytes;
    bool document;
};

static const struct rk_option options[] = {
    {.name = "out",
     .letter = 'o',
     .type = RK_OPTION_STRING,
     .offset = offsetof(struct db_options, out),
     .value = "FILE|DIR",
     .help = "where export writes (default standard output; CSV needs a new folder)"},
    {.name = "format",
     .type = RK_OPTION_STRING,
     .offset = offsetof(struct db_options, format),
     .choices = "jsonl|csv",
     .help = "of export: one JSON value a line, or a folder of CSV files (default jsonl)"},
    {.name = "buffer-size",
     .type = RK_OPTION_BYTES,
     .offset = offsetof(struct db_options, buffer_bytes),
     .value = "BYTES",
     .minimum = 1,
     .maximum = 1e12,
     .help = "of import: the size of the copies of an nvbandwidth file that does not say it"},
    {.name = "document",
     .type = RK_OPTION_FLAG,
     .offset = offsetof(struct db_options, document),
     .help = "of `show plan ID`: print its plan.json, byte for byte"},
};

const struct rk_arguments rk_cli_db_arguments = {
    .name = "db",
    .summary = "List, show, export, import and check what was measured, planned and run",
    .operands = "list|show|export|import|check [...]",
    .minimum_operands = 1,
    .maximum_operands = 3,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .description = "list [campaigns|plans|runs]      what there is, newest first\n"
                   "list tables                      every table and how many rows it has\n"
                   "show campaign|plan|run ID        one of them: where it comes from and every row of it\n"
                   "export [--format F] [--out O]    everything, raw samples expanded, without loss\n"
                   "import FILE|DIR                  an export, or the JSON of nccl-tests (-J) or nvbandwidth (-j); "
                   "all or nothing\n"
                   "check                            damage and broken promises; exit code 8 when there are any",
    .examples = "  reckon db list\n"
                "  reckon db show campaign 3\n"
                "  reckon db show plan 2 --document > plan.json\n"
                "  reckon db export --out backup.jsonl\n"
                "  reckon db import backup.jsonl --db other.db\n"
                "  reckon db check",
};

static enum rk_status open_database(struct rk_cli *cli, enum rk_db_access access, struct rk_db **db) {
    struct rk_db_options database = {.access = access, .log = &cli->log};
    return rk_db_open(cli->database, &database, db, &cli->error);
}

static enum rk_status write_stream(void *context, const void *data, size_t length, struct rk_error *error) {
    struct rk_cli *cli = context;
    if (*cli->interrupted)
        return rk_fail(error, RK_INTERRUPTED, "interrupted; the export is incomplete");
    return fwrite(data, 1, length, cli->out) == length ? RK_OK
                                                       : rk_fail(error, RK_ERROR, "standard output cannot be written");
}

struct file_sink {
    struct rk_cli *cli;
    struct rk_atomic_file file;
};

static enum rk_status write_file(void *context, const void *data, size_t length, struct rk_error *error) {
    struct file_sink *sink = context;
    if (*sink->cli->interrupted)
        return rk_fail(error, RK_INTERRUPTED, "interrupted; %s was not written", sink->file.path);
    return rk_atomic_file_write(&sink->file, data, length, error);
}

static enum rk_status export_file(struct rk_cli *cli, struct rk_db *db, const char *path) {
    struct file_sink file = {.cli = cli};
    struct rk_export_sink sink = {write_file, &file};
    enum rk_status status = rk_atomic_file_open(path, &file.file, &cli->error);
    if (status != RK_OK)
        return status;
    status = rk_db_export_jsonl(db, &sink, &cli->error);
    if (status != RK_OK) {
        rk_atomic_file_abandon(&file.file);
        return status;
    }
    return rk_atomic_file_commit(&file.file, &cli->error);
}

static enum rk_status export_database(struct rk_cli *cli, struct rk_db *db, const struct db_options *values) {
    bool csv = values->format != NULL && strcmp(values->format, "csv") == 0;
    if (csv && values->out == NULL)
        return rk_fail(&cli->error, RK_USAGE, "db export --format csv: name a new folder with --out DIR");
    if (csv)
        return rk_db_export_csv(db, values->out, &cli->error);
    if (values->out != NULL)
        return export_file(cli, db, values->out);
    struct rk_export_sink sink = {write_stream, cli};
    return rk_db_export_jsonl(db, &sink, &cli->error);
}

static enum rk_status import_database(struct rk_cli *cli, struct rk_db *db, const struct db_options *values,
                                      const char *path) {
    struct rk_import_options import = {.nvbandwidth_bytes = values->buffer_bytes,
                                       .now_us = (int64_t)(rk_clock_wall() * 1e6)};
    struct rk_import_result result;
    enum rk_status status = rk_db_import(db, path, &import, &result, &cli->error);
    if (status != RK_OK)
        return status;
    if (cli->json) {
        fprintf(cli->out, "{\n  \"format\": \"%s\",\n  \"rows\": %" PRId64 ",\n  \"known\": %" PRId64 "\n}\n",
                result.format, result.rows, result.known);
    } else {
        fprintf(cli->out, "%s: %" PRId64 " rows imported (%s), %" PRId64 " of them known already\n", path, result.rows,
                result.format, result.known);
    }
    return RK_OK;
}

static void print_findings(struct rk_cli *cli, const struct rk_text *findings, int64_t count) {
    const char *text = findings->data == NULL ? "" : findings->data;
    if (!cli->json) {
        fprintf(cli->out, "%s%s: %s\n", text, cli->database, count == 0 ? "sound" : "not sound");
        return;
    }
    struct rk_text json = {0};
    rk_text_format(&json, "{\n  \"sound\": %s,\n  \"findings\": [", count == 0 ? "true" : "false");
    for (const char *line = text; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        char *copy = strndup(line, length);
        rk_text_add(&json, line == text ? "\n    " : ",\n    ");
        rk_json_add_quoted(&json, copy == NULL ? "" : copy);
        free(copy);
        line += length + (line[length] == '\n');
    }
    rk_text_add(&json, count == 0 ? "]\n}\n" : "\n  ]\n}\n");
    fputs(json.data == NULL ? "" : json.data, cli->out);
    rk_text_free(&json);
}

static enum rk_status check_database(struct rk_cli *cli, struct rk_db *db) {
    struct rk_text findings = {0};
    int64_t count = 0;
    enum rk_status status = rk_db_check(db, &findings, &count, &cli->error);
    if (status == RK_OK) {
        print_findings(cli, &findings, count);
        if (count > 0)
            status =
                rk_fail(&cli->error, RK_DATABASE,
                        "%s: %" PRId64 " finding%s; keep the file, and restore a backup or save what is sound with "
                        "`reckon db export`",
                        cli->database, count, count == 1 ? "" : "s");
    }
    rk_text_free(&findings);
    return status;
}

static enum rk_status show(struct rk_cli *cli, struct rk_db *db, const struct db_options *values, const char *kind,
                           const char *number) {
    int64_t id = 0;
    enum rk_status status = rk_parse_count("db show: ID", number, &id, &cli->error);
    if (status != RK_OK)
        return status;
    if (values->document && strcmp(kind, "plan") != 0)
        return rk_fail(&cli->error, RK_USAGE,
                       "--document: only plans have one; say `reckon db show plan ID --document`");
    if (values->document)
        return rk_cli_db_show_document(cli, db, id);
    if (strcmp(kind, "campaign") == 0)
        return rk_cli_db_show_campaign(cli, db, id);
    if (strcmp(kind, "plan") == 0)
        return rk_cli_db_show_plan(cli, db, id);
    if (strcmp(kind, "run") == 0)
        return rk_cli_db_show_run(cli, db, id);
    return rk_fail(&cli->error, RK_USAGE, "db show: '%.40s' is not campaign, plan or run", kind);
}

/* The actions: how many operands each takes, and whether it writes. */
static const struct action {
    const char *name;
    size_t minimum, maximum; /* operands after the name */
    enum rk_db_access access;
    const char *usage;
} actions[] = {
    {"list", 0, 1, RK_DB_READ, "list [campaigns|plans|runs|tables]"},
    {"show", 2, 2, RK_DB_READ, "show campaign|plan|run ID"},
    {"export", 0, 0, RK_DB_READ, "export [--format jsonl|csv] [--out FILE|DIR]"},
    {"import", 1, 1, RK_DB_WRITE, "import FILE|DIR"},
    {"check", 0, 0, RK_DB_READ, "check"},
};

/* Names in the rows may come from elsewhere: control characters must not reach a terminal. Runs list or show with its
 * tables gathered, cleaned and written at once; JSON and plan.json go out as they are. */
static enum rk_status print_clean(struct rk_cli *cli, struct rk_db *db, const struct db_options *values,
                                  const struct rk_string_list *operands) {
    bool listing = strcmp(operands->items[0], "list") == 0;
    FILE *out = cli->out;
    char *text = NULL;
    size_t length = 0;
    FILE *memory = cli->json || values->document ? NULL : open_memstream(&text, &length);
    if (memory != NULL)
        cli->out = memory;
    enum rk_status status = listing ? rk_cli_db_list(cli, db, operands->count > 1 ? operands->items[1] : NULL)
                                    : show(cli, db, values, operands->items[1], operands->items[2]);
    cli->out = out;
    if (memory == NULL)
        return status;
    if (fclose(memory) != 0 && status == RK_OK)
        status = rk_fail(&cli->error, RK_ERROR, "out of memory for the table");
    for (size_t i = 0; status == RK_OK && i < length; i++)
        if (((unsigned char)text[i] < ' ' && text[i] != '\n') || text[i] == 0x7f)
            text[i] = '?';
    if (status == RK_OK)
        fwrite(text, 1, length, out);
    free(text);
    return status;
}

static enum rk_status act(struct rk_cli *cli, const struct action *action, const struct db_options *values,
                          const struct rk_string_list *operands) {
    struct rk_db *db = NULL;
    enum rk_status status = open_database(cli, action->access, &db);
    if (status != RK_OK)
        return status;
    if (strcmp(action->name, "list") == 0 || strcmp(action->name, "show") == 0)
        status = print_clean(cli, db, values, operands);
    else if (strcmp(action->name, "export") == 0)
        status = export_database(cli, db, values);
    else if (strcmp(action->name, "import") == 0)
        status = import_database(cli, db, values, operands->items[1]);
    else
        status = check_database(cli, db);
    rk_db_close(db);
    return status;
}

enum rk_status rk_cli_db(struct rk_cli *cli, int argc, char **argv) {
    struct db_options values = {0};
    struct rk_string_list operands = {0};
    enum rk_status status = rk_cli_parse(cli, &rk_cli_db_arguments, argc, argv, &values, &operands);
    if (status != RK_OK)
        goto free_operands;
    const struct action *action = NULL;
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (strcmp(actions[i].name, operands.items[0]) == 0)
            action = &actions[i];
    if (action == NULL)
        status =
            rk_fail(&cli->error, RK_USAGE, "db: '%.40s' is not list, show, export, import or check", operands.items[0]);
    else if (operands.count - 1 < action->minimum || operands.count - 1 > action->maximum)
        status = rk_fail(&cli->error, RK_USAGE, "usage: reckon db %s", action->usage);
    else
        status = act(cli, action, &values, &operands);
free_operands:
    rk_string_list_free(&operands);
    return status;
}

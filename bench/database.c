/* The database at its design size: 10^5 measurements with 10^7 samples.
 *
 *     bench_database [MEASUREMENTS [SAMPLES_EACH [FOLDER]]]
 *
 * Prints the seconds and bytes of storing them (one transaction for each 1,000 measurements, as a campaign commits, and
 * one for all), of looking them up as costs, of the check, of export and import; and, for the choice of packed samples,
 * the same samples as one row each. */
#include "base/clock.h"
#include "base/random.h"
#include "base/statistics.h"
#include "db/calibration.h"
#include "db/cost_source.h"
#include "db/exchange.h"
#include "db/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct bench {
    char folder[512], path[600], copy[600], text[600];
    int64_t measurements;
    size_t samples_each;
    double *samples;
    struct rk_error error;
};

/* Wall and processor seconds: on a shared machine the second says more. */
struct stopwatch {
    double wall;
    clock_t processor;
};

static struct stopwatch start_watch(void) {
    return (struct stopwatch){rk_clock_seconds(), clock()};
}

static void print(const char *what, struct stopwatch start, double units, const char *unit) {
    double wall = rk_clock_seconds() - start.wall;
    double processor = (double)(clock() - start.processor) / CLOCKS_PER_SEC;
    printf("%-44s %9.3f s %9.3f s  %12.0f %s/s\n", what, wall, processor, units / processor, unit);
    fflush(stdout);
}

static double file_bytes(const char *path) {
    struct stat information;
    return stat(path, &information) == 0 ? (double)information.st_size : 0;
}

static enum rk_status begin(struct bench *bench, struct rk_db *db, int64_t *campaign) {
    struct rk_machine_identity machine = {.host = {.cpu_model = "bench"}, .topology = {.hosts = 1}};
    struct rk_campaign_row row = {.tool = "bench", .mode = "full", .backend = "cpu", .world_size = 1, .started_us = 1};
    return rk_campaign_begin(db, &machine, &row, campaign, &bench->error);
}

/* One measurement of its own case. */
static enum rk_status store(struct bench *bench, struct rk_db *db, int64_t campaign, int64_t number) {
    struct rk_op_shape shape = {
        .kind = RK_OP_GEMM_FORWARD, .type = RK_BF16, .dim = {number % 1000 + 1, number / 1000 + 1, 4096}};
    struct rk_cost_place place = {.group_size = 1, .concurrent = 1, .row_share = 1};
    struct rk_case_row bench_case;
    struct rk_measurement_row row = rk_measurement_empty();
    struct rk_interval interval;
    for (size_t i = 0; i < bench->samples_each; i++)
        bench->samples[i] = 1e-3 * (1 + 0.05 * rk_random_uniform((uint64_t)number, i));
    rk_case_from_shape(&shape, &place, "normal", "sustained", &bench_case);
    enum rk_status status = rk_case_store(db, &bench_case, &row.case_id, &bench->error);
    if (status != RK_OK)
        return status;
    row.campaign_id = campaign;
    status = rk_statistics_median_interval(bench->samples, bench->samples_each, 0.95, &row.median_seconds, &interval,
                                           &bench->error);
    row.low_seconds = interval.low;
    row.high_seconds = interval.high;
    return status == RK_OK
               ? rk_measurement_store(db, &row, bench->samples, NULL, bench->samples_each, NULL, &bench->error)
               : status;
}

static enum rk_status fill(struct bench *bench, struct rk_db *db, int64_t campaign, int64_t count,
                           int64_t each_commit) {
    enum rk_status status = RK_OK;
    for (int64_t first = 0; status == RK_OK && first < count; first += each_commit) {
        status = rk_db_begin(db, &bench->error);
        if (status != RK_OK)
            break;
        for (int64_t i = first; status == RK_OK && i < first + each_commit && i < count; i++)
            status = store(bench, db, campaign, i);
        status = rk_db_end(db, status, &bench->error);
    }
    return status;
}

static enum rk_status bench_store(struct bench *bench) {
    static const struct {
        const char *what;
        int64_t divisor;
    } ways[] = {{"store, a commit for each measurement (1 %)", 0}, {"store, a commit for each 1,000", 1000}};
    struct rk_db_options options = {.access = RK_DB_WRITE};
    enum rk_status status = RK_OK;
    for (size_t way = 0; status == RK_OK && way < 2; way++) {
        struct rk_db *db = NULL;
        int64_t campaign = 0;
        int64_t count = way == 0 ? (bench->measurements + 99) / 100 : bench->measurements;
        unlink(bench->path);
        status = rk_db_open(bench->path, &options, &db, &bench->error);
        if (status == RK_OK)
            status = begin(bench, db, &campaign);
        struct stopwatch start = start_watch();
        if (status == RK_OK)
            status = fill(bench, db, campaign, count, ways[way].divisor == 0 ? 1 : ways[way].divisor);
        if (status == RK_OK)
            status = rk_campaign_end(db, campaign, RK_CAMPAIGN_FINISHED, 2, &bench->error);
        rk_db_close(db);
        if (status == RK_OK)
            print(ways[way].what, start, (double)count, "measurements");
    }
    if (status == RK_OK)
        printf("%-44s %9.1f MB (%.1f bytes a sample in all)\n", "  the file", file_bytes(bench->path) / 1e6,
               file_bytes(bench->path) / (double)bench->measurements / (double)bench->samples_each);
    return status;
}

static enum rk_status bench_read(struct bench *bench) {
    struct rk_db *db = NULL;
    struct rk_match match = {0};
    struct rk_match_request request = {.campaign_id = 1};
    struct rk_cost_row *rows = NULL;
    size_t count = 0;
    struct stopwatch start = start_watch();
    enum rk_status status = rk_db_open(bench->path, NULL, &db, &bench->error);
    if (status != RK_OK)
        return status;
    print("open", start, 1, "opens");
    start = start_watch();
    status = rk_match_find(db, &request, &match, &bench->error);
    if (status == RK_OK)
        print("look-up of all measurements", start, (double)match.count, "rows");
    start = start_watch();
    if (status == RK_OK)
        status = rk_cost_rows_make(&match, &rows, &count, &bench->error);
    if (status == RK_OK)
        print("  and as cost rows", start, (double)count, "rows");
    start = start_watch();
    struct rk_text findings = {0};
    int64_t found = 0;
    if (status == RK_OK)
        status = rk_db_check(db, &findings, &found, &bench->error);
    if (status == RK_OK)
        print("check, medians recomputed", start, (double)bench->measurements * (double)bench->samples_each, "samples");
    rk_text_free(&findings);
    free(rows);
    rk_match_free(&match);
    rk_db_close(db);
    return status;
}

static enum rk_status write_stream(void *context, const void *data, size_t length, struct rk_error *error) {
    return fwrite(data, 1, length, context) == length ? RK_OK : rk_fail(error, RK_ERROR, "cannot write the export");
}

static enum rk_status bench_exchange(struct bench *bench) {
    struct rk_db *db = NULL;
    struct rk_db_options options = {.access = RK_DB_WRITE};
    struct rk_import_options import = {.now_us = 1};
    struct rk_import_result result;
    double samples = (double)bench->measurements * (double)bench->samples_each;
    FILE *file = fopen(bench->text, "w");
    if (file == NULL)
        return rk_fail(&bench->error, RK_ERROR, "%s: cannot be written", bench->text);
    struct rk_export_sink sink = {write_stream, file};
    struct stopwatch start = start_watch();
    enum rk_status status = rk_db_open(bench->path, NULL, &db, &bench->error);
    if (status == RK_OK)
        status = rk_db_export_jsonl(db, &sink, &bench->error);
    fclose(file);
    rk_db_close(db);
    if (status != RK_OK)
        return status;
    print("export as JSONL", start, samples, "samples");
    printf("%-44s %9.1f MB\n", "  the file", file_bytes(bench->text) / 1e6);
    start = start_watch();
    status = rk_db_open(bench->copy, &options, &db, &bench->error);
    if (status != RK_OK)
        return status;
    status = rk_db_import(db, bench->text, &import, &result, &bench->error);
    rk_db_close(db);
    if (status == RK_OK)
        print("import of it, checked", start, samples, "samples");
    return status;
}

/* The alternative that was not taken: a row for each sample. */
static enum rk_status bench_rows(struct bench *bench) {
    static const char insert[] = "INSERT INTO sample_row VALUES (?, ?, ?)";
    struct rk_db_options options = {.access = RK_DB_WRITE};
    struct rk_db *db = NULL;
    struct rk_query query;
    unlink(bench->copy);
    enum rk_status status = rk_db_open(bench->copy, &options, &db, &bench->error);
    if (status != RK_OK)
        return status;
    double before = file_bytes(bench->copy);
    status =
        rk_db_execute(db,
                      "CREATE TABLE sample_row (measurement INTEGER NOT NULL, ordinal INTEGER NOT NULL, seconds REAL"
                      " NOT NULL, PRIMARY KEY (measurement, ordinal)) STRICT, WITHOUT ROWID",
                      "making a table", &bench->error);
    struct stopwatch start = start_watch();
    if (status == RK_OK)
        status = rk_db_begin(db, &bench->error);
    if (status == RK_OK)
        status = rk_query_open(db, insert, "storing samples", &query, &bench->error);
    for (int64_t i = 0; status == RK_OK && i < bench->measurements; i++) {
        for (size_t j = 0; status == RK_OK && j < bench->samples_each; j++) {
            rk_query_again(&query);
            rk_bind_integer(&query, i);
            rk_bind_integer(&query, (int64_t)j);
            rk_bind_real(&query, bench->samples[j]);
            status = rk_query_run(&query, &bench->error);
        }
    }
    if (status == RK_OK) {
        rk_query_close(&query);
        status = rk_db_commit(db, &bench->error);
    }
    rk_db_close(db);
    if (status != RK_OK)
        return status;
    print("for comparison: a row for each sample", start, (double)bench->measurements * (double)bench->samples_each,
          "samples");
    printf("%-44s %9.1f MB\n", "  the file", (file_bytes(bench->copy) - before) / 1e6);
    return status;
}

int main(int argc, char **argv) {
    struct bench bench = {.measurements = 100000};
    int64_t samples_each = 100;
    if ((argc > 1 && rk_parse_count("MEASUREMENTS", argv[1], &bench.measurements, &bench.error) != RK_OK) ||
        (argc > 2 && rk_parse_count("SAMPLES_EACH", argv[2], &samples_each, &bench.error) != RK_OK) ||
        bench.measurements < 1 || samples_each < 1) {
        fprintf(stderr, "%s\nusage: bench_database [MEASUREMENTS [SAMPLES_EACH [FOLDER]]]\n", bench.error.text);
        return RK_USAGE;
    }
    snprintf(bench.folder, sizeof bench.folder, "%s/reckon-bench-XXXXXX", argc > 3 ? argv[3] : "/var/tmp");
    bench.samples_each = (size_t)samples_each;
    bench.samples = calloc(bench.samples_each, sizeof *bench.samples);
    if (bench.samples == NULL || mkdtemp(bench.folder) == NULL) {
        fprintf(stderr, "%s: no memory or no folder\n", bench.folder);
        free(bench.samples);
        return RK_ERROR;
    }
    snprintf(bench.path, sizeof bench.path, "%s/bench.db", bench.folder);
    snprintf(bench.copy, sizeof bench.copy, "%s/copy.db", bench.folder);
    snprintf(bench.text, sizeof bench.text, "%s/export.jsonl", bench.folder);
    printf("%" PRId64 " measurements with %zu samples each\n%44s %11s %11s\n", bench.measurements, bench.samples_each,
           "", "wall", "processor");
    enum rk_status status = bench_store(&bench);
    status = status == RK_OK ? bench_read(&bench) : status;
    status = status == RK_OK ? bench_exchange(&bench) : status;
    status = status == RK_OK ? bench_rows(&bench) : status;
    if (status != RK_OK)
        fprintf(stderr, "%s\n", bench.error.text);
    unlink(bench.path);
    unlink(bench.copy);
    unlink(bench.text);
    rmdir(bench.folder);
    free(bench.samples);
    return (int)status;
}

#include "db/schema.h"

/* Version 1: what a machine is and what was measured on it. */
static const char *const version_1[] = {
    "CREATE TABLE host ("
    " id INTEGER PRIMARY KEY,"
    " fingerprint TEXT NOT NULL UNIQUE," /* of this row and its gpus */
    " hostname TEXT NOT NULL CHECK (length(hostname) < 256),"
    " cpu_model TEXT NOT NULL CHECK (length(cpu_model) < 128),"
    " sockets INTEGER, cores INTEGER, threads INTEGER, numa_nodes INTEGER, memory_bytes INTEGER,"
    " kernel TEXT NOT NULL CHECK (length(kernel) < 128),"
    " operating_system TEXT NOT NULL CHECK (length(operating_system) < 128)) STRICT",

    "CREATE TABLE gpu ("
    " id INTEGER PRIMARY KEY,"
    " host_id INTEGER NOT NULL REFERENCES host,"
    " ordinal INTEGER NOT NULL,"
    " uuid TEXT NOT NULL CHECK (length(uuid) < 64),"
    " name TEXT NOT NULL CHECK (length(name) < 128),"
    " pci_address TEXT NOT NULL CHECK (length(pci_address) < 32),"
    " compute_capability TEXT NOT NULL CHECK (length(compute_capability) < 16),"
    " partition TEXT NOT NULL CHECK (length(partition) < 64)," /* MIG profile, or empty */
    " memory_bytes INTEGER, multiprocessors INTEGER, l2_bytes INTEGER, numa_node INTEGER,"
    " power_limit_watts REAL, clock_maximum_hz REAL,"
    " UNIQUE (host_id, ordinal)) STRICT",

    "CREATE TABLE software ("
    " id INTEGER PRIMARY KEY,"
    " fingerprint TEXT NOT NULL UNIQUE,"
    " reckon TEXT NOT NULL CHECK (length(reckon) < 64),"
    " compiler TEXT NOT NULL CHECK (length(compiler) < 64),"
    " driver TEXT NOT NULL CHECK (length(driver) < 64),"
    " cuda TEXT NOT NULL CHECK (length(cuda) < 64),"
    " nccl TEXT NOT NULL CHECK (length(nccl) < 64),"
    " cudnn TEXT NOT NULL CHECK (length(cudnn) < 64),"
    " blas TEXT NOT NULL CHECK (length(blas) < 64)) STRICT",

    "CREATE TABLE topology ("
    " id INTEGER PRIMARY KEY,"
    " fingerprint TEXT NOT NULL UNIQUE,"
    " hosts INTEGER NOT NULL, devices_per_host INTEGER NOT NULL,"
    " summary TEXT NOT NULL CHECK (length(summary) < 256)) STRICT",

    "CREATE TABLE link ("
    " id INTEGER PRIMARY KEY,"
    " topology_id INTEGER NOT NULL REFERENCES topology,"
    " source TEXT NOT NULL CHECK (length(source) < 32),"
    " destination TEXT NOT NULL CHECK (length(destination) < 32),"
    " kind TEXT NOT NULL CHECK (length(kind) < 32)," /* nvlink, pcie, numa, network, unknown */
    " lanes INTEGER, specification_bytes_per_second REAL,"
    " UNIQUE (topology_id, source, destination, kind)) STRICT",

    "CREATE TABLE campaign ("
    " id INTEGER PRIMARY KEY,"
    " uuid TEXT NOT NULL UNIQUE CHECK (length(uuid) BETWEEN 1 AND 39),"
    " origin TEXT NOT NULL CHECK (origin IN ('measured', 'imported')),"
    " tool TEXT NOT NULL CHECK (length(tool) < 64)," /* reckon, nccl-tests, nvbandwidth, with its version */
    " state TEXT NOT NULL CHECK (state IN ('running', 'finished', 'interrupted')),"
    " mode TEXT NOT NULL CHECK (length(mode) < 16)," /* quick, default, full */
    " backend TEXT NOT NULL CHECK (length(backend) < 16),"
    " machine_key TEXT NOT NULL CHECK (length(machine_key) < 40),"
    " fingerprint TEXT NOT NULL CHECK (length(fingerprint) < 40),"
    " host_id INTEGER NOT NULL REFERENCES host,"
    " software_id INTEGER NOT NULL REFERENCES software,"
    " topology_id INTEGER NOT NULL REFERENCES topology,"
    " git_revision TEXT NOT NULL CHECK (length(git_revision) < 64),"
    " command TEXT NOT NULL CHECK (length(command) < 1024),"
    " seed INTEGER NOT NULL,"
    " world_size INTEGER NOT NULL CHECK (world_size > 0),"
    " forced_unfit INTEGER NOT NULL CHECK (forced_unfit IN (0, 1)),"
    " unfit_reason TEXT NOT NULL CHECK (length(unfit_reason) < 512),"
    " planned_cases INTEGER,"
    " started_us INTEGER NOT NULL,"
    " ended_us INTEGER,"
    " CHECK (state = 'running' OR ended_us IS NOT NULL)) STRICT",
    "CREATE INDEX campaign_by_machine ON campaign (machine_key, fingerprint)",
    "CREATE TRIGGER campaign_fixed BEFORE UPDATE ON campaign WHEN OLD.state = 'finished' OR OLD.id IS NOT NEW.id"
    " OR OLD.uuid IS NOT NEW.uuid OR OLD.origin IS NOT NEW.origin OR OLD.tool IS NOT NEW.tool"
    " OR OLD.mode IS NOT NEW.mode OR OLD.backend IS NOT NEW.backend OR OLD.machine_key IS NOT NEW.machine_key"
    " OR OLD.fingerprint IS NOT NEW.fingerprint OR OLD.host_id IS NOT NEW.host_id"
    " OR OLD.software_id IS NOT NEW.software_id OR OLD.topology_id IS NOT NEW.topology_id"
    " OR OLD.seed IS NOT NEW.seed OR OLD.started_us IS NOT NEW.started_us OR OLD.forced_unfit > NEW.forced_unfit"
    " BEGIN SELECT RAISE(ABORT, 'a finished campaign and the origin of any campaign cannot change'); END",
    "CREATE TRIGGER campaign_stays BEFORE DELETE ON campaign"
    " BEGIN SELECT RAISE(ABORT, 'rows of campaign are never deleted'); END",

    "CREATE TABLE campaign_rank ("
    " campaign_id INTEGER NOT NULL REFERENCES campaign,"
    " process INTEGER NOT NULL," /* which fresh set of processes of the campaign */
    " rank INTEGER NOT NULL,"
    " host_id INTEGER NOT NULL REFERENCES host,"
    " device TEXT NOT NULL CHECK (length(device) < 64),"      /* cpu, or the GPU's UUID */
    " cpu_list TEXT NOT NULL CHECK (length(cpu_list) < 128)," /* the processors it is pinned to */
    " numa_node INTEGER, clock_hz REAL, power_watts REAL,"
    " PRIMARY KEY (campaign_id, process, rank)) STRICT, WITHOUT ROWID",

    "CREATE TABLE bench_case ("
    " id INTEGER PRIMARY KEY,"
    " op TEXT NOT NULL CHECK (length(op) BETWEEN 1 AND 63),"
    " type TEXT NOT NULL CHECK (length(type) < 16),"
    " flags INTEGER NOT NULL,"
    " dim0 INTEGER NOT NULL, dim1 INTEGER NOT NULL, dim2 INTEGER NOT NULL, dim3 INTEGER NOT NULL,"
    " dim4 INTEGER NOT NULL, dim5 INTEGER NOT NULL, dim6 INTEGER NOT NULL, dim7 INTEGER NOT NULL,"
    " group_kind TEXT NOT NULL CHECK (length(group_kind) < 32),"
    " group_size INTEGER NOT NULL," /* ranks that the op speaks to, 1 for local ops */
    " crosses_hosts INTEGER NOT NULL CHECK (crosses_hosts IN (0, 1)),"
    " concurrent_ranks INTEGER NOT NULL," /* ranks of the host that are busy at the same time */
    " row_share REAL NOT NULL,"           /* valid rows of a receive buffer over those under balance, 1 when balanced */
    " operands TEXT NOT NULL CHECK (length(operands) < 16)," /* normal, zeros, uniform, sign, constant */
    " mode TEXT NOT NULL CHECK (mode IN ('isolated', 'sustained')),"
    " partner TEXT NOT NULL CHECK (length(partner) < 128)," /* what else runs meanwhile (overlap pairs), or empty */
    " UNIQUE (op, type, flags, dim0, dim1, dim2, dim3, dim4, dim5, dim6, dim7, group_kind, group_size,"
    "         crosses_hosts, concurrent_ranks, row_share, operands, mode, partner)) STRICT",

    "CREATE TABLE measurement ("
    " id INTEGER PRIMARY KEY,"
    " campaign_id INTEGER NOT NULL REFERENCES campaign,"
    " bench_case_id INTEGER NOT NULL REFERENCES bench_case,"
    " process INTEGER NOT NULL," /* 0, 1, 2: which fresh process of the campaign */
    " status TEXT NOT NULL CHECK (status IN ('ok', 'wrong result', 'failed')),"
    " message TEXT NOT NULL CHECK (length(message) < 512),"
    " stop_reason TEXT NOT NULL CHECK (stop_reason IN ('interval', 'time cap', 'imported', 'failed')),"
    " started_us INTEGER NOT NULL,"
    " median_seconds REAL, low_seconds REAL, high_seconds REAL," /* 95 % interval of the median */
    " minimum_seconds REAL, maximum_seconds REAL,"
    " batch INTEGER NOT NULL," /* executions in one sample; samples hold seconds of one execution */
    " flops REAL, bytes REAL, remote_bytes REAL,"
    " largest_error REAL,"         /* of the verification, relative */
    " throttled INTEGER NOT NULL," /* samples taken while the clock was held down */
    " clock_hz REAL, power_watts REAL, temperature_celsius REAL,"
    " library_estimate_seconds REAL,"                           /* NCCL's own estimate beside a collective */
    " algorithm TEXT NOT NULL CHECK (length(algorithm) < 128)," /* what the library chose */
    " workspace_bytes INTEGER,"
    " CHECK (status <> 'ok' OR median_seconds > 0)) STRICT",
    "CREATE INDEX measurement_by_campaign ON measurement (campaign_id, bench_case_id)",

    /* Packed: seconds holds `count` doubles, little-endian IEEE 754, in the order taken; throttled is NULL or a bit for
     * each sample, the lowest bit of byte 0 first. A row for each sample would take 2.6 times the space
     * (bench/database.c). */
    "CREATE TABLE sample ("
    " measurement_id INTEGER PRIMARY KEY REFERENCES measurement,"
    " count INTEGER NOT NULL CHECK (count > 0),"
    " seconds BLOB NOT NULL CHECK (length(seconds) = 8 * count),"
    " throttled BLOB CHECK (throttled IS NULL OR length(throttled) = (count + 7) / 8)) STRICT",

    "CREATE TABLE telemetry ("
    " id INTEGER PRIMARY KEY,"
    " campaign_id INTEGER NOT NULL REFERENCES campaign,"
    " rank INTEGER NOT NULL,"
    " time_us INTEGER NOT NULL,"
    " clock_hz REAL, memory_clock_hz REAL, power_watts REAL, temperature_celsius REAL,"
    " throttle_reasons TEXT NOT NULL CHECK (length(throttle_reasons) < 128)) STRICT",
    "CREATE INDEX telemetry_by_campaign ON telemetry (campaign_id)",

    "CREATE TABLE fit ("
    " id INTEGER PRIMARY KEY,"
    " campaign_id INTEGER NOT NULL REFERENCES campaign,"
    " op TEXT NOT NULL CHECK (length(op) BETWEEN 1 AND 63),"
    " type TEXT NOT NULL CHECK (length(type) < 16),"
    " group_kind TEXT NOT NULL CHECK (length(group_kind) < 32),"
    " group_size INTEGER NOT NULL,"
    " form TEXT NOT NULL CHECK (length(form) < 64)," /* log-log interpolation, piecewise alpha-beta, ... */
    " parameters TEXT NOT NULL CHECK (length(parameters) < 4096),"
    " train_count INTEGER NOT NULL, held_out_count INTEGER NOT NULL,"
    " leave_one_out_median REAL, leave_one_out_p90 REAL," /* relative errors */
    " held_out_median REAL, held_out_p90 REAL) STRICT",
    "CREATE INDEX fit_by_campaign ON fit (campaign_id)",

    "CREATE TABLE fit_input ("
    " fit_id INTEGER NOT NULL REFERENCES fit,"
    " measurement_id INTEGER NOT NULL REFERENCES measurement,"
    " role TEXT NOT NULL CHECK (role IN ('train', 'held out')),"
    " PRIMARY KEY (fit_id, measurement_id)) STRICT, WITHOUT ROWID",
    NULL};

static const char *const append_only_1[] = {"host",          "gpu",        "software",    "topology", "link",
                                            "campaign_rank", "bench_case", "measurement", "sample",   "telemetry",
                                            "fit",           "fit_input",  NULL};

/* Version 2: what was planned, what ran, and where the two part. */
static const char *const version_2[] = {
    "CREATE TABLE plan ("
    " id INTEGER PRIMARY KEY,"
    " uuid TEXT NOT NULL UNIQUE CHECK (length(uuid) BETWEEN 1 AND 39),"
    " created_us INTEGER NOT NULL,"
    " campaign_id INTEGER REFERENCES campaign," /* NULL: planned on a hardware profile */
    " reckon TEXT NOT NULL CHECK (length(reckon) < 64),"
    " git_revision TEXT NOT NULL CHECK (length(git_revision) < 64),"
    " model TEXT NOT NULL CHECK (length(model) < 128),"
    " hardware TEXT NOT NULL CHECK (length(hardware) < 128),"
    " ranks INTEGER NOT NULL,"
    " sequence_tokens INTEGER NOT NULL,"
    " global_batch_tokens INTEGER NOT NULL,"
    " considered INTEGER NOT NULL," /* candidates of the whole space */
    " refused INTEGER NOT NULL,"
    " predicted_seconds REAL, predicted_low_seconds REAL, predicted_high_seconds REAL,"
    " predicted_tokens_per_second REAL,"
    " predicted_peak_bytes INTEGER,"
    " document TEXT NOT NULL) STRICT", /* plan.json, byte for byte */

    "CREATE TABLE candidate ("
    " plan_id INTEGER NOT NULL REFERENCES plan,"
    " ordinal INTEGER NOT NULL," /* place in the ranking, 0 the best */
    " label TEXT NOT NULL CHECK (length(label) < 160),"
    " settings TEXT NOT NULL CHECK (length(settings) < 1024),"
    " verdict TEXT NOT NULL CHECK (verdict IN ('chosen', 'feasible', 'refused')),"
    " reason TEXT NOT NULL CHECK (length(reason) < 64),"
    " need REAL, have REAL,"
    " unit TEXT NOT NULL CHECK (length(unit) < 16),"
    " remedy TEXT NOT NULL CHECK (length(remedy) < 160),"
    " simulated INTEGER NOT NULL CHECK (simulated IN (0, 1))," /* or the closed form */
    " seconds REAL, low_seconds REAL, high_seconds REAL,"
    " peak_bytes INTEGER,"
    " PRIMARY KEY (plan_id, ordinal),"
    " CHECK (verdict <> 'refused' OR reason <> '')) STRICT, WITHOUT ROWID",

    "CREATE TABLE term_source ("
    " plan_id INTEGER NOT NULL REFERENCES plan,"
    " ordinal INTEGER NOT NULL,"
    " term TEXT NOT NULL CHECK (length(term) < 192)," /* the op and its shape, or another priced term */
    " family TEXT NOT NULL CHECK (length(family) < 32),"
    " phase TEXT NOT NULL CHECK (length(phase) < 32),"
    " count INTEGER NOT NULL," /* per step on the slowest rank */
    " seconds REAL,"           /* per step, all of them */
    " relative_uncertainty REAL,"
    " origin TEXT NOT NULL CHECK (origin IN ('measured', 'interpolated', 'extrapolated', 'published',"
    "  'transferred', 'specification')),"
    " source TEXT NOT NULL CHECK (length(source) < 256),"
    " PRIMARY KEY (plan_id, ordinal)) STRICT, WITHOUT ROWID",

    "CREATE TABLE run ("
    " id INTEGER PRIMARY KEY,"
    " uuid TEXT NOT NULL UNIQUE CHECK (length(uuid) BETWEEN 1 AND 39),"
    " plan_id INTEGER NOT NULL REFERENCES plan,"
    " host_id INTEGER NOT NULL REFERENCES host,"
    " software_id INTEGER NOT NULL REFERENCES software,"
    " topology_id INTEGER NOT NULL REFERENCES topology,"
    " fingerprint TEXT NOT NULL CHECK (length(fingerprint) < 40),"
    " state TEXT NOT NULL CHECK (state IN ('running', 'finished', 'failed', 'interrupted')),"
    " message TEXT NOT NULL CHECK (length(message) < 1024),"
    " command TEXT NOT NULL CHECK (length(command) < 1024),"
    " git_revision TEXT NOT NULL CHECK (length(git_revision) < 64),"
    " data TEXT NOT NULL CHECK (length(data) < 512),"
    " routing TEXT NOT NULL CHECK (length(routing) < 32),"
    " seed INTEGER NOT NULL,"
    " world_size INTEGER NOT NULL CHECK (world_size > 0),"
    " forced_unfit INTEGER NOT NULL CHECK (forced_unfit IN (0, 1)),"
    " clock_hz REAL, power_watts REAL,"
    " started_us INTEGER NOT NULL,"
    " ended_us INTEGER,"
    " CHECK (state = 'running' OR ended_us IS NOT NULL)) STRICT",
    "CREATE INDEX run_by_plan ON run (plan_id)",
    /* A run ends once; nothing else of it changes. */
    "CREATE TRIGGER run_fixed BEFORE UPDATE ON run WHEN OLD.state <> 'running' OR OLD.id IS NOT NEW.id"
    " OR OLD.uuid IS NOT NEW.uuid OR OLD.plan_id IS NOT NEW.plan_id OR OLD.host_id IS NOT NEW.host_id"
    " OR OLD.software_id IS NOT NEW.software_id OR OLD.topology_id IS NOT NEW.topology_id"
    " OR OLD.fingerprint IS NOT NEW.fingerprint OR OLD.command IS NOT NEW.command OR OLD.seed IS NOT NEW.seed"
    " OR OLD.git_revision IS NOT NEW.git_revision OR OLD.data IS NOT NEW.data OR OLD.routing IS NOT NEW.routing"
    " OR OLD.world_size IS NOT NEW.world_size OR OLD.started_us IS NOT NEW.started_us"
    " OR OLD.forced_unfit IS NOT NEW.forced_unfit"
    " BEGIN SELECT RAISE(ABORT, 'a run ends once and its origin cannot change'); END",
    "CREATE TRIGGER run_stays BEFORE DELETE ON run"
    " BEGIN SELECT RAISE(ABORT, 'rows of run are never deleted'); END",

    "CREATE TABLE run_step ("
    " run_id INTEGER NOT NULL REFERENCES run,"
    " step INTEGER NOT NULL,"
    " traced INTEGER NOT NULL CHECK (traced IN (0, 1))," /* instrumented: never counted as throughput */
    " seconds REAL, host_submit_seconds REAL,"
    " tokens INTEGER NOT NULL,"
    " loss REAL, balance_loss REAL, z_loss REAL, grad_norm REAL, learning_rate REAL,"
    " dropped_routes INTEGER NOT NULL, routes INTEGER NOT NULL,"
    " requested_load REAL, kept_load REAL,"               /* hottest rank over the mean, max over layers */
    " requested_expert_load REAL, kept_expert_load REAL," /* hottest expert over the mean */
    " remote_bytes REAL, local_bytes REAL,"               /* exchanged by the busiest rank */
    " clock_hz REAL, power_watts REAL,"
    " PRIMARY KEY (run_id, step)) STRICT, WITHOUT ROWID",

    "CREATE TABLE run_op ("
    " run_id INTEGER NOT NULL REFERENCES run,"
    " ordinal INTEGER NOT NULL,"
    " rank INTEGER NOT NULL," /* -1: the median over the ranks of the stage */
    " stage INTEGER NOT NULL,"
    " kind TEXT NOT NULL CHECK (length(kind) BETWEEN 1 AND 47),"
    " shape TEXT NOT NULL CHECK (length(shape) < 192),"
    " phase TEXT NOT NULL CHECK (length(phase) < 32),"
    " stream TEXT NOT NULL CHECK (length(stream) < 32),"
    " count INTEGER NOT NULL," /* per step */
    " median_seconds REAL,"    /* of one execution */
    " total_seconds REAL,"     /* per step: median over traced steps */
    " wait_seconds REAL,"      /* per step: of that, waiting for other ranks */
    " PRIMARY KEY (run_id, ordinal)) STRICT, WITHOUT ROWID",

    "CREATE TABLE run_memory ("
    " run_id INTEGER NOT NULL REFERENCES run,"
    " rank INTEGER NOT NULL,"
    " owner TEXT NOT NULL CHECK (length(owner) BETWEEN 1 AND 31),"
    " space TEXT NOT NULL CHECK (length(space) < 16)," /* device, host */
    " predicted_bytes INTEGER, allocated_bytes INTEGER,"
    " PRIMARY KEY (run_id, rank, owner, space)) STRICT, WITHOUT ROWID",

    "CREATE TABLE comparison ("
    " run_id INTEGER NOT NULL REFERENCES run,"
    " series INTEGER NOT NULL," /* 0 the first comparison of the run, 1 the next, ... */
    " ordinal INTEGER NOT NULL,"
    " created_us INTEGER NOT NULL,"
    " level TEXT NOT NULL CHECK (length(level) < 16)," /* step, phase, family, op, memory, share */
    " name TEXT NOT NULL CHECK (length(name) < 192),"
    " stage INTEGER NOT NULL," /* -1: all */
    " unit TEXT NOT NULL CHECK (length(unit) < 16),"
    " predicted REAL, measured REAL,"
    " relative_uncertainty REAL," /* of the prediction */
    " origin TEXT NOT NULL CHECK (length(origin) < 32),"
    " tolerance REAL, within INTEGER NOT NULL CHECK (within IN (0, 1)),"
    " note TEXT NOT NULL CHECK (length(note) < 512),"
    " PRIMARY KEY (run_id, series, ordinal)) STRICT, WITHOUT ROWID",
    NULL};

static const char *const append_only_2[] = {"plan",   "candidate",  "term_source", "run_step",
                                            "run_op", "run_memory", "comparison",  NULL};

const struct rk_db_migration rk_db_migrations[] = {{version_1, append_only_1}, {version_2, append_only_2}};
const int64_t rk_db_migration_count = sizeof(rk_db_migrations) / sizeof(rk_db_migrations[0]);

const struct rk_db_table rk_db_tables[] = {
    {"host", "id", "fingerprint", false},
    {"gpu", "id", "host_id ordinal", false},
    {"software", "id", "fingerprint", false},
    {"topology", "id", "fingerprint", false},
    {"link", "id", "topology_id source destination kind", false},
    {"campaign", "id", "uuid", true},
    {"campaign_rank", "campaign_id, process, rank", NULL, false},
    {"bench_case", "id",
     "op type flags dim0 dim1 dim2 dim3 dim4 dim5 dim6 dim7 group_kind group_size crosses_hosts concurrent_ranks "
     "row_share operands mode partner",
     false},
    {"measurement", "id", NULL, false},
    {"sample", "measurement_id", NULL, false},
    {"telemetry", "id", NULL, false},
    {"fit", "id", NULL, false},
    {"fit_input", "fit_id, measurement_id", NULL, false},
    {"plan", "id", "uuid", true},
    {"candidate", "plan_id, ordinal", NULL, false},
    {"term_source", "plan_id, ordinal", NULL, false},
    {"run", "id", "uuid", true},
    {"run_step", "run_id, step", NULL, false},
    {"run_op", "run_id, ordinal", NULL, false},
    {"run_memory", "run_id, rank, owner, space", NULL, false},
    {"comparison", "run_id, series, ordinal", NULL, false},
};
const size_t rk_db_table_count = sizeof(rk_db_tables) / sizeof(rk_db_tables[0]);

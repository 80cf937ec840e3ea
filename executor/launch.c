/* Discovery: which of the launchers that people use has started this process, and what it says. */
#include "executor/launch.h"

#include "base/hash.h"
#include "executor/launch_local.h"
#include "executor/launch_slurm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ports for jobs whose launcher gives none: below the range from which systems give ports to clients. */
enum { DEFAULT_PORT = 24317, JOB_PORT_FIRST = 20000, JOB_PORT_COUNT = 12000 };

static const char *const launcher_names[RK_LAUNCHER_COUNT] = {
    [RK_LAUNCHER_FLAGS] = "flags",   [RK_LAUNCHER_TORCHRUN] = "torchrun", [RK_LAUNCHER_OPENMPI] = "Open MPI",
    [RK_LAUNCHER_PMIX] = "PMIx",     [RK_LAUNCHER_PMI] = "PMI",           [RK_LAUNCHER_SLURM] = "Slurm",
    [RK_LAUNCHER_SINGLE] = "single",
};

const char *rk_launcher_name(enum rk_launcher launcher) {
    return launcher < RK_LAUNCHER_COUNT ? launcher_names[launcher] : "unknown";
}

/* The variables of a launcher; NULL where it has none. `presence`: a variable without which the others mean nothing. */
struct variables {
    enum rk_launcher launcher;
    const char *presence, *rank, *world, *local_rank, *local_world;
};

/* PMIx gives no world size in the environment; it is taken from another source. A Slurm batch script has a task number
 * too, but it is one process however many tasks are allocated: only srun starts tasks, and only its processes have a
 * step. */
static const struct variables launchers[] = {
    {RK_LAUNCHER_TORCHRUN, NULL, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {RK_LAUNCHER_OPENMPI, NULL, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {RK_LAUNCHER_PMIX, NULL, "PMIX_RANK", NULL, NULL, NULL},
    {RK_LAUNCHER_PMI, NULL, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {RK_LAUNCHER_SLURM, "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
};
enum { LAUNCHERS = sizeof launchers / sizeof launchers[0] };

void rk_launch_forget_launchers(void) {
    static const char *const others[] = {
        "SLURM_STEP_ID",       "SLURM_NTASKS",
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
        "GROUP_RANK",          "GROUP_WORLD_SIZE",
        "MASTER_ADDR",         "MASTER_PORT",
        "PMIX_NAMESPACE",      "OMPI_MCA_ess_base_jobid",
        "PMI_JOBID",           "RECKON_JOB_TOKEN",
        "RECKON_LISTENER",
    };
    for (int i = 0; i < LAUNCHERS; i++) {
        const char *names[] = {launchers[i].presence, launchers[i].rank, launchers[i].world, launchers[i].local_rank,
                               launchers[i].local_world};
        for (size_t j = 0; j < sizeof names / sizeof names[0]; j++)
            if (names[j] != NULL)
                unsetenv(names[j]);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        unsetenv(others[i]);
}

/* What one source says of this process. */
struct claim {
    enum rk_launcher launcher;
    char what[96];       /* "RANK=3, WORLD_SIZE=8" */
    int64_t rank, world; /* world 0: not said */
    int64_t local_rank, local_world;
};

/* An empty variable counts as absent. */
static const char *variable(const char *name) {
    const char *value = name != NULL ? getenv(name) : NULL;
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static enum rk_status read_variable(const char *name, int64_t minimum, int64_t maximum, int64_t *value,
                                    struct rk_error *error) {
    const char *text = variable(name);
    size_t digits = strspn(text, "0123456789");
    long long number = digits > 0 && digits < 10 && text[digits] == '\0' ? strtoll(text, NULL, 10) : -1;
    if (number < minimum || number > maximum)
        return rk_fail(error, RK_USAGE, "%s is \"%.40s\": a whole number from %lld to %lld is expected", name, text,
                       (long long)minimum, (long long)maximum);
    *value = number;
    return RK_OK;
}

/* Old versions of Slurm do not set the step's own number of tasks. */
static const char *world_variable(const struct variables *names) {
    if (names->launcher == RK_LAUNCHER_SLURM && variable(names->world) == NULL)
        return "SLURM_NTASKS";
    return names->world;
}

static enum rk_status read_claim(const struct variables *names, struct claim *claim, bool *found,
                                 struct rk_error *error) {
    const char *world_name = world_variable(names);
    const char *rank_text = variable(names->rank), *world_text = variable(world_name);
    *found = false;
    if ((names->presence != NULL && variable(names->presence) == NULL) || (rank_text == NULL && world_text == NULL))
        return RK_OK;
    if (rank_text == NULL || (world_text == NULL && world_name != NULL))
        return rk_fail(error, RK_USAGE, "%s is set but %s is not; set both or neither",
                       rank_text != NULL ? names->rank : world_name, rank_text != NULL ? world_name : names->rank);
    *claim = (struct claim){.launcher = names->launcher};
    enum rk_status status = RK_OK;
    if (world_name != NULL)
        status = read_variable(world_name, 1, INT32_MAX, &claim->world, error);
    if (status == RK_OK)
        status = read_variable(names->rank, 0, claim->world > 0 ? claim->world - 1 : INT32_MAX, &claim->rank, error);
    if (status == RK_OK && variable(names->local_world) != NULL)
        status = read_variable(names->local_world, 1, claim->world, &claim->local_world, error);
    if (status == RK_OK && variable(names->local_rank) != NULL)
        status = read_variable(names->local_rank, 0, claim->local_world > 0 ? claim->local_world - 1 : claim->rank,
                               &claim->local_rank, error);
    if (status != RK_OK)
        return status;
    if (claim->world > 0)
        snprintf(claim->what, sizeof claim->what, "%s=%lld, %s=%lld", names->rank, (long long)claim->rank, world_name,
                 (long long)claim->world);
    else
        snprintf(claim->what, sizeof claim->what, "%s=%lld", names->rank, (long long)claim->rank);
    *found = true;
    return RK_OK;
}

static bool equals(const char *name, int64_t number) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)number);
    const char *value = variable(name);
    return value != NULL && strcmp(value, text) == 0;
}

/* One launcher may start the daemons of another, one on each node (srun torchrun, mpirun in an allocation): then the
 * outer one counts daemons, and what it says is not about ranks. */
static bool starts_daemons(const struct claim *outer, const struct claim *inner) {
    if (inner->launcher == RK_LAUNCHER_TORCHRUN && variable("TORCHELASTIC_RUN_ID") != NULL &&
        equals("GROUP_WORLD_SIZE", outer->world))
        return true;
    bool one_a_node = equals("SLURM_STEP_NUM_NODES", outer->world) || equals("SLURM_NNODES", outer->world);
    return outer->launcher == RK_LAUNCHER_SLURM && one_a_node && inner->launcher != RK_LAUNCHER_FLAGS &&
           inner->world > outer->world;
}

static enum rk_status reconcile(struct claim *chosen, const struct claim *other, struct rk_error *error) {
    if (other->world > 0 && chosen->world > 0 && starts_daemons(other, chosen))
        return RK_OK;
    bool worlds_part = other->world > 0 && chosen->world > 0 && other->world != chosen->world;
    if (worlds_part || other->rank != chosen->rank)
        return rk_fail(
            error, RK_USAGE,
            "%s says %s, but %s says %s; both cannot be right. Unset the variables of the one that did not start "
            "this job",
            rk_launcher_name(chosen->launcher), chosen->what, rk_launcher_name(other->launcher), other->what);
    if (chosen->world == 0)
        chosen->world = other->world;
    if (chosen->local_world == 0 && other->local_world > 0) {
        chosen->local_rank = other->local_rank;
        chosen->local_world = other->local_world;
    }
    return RK_OK;
}

static enum rk_status read_flags(int64_t flag_rank, int64_t flag_world, struct claim *claim, bool *found,
                                 struct rk_error *error) {
    *found = flag_rank >= 0 || flag_world > 0;
    if (!*found)
        return RK_OK;
    if (flag_rank < 0 || flag_world <= 0)
        return rk_fail(error, RK_USAGE, "--%s is given but --%s is not; give both", flag_rank >= 0 ? "rank" : "world",
                       flag_rank >= 0 ? "world" : "rank");
    if (flag_rank >= flag_world)
        return rk_fail(error, RK_USAGE, "--rank %lld of --world %lld: ranks are 0 to %lld", (long long)flag_rank,
                       (long long)flag_world, (long long)flag_world - 1);
    *claim = (struct claim){.launcher = RK_LAUNCHER_FLAGS, .rank = flag_rank, .world = flag_world};
    snprintf(claim->what, sizeof claim->what, "--rank %lld --world %lld", (long long)flag_rank, (long long)flag_world);
    return RK_OK;
}

static enum rk_status choose(int64_t flag_rank, int64_t flag_world, struct claim *chosen, struct rk_error *error) {
    bool have;
    enum rk_status status = read_flags(flag_rank, flag_world, chosen, &have, error);
    for (int i = 0; i < LAUNCHERS && status == RK_OK; i++) {
        struct claim claim;
        bool found;
        status = read_claim(&launchers[i], &claim, &found, error);
        if (status != RK_OK || !found)
            continue;
        if (have)
            status = reconcile(chosen, &claim, error);
        else
            *chosen = claim;
        have = true;
    }
    /* Nobody says anything; or a launcher has started one process (srun -n 1, a shell under salloc), which may then
     * start ranks of its own. A rank that rk_launch_local has started alone is one. */
    if (status == RK_OK && (!have || (chosen->world == 1 && chosen->launcher != RK_LAUNCHER_FLAGS &&
                                      variable("RECKON_JOB_TOKEN") == NULL)))
        *chosen = (struct claim){.launcher = RK_LAUNCHER_SINGLE, .world = 1, .local_world = 1};
    if (status == RK_OK && chosen->world == 0)
        status = rk_fail(error, RK_USAGE, "%s says %s but not of how many; give --rank and --world",
                         rk_launcher_name(chosen->launcher), chosen->what);
    return status;
}

/* What tells this job from others: an identifier that the launcher gives to all ranks and to no other job. */
static void find_token(char *token, size_t size) {
    static const char *const names[] = {"RECKON_JOB_TOKEN",        "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE",
                                        "OMPI_MCA_ess_base_jobid", "PMI_JOBID",           "SLURM_JOB_ID"};
    token[0] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = variable(names[i]);
        if (value == NULL)
            continue;
        const char *step = strcmp(names[i], "SLURM_JOB_ID") == 0 ? variable("SLURM_STEP_ID") : NULL;
        snprintf(token, size, "%.100s%s%.20s", value, step != NULL ? "." : "", step != NULL ? step : "");
        return;
    }
}

static enum rk_status find_master(const struct claim *claim, const char *flag_master, char *master, size_t size,
                                  struct rk_error *error) {
    const char *given = variable("MASTER_ADDR");
    if (flag_master != NULL && given != NULL && strcmp(flag_master, given) != 0)
        return rk_fail(error, RK_USAGE, "--master says %.100s, but MASTER_ADDR says %.100s; give one of them",
                       flag_master, given);
    if (flag_master != NULL)
        given = flag_master;
    if (given != NULL) {
        if (strlen(given) >= size)
            return rk_fail(error, RK_USAGE, "the host of rank 0, \"%.60s...\", is too long", given);
        snprintf(master, size, "%s", given);
        return RK_OK;
    }
    if (claim->local_world == claim->world) {
        snprintf(master, size, "127.0.0.1");
        return RK_OK;
    }
    /* Slurm and the launchers that ask it place rank 0 on the first host. */
    const char *hosts = variable("SLURM_STEP_NODELIST");
    if (hosts == NULL || claim->launcher != RK_LAUNCHER_SLURM)
        hosts = variable("SLURM_JOB_NODELIST") != NULL ? variable("SLURM_JOB_NODELIST") : hosts;
    int64_t count;
    if (hosts != NULL && claim->launcher != RK_LAUNCHER_FLAGS)
        return rk_slurm_host(hosts, 0, master, size, &count, error);
    return rk_fail(error, RK_USAGE, "%s says %s, but not where rank 0 is; give --master HOST or set MASTER_ADDR",
                   rk_launcher_name(claim->launcher), claim->what);
}

static enum rk_status find_port(int32_t flag_port, const char *token, int32_t *port, struct rk_error *error) {
    int64_t given = 0;
    if (variable("MASTER_PORT") != NULL) {
        enum rk_status status = read_variable("MASTER_PORT", 1, 65535, &given, error);
        if (status != RK_OK)
            return status;
    }
    if (flag_port > 0 && given > 0 && flag_port != given)
        return rk_fail(error, RK_USAGE, "--port says %d, but MASTER_PORT says %d; give one of them", flag_port,
                       (int)given);
    if (flag_port < 0 || flag_port > 65535)
        return rk_fail(error, RK_USAGE, "--port %d: ports are 1 to 65535", flag_port);
    if (flag_port > 0 || given > 0) {
        *port = flag_port > 0 ? flag_port : (int32_t)given;
        /* torchrun's agent keeps its own store on MASTER_PORT. */
        const char *agent = variable("TORCHELASTIC_USE_AGENT_STORE");
        if (flag_port == 0 && agent != NULL && strcmp(agent, "True") == 0)
            *port = *port < 65535 ? *port + 1 : *port - 1;
        return RK_OK;
    }
    *port = DEFAULT_PORT;
    if (token[0] != '\0') {
        /* Two jobs on one host must not want the same port. */
        struct rk_sha256 hash;
        unsigned char digest[32];
        rk_sha256_begin(&hash);
        rk_sha256_add(&hash, token, strlen(token));
        rk_sha256_end(&hash, digest);
        *port = JOB_PORT_FIRST + (digest[0] << 8 | digest[1]) % JOB_PORT_COUNT;
    }
    return RK_OK;
}

enum rk_status rk_launch_discover(int64_t flag_rank, int64_t flag_world, const char *flag_master, int32_t flag_port,
                                  struct rk_place *place, struct rk_error *error) {
    struct claim claim;
    struct rk_place found = {0};
    enum rk_status status = choose(flag_rank, flag_world, &claim, error);
    if (status != RK_OK)
        return status;
    found.launcher = claim.launcher;
    found.rank = claim.rank;
    found.world = claim.world;
    found.local_rank = claim.local_rank;
    found.local_world = claim.local_world;
    find_token(found.token, sizeof found.token);
    if (claim.world > 1) {
        status = find_master(&claim, flag_master, found.master, sizeof found.master, error);
        if (status == RK_OK)
            status = find_port(flag_port, found.token, &found.port, error);
        int64_t listener = 0;
        if (status == RK_OK && claim.rank == 0 && variable("RECKON_LISTENER") != NULL)
            status = read_variable("RECKON_LISTENER", 3, 1 << 20, &listener, error);
        found.listener = (int32_t)listener;
    }
    if (status != RK_OK)
        return status;
    *place = found;
    return RK_OK;
}

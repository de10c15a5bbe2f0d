/* launch.c -- the launcher of the ranks, and the configuration keys that follow from it. */
#define _DEFAULT_SOURCE
#include "cli/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cli/config/nodes.h"
#include "world/flight_recorder.h"

Err launch_open(Launch *l, FlightRecorder *recorder)
{
    *l = (Launch){.by = {.ranks = 1}, .ranks = 1, .here = 1};
    MpiLaunch by;
    if (!mpi_launched(getenv, &by) || by.ranks == 1) return OK;
    l->by = by;
    l->rank = by.rank;
    l->ranks = by.ranks;
    atomic_store(&recorder->start, START_MPI_INIT);
    TRY(mpi_start(NULL, &by, &l->comm_world));
    atomic_store(&recorder->start, START_PREPARES);
    return OK;
}

void launch_close(Launch *l)
{
    comm_world_stop(l->comm_world);
    l->comm_world = NULL;
}

/* The first of these variables that is set, as a number; -1: none is. */
static int first_number(const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (getenv(names[i])) return (int)strtol(getenv(names[i]), NULL, 10);
    return -1;
}

void launch_sharing(Launch *l)
{
    static const char *const size[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                       "SLURM_TASKS_PER_NODE"};
    static const char *const rank[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                       "SLURM_LOCALID"};
    cores_find(&l->cores);
    l->host_ranks = l->by.ranks > 1 && first_number(size, 3) > 0 ? first_number(size, 3) : 0;
    l->sharing = l->here;
    l->first = 0;
    if (l->by.ranks == 1 || l->cores.bound) return;
    const int ranks = first_number(size, 3), mine = first_number(rank, 3);
    l->sharing = ranks > 0 ? ranks : 1;
    l->first = mine >= 0 && mine < l->sharing ? mine : 0;
}

/* run.pin=auto pins only a run that needs all cores. Two smaller runs would start at the same first
 * core and share it. */
static void settle_pin(Launch *l, const Config *c)
{
    l->threads = (int)c->run_threads;
    const int64_t need = (int64_t)l->sharing * l->threads;
    const bool whole = need == l->cores.n && l->cores.quota == l->cores.n;
    l->pins =
        need <= l->cores.quota && (c->run_pin == PIN_TRUE || (c->run_pin == PIN_AUTO && whole));
    l->shares = c->run_pin == PIN_AUTO;
    if (c->run_pin == PIN_FALSE || need <= l->cores.quota) return;
    snprintf(l->why_free, sizeof l->why_free,
             "threads are not pinned: %d ranks of %d threads share %d cores%s", l->sharing,
             l->threads, l->cores.quota,
             l->cores.quota < l->cores.n ? ", the quota of a cgroup" : "");
}

static bool was_given(const Config *c, KeyId key) { return strcmp(c->origin[key], "default") != 0; }

/* ERR_CONFIG if the launcher's ranks do not fit the mesh of the keys: run.ranks is no way out under
 * a launcher, but its number of ranks is. */
static Err check_ranks(const Launch *l, const Config *c)
{
    const long long tp = c->mesh_tp, cp = c->mesh_cp, pp = c->mesh_pp, dp = c->mesh_dp;
    const long long others = tp * cp * pp, ranks = l->by.ranks, low = ranks / others * others;
    char use[64];
    if (!c->dp_follows && dp * others != ranks)
        return err_fail(ERR_CONFIG,
                        "%s started %lld ranks, and the mesh dp x tp x cp x pp = %lld x %lld x "
                        "%lld x %lld has %lld; use -n %lld, or mesh.dp=-1: the ranks that the "
                        "others leave",
                        l->by.by, ranks, dp, tp, cp, pp, dp * others, dp * others);
    if (low == ranks) return OK;
    snprintf(use, sizeof use, "-n %lld or -n %lld", low, low + others);
    if (low == 0) snprintf(use, sizeof use, "-n %lld", others);
    return err_fail(ERR_CONFIG,
                    "%s started %lld ranks, and tp x cp x pp = %lld x %lld x %lld = %lld does not "
                    "divide them; use %s, or change the mesh",
                    l->by.by, ranks, tp, cp, pp, others, use);
}

/* Loads the keys again, with run.ranks and run.threads from the launcher as additional
 * arguments. */
static Err config_launched(const Launch *l, const Args *args, Arena *a, Config *out)
{
    const char **set;
    char ranks[40], threads[40];
    int n = args->n_set;
    const int share = l->cores.quota < l->sharing ? 1 : l->cores.quota / l->sharing;
    snprintf(ranks, sizeof ranks, "run.ranks=%d", l->by.ranks);
    snprintf(threads, sizeof threads, "run.threads=%d", share);
    TRY(ARENA_NEW(a, n + 2, &set));
    if (n > 0) memcpy(set, args->set, sizeof *set * (size_t)n);
    set[n++] = ranks;
    if (!was_given(out, KEY_run_threads)) set[n++] = threads;
    const ConfigSource from = {.file = args->file, .plan = args->plan, .set = set, .n_set = n};
    return config_open(&from, a, out);
}

/* The nodes of mesh.nodes are consecutive ranks of the launcher, so a host must have whole ones. */
static Err check_nodes(const Launch *l, const Config *c)
{
    const int n = config_nodes(c), each = n ? l->by.ranks / n : 1;
    if (n == 0 || l->host_ranks % each == 0) return OK;
    return err_fail(ERR_CONFIG,
                    "%s: mesh.nodes lists %d nodes of %d ranks, and %s started %d ranks on this "
                    "host; start whole nodes on each host, in the order of their numbers",
                    c->origin[KEY_mesh_nodes], n, each, l->by.by, l->host_ranks);
}

Err launch_config(Launch *l, const Args *args, Arena *a, Config *out)
{
    const bool launched = l->by.ranks > 1;
    TRY(args_config(args, a, out));
    if (launched && was_given(out, KEY_run_ranks))
        return err_fail(ERR_CONFIG,
                        "%s: run.ranks=%lld: %s started %d ranks already, each a process; remove "
                        "run.ranks, or start sheaf without %s and its ranks are threads",
                        out->origin[KEY_run_ranks], (long long)out->run_ranks, l->by.by,
                        l->by.ranks, l->by.by);
    if (launched) TRY(check_ranks(l, out));
    l->here = launched ? 1 : (int)out->run_ranks;
    if (!launched) TRY(flight_recorder_check(out->run_ranks));
    launch_sharing(l);
    if (launched) TRY(config_launched(l, args, a, out));
    l->ranks = (int)out->run_ranks;
    settle_pin(l, out);
    if (launched) {
        TRY(check_nodes(l, out));
        l->rank = config_mesh_rank(out, l->by.rank);
    }
    if (launched) out->run_ranks = 0; /* the saved config.yaml leaves it to the launcher */
    return OK;
}

Err launch_renumber(Launch *l, bool loaded)
{
    if (!l->comm_world) return OK;
    TRY(comm_world_renumber(l->comm_world, loaded ? l->rank : -1));
    l->rank = l->comm_world->rank;
    return OK;
}

Err launch_team(const Launch *l, int place, Team **out)
{
    if (l->pins) {
        TRY(team_open_on(out, l->threads, &l->cores, l->sharing, l->first + place));
        if (l->shares) team_share_cores(*out);
        return OK;
    }
    const bool oversubscribed = (int64_t)l->sharing * l->threads > l->cores.quota;
    return team_open(out, l->threads, &(TeamPinning){NULL, oversubscribed});
}

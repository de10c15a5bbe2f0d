/* launch.c -- who started the ranks, and the keys that follow from it. */
#define _DEFAULT_SOURCE
#include "cli/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/team.h"

Err launch_open(Launch *l)
{
    *l = (Launch){.by = {.ranks = 1}, .ranks = 1, .here = 1};
    MpiLaunch by;
    if (!mpi_launched(getenv, &by) || by.ranks == 1) return OK;
    l->by = by;
    l->ranks = by.ranks;
    return mpi_start(NULL, &by, &l->mpi);
}

void launch_close(Launch *l)
{
    if (l->mpi) mpi_stop(l->mpi);
    l->mpi = NULL;
}

/* Cores of one process of several on this machine: those it is bound to, or its share of all. */
static int64_t cores_here(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "SLURM_TASKS_PER_NODE"};
    const char *text = NULL;
    for (int i = 0; i < 3 && !text; i++) text = getenv(names[i]);
    const long others = text ? strtol(text, NULL, 10) : 1, bound = team_cores();
    const long share = sysconf(_SC_NPROCESSORS_ONLN) / (others > 0 ? others : 1);
    return share < 1 ? 1 : share < bound ? share : bound;
}

static bool was_given(const Config *c, KeyId key) { return strcmp(c->origin[key], "default") != 0; }

/* The keys again, with what the launcher decides as arguments of its own. */
static Err config_launched(const Launch *l, const Args *args, Arena *a, Config *out)
{
    const char **set;
    char ranks[40], threads[40];
    int n = args->n_set;
    snprintf(ranks, sizeof ranks, "run.ranks=%d", l->by.ranks);
    snprintf(threads, sizeof threads, "run.threads=%lld", (long long)cores_here());
    TRY(ARENA_NEW(a, n + 2, &set));
    if (n > 0) memcpy(set, args->set, sizeof *set * (size_t)n);
    set[n++] = ranks;
    if (!was_given(out, KEY_run_threads)) set[n++] = threads;
    return config_load(args->file, set, n, a, out);
}

Err launch_config(Launch *l, const Args *args, Arena *a, Config *out)
{
    const bool launched = l->by.ranks > 1;
    TRY(config_load(args->file, args->set, args->n_set, a, out));
    if (launched && was_given(out, KEY_run_ranks))
        return err_fail(ERR_CONFIG,
                        "%s: run.ranks=%lld: %s started %d ranks already, each a process; remove "
                        "run.ranks, or start sheaf without %s and its ranks are threads",
                        out->origin[KEY_run_ranks], (long long)out->run_ranks, l->by.by,
                        l->by.ranks, l->by.by);
    if (launched) TRY(config_launched(l, args, a, out));
    l->ranks = (int)out->run_ranks;
    l->here = launched ? 1 : l->ranks;
    if (launched)
        out->run_ranks = 0; /* a run file that repeats the run leaves it to the launcher */
    return OK;
}

bool launch_pins(const Launch *l, int64_t threads)
{
    return l->by.ranks == 1 && l->here * threads >= team_cores();
}

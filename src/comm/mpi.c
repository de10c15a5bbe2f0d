/* mpi.c -- the launchers of processes, and the plugin sheaf-mpi.so. */
#include "comm/mpi.h"

#include <limits.h>
#include <stdlib.h>
#include "base/plugin.h"
#include "comm/mpi/entry.h"

/* Environment variables of each launcher. The variables of a row are set for ranks only: a batch
 * script of Slurm, for example, has SLURM_NTASKS and is no rank. */
static const struct {
    const char *by, *rank, *ranks;
} launchers[] = {{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                 {"mpirun", "PMI_RANK", "PMI_SIZE"},
                 {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};

static bool number(const char *text, int *out)
{
    char *end;
    if (!text || !*text) return false;
    const long value = strtol(text, &end, 10);
    if (*end || value < 0 || value > INT_MAX) return false;
    *out = (int)value;
    return true;
}

bool mpi_launched(EnvGet *get, MpiLaunch *out)
{
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        MpiLaunch launch = {.by = launchers[i].by};
        if (!number(get(launchers[i].rank), &launch.rank)) continue;
        if (!number(get(launchers[i].ranks), &launch.ranks) || launch.rank >= launch.ranks)
            continue;
        *out = launch;
        return true;
    }
    return false;
}

static const Plugin plugin = {
    .module = "mpi",
    .file = "sheaf-mpi.so",
    .symbol = MPI_ENTRY_NAME,
    .abi = {{sizeof(Comm), sizeof(Transfer), sizeof(CommWorld)}},
    .global = true, /* an MPI library opens plugins of its own, which look for its symbols */
    .missing = "ranks that are processes need it: install an MPI (libopenmpi-dev on Debian) and "
               "build again, or start without mpirun: run.ranks=N makes ranks that are threads",
    .broken = "is the MPI it was built with there?"};

bool mpi_is_there(const char *path) { return plugin_exists(&plugin, path); }

Err mpi_start(const char *path, const MpiLaunch *launch, CommWorld **out)
{
    const void *entry;
    CommWorld *w;
    TRY(plugin_open(&plugin, path, &entry));
    TRY(((const MpiEntry *)entry)->start(&w));
    if (launch && (launch->ranks != w->ranks || launch->rank != w->rank)) {
        const Err err = err_fail(
            ERR_CONFIG,
            "mpi: %s started rank %d of %d, but MPI reports rank %d of %d; use the mpirun of "
            "the MPI that sheaf-mpi.so was built with, or srun --mpi=pmix",
            launch->by, launch->rank, launch->ranks, w->rank, w->ranks);
        comm_world_stop(w);
        return err;
    }
    *out = w;
    return OK;
}

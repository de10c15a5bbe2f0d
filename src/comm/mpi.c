/* mpi.c -- finds sheaf-mpi.so, opens it, and hands its functions out. */
#define _GNU_SOURCE
#include "comm/mpi.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/beside.h"
#include "comm/mpi/entry.h"

/* Who sets what. The variables of one row are set for ranks alone: a batch script of Slurm, for
 * one, has SLURM_NTASKS and is no rank. */
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

bool mpi_is_there(const char *path)
{
    char room[BESIDE_BYTES];
    return access(path_beside(path, "sheaf-mpi.so", room), R_OK) == 0;
}

static Err load(const char *path, const MpiEntry **out)
{
    char room[BESIDE_BYTES];
    path = path_beside(path, "sheaf-mpi.so", room);
    if (access(path, R_OK) != 0)
        return err_fail(ERR_CONFIG,
                        "mpi: %s is not there, and ranks that are processes need it; install an "
                        "MPI (libopenmpi-dev on Debian) and build again, or start without mpirun: "
                        "run.ranks=N makes ranks that are threads",
                        path);
    /* Global: an MPI library opens plugins of its own, which look for its symbols. */
    void *object = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!object)
        return err_fail(ERR_CONFIG,
                        "mpi: %s does not open: %s; is the MPI it was built with there?", path,
                        dlerror());
    const MpiEntry *entry = dlsym(object, MPI_ENTRY_NAME);
    if (!entry || entry->comm_bytes != sizeof(Comm) || entry->transfer_bytes != sizeof(Transfer))
        return err_fail(ERR_CONFIG,
                        "mpi: %s was built from other sources than this program; build "
                        "both again",
                        path);
    *out = entry;
    return OK;
}

Err mpi_start(const char *path, const MpiLaunch *launch, MpiWorld **out)
{
    const MpiEntry *entry;
    MpiWorld *w;
    TRY(load(path, &entry));
    TRY(entry->start(&w));
    if (launch && (launch->ranks != mpi_ranks(w) || launch->rank != mpi_rank(w))) {
        const Err err =
            err_fail(ERR_CONFIG,
                     "mpi: %s started rank %d of %d, but MPI says rank %d of %d; use the mpirun of "
                     "the MPI that sheaf-mpi.so was built with, or srun --mpi=pmix",
                     launch->by, launch->rank, launch->ranks, mpi_rank(w), mpi_ranks(w));
        mpi_stop(w);
        return err;
    }
    *out = w;
    return OK;
}

int mpi_rank(const MpiWorld *w) { return w->entry->rank(w); }

int mpi_ranks(const MpiWorld *w) { return w->entry->ranks(w); }

Err mpi_join(MpiWorld *w, Arena *a, const CommSettings *set, Comm **out)
{
    return w->entry->join(w, a, set, out);
}

void mpi_stop(MpiWorld *w) { w->entry->stop(w); }

void mpi_abort(MpiWorld *w, int status)
{
    w->entry->abort(w, status);
    abort(); /* not reached: MPI_Abort does not return */
}

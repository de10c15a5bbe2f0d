/* mpi.h -- ranks that are processes, under mpirun or srun.
 *
 * What needs an MPI library is a shared object, sheaf-mpi.so, that lies beside the program and is
 * opened at run time: so one binary starts everywhere.
 *
 *     MpiLaunch launch;
 *     if (mpi_launched(getenv, &launch)) {                    cli/ alone reads the environment
 *         TRY(mpi_start(NULL, &launch, &world));              before any thread
 *         settings.rank = mpi_rank(world), settings.ranks = mpi_ranks(world);
 *         TRY(mpi_join(world, &arena, &settings, &comm));
 *         ...
 *         comm_close(comm);                                   before its memory goes
 *         mpi_stop(world);                                    all ranks, also those that failed
 *     }
 *
 * One thread of a rank uses the comm, and it is the one that called mpi_start. */
#ifndef COMM_MPI_H
#define COMM_MPI_H

#include "comm/comm.h"

typedef struct {
    const char *by; /* "mpirun", "srun" */
    int rank, ranks;
} MpiLaunch;

typedef struct MpiWorld MpiWorld;

/* Looks up a variable of the environment; NULL: not set. */
typedef char *EnvGet(const char *name);

/* Local. Was this process started as a rank, one of launch.ranks, which may be 1? */
bool mpi_launched(EnvGet *get, MpiLaunch *out);
/* Local. Is the shared object there? NULL: beside the running program. It is not opened: that may
 * still fail. */
bool mpi_is_there(const char *path);
/* Collective over all processes; once in a process. Opens the shared object (NULL: beside the
 * running program) and joins the others. ERR_CONFIG says what is missing, or that MPI counts other
 * ranks than the launcher. `launch` may be NULL: nothing to compare with. */
Err mpi_start(const char *path, const MpiLaunch *launch, MpiWorld **out);
/* Local. */
int mpi_rank(const MpiWorld *w);
int mpi_ranks(const MpiWorld *w);
/* Collective over the world: the comm of this rank, in its arena; one at a time. ERR_CONFIG when
 * the settings name another rank, or ask for a hostile comm: only `local` can be one. A rank that
 * closes it with transfers in flight has failed: it poisons the others. */
Err mpi_join(MpiWorld *w, Arena *a, const CommSettings *set, Comm **out);
/* Collective over the world, after comm_close. When a rank failed, and another does not come within
 * some seconds, ends all processes as mpi_abort does: say before what went wrong. */
void mpi_stop(MpiWorld *w);
/* Local. Ends all processes at once; the status is this one's. */
void mpi_abort(MpiWorld *w, int status) __attribute__((noreturn));

#endif

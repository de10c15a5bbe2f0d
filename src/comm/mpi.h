/* mpi.h -- ranks that are processes, under mpirun or srun.
 *
 * Code that needs an MPI library is a plugin, sheaf-mpi.so (base/plugin.h).
 *
 *     MpiLaunch launch;
 *     if (mpi_launched(getenv, &launch))                      cli/ alone reads the environment
 *         TRY(mpi_start(NULL, &launch, &world));              before any thread is started
 *     ...                                                     comm/comm_world.h
 *     comm_world_stop(world);
 *
 * MPI is used by one thread of a process: the one that called mpi_start. It is also the thread that
 * uses the comm. */
#ifndef COMM_MPI_H
#define COMM_MPI_H

#include "comm/comm_world.h"

typedef struct {
    const char *by; /* "mpirun", "srun" */
    int rank, ranks;
} MpiLaunch;

/* Looks up a variable of the environment; NULL: not set. */
typedef char *EnvGet(const char *name);

/* Local. True if a launcher started this process as one of launch.ranks ranks, which may be 1. */
bool mpi_launched(EnvGet *get, MpiLaunch *out);
/* Local. True if the plugin can be read (path NULL: next to the executable); it is not opened. Only
 * tests call it. */
bool mpi_is_there(const char *path);
/* Collective over all processes; once per process. Opens the plugin (path NULL: next to the
 * executable) and calls MPI_Init. ERR_CONFIG names the missing piece, or reports that MPI and the
 * launcher count different ranks; a launch of NULL skips that comparison. */
Err mpi_start(const char *path, const MpiLaunch *launch, CommWorld **out);

#endif

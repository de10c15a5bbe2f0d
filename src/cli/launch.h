/* launch.h -- the ranks of a run: threads of this process, or processes of a launcher.
 *
 *     sheaf train run.yaml run.ranks=4              four threads of this process
 *     mpirun -n 64 sheaf train run.yaml             this process is one of 64
 *
 * Both at once is an error: 4 x 64 ranks would be ambiguous. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include "cli/args.h"
#include "cli/config/config.h"
#include "base/team.h"
#include "comm/mpi.h"
#include "world/flight_recorder.h"

typedef struct {
    MpiLaunch by;          /* by.ranks is 1 without a launcher of several */
    int rank;              /* of this process, or its first rank */
    CommWorld *comm_world; /* of the processes that were launched; NULL: ranks are threads */
    int ranks;             /* of the run */
    int here;              /* ranks of this process */
    int host_ranks;        /* of this host, as the launcher says; 0: all */
    Cores cores;           /* usable by this process */
    int sharing, first;    /* ranks that share the cores; index of our first rank among them */
    int threads;           /* per rank */
    bool pins;             /* each thread is pinned to a core of its own */
    bool shares;           /* unless another process uses one of the cores */
    char why_free[160];    /* why threads are not pinned, if there are too few cores; else empty */
} Launch;

/* Collective over the launched processes, before any thread is started. Records that it is in
 * MPI_Init, for the watchdog. */
Err launch_open(Launch *l, FlightRecorder *recorder);
/* Collective over the launched processes: all leave together, also those that failed. */
void launch_close(Launch *l);
/* Local. Finds the cores and the ranks that share them: those of this process; or, if the launcher
 * did not bind processes to cores, those of all its processes on this host. */
void launch_sharing(Launch *l);
/* Local. Loads the configuration for the ranks that were started; sets ranks, here and the
 * cores. */
Err launch_config(Launch *l, const Args *args, Arena *a, Config *out);
/* Collective over the launched processes: gives each the rank of mesh.nodes, if all of them have
 * loaded their configuration. */
Err launch_renumber(Launch *l, bool loaded);
/* Local. The thread team of one rank of this process (index `place`), pinned according to
 * run.pin. */
Err launch_team(const Launch *l, int place, Team **out);

#endif

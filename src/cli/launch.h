/* launch.h -- how the ranks of a run were started.
 *
 *     sheaf train run.yaml run.ranks=4              four threads of this process
 *     mpirun -n 64 sheaf train run.yaml             this process is one of 64
 *
 * Both at once is an error: it cannot be told whether 4 x 64 ranks were meant. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include "cli/args.h"
#include "cli/config/config.h"
#include "base/team.h"
#include "comm/mpi.h"

typedef struct {
    MpiLaunch by;          /* by.ranks is 1 where nobody launched several */
    CommWorld *comm_world; /* of the processes that were launched; NULL: ranks are threads */
    int ranks;             /* of the run; of this process: */
    int here;
    Cores cores; /* that it may use, which `sharing` ranks do, its own from the first-th on */
    int sharing, first, threads;
    bool pins;          /* each thread has a core of its own */
    char why_free[160]; /* why not, where there are too few; else empty */
} Launch;

/* Collective over the processes that were launched, before any thread. */
Err launch_open(Launch *l);
/* Collective likewise: all leave together, also those that failed. */
void launch_close(Launch *l);
/* Local. The configuration for the ranks that there are; fills ranks and here. */
Err launch_config(Launch *l, const Args *args, Arena *a, Config *out);
/* Local. The threads of the place-th rank of this process, on the cores that run.pin gives it. */
Err launch_team(const Launch *l, int place, Team **out);

#endif

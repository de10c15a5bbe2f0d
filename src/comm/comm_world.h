/* comm_world.h -- the ranks of a run, however they were started: threads or processes.
 *
 *     TRY(local_start(4, &world));                    ranks 0 .. 3, all threads of this process
 *     TRY(mpi_start(NULL, &launch, &world));          one rank of many, each a process
 *     ... for each of the world->here ranks of this process, in a thread of its own:
 *         settings.rank = world->rank + i, settings.ranks = world->ranks;
 *         TRY(comm_join(world, &arena, &settings, &comm));
 *         ...
 *         comm_close(comm);                           before its registered memory is freed
 *     comm_world_stop(world);                         after all comms of this process are closed
 *
 * A backend fills the table and embeds it as the first member of its own struct. */
#ifndef COMM_COMM_WORLD_H
#define COMM_COMM_WORLD_H

#include "comm/comm.h"

typedef struct CommWorld CommWorld;

struct CommWorld {
    const char *name; /* "local", "mpi" */
    int ranks;        /* of the world */
    int rank, here;   /* this process has ranks rank .. rank + here - 1 */
    bool processes;   /* each rank is a process; else all are threads of this one */
    Err (*renumber)(CommWorld *w, int rank);
    Err (*join)(CommWorld *w, Arena *a, const CommSettings *set, Comm **out);
    void (*stop)(CommWorld *w);
    void (*abort)(CommWorld *w, int status);
};

/* Collective over the processes, while no comm is open: the rank of this process becomes `rank`.
 * If one of them passes -1, all keep their ranks. ERR_CONFIG if two pass the same, and for
 * threads. */
static inline Err comm_world_renumber(CommWorld *w, int rank) { return w->renumber(w, rank); }

/* Creates the comm of one rank, in the rank's arena. Local for threads, Collective over the world
 * for processes, where one comm is open at a time. ERR_CONFIG if the settings name other ranks than
 * the world has, if the rank has joined before, and for a hostile comm of processes: only `local`
 * can be one. A rank that closes its comm with transfers in flight has failed: it aborts the
 * world. */
static inline Err comm_join(CommWorld *w, Arena *a, const CommSettings *set, Comm **out)
{
    return w->join(w, a, set, out);
}

/* Collective over the processes, after comm_close, also on those that failed; frees the world. If a
 * rank failed and another process does not arrive within some seconds, this ends all processes as
 * comm_world_abort does: print the error before. NULL is a world that never started. */
static inline void comm_world_stop(CommWorld *w)
{
    if (w) w->stop(w);
}

/* Local. Ends all processes of the world at once; `status` is the exit status of this one. */
static inline void comm_world_abort(CommWorld *w, int status) { w->abort(w, status); }

#endif

/* roll_call.h -- who has started among the processes of one launcher on this host.
 *
 *     mpirun -n 3                  /dev/shm/sheaf-UID-JOB
 *       sheaf, rank 0   --write--> rank 0: pid 4711, worker 4714, in MPI_Init
 *       sheaf, rank 1   --write--> rank 1: pid 4712, worker 4715
 *       sheaf, rank 2              rank 2: nothing yet
 *
 * Before MPI has started, ranks cannot ask each other. A rank that waits for the start can read
 * here which of the ranks of its host are missing or stopped. */
#ifndef CLI_ROLL_CALL_H
#define CLI_ROLL_CALL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/text.h"
#include "comm/mpi.h"
#include "world/flight_recorder.h"

typedef struct {
    _Atomic int32_t pid, worker; /* 0: not started on this host */
    _Atomic int32_t start;       /* StartPhase of the worker */
} RollEntry;

typedef struct {
    int rank, ranks;
    RollEntry *entry; /* [ranks], shared; NULL: the launcher gives its jobs no name */
    char path[128];
} RollCall;

/* Local. Opens the list of this job and enters this process as rank by->rank. */
void roll_call_open(RollCall *r, EnvGet *get, const MpiLaunch *by);
/* Local. Enters the worker, and its phase. */
void roll_call_enter(RollCall *r, int worker, int start);
/* Local. Removes the list; others keep what they have mapped. */
void roll_call_close(RollCall *r);
/* Local. Adds the ranks of this host that keep those in phase `start` waiting: "rank 1 (pid 4712)
 * is stopped; rank 2 has not started on this host". A rank that prepares is not named. Returns how
 * many there are. */
int roll_call_missing(const RollCall *r, int start, Text *t);
/* Local. Kills the ranks of this host that are stopped: a launcher may wait for them for ever. */
void roll_call_end_stopped(const RollCall *r);
/* Local. True if the process is stopped, by SIGSTOP or a debugger. */
bool process_is_stopped(int pid);

#endif

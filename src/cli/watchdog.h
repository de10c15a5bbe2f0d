/* watchdog.h -- the parent of a worker finds that it is stuck, names the rank, and ends the run.
 *
 *     starting   a launcher has started this process as a rank, and MPI_Init does not return within
 *                the timeout, or a stopped rank keeps the others from joining: names the ranks of
 *                this host that are missing or stopped
 *     stuck      no rank of the worker moves, and a transfer is in flight, for longer than the
 *                timeout: a thread hangs inside a call (of CUDA, of NCCL, of a file system), so
 *                that it cannot find the timeout itself
 *     failed     a rank has failed, and another has not ended FAILED_S later
 *     told       a signal asked the run to end, and a rank has not moved for the timeout since
 *
 * The timeout is run.timeout_s; a rank that can still act reports first, and the parent follows
 * GRACE_S later. Time in which the process was stopped (Ctrl-Z) does not count. */
#ifndef CLI_WATCHDOG_H
#define CLI_WATCHDOG_H

#include "cli/roll_call.h"
#include "world/flight_recorder.h"

enum { GRACE_S = 2, FAILED_S = 10 };

typedef struct {
    uint64_t mark;  /* hash of the rank's position */
    double moved_s; /* when it last changed */
} RankLook;

typedef struct {
    const FlightRecorder *recorder;
    int worker;       /* pid */
    double timeout_s; /* until the worker has set its own */
    int start;        /* StartPhase at the last look */
    double phase_s;   /* since when */
    double awake_s;   /* when the worker was last seen not stopped */
    double seen_s;    /* of the last look */
    double told_s;    /* first signal that ends the run; 0: none */
    double failed_s;  /* first look at a failed rank; 0: none */
    bool launched;    /* by mpirun or srun, with several ranks */
    RollCall roll;    /* if launched */
    RankLook *look;   /* [recorder->n_here], once that is set */
    Arena *temp;
    char host[64];
} Watchdog;

/* Local. argv: the arguments of the verb; run.timeout_s may be among them. */
void watchdog_open(Watchdog *w, const FlightRecorder *b, int argc, char **argv, EnvGet *get,
                   Arena *temp);
void watchdog_close(Watchdog *w);
/* Local. Adds the reason if the run must end now, and returns true. Call it a few times a second;
 * now_s: the monotonic clock. */
bool watchdog_look(Watchdog *w, double now_s, Text *why);

#endif

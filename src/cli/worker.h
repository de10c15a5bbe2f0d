/* worker.h -- verbs that run ranks do so in a child, and the parent says how it ended.
 *
 *     sheaf ---- fork, before any thread ----> worker: the verb, its threads, its ranks
 *       | waits; passes signals on               | dies with its parent
 *       v                                        v
 *     exit status: the worker's, or 128 + n      board: where each rank is (world/flight_recorder.h)
 *     when it died of signal n
 *
 * After a crash the parent names the rank and the instruction, and what the other ranks did; it
 * writes recorder.json to the run folder. */
#ifndef CLI_WORKER_H
#define CLI_WORKER_H

#include "world/flight_recorder.h"

/* How a worker ended. */
typedef struct {
    int status;     /* exit status */
    bool by_user;   /* a signal that asks a program to end came, or the worker died of one */
    char dir[1024]; /* its run folder; "": it had none yet */
    char why[512];  /* in words; "": it ended well, or said so itself */
} WorkerEnd;

/* Local: call it before any thread is started. The exit status; and, where `end` is not NULL, more of
 * how it ended. */
int worker_run(int (*work)(int argc, char **argv, FlightRecorder *recorder), int argc, char **argv,
               WorkerEnd *end);
/* Local. Flushes standard output; the exit status, which is not 0 when that fails. */
int worker_flush(int status);
/* Local. Writes dir/recorder.json of a run that failed for this reason, where there is a run
 * folder and ranks were many enough to wait for each other. Returns the path, in `path`, or NULL.
 * */
const char *worker_dump(const FlightRecorder *b, const char *reason, char path[1200]);

#endif

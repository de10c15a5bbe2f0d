/* worker.h -- runs a verb with ranks in a child process, and reports how the child ended.
 *
 *     sheaf ---- fork, before any thread ----> worker: the verb, its threads, its ranks
 *       | waits; forwards signals                | dies with its parent
 *       v                                        v
 *     exit status: the worker's, or 128 + n      flight recorder: the position of each rank, in
 *     if signal n killed it                      shared memory (world/flight_recorder.h)
 *
 * After a crash the parent prints the rank, the instruction and the positions of the other ranks,
 * and writes recorder.json to the run folder. */
#ifndef CLI_WORKER_H
#define CLI_WORKER_H

#include "cli/relay.h"
#include "world/flight_recorder.h"

/* How a worker ended. */
typedef struct {
    int status;     /* exit status */
    bool stuck;     /* the watchdog ended it */
    bool by_user;   /* a signal of the user (SIGINT, SIGTERM, ...) arrived or killed the worker */
    char dir[1024]; /* its run folder; "": not opened yet */
    char why[512];  /* reason as text; "": success, or the worker has printed it */
} WorkerEnd;

/* Local, before any thread. Forks, runs `work` in the child and waits for it. Returns the exit
 * status; fills *end unless it is NULL. `relay`, if there is one, is moved while it waits. */
int worker_run(int (*work)(int argc, char **argv, FlightRecorder *recorder), int argc, char **argv,
               Relay *relay, WorkerEnd *end);
/* Local. True for the signals by which users and job schedulers end a program. */
bool worker_is_stop(int signal_number);
/* Local. Flushes standard output. Returns `status`, or 1 if it is 0 and the flush fails. */
int worker_flush(int status);
/* Local. Writes recorder.json of a failed run to its run folder. Returns `path`, or NULL if there
 * is no run folder, no rank has started, or the file cannot be written. */
const char *worker_dump(const FlightRecorder *b, const char *reason, char path[1200]);

#endif

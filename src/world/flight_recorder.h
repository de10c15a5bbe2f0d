/* flight_recorder.h -- the position and the latest transfers of each rank, in shared memory.
 *
 *     sheaf -- fork --> worker
 *       |                 |  rank 0   rank 1   rank 2   rank 3      threads
 *       |                 v    v        v        v        v
 *       +------------>  flight recorder [RankStatus with its ring] x 4
 *                       in memory that both processes map at one address
 *
 * The parent can report where each rank is, its latest transfers and the one that it waits for:
 * while it runs, after it failed, and after the worker process has ended. `recorder.json` in the
 * run folder is a flight recorder as a file, which `sheaf inspect` prints:
 *
 *     {"sheaf": "recorder", "version": 2, "reason": "...", "world": 4, "ranks": [
 *      {"rank": 0, "step": 12, "action": "run", "unit": "layer.3", "phase": "F", "micro": 1,
 *       "instr": 17, "op": "linear", "transfers": 93, "waits": 92, "records": [
 *        {"number": 92, "kind": "all-reduce", "sequence": 31, "purpose": 0, "instr": 17,
 *         "peer": -1, "group": 4, "over": [0, 1, 2, 3], "bytes": 4096, "sent": 6144,
 *         "dtype": "f32", "posted_s": 1.2, "matched_s": -1, "done_s": -1}]}]}
 *
 * `world` is the number of ranks of the run; `ranks` lists those of one process. `action` is absent
 * between actions, `unit` if the action has none, `instr` and `op` between instructions; `waits` is
 * -1 for a rank that waits for nothing. `group` is the size of a group, `over` its first
 * RECORD_RANKS ranks. Times are seconds since the comm was opened; -1: not yet.
 *
 * Version 1 has the list as `seats` and the number as `ranks`; it is still read. */
#ifndef WORLD_FLIGHT_RECORDER_H
#define WORLD_FLIGHT_RECORDER_H

#include "base/text.h"
#include "comm/comm.h"
#include "run/watch.h"

/* The status block of one rank; the rank's threads alone write it. */
typedef struct {
    int rank;
    RankWatch watch;
    Recorder recorder;
    void *stack;       /* alternate stack for signal handlers */
    _Atomic int ended; /* the rank's thread has returned from its work */
} RankStatus;

/* Phases of the start of a worker; the last three follow without a launcher too. */
typedef enum {
    START_NONE,
    START_MPI_INIT, /* in MPI_Init */
    START_PREPARES, /* reads its configuration and data; may take long */
    START_JOINS,    /* waits for all ranks to join */
    START_JOINED
} StartPhase;

typedef struct FlightRecorder {
    Arena arena;         /* of the shared memory; this struct is its first object */
    int ranks, n_here;   /* of the world; of this process, 0: not set up yet */
    RankStatus *status;  /* [n_here] in the order of ranks */
    char dir[1024];      /* the run folder; "": not known yet */
    _Atomic int crashed; /* 1 + the rank whose thread got a deadly signal; 0: none known */
    _Atomic int sent_by; /* process that sent the signal; 0: the rank's own fault */
    char why[512];       /* message of the error that ended the worker; "": there was none */
    _Atomic int start;   /* a StartPhase */
    _Atomic int failed;  /* a rank of the worker has failed */
    double timeout_s;    /* run.timeout_s, once it is known; 0: not yet */
} FlightRecorder;

/* Local. In memory that child processes share; flight_recorder_close unmaps it. */
Err flight_recorder_open(FlightRecorder **out);
void flight_recorder_close(FlightRecorder *f);
/* Local. ERR_CONFIG if n ranks in one process are more than the flight recorder has memory for. */
Err flight_recorder_check(int64_t n);
/* Local. Creates the status blocks of ranks first .. first + n - 1 of `ranks`. Each keeps `records`
 * records, or as many as fit; ERR_CONFIG as flight_recorder_check. Before the ranks start. */
Err flight_recorder_rank(FlightRecorder *f, int ranks, int first, int n, int64_t records);
/* Local. Marks the calling thread, and the teams that it opens from now on, as that rank's. */
void flight_recorder_enter(const RankStatus *s);
/* Local. NULL: the rank is in another process. */
RankStatus *flight_recorder_of(const FlightRecorder *f, int rank);

/* Local. "step 12, layer.3, F of micro-batch 1, instruction 17 linear"; "between steps". In
 * `buffer`, which is returned. */
enum { WATCH_TEXT_BYTES = 160 };
const char *watch_text(const RankWatch *w, char buffer[WATCH_TEXT_BYTES]);
/* Local. Adds a line per rank, with the ranks that it waits for, and below it `latest`
 * transfers. */
void flight_recorder_report(const FlightRecorder *f, int latest, Text *t);

/* Local. Writes recorder.json; reads it back, into the arena. */
Err flight_recorder_write(const FlightRecorder *f, const char *path, const char *reason);
Err flight_recorder_read(const char *path, Arena *a, FlightRecorder *out, const char **reason);

#endif

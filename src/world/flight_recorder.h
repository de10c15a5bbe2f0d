/* flight_recorder.h -- what the ranks of a process leave for whoever outlives them.
 *
 *     sheaf -- fork --> worker
 *       |                 |  rank 0   rank 1   rank 2   rank 3      threads
 *       |                 v    v        v        v        v
 *       +------------>  board [cell, recorder with its ring] x 4    memory that both processes see, at one address
 *
 * Where each rank is, its latest transfers and the one that it waits for can be told while it
 * runs, when it failed, and after the worker is gone. `recorder.json` in the run folder is a board
 * as a file, and `sheaf inspect` tells it again:
 *
 *     {"sheaf": "recorder", "version": 1, "reason": "...", "ranks": 4, "seats": [
 *      {"rank": 0, "step": 12, "action": "run", "unit": "layer.3", "phase": "F", "micro": 1, "instr": 17, "op": "linear",
 *       "transfers": 93, "waits": 92, "records": [
 *        {"number": 92, "kind": "all-reduce", "sequence": 31, "purpose": 0, "instr": 17, "peer": -1, "group": 4,
 *         "over": [0, 1, 2, 3], "bytes": 4096, "sent": 6144, "dtype": "f32", "posted_s": 1.2, "matched_s": -1, "done_s": -1}]}]}
 *
 * action is absent between actions, unit where the action has none, instr and op between
 * instructions; waits is -1 for a rank that waits for nothing. `group` counts the ranks of a
 * group, `over` names the first RECORD_RANKS of them. Times are seconds since the comm was opened,
 * -1: not yet. */
#ifndef WORLD_FLIGHT_RECORDER_H
#define WORLD_FLIGHT_RECORDER_H

#include "base/text.h"
#include "comm/comm.h"
#include "run/watch.h"

typedef struct {
    int rank;
    RankWatch watch;
    Recorder recorder;
    void *stack; /* for signal handlers */
} RankStatus;

typedef struct FlightRecorder {
    Arena arena;         /* of the memory that is shared; the board lies in it */
    int ranks, n_here;   /* of the world; of this process. 0: there are none yet */
    RankStatus *status;  /* [n_seats] in the order of ranks */
    char dir[1024];      /* the run folder; "": not known yet */
    _Atomic int crashed; /* 1 + the rank whose thread got a deadly signal; 0: none that is known */
    _Atomic int sent_by; /* process that sent the signal; 0: the rank's own fault */
    char why[512];       /* the worker ended by an error: its message; "" when it did not */
} FlightRecorder;

/* Local. In memory that a child shares. flight_recorder_close gives it back. */
Err flight_recorder_open(FlightRecorder **out);
void flight_recorder_close(FlightRecorder *f);
/* Local. Seats for the ranks first .. first + n - 1 of so many, with room for `records` each or
 * what there is room for, which is at least 16. */
Err flight_recorder_rank(FlightRecorder *f, int ranks, int first, int n, int64_t records);
/* Local. The calling thread is that rank's now, and so are the teams that it opens. */
void flight_recorder_enter(const RankStatus *s);
/* Local. NULL: the rank is of another process. */
RankStatus *flight_recorder_of(const FlightRecorder *f, int rank);

/* Local. "step 12, layer.3, F of micro-batch 1, instruction 17 linear"; "between steps". `buffer`
 * is returned. */
enum { WATCH_TEXT_BYTES = 160 };
const char *watch_text(const RankWatch *w, char buffer[WATCH_TEXT_BYTES]);
/* Local. A line a rank, and who waits for whom; `latest` transfers of each below it. */
void flight_recorder_report(const FlightRecorder *f, int latest, Text *t);

/* Local. The board as the file recorder.json; and back, in the arena. */
Err flight_recorder_write(const FlightRecorder *f, const char *path, const char *reason);
Err flight_recorder_read(const char *path, Arena *a, FlightRecorder *out, const char **reason);

#endif

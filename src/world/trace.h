/* trace.h -- what every rank did, and when, as a file for chrome://tracing or ui.perfetto.dev.
 *
 *     process "rank 0"   thread "compute"     layer.3 F0 | layer.3 F0 | ...      one slice an instruction or action
 *                        thread "transfers"   all-reduce #31 ........            from posted to done, several at once
 *
 * Events go to room that is there before the first step; when it is full the rest is counted, and
 * that is said. */
#ifndef WORLD_TRACE_H
#define WORLD_TRACE_H

#include "comm/comm.h"
#include "ir/unit.h"
#include "run/watch.h"

enum { TRACE_EVENTS = 1 << 20 }; /* of all ranks of a process, instructions and transfers alike */

typedef struct {
    int rank;
    RankTrace events;
    Record *transfer; /* copies: the ring keeps the latest alone */
    int64_t n_transfers, cap_transfers, missed;
    int64_t seen;    /* transfers of the recorder that were looked at */
    double opened_s; /* of the recorder */
} Trace;

/* Local. Room for this rank's share of TRACE_EVENTS. */
Err trace_open(Trace *t, int rank, int ranks_here, Arena *a);
/* Local. Takes over what the recorder has seen since the last call; not later than after `cap`
 * transfers of its ring. */
void trace_take(Trace *t, const Recorder *r);
/* Local. The traces of n ranks of one model. */
Err trace_write(const char *path, const Trace *const *trace, int n, const Model *model);
/* Local. Events for which there was no room. */
int64_t trace_missed(const Trace *t);

#endif

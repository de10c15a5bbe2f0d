/* trace.h -- a timeline of every rank, as a file for chrome://tracing or ui.perfetto.dev.
 *
 *     process "rank 0"   thread "compute"     layer.3 F0 | layer.3 F0 | ...
 *                                             one slice per instruction or action
 *                        thread "transfers"   all-reduce #31 ........
 *                                             from posted to done, several at once
 *
 * Events are stored in memory that is allocated before the first step. Events that do not fit are
 * counted, and the count is reported. */
#ifndef WORLD_TRACE_H
#define WORLD_TRACE_H

#include "comm/comm.h"
#include "ir/unit.h"
#include "run/watch.h"

/* Events of all ranks of a process, instructions and transfers together. */
enum { MAX_TRACE_EVENTS = 1 << 20 };

typedef struct {
    int rank;
    RankTrace events;
    Record *transfer; /* copies, since the recorder's ring keeps only the latest */
    int64_t n_transfers, cap_transfers, missed;
    int64_t seen;    /* transfers of the recorder that were copied or missed */
    double opened_s; /* of the recorder: zero of its times */
} Trace;

/* Local. Allocates this rank's share of MAX_TRACE_EVENTS. */
Err trace_open(Trace *t, int rank, int ranks_here, Arena *a);
/* Local. Copies the transfers since the last call. At most `cap` transfers may pass between two
 * calls, or the oldest are missed. */
void trace_take(Trace *t, const Recorder *r);
/* Local. Writes the traces of n ranks of one model. */
Err trace_write(const char *path, const Trace *const *trace, int n, const Model *model);
/* Local. Number of events that did not fit. */
int64_t trace_missed(const Trace *t);

#endif

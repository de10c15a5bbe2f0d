/* traffic.h -- what a rank's linked program sends in a step, read off the list.
 *
 *     all-gather       dp    126 transfers    of gathers
 *     reduce-scatter   dp    126              of reductions
 *     all-reduce       tp    1008             of instructions, once for each RUN of their program
 *     all-reduce       dp tp 2     scalar     of the norm and the loss
 *
 * Nothing is restated here: the transfers are those that run/ begins, and what leaves the rank is
 * what the recorder will write (comm.h). */
#ifndef SCHEDULE_TRAFFIC_H
#define SCHEDULE_TRAFFIC_H

#include "comm/comm.h"
#include "schedule/link/link.h"

/* Local. What an instruction transfers, at full extents, live or not, so that what is sent is known
 * before the run; where it lies, and under which number, is for the caller to add. */
Transfer instr_transfer(const Program *p, const Instr *in);

/* A transfer that the rank begins `times` times in a step. Of its two ends only counts and types
 * are set where the addresses differ from time to time. */
typedef Err TransferVisit(void *context, const Transfer *t, int64_t times);

enum { MAX_TRAFFIC_ROWS = 48 };

typedef struct {
    CommKind kind;
    bool scalar;
    unsigned axes; /* of the dense view, along which the group lies */
    int64_t transfers;
    size_t bytes, sent_bytes; /* as in a Record */
} TrafficRow;

typedef struct {
    int n;
    TrafficRow row[MAX_TRAFFIC_ROWS]; /* by kind, then axes; scalars last */
} Traffic;

/* Local. Visits every transfer with more than one member, in no order that means anything. */
Err linked_visit(const LinkedProgram *lp, TransferVisit *visit, void *context);
/* Local. What the rank sends, by kind and axes. */
Err linked_traffic(const LinkedProgram *lp, Traffic *out);
/* Local. `times` more of a row. ERR_CHECK when there is no room for another kind of row. */
Err traffic_add(Traffic *s, const TrafficRow *row, int64_t times);

/* Local. The axes along which the members of a group differ. */
unsigned group_axes(const Mesh *m, RankList group);

#endif

/* traffic.h -- the transfers of a rank in one step, counted from its linked program.
 *
 *     all-gather       dp    126 transfers    of gathers
 *     reduce-scatter   dp    126              of reductions
 *     all-reduce       tp    1008             of instructions, once for each RUN of their program
 *     all-reduce       dp tp 2     scalar     of the norm and the loss
 *
 * The transfers are the ones that run/ begins, and the bytes are the ones that the recorder will
 * write (comm.h); there is no second model. Further rounds of the rows of experts are known only
 * when routers have run: what one sends is body_sent. */
#ifndef SCHEDULE_TRAFFIC_H
#define SCHEDULE_TRAFFIC_H

#include "comm/comm.h"
#include "schedule/link/link.h"

/* Local. The transfer of an instruction at full extents, so that its bytes are known before the
 * run. The caller adds addresses and the sequence number. */
Transfer instr_transfer(const Program *p, const Instr *in);

/* Visits a transfer that the rank begins `times` times in a step. If the addresses differ from time
 * to time, only counts and types of its two ends are set. */
typedef Err TransferVisit(void *context, const Transfer *t, int64_t times);

/* Local. Bytes that the rank sends when it runs a body once. Programs are counted without them. */
size_t body_sent(const Program *body, int rank);
/* Local. Bytes that the rank sends in one further round of a unit and a micro-batch, by the phases
 * of its list; the most of any unit. All 0: rows never take further rounds. */
typedef struct {
    size_t sent_bytes[N_PHASES];
} RoundTraffic;
RoundTraffic linked_rounds(const LinkedProgram *lp);

enum { MAX_TRAFFIC_ROWS = 48 };

typedef struct {
    CommKind kind;
    bool scalar;
    unsigned axes; /* of the dense view, along which the members differ */
    int64_t transfers;
    size_t bytes, sent_bytes; /* as in a Record */
} TrafficRow;

typedef struct {
    int n;
    TrafficRow row[MAX_TRAFFIC_ROWS]; /* by kind, then axes; scalars last */
} Traffic;

/* Local. Visits every transfer with more than one member, in unspecified order. */
Err linked_visit(const LinkedProgram *lp, TransferVisit *visit, void *context);
/* Local. The traffic of the rank, by kind and axes. */
Err linked_traffic(const LinkedProgram *lp, Traffic *out);
/* Local. Adds a row `times` times. ERR_CHECK if there is no room for another kind of row. */
Err traffic_add(Traffic *s, const TrafficRow *row, int64_t times);

/* Channels of the transfers of device memory (comm/channel_key.h): NCCL opens a communicator for
 * each. */
typedef struct {
    int groups; /* of collectives, by group and purpose */
    int pairs;  /* of sends, by sender, receiver and purpose */
} ChannelCount;
/* Local. Counts the channels of the rank; `temp` is rewound. */
Err linked_channels(const LinkedProgram *lp, Arena *temp, ChannelCount *out);

/* Local. The axes along which the members of a group differ. */
unsigned group_axes(const Mesh *m, RankList group);

#endif

/* clock_parts.h -- internal to the clock: tapes and channels.
 *
 *     clock.c            makes the tapes and plays them
 *     clock_tape.c       a linked program as a tape
 *     clock_channels.c   channels, by group and purpose */
#ifndef PLAN_CLOCK_PARTS_H
#define PLAN_CLOCK_PARTS_H

#include "plan/clock.h"
#include "schedule/traffic.h"

typedef enum { EVENT_WORK, EVENT_BEGIN, EVENT_WAIT } EventKind;

typedef struct {
    uint8_t event, time;     /* EventKind, TimeKind */
    int32_t channel, number; /* of a transfer: the number-th on its channel */
    double seconds;          /* of work, of a transfer */
} ClockEvent;

typedef struct {
    int rank, n, cap;
    ClockEvent *event;
} ClockTape;

/* A transfer of a channel. */
typedef struct {
    int begun;             /* members so far */
    double ready_s;        /* when the last of them began it */
    double seconds, end_s; /* the longest of any member; the end, set when all have begun */
    double path[N_TIMES];  /* critical path to its ready_s, then to its end_s */
} ClockFlight;

typedef struct {
    uint64_t hash;
    int purpose;
    RankList group;
    int members; /* tapes that take part */
    CostGroup at;
    TimeKind time;
    int n, cap;
    ClockFlight *flight;
    double free_s; /* end of the last transfer, and the path to it */
    double path[N_TIMES];
} ClockChannel;

typedef struct {
    const ClockInput *in;
    Arena *arena;
    int *tape_of; /* [world]: the tape that is played for the rank */
    int n_channels, cap_channels;
    ClockChannel *channel;
    int *table; /* open addressing by hash: index + 1, or 0 */
    int table_size;
    int n_tapes;
    ClockTape *tape;
    double model_flops; /* of the tapes */
} StepClock;

/* Purposes of channels that belong to one rank: copies to and from the host. */
enum { PURPOSE_D2H = 100, PURPOSE_H2D };

/* Local. The channel of a group and a purpose; made if it is new. */
Err clock_channel(StepClock *c, RankList group, int purpose, int *out);
/* Local. Appends the events of a rank's step. `temp` holds the program and is used for tables. */
Err clock_record(StepClock *c, const LinkedProgram *lp, Arena *temp, ClockTape *tape);

#endif

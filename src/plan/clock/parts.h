/* parts.h -- internal to the clock: tapes and channels.
 *
 *     clock.c       makes the tapes
 *     play.c        plays them on a cluster
 *     tape.c        a linked program as a tape
 *     prices.c      work and transfers that a cluster gives seconds
 *     measured.c    seconds of work from the trace of a step
 *     channels.c    channels, by group and purpose
 *     shares.c      flows that share a link
 *     spans.c       reports of the events of a play */
#ifndef PLAN_CLOCK_PARTS_H
#define PLAN_CLOCK_PARTS_H

#include "plan/clock/clock.h"
#include "schedule/traffic.h"

typedef enum { EVENT_WORK, EVENT_BEGIN, EVENT_WAIT } EventKind;

typedef struct {
    uint8_t event, time;     /* EventKind, TimeKind */
    bool hidden;             /* begin: the rank works before it waits */
    int32_t channel, number; /* of a transfer: the number-th on its channel */
    int32_t price;           /* of work, of a transfer */
    int32_t at;              /* position of its action in the list */
} ClockEvent;

/* Work, or a transfer: a cluster gives it seconds. Equal ones of all tapes share a price. */
typedef struct {
    CostWork work;
    int channel; /* of a transfer; -1: work */
    CommKind kind;
    double bytes; /* as in cost_transfer_seconds */
} ClockPrice;

typedef struct {
    int rank, n, cap;
    ClockEvent *event;
    const Action *action; /* the list, and one more: the end of the step */
} ClockTape;

/* A transfer of a channel. */
typedef struct {
    int begun;             /* members so far */
    double ready_s;        /* when the last of them began it */
    double seconds;        /* the longest of any member */
    double start_s, end_s; /* set when all have begun */
    double path[N_TIMES];  /* critical path to its ready_s, then to its end_s */
    CommKind kind;
    double bytes;
    double busy_s; /* shares.c */
} ClockFlight;

typedef struct {
    uint64_t hash;
    int purpose;
    RankList group;
    int members; /* tapes that take part */
    TimeKind time;
    int n, cap;
    ClockFlight *flight;
    double *share; /* [n]: flows that share its links while a transfer is under way; NULL: 1 */
    double free_s; /* end of the last transfer, and the path to it */
    double path[N_TIMES];
} ClockChannel;

/* A tape while it is played. */
typedef struct {
    const ClockTape *tape;
    double speed; /* of the rank's device */
    int at;
    double now_s, host_s; /* of the device's compute queue; of the host, which launches */
    double spent[N_TIMES], path[N_TIMES];
} TapePlayer;

struct StepClock {
    const ClockInput *in;
    Arena *arena;
    int *tape_of; /* [world]: the tape that is played for the rank */
    int n_prices, cap_prices;
    ClockPrice *price;
    int *price_table; /* open addressing by hash: index + 1, or 0 */
    int price_table_size;
    int n_channels, cap_channels;
    ClockChannel *channel;
    int *table; /* open addressing by hash: index + 1, or 0 */
    int table_size;
    int n_tapes;
    ClockTape *tape;
    double *parts;      /* [n_tapes]: all ranks over those that the tape stands for */
    double model_flops; /* of the tapes */
    double *measured;   /* [n_prices]: seconds; 0: not measured. NULL: none are */

    /* While it is played. */
    const ClockWatch *watch; /* NULL: none */
    const Cluster *cluster;
    double *seconds;    /* [n_prices] */
    TapePlayer *player; /* [n_tapes] */
};

/* Purposes of channels that belong to one rank: copies to and from the host. */
enum { PURPOSE_D2H = 100, PURPOSE_H2D };

/* Local. The channel of a group and a purpose; made if it is new. */
Err clock_channel(StepClock *c, RankList group, int purpose, int *out);
/* Local. The price of work or of a transfer; made if it is new. */
Err clock_price(StepClock *c, const ClockPrice *p, int32_t *out);
/* Local. The price of work; -1: no tape has it. */
int clock_find_work(const StepClock *c, const CostWork *work);
/* Local. The collectives that a transfer of the channel is made of. */
double clock_calls(const StepClock *c, const ClockChannel *k);
/* Local. The seconds of all prices on a cluster, work on a device of speed 1. */
void clock_price_all(const StepClock *c, const Cluster *cluster, double *seconds);
/* Local. The axes along which ranks have equal shapes. */
unsigned clock_equal_axes(const ClockInput *in);
/* Local. Assigns tapes: ranks that differ along the shared axes alone have one, that of the rank
 * with coordinate 0 on them. */
Err clock_assign(StepClock *c, unsigned shared);
/* Local. Appends the events of a rank's step. `temp` holds the program and is used for tables. */
Err clock_record(StepClock *c, const LinkedProgram *lp, Arena *temp, ClockTape *tape);
/* Local. The seconds of an event's work or transfer on the player's device. */
double clock_seconds(const StepClock *c, const TapePlayer *p, const ClockEvent *e);
/* Local. After a play: sets the shares of all channels for the next. */
Err clock_find_shares(StepClock *c);
/* Local. Reports spans of the tape that is played, if the clock is watched. */
Err clock_span_work(const StepClock *c, const TapePlayer *p, const ClockEvent *e, double late_s);
Err clock_span_wait(const StepClock *c, const TapePlayer *p, const ClockEvent *e, double from_s);
/* Local. Allocates what a play of the tapes writes to; once they are recorded. */
Err clock_recorded(StepClock *c);

/* Local. Bytes that the norm and the update read and write of a pack on the rank. */
double clock_norm_bytes(const LinkedProgram *lp, int pack);
double clock_update_bytes(const LinkedProgram *lp, int pack);
/* Local. These as work on `bytes` of the state. */
CostWork clock_state_work(const LinkedProgram *lp, double bytes);

/* A part of a step, recorded alone. */
typedef enum {
    PART_RUN,      /* a RUN, which need not be in the list */
    PART_PREPACKS, /* the weights that the action at `at` prepacks */
    PART_BEFORE,   /* steps of the action at `at` before the one that overlaps, */
    PART_BEGUN,    /* that one, waited for at once, */
    PART_AFTER,    /* and those after it */
    PART_NORM,     /* a pack's part of the norm, without exchanges */
    PART_UPDATE,   /* a pack's update */
    PART_QUANTIZE  /* a pack's codes, without the exchange of scales */
} ClockPartKind;

typedef struct {
    ClockPartKind kind;
    Action run; /* PART_RUN */
    int at;     /* PART_PREPACKS to PART_AFTER */
    int pack;   /* PART_NORM to PART_QUANTIZE */
} ClockPart;

/* Local. Appends the events of one part. */
Err clock_record_part(StepClock *c, const LinkedProgram *lp, const ClockPart *part, Arena *temp,
                      ClockTape *tape);

#endif

/* coarse_parts.h -- internal to the coarse clock.
 *
 *     coarse.c          RUNs, values between stages, the end of the step
 *     coarse_packs.c    gathers ahead of RUNs, and reductions after them
 *     coarse_open.c     tables: chunks, uses of packs, seconds of sends and of the norm */
#ifndef PLAN_CLOCK_COARSE_PARTS_H
#define PLAN_CLOCK_COARSE_PARTS_H

#include "plan/clock/coarse.h"

#define NEVER (-1.0)

/* A transfer. Without overlap, the stage that waits carries it out from `begun` on. */
typedef struct {
    double begun, start, end, seconds;
    double after_s; /* of the steps that run when it has ended */
    bool each;      /* a reduction that ends before the next of another unit */
} CoarseFlight;

/* A value that crosses stages. */
typedef struct {
    double sent, posted, arrived; /* NEVER: not yet */
    CoarseFlight flight;          /* once both ends have begun it */
} CoarseCell;

/* Bytes of the first rank (coarse_least.c). */
typedef struct {
    double change[N_PHASES]; /* by which the phase changes the live bytes */
    double beside[N_PHASES]; /* beside them at some time of the phase */
    double after_i;          /* and beside what is left of them at the end of I */
} CoarseLeast;

typedef struct {
    int first, end;        /* units */
    const RunSummary *sum; /* [slices][N_PHASES]: of all its units */
    const double *last_s;  /* [slices][N_PHASES]: of the unit that runs last */
    double send_s[N_DIRECTIONS];
    bool prepacks, reduces, reduces_each;
    int writes[2];                /* RUNs so far: F, which writes the head's gradients; W or B */
    double frame_bytes[N_PHASES]; /* by which the phase changes the live bytes */
    double scratch_bytes[N_PHASES];
    CoarseLeast least;
} CoarseChunk;

/* A pack that is gathered before RUN `first` of the stage (RUNs of units) and kept. */
typedef struct {
    int first, unit;
} CoarseKept;

typedef struct {
    int at;                 /* next action of the list */
    int run;                /* RUNs of units so far */
    double now, last_start; /* last_start: of the last RUN of a unit */
    double host;            /* the host has launched everything up to here by this time */
    double link_free[4];    /* of values that arrive: by direction and side */
    CoarseCell *sending[4]; /* the last value sent, not waited for */
    double gather_free, reduce_free;
    CoarseKept *kept;
    int n_kept, kept_at;
    int16_t *use; /* units whose packs are gathered per use, in order of RUNs */
    int n_uses, low, high, n_inside;
    CoarseFlight flight[MAX_IN_FLIGHT]; /* reductions, the oldest first */
    int n_flights;
    CoarseTime spent; /* work_s to update_s */
    double quantize_s, norm_s, update_s;
    double scale_cells[MAX_SCALES];
    double live_bytes, least_live_bytes;
    size_t peak_bytes, least_bytes;
} CoarseStage;

/* A unit's packs that are gathered at the same time, while the step is played. */
typedef struct {
    CoarseFlight gather;
    bool waited; /* for the last gather */
    bool open;   /* gathered per use: it is resident */
    int inside;  /* uses in the window */
} CoarsePack;

typedef struct {
    const CoarseInput *in;
    const UnitSummary *const *unit; /* [n_units] */
    int n_units;
    CoarseChunk *chunk;
    CoarseStage *stage;
    CoarseCell *cell; /* [chunks][micros][slices][N_DIRECTIONS] */
    CoarsePack *pack; /* [n_units][2]: by GatherWhen */
} CoarseClock;

/* Local. Allocates and fills the tables. */
Err coarse_open(CoarseClock *c, Arena *temp);
/* Local. Adds up the least bytes: of a chunk; of a unit of the stage, all step; after a RUN. */
void coarse_least_chunk(const CoarseClock *c, CoarseChunk *k);
void coarse_least_unit(const UnitSummary *unit, CoarseStage *g);
void coarse_least_run(const CoarseLeast *l, Phase phase, CoarseStage *g);
/* Local. Seconds of the exchanges of loss and norm. */
double coarse_norm_seconds(const CoarseClock *c);

/* True if the RUN needs no pack that is not there and completes no gradient. */
bool coarse_is_plain(const CoarseClock *c, int stage, const Action *a);
/* Begins the gathers of packs that are kept, one RUN ahead. */
void coarse_gather_ahead(CoarseClock *c, int stage);
/* Waits for the packs of a unit that is about to run. */
void coarse_wait_packs(CoarseClock *c, int stage, int unit, Phase phase);
/* The unit has run: its packs may leave, and others are gathered in its place. */
void coarse_end_use(CoarseClock *c, int stage, int unit, Phase phase);
/* Begins the gathers before the first RUN. */
void coarse_first_gathers(CoarseClock *c, int stage);
/* Begins the unit's reductions if this RUN completes sums. */
void coarse_reduce(CoarseClock *c, int stage, const Action *a, int unit);
void coarse_end_reduces(CoarseClock *c, int stage);
/* Counts a RUN of a chunk: its gradients, its frames. */
void coarse_count(CoarseClock *c, int stage, const Action *a);

/* A transfer along an axis, begun now on a queue that is free from *free on. */
CoarseFlight coarse_begin(const CoarseClock *c, TransferAxis axis, double now, double *free,
                          double seconds);
/* Waits for it; returns the seconds that this takes. */
double coarse_wait(const CoarseClock *c, CoarseStage *g, TransferAxis axis, const CoarseFlight *f);

static inline bool coarse_reads(const UnitSummary *u, GatherWhen when, Phase phase)
{
    return u->gather_s[when] > 0 && (u->reads >> phase & 1);
}

static inline CoarsePack *coarse_pack(const CoarseClock *c, int unit, GatherWhen when)
{
    return &c->pack[2 * unit + (int)when];
}

/* True if a RUN of the unit is followed by reductions of that kind. */
static inline bool coarse_reduces(const UnitSummary *u, ReduceWhen when)
{
    return reduce_seconds(&u->reduce[when]) > 0 && !(u->late && when == REDUCE_AFTER_LAST);
}

#endif

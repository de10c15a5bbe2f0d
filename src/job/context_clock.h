/* context_clock.h -- seconds of an attention plan on a machine: plays the lists of all ranks. */
#ifndef JOB_CONTEXT_CLOCK_H
#define JOB_CONTEXT_CLOCK_H

#include "compile/context/plan.h"
#include "cost/cost.h"

/* One attention: what a rank of the plan has, and where the ranks are. */
typedef struct {
    const CostRates *rates;
    DType dtype;
    int stride;        /* between neighbouring ranks of the plan */
    double sequences;  /* of a micro-batch */
    double seq_len;    /* tokens of each */
    double window;     /* a query sees this many keys at most; 0: all */
    double heads;      /* of queries, on a rank */
    double key_heads;  /* on a rank */
    double head_width; /* of a head */
} ContextLoad;

typedef struct {
    double seconds;          /* until the last rank is done */
    double moving_s, wait_s; /* of the rank that is done last: of its receives, of its waits */
    double held_bytes;       /* of blocks of other ranks, on the rank with most */
} ContextTime;

/* Local. Pairs of a query and a key that the mask leaves, of two blocks. */
double context_pairs(const ContextShape *s, const ContextLoad *load, ContextBlock q,
                     ContextBlock k);
/* Local. Seconds of an attention with so many pairs, forward or backward; of the gradient also its
 * partial results are written. */
double context_visit_seconds(const ContextLoad *load, bool backward, double rows, double keys,
                             double pairs);
/* Local. Plays a checked plan. */
Err context_clock(const ContextPlan *p, const ContextLoad *load, Arena *temp, ContextTime *out);

/* When each step of each rank runs, [rank][step]: visits, and moves that the rank receives. */
typedef struct {
    double seconds;
    double **start_s, **end_s;
} ContextSpans;

/* Local. Plays a checked plan and keeps the times; they are in the arena. */
Err context_clock_spans(const ContextPlan *p, const ContextLoad *load, Arena *arena,
                        ContextSpans *out);

#endif

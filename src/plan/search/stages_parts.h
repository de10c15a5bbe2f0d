/* stages_parts.h -- internal to the search of stages.
 *
 *     stages.c          arrangements, and moves of single units
 *     stage_splits.c    devices of stages; splits that are dealt to them and linked */
#ifndef PLAN_SEARCH_STAGES_PARTS_H
#define PLAN_SEARCH_STAGES_PARTS_H

#include "plan/search/parts.h"
#include "plan/search/stages.h"

enum { MAX_DEVICE_KINDS = 8, MAX_ARRANGEMENTS = 512 };

/* Nodes of the blocks, and units of the chunks. */
typedef struct {
    int *at;        /* [n] */
    int16_t *count; /* [chunks] */
    int number;     /* in the order in which arrangements are listed: breaks ties */
    double step_s;  /* by the formula, then by the clock; INFINITY: it does not fit */
} StageChoice;

/* A split that was linked. */
typedef struct {
    int16_t *count;      /* [chunks] */
    double *stage_bytes; /* [stages] */
} LinkedSplit;

typedef struct {
    const StageRequest *r;
    const PlanPoint *point;
    PlanSearch *s;
    Mesh mesh;
    int n, each, stages, stage_ranks, micros; /* n: blocks, of `each` ranks */
    int chunks, units;
    const int16_t *stage_of; /* [chunks] */
    double *cost;            /* [units] */
    int n_kinds;
    CostDevice kind[MAX_DEVICE_KINDS];
    int *kind_of;  /* [n]: of a node */
    int *kind_at;  /* [n]: of a block, while arrangements are listed */
    int n_choices; /* arrangements */
    StageChoice choice[MAX_ARRANGEMENTS];
    bool deals;     /* the search may choose the split */
    int16_t *given; /* [chunks]: the units of the request's plan */
    StageChoice best;
    int n_known, opened;
    LinkedSplit *known; /* [cap] */
    int cap;
    Arena clocks; /* rewound; the caches of the search have an arena of their own */
} StageSearch;

/* Local. The stages of a block of ranks: from the first to the last. */
static inline int stage_first(const StageSearch *s, int block)
{
    return block * s->each / s->stage_ranks;
}
int stage_last(const StageSearch *s, int block);
/* Local. Sets the kinds of devices. */
void stage_kinds(StageSearch *s);
/* Local. The speed of each stage's slowest device, the least memory of its devices: [stages]. */
void stage_devices(const StageSearch *s, const int *at, double *speed, double *room);
/* Local. The request's plan with these units. */
Err stage_point(const StageSearch *s, const int16_t *count, PlanPoint *out);
/* Local. Bytes of the rank of each stage that needs most; INFINITY if the compiler refuses the
 * split. Each split is linked once. */
Err stage_link(StageSearch *s, const int16_t *count, const double **stage_bytes);
/* Local. Deals the units to the chunks for the devices of these nodes. *found: there is such a
 * split, and it fits if memory matters. */
Err stage_deal(StageSearch *s, const int *at, bool matters, int16_t *count, bool *found);

#endif

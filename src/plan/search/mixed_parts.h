/* mixed_parts.h -- internal to the search of plans whose layers differ.
 *
 *     mixed.c          families, best-first
 *     mixed_costs.c    the choices of each kind of unit; stages and their frames in flight
 *     mixed_bound.c    knapsacks, relaxed: a bound of a family
 *     mixed_solve.c    knapsacks, exact: a better bound, and plans */
#ifndef PLAN_SEARCH_MIXED_PARTS_H
#define PLAN_SEARCH_MIXED_PARTS_H

#include "plan/search/frontier.h"
#include "plan/search/mixed.h"
#include "plan/search/parts.h"

/* Choices of a unit: of ZeRO, recomputation and offload; and with levels of single weights. */
enum { MAX_PLAIN_CHOICES = 16, MAX_UNIT_CHOICES = 72, MAX_STAGE_GROUPS = 48 };

/* Sums of seconds of a stage's units. The step takes at least each of them. */
typedef enum {
    SUM_WORK,   /* RUNs, norm, update; and transfers, if they do not overlap */
    SUM_DRAIN,  /* F and the part of the backward phases that the stage before waits for */
    SUM_ENDS,   /* RUNs up to the first complete gradient, then the last reductions */
    SUM_GATHER, /* gathers in a row */
    SUM_REDUCE, /* reductions in a row */
    SUM_FILL,   /* a gather of each pack, then all reductions */
    N_SUMS
} StageSum;

/* Weights of the sums: they add up to 1. */
typedef struct {
    double of[N_SUMS];
} SumWeights;
enum { N_WEIGHTS = 15 };
extern const SumWeights mixed_weights[N_WEIGHTS];

/* One choice of a class of units. */
typedef struct {
    UnitOptions options; /* without GEMMs in FP8, which no choice changes: choice_options */
    UnitSummary summary; /* with bounds of gathers and reductions */
    double sum[N_SUMS];
    double still_bytes, frame_i, frame_w; /* all step; of a micro-batch to I, and to W or B */
} UnitChoice;

/* Units of one class in one chunk of a stage. */
typedef struct {
    int class, first, n;   /* units first .. first + n - 1 */
    double held_i, held_w; /* micro-batches whose frames are held at the stage's peak */
    bool top;              /* one unit, whose F ends at that peak */
} StageGroup;

typedef struct {
    int n;
    StageGroup group[MAX_STAGE_GROUPS];
    double before[N_SUMS]; /* seconds of other stages and ends, beside each sum */
    double sent_bytes;     /* of frames: the last y is sent to the next stage */
} MixedStage;

typedef struct {
    PlanPoint point; /* zero and recompute are those of units that have no choice */
    double bound_s;
    int level;
} MixedFamily;

typedef struct {
    PlanSearch *s;
    PlanPoint point; /* of the family */
    const Schedule *moves;
    const int16_t *first_unit, *class_of;
    LayoutSummary base;
    int n_classes, stages;
    int n[MAX_BOUND_CLASSES];              /* choices of each class */
    UnitChoice *choice[MAX_BOUND_CLASSES]; /* [MAX_UNIT_CHOICES] */
    MixedStage *stage;
} MixedCosts;

/* What the choices of a unit are. */
typedef struct {
    int most_zero;
    bool weights; /* single weights may have levels of their own */
} ChoiceRange;

/* Local. Fills the costs of a family, in s->temp. ERR_CONFIG: the compiler refuses all its plans.
 */
Err mixed_open(PlanSearch *s, const PlanPoint *family, ChoiceRange range, MixedCosts *out);
/* Local. The bytes of a unit under a choice at the stage's peak, and a weighted sum of seconds. */
double choice_bytes(const StageGroup *g, const UnitChoice *c);
double choice_seconds(const SumWeights *w, const UnitChoice *c);
double stage_before(const SumWeights *w, const MixedStage *stage);
/* Local. The options of a unit of the class under a choice. Its GEMMs in FP8 are those of the run:
 * the first and the last layer may have none. */
UnitOptions choice_options(const MixedCosts *c, const UnitChoice *choice, int unit);
/* Local. What the choices of a stage may need, by choice_bytes, if its rank has limit_bytes. */
double stage_limit(const MixedCosts *c, int stage, double limit_bytes);

/* Local. A bound of the family's plans that need at most limit_bytes; INFINITY: none fits. */
Err mixed_bound(const MixedCosts *c, double limit_bytes, Arena *temp, double *out);
/* Local. Raises *bound_s, and finds the best plan. time->step_s is INFINITY if none is found.
 * *counted: the bytes that were counted for the plan's fullest stage, at most limit_bytes. */
Err mixed_solve(const MixedCosts *c, double limit_bytes, double *bound_s, PlanPoint *out,
                CoarseTime *time, double *counted);

#endif

/* bound.h -- lower bounds of a plan's step time and memory, in closed form.
 *
 * A plan is never faster than its bound by the coarse clock (plan/clock/coarse.h), nor does it need
 * less memory: tests/unit/test_plan_bound.c compares random plans. The bound of a stage s is the
 * greatest of
 *
 *     fill    F of the chunks before it, m micro-batches of its own RUNs, B of the chunks before it
 *     reduce  its RUNs up to the first gradient that is complete, then its reductions in a row
 *     gather  its gathers in a row, then the RUNs that need the last of them
 *
 * and then its norm, and the longest update of any stage. Waits inside of these are left out.
 *
 *     UnitBound of a class    from its summary (plan/clock/summary.h): exact
 *                             from its flops on one rank (ideal.h): before a compilation
 */
#ifndef PLAN_SEARCH_BOUND_H
#define PLAN_SEARCH_BOUND_H

#include "plan/clock/summary.h"
#include "plan/search/space.h"

enum { MAX_BOUND_CLASSES = 16 };

/* One class of units: those that are compiled alike. */
typedef struct {
    double run_s[N_PHASES];
    double pack;                 /* elements of its parameters on a rank, gathered; without */
    double coded;                /* those of coded weights, and */
    double experts;              /* those of experts on ranks of ep x etp, */
    double coded_experts;        /* and of coded ones */
    double frame_bytes;          /* of one micro-batch, F to B */
    double y_bytes;              /* sent to the next stage; 0: not known */
    const WeightSummary *weight; /* [n_weights]; NULL: not known */
    int n_weights;
} UnitBound;

typedef struct {
    int n; /* ERR_CONFIG of the functions that fill it: more than MAX_BOUND_CLASSES */
    UnitBound class[MAX_BOUND_CLASSES];
} LayoutBound;

typedef struct {
    const PlanSpace *space;
    const PlanPoint *point;
    const LayoutBound *layout;
    const int16_t *first_unit; /* [stages x chunks per stage + 1] */
    const int16_t *class_of;   /* [units] */
    int chunks;                /* of all stages */
    bool is_v;                 /* chunks lie on a V: schedule/gen/generate.h */
    bool any_zero;             /* a bound of all ZeRO levels that the space has, and of frames that
                                * are not saved; the point's recomputation is the fastest one */
} BoundInput;

typedef struct {
    double step_s;
    double memory_bytes; /* of the stage that needs most */
} PlanBound;

/* Local. O(units). */
Err plan_bound(const BoundInput *in, Arena *temp, PlanBound *out);

/* Bounds of a unit's parts that depend on ZeRO and on the ranks that share its packs. */
typedef struct {
    double reduce_s[2], gather_s[2]; /* by ReduceWhen, by GatherWhen */
    double norm_s, update_s, quantize_s;
    double state_bytes, grad_bytes, pack_bytes, work_grad_bytes; /* as in UnitSummary */
} PackBound;
/* Local. Of the unit's packs, with the point's ZeRO levels; rules of weights need unit->weight. */
PackBound pack_bound(const PlanSpace *s, const PlanPoint *p, const UnitBound *unit);
/* Local. The least seconds of the unit's reductions if its weights may have any ZeRO levels. */
double pack_least_reduce(const PlanSpace *s, const PlanPoint *p, const UnitBound *unit);

/* Local. Bounds of the classes of a summary without ZeRO and without dp. */
Err layout_bound(const LayoutSummary *s, DType dtype, int n_moments, LayoutBound *out);
/* Local. ERR_CONFIG if a layout has more than MAX_BOUND_CLASSES classes of units. */
Err bound_check_classes(int n);

#endif

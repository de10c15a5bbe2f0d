/* mixed.h -- plans whose layers differ: ZeRO level, recomputation and offload of each unit are
 * chosen by themselves. All units share the mesh, the schedule and the micro-batch.
 *
 *     48 layers, 8 GB       20 x [zero 0]  28 x [zero 3]      gathers of 28 layers hide behind the
 *                                                             work of 48
 *
 * A family are the plans that agree in all but these choices. The layers of its best plan are found
 * thus:
 *
 *     costs    each kind of unit under each choice: bytes, and a few sums of seconds (work,
 *              gathers, reductions); a step takes at least each sum (mixed_costs.c)
 *     bound    any mean of these sums is a sum over the units, so its minimum under the memory
 *              limit is a knapsack: relaxed (mixed_bound.c), then exact by Pareto lists rounded
 *              down (frontier.h)
 *     plans    the same lists rounded up give choices for each stage; the coarse clock plays them
 *              in two orders of the layers, and the best is timed and linked (mixed_solve.c)
 *
 * Families are taken best-first by their bound, as in search.h. A bound holds for any order of the
 * layers. It is below the time of the best plan by what the sums leave out, so the certificate of
 * the whole space is usually a gap, not zero. */
#ifndef PLAN_SEARCH_MIXED_H
#define PLAN_SEARCH_MIXED_H

#include "plan/search/search.h"

typedef struct {
    bool found; /* a plan faster than best_s fits */
    PlanPoint point;
    CoarseTime time;
    double memory_bytes; /* linked */
    double bound_s;      /* no plan of the space that fits is faster; at most the best time */
    int families, bounded, solved; /* of the space; with a bound from knapsacks; with plans */
} MixedPlan;

typedef struct {
    double limit_bytes;
    double best_s; /* of the plans whose layers are alike; INFINITY: none fits */
    int max_bounded, max_solved;
    const PlanPoint *first; /* its family is solved first; NULL: none */
} MixedRequest;

/* Local. Searches the families of s->node. ERR_CONFIG of single plans is no error. */
Err plan_mixed(PlanSearch *s, const MixedRequest *r, MixedPlan *out);
/* Local. True if the search may choose among several values of ZeRO or recomputation. */
bool plan_mixes(const PlanSpace *s);

#endif

/* parts.h -- internal to the search: the cache of layouts, and levels of nodes.
 *
 *     search.c    the heap
 *     levels.c    raises a node by one level
 *     cache.c     summaries, by layout (cache.h) */
#ifndef PLAN_SEARCH_PARTS_H
#define PLAN_SEARCH_PARTS_H

#include "plan/search/operators.h"
#include "plan/search/search.h"

/* The kinds of units of a layout, without dp. */
typedef struct {
    LayoutBound bound;
    const LayoutSummary *summary;
} LayoutUnits;

/* Local. plan_job, with the placements that the search knows. */
JobSettings search_job(const PlanSearch *s, const PlanPoint *p);
/* Local. The kinds of a point's layout; NULL: the compiler refuses it. The result stays valid. */
Err cache_units(PlanSearch *s, const PlanPoint *p, const LayoutUnits **out);
/* Local. Bounds of the same: from flops on one rank, divided by the ranks; and from the layout on
 * the ideal machine (ideal.h), for which ERR_CONFIG means that the compiler refuses it. */
Err cache_ideal(PlanSearch *s, const PlanPoint *p, LayoutBound *out);
Err cache_scaled(PlanSearch *s, const PlanPoint *p, LayoutBound *out);
/* Local. The summary of a point's layout, with dp and ZeRO. */
Err cache_summary(PlanSearch *s, const PlanPoint *p, const LayoutSummary **out);
/* Local. How the weights of a unit may have two ZeRO levels. */
Err cache_splits(PlanSearch *s, int unit, const WeightSplits **out);
/* Local. The units of the point's chunks, and the kinds of all units. */
Err cache_chunks(PlanSearch *s, const PlanPoint *p, int chunks, const int16_t **first_unit,
                 const int16_t **class_of);

/* Local. The schedule of the point over chunks, with sends and receives; NULL: refused. */
Err cache_moves(PlanSearch *s, const PlanPoint *p, const Schedule **out);

/* Local. The summary of a layout without dp, with bounds in place of what dp and ZeRO add to it;
 * class: [MAX_BOUND_CLASSES], which *out points to. ERR_CONFIG: the compiler refuses the layout. */
Err search_pack_bounds(PlanSearch *s, const PlanPoint *p, UnitSummary *class, LayoutSummary *out);
/* Local. Plays the point's schedule; unit: as CoarseInput.unit. */
Err search_play(PlanSearch *s, const PlanPoint *p, const LayoutSummary *sum,
                const UnitSummary *const *unit, CoarseTime *out);
/* Local. Raises the node to its next level. */
Err search_raise(PlanSearch *s, PlanNode *node);
/* Local. The bound of a point from these kinds of units. */
Err search_bound(PlanSearch *s, const PlanPoint *p, const LayoutBound *layout, PlanBound *out);
/* Local. The same of all plans that differ from the point in ZeRO and recomputation, if the point's
 * recomputation is the fastest. */
Err search_any_bound(PlanSearch *s, const PlanPoint *p, const LayoutBound *layout, PlanBound *out);

#endif

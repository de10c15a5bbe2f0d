/* search.h -- the best plans of a space: best-first by lower bounds, with a certificate.
 *
 *     level     key of the heap                              cost of a node
 *     ideal     bound from flops on one rank                 a microsecond
 *     scaled    bound from one sequence (ideal.h)            a compilation for each layout
 *     bound     bound from compiled units (bound.h)          one for each size and recomputation
 *     played    the coarse clock with bounds of gathers      a millisecond
 *               and reductions
 *     timed     seconds of the coarse clock                  a compilation for each dp and ZeRO
 *     linked    the same; memory is that of linked programs  tens of milliseconds
 *
 * The node with the smallest key is raised by one level and put back. A linked node that is taken
 * from the heap and fits is the best plan: all other keys are larger, and no key is above the
 * seconds of its plan. Nodes whose memory bound is above the limit are left out. Plans that the
 * compiler refuses are left out too.
 *
 * The search is deterministic: it is limited by counts of nodes, not by seconds, and equal keys are
 * taken in the order of the space. If a limit ends it, the smallest key that is left is a bound of
 * all plans that were not examined. */
#ifndef PLAN_SEARCH_SEARCH_H
#define PLAN_SEARCH_SEARCH_H

#include "plan/search/bound.h"
#include "plan/clock/coarse.h"
#include "state/save.h"

typedef enum {
    LEVEL_IDEAL,
    LEVEL_SCALED,
    LEVEL_BOUND,
    LEVEL_PLAYED,
    LEVEL_TIMED,
    LEVEL_LINKED,
    LEVEL_REFUSED
} NodeLevel;

typedef struct {
    PlanPoint point;
    NodeLevel level;
    double key_s;        /* bound or seconds, by level */
    double memory_bytes; /* bound, or exact if linked: of the device memory of a rank */
    int time;            /* index of PlanSearch.time; -1: not timed */
} PlanNode;

typedef struct {
    int nodes, compiled, played, timed, linked, refused; /* so far, over all searches */
} SearchCounts;

typedef struct PlanCache PlanCache;

typedef struct {
    PlanSpace space;
    bool validates;             /* the run has a validation program too */
    SaveMemory save;            /* of saves, if the cluster's memory holds their copies */
    int max_played, max_linked; /* nodes that reach these levels in one search */
    Arena *arena, *temp;
    PlanNode *node;
    int n;
    CoarseTime *times;
    int n_times, cap_times;
    SearchCounts counts;
    double limit_bytes; /* of the search under way */
    double excess;      /* the greatest ratio by which a bound was above the time: 0, or above 1 */
    PlanCache *cache;   /* summaries of layouts: valid for all numbers of ranks of a cluster */
    /* Called now and then with the time of the best plan so far, or 0; NULL: not called. */
    void (*progress)(void *context, const SearchCounts *counts);
    void *context;
} PlanSearch;

typedef struct {
    int n;
    int *node;      /* [n]: indices of nodes, the best first */
    double bound_s; /* no plan within the limit is faster than this */
    bool complete;  /* the first is optimal by the coarse clock: bound_s is its time */
} PlanRanking;

/* Local. Opens a cache; all memory is in the arena. */
Err plan_cache_open(Arena *arena, PlanCache **out);
/* Local. Fills node from s->space; all other inputs are set by the caller. */
Err plan_search_open(PlanSearch *s);
/* Local. The best `want` plans, no two on one mesh if `distinct`, that need at most limit_bytes on
 * each rank. Later calls with other limits reuse the nodes. */
Err plan_search(PlanSearch *s, double limit_bytes, int want, bool distinct, PlanRanking *out);
/* Local. Sets the rules of a point whose layouts of weights along tp are those of a search; false:
 * they are Megatron's, so the plan is in the space already. A search does so for the nodes that it
 * examines; the functions below, for a copy of the point. */
Err plan_settle(PlanSearch *s, PlanPoint *p, bool *differs);
/* Local. Plays one point with the coarse clock. ERR_CONFIG if the compiler refuses it. */
Err plan_time(PlanSearch *s, const PlanPoint *p, CoarseTime *out);
/* Local. The same with bounds of gathers and reductions: no later than plan_time. */
Err plan_play(PlanSearch *s, const PlanPoint *p, CoarseTime *out);
/* Local. Links a point: bytes of the rank that needs most. */
Err plan_link(PlanSearch *s, const PlanPoint *p, double *bytes);
/* Local. The same of each stage: bytes [pp]. */
Err plan_link_stages(PlanSearch *s, const PlanPoint *p, double *bytes);
/* Local. Seconds that GEMMs and attention of a step take on one rank at their best rates. No plan
 * does less work, so ranks that differ take at least these seconds over the sum of their speeds. */
Err plan_least_work(PlanSearch *s, double *seconds);
/* Local. The bound of a point from compiled units. */
Err plan_point_bound(PlanSearch *s, const PlanPoint *p, PlanBound *out);

#endif

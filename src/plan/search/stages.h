/* stages.h -- the nodes and the units of each stage, on a cluster whose nodes differ.
 *
 *     nodes    0 1 2 3          2 and 3 have half of the speed
 *     pp=2     0 1 | 2 3        the kinds of devices of each stage: an arrangement
 *     units    23  | 11         each stage takes as long: 23 / 1, 11 / 0.5
 *
 * All arrangements are compared by a formula for the units that schedule_deal gives them: one stage
 * takes the sum of its units' costs over the speed of its slowest device. The best are played by
 * the clock. Then single units move between chunks while a step gets shorter, and links between
 * nodes decide among nodes that are alike (map.h). What is taken is linked: a stage that does not
 * fit the devices of its nodes gets fewer units. The search is limited by counts. */
#ifndef PLAN_SEARCH_STAGES_H
#define PLAN_SEARCH_STAGES_H

#include "plan/search/map.h"
#include "plan/search/search.h"

typedef struct {
    PlanSearch *search;     /* links plans; its nodes are not read */
    const Cluster *cluster; /* with rates.nodes */
    double limit_bytes;     /* of a rank, also on devices that have more */
    double best_s;          /* of another plan: one that is far slower is left; INFINITY: none */
    int max_plays;          /* of one plan in orders of the nodes */
    int max_splits;         /* whose programs are compiled */
    bool keeps_split;
} StageRequest;

typedef struct {
    PlanPoint point; /* with its split */
    NodeMap map;     /* of this split; alike_s and in_order_s are those of the request's point */
    double memory_bytes; /* of the rank that needs most */
    int splits;          /* that were compiled */
} StagePlan;

/* Local. The result is in search->arena. map.step_s is INFINITY if no order and no split fits. */
Err plan_stages(const StageRequest *r, const PlanPoint *p, StagePlan *out);

#endif

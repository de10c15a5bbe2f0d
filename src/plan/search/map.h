/* map.h -- which node runs which block of ranks, on a cluster whose links between nodes or whose
 * devices differ.
 *
 *     blocks of the mesh   0 1 | 2 3           pp=2: stages of two nodes each
 *     islands              {0, 2}, {1, 3}      slow links between them
 *     best order           0 2 | 1 3           gradients stay within an island, stages cross
 *
 * The objective is the clock's step: the tapes are compiled once and played for each order. A
 * branch and bound places block after block; links to blocks that are not placed yet count as the
 * fastest of their level, and their devices too, so a partial order that is no faster than the best
 * whole one is left out. Nodes with equal devices and equal links to all others are tried once. The
 * search is limited by plays, not by seconds; if they do not suffice, the answer is the best order
 * found, with a bound. */
#ifndef PLAN_SEARCH_MAP_H
#define PLAN_SEARCH_MAP_H

#include "plan/clock/clock.h"

typedef struct {
    int n;             /* nodes */
    int *at;           /* [n]: CostNodes.at */
    double step_s;     /* in this order, INFINITY: no order fits, */
    double in_order_s; /* in the order of their numbers, */
    double alike_s;    /* and if all links had the rates of their level, all devices speed 1 */
    double bound_s;    /* no order is faster */
    bool complete;     /* bound_s is step_s */
    int plays;
} NodeMap;

/* Local. in->cluster->rates.nodes is not NULL; its `at` is not read. need [nodes]: the bytes of a
 * rank of each block, for which its node must have room; NULL: any has. `temp` is rewound.
 * ERR_CONFIG if the ranks are no whole number of nodes. */
Err plan_map(const ClockInput *in, const double *need, int max_plays, Arena *arena, Arena *temp,
             NodeMap *out);

/* Local. The cluster with this order of its nodes, and with links of the levels alone. */
Err cluster_ordered(const Cluster *c, const int *at, int n, Arena *arena, Cluster *out);
Cluster cluster_alike(const Cluster *c);

#endif

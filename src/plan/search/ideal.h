/* ideal.h -- lower bounds of a layout's RUNs from one compilation, for all sizes of micro-batches.
 *
 * On an ideal machine GEMMs and attention run at their best rates, transfers have no latency, and
 * all else takes no time. Seconds there are linear in the sequences of a micro-batch, so those of
 * one sequence bound those of any number; and recomputation only adds to them. One rank is played,
 * by the clock: its transfers begin when it does, and other ranks can only delay them. Its events
 * are those of the machine, in their order, and no price is higher, so none is later. */
#ifndef PLAN_SEARCH_IDEAL_H
#define PLAN_SEARCH_IDEAL_H

#include "plan/search/bound.h"

/* Local. Tables of the result are in the arena. */
Err ideal_cluster(const Cluster *c, Arena *arena, Cluster *out);
/* Local. Compiles the job's kinds for rank 0 and plays each phase. The job has one sequence in a
 * micro-batch, no dp, no pp. Fills run_s, and nothing else. `temp` is rewound. */
Err ideal_layout(const JobSettings *job, const Cluster *ideal, Arena *temp, LayoutBound *out);

#endif

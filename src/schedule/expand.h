/* expand.h -- the pass that expands RUNs over chunks to the actions of units.
 *
 *     before   stage 0: F0.0 send.F0.0>1 recv.B1.0<1 B0.0         chunk 0 is units 0 and 1,
 *              stage 1: recv.F0.0<0 F1.0 B1.0 send.B1.0>0         chunk 1 is unit 2
 *
 *     after    stage 0: F0.0 F1.0 send.F1.0>1 recv.B2.0<1 B1.0 B0.0 norm update.0 update.1
 *              stage 1: recv.F1.0<0 F2.0 B2.0 send.B2.0>0 norm update.2
 *
 * Forward units run in ascending order, backward units in descending order. */
#ifndef SCHEDULE_EXPAND_H
#define SCHEDULE_EXPAND_H

#include "schedule/action.h"

typedef enum { EXPAND_RUNS, EXPAND_STEP } ExpandEnd; /* RUNs and moves only; NORM and UPDATEs too */

enum { ALL_STAGES = -1 };

/* Local. `moves`: lists over chunks, as schedule_moves makes them. Expands the list of one stage,
 * or of ALL_STAGES; the others are empty. */
Err schedule_expand_stage(const Schedule *moves, ExpandEnd end, int stage, Arena *arena,
                          Schedule *out);
/* Local. Both passes, for all stages. `chunks` holds RUNs over chunks, and perhaps EVICTs and
 * FETCHes, and passes the check; otherwise ERR_CHECK. */
Err schedule_expand(const Schedule *chunks, ExpandEnd end, Arena *arena, Schedule *out);

#endif

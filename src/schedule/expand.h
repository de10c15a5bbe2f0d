/* expand.h -- from chunks to units: the pass that makes a drawing into what stages do.
 *
 *     before   stage 0: F0.0 B0.0                                  chunk 0 is units 0 and 1,
 *              stage 1: F1.0 B1.0                                  chunk 1 is unit 2
 *
 *     after    stage 0: F0.0 F1.0 send.F1.0>1 recv.B2.0<1 B1.0 B0.0 norm update.0 update.1
 *              stage 1: recv.F1.0<0 F2.0 B2.0 send.B2.0>0 norm update.2
 *
 * Forward units go up, backward units go down. Chunks that are neighbours on one stage pass their
 * value on; nothing is sent. */
#ifndef SCHEDULE_EXPAND_H
#define SCHEDULE_EXPAND_H

#include "schedule/action.h"

typedef enum { EXPAND_RUNS, EXPAND_STEP } ExpandEnd; /* RUNs and moves only; NORM and UPDATEs too */

/* Local. `chunks` holds RUNs over chunks, perhaps EVICTs and FETCHes, and nothing else, and passes
 * the check; else ERR_CHECK. */
Err schedule_expand(const Schedule *chunks, ExpandEnd end, Arena *arena, Schedule *out);

#endif

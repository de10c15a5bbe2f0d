/* moves.h -- the pass that adds sends and receives to RUNs over chunks.
 *
 *     before   stage 0: F0.0 B0.0                                 chunk 0 on stage 0,
 *              stage 1: F1.0 B1.0                                 chunk 1 on stage 1
 *
 *     after    stage 0: F0.0 send.F0.0>1 recv.B1.0<1 B0.0
 *              stage 1: recv.F0.0<0 F1.0 B1.0 send.B1.0>0
 *
 * Stages meet in these lists only. A check of them proves that no stages wait in a circle, at a
 * cost that does not depend on the number of units; schedule/expand.h then writes the units of each
 * stage by itself. Between neighboring chunks on one stage nothing is sent. */
#ifndef SCHEDULE_MOVES_H
#define SCHEDULE_MOVES_H

#include "schedule/action.h"

/* Local. `chunks` holds RUNs over chunks, and perhaps EVICTs and FETCHes, and passes the check;
 * otherwise ERR_CHECK. */
Err schedule_moves(const Schedule *chunks, Arena *arena, Schedule *out);

#endif

/* evict.h -- BPipe: stages that hold many frames lend some to stages that hold few.
 *
 * In 1f1b the first stage holds P frames and the last one. Stage x pairs with stage P-1-x: together
 * they hold P+1, so half of that would do for each.
 *
 *     before   F0.0 F0.1 F0.2 F0.3             B0.0 ... B0.2             F0.6             B0.3 ...
 *     after    F0.0 F0.1 F0.2 F0.3 evict.0.3>3 B0.0 ... B0.2 fetch.0.3<3 F0.6 evict.0.6>3 B0.3 ...
 *
 * What is used last goes; it is back one RUN before it is needed, so that the way can hide behind
 * that RUN. */
#ifndef SCHEDULE_EVICT_H
#define SCHEDULE_EVICT_H

#include "schedule/action.h"

/* Local. Of RUNs over chunks. No stage that evicts, or lends places, holds more than keep + 1 frames
 * (one comes or goes); keep 0: half of what the largest pair holds, ceil((P+2)/2) in 1f1b. Frames go to the partner if it has the room, else to
 * the host. ERR_CHECK when there is more than RUNs over chunks, ERR_CONFIG when keep < 0. */
Err schedule_evict(const Schedule *s, int keep, Arena *arena, Schedule *out);

#endif

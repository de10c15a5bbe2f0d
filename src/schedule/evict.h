/* evict.h -- BPipe: stages that hold many frames store some of them on stages that hold few.
 *
 * In 1f1b the first stage holds P frames and the last stage one. Stage x pairs with stage P-1-x:
 * together they hold P+1, so half of that suffices for each.
 *
 *     before   F0.0 F0.1 F0.2 F0.3             B0.0 ... B0.2             F0.6             B0.3 ...
 *     after    F0.0 F0.1 F0.2 F0.3 evict.0.3>3 B0.0 ... B0.2 fetch.0.3<3 F0.6 evict.0.6>3 B0.3 ...
 *
 * The frame whose next use is latest is evicted. It is fetched one RUN before its use, so that the
 * transfer overlaps with that RUN. */
#ifndef SCHEDULE_EVICT_H
#define SCHEDULE_EVICT_H

#include "schedule/action.h"

/* Local. Adds EVICTs and FETCHes to RUNs over chunks. No stage that evicts or stores frames for
 * another holds more than keep + 1 frames (one may be in transfer). keep 0: half the frames of the
 * largest pair, ceil((P+2)/2) in 1f1b. Frames go to the partner if it has room, otherwise to
 * the host. ERR_CHECK if there is anything but RUNs over chunks, ERR_CONFIG if keep < 0. */
Err schedule_evict(const Schedule *s, int keep, Arena *arena, Schedule *out);

#endif

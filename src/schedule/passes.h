/* passes.h -- splits a backward into I and W, or merges the two.
 *
 *     B0.0  <->  I0.0 W0.0        an I and a W with another action between them are not merged
 *
 * Both need a schedule without sends, because a send names the phase; otherwise ERR_CHECK. A split
 * backward sends the input gradient before it computes the parameter gradients. A merged one has
 * fewer and larger operations. */
#ifndef SCHEDULE_PASSES_H
#define SCHEDULE_PASSES_H

#include "schedule/action.h"

/* Local. Replaces every B by an I and a W right after it. `out` may be `s`. */
Err schedule_split(const Schedule *s, Arena *arena, Schedule *out);
/* Local. Replaces every I that is followed directly by its W, and that W, by a B. `out` may be
 * `s`. Only tests call it. */
Err schedule_merge(const Schedule *s, Arena *arena, Schedule *out);

#endif

/* passes.h -- a backward in one piece or in two.
 *
 *     B0.0  <->  I0.0 W0.0        what lies between an I and its W keeps them apart
 *
 * Of schedules without sends, which name the phase; else ERR_CHECK. In two pieces the gradient of
 * the input is on its way before those of the parameters are made; in one piece there are fewer,
 * larger operations. */
#ifndef SCHEDULE_PASSES_H
#define SCHEDULE_PASSES_H

#include "schedule/action.h"

/* Local. Every B as an I and a W right after it. `out` may be `s`. */
Err schedule_split(const Schedule *s, Arena *arena, Schedule *out);
/* Local. Every I whose W comes right after it as a B. `out` may be `s`. */
Err schedule_merge(const Schedule *s, Arena *arena, Schedule *out);

#endif

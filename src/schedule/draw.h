/* draw.h -- schedules as pictures of text.  What these print is what head comments hold.
 *
 *     stage 0 | F0 F1 B0 B1              the lists: what runs, in order
 *     stage 1 | F0 B0 F1 B1
 *
 *     stage 0 | F0 F1 .  .  B0 -- .  B1 --     the same by the clock, a cell for each unit of
 *     stage 1 | .  F0 B0 -- F1 B1 -- .  .      time; -- goes on, . waits
 *
 * A cell names phase and micro-batch, and the slice where there are several (F0.1). Where every stage
 * holds two chunks, small letters are RUNs of its second (f0); else chunk or unit come first where a
 * stage holds several (F1.0). Only RUNs are drawn. */
#ifndef SCHEDULE_DRAW_H
#define SCHEDULE_DRAW_H

#include "schedule/play.h"

/* Local. `before` starts each line. */
Err schedule_draw(const Schedule *s, const char *before, Arena *arena, const char **out);
/* Local. Of a schedule as it was played; a cell is `unit` long and shows what runs in its middle.
 * ERR_CONFIG when that makes more than DRAW_CELLS cells. */
enum { MAX_DRAW_CELLS = 10000 };
Err schedule_draw_time(const Schedule *s, const Play *play, double unit, const char *before,
                       Arena *arena, const char **out);

#endif

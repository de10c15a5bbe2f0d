/* draw.h -- schedules drawn as text, as in the head comments of schedule/gen/.
 *
 *     stage 0 | F0 F1 B0 B1             the lists: RUNs in order
 *     stage 1 | F0 B0 F1 B1
 *
 *     stage 0 | F0 F1 .  .  B0 -- .  B1 --     the same over time, one cell per unit of time;
 *     stage 1 | .  F0 B0 -- F1 B1 -- .  .      -- continues the RUN, . is idle
 *
 * A cell names phase and micro-batch, and the slice if there are several (F0.1). If every stage
 * holds two chunks, lower case marks RUNs of its second chunk (f0). In other schedules with several
 * items per stage the chunk or unit comes first (F1.0). Only RUNs are drawn. */
#ifndef SCHEDULE_DRAW_H
#define SCHEDULE_DRAW_H

#include "schedule/play.h"

/* Local. Draws the lists. `before` starts each line. */
Err schedule_draw(const Schedule *s, const char *before, Arena *arena, const char **out);
/* Local. Draws a played schedule. A cell is `unit` long and shows the RUN in its middle. ERR_CONFIG
 * if that takes more than MAX_DRAW_CELLS cells. Only tests call it. */
enum { MAX_DRAW_CELLS = 10000 };
Err schedule_draw_time(const Schedule *s, const Play *play, double unit, const char *before,
                       Arena *arena, const char **out);

#endif

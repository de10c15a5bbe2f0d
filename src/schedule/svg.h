/* svg.h -- a schedule as it was played, as a picture: time to the right, a lane for each stage.
 *
 *     title
 *     makespan 27, waits 33 %
 *     stage 0 [F0][F1][F2]///////////[B0    ][B1    ]...  holds 4        /// waits
 *     stage 1 ////[F0][F1]/////[B0    ]...                holds 3
 *            0         10         20
 *     [F] [B] [/// waits]                                               what the colours mean
 *
 * One file with nothing outside of it; any browser shows it, and says action and times where the
 * mouse is. */
#ifndef SCHEDULE_SVG_H
#define SCHEDULE_SVG_H

#include "schedule/play.h"

/* Local. ERR_CONFIG when there are more than SVG_RUNS to draw. */
enum { MAX_SVG_RUNS = 100000 };
Err schedule_svg(const Schedule *s, const Play *play, const char *title, Arena *arena,
                 const char **out);

#endif

/* svg.h -- a played schedule as an SVG picture: time to the right, one row per stage.
 *
 *     title
 *     makespan 27, waits 33 %
 *     stage 0 [F0][F1][F2]///////////[B0    ][B1    ]...  holds 4        /// waits
 *     stage 1 ////[F0][F1]/////[B0    ]...                holds 3
 *             0         10         20
 *     [F] [B] [/// waits]                                               the legend
 *
 * The file is self-contained. A browser shows the action and its times where the mouse points. */
#ifndef SCHEDULE_SVG_H
#define SCHEDULE_SVG_H

#include "schedule/play.h"

/* Local. ERR_CONFIG if there are more than MAX_SVG_RUNS RUNs to draw. */
enum { MAX_SVG_RUNS = 100000 };
Err schedule_svg(const Schedule *s, const Play *play, const char *title, Arena *arena,
                 const char **out);

#endif

/* context_svg.h -- an attention plan as an SVG picture: time to the right, a row per rank.
 *
 *     title
 *     forward
 *     rank 0 [0x0     ][0x2 ]///[0x1 ]        visits; /// waits
 *             kv2 ====   kv1 ====             arrivals from other ranks, below them
 *     rank 1 ...
 *     backward
 *     ...
 *
 * The file is self-contained. A browser shows the step and its times where the mouse points. */
#ifndef JOB_CONTEXT_SVG_H
#define JOB_CONTEXT_SVG_H

#include "job/context_clock.h"

/* Local. Draws the forward and the backward plan as they are played with this load. ERR_CONFIG for
 * more than MAX_SVG_RANKS ranks. */
enum { MAX_SVG_RANKS = 32 };
Err context_svg(const ContextPlan plan[2], const ContextLoad *load, const char *title, Arena *arena,
                const char **out);

#endif

/* home_copy.h -- copies boxes between a rank's homes and host memory.
 *
 *     home on the host       copied directly                        box_copy.h
 *     home on a device       a contiguous box is copied directly; otherwise the address range that
 *                            contains it is fetched, the box is copied from or into it, and after
 *                            a write the range is sent back */
#ifndef STATE_HOME_COPY_H
#define STATE_HOME_COPY_H

#include "run/rank.h"
#include "state/box_copy.h"

/* Local. home_read copies a box of the rank's memory, described by `home`, to a dense box in host
 * memory. home_write copies a box in host memory, described by `from`, to `home`. */
Err home_read(const Rank *r, const Box *box, size_t element, const BoxView *home, char *dense);
Err home_write(Rank *r, const Box *box, size_t element, const BoxView *home, const BoxView *from);

#endif

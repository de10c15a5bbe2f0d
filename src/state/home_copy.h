/* home_copy.h -- boxes of a rank's homes, read and written by the host.
 *
 *     home, on the host      the box, copied                        boxcopy.h
 *     home, on a device      one run: straight; else the stretch that it lies in is fetched, and
 *                            the box taken from it, or put into it and the stretch sent back  */
#ifndef STATE_HOME_COPY_H
#define STATE_HOME_COPY_H

#include "run/rank.h"
#include "state/box_copy.h"

/* Local. Elements of a box that lies as `home` says in the rank's memory, to the host's, where it
 * then lies alone; and from there, where it lies as `from` says. */
Err home_read(const Rank *r, const Box *box, size_t element, const BoxView *home, char *dense);
Err home_write(Rank *r, const Box *box, size_t element, const BoxView *home, const BoxView *from);

#endif

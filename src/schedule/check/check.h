/* check.h -- proves that a schedule can be executed, before anything runs.
 *
 *     complete     each (item, micro, slice) has one F, and one B or one I and one W, on its stage
 *     in order     F before I or B, I before W; slices ascending in F, descending in I and B
 *     sent         each value that crosses stages has one SEND and one RECV, with the right peers,
 *                  and two stages agree on the order of the values between them
 *     gathered     an item that has GATHERs is gathered whenever its F runs
 *     finished     a reduction, the norm and an update come after all actions that they need
 *     at home      an evicted frame is fetched before it is used
 *     executable   the player reaches the end, so no stages wait in a circle
 *
 * An item is a chunk or a unit, depending on the level. Messages name stage, position (from 0), the
 * action in text form, and the reason. */
#ifndef SCHEDULE_CHECK_CHECK_H
#define SCHEDULE_CHECK_CHECK_H

#include "schedule/action.h"

/* Local. ERR_CHECK for the first fault found; memory taken from `temp` is given back. Sends are
 * required if there are any, or if units are on several stages. Of a schedule with the list of one
 * stage only that list is checked, without its sends and receives: the lists over chunks that it
 * was expanded from show those. */
Err schedule_check(const Schedule *s, Arena *temp);
/* Local. Checks only that every action names an existing item on the stage that holds it. */
Err schedule_check_ranges(const Schedule *s);
/* Local. Checks that the phases that add to gradients (W or B; F for the head) run in order of
 * micro-batches, in each unit. Sums then equal those of a single rank, bit for bit. ERR_CHECK names
 * the first RUN that comes too late. The schedule must have passed schedule_check. */
Err schedule_check_order(const Schedule *s);
bool schedule_in_order(const Schedule *s);

#endif

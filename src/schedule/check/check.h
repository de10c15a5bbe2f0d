/* check.h -- is it a schedule at all?  Proofs, before anything runs.
 *
 *     complete     each (item, micro, slice) has one F, and one B or one I and one W, where it lies
 *     in order     F before I or B, I before W; slices up in F, down in I and B
 *     sent         each value that crosses stages has one SEND and one RECV, with the right peers,
 *                  and two stages agree on the order of the values between them
 *     gathered     what is gathered on a stage is so whenever it runs
 *     finished     a reduction, the norm and an update come after all that they need
 *     at home      a frame that was sent away is back when it is needed
 *     executable   played to the end, so nobody waits in a circle
 *
 * An item is a chunk or a unit, as the grain says. Messages name stage, position (from 0), the
 * action in text form, and the reason. */
#ifndef SCHEDULE_CHECK_CHECK_H
#define SCHEDULE_CHECK_CHECK_H

#include "schedule/action.h"

/* Local. ERR_CHECK for the first fault found; memory is taken from `temp` and given back. Sends are
 * demanded when there are any, or when units lie on several stages. */
Err schedule_check(const Schedule *s, Arena *temp);
/* Local. Only that every action names what exists, on the stage that holds it. */
Err schedule_check_ranges(const Schedule *s);
/* Local. Do the phases that write gradients (W or B; F for the head) run in order of micro-batches,
 * in each unit? Then sums are those of one stage, bit for bit. ERR_CHECK names the first RUN that
 * comes too late. Of a schedule that passed the check. */
Err schedule_check_order(const Schedule *s);
bool schedule_in_order(const Schedule *s);

#endif

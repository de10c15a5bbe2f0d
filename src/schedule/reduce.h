/* reduce.h -- the pass that says when the gradients of a pack are summed over ranks.
 *
 *     before   F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1              unit 1 is the head
 *
 *     last     F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 reduce.1 B1.1 B0.1 reduce.0
 *     each     F0.0 F1.0 reduce.1.0 B1.0 B0.0 reduce.0.0 F0.1 F1.1 reduce.1.1 B1.1 B0.1 reduce.0.1
 *
 * A REDUCE stands right after the last RUN that adds to what it sums: a W or a B, but F in the
 * head. When two units hold a parameter, that is the last RUN of both, and the pack's unit names
 * the REDUCE. It takes what `group` micro-batches left, and is called by the last of them; by none
 * (-1) when there is one group and its sums are not kept apart. */
#ifndef SCHEDULE_REDUCE_H
#define SCHEDULE_REDUCE_H

#include "schedule/action.h"
#include "schedule/packs.h"

typedef struct {
    const UnitPacks *packs; /* [units] */
    /* [units]: micro-batches per REDUCE of the unit's pack. 0: nothing is partial over ranks; then
     * one REDUCE a step where several units hold its parameters, else none. */
    const int *group;
    /* [units]: the unit's sums are kept apart from what a micro-batch adds to them, even when there
     * is but one: its REDUCE is called by it. NULL: of no unit. */
    const bool *apart;
    /* [units]: the REDUCE of the unit's pack comes after all RUNs of the list: other stages take part
     * in it, and these may wait for what this one has still to run. Once a step. NULL: of no unit. */
    const bool *late;
} ReduceInput;

/* Local. The lists of `s`, a schedule over units, with REDUCEs between; all else stays in its
 * order. sums [units] is the caller's: of how many groups the unit's sums must be kept apart, since
 * a RUN of the next group may come before the REDUCE of the one before (a tied head whose forwards
 * all run first); 1 wherever no one waits. */
Err schedule_reduces(const Schedule *s, const ReduceInput *in, Arena *arena, Schedule *out,
                     int *sums);

#endif

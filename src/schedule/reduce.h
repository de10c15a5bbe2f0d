/* reduce.h -- the pass that inserts REDUCEs: sums of a pack's gradients over the ranks of the mesh.
 *
 *     before   F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1              unit 1 is the head
 *
 *     last     F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 reduce.1 B1.1 B0.1 reduce.0
 *     each     F0.0 F1.0 reduce.1.0 B1.0 B0.0 reduce.0.0 F0.1 F1.1 reduce.1.1 B1.1 B0.1 reduce.0.1
 *
 * A REDUCE stands right after the last RUN that adds to its sum: a W or a B, but F in the head. If
 * two units hold a parameter, that is the last RUN of both. The first number of a REDUCE is its
 * pack, here one per unit. It sums the gradients of `group` micro-batches and is named by the last
 * of them. It is named by none (-1) if there is one group and its sums are not kept apart. */
#ifndef SCHEDULE_REDUCE_H
#define SCHEDULE_REDUCE_H

#include "schedule/action.h"
#include "schedule/packs.h"

typedef struct {
    const UnitPacks *packs; /* [units] */
    /* [packs]: micro-batches per REDUCE of the pack. 0: nothing is partial over ranks; there
     * is one REDUCE a step if several units hold its parameters, otherwise none. */
    const int *group;
    /* [packs]: the step's sums are stored apart from the gradients of a micro-batch, even if there
     * is only one micro-batch; its number then names the REDUCE. NULL: false for all. */
    const bool *apart;
    /* [packs]: the REDUCE of the pack stands after all RUNs of the list. Other stages take
     * part in it, and these may wait for a RUN that this stage has still to execute. Once a step.
     * NULL: false for all. */
    const bool *late;
} ReduceInput;

/* Local. Copies the lists of `s`, a schedule over units, and inserts REDUCEs. All other actions
 * keep their order. The caller provides sums [units]: the number of groups for which the unit's
 * gradients are stored apart at once, because a RUN of the next group may precede the REDUCE of the
 * group before (a tied head whose forwards all run first); 1 if no group waits. */
Err schedule_reduces(const Schedule *s, const ReduceInput *in, Arena *arena, Schedule *out,
                     int *sums);

#endif

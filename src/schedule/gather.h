/* gather.h -- the pass that inserts GATHERs and DROPs of packs (FSDP all-gather and reshard).
 *
 *     before   F0.0 F1.0 F2.0 F3.0 B3.0 B2.0 B1.0 B0.0              unit 3 is the head
 *
 *     zero 1   gather.0 gather.1 F0.0 drop.0 gather.2 F1.0 gather.3 F2.0 F3.0 drop.3 ...
 *     zero 3   gather.0 gather.1 F0.0 drop.0 gather.2 F1.0 drop.1 gather.3 F2.0 F3.0 drop.3 ...
 *
 * Pack 0 is dropped after F0.0, since no backward phase reads the weights of an embedding; pack 3
 * after F3.0, since the head computes its gradients in F.
 *
 * A pack that is kept for the step, or to the backward phase, is gathered one RUN before its first
 * use. The other packs (KEEP_NO) are gathered of at most `live` units at any time: those that the
 * current RUN reads, and those needed next. Each gather therefore overlaps with an earlier RUN, and
 * a pack that is needed again soon is not dropped. switches.h defines the rows of ZeRO 1 and 3. */
#ifndef SCHEDULE_GATHER_H
#define SCHEDULE_GATHER_H

#include "schedule/action.h"
#include "schedule/packs.h"
#include "schedule/switches.h"

typedef struct {
    const PackSwitches *row; /* [packs]; packs that are not sharded are never gathered */
    const UnitPacks *packs;  /* [units] */
    int live;                /* maximum number of units with KEEP_NO packs gathered at once (FSDP's
               * limit_all_gathers) */
} GatherInput;

/* Counts of one pack in one step. */
typedef struct {
    int uses;    /* RUNs that read the pack */
    int gathers; /* GATHERs of the pack */
    int saved;   /* uses that found the pack still gathered: uses - gathers */
} GatherCount;

/* Local. Copies the lists of `s`, a schedule over units, and inserts GATHERs and DROPs. All other
 * actions keep their order. Writes counts[packs]. ERR_CONFIG if one RUN reads packs of more than
 * `live` units, with the least value that works in the message, or if a row contradicts itself
 * (gathered once per step, but not kept). */
Err schedule_gathers(const Schedule *s, const GatherInput *in, Arena *arena, Schedule *out,
                     GatherCount *counts);

#endif

/* gather.h -- the pass that brings parameters from home to use, and lets them go.
 *
 *     before   F0.0 F1.0 F2.0 F3.0 B3.0 B2.0 B1.0 B0.0              unit 3 is the head
 *
 *     zero 1   gather.0 gather.1 F0.0 drop.0 gather.2 F1.0 gather.3 F2.0 F3.0 drop.3 ...
 *     zero 3   gather.0 gather.1 F0.0 drop.0 gather.2 F1.0 drop.1 gather.3 F2.0 F3.0 drop.3 ...
 *
 * A pack that is kept for the step, or to the backward phase, is gathered one RUN ahead of its
 * first use. Of the others (KEEP_NO) at most `live` are there at once: at every RUN, those that it
 * reads and the ones that are needed next. So each comes while another RUN is at work, and one that
 * is needed again soon is not dropped. */
#ifndef SCHEDULE_GATHER_H
#define SCHEDULE_GATHER_H

#include "schedule/action.h"
#include "schedule/packs.h"
#include "schedule/switches.h"

typedef struct {
    const UnitSwitches *row; /* [units]; packs that are not cut are never gathered */
    const UnitPacks *packs;  /* [units] */
    int live;                /* packs of KEEP_NO that are gathered at once, at most */
} GatherInput;

/* Of one pack, in one step. */
typedef struct {
    int uses;    /* RUNs that read it */
    int gathers; /* that it took */
    int saved;   /* uses that found it there still: uses - gathers */
} GatherCount;

/* Local. The lists of `s`, a schedule over units, with GATHERs and DROPs between; all else stays in
 * its order. counts [units] is the caller's. ERR_CONFIG, naming the least value that works, when
 * one RUN reads more than `live` packs; ERR_CONFIG for a row that contradicts itself (gathered once
 * a step, and not kept). */
Err schedule_gathers(const Schedule *s, const GatherInput *in, Arena *arena, Schedule *out,
                     GatherCount *counts);

#endif

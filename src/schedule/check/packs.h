/* packs.h -- checks that packs are gathered where they are read, and all gradients are reduced.
 *
 *     gathered    a RUN finds every pack that it reads, its own or another's; no pack is gathered
 *                 or dropped twice, or left gathered at the end; KEEP_NO packs of at most `live`
 *                 units are gathered at once
 *     reduced     a REDUCE comes after all RUNs of all holders that add to it; none is missing
 *
 * schedule_check proves the rest; this check needs the tables that the passes were given. */
#ifndef SCHEDULE_CHECK_PACKS_H
#define SCHEDULE_CHECK_PACKS_H

#include "schedule/action.h"
#include "schedule/packs.h"
#include "schedule/switches.h"

typedef struct {
    const PackSwitches *row; /* [packs] */
    const UnitPacks *packs;  /* [units] */
    int live;
    const int *group; /* [packs], as for schedule_reduces; NULL: a list without reductions */
} PackRules;

/* Local. ERR_CHECK for the first fault found. Only tests call it. */
Err schedule_check_packs(const Schedule *s, const PackRules *rules, Arena *temp);

#endif

/* packs.h -- does a list bring every pack where it is read, and reduce all that was added?
 *
 *     there       a RUN finds every pack that it reads, its own or another's; nothing comes twice,
 *                 goes twice, or stays after the end; at most `live` of KEEP_NO are there at once
 *     reduced     a REDUCE comes after all that any holder adds; where one is needed there is one
 *
 * schedule_check proves the rest; this needs the tables that the passes were given. */
#ifndef SCHEDULE_CHECK_PACKS_H
#define SCHEDULE_CHECK_PACKS_H

#include "schedule/action.h"
#include "schedule/packs.h"
#include "schedule/switches.h"

typedef struct {
    const UnitSwitches *row; /* [units] */
    const UnitPacks *packs;  /* [units] */
    int live;
    const int *group; /* [units], as for schedule_reduces; NULL: a list that reduces nothing */
} PackRules;

/* Local. ERR_CHECK for the first fault found. */
Err schedule_check_packs(const Schedule *s, const PackRules *rules, Arena *temp);

#endif

/* packs.h -- the packs that the RUNs of a unit read, and those whose gradients it adds to.
 *
 *     unit       its packs   F reads   B reads   adds to the gradients of
 *     embed      0           0         -         0
 *     layer.0    1, 2        1, 2      1, 2      1, 2          its experts are pack 2
 *     head       3           0, 3      -         0, 3          tied weights
 *
 * A phase that does not read a parameter does not need it gathered: the backward phase of an
 * embedding, or W of a linear map. */
#ifndef SCHEDULE_PACKS_H
#define SCHEDULE_PACKS_H

#include "ir/program.h"
#include "ir/unit.h"
#include "schedule/action.h"
#include "schedule/programs.h"

enum { MAX_UNIT_PACKS = 32 };

/* Ascending; the unit's own packs may be among them. */
typedef struct {
    int n;
    int16_t pack[MAX_UNIT_PACKS];
} PackSet;

typedef struct {
    PackSet reads[N_PHASES];
    PackSet adds;
} UnitPacks;

/* Local. Writes one entry per unit to *out. ERR_CONFIG if a unit has parameters in more packs than
 * MAX_UNIT_PACKS. O(units x parameters), and one pass over each program. */
Err packs_of_model(const Model *m, const ProgramTable *programs, Arena *arena,
                   const UnitPacks **out);
/* Local. Inserts a pack. ERR_CONFIG if the set is full. */
Err packs_add(PackSet *set, int pack);
bool packs_has(const PackSet *set, int pack);
/* Local. ERR_CHECK unless `s` runs over units; ERR_CONFIG if a parameter of a unit is in the pack
 * of a unit on another stage. */
Err packs_check(const Schedule *s, const UnitPacks *packs);

#endif

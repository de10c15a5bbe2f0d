/* mixed.h -- layouts whose layers differ in their options: the word "mixed".
 *
 *     layer    0            1            2            ...       of "dp=2 zero=1 mixed"
 *     zero     2            1            2
 *     recomp.  full         none         full
 *
 * Every other layer has the next ZeRO level, the opposite of recomputation and of sequence
 * parallelism, and another way to shard attention, as far as they have an effect on the mesh. */
#ifndef VERIFY_MIXED_H
#define VERIFY_MIXED_H

#include "job/job.h"

/* ParallelSettings.units of a layout that is mixed, until the model is known. */
extern const UnitOptions layout_mixed_mark;

/* Local. The options of the units of a mixed layout, from those of the job without units. */
Err mixed_units(const JobSettings *job, Arena *arena, const UnitOptions **out);
/* Local. Units that make the same sums: ZeRO levels above `zero` become that level, with the same
 * reductions, and recomputation and offload become those of the job. *changed: a level did. */
Err mixed_reference(const JobSettings *job, int zero, Arena *arena, const UnitOptions **out,
                    bool *changed);

#endif

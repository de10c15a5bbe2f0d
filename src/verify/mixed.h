/* mixed.h -- layouts whose layers, or whose weights in a layer, differ: the words "mixed" and
 * "operators".
 *
 *     layer    0            1            2            ...       of "dp=2 zero=1 mixed"
 *     zero     2            1            2
 *     recomp.  full         none         full
 *
 * Every other layer has the next ZeRO level, the opposite of recomputation and of sequence
 * parallelism, and another way to shard attention, as far as they have an effect on the mesh.
 *
 *     weights  q, k, v      others                              of "dp=2 zero=1 operators"
 *     zero     2            1
 *
 * The first operator of each kind of unit has the next ZeRO level.
 *
 *     weights  q       k         v        o       gate      ...  of "tp=2 tp_weights"
 *     tp       whole   outputs   inputs   whole   outputs        */
#ifndef VERIFY_MIXED_H
#define VERIFY_MIXED_H

#include "job/job.h"

/* ParallelSettings.units of a layout that is mixed, until the model is known. */
extern const UnitOptions layout_mixed_mark;

/* ParallelSettings.zero_weights of a layout with operators, until the model is known. */
extern const char *const layout_operators_mark;

/* ParallelSettings.tp_weights of a layout with tp_weights, until the model is known. */
extern const char *const layout_tp_mark;

/* Local. The rules of a layout with tp_weights: each weight has another layout along tp than the
 * one before, as far as the ranks can have it. */
Err tp_rules(const JobSettings *job, Arena *arena, const char **out);
/* Local. The rules of a layout with operators. */
Err operator_rules(const JobSettings *job, Arena *arena, const char **out);
/* Local. The same sums without ZeRO levels above `zero`, in the same packs. *exists becomes false
 * if weights with levels of their own are reduced when others are not: `each` says that those are
 * reduced after each micro-batch. */
Err operator_reference(const char *rules, int zero, bool each, Arena *arena, const char **out,
                       bool *exists);

/* Local. The options of the units of a mixed layout, from those of the job without units. */
Err mixed_units(const JobSettings *job, Arena *arena, const UnitOptions **out);
/* Local. Units that make the same sums: ZeRO levels above `zero` become that level, with the same
 * reductions, and recomputation and offload become those of the job. *changed: a level did, and
 * there is such a reference. */
Err mixed_reference(const JobSettings *job, int zero, Arena *arena, const UnitOptions **out,
                    bool *changed);

/* Local. The units of one rank in the precision of the layout's: where layers have rules for FP8,
 * it follows them too, and nothing else. */
Err precise_units(const JobSettings *job, Arena *arena, const UnitOptions **out);

#endif

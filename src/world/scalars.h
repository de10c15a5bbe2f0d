/* scalars.h -- transfers of a few numbers between all ranks, between steps: sums of losses,
 * samples, hashes. They are from no program, so the recorder counts them apart. The memory is
 * registered with the rank's comm as arena `arena` and starts with the numbers.
 *
 *     world_reduce      numbers of each rank -> their sum or maximum, in place
 *     world_gather      row `rank` of [ranks, n] is filled in -> all rows
 *     world_broadcast   numbers of rank `root` -> those of all */
#ifndef WORLD_SCALARS_H
#define WORLD_SCALARS_H

#include "world/world.h"

/* Collective over all ranks, with equal arguments. */
Err world_reduce(WorldRank *r, int arena, int64_t n, DType dtype, Reduce reduce);
Err world_gather(WorldRank *r, int arena, int64_t n, DType dtype);
Err world_broadcast(WorldRank *r, int root, int arena, int64_t n, DType dtype);

#endif

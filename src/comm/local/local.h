/* local.h -- ranks that are threads of one process.
 *
 *     LocalWorld *world;
 *     TRY(local_world_open(4, &world));                       the launcher, once
 *     ... in each of 4 threads:
 *         TRY(local_join(world, &arena, &settings, &comm));   settings.rank: who it is
 *         ...
 *         comm_close(comm);                                   before its memory goes
 *     local_world_close(world);                               after all threads
 *
 * Ranks read and write each other's registered memory directly. */
#ifndef COMM_LOCAL_LOCAL_H
#define COMM_LOCAL_LOCAL_H

#include "comm/comm.h"

typedef struct LocalWorld LocalWorld;

/* Local. What the ranks share; `ranks` >= 1. */
Err local_world_open(int ranks, LocalWorld **out);
void local_world_close(LocalWorld *w);
/* Local. The comm of one rank, in the rank's arena. ERR_CONFIG when settings.ranks is not the
 * world's, or the rank has joined before. A rank that closes its comm with transfers in flight has
 * failed: it poisons the world. */
Err local_join(LocalWorld *w, Arena *a, const CommSettings *set, Comm **out);
/* Local. A comm of one rank, in a world of its own; ERR_CONFIG for more. */
Err local_open(Arena *a, const CommSettings *set, Comm **out);

#endif

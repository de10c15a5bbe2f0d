/* local.h -- ranks that are threads of one process.
 *
 *     TRY(local_start(4, &world));                            the launcher, once
 *     ... in each of 4 threads:
 *         TRY(comm_join(world, &arena, &settings, &comm));    settings.rank: 0 .. 3
 *         ...
 *         comm_close(comm);                                   before its memory is freed
 *     comm_world_stop(world);                                 after all threads have closed
 *
 * Ranks read and write each other's registered memory directly. */
#ifndef COMM_LOCAL_LOCAL_H
#define COMM_LOCAL_LOCAL_H

#include "comm/comm_world.h"

/* Local. The state that the ranks share; `ranks` >= 1, else ERR_CONFIG. */
Err local_start(int ranks, CommWorld **out);
/* Local. A comm of one rank in a world of its own, which comm_close frees; ERR_CONFIG for more
 * ranks. */
Err local_open(Arena *a, const CommSettings *set, Comm **out);

#endif

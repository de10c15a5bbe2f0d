/* team.h -- the threads of one rank.
 *
 * Work is cut into tiles by its shape alone; which thread runs a tile is a matter of speed, never
 * of result. A team of one runs on the calling thread and costs a function call.
 *
 *     static void rows(void *work, int64_t tile) { ... }
 *     team_run(team, n_tiles, rows, &work);          returns when all tiles are done
 *
 * The calling thread takes part. Teams do not nest and do not know of each other; each rank has
 * its own, so ranks share no pool. */
#ifndef BASE_TEAM_H
#define BASE_TEAM_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

typedef struct Team Team;

/* Local. `threads` >= 1, the caller counted. With first_core >= 0 worker i is pinned to core number
 * first_core + i of those that the process may use, and the calling thread to first_core; with -1
 * nothing is pinned. */
Err team_open(Team **team, int threads, int first_core);
void team_close(Team *team);
int team_threads(const Team *team);
/* Local. Cores that this process may use: its affinity mask, not the machine. */
int team_cores(void);
/* Local. Whom this thread works for: a number that it was given, which the teams it opens
 * afterwards pass on to their workers; -1 before. May be asked for in a signal handler. */
void team_work_for(int who);
int team_works_for(void);
/* Local. Calls run(work, tile) for each tile in [0, n_tiles), in no order; NULL is a team of one.
 */
void team_run(Team *team, int64_t n_tiles, void (*run)(void *work, int64_t tile), void *work);

#endif

/* team.h -- the threads of one rank.
 *
 * Work is cut into tiles by its shape alone; which thread runs a tile is a matter of speed, never
 * of result. A team of one runs on the calling thread and costs a function call.
 *
 *     static void rows(void *work, int64_t tile) { ... }
 *     team_run(team, n_tiles, rows, &work);          returns when all tiles are done
 *
 * The calling thread takes part. Thread i begins with the i-th share of the tiles, so from kernel to
 * kernel the same rows are mostly touched by the same core, the first time too; who is done helps
 * the others. Teams do not nest and do not know of each other; each rank has its own, so ranks
 * share no pool. */
#ifndef BASE_TEAM_H
#define BASE_TEAM_H

#include <stdbool.h>
#include <stdint.h>
#include "base/cores.h"
#include "base/err.h"

typedef struct Team Team;

/* Where its threads run; base/cores.h finds such cores. */
typedef struct {
    const int *cpu; /* [threads]: the one of thread i, thread 0 being the caller; NULL: anywhere */
    bool
        oversubscribed; /* there are more threads than cores: who waits gives its core away at once */
} TeamPinning;

/* Local. `threads` >= 1, the caller counted. pinning NULL: anywhere, and crowded where the calling
 * thread may use fewer processors than there are threads. */
Err team_open(Team **team, int threads, const TeamPinning *pinning);
/* Local. As rank `rank` of `ranks` that share the cores: each thread stays on a core of its own where
 * they are enough for all ranks, and else goes anywhere, and is crowded. */
Err team_open_on(Team **team, int threads, const Cores *cores, int ranks, int rank);
/* The calling thread may go anywhere again that it might before. */
void team_close(Team *team);
int team_threads(const Team *team);
/* Local. Whom this thread works for: a number that it was given, which the teams it opens
 * afterwards pass on to their workers; -1 before. May be asked for in a signal handler. */
void team_set_rank(int who);
int team_rank(void);
/* Local. Calls run(work, tile) for each tile in [0, n_tiles), in no order; NULL is a team of one.
 */
void team_run(Team *team, int64_t n_tiles, void (*run)(void *work, int64_t tile), void *work);

#endif

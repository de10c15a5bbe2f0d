/* team.h -- the thread team of one rank.
 *
 * Work is split into tiles by its shape alone. The thread that runs a tile matters for speed, never
 * for the result. A team of one runs on the calling thread and costs a function call.
 *
 *     static void rows(void *work, int64_t tile) { ... }
 *     team_run(team, n_tiles, rows, &work);          returns when all tiles are done
 *
 * The calling thread takes part. Thread i starts with the i-th share of the tiles, so from kernel
 * to kernel, and at first touch, the same core mostly accesses the same rows. A thread that is done
 * takes tiles of the others. Teams do not nest and are independent of each other; each rank has its
 * own, so ranks share no pool.
 *
 * Between its tiles the calling thread may call a poll function, which advances work that others
 * wait for: a rank polls its transfers there, so they move while a long kernel runs. */
#ifndef BASE_TEAM_H
#define BASE_TEAM_H

#include <stdbool.h>
#include <stdint.h>
#include "base/cores.h"
#include "base/err.h"

typedef struct Team Team;

/* The cores of the threads of a team; base/cores.h finds such cores. */
typedef struct {
    const int *cpu;      /* [threads] by thread, thread 0 is the caller; NULL: not pinned */
    bool oversubscribed; /* more threads than cores: a waiting thread sleeps at once */
} TeamPinning;

/* Local. `threads` >= 1 includes the caller. pinning NULL: not pinned, and oversubscribed if the
 * affinity mask of the calling thread has fewer processors than there are threads. */
Err team_open(Team **team, int threads, const TeamPinning *pinning);
/* Local. The team of rank `rank` of `ranks` ranks that share the cores. Each thread is pinned to a
 * core of its own if there are enough for all ranks; else none is pinned, and the team is
 * oversubscribed. */
Err team_open_on(Team **team, int threads, const Cores *cores, int ranks, int rank);
/* Local. From now on a pinned team is released from its cores while another process uses one of
 * them (base/contention.h). */
void team_share_cores(Team *team);
/* Local. How often the team was released so far. Only the thread that opened the team may call
 * it. */
int team_releases(const Team *team);
/* Local. Ends the threads; the calling thread gets its affinity mask back. */
void team_close(Team *team);
int team_threads(const Team *team);
/* Local. The rank that this thread works for, -1 at first. Teams that the thread opens afterwards
 * pass it on to their threads. team_rank is async-signal-safe. */
void team_set_rank(int rank);
int team_rank(void);
/* Local. Calls run(work, tile) for each tile in [0, n_tiles), in any order, and returns when all
 * are done. Only the thread that opened the team may call it. NULL is a team of one. */
void team_run(Team *team, int64_t n_tiles, void (*run)(void *work, int64_t tile), void *work);
/* Local. From now on team_run calls poll(polled) after each tile that the calling thread has run,
 * on that thread. The function must not call team_run. poll NULL: none, as at first. Only the
 * thread that opened the team may call it. A NULL team never polls. */
void team_set_poll(Team *team, void (*poll)(void *polled), void *polled);

#endif

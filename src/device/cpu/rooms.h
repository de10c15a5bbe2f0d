/* rooms.h -- work over a team whose threads each need more memory than a stack is sure to have.
 *
 *     stack of a thread     8 MiB mostly; 2 MiB where stacks are unlimited, as clusters like to set
 *                           them; less where somebody said so
 *     room of a thread      as large as the work says, in a workspace: workspace.h
 *
 * A thread has one room for all its tiles, so what it holds stays in that thread's caches. */
#ifndef DEVICE_CPU_ROOMS_H
#define DEVICE_CPU_ROOMS_H

#include <stddef.h>
#include "base/team.h"

typedef struct {
    size_t bytes;
    const char *whom; /* named where there is no memory for it */
} RoomSize;

/* room: on a cache line, as it was left. */
typedef void RoomTile(void *work, void *room, int64_t tile);

/* Local. As team_run, with a room for each thread; n_tiles may be 0. ERR_NOMEM: nothing has run. */
Err rooms_run(Team *team, int64_t n_tiles, RoomSize size, RoomTile *run, void *work);

#endif

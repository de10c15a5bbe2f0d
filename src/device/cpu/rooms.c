/* rooms.c -- rooms side by side in one workspace, and behind them whose each is.
 *
 *     | room 0 | room 1 | .. | owners |
 *
 * A thread's first tile takes a room that is nobody's; there are as many as threads. */
#include "device/cpu/rooms.h"

#include <stdatomic.h>
#include <stdint.h>
#include "device/cpu/workspace.h"

typedef struct {
    RoomTile *run;
    void *work;
    int n;
    size_t each;
    char *at;
    atomic_uintptr_t *owner; /* 0: nobody */
} Rooms;

/* A number that no other thread has. */
static uintptr_t this_thread(void)
{
    static _Thread_local char mine;
    return (uintptr_t)&mine;
}

static void *room_of(const Rooms *r, uintptr_t me)
{
    for (int i = 0; i < r->n; i++)
        if (atomic_load_explicit(&r->owner[i], memory_order_relaxed) == me)
            return r->at + (size_t)i * r->each;
    for (int i = 0; i < r->n; i++) {
        uintptr_t nobody = 0;
        if (atomic_compare_exchange_strong(&r->owner[i], &nobody, me))
            return r->at + (size_t)i * r->each;
    }
    MUST(false, "more threads than the %d of the team", r->n);
    return NULL;
}

static void room_tile(void *rooms, int64_t tile)
{
    const Rooms *r = rooms;
    r->run(r->work, room_of(r, this_thread()), tile);
}

Err rooms_run(Team *team, int64_t n_tiles, RoomSize size, RoomTile *run, void *work)
{
    enum { LINE = 64 };
    Rooms r = {.run = run, .work = work, .n = team_threads(team)};
    Workspace *space;
    if (n_tiles == 0) return OK;
    r.each = (size.bytes + LINE - 1) / LINE * LINE;
    TRY(workspace_take((size_t)r.n * (r.each + sizeof *r.owner), size.whom, &space));
    r.at = space->at;
    r.owner = (atomic_uintptr_t *)(void *)(r.at + (size_t)r.n * r.each);
    for (int i = 0; i < r.n; i++) atomic_init(&r.owner[i], 0);
    team_run(team, n_tiles, room_tile, &r);
    workspace_give(space);
    return OK;
}

/* thread_workspace.c -- the threads' workspaces in one allocation, followed by a table of owners.
 *
 *     | workspace 0 | workspace 1 | .. | owners |
 *
 * A thread claims a free workspace with its first tile. There are as many workspaces as threads. */
#include "device/cpu/thread_workspace.h"

#include <stdatomic.h>
#include <stdint.h>
#include "device/cpu/workspace.h"

typedef struct {
    ThreadWorkspaceTile *run;
    void *work;
    int n;             /* workspaces, and threads */
    size_t each_bytes; /* a multiple of the cache line */
    char *at;
    atomic_uintptr_t *owner; /* [n]; 0: free */
} ThreadWorkspaces;

/* A number that differs between threads: the address of a thread-local variable. */
static uintptr_t this_thread(void)
{
    static _Thread_local char mine;
    return (uintptr_t)&mine;
}

static void *workspace_of_thread(const ThreadWorkspaces *s, uintptr_t me)
{
    for (int i = 0; i < s->n; i++)
        if (atomic_load_explicit(&s->owner[i], memory_order_relaxed) == me)
            return s->at + (size_t)i * s->each_bytes;
    for (int i = 0; i < s->n; i++) {
        uintptr_t nobody = 0;
        if (atomic_compare_exchange_strong(&s->owner[i], &nobody, me))
            return s->at + (size_t)i * s->each_bytes;
    }
    MUST(false, "more threads than the %d of the team", s->n);
    return NULL;
}

static void run_tile(void *spaces, int64_t tile)
{
    const ThreadWorkspaces *s = spaces;
    s->run(s->work, workspace_of_thread(s, this_thread()), tile);
}

Err thread_workspace_run(Team *team, int64_t n_tiles, ThreadWorkspaceSize size,
                         ThreadWorkspaceTile *run, void *work)
{
    enum { LINE = 64 };
    ThreadWorkspaces s = {.run = run, .work = work, .n = team_threads(team)};
    Workspace *space;
    if (n_tiles == 0) return OK;
    s.each_bytes = (size.bytes + LINE - 1) / LINE * LINE;
    TRY(workspace_take((size_t)s.n * (s.each_bytes + sizeof *s.owner), size.user, &space));
    s.at = space->at;
    s.owner = (atomic_uintptr_t *)(void *)(s.at + (size_t)s.n * s.each_bytes);
    for (int i = 0; i < s.n; i++) atomic_init(&s.owner[i], 0);
    team_run(team, n_tiles, run_tile, &s);
    workspace_give(space);
    return OK;
}

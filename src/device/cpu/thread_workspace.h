/* thread_workspace.h -- team work whose threads each need more memory than a stack provides.
 *
 *     stack of a thread        8 MiB by default; 2 MiB where `ulimit -s` is unlimited, as clusters
 *                              often set it; less where a limit was set
 *     workspace of a thread    as large as the caller requests, from the pool of workspace.h
 *
 * A thread keeps one workspace for all its tiles, so its content stays in the caches of that
 * core. */
#ifndef DEVICE_CPU_THREAD_WORKSPACE_H
#define DEVICE_CPU_THREAD_WORKSPACE_H

#include <stddef.h>
#include "base/team.h"

typedef struct {
    size_t bytes;     /* per thread */
    const char *user; /* named in the error if the memory cannot be allocated */
} ThreadWorkspaceSize;

/* space: aligned to a cache line; its content is undefined for the first tile of a thread. */
typedef void ThreadWorkspaceTile(void *work, void *space, int64_t tile);

/* Local. As team_run, with one workspace per thread; n_tiles may be 0. ERR_NOMEM: nothing has
 * run. */
Err thread_workspace_run(Team *team, int64_t n_tiles, ThreadWorkspaceSize size,
                         ThreadWorkspaceTile *run, void *work);

#endif

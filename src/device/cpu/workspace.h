/* workspace.h -- a pool of memory for packing buffers and other scratch space of kernels.
 *
 *     Workspace *w;
 *     TRY(workspace_take(bytes, "a GEMM", &w));       w->at: page-aligned, content undefined
 *     ...
 *     workspace_give(w);
 *
 * Fresh memory for the packing buffers of every GEMM would cost more in page faults than packing
 * itself. So the process keeps the blocks it has allocated: as many as kernels ran concurrently,
 * each as large as the largest request that it has served. */
#ifndef DEVICE_CPU_WORKSPACE_H
#define DEVICE_CPU_WORKSPACE_H

#include <stddef.h>
#include "base/err.h"

typedef struct Workspace Workspace;

struct Workspace {
    void *at;
    size_t cap_bytes; /* at least the requested bytes */
    int busy;
    Workspace *next;
};

/* Local. Thread-safe. ERR_NOMEM names `user`, the kernel that needs the memory. */
Err workspace_take(size_t bytes, const char *user, Workspace **out);
/* Local. Thread-safe. Returns the block to the pool. */
void workspace_give(Workspace *w);
/* Local. Bytes of all blocks in the pool, free or taken. */
size_t workspace_bytes(void);

#endif

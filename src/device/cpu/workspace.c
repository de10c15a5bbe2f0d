/* workspace.c -- a list of blocks under one lock; the smallest free block that fits is taken. */
#define _DEFAULT_SOURCE
#include "device/cpu/workspace.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { GRAIN = 1 << 21 }; /* block sizes are multiples of a huge page */

/* One pool per process, guarded by the lock. Blocks are never freed. */
static struct {
    pthread_mutex_t lock;
    Workspace *first;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *map(size_t bytes)
{
    void *const at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    (void)madvise(at, bytes, MADV_HUGEPAGE); /* a failure costs only speed */
#endif
    return at;
}

/* The smallest free block that fits; else the largest free one, to be enlarged; else NULL. */
static Workspace *look_for(size_t bytes)
{
    Workspace *best = NULL;
    for (Workspace *w = pool.first; w; w = w->next) {
        if (w->busy) continue;
        const int fits = w->cap_bytes >= bytes, best_fits = best && best->cap_bytes >= bytes;
        if (!best || fits > best_fits ||
            (fits == best_fits && (w->cap_bytes < best->cap_bytes) == fits))
            best = w;
    }
    return best;
}

static int grow(Workspace *w, size_t bytes)
{
    if (w->at) munmap(w->at, w->cap_bytes);
    w->at = map(bytes);
    w->cap_bytes = w->at ? bytes : 0;
    return w->at != NULL;
}

static Workspace *take(size_t bytes)
{
    Workspace *w = look_for(bytes);
    if (!w && (w = calloc(1, sizeof *w))) {
        w->next = pool.first;
        pool.first = w;
    }
    if (!w || (w->cap_bytes < bytes && !grow(w, bytes))) return NULL;
    w->busy = 1;
    return w;
}

Err workspace_take(size_t bytes, const char *user, Workspace **out)
{
    const size_t whole = (bytes + GRAIN - 1) / GRAIN * GRAIN;
    pthread_mutex_lock(&pool.lock);
    Workspace *const w = take(whole);
    pthread_mutex_unlock(&pool.lock);
    if (!w) return err_fail(ERR_NOMEM, "no memory for the workspace of %s, %zu bytes", user, whole);
    *out = w;
    return OK;
}

void workspace_give(Workspace *w)
{
    pthread_mutex_lock(&pool.lock);
    w->busy = 0;
    pthread_mutex_unlock(&pool.lock);
}

size_t workspace_bytes(void)
{
    size_t bytes = 0;
    pthread_mutex_lock(&pool.lock);
    for (const Workspace *w = pool.first; w; w = w->next) bytes += w->cap_bytes;
    pthread_mutex_unlock(&pool.lock);
    return bytes;
}

/* workspace.h -- memory that a kernel borrows while it runs, kept for the next one.
 *
 *     Workspace *w;
 *     TRY(workspace_take(bytes, "a product", &w));    w->at: on a page of its own, as it was left
 *     ...
 *     workspace_give(w);
 *
 * A product packs its operands; fresh memory for each would cost more page faults than packing. What
 * was taken is kept by the process: as many pieces as kernels ran at once, each as large as the
 * largest that it served. */
#ifndef DEVICE_CPU_WORKSPACE_H
#define DEVICE_CPU_WORKSPACE_H

#include <stddef.h>
#include "base/err.h"

typedef struct Workspace Workspace;

struct Workspace {
    void *at;
    size_t cap_bytes; /* at least what was asked for */
    int busy;
    Workspace *next;
};

/* Local. Any thread. ERR_NOMEM names `whom`. */
Err workspace_take(size_t bytes, const char *whom, Workspace **out);
void workspace_give(Workspace *w);
/* Local. What the process holds of all this. */
size_t workspace_bytes(void);

#endif

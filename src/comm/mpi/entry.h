/* entry.h -- the one symbol of sheaf-mpi.so: what the program calls in it.
 *
 * The other way the shared object calls the program's own functions (arenas, errors, comm_open),
 * which the program exports; so there is one err_text in a process. Both are built together: the
 * sizes tell when they were not. */
#ifndef COMM_MPI_ENTRY_H
#define COMM_MPI_ENTRY_H

#include "comm/backend.h"
#include "comm/mpi.h"

#define MPI_ENTRY_NAME "sheaf_mpi"

typedef struct {
    size_t comm_bytes, transfer_bytes; /* sizeof(Comm), sizeof(Transfer) */
    /* As their namesakes in open.h; start joins the others. */
    Err (*start)(MpiWorld **out);
    int (*rank)(const MpiWorld *w);
    int (*ranks)(const MpiWorld *w);
    Err (*join)(MpiWorld *w, Arena *a, const CommSettings *set, Comm **out);
    void (*stop)(MpiWorld *w);
    void (*abort)(MpiWorld *w, int status);
} MpiEntry;

/* What a world begins with, wherever it comes from. */
struct MpiWorld {
    const MpiEntry *entry;
};

extern const MpiEntry sheaf_mpi __attribute__((visibility("default")));

#endif

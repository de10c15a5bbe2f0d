/* entry.h -- the one symbol of sheaf-mpi.so. */
#ifndef COMM_MPI_ENTRY_H
#define COMM_MPI_ENTRY_H

#include "base/plugin.h"
#include "comm/backend.h"
#include "comm/comm_world.h"

#define MPI_ENTRY_NAME "sheaf_mpi"

typedef struct {
    PluginAbi abi;                   /* sizes of Comm, Transfer, CommWorld */
    Err (*start)(CommWorld **world); /* Collective over all processes: calls MPI_Init */
} MpiEntry;

extern const MpiEntry sheaf_mpi __attribute__((visibility("default")));

#endif

/* transport.h -- the transport of device memory between ranks, chosen by all ranks together before
 * they allocate memory.
 *
 *     ranks are threads      they move and fold each other's memory: comm/local
 *     ranks are processes    NCCL, if every rank has it and a GPU of its own;
 *                            else MPI, staged through host memory: comm/staging.c
 *
 * run.comm=nccl and run.comm=mpi request one of them. A request that cannot be met is an error;
 * there is no fallback. */
#ifndef WORLD_TRANSPORT_H
#define WORLD_TRANSPORT_H

#include "world/world.h"

typedef enum { TRANSPORT_AUTO, TRANSPORT_NCCL, TRANSPORT_MPI } TransportKind;

typedef struct {
    const Device *device; /* NULL: this rank has none, and the run will fail */
    TransportKind requested;
    bool processes;               /* ranks are processes, not threads of one */
    const char *object, *library; /* arguments of nccl_open, for tests; else NULL */
} TransportSettings;

enum { TRANSPORT_BYTES = 640 };

/* Collective over all ranks. Attaches NCCL to the comm if that is the choice. `text` is a line for
 * people about the choice, empty if there is none to make. ERR_CONFIG on all ranks for a request
 * that cannot be met. */
Err transport_open(WorldRank *r, const TransportSettings *s, char text[TRANSPORT_BYTES]);

#endif

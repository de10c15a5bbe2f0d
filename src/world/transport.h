/* transport.h -- by what memory of devices goes from rank to rank: decided by all ranks together, before
 * they allocate anything, and told.
 *
 *     ranks are threads      they move and fold each other's memory: comm/local
 *     ranks are processes    NCCL, where every rank has it and a GPU of its own;
 *                            else MPI, through the host's memory: comm/staging.c
 *
 * run.comm=nccl and run.comm=mpi ask for one; what cannot be is an error then, not another way. */
#ifndef WORLD_TRANSPORT_H
#define WORLD_TRANSPORT_H

#include "world/world.h"

typedef enum { TRANSPORT_AUTO, TRANSPORT_NCCL, TRANSPORT_MPI } TransportKind;

typedef struct {
    const Device *device; /* NULL: this rank has none, and the run will end */
    TransportKind requested;
    bool processes;               /* ranks are, and not threads of one */
    const char *object, *library; /* as nccl_open takes them: for tests; NULL */
} TransportSettings;

enum { TRANSPORT_BYTES = 640 };

/* Collective over all ranks. Gives the comm NCCL, where that is what they come to; the words are a
 * line for people, empty where there is nothing to tell. ERR_CONFIG, on all ranks, for a wish that
 * cannot be honoured. */
Err transport_open(WorldRank *r, const TransportSettings *s, char text[TRANSPORT_BYTES]);

#endif

/* world.h -- the ranks of a run: calls a function once per rank of this process.
 *
 *     local   body(rank 0)   body(rank 1)   body(rank 2)      threads; rank 0 is the calling one
 *     mpi     body(my rank)                                   this process is one rank of many
 *
 * Each rank has a comm, an arena and a status block in the flight recorder. A rank that returns an
 * error ends the waits of all others, and world_run returns the first error with its rank. After a
 * phase that may fail on some ranks only, all ranks call world_agree before they continue: else
 * those that succeeded would wait for ever. */
#ifndef WORLD_WORLD_H
#define WORLD_WORLD_H

#include "comm/comm_world.h"
#include "world/flight_recorder.h"

typedef struct {
    int rank, ranks;
    int place; /* index among the ranks of this process, from 0 */
    Comm *comm;
    Arena *arena;       /* its own; freed when the body returns */
    RankStatus *status; /* NULL: there is no flight recorder */
    RankList all;
    bool agreed; /* its error is known to all ranks: comm_agree returned it */
} WorldRank;

typedef struct {
    int ranks;
    CommWorld *comm_world; /* as launched; NULL: all ranks become threads of this process */
    int in_flight;         /* these three: as in CommSettings */
    int64_t records;
    double timeout_s;
    FlightRecorder *flight_recorder; /* may be NULL */
    Err (*body)(WorldRank *r, void *work);
    void *work;
} WorldSettings;

/* Collective over all processes. Runs body(rank, work) on every rank of this process; returns the
 * first error of its ranks. */
Err world_run(const WorldSettings *s);
/* Collective over all ranks: agrees on an error, as comm_agree does. */
Err world_agree(WorldRank *r, Err mine);
/* Collective over all ranks: checks that `number`, a hash, is equal on all of them. ERR_CONFIG
 * names the first rank that differs; `what` names the hashed thing, `rest` the way out. */
Err world_same(WorldRank *r, uint64_t number, const char *what, const char *rest);
/* Local. Call it before freeing memory that is registered with the comm. Aborts the world unless
 * `err` is OK or known to all ranks. When it returns, no other rank accesses that memory. */
void world_leave(WorldRank *r, Err err);

#endif

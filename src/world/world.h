/* world.h -- the ranks of a run: a function runs as every rank that this process has.
 *
 *     local   body(rank 0)   body(rank 1)   body(rank 2)      threads; rank 0 is the calling one
 *     mpi     body(my rank)                                   this process is one rank of many
 *
 * Each rank has a comm, an arena and a place on the board. One that returns an error ends the
 * waits of all others; the first error is the world's, with its rank. After a phase that may fail
 * on some ranks alone, all agree before they move on. */
#ifndef WORLD_WORLD_H
#define WORLD_WORLD_H

#include "comm/comm_world.h"
#include "world/flight_recorder.h"

typedef struct {
    int rank, ranks;
    int place; /* among the ranks of this process, 0 on */
    Comm *comm;
    Arena *arena;       /* its own, for as long as the body runs */
    RankStatus *status; /* NULL: nobody watches */
    RankList all;
    bool agreed; /* the error is one that all know of */
} WorldRank;

typedef struct {
    int ranks;
    CommWorld *comm_world; /* as launched; NULL: all ranks become threads of this process */
    int in_flight;         /* as CommSettings has them */
    int64_t records;
    double timeout_s;
    FlightRecorder *flight_recorder; /* may be NULL */
    Err (*body)(WorldRank *r, void *work);
    void *work;
} WorldSettings;

/* Collective over all processes. The first error of its ranks. */
Err world_run(const WorldSettings *s);
/* Collective over all ranks: what each came to, see comm_agree. */
Err world_agree(WorldRank *r, Err mine);
/* Collective over all ranks: does every rank mean the same? ERR_CONFIG names the first that does not;
 * `what` is what the number was made of, `rest` the way out. */
Err world_same(WorldRank *r, uint64_t number, const char *what, const char *rest);
/* Local. Before a body gives back memory that its comm knows: this rank failed, unless err is OK
 * or agreed on. When this returns nobody touches that memory. */
void world_leave(WorldRank *r, Err err);

#endif

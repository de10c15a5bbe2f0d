/* replicas.h -- compares the copies of weights and moments that several ranks hold. Every rank sums
 * in the same order, so copies agree bit for bit; a rank whose copy differs has a hardware fault.
 *
 *     dp=2 tp=2   q_proj, sharded over tp   ranks 0, 2: rows 0..31      ranks 1, 3: rows 32..63
 *                 norm, not sharded         all ranks: all of it
 *     cells       {0 2}: rows 0..31 of q_proj, ...   {1 3}: rows 32..63, ...   {0 1 2 3}: norm, ...
 *
 * A cell is a box of a state tensor (weights or moments, in the home layout) that several ranks
 * hold. Cells with the same holders form a set. Every run.check_every steps each rank hashes its
 * cells and the ranks gather one hash per set. Only if the hashes of a set differ are the hashes of
 * its cells gathered, to name the rank and the tensor. Gathered copies, which every step
 * overwrites, are not compared. */
#ifndef TRAIN_REPLICAS_H
#define TRAIN_REPLICAS_H

#include "run/rank.h"
#include "state/tensors.h"
#include "world/world.h"

typedef struct {
    int tensor, set;
    Box box;
    int64_t mine; /* index of this rank's part that contains the box; -1: none */
} ReplicaCell;

typedef struct {
    const Rank *rank;
    StateTensors tensors;
    StateParts parts; /* of this rank */
    int64_t n_cells;
    ReplicaCell *cell;
    int n_sets;
    bool *holds;     /* [n_sets][ranks] */
    uint64_t *hash;  /* [n_cells], of this rank */
    int64_t *hashes; /* [ranks][n_sets], registered with the comm */
    void *buffer;    /* a chunk of a cell, dense */
} Replicas;

/* Local. ERR_CONFIG if no two ranks hold copies. Needs the program only, so a run is refused before
 * it has a folder. */
Err replicas_possible(const LinkedProgram *lp, int ranks, Arena *temp);
/* Local. Allocates from the arena; O(ranks^2), once. ERR_CONFIG if no two ranks hold copies. */
Err replicas_open(Replicas *r, const Rank *rank, int ranks, Arena *a);
/* Collective over all ranks. ERR_CHECK on all of them names the ranks that differ and the tensor.
 * `step` is used in the message. */
Err replicas_check(Replicas *r, WorldRank *w, int64_t step);

#endif

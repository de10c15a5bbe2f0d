/* replicas.h -- do ranks that hold the same still hold the same? Sums are made in one order on every
 * rank, so replicas agree to the bit, and one that does not has a fault of its own.
 *
 *     dp=2 tp=2   q_proj (cut over tp)   rank 0: rows 0..31    rank 1: 32..63   rank 2: 0..31   rank 3: 32..63
 *                 norm (not cut)         all of it on all
 *     cells       {0 2}: rows 0..31 of q_proj, ...     {1 3}: rows 32..63, ...     {0 1 2 3}: norm, ...
 *
 * A cell is a box of a tensor of the state (weights and moments, as they are at home) that several ranks
 * hold; cells with the same holders are a set. Every so many steps each rank hashes its cells; one
 * number for each of its sets is told to all. Only when those differ are the numbers of all its cells
 * told, and the rank and the tensor named. What a gather writes anew in each step is not compared. */
#ifndef TRAIN_REPLICAS_H
#define TRAIN_REPLICAS_H

#include "run/rank.h"
#include "state/tensors.h"
#include "world/world.h"

typedef struct {
    int tensor, set;
    Box box;
    int64_t mine; /* the part of this rank that holds it; -1: none does */
} ReplicaCell;

typedef struct {
    const Rank *rank;
    StateTensors tensors;
    StateParts parts; /* of this rank */
    int64_t n_cells;
    ReplicaCell *cell;
    int n_sets;
    bool *holds;    /* [n_sets][ranks] */
    uint64_t *hash; /* [n_cells] of this rank */
    int64_t *told;  /* [ranks][n_sets], registered with the comm */
    void *buffer;   /* a chunk of a cell, dense */
} Replicas;

/* Local. ERR_CONFIG when no two ranks hold the same: known from the program alone, before a run has a
 * folder. */
Err replicas_possible(const LinkedProgram *lp, int ranks, Arena *temp);
/* Local. Memory from the arena; O(ranks^2) once. ERR_CONFIG when no two ranks hold the same. */
Err replicas_open(Replicas *r, const Rank *rank, int ranks, Arena *a);
/* Collective. ERR_CHECK, on all, names who differs and in what. `step` is for the message. */
Err replicas_check(Replicas *r, WorldRank *w, int64_t step);

#endif

/* place_choose_parts.h -- private to place_choose.c, the search, and place_slots.c, which opens it:
 * states, and the slots of values in them. */
#ifndef COMPILE_PLACE_CHOOSE_PARTS_H
#define COMPILE_PLACE_CHOOSE_PARTS_H

#include "compile/place.h"

enum { N_EXTRA = 2, BEAM = 24, WIDE_BEAM = 256, MAX_STATES = 1 << 13 };

typedef struct {
    double seconds; /* 0 without rates */
    int64_t bytes;
    int steps;
    double flops;
} PlacementCost;

/* The placements of a value: as made, then as resharded; NO_PLACEMENT: no more. All are
 * NO_PLACEMENT before the value is made and after its last read. */
typedef struct {
    PlacementId id[1 + N_EXTRA];
} AvailPlacements;

typedef struct {
    PlacementCost cost;
    int parent;
    uint32_t hash; /* of avail */
    RowChoice choice;
    AvailPlacements *avail; /* [n_slots] */
} SearchState;

/* The choices of a node for inputs that are available in these placements. */
typedef struct NodeRows {
    const struct NodeRows *next;
    PlacementId avail[MAX_IN][MAX_AVAIL];
    int n;
    RowChoice *choice;
} NodeRows;

typedef struct {
    PlaceContext *p;
    int *last_read;        /* [n_values]: node, -1: never */
    int *slot;             /* [n_values]: of AvailPlacements in a state; -1: never live */
    int n_slots;           /* padded: their bytes are whole words */
    const NodeRows **rows; /* [n_nodes]: found so far */
    bool *inside;          /* [n_values]: made and read within one chunk */
    bool *ragged;          /* [n_values]: rows of experts, or their numbers */
    SearchState **layer;   /* [n_nodes + 1] */
    int *n, *cap;          /* [n_nodes + 1] */
    int *table;            /* open addressing over the states of one layer: index + 1, or 0 */
    int table_size;        /* a power of 2 */
    bool full;             /* a layer had more than MAX_STATES; the rest were left out */
    int dead;              /* the beam ended at this node: none of its states leads further; -1 */
} PlacementSearch;

enum { FIRST_TABLE = 64, SLOTS_PER_PAD = 8 };

/* The values whose placements a node needs or sets: its inputs and outputs. */
static inline int search_n_operands(const Node *n) { return n->n_in + n->n_out; }
static inline Value search_operand(const PlacementSearch *s, int node, int i)
{
    const Node *n = &s->p->g->node[node];
    return i < n->n_in ? n->in[i] : n->out[i - n->n_in];
}

/* Local. Sets all but p: last reads, slots, and empty layers of states. */
Err place_search_open(PlacementSearch *s);

#endif

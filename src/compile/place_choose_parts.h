/* place_choose_parts.h -- private to place_choose.c, the search, and place_slots.c, which opens it:
 * states, and the slots of values in them. */
#ifndef COMPILE_PLACE_CHOOSE_PARTS_H
#define COMPILE_PLACE_CHOOSE_PARTS_H

#include "compile/place.h"

/* MAX_OPEN_READS: open weights that one node reads, a weight and its bias. */
enum {
    N_EXTRA = 2,
    BEAM = 24,
    WIDE_BEAM = 256,
    MAX_STATES = 1 << 13,
    MAX_OPEN_STATES = 1 << 16, /* with open weights */
    MAX_OPEN_READS = 2
};

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
    PlacementId use[MAX_OUT]; /* of the open weight whose gradient an output is; or NO_PLACEMENT */
    int n;
    RowChoice *choice;
} NodeRows;

typedef struct {
    PlaceContext *p;
    int *step, n_steps;    /* the nodes, in order */
    int *last_read;        /* [n_values]: node, -1: never */
    Value *weight_of;      /* [n_values]: the open weight whose gradient it is, or NO_VALUE */
    bool *given;           /* [n_values]: in the first state */
    int *slot;             /* [n_values]: of AvailPlacements in a state; -1: never live */
    int n_slots;           /* padded: their bytes are whole words */
    const NodeRows **rows; /* [n_nodes]: found so far */
    bool *inside;          /* [n_values]: made and read within one chunk */
    bool *ragged;          /* [n_values]: rows of experts, or their numbers */
    SearchState **layer;   /* [n_steps + 1] */
    int *n, *cap;          /* [n_steps + 1] */
    AvailPlacements *open[MAX_OPEN_READS]; /* [n_slots]: copies of a state, with weights chosen */
    int *table;     /* open addressing over the states of one layer: index + 1, or 0 */
    int table_size; /* a power of 2 */
    bool full;      /* a layer had more than MAX_STATES; the rest were left out */
    int dead;       /* the beam ended at this node: none of its states leads further; -1 */
} PlacementSearch;

enum { FIRST_TABLE = 64, SLOTS_PER_PAD = 8 };

/* The values whose placements a node needs or sets: its inputs, its outputs, and for each output
 * the open weight whose gradient it is, or NO_VALUE. */
static inline int search_n_operands(const Node *n) { return n->n_in + 2 * n->n_out; }
static inline Value search_operand(const PlacementSearch *s, int node, int i)
{
    const Node *n = &s->p->g->node[node];
    if (i < n->n_in + n->n_out) return i < n->n_in ? n->in[i] : n->out[i - n->n_in];
    return s->weight_of[n->out[i - n->n_in - n->n_out]];
}
static inline bool search_is_open(const PlaceContext *p, Value v)
{
    return v != NO_VALUE && p->open && p->open[v].n > 0;
}

/* Local. Sets all but p: last reads, slots, and empty layers of states. */
Err place_search_open(PlacementSearch *s);

#endif

/* place.h -- the interface between the parts of place: placements along one axis
 * (place_placements.c), the legal placements of an op (place_rows.c), the search (place_choose.c),
 * and the resulting graph of one rank (place.c, place_reshard.c, place_local.c). Private to place.
 *
 *     replicate   every rank along the axis holds the whole value
 *     shard       along one dim, by a split: part p of the split is on rank p
 *     sum, max    partial: the value is the sum, or the maximum, of the ranks' values */
#ifndef COMPILE_PLACE_H
#define COMPILE_PLACE_H

#include "compile/compile.h"
#include "layout/reshard.h"

/* The parts of an extent; interned, so equal splits have one number. */
typedef struct {
    const SpanMap *map;
    int64_t grain; /* of the even rule, if that is what it is; else 0 */
} AxisSplit;

typedef enum { PLACEMENT_REPLICATE, PLACEMENT_SHARD, PLACEMENT_SUM, PLACEMENT_MAX } PlacementKind;

/* The placement of a value along one axis; interned too. */
typedef struct {
    PlacementKind kind;
    int dim, split; /* of a shard */
    bool copy_sums; /* copies of the split are summands, as in gradients of key heads */
} Placement;

typedef uint8_t PlacementId; /* an index into PlacementTable.list; 0 is PLACEMENT_REPLICATE */
enum { NO_PLACEMENT = 255, MAX_PLACEMENTS = 250 };

typedef struct {
    Arena *arena;
    int parts;
    int n_splits, n_placements;
    AxisSplit split[MAX_PLACEMENTS];
    Placement list[MAX_PLACEMENTS];
} PlacementTable;

/* The search over one axis of the mesh, for the whole graph. */
typedef struct {
    const Graph *g;
    const Mesh *mesh;
    Arena *arena; /* of the search; rewound after it */
    int axis;
    bool regather; /* values gathered in F are regathered in the backward phases */
    int n_forward; /* nodes before the first that needs dy */
    PlacementTable placements;
    PlacementId *pin; /* [n_values], or NO_PLACEMENT */
    Signature *sig;   /* [n_nodes], and the flops of the whole node: set by rows_open */
    double *flops;
} PlaceContext;

/* One way to run a node: the placements of its inputs and outputs, operand for operand. */
typedef struct {
    PlacementId in[MAX_IN], out[MAX_OUT];
    double flops; /* of a rank */
} RowChoice;

enum { MAX_CHOICES = 32 };

/* ---- place_placements.c ---- */
PlacementId placement_replicate(void);
/* Local. These fail only if the tables are full: ERR_CHECK. */
Err placement_intern(PlacementTable *table, Placement placement, PlacementId *out);
Err split_even(PlacementTable *table, int64_t extent, int64_t grain, int *out);
Err split_of_map(PlacementTable *table, const SpanMap *map, int64_t grain, int *out);
/* Local. The split of an extent `by` times as large (by > 0), or -by times as small; -1 if a
 * boundary would fall inside of an element. */
Err split_scaled(PlacementTable *table, int split, int64_t by, int *out);
/* Local. The placement of a layout along one axis, and the layout with a placement added. */
Err placement_from_layout(PlacementTable *table, const Layout *layout, unsigned axes,
                          const Dims *dims, PlacementId *out);
void placement_to_layout(const PlacementTable *table, PlacementId id, unsigned axes,
                         Layout *layout);
/* Local. Bytes that leave all ranks together to reshard a value; -1: not possible. *steps: the
 * number of nodes. */
int64_t placement_reshard_bytes(const PlacementTable *table, PlacementId from, PlacementId to,
                                int64_t value_bytes, int *steps);

/* ---- place_rows.c ---- */
/* Local. Computes the tables that rows_of_node reads. */
Err rows_open(PlaceContext *p);
/* Local. The ways to run a node if its inputs are available as avail[input][0 .. n_avail[input]):
 * replicated first. */
Err rows_of_node(PlaceContext *p, int node, const PlacementId avail[][4], const int *n_avail,
                 RowChoice *out, int *n);

/* ---- place_choose.c ---- */
/* Local. (*out)[v]: nodes of one chunk make v and read it, so it never exists as a whole. */
Err place_inside(const Graph *g, Arena *arena, bool **out);
/* Local. Chooses a way for every node, with the fewest bytes sent; then the fewest transfers, then
 * the least flops. */
Err place_choose(PlaceContext *p, RowChoice **choice);

/* ---- place_local.c ---- */
/* The layouts that result from the choices of all axes. */
typedef struct {
    Graph *g;
    const Mesh *mesh;
    int rank;
    Layout **want;    /* [n_nodes][n_in] */
    Layout *made;     /* [n_values]: as its maker makes it */
    Layout *pin;      /* [n_values]: as it must come out, if pinned */
    uint8_t *maximum; /* [n_values]: axes over which it is a partial maximum */
    Shape *shape;     /* [n_values]: global */
    Value n_values;   /* before any were added */
    int n_nodes;
} PlacedGraph;
/* Local. Converts global shapes and attributes to those of one rank, and inserts transfers where
 * layouts disagree. */
Err place_local(PlacedGraph *p);
/* A value to be resharded. */
typedef struct {
    Layout from, to;
    Shape shape;   /* global */
    Dims dims;     /* of the result, on this rank */
    int32_t chunk; /* chunk number of the nodes */
    bool maximum;  /* the partial value is a maximum, not a sum */
    Value into;    /* the existing value that becomes the result, or NO_VALUE */
} ReshardRequest;
/* Local. Appends the nodes that reshard v; returns the result, or NO_VALUE on failure. */
Value place_reshard(PlacedGraph *p, Value v, const ReshardRequest *m);
Dims local_dims(const Dims *global, const Layout *l, const Mesh *m, int rank);

#endif

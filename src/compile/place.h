/* place.h -- between the parts of place: how values lie along one axis (place_lays.c), what an op
 * can work on (place_rows.c), which rows are chosen (place_choose.c), and the graph of one rank that
 * comes of it (place.c, place_moves.c, place_local.c).
 *
 *     whole    every rank along the axis holds all of it
 *     cut      along one dim, by a split: part p of the split is rank p's
 *     sum      what the ranks hold adds up to it; max: likewise the maximum */
#ifndef COMPILE_PLACE_H
#define COMPILE_PLACE_H

#include "compile/compile.h"
#include "layout/reshard.h"

/* Who has what of an extent; interned, so equal splits have one number. */
typedef struct {
    const SpanMap *map;
    int64_t grain; /* of the even rule, when that is what it is; else 0 */
} AxisSplit;

typedef enum { PLACEMENT_REPLICATE, PLACEMENT_SHARD, PLACEMENT_SUM, PLACEMENT_MAX } PlacementKind;

/* How a value lies along one axis; interned likewise. */
typedef struct {
    PlacementKind kind;
    int dim, split; /* of a cut */
    bool copy_sums; /* copies of the split are summands: so are gradients of key heads */
} Placement;

typedef uint8_t PlacementId; /* an index into Lays.lay; 0 is LAY_WHOLE */
enum { NO_PLACEMENT = 255, MAX_PLACEMENTS = 250 };

typedef struct {
    Arena *arena;
    int parts;
    int n_splits, n_placements;
    AxisSplit split[MAX_PLACEMENTS];
    Placement list[MAX_PLACEMENTS];
} PlacementTable;

/* One axis of the mesh, the whole graph. */
typedef struct {
    const Graph *g;
    const Mesh *mesh;
    Arena *arena; /* for the choice; rewound after it */
    int axis;
    bool regather; /* what F gathers is gathered again in the backward phases */
    int n_forward; /* nodes before the first that needs dy */
    PlacementTable placements;
    PlacementId *pin; /* [n_values], or NO_LAY */
    Signature *sig;   /* [n_nodes], and flops of the whole node: rows_open */
    double *flops;
} PlaceContext;

/* One way to run a node: what it reads and what it makes, operand for operand. */
typedef struct {
    PlacementId in[MAX_IN], out[MAX_OUT];
    double flops; /* of a rank */
} RowChoice;

enum { MAX_CHOICES = 32 };

/* ---- place_lays.c ---- */
PlacementId placement_replicate(void);
/* Local. These fail only when the tables are full: ERR_CHECK. */
Err placement_intern(PlacementTable *table, Placement placement, PlacementId *out);
Err split_even(PlacementTable *table, int64_t extent, int64_t grain, int *out);
Err split_of_map(PlacementTable *table, const SpanMap *map, int64_t grain, int *out);
/* Local. The split of an extent `by` times as large (by > 0), or -by times as small; -1 where a
 * border would fall inside of an element. */
Err split_scaled(PlacementTable *table, int split, int64_t by, int *out);
/* Local. What a layout says about one axis, and the layout with that added. */
Err placement_from_layout(PlacementTable *table, const Layout *layout, unsigned axes,
                          const Dims *dims, PlacementId *out);
void placement_to_layout(const PlacementTable *table, PlacementId id, unsigned axes,
                         Layout *layout);
/* Local. Bytes that leave the ranks, in all, to bring a value from one lay to another; -1: no way.
 * *steps: nodes that it takes. */
int64_t placement_reshard_bytes(const PlacementTable *table, PlacementId from, PlacementId to,
                                int64_t value_bytes, int *steps);

/* ---- place_rows.c ---- */
/* Local. Looks up once what rows_of_node asks of each node. */
Err rows_open(PlaceContext *p);
/* Local. The ways to run a node when its inputs are at hand as have[input][0 .. n_have[input]):
 * whole first. */
Err rows_of_node(PlaceContext *p, int node, const PlacementId avail[][4], const int *n_avail,
                 RowChoice *out, int *n);

/* ---- place_choose.c ---- */
/* Local. (*out)[v]: nodes of one chunk make v and read it, so it never exists as a whole. */
Err place_inside(const Graph *g, Arena *arena, bool **out);
/* Local. A way for every node, so that least is sent; then fewest transfers, then least work. */
Err place_choose(PlaceContext *p, RowChoice **choice);

/* ---- place_local.c ---- */
/* The layouts that all axes together chose. */
typedef struct {
    Graph *g;
    const Mesh *mesh;
    int rank;
    Layout **want;    /* [n_nodes][n_in] */
    Layout *made;     /* [n_values]: as its maker makes it */
    Layout *pin;      /* [n_values]: as it must come out, where pinned */
    uint8_t *maximum; /* [n_values]: axes over which it is a partial maximum */
    Shape *shape;     /* [n_values]: global */
    Value n_values;   /* before any were added */
    int n_nodes;
} PlacedGraph;
/* Local. From global shapes to those of one rank, attributes too, with transfers where layouts
 * disagree. */
Err place_local(PlacedGraph *p);
/* A value on its way. */
typedef struct {
    Layout from, to;
    Shape shape;   /* global */
    Dims dims;     /* of the result, on this rank */
    int32_t chunk; /* of the nodes */
    bool maximum;  /* what is partial is a maximum */
    Value into;    /* the value that is to be the result, or NO_VALUE */
} ReshardRequest;
/* Local. The value in another layout: nodes are appended to the graph. NO_VALUE when it fails. */
Value place_reshard(PlacedGraph *p, Value v, const ReshardRequest *m);
Dims local_dims(const Dims *global, const Layout *l, const Mesh *m, int rank);

#endif

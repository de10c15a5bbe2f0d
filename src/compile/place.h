/* place.h -- internal interface of place, the pass of sharding propagation (SPMD partitioning).
 *
 * The entry point is place (compile/compile.h). For each axis of the mesh it chooses the placement
 * of every value; then it rewrites the graph for one rank, with collectives.
 *
 *     place.c              the pass: pins, the search per axis, the rewrite
 *     place_placements.c   placements along one axis
 *     place_rows.c         the legal placements of an op
 *     place_splits.c       the candidate splits of an op's extents
 *     place_parts.c        the parts of a graph that are placed one by one
 *     place_choose.c       the search; place_slots.c opens it
 *     tp_search.c          layouts of weights along tp, chosen by the same search
 *     place_memo.c         placements that were found before
 *     place_local.c        shapes and attributes of one rank
 *     place_reshard.c      the nodes that reshard a value
 *
 * Placements along one axis:
 *
 *     replicate   every rank along the axis holds the whole value
 *     shard       along one dim, by a split: part p of the split is on the rank with coordinate p
 *                 along the axis
 *     sum, max    partial: the value is the sum, or the maximum, of the ranks' values */
#ifndef COMPILE_PLACE_H
#define COMPILE_PLACE_H

#include "compile/compile.h"
#include "cost/cost.h"
#include "layout/reshard.h"

/* The parts of an extent, one per rank along the axis; interned, so equal splits have one index. */
typedef struct {
    const SpanMap *map;
    int64_t grain; /* grain of an even split; 0: the split is not even */
    int64_t group; /* of a split by readers (Cut.group); 0: it is none */
} AxisSplit;

typedef enum { PLACEMENT_REPLICATE, PLACEMENT_SHARD, PLACEMENT_SUM, PLACEMENT_MAX } PlacementKind;

/* The placement of a value along one axis; interned too. */
typedef struct {
    PlacementKind kind;
    int dim, split; /* of a shard: tensor dim; index into PlacementTable.split */
    /* Of a shard: ranks with equal parts hold summands of the value, not copies of it (gradients of
     * replicated key and value heads). */
    bool copy_sums;
} Placement;

typedef uint8_t PlacementId; /* an index into PlacementTable.list; 0 is PLACEMENT_REPLICATE */
/* OPEN_PLACEMENT: of a weight that no node has read yet, and whose placement the search chooses. */
enum { NO_PLACEMENT = 255, OPEN_PLACEMENT = 254, MAX_PLACEMENTS = 250, MAX_OPEN = 3 };

/* The placements that a weight may have (tp_search.c). */
typedef struct {
    int n; /* 0: it is pinned */
    PlacementId id[MAX_OPEN];
    double seconds[MAX_OPEN]; /* the price of the state that each leaves on a rank */
} OpenWeight;

/* A split of a product and that of a factor, as found before. */
typedef struct {
    int split;
    ProductSides sides;
    bool to_factor;
    int found;
} SplitPair;

enum { MAX_SPLIT_PAIRS = 256 };

typedef struct {
    Arena *arena;
    SplitPair pair[MAX_SPLIT_PAIRS]; /* the first n_pairs % MAX_SPLIT_PAIRS, or all */
    int n_pairs;
    int parts; /* of every split: the size of the axis */
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
    /* The axis is of cp. Tokens and heads are wanted in turn there, so splits of pinned values
     * elsewhere are candidates, and no rank repeats a GEMM or attention. Along tp the splits of the
     * operands are enough. */
    bool context;
    /* Rates at which the search compares seconds, and the ranks along the axis on that machine.
     * NULL: it compares bytes. */
    const CostRates *rates;
    CostGroup group;
    /* Along cp: even splits of each token dim that a view unfolds, as splits of the rows. They are
     * candidates for all rows, so that the search may switch where rows are few. By rows_open. */
    int token_split[8], n_token_splits;
    bool switches; /* of the strategy: there are such candidates */
    bool regather; /* values gathered in F are gathered again (not saved) for the backward phases */
    int n_forward; /* number of forward nodes: those before the first that needs dy */
    PlacementTable placements;
    /* What the axes searched before leave of a value: its extents, if its cuts along this axis nest
     * within theirs (heads do, tokens do not), and its bytes on one of their ranks. [n_values] */
    Dims *dims;
    int64_t *bytes;
    double *share;    /* [n_nodes]: of a node's flops that the axes searched before leave */
    PlacementId *pin; /* [n_values]: required placement; NO_PLACEMENT: the value is not pinned */
    /* A search for layouts of weights, in seconds. `only`: the nodes that it places; NULL: all.
     * `open`: the weights that it chooses; their pins are those of the state that is looked at.
     * `sum_s`: what it costs that ranks have summands of the gradient of a parameter. [n_values] */
    const bool *only;
    const OpenWeight *open;
    const double *sum_s;
    double seconds; /* out: of the choice, by place_choose */
    bool beamed;    /* out: there were too many states; the choice may not be the cheapest */
    Signature *sig; /* [n_nodes]: of each node's op; set by rows_open */
    /* [n_values]: of the parameter whose copy of 8 bits v is, or NO_PLACEMENT; by rows_open */
    PlacementId *quantized;
    double *rest;   /* [n_nodes + 1]: least seconds of the nodes from here on; by rows_open */
    CostWork *work; /* [n_nodes]: as flops; set by rows_open, if there are rates */
    double *flops;  /* [n_nodes]: of the whole node, on all ranks of the axis; by rows_open */
} PlaceContext;

/* A legal sharding of one node, from a row of its op in ir/ops.def: the placement of every input
 * and output (a "strategy" in Alpa). A row names the letter of the signature that is sharded; it
 * gives one RowChoice per candidate split of that letter. */
typedef struct {
    PlacementId in[MAX_IN], out[MAX_OUT];
    double flops;   /* per rank */
    double seconds; /* per rank; 0 without rates */
} RowChoice;

/* MAX_CHOICES: RowChoices of a node. MAX_AVAIL: placements in which one value is available at a
 * time, as produced and as resharded. */
enum { MAX_CHOICES = 32, MAX_AVAIL = 4 };

/* ---- place_placements.c. New placements and splits are added to the table; ERR_CHECK if it is
 * full. ---- */
/* Local. The id of PLACEMENT_REPLICATE. */
PlacementId placement_replicate(void);
/* Local. The id of a placement. */
Err placement_intern(PlacementTable *table, Placement placement, PlacementId *out);
/* Local. The index of the even split of an extent, in whole grains. */
Err split_even(PlacementTable *table, int64_t extent, int64_t grain, int *out);
/* Local. The split of a product from that of one of its factors: for each of the `outer` elements
 * before it, the parts of the factor, of `inner` elements each. split_to_factor is the inverse;
 * *out = -1 if the parts are not the same for each outer element, or not whole inner ones. */
Err split_of_factor(PlacementTable *table, int split, ProductSides sides, int *out);
Err split_to_factor(PlacementTable *table, int split, ProductSides sides, int *out);
/* Local. placement_from_layout returns the placement of a layout along one axis, for a value of
 * these dims; placement_to_layout adds a placement to a layout. axes: bit mask with that one
 * axis. */
Err placement_from_layout(PlacementTable *table, const Layout *layout, unsigned axes,
                          const Dims *dims, PlacementId *out);
void placement_to_layout(const PlacementTable *table, PlacementId id, unsigned axes,
                         Layout *layout);
/* Local. Bytes sent to reshard a value of value_bytes, summed over all ranks of the axis; -1:
 * impossible. *steps: number of reshards inserted, 0 or 1. */
int64_t placement_reshard_bytes(const PlacementTable *table, PlacementId from, PlacementId to,
                                int64_t value_bytes, int *steps);

/* Local. The seconds of the same reshard, which must be possible; 0 without rates. `bytes`: those
 * that all ranks send. */
double placement_reshard_seconds(const PlaceContext *p, PlacementId from, PlacementId to,
                                 int64_t value_bytes, int64_t bytes);

/* ---- place_rows.c ---- */
/* Local. Computes p->sig and p->flops, which rows_of_node reads. */
Err rows_open(PlaceContext *p);
/* Local. Writes the legal shardings of a node to out[0 .. *n), without duplicates: all operands
 * replicated first, then by the rows of the op, then partial sums. ERR_CHECK above MAX_CHOICES.
 * avail[i][0 .. n_avail[i]): the placements in which input i is available; their splits are the
 * candidates. Choices may need inputs in other placements. */
Err rows_of_node(PlaceContext *p, int node, const PlacementId avail[][MAX_AVAIL],
                 const int *n_avail, RowChoice *out, int *n);

/* ---- place.c ---- */
/* The graph, and the layouts that result from the choices along all axes. */
typedef struct PlacedGraph PlacedGraph;
/* Local. Pins the values of a graph, and opens the search along one axis, without rates. */
Err place_open(PlacedGraph *p, const CompileOptions *o, Arena *temp, unsigned **pinned);
Err place_open_axis(const PlacedGraph *p, const unsigned *pinned, int axis, const CompileOptions *o,
                    Arena *temp, PlaceContext **out);
/* Local. Prices the axis at these rates. */
void place_price_axis(PlaceContext *a, const CostRates *rates);

/* ---- place_parts.c ---- */
/* Local. Numbers the parts that can be placed one by one along the axis: (*part)[n_nodes]. */
Err place_parts(const PlacedGraph *p, const unsigned *pinned, int axis, Arena *temp, int **part,
                int *n_parts);

/* ---- place_choose.c ---- */
/* Local. (*out)[v]: v is produced and consumed within one chunk of the head's loop over rows of
 * logits, so it cannot be resharded as a whole. */
Err place_inside(const Graph *g, Arena *arena, bool **out);
/* Local. Chooses a sharding for every node, (*choice)[n_nodes]: the fewest seconds, if there are
 * rates, then the fewest bytes sent, the fewest reshards and the fewest flops. */
Err place_choose(PlaceContext *p, RowChoice **choice);

/* ---- place_local.c ---- */
struct PlacedGraph {
    Graph *g;
    const Mesh *mesh;
    int rank;
    Layout **want;      /* [n_nodes][n_in]: layout in which the node reads the operand */
    Layout *made;       /* [n_values]: layout in which the value is produced */
    Layout *pin;        /* [n_values]: required layout if pinned; else as `made` */
    uint8_t *max_axes;  /* [n_values]: axes over which the value is a partial maximum */
    uint8_t *copy_sums; /* [n_values]: axes along which copies are summands of the value */
    double *share;      /* [n_nodes]: of the flops that a rank runs */
    Shape *shape;       /* [n_values]: global */
    Value n_values;     /* number of values before resharding adds others */
    int n_nodes;        /* number of nodes before resharding adds others */
};
/* Local. The axes over which a unit's values can be sharded. */
unsigned place_unit_axes(const Mesh *m);
/* Local. Converts global shapes and attributes to those of one rank, and inserts collectives where
 * layouts disagree. */
Err place_local(PlacedGraph *p);
/* Local. The dims of a rank's part of a value. */
Dims local_dims(const Dims *global, const Layout *l, const Mesh *m, int rank);

/* ---- place_memo.c ---- */
/* 128 bits of hash of all that the search reads. */
typedef struct {
    uint64_t word[2];
} PlaceKey;
/* Local. The key of a graph with its pins, before the search. */
PlaceKey place_memo_key(const PlacedGraph *p, const unsigned *pinned, const CompileOptions *o);
/* Local. Fills the layouts of p; false if there are none under this key. */
bool place_memo_find(const PlaceMemo *m, const PlaceKey *key, PlacedGraph *p);
/* Local. Adds those of p. */
Err place_memo_keep(PlaceMemo *m, const PlaceKey *key, const PlacedGraph *p, Arena *temp);

/* ---- place_reshard.c ---- */
/* A value to be resharded. */
typedef struct {
    Layout from, to;
    Shape shape;     /* global */
    Dims dims;       /* of the result, on this rank */
    Dims global;     /* of the value, for a reshard in two steps */
    int32_t chunk;   /* chunk number of the inserted nodes; 0: outside of chunks */
    bool is_max;     /* the partial value is a maximum, not a sum */
    bool sum_copies; /* copies of an element in `from` are summands of it */
    Value into;      /* the existing value that becomes the result, or NO_VALUE */
} ReshardRequest;
/* Local. Appends the nodes that reshard v; returns the result, or NO_VALUE on failure. */
Value place_reshard(PlacedGraph *p, Value v, const ReshardRequest *m);

#endif

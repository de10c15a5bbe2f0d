/* place_rows_parts.h -- private to place_rows.c and place_splits.c: one trial of a row of an op. */
#ifndef COMPILE_PLACE_ROWS_PARTS_H
#define COMPILE_PLACE_ROWS_PARTS_H

#include "compile/place.h"

typedef struct {
    PlaceContext *p;
    const Node *n;
    const Signature *sig;
    double flops; /* of the whole node */
    OpRow row;
    int any;         /* the dim, for a row "*" */
    int split, with; /* of the letter, and of the letter sharded with it; -1: none */
    int64_t choices; /* of a token, if an operand has (tk); 0: products are those of views */
} RowTrial;

/* Local. The dims and the row of the signature of an operand: inputs, then outputs. */
const Dims *trial_dims(const RowTrial *t, int operand);
const Operand *trial_operand(const RowTrial *t, int operand);
/* Local. The dim of the operand that the row shards, or -1; *with: by the second letter. */
int trial_dim(const RowTrial *t, int operand, bool *with);

/* Local. The factors before and after the letter that the row shards in dim `dim`, a product; 1 and
 * 1: it is none. */
ProductSides trial_sides(const RowTrial *t, int operand, int dim);

/* Candidate splits of a letter: those of the available operands and of pinned outputs, the even
 * split, to scatter a partial sum, and those of pinned values elsewhere with the same extent: a
 * later node may want them. */
typedef struct {
    int split[8], n;
} SplitList;

/* Local. The candidate splits of the row's letter; with: of the letter that is sharded with it.
 * `avail` is that of rows_of_node. */
Err row_splits(RowTrial *t, const PlacementId avail[][MAX_AVAIL], const int *n_avail, bool with,
               SplitList *out);
/* Local. The placement of the parameter whose gradient v is. */
PlacementId param_placement(const PlaceContext *p, Value v);

#endif

/* holding.h -- the part of a tensor that one rank holds, and the storage offset of each element.
 *
 *     global [12, 8] --cuts of dims--> kept [6, 8] --FLAT cut--> storage: 32 elements
 *
 * A Holding is a value: it borrows the spans of the layout's maps and owns nothing. Storage is
 * row-major and dense; padding is added elsewhere. Checkpoints and exchanges see it as boxes:
 *
 *     storage of element (i, j) of a piece  =  at + i * stride[0] + j * stride[1]
 *
 * Elements of a piece are counted from its lo, in steps of skip + 1. */
#ifndef LAYOUT_HOLDING_H
#define LAYOUT_HOLDING_H

#include "layout/layout.h"

typedef struct {
    Shape global, kept; /* kept: after the cuts of dims, before FLAT cuts */
    HeldSpans dim[MAX_DIMS];
    int64_t stride[MAX_DIMS]; /* row-major strides of `kept` */
    bool is_flat;
    HeldSpans flat; /* row-major elements of `kept`; all of them unless is_flat */
} Holding;

/* A box of global coordinates that one rank holds. */
typedef struct {
    Box box;
    int64_t at; /* storage offset of its first element; strides are the Holding's */
} HeldPiece;

/* Local. The layout must satisfy layout_check with this mesh and shape (tests check it). */
Holding holding_of(const Layout *l, const Mesh *m, const Shape *s, int rank);
/* Local. The same in two steps: the whole tensor, then the remainder after part `part` of a cut. */
Holding holding_all(const Shape *s);
void holding_narrow(Holding *h, const Cut *c, int parts, int part);
/* Local. The shape of storage: as many dims as the tensor has, or one dim under a FLAT cut. */
Shape holding_shape(const Holding *h);
int64_t holding_count(const Holding *h);

/* Local. holding_global returns the row-major global index of the element at storage offset `at`.
 * holding_find returns the storage offset of a global element, or -1. O(spans). */
int64_t holding_global(const Holding *h, int64_t at);
int64_t holding_find(const Holding *h, int64_t global);

/* Local. The bounding box of the held elements: empty if there are none, tight if they are one run
 * of rows. */
Box holding_bounds(const Holding *h);

/* Local. Lists the held elements as disjoint boxes, in the arena; one for each span of each dim. A
 * striped FLAT cut has one box per element. */
Err holding_pieces(const Holding *h, Arena *a, const HeldPiece **out, int64_t *n);

/* Local. The one rank that counts a global element in norms and writes it to checkpoints, among the
 * ranks on the stage of `rank`: the first part that holds it in each cut, the first rank along each
 * replicate axis. -1 if the value is partial, since no rank has the sum. */
int layout_owner(const Layout *l, const Mesh *m, const Shape *s, int rank, int64_t global);

#endif

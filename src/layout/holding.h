/* holding.h -- what one rank holds of a tensor, and where it keeps each element.
 *
 *     global [12, 8] --cuts of dims--> kept [6, 8] --FLAT cut--> storage: 32 elements
 *
 * A Holding is a value: it borrows the spans of the layout's maps and owns nothing. Storage is
 * row-major and dense; padding is somebody else's. As boxes, for checkpoints and for exchange:
 *
 *     storage of element (i, j) of a piece  =  at + (i - lo[0]) * stride[0] + (j - lo[1]) *
 * stride[1]
 */
#ifndef LAYOUT_HOLDING_H
#define LAYOUT_HOLDING_H

#include "layout/layout.h"

typedef struct {
    Shape global, kept; /* kept: what the cuts of dims left, before FLAT cuts */
    HeldSpans dim[MAX_DIMS];
    int64_t stride[MAX_DIMS]; /* of `kept`, row-major */
    bool is_flat;
    HeldSpans flat; /* of the row-major elements of `kept`; all of them unless is_flat */
} Holding;

/* A box of global coordinates that one rank holds. */
typedef struct {
    Box box;
    int64_t at; /* its first element in storage; strides are the Holding's */
} HeldPiece;

/* Local. The layout has passed layout_check with this mesh and shape. */
Holding holding_of(const Layout *l, const Mesh *m, const Shape *s, int rank);
/* Local. The same, one cut at a time: all of the tensor, then what part `part` of a cut leaves. */
Holding holding_all(const Shape *s);
void holding_narrow(Holding *h, const Cut *c, int parts, int part);
/* Local. The shape of storage: as many dims as the tensor, or one dim under a FLAT cut. */
Shape holding_shape(const Holding *h);
int64_t holding_count(const Holding *h);

/* Local. The row-major global index of what storage keeps at `at`; and where storage keeps a global
 * element, or -1. O(spans). */
int64_t holding_global(const Holding *h, int64_t at);
int64_t holding_find(const Holding *h, int64_t global);

/* Local. A box around all that is held: empty when nothing is, tight when it is one run of rows. */
Box holding_bounds(const Holding *h);

/* Local. All that the rank holds, as disjoint boxes in the arena; striped spans are one box an
 * element, so this is for what is not striped, or small. */
Err holding_pieces(const Holding *h, Arena *a, const HeldPiece **out, int64_t *n);

/* Local. The one rank that counts and writes a global element, among those on the stage of `rank`:
 * the first part that holds it in each cut, the first rank along each replicate axis. -1 when the
 * value is partial: then nobody has it. */
int layout_owner(const Layout *l, const Mesh *m, const Shape *s, int rank, int64_t global);

#endif

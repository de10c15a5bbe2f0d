/* box_copy.h -- copies a box of elements between two strided storages.
 *
 *     home [6, 8], strides {8, 1}            file: only the box, row-major, strides {3, 1}
 *     . . . . . . . .
 *     . A A A . . . .       ------>          A A A B B B
 *     . B B B . . . .
 *
 * Snapshots, loads and reshapes are made of such copies. */
#ifndef STATE_BOX_COPY_H
#define STATE_BOX_COPY_H

#include "layout/moves.h"

/* A box in memory: the address of its first element, and strides in elements. */
typedef struct {
    char *data;
    int64_t stride[MAX_DIMS];
} BoxView;

/* Local. Returns a view of the box stored densely, row-major, at `data`. */
BoxView box_dense(const Box *box, void *data);
/* Local. Returns the view of the sub-box `inner`, given the view `at` of `outer`. */
BoxView box_inside(const BoxView *at, const Box *outer, const Box *inner, size_t element);
/* Local. Copies the elements of a box. The two views must not overlap. */
void box_copy(const Box *box, size_t element, const BoxView *from, const BoxView *to);
/* Local. True if the box, traversed row-major, is contiguous in memory. */
bool box_is_run(const Box *box, const BoxView *at);

#endif

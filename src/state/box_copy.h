/* box_copy.h -- a box of elements from one storage to another.
 *
 *     home [6, 8], strides {8, 1}            file: the box alone, row by row, strides {3, 1}
 *     . . . . . . . .
 *     . A A A . . . .       ------>          A A A B B B
 *     . B B B . . . .
 *
 * Snapshots, loads and reshapes move nothing else. */
#ifndef STATE_BOX_COPY_H
#define STATE_BOX_COPY_H

#include "layout/moves.h"

/* Where a box lies: its first element, and strides in elements. */
typedef struct {
    char *data;
    int64_t stride[MAX_DIMS];
} BoxView;

/* Local. The box alone, row-major, at `data`. */
BoxView box_dense(const Box *box, void *data);
/* Local. The part `inner` of what lies as `at` says for `outer`. */
BoxView box_inside(const BoxView *at, const Box *outer, const Box *inner, size_t element);
/* Local. Elements of the box from one place to another; they do not overlap. */
void box_copy(const Box *box, size_t element, const BoxView *from, const BoxView *to);
/* Local. Is the box, walked row by row, one run of memory? */
bool box_is_run(const Box *box, const BoxView *at);

#endif

/* ranks.h -- lists of ranks. */
#ifndef BASE_RANKS_H
#define BASE_RANKS_H

#include <stdint.h>

/* Some ranks of the world, in the order in which reductions fold. A communication group is such a
 * list and a purpose. The list does not own the array. */
typedef struct {
    int n;
    const int32_t *rank; /* [n] */
} RankList;

#endif

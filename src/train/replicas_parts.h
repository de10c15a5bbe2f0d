/* replicas_parts.h -- between replicas.c, which compares, and replicas_plan.c, which says what. */
#ifndef TRAIN_REPLICAS_PARTS_H
#define TRAIN_REPLICAS_PARTS_H

#include "train/replicas.h"

/* Local. Fills tensors, parts, cells and sets, alike on every rank but for `mine`. ERR_CONFIG when there
 * are none. */
Err replicas_plan(Replicas *r, const LinkedProgram *lp, int ranks, Arena *a);

#endif

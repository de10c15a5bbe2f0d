/* replicas_parts.h -- private to train/: replicas_plan.c finds the cells that replicas.c
 * compares. */
#ifndef TRAIN_REPLICAS_PARTS_H
#define TRAIN_REPLICAS_PARTS_H

#include "train/replicas.h"

/* Local. Fills tensors, parts, cells and sets; equal on all ranks except `mine`. ERR_CONFIG if
 * there are no cells. */
Err replicas_plan(Replicas *r, const LinkedProgram *lp, int ranks, Arena *a);

#endif

/* slopes.h -- the gradient of a loss by differences, to hold another one against.
 *
 *     slope = (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h        off by O(h^4)
 *
 * at some entries of every parameter, by running a rank whose list has forward runs alone. */
#ifndef SUPPORT_SLOPES_H
#define SUPPORT_SLOPES_H

#include "run/rank.h"

typedef struct {
    int param;
    int64_t at; /* element */
    double slope;
} Slope;

/* Local. At most `each` different entries of every parameter; weights are as they were after.
 * Returns how many, at most `cap`. */
int slopes_measure(Rank *loss, int each, int cap, Slope *out, Err *err);
/* Local. The worst |gradient - slope| over the largest entry of the gradient's tensor. A tensor
 * that is nothing beside the others (GPT-2's bias of k, whose gradient is 0) is held against the
 * largest of them times 1e-4. *worst: which of `slope` it is. */
double slopes_compare(const Rank *gradients, const Slope *slope, int n, int *worst);

#endif

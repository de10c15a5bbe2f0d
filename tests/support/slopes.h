/* slopes.h -- gradient of a loss by finite differences, to check a computed gradient.
 *
 *     slope = (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h        error O(h^4)
 *
 * It is taken at some entries of every parameter, by a rank whose list has only forward RUNs. */
#ifndef SUPPORT_SLOPES_H
#define SUPPORT_SLOPES_H

#include "run/rank.h"

typedef struct {
    int param;
    int64_t at; /* element */
    double slope;
} Slope;

/* Local. Takes at most `each` different entries of every parameter, and restores the weights.
 * Returns the number of slopes, at most `cap`. */
int slopes_measure(Rank *loss, int each, int cap, Slope *out, Err *err);
/* Local. Returns the largest |gradient - slope|, relative to the largest entry of the gradient's
 * tensor. A tensor that is negligible (GPT-2's bias of k, whose gradient is 0) is compared with
 * 1e-4 of the largest entry of all tensors. *worst is the index in `slope`. */
double slopes_compare(const Rank *gradients, const Slope *slope, int n, int *worst);

#endif

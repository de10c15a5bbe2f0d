/* least_squares.h -- least squares with priors, by Levenberg and Marquardt.
 *
 * Minimizes sum_i r_i(x)^2 + sum_j ((x_j - prior_j) / sigma_j)^2. Derivatives are differences. */
#ifndef BENCH_SUPPORT_LEAST_SQUARES_H
#define BENCH_SUPPORT_LEAST_SQUARES_H

#include "base/arena.h"

enum { MAX_UNKNOWNS = 32 };

typedef struct {
    int n_unknowns, n_residuals;
    double prior[MAX_UNKNOWNS], sigma[MAX_UNKNOWNS];
    /* Writes the residuals of x. */
    Err (*residuals)(void *context, const double *x, double *r);
    void *context;
    int most_rounds;
} LeastSquares;

/* Local. An error in units of its sigma; large ones count by their absolute value, since some runs
 * had a fault of their own. */
double damped_residual(double error, double sigma);

/* Local. x: the start, then the solution. *sum: the minimum. */
Err least_squares(const LeastSquares *q, Arena *arena, double *x, double *sum);

#endif

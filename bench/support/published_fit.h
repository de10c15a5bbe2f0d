/* published_fit.h -- fits the constants of clusters and stacks on published rows.
 *
 * Each cluster with a file of priors (bench/priors) is fitted on its rows whose xxHash64 is 0 mod
 * 4: least squares of log time, with large errors damped to their absolute value, and a prior for
 * the logarithm of each constant at its physical value. A source that shares a cluster with others
 * has a time factor, with a prior at 1. */
#ifndef BENCH_SUPPORT_PUBLISHED_FIT_H
#define BENCH_SUPPORT_PUBLISHED_FIT_H

#include "support/published_rows.h"

/* Local. Changes the constants of all sets and the time factors of all stacks. */
Err published_fit(PublishedRows *p, int rounds);
/* Local. Predicts each row that is dealt to folds by a fit, from the priors, on those of the other
 * folds. Shapes, if rows have them, are fitted too. */
Err published_folds(PublishedRows *p, int rounds, int folds);
/* Local. Writes NAME.yaml for each fitted cluster, and fitted.csv, the fitted numbers of stack
 * rows, into a folder. */
Err published_write(const PublishedRows *p, const char *folder);

#endif

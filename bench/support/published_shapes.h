/* published_shapes.h -- how much longer the work of layers of one shape takes than its rates say.
 *
 * A run is planned with measured times of its own kernels, by shape (`sheaf profile`). Published
 * tables have none. Their rows stand in for such a profile: for each shape of a layer, which is
 * model width, tp, sequences of a micro-batch and tokens of a sequence on one cluster, a factor on
 * the seconds of work and launches, fitted after the constants of the cluster, with a prior at 1.
 * Transfers keep their seconds. --regret uses these factors; errors of times are reported without
 * them. */
#ifndef BENCH_SUPPORT_PUBLISHED_SHAPES_H
#define BENCH_SUPPORT_PUBLISHED_SHAPES_H

#include "support/published_rows.h"

/* Local. Gives each row its shape. */
Err published_shapes(PublishedRows *p);
/* Local. Fits the factors of all shapes on the rows that constants are fitted on; those without
 * such a row are 1. */
Err published_fit_shapes(PublishedRows *p, int rounds);

#endif

/* published_regret.h -- regret of choices among published configurations.
 *
 *     a group: rows of one source with the same model, GPUs, sequences per step and tokens of one
 *
 *         measured    predicted
 *         410 ms      402 ms
 *         398 ms      405 ms         the best
 *         520 ms      398 ms         chosen: regret 520 / 398 - 1
 *
 * With folds each group is predicted by constants that are fitted on other groups. Without, groups
 * whose hash mod 4 is 0 are those that constants are fitted on, and regret is that of the others.
 * Groups of fewer than 5 rows with a prediction are left out. */
#ifndef SUPPORT_PUBLISHED_REGRET_H
#define SUPPORT_PUBLISHED_REGRET_H

#include "support/published_rows.h"

/* Local. Prints a line for each source: "SOURCE regret groups=N rows=N mean=X max=Y spearman=Z",
 * in percent; Spearman's correlation within groups, the mean. */
void published_regret(const PublishedRows *p);

#endif

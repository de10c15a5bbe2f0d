/* published_regret.h -- regret of choices among published configurations.
 *
 *     a group: rows of one source with the same model, GPUs, sequences per step and tokens of one
 *
 *         measured    predicted
 *         410 ms      402 ms
 *         398 ms      405 ms         the best
 *         520 ms      398 ms         chosen: regret 520 / 398 - 1
 *
 * Groups whose hash mod 4 is 0 are those that constants are fitted on; regret is that of the
 * others, if they have 5 rows or more with a prediction. */
#ifndef SUPPORT_PUBLISHED_REGRET_H
#define SUPPORT_PUBLISHED_REGRET_H

#include "support/published_rows.h"

/* Local. Prints a line for each source: "SOURCE regret groups=N rows=N mean=X max=Y spearman=Z",
 * in percent; Spearman's correlation within groups, the mean. */
void published_regret(const PublishedRows *p);

#endif

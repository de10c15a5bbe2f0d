/* published_fit_memory.h -- fits the memory of stacks on published rows.
 *
 * For each source in bench/priors/stacks.csv: weight_bytes, kept, logit_bytes, reserve_gib and
 * gathered of its stack rows, on its rows whose xxHash64 is 0 mod 4, with priors for their
 * logarithms. A measured peak counts by the error of its logarithm. A run that fitted or not counts
 * by its likelihood: its memory is the predicted one times a factor that scatters by some percent,
 * and a few runs end otherwise for reasons of their own. */
#ifndef BENCH_SUPPORT_PUBLISHED_FIT_MEMORY_H
#define BENCH_SUPPORT_PUBLISHED_FIT_MEMORY_H

#include "support/published_rows.h"

/* Local. Changes the numbers of stack rows. */
Err published_fit_memory(PublishedRows *p, int rounds);

#endif

/* inputs.h -- micro-batches of random tokens: whole sequences, each with a causal mask of its
 * own. */
#ifndef BENCH_SUPPORT_INPUTS_H
#define BENCH_SUPPORT_INPUTS_H

#include "run/rank.h"

/* Local. Fills all micro-batches of the rank with the rows that it has; every token has weight
 * 1. */
void inputs_fill(Rank *r, int64_t sequences, int64_t seq_len, int64_t vocab);

#endif

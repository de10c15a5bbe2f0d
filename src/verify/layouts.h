/* layouts.h -- layouts by name, and a set of them that covers every pair of options.
 *
 *     "dp=2 tp=2 zero=1 sequence"        one of them, as people write it and as tables print it
 *     "pp=2 schedule=zbv"                another
 *
 * All that fit N ranks are too many to run. Most faults show where two options meet; so of every
 * two options each pair of values is in some layout of the set. */
#ifndef VERIFY_LAYOUTS_H
#define VERIFY_LAYOUTS_H

#include "job/job.h"

/* Local. "dp=4 zero=3 live=1", "one rank"; in `buffer`, which is returned. */
enum { LAYOUT_TEXT_BYTES = 192 };
const char *layout_words(const ParallelSettings *p, char *buffer);
/* Local. The other way: words with spaces or commas between; dp is dp_shard. ERR_CONFIG names the
 * word and those that there are. */
Err layout_parse(const char *words, size_t length, ParallelSettings *out);
/* Local. Ranks that it takes. */
int layout_ranks(const ParallelSettings *p);

/* Local. Layouts of at most `ranks` ranks, on at most `stages` stages of a pipeline, such that every
 * pair of values of (dp_replicate, dp_shard, tp, pp, zero, reduce, sequence, gathered kept) that can
 * be together is in one of them. What has no effect is left out: sequence parallelism on one tp
 * rank, zero on one dp rank. Deterministic. */
Err layouts_covering(int ranks, int stages, Arena *arena, ParallelSettings **out, int *n);

#endif

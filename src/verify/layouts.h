/* layouts.h -- layouts as text, and a pairwise covering set of layouts.
 *
 *     "dp=2 tp=2 zero=1 sequence"        as people write it and as tables print it
 *     "pp=2 schedule=zbv"
 *
 * There are too many layouts of N ranks to run them all. Most faults show in the combination of two
 * options; so every pair of values of two options occurs in some layout of the set. */
#ifndef VERIFY_LAYOUTS_H
#define VERIFY_LAYOUTS_H

#include "job/job.h"

/* Local. Writes "dp=4 zero=3 live=1" or "one rank" to `buffer`, and returns it. */
enum { LAYOUT_TEXT_BYTES = 192 };
const char *layout_words(const ParallelSettings *p, char *buffer);
/* Local. Parses words separated by spaces or commas; dp means dp_shard. ERR_CONFIG names an unknown
 * word and lists the known ones. */
Err layout_parse(const char *words, size_t length, ParallelSettings *out);
/* Local. Number of ranks of the layout. */
int layout_ranks(const ParallelSettings *p);

/* Local. Layouts of at most `ranks` ranks and `stages` pipeline stages, such that every possible
 * pair of values of (dp_replicate, dp_shard, tp, pp, zero, reduce, sequence, regather, split)
 * occurs in one of them. Options without effect are left out: sequence parallelism on one tp rank,
 * ZeRO on one dp rank, a split by cost on one stage. Deterministic. */
Err layouts_covering(int ranks, int stages, Arena *arena, ParallelSettings **out, int *n);

#endif

/* layouts.h -- layouts as text, and a pairwise covering set of layouts.
 *
 *     "dp=2 tp=2 zero=1 sequence"        as people write it and as tables print it
 *     "pp=2 schedule=zbv"
 *
 * There are too many layouts of N ranks to run them all. Most faults show in the combination of two
 * options; so every pair of values of two options occurs in some layout of the set (cover.h). */
#ifndef VERIFY_LAYOUTS_H
#define VERIFY_LAYOUTS_H

#include "job/job.h"

/* parallel.expert_rows of layouts with the word `rounds`: half of the even share, so that there are
 * always further rounds. Others have room for any routing. */
#define LAYOUT_ROUNDS_ROWS 0.5

/* Local. Writes "dp=4 zero=3 live=1" or "one rank" to `buffer`, and returns it. */
enum { LAYOUT_TEXT_BYTES = 192 };
const char *layout_words(const ParallelSettings *p, char *buffer);
/* Local. Parses words separated by spaces or commas; dp means dp_shard. ERR_CONFIG names an unknown
 * word and lists the known ones. */
Err layout_parse(const char *words, size_t length, ParallelSettings *out);
/* Local. Number of ranks of the layout. */
int layout_ranks(const ParallelSettings *p);

/* The layouts that a covering set may have. */
typedef struct {
    int ranks, stages;        /* at most */
    int64_t heads, key_heads; /* of the model */
    int strength;             /* 2: every pair of values, 3: every triple */
    int64_t experts;          /* of a layer; 0: the model is dense */
    int64_t head_size;        /* rows of a key head: weights=stream shards them over cp */
    int64_t frames;           /* of a clip; 0: a model of text */
} LayoutLimits;

/* Local. Layouts such that every possible pair (or triple) of values of (dp_replicate, dp_shard,
 * cp, tp, pp, zero, reduce, sequence, regather, split, context, tokens, cp_heads, mixed, weights,
 * ep, etp, operators, rounds) occurs in one of them. Options without effect are left out: sequence
 * parallelism on one tp rank, ZeRO on one data rank, a split by cost on one stage, rounds without
 * ep. Deterministic. */
Err layouts_covering(const LayoutLimits *limits, Arena *arena, ParallelSettings **out, int *n);

#endif

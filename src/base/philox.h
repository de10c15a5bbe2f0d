/* philox.h -- random numbers that depend on a key and an index, and on nothing else.
 *
 * Philox 4x32-10: a keyed bijection of 128-bit counters. Whoever needs element i of a named tensor
 * computes it, on any rank and in any order; so initial weights, sample order and dropout cannot
 * depend on the layout. */
#ifndef BASE_PHILOX_H
#define BASE_PHILOX_H

#include <stdint.h>

typedef struct {
    uint32_t key[2];
    uint32_t high[2]; /* upper half of the counter; the index is the lower */
} Random;

/* A stream for a seed and a name ("layers.3.mlp.up_proj.weight", "sample order"). */
Random random_named(uint64_t seed, const char *name);
/* The four words of Philox 4x32-10 at the counter. */
void philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);
/* 64 bits; uniform in [0, 1) on a grid of 2^-53; standard normal (Box-Muller): of element `index`.
 */
uint64_t random_bits(const Random *r, uint64_t index);
double random_uniform(const Random *r, uint64_t index);
double random_normal(const Random *r, uint64_t index);
/* normal.c: of n elements at once, which is much faster. */
void random_normals(const Random *r, const uint64_t *index, int64_t n, double *out);
/* The image of `index` under a keyed permutation of [0, n), n >= 1. */
uint64_t random_permute(const Random *r, uint64_t n, uint64_t index);

#endif

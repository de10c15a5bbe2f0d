/* philox.h -- counter-based random numbers: a function of a key and an index, and of nothing else.
 *
 * Philox 4x32-10 is a keyed bijection of 128-bit counters. Any rank computes element i of a named
 * tensor, in any order, so initial weights, sample order and dropout do not depend on the layout.
 * All functions are pure and thread-safe. */
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
/* Element `index`: 64 bits; uniform in [0, 1) on a grid of 2^-53; standard normal (Box-Muller). */
uint64_t random_bits(const Random *r, uint64_t index);
double random_uniform(const Random *r, uint64_t index);
double random_normal(const Random *r, uint64_t index);
/* normal.c: n elements at once, which is much faster; the same bits. */
void random_normals(const Random *r, const uint64_t *index, int64_t n, double *out);
/* The image of `index` under a keyed permutation of [0, n), n >= 1. */
uint64_t random_permute(const Random *r, uint64_t n, uint64_t index);

#endif

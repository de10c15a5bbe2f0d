/* context_cases.h -- random cases of attention over ranks: sizes, masks and places of tokens. */
#ifndef TESTS_SUPPORT_CONTEXT_CASES_H
#define TESTS_SUPPORT_CONTEXT_CASES_H

#include "support/context_run.h"

typedef enum {
    MASK_CAUSAL,
    MASK_PACKED,
    MASK_WINDOW,
    MASK_FULL,
    MASK_RANDOM,
    N_CASE_MASKS
} CaseMask;

typedef struct {
    uint64_t seed;
    int tokens, heads, key_heads, size;
    CaseMask mask;
} CaseSizes;

/* Masks below FULL are causal. */
static inline bool mask_is_causal(CaseMask mask) { return mask < MASK_FULL; }

/* Local. Values in -1 .. 1 and the ranges of the mask; all tokens are on rank 0. */
Err attention_case_random(const CaseSizes *s, Arena *arena, AttentionCase *out);
/* Local. Places tokens as the map of the shape has them, in chunks of random sizes. */
void attention_case_place(AttentionCase *c, const ContextShape *s, uint64_t seed);
/* Local. Places every token on a random rank, in a random half. */
void attention_case_scatter(AttentionCase *c, int ranks, uint64_t seed);
/* Local. The largest difference of any value; *where names its array. NaN differs from all. */
double attention_difference(const AttentionCase *c, const AttentionResult *a,
                            const AttentionResult *b, const char **where);

static inline uint64_t case_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}
static inline int case_below(uint64_t *state, int n)
{
    return (int)(case_random(state) % (uint64_t)n);
}

#endif

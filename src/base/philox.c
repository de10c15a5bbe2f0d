/* philox.c -- Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011),
 * and uniform numbers and permutations from it.
 *
 *     key      the seed
 *     counter  [ index, 64 bits | name of the stream, hashed to 64 bits ]
 *
 * One seed is one bijection, and named streams are disjoint ranges of its counters. */
#include "base/philox.h"

#include "base/err.h"

enum { PHILOX_ROUNDS = 10, FEISTEL_ROUNDS = 8 };

static uint32_t low(uint64_t v) { return (uint32_t)v; }
static uint32_t high(uint64_t v) { return (uint32_t)(v >> 32); }
static uint64_t join(uint32_t lo, uint32_t hi) { return (uint64_t)hi << 32 | lo; }

void philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = high(p1) ^ c1 ^ k0;
        c2 = high(p0) ^ c3 ^ k1;
        c1 = low(p1);
        c3 = low(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

Random random_named(uint64_t seed, const char *name)
{
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a: hashes need only differ; Philox mixes them */
    for (const char *c = name; *c; c++) hash = (hash ^ (unsigned char)*c) * 0x100000001B3u;
    return (Random){.key = {low(seed), high(seed)}, .high = {low(hash), high(hash)}};
}

static void words_at(const Random *r, uint64_t index, uint32_t out[4])
{
    philox(r->key, (const uint32_t[]){low(index), high(index), r->high[0], r->high[1]}, out);
}

/* The top 53 bits as a fraction of 1, exactly. */
static double fraction(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; }

uint64_t random_bits(const Random *r, uint64_t index)
{
    uint32_t word[4];
    words_at(r, index, word);
    return join(word[0], word[1]);
}

double random_uniform(const Random *r, uint64_t index) { return fraction(random_bits(r, index)); }

/* A Feistel network over 2 * half_bits bits: a bijection whatever the round function is. */
static uint64_t feistel(const Random *r, int half_bits, uint64_t index)
{
    const uint32_t mask = (uint32_t)(((uint64_t)1 << half_bits) - 1);
    const uint32_t key[2] = {r->key[0],
                             ~r->key[1]}; /* another key than that of the stream's numbers */
    uint32_t left = (uint32_t)(index >> half_bits) & mask, right = low(index) & mask;
    for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint32_t word[4];
        philox(key, (const uint32_t[]){right, round, r->high[0], r->high[1]}, word);
        const uint32_t next = left ^ (word[0] & mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << half_bits | right;
}

uint64_t random_permute(const Random *r, uint64_t n, uint64_t index)
{
    int half_bits = 1;
    MUST(index < n, "index %llu of a permutation of %llu", (unsigned long long)index,
         (unsigned long long)n);
    while (half_bits < 32 && (uint64_t)1 << 2 * half_bits < n) half_bits++;
    /* Cycle walking: apply the bijection of [0, 2^(2 half_bits)) until the value is in [0, n). The
     * domain has at most 4 n elements, so this takes at most four steps on average. It ends because
     * `index` itself, which is in [0, n), is on the cycle. */
    do index = feistel(r, half_bits, index);
    while (index >= n);
    return index;
}

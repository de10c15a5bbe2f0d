/* bpe.h -- byte-pair encoding of one word. The neighbours with the lowest rank merge first, the
 * leftmost of several.
 *
 *     t  h  e  r  e        ranks: (h e) 3, (t he) 7, (r e) 20
 *     t  he    r  e
 *     the      r  e
 *     the      re
 *
 * Short words scan all neighbours for each merge; long words use a heap. A cache holds recent
 * words, because a few thousand words make up most of a text. */
#ifndef DATA_BPE_H
#define DATA_BPE_H

#include <stdbool.h>
#include "data/tokens.h"

typedef struct {
    uint64_t pair; /* left << 32 | right; BPE_NONE: an empty entry */
    uint32_t rank;
    int32_t id; /* id of the merged token */
} Merge;
#define BPE_NONE UINT64_MAX

/* Immutable once built. */
typedef struct {
    int32_t byte_id[256];
    Merge *merge; /* hash table, [merge_capacity] */
    uint64_t merge_capacity;
    const Bytes *token; /* [n_tokens] bytes of each id; at == NULL: unused id */
    int64_t n_tokens;
    int32_t *whole; /* hash table of ids that are whole words; NULL: none */
    uint64_t whole_capacity;
} Bpe;

/* Local. Allocates the table for n merges. */
Err bpe_reserve_merges(Bpe *b, int64_t n, Arena *a);
/* Local. A repeated pair gets the new rank. */
void bpe_merge_add(Bpe *b, int32_t left, int32_t right, Merge to);
/* Local. A word that equals a token encodes to that token, regardless of the merges (the
 * ignore_merges of tokenizer.json). */
Err bpe_ignore_merges(Bpe *b, const bool *is_word, Arena *a);

/* The workspace of one thread. */
typedef struct CachedWord CachedWord;
typedef struct {
    Arena arena; /* the cache, then the lists of one long word */
    CachedWord *cache;
} BpeScratch;
Err bpe_scratch_open(BpeScratch *s);
void bpe_scratch_close(BpeScratch *s);

/* bpe_encode may write up to this many ids past the last. */
enum { BPE_SLACK = 8 };
/* Local. `out` has space for one id per byte of the word, plus BPE_SLACK. */
Err bpe_encode(const Bpe *b, BpeScratch *s, Bytes word, int32_t *out, int64_t *n);

#endif

/* bpe.h -- the bytes of a word to ids, by merging: of all neighbours that may merge, those of the
 * least rank first, the leftmost of these.
 *
 *     t  h  e  r  e        ranks: (h e) 3, (t he) 7, (r e) 20
 *     t  he    r  e
 *     the      r  e
 *     the      re
 *
 * Short words are merged by looking at all neighbours each time, long ones by a heap. Words that
 * came before are looked up: most of a text is a few thousand words. */
#ifndef DATA_BPE_H
#define DATA_BPE_H

#include <stdbool.h>
#include "data/tokens.h"

typedef struct {
    uint64_t pair; /* left << 32 | right; BPE_NONE: an empty place */
    uint32_t rank;
    int32_t id; /* of both as one */
} Merge;
#define BPE_NONE UINT64_MAX

/* Immutable once built. */
typedef struct {
    int32_t byte_id[256];
    Merge *merge; /* a hash table */
    uint64_t merge_capacity;
    const Bytes *token; /* [n_tokens] what each id stands for; at NULL: nothing */
    int64_t n_tokens;
    int32_t *whole; /* a hash table of ids: words that are tokens as they are; NULL: none */
    uint64_t whole_capacity;
} Bpe;

/* Local. Room for that many merges. */
Err bpe_reserve_merges(Bpe *b, int64_t n, Arena *a);
/* Local. A pair that is there already gets the new rank. */
void bpe_merge_add(Bpe *b, int32_t left, int32_t right, Merge to);
/* Local. Words that are a token become that, whatever the merges say. */
Err bpe_ignore_merges(Bpe *b, const bool *is_word, Arena *a);

/* What a thread merges with. */
typedef struct CachedWord CachedWord;
typedef struct {
    Arena arena; /* of the cache, then of one long word */
    CachedWord *cache;
} BpeScratch;
Err bpe_scratch_open(BpeScratch *s);
void bpe_scratch_close(BpeScratch *s);

/* Ids may be written past the last, up to this many. */
enum { BPE_SLACK = 8 };
/* Local. `out` has a place for each byte of the word, and BPE_SLACK more. */
Err bpe_encode(const Bpe *b, BpeScratch *s, Bytes word, int32_t *out, int64_t *n);

#endif

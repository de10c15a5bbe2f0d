/* bpe.c -- BPE merges of one word, with a cache of recent words. */
#include "data/bpe.h"

#include <string.h>

enum { MAX_SHORT_WORD = 48, KEY_WORDS = 4, KEY_BYTES = 8 * KEY_WORDS, MAX_CACHED_IDS = 7 };
enum { CACHE_WORDS = 1 << 16 };

/* 64 bytes, one cache line. */
struct CachedWord {
    uint64_t key[KEY_WORDS]; /* the word's bytes, then zeros */
    uint8_t bytes, n;        /* bytes == 0: an empty entry */
    uint16_t unused;
    int32_t id[MAX_CACHED_IDS];
};

static uint64_t mix(uint64_t x)
{
    x *= 0x9E3779B97F4A7C15u;
    return x ^ x >> 32;
}

static uint64_t hash_bytes(Bytes b)
{
    uint64_t hash = b.bytes;
    for (size_t i = 0; i < b.bytes; i++) hash = mix(hash ^ b.at[i]);
    return hash;
}

static uint64_t capacity_for(int64_t n)
{
    uint64_t places = 16;
    while (places < 2 * (uint64_t)n) places *= 2;
    return places;
}

Err bpe_reserve_merges(Bpe *b, int64_t n, Arena *a)
{
    b->merge_capacity = capacity_for(n);
    TRY(ARENA_NEW(a, b->merge_capacity, &b->merge));
    for (uint64_t i = 0; i < b->merge_capacity; i++) b->merge[i].pair = BPE_NONE;
    return OK;
}

static inline Merge *merge_entry(const Bpe *b, int32_t left, int32_t right)
{
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t i = mix(pair) & (b->merge_capacity - 1);
    while (b->merge[i].pair != pair && b->merge[i].pair != BPE_NONE)
        i = (i + 1) & (b->merge_capacity - 1);
    return &b->merge[i];
}

void bpe_merge_add(Bpe *b, int32_t left, int32_t right, Merge to)
{
    Merge *m = merge_entry(b, left, right);
    *m = to;
    m->pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static int32_t *whole_entry(const Bpe *b, Bytes word)
{
    uint64_t i = hash_bytes(word) & (b->whole_capacity - 1);
    for (; b->whole[i] >= 0; i = (i + 1) & (b->whole_capacity - 1)) {
        const Bytes t = b->token[b->whole[i]];
        if (t.bytes == word.bytes && memcmp(t.at, word.at, word.bytes) == 0) break;
    }
    return &b->whole[i];
}

Err bpe_ignore_merges(Bpe *b, const bool *is_word, Arena *a)
{
    b->whole_capacity = capacity_for(b->n_tokens);
    TRY(ARENA_NEW(a, b->whole_capacity, &b->whole));
    memset(b->whole, 0xFF, b->whole_capacity * sizeof *b->whole);
    for (int64_t id = 0; id < b->n_tokens; id++)
        if (is_word[id]) *whole_entry(b, b->token[id]) = (int32_t)id;
    return OK;
}

Err bpe_scratch_open(BpeScratch *s)
{
    TRY(arena_open(&s->arena, "words", ARENA_PLENTY));
    const Err err = ARENA_NEW(&s->arena, CACHE_WORDS, &s->cache);
    if (err != OK) arena_close(&s->arena);
    return err;
}

void bpe_scratch_close(BpeScratch *s) { arena_close(&s->arena); }

static inline uint32_t rank_of(const Bpe *b, int32_t left, int32_t right)
{
    const Merge *m = merge_entry(b, left, right);
    return m->pair == BPE_NONE ? UINT32_MAX : m->rank;
}

/* Scans all neighbours for each merge. O(n^2), but n <= MAX_SHORT_WORD. */
static int64_t merge_short(const Bpe *b, Bytes word, int32_t *id)
{
    uint32_t rank[MAX_SHORT_WORD];
    int64_t n = (int64_t)word.bytes;
    for (int64_t i = 0; i < n; i++) id[i] = b->byte_id[word.at[i]];
    for (int64_t i = 0; i + 1 < n; i++) rank[i] = rank_of(b, id[i], id[i + 1]);
    while (n > 1) {
        int64_t best = 0;
        for (int64_t i = 1; i < n - 1; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == UINT32_MAX) break;
        id[best] = merge_entry(b, id[best], id[best + 1])->id;
        n--;
        for (int64_t i = best + 1; i < n; i++) id[i] = id[i + 1];
        for (int64_t i = best + 1; i < n - 1; i++) rank[i] = rank[i + 1];
        if (best > 0) rank[best - 1] = rank_of(b, id[best - 1], id[best]);
        if (best < n - 1) rank[best] = rank_of(b, id[best], id[best + 1]);
    }
    return n;
}

/* Merges of a long word in O(n log n). Symbols form a doubly linked list, indexed by their first
 * byte. The min-heap contains rank << 32 | symbol. An entry is stale if its rank is no longer that
 * of its symbol and the next. */
typedef struct {
    const Bpe *bpe;
    int32_t *id, *next, *before; /* id -1: merged into the symbol before */
    uint64_t *heap;
    int64_t n_heap;
} Chain;

static void heap_push(Chain *c, int32_t at)
{
    if (at < 0 || c->next[at] < 0) return;
    const uint32_t rank = rank_of(c->bpe, c->id[at], c->id[c->next[at]]);
    if (rank == UINT32_MAX) return;
    const uint64_t entry = (uint64_t)rank << 32 | (uint32_t)at;
    int64_t i = c->n_heap++;
    for (; i > 0 && c->heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
        c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = entry;
}

static uint64_t heap_pop(Chain *c)
{
    const uint64_t top = c->heap[0], last = c->heap[--c->n_heap];
    int64_t i = 0, child;
    for (; (child = 2 * i + 1) < c->n_heap; i = child) {
        if (child + 1 < c->n_heap && c->heap[child + 1] < c->heap[child]) child++;
        if (c->heap[child] >= last) break;
        c->heap[i] = c->heap[child];
    }
    c->heap[i] = last;
    return top;
}

static void merge_at(Chain *c, int32_t at)
{
    const int32_t gone = c->next[at], after = c->next[gone];
    c->id[at] = merge_entry(c->bpe, c->id[at], c->id[gone])->id;
    c->id[gone] = -1;
    c->next[at] = after;
    if (after >= 0) c->before[after] = at;
    heap_push(c, c->before[at]);
    heap_push(c, at);
}

static void merge_chain(Chain *c, Bytes word)
{
    const int32_t n = (int32_t)word.bytes;
    for (int32_t i = 0; i < n; i++) {
        c->id[i] = c->bpe->byte_id[word.at[i]];
        c->next[i] = i + 1 < n ? i + 1 : -1;
        c->before[i] = i - 1;
    }
    for (int32_t i = 0; i < n; i++) heap_push(c, i);
    while (c->n_heap > 0) {
        const uint64_t top = heap_pop(c);
        const int32_t at = (int32_t)(top & UINT32_MAX);
        if (c->id[at] < 0 || c->next[at] < 0) continue;
        if (rank_of(c->bpe, c->id[at], c->id[c->next[at]]) == top >> 32) merge_at(c, at);
    }
}

static Err merge_long(const Bpe *b, BpeScratch *s, Bytes word, int32_t *out, int64_t *n)
{
    Chain c = {.bpe = b};
    const size_t mark = arena_mark(&s->arena);
    int64_t used = 0;
    if (word.bytes > INT32_MAX)
        return err_fail(ERR_CONFIG, "a word of %zu bytes; the limit is %ld: split the text",
                        word.bytes, (long)INT32_MAX);
    TRY(ARENA_NEW(&s->arena, word.bytes, &c.id));
    TRY(ARENA_NEW(&s->arena, word.bytes, &c.next));
    TRY(ARENA_NEW(&s->arena, word.bytes, &c.before));
    TRY(ARENA_NEW(&s->arena, 3 * word.bytes, &c.heap)); /* n entries, then at most two per merge */
    merge_chain(&c, word);
    for (int32_t at = 0; at >= 0; at = c.next[at]) out[used++] = c.id[at];
    *n = used;
    arena_rewind(&s->arena, mark);
    return OK;
}

static Err merge_word(const Bpe *b, BpeScratch *s, Bytes word, int32_t *out, int64_t *n)
{
    if (b->whole) {
        const int32_t id = *whole_entry(b, word);
        if (id >= 0) return out[0] = id, *n = 1, OK;
    }
    if (word.bytes > MAX_SHORT_WORD) return merge_long(b, s, word, out, n);
    *n = merge_short(b, word, out);
    return OK;
}

/* Loads up to eight bytes; the rest is zero. */
static inline uint64_t load_part(const unsigned char *p, size_t n)
{
    uint32_t low, high;
    uint64_t all;
    if (n >= 8) return memcpy(&all, p, 8), all;
    if (n >= 4) {
        memcpy(&low, p, 4);
        memcpy(&high, p + n - 4, 4);
        return low | (uint64_t)high << 8 * (n - 4);
    }
    if (n == 0) return 0;
    return p[0] | (uint64_t)p[n / 2] << 8 * (n / 2) | (uint64_t)p[n - 1] << 8 * (n - 1);
}

static inline CachedWord *cache_entry(BpeScratch *s, Bytes word, uint64_t *key)
{
    uint64_t hash = word.bytes;
    for (size_t i = 0; i < KEY_WORDS; i++)
        key[i] = 8 * i < word.bytes ? load_part(word.at + 8 * i, word.bytes - 8 * i) : 0;
    for (size_t i = 0; 8 * i < word.bytes; i++) hash = mix(hash ^ key[i]);
    return &s->cache[hash & (CACHE_WORDS - 1)];
}

Err bpe_encode(const Bpe *b, BpeScratch *s, Bytes word, int32_t *out, int64_t *n)
{
    uint64_t key[KEY_WORDS];
    if (word.bytes > KEY_BYTES) return merge_word(b, s, word, out, n);
    CachedWord *known = cache_entry(s, word, key);
    if (known->bytes == word.bytes && memcmp(known->key, key, sizeof key) == 0) {
        memcpy(out, known->id, sizeof known->id);
        *n = known->n;
        return OK;
    }
    TRY(merge_word(b, s, word, out, n));
    if (*n > MAX_CACHED_IDS) return OK;
    memcpy(known->key, key, sizeof key);
    memcpy(known->id, out, sizeof known->id);
    known->bytes = (uint8_t)word.bytes;
    known->n = (uint8_t)*n;
    return OK;
}

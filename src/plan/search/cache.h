/* cache.h -- what the search compiles, kept by layout: internal to cache.c, cache_table.c,
 * cache_chunks.c and settle.c.
 *
 *     scaled      tp cp ep etp sequence context                       on the ideal machine
 *     units       tp cp ep etp sequence context recompute micro       for all pp, dp and ZeRO
 *     choices     tp cp ep etp sequence context dp pp                 layouts of weights along tp
 *     summaries   the same, dp, ZeRO, whether pp > 1 and the ends are on two stages
 *     chunks      chunks, and for a split by cost recompute and micro
 *     moves       the same, schedule, stages, micro-batches */
#ifndef PLAN_SEARCH_CACHE_H
#define PLAN_SEARCH_CACHE_H

#include "plan/search/ideal.h"
#include "plan/search/parts.h"

enum { KEY_WORDS = 15 };

typedef struct {
    int64_t word[KEY_WORDS];
} CacheKey;

typedef struct {
    CacheKey key;
    void *value; /* NULL: refused */
} CacheEntry;

typedef struct {
    CacheEntry *entry; /* open addressing */
    bool *used;
    int n, size;
} CacheTable;

struct PlanCache {
    Arena *arena;
    CacheTable scaled, units, choices, summaries, chunks, moves;
    Cluster *machine; /* the ideal one */
    LayoutBound *ideal[RECOMPUTE_FULL + 1];
    const int16_t *class_of;
    WeightSplits *splits; /* [kinds] */
    int16_t *kind_of;     /* [units] */
    PlaceMemo *places;    /* of all layouts */
};

/* Local. Finds the entry of a key; *is_new: it was added, and its value is to be filled in. An
 * entry moves when another is added to its table. */
Err cache_lookup(CacheTable *t, const CacheKey *key, Arena *arena, CacheEntry **out, bool *is_new);
/* Local. A text as a word of a key. */
int64_t cache_hash(const char *text);
/* Local. The key of a point's layout, recomputation and micro-batch; words 7 to 12 are free. */
CacheKey cache_key(const PlanPoint *p);
/* Local. The point on one stage, without ZeRO, and with as much dp as experts need. */
PlanPoint cache_without_data(const PlanPoint *p);

#endif

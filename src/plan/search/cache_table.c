/* cache_table.c -- tables of what was compiled, by keys of words. */
#include "plan/search/cache.h"

#include <string.h>

static uint64_t hash_key(const CacheKey *k)
{
    uint64_t h = 1469598103934665603u;
    for (int i = 0; i < KEY_WORDS; i++) h = (h ^ (uint64_t)k->word[i]) * 1099511628211u;
    return h ^ h >> 31;
}

static int slot_of(const CacheTable *t, const CacheKey *key)
{
    int at = (int)(hash_key(key) % (uint64_t)t->size);
    while (t->used[at] && memcmp(&t->entry[at].key, key, sizeof *key) != 0) at = (at + 1) % t->size;
    return at;
}

static Err grow(CacheTable *t, Arena *arena)
{
    CacheTable more = {.size = t->size ? 2 * t->size : 256, .n = t->n};
    TRY(ARENA_NEW(arena, more.size, &more.entry));
    TRY(ARENA_NEW(arena, more.size, &more.used));
    for (int i = 0; i < t->size; i++) {
        if (!t->used[i]) continue;
        const int at = slot_of(&more, &t->entry[i].key);
        more.entry[at] = t->entry[i];
        more.used[at] = true;
    }
    *t = more;
    return OK;
}

Err cache_lookup(CacheTable *t, const CacheKey *key, Arena *arena, CacheEntry **out, bool *is_new)
{
    if (2 * (t->n + 1) > t->size) TRY(grow(t, arena));
    const int at = slot_of(t, key);
    *is_new = !t->used[at];
    *out = &t->entry[at];
    if (!*is_new) return OK;
    t->used[at] = true;
    t->n++;
    **out = (CacheEntry){.key = *key};
    return OK;
}

int64_t cache_hash(const char *text)
{
    uint64_t h = 0;
    for (int i = 0; text && text[i]; i++) h = h * 131 + (unsigned char)text[i];
    return (int64_t)h;
}

CacheKey cache_key(const PlanPoint *p)
{
    const int64_t experts = (int64_t)p->mesh.ep << 32 | p->mesh.etp;
    CacheKey key = {
        {p->mesh.tp, p->mesh.cp, p->sequence, p->context, p->recompute, p->micro, experts}};
    key.word[KEY_WORDS - 1] = p->offload;
    key.word[KEY_WORDS - 2] = cache_hash(p->tp_weights);
    return key;
}

/* reshape_source.c -- finds and reads the chunks of a checkpoint that intersect a box. */
#include "state/reshape_source.h"

#include "state/box_copy.h"
#include "state/load_plan.h"

Err reshape_source_open(ReshapeSource *s, const Manifest *m, const StateTensors *want, Arena *a)
{
    int *to;
    s->from = m;
    TRY(ARENA_NEW(a, m->tensors.n, &to));
    TRY(ARENA_NEW(a, want->n, &s->tensor));
    TRY(ARENA_NEW(a, m->tensors.n + 1, &s->first));
    TRY(ARENA_NEW(a, m->n_parts, &s->reach));
    TRY(load_match(m, want, LOAD_ALL, to));
    for (int i = 0; i < m->tensors.n; i++) s->tensor[to[i]] = i;
    for (int64_t p = 0; p < m->n_parts; p++) {
        const ManifestPart *part = &m->part[p];
        const int64_t before = p > 0 && m->part[p - 1].tensor == part->tensor ? s->reach[p - 1] : 0;
        s->reach[p] = part->box.hi[0] > before ? part->box.hi[0] : before;
        s->first[part->tensor + 1] = p + 1;
    }
    for (int i = 0; i < m->tensors.n; i++) /* tensors without elements have no parts */
        if (s->first[i + 1] < s->first[i]) s->first[i + 1] = s->first[i];
    return OK;
}

/* Returns the chunk, from the cache or from its file. */
static Err get_chunk(ReshapeSource *s, const ManifestPart *part, int64_t number,
                     const CachedChunk **out)
{
    CachedChunk *oldest = &s->cache[0];
    for (int i = 0; i < s->n_cached; i++) {
        CachedChunk *k = &s->cache[i];
        if (k->part == part && k->number == number) {
            k->used = ++s->clock;
            *out = k;
            return OK;
        }
        if (k->used < oldest->used) oldest = k;
    }
    oldest->part = NULL;
    TRY(chunk_read(&s->reader, part, number, oldest->data));
    *oldest = (CachedChunk){part, number, ++s->clock, oldest->data};
    *out = oldest;
    return OK;
}

/* Returns the first chunk of the part that reaches the row. The rows of chunks increase, except in
 * a part that is stored transposed. */
static int64_t first_chunk(const StateTensors *t, const ManifestPart *part, int64_t row)
{
    int64_t lo = 0, n = part_chunks(t, part), before;
    if (part->stored) return 0;
    while (lo < n) {
        const int64_t mid = lo + (n - lo) / 2;
        if (part_chunk(t, part, mid, &before).hi[0] <= row)
            lo = mid + 1;
        else
            n = mid;
    }
    return lo;
}

/* Copies the intersection of the part and a box. */
static Err copy_part(ReshapeSource *s, const ManifestPart *part, const Box *want, char *to)
{
    const StateTensors *t = &s->from->tensors;
    const size_t element = dtype_bytes(t->tensor[part->tensor].dtype);
    const int64_t n = part_chunks(t, part);
    const BoxView all_out = box_dense(want, to);
    for (int64_t i = first_chunk(t, part, want->lo[0]); i < n; i++) {
        int64_t before;
        const CachedChunk *cache;
        Box both;
        const Box box = part_chunk(t, part, i, &before);
        if (!part->stored && box.lo[0] >= want->hi[0]) break;
        if (!box_intersect(&box, want, &both)) continue;
        TRY(get_chunk(s, part, i, &cache));
        const BoxView all_in = box_dense(&box, cache->data);
        const BoxView in = box_inside(&all_in, &box, &both, element);
        const BoxView out = box_inside(&all_out, want, &both, element);
        box_copy(&both, element, &in, &out);
    }
    return OK;
}

Err reshape_source_box(ReshapeSource *s, int tensor, const Box *box, char *out)
{
    const Manifest *m = s->from;
    const int source = s->tensor[tensor];
    int64_t lo = s->first[source], hi = s->first[source + 1];
    const int64_t end = hi;
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (s->reach[mid] <= box->lo[0])
            lo = mid + 1;
        else
            hi = mid;
    }
    for (; lo < end && m->part[lo].box.lo[0] < box->hi[0]; lo++)
        if (box_intersect(&m->part[lo].box, box, NULL)) TRY(copy_part(s, &m->part[lo], box, out));
    return OK;
}

/* place_lays.c -- how a value lies along one axis, as small numbers that can be compared. */
#include "compile/place.h"

LayId lay_whole(void) { return 0; }

Err lay_of(Lays *l, Lay lay, LayId *out)
{
    if (lay.kind != LAY_CUT) lay.dim = lay.split = 0, lay.open = false;
    if (l->n_lays == 0) l->lay[l->n_lays++] = (Lay){.kind = LAY_WHOLE};
    for (int i = 0; i < l->n_lays; i++) {
        const Lay *a = &l->lay[i];
        if (a->kind != lay.kind || a->dim != lay.dim || a->split != lay.split ||
            a->open != lay.open)
            continue;
        *out = (LayId)i;
        return OK;
    }
    if (l->n_lays == MAX_LAYS)
        return err_fail(ERR_CHECK, "place: more than %d ways to lie along one axis", MAX_LAYS);
    l->lay[l->n_lays] = lay;
    *out = (LayId)l->n_lays++;
    return OK;
}

Err split_of_map(Lays *l, const SpanMap *map, int64_t grain, int *out)
{
    for (int i = 0; i < l->n_splits; i++) {
        if (!spans_equal(l->split[i].map, map)) continue;
        *out = i;
        return OK;
    }
    if (l->n_splits == MAX_LAYS)
        return err_fail(ERR_CHECK, "place: more than %d ways to split an extent", MAX_LAYS);
    l->split[l->n_splits] = (Split){map, grain};
    *out = l->n_splits++;
    return OK;
}

/* A map from one list of spans per part, in `span`, empty ones left out. */
static Err map_of_spans(Lays *l, int64_t extent, const Span *span, const int *n_of,
                        const SpanMap **out)
{
    int32_t *first;
    Span *kept;
    int n = 0, at = 0;
    for (int p = 0; p < l->parts; p++) n += n_of[p];
    TRY(ARENA_NEW(l->arena, l->parts + 1, &first));
    TRY(ARENA_NEW(l->arena, n + 1, &kept));
    n = 0;
    for (int p = 0; p < l->parts; p++) {
        for (int i = 0; i < n_of[p]; i++, at++)
            if (span_count(span[at]) > 0) kept[n++] = span[at];
        first[p + 1] = n;
    }
    return spans_map(l->arena, extent, l->parts, first, kept, out);
}

Err split_even(Lays *l, int64_t extent, int64_t grain, int *out)
{
    const SpanMap *map;
    Span *span;
    int *one;
    TRY(ARENA_NEW(l->arena, l->parts, &span));
    TRY(ARENA_NEW(l->arena, l->parts, &one));
    for (int p = 0; p < l->parts; p++) {
        span[p] = even_part(extent, grain, l->parts, p);
        one[p] = 1;
    }
    TRY(map_of_spans(l, extent, span, one, &map));
    return split_of_map(l, map, grain, out);
}

Err split_scaled(Lays *l, int split, int64_t by, int *out)
{
    const Split *s = &l->split[split];
    const SpanMap *old = s->map, *map;
    const int64_t up = by > 0 ? by : 1, down = by > 0 ? 1 : -by;
    Span *span;
    int *n_of;
    *out = -1;
    if (old->extent * up % down) return OK;
    TRY(ARENA_NEW(l->arena, old->first[l->parts] + 1, &span));
    TRY(ARENA_NEW(l->arena, l->parts, &n_of));
    for (int p = 0; p < l->parts; p++) {
        n_of[p] = old->first[p + 1] - old->first[p];
        for (int i = old->first[p]; i < old->first[p + 1]; i++) {
            const Span a = old->span[i];
            if (a.step != 1 || a.lo * up % down || a.hi * up % down) return OK;
            span[i] = (Span){a.lo * up / down, a.hi * up / down, 1};
        }
    }
    TRY(map_of_spans(l, old->extent * up / down, span, n_of, &map));
    const int64_t grain = s->grain * up % down ? 0 : s->grain * up / down;
    return split_of_map(l, map, grain, out);
}

Err lay_from_layout(Lays *l, const Layout *layout, unsigned axes, const Dims *dims, LayId *out)
{
    Lay lay = {.kind = layout->partial & axes ? LAY_SUM : LAY_WHOLE};
    for (int i = 0; i < layout->n_cuts; i++) {
        const Cut *c = &layout->cut[i];
        if (!(c->axes & axes)) continue;
        lay.kind = LAY_CUT;
        lay.dim = c->dim;
        if (c->map)
            TRY(split_of_map(l, c->map, 0, &lay.split));
        else
            TRY(split_even(l, dims->dim[c->dim].cap, c->grain, &lay.split));
    }
    return lay_of(l, lay, out);
}

void lay_to_layout(const Lays *l, LayId id, unsigned axes, Layout *layout)
{
    const Lay *lay = &l->lay[id];
    if (lay->kind == LAY_SUM || lay->kind == LAY_MAX) *layout = layout_partial(*layout, axes);
    if (lay->kind != LAY_CUT) return;
    const Split *s = &l->split[lay->split];
    *layout = s->grain ? layout_cut(*layout, lay->dim, axes, s->grain)
                       : layout_cut_map(*layout, lay->dim, axes, s->map);
}

/* Of all ranks along the axis together: (p - 1) times what one would have to get. */
int64_t lay_bytes(const Lays *l, LayId from, LayId to, int64_t value_bytes, int *steps)
{
    const Lay *a = &l->lay[from], *b = &l->lay[to];
    const int64_t all = value_bytes * (l->parts - 1);
    const bool a_copies = a->kind == LAY_CUT && l->split[a->split].map->copies;
    const bool b_copies = b->kind == LAY_CUT && l->split[b->split].map->copies;
    *steps = from != to;
    if (from == to) return 0;
    if (a->open || b->open || a_copies) return -1;
    if (a->kind == LAY_WHOLE && b->kind == LAY_CUT) return 0; /* each takes its part */
    if (a->kind == LAY_MAX) return b->kind == LAY_WHOLE ? 2 * all : -1;
    if (a->kind == LAY_SUM && b->kind == LAY_WHOLE) return 2 * all;
    if (b_copies) return -1;
    if (a->kind == LAY_SUM && b->kind == LAY_CUT) return all;
    if (a->kind == LAY_CUT && b->kind == LAY_WHOLE) return all;
    if (a->kind == LAY_CUT && b->kind == LAY_CUT) return all / l->parts;
    return -1;
}

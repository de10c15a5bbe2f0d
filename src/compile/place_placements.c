/* place_placements.c -- the placements of values along one axis, interned as small numbers. */
#include "compile/place.h"

PlacementId placement_replicate(void) { return 0; }

Err placement_intern(PlacementTable *table, Placement placement, PlacementId *out)
{
    if (placement.kind != PLACEMENT_SHARD)
        placement.dim = placement.split = 0, placement.copy_sums = false;
    if (table->n_placements == 0)
        table->list[table->n_placements++] = (Placement){.kind = PLACEMENT_REPLICATE};
    for (int i = 0; i < table->n_placements; i++) {
        const Placement *a = &table->list[i];
        if (a->kind != placement.kind || a->dim != placement.dim || a->split != placement.split ||
            a->copy_sums != placement.copy_sums)
            continue;
        *out = (PlacementId)i;
        return OK;
    }
    if (table->n_placements == MAX_PLACEMENTS)
        return err_fail(ERR_CHECK, "place: more than %d placements along one axis", MAX_PLACEMENTS);
    table->list[table->n_placements] = placement;
    *out = (PlacementId)table->n_placements++;
    return OK;
}

/* The index of the split with these spans; grain as in AxisSplit. */
static Err split_of_map(PlacementTable *table, const SpanMap *map, int64_t grain, int *out)
{
    for (int i = 0; i < table->n_splits; i++) {
        /* An even split counts from the start of what outer axes leave, in its own grains; a map
         * counts from that of the dim. */
        if (table->split[i].grain != grain) continue;
        if (!spans_equal(table->split[i].map, map)) continue;
        *out = i;
        return OK;
    }
    if (table->n_splits == MAX_PLACEMENTS)
        return err_fail(ERR_CHECK, "place: more than %d ways to split an extent", MAX_PLACEMENTS);
    table->split[table->n_splits] = (AxisSplit){.map = map, .grain = grain};
    *out = table->n_splits++;
    return OK;
}

/* A map from n_of[p] spans per part, in `span`; empty ones are dropped. */
static Err map_of_spans(PlacementTable *table, int64_t extent, const Span *span, const int *n_of,
                        const SpanMap **out)
{
    int32_t *first;
    Span *kept;
    int n = 0, at = 0;
    for (int p = 0; p < table->parts; p++) n += n_of[p];
    TRY(ARENA_NEW(table->arena, table->parts + 1, &first));
    TRY(ARENA_NEW(table->arena, n + 1, &kept));
    n = 0;
    for (int p = 0; p < table->parts; p++) {
        for (int i = 0; i < n_of[p]; i++, at++)
            if (span_count(span[at]) > 0) kept[n++] = span[at];
        first[p + 1] = n;
    }
    return spans_map(table->arena, extent, table->parts, first, kept, out);
}

Err split_even(PlacementTable *table, int64_t extent, int64_t grain, int *out)
{
    const SpanMap *map;
    Span *span;
    int *one;
    TRY(ARENA_NEW(table->arena, table->parts, &span));
    TRY(ARENA_NEW(table->arena, table->parts, &one));
    for (int p = 0; p < table->parts; p++) {
        span[p] = even_part(extent, grain, table->parts, p);
        one[p] = 1;
    }
    TRY(map_of_spans(table, extent, span, one, &map));
    return split_of_map(table, map, grain, out);
}

/* The index of the split of key heads by their readers. */
static Err split_read(PlacementTable *table, int64_t extent, int64_t group, int *out)
{
    const SpanMap *map;
    TRY(spans_key_heads(table->arena, extent * group, extent, 1, table->parts, &map));
    TRY(split_of_map(table, map, 0, out));
    table->split[*out].group = group;
    return OK;
}

/* Appends the span scaled. One with a step becomes a span per element: its elements are apart.
 * Returns the number of spans, or -1 if a boundary would fall inside of an element. */
static int scale_span(Span a, int64_t up, int64_t down, Span *out)
{
    int n = 0;
    if (a.step != 1 && down != 1) return -1;
    if (a.lo * up % down || (a.step == 1 && a.hi * up % down)) return -1;
    if (a.step == 1) out[n++] = (Span){a.lo * up / down, a.hi * up / down, 1};
    for (int64_t at = a.lo; a.step != 1 && at < a.hi; at += a.step)
        out[n++] = (Span){at * up, (at + 1) * up, 1};
    return n;
}

/* The same split of an extent `by` times as large; by < 0 divides the extent by -by. *out = -1 if a
 * boundary would fall inside of an element. */
static Err split_scaled(PlacementTable *table, int split, int64_t by, int *out)
{
    const AxisSplit *s = &table->split[split];
    const SpanMap *old = s->map, *map;
    const int64_t up = by > 0 ? by : 1, down = by > 0 ? 1 : -by;
    int64_t room = 1;
    Span *span;
    int *n_of, at = 0;
    *out = -1;
    if (old->extent * up % down) return OK;
    for (int i = 0; i < old->first[table->parts]; i++)
        room += old->span[i].step == 1 ? 1 : span_count(old->span[i]);
    TRY(ARENA_NEW(table->arena, room, &span));
    TRY(ARENA_NEW(table->arena, table->parts, &n_of));
    for (int p = 0; p < table->parts; p++)
        for (int i = old->first[p]; i < old->first[p + 1]; i++) {
            const int n = scale_span(old->span[i], up, down, span + at);
            if (n < 0) return OK;
            n_of[p] += n;
            at += n;
        }
    TRY(map_of_spans(table, old->extent * up / down, span, n_of, &map));
    const int64_t grain = s->grain * up % down ? 0 : s->grain * up / down;
    return split_of_map(table, map, grain, out);
}

/* Appends a span, or lengthens the last one. */
static void add_span(Span *span, int *n, Span more)
{
    if (*n && span[*n - 1].hi == more.lo && span[*n - 1].step == 1 && more.step == 1)
        span[*n - 1].hi = more.hi;
    else
        span[(*n)++] = more;
}

static Err find_of_factor(PlacementTable *table, int split, ProductSides sides, int *out)
{
    const SpanMap *factor = table->split[split].map, *map;
    const int64_t extent = factor->extent, outer = sides.outer, inner = sides.inner;
    const int parts = table->parts, spans = factor->first[parts];
    Span *span;
    int *n_of, at = 0;
    *out = outer == 1 && inner == 1 ? split : -1;
    if (*out == split || table->split[split].group) return OK; /* elements are heads, no channels */
    if (outer == 1) return split_scaled(table, split, inner, out);
    for (int i = 0; i < spans; i++)
        if (factor->span[i].step != 1) return OK;
    TRY(ARENA_NEW(table->arena, outer * spans + 1, &span));
    TRY(ARENA_NEW(table->arena, parts, &n_of));
    for (int p = 0; p < parts; p++, at += n_of[p - 1])
        for (int64_t o = 0; o < outer; o++)
            for (int i = factor->first[p]; i < factor->first[p + 1]; i++) {
                const Span s = factor->span[i];
                add_span(span + at, &n_of[p],
                         (Span){(o * extent + s.lo) * inner, (o * extent + s.hi) * inner, 1});
            }
    TRY(map_of_spans(table, outer * extent * inner, span, n_of, &map));
    return split_of_map(table, map, 0, out);
}

static Err find_to_factor(PlacementTable *table, int split, ProductSides sides, int *out)
{
    const SpanMap *product = table->split[split].map, *map;
    const int64_t whole = sides.outer * sides.inner;
    const int64_t extent = whole ? product->extent / whole : 0, first = extent * sides.inner;
    const int parts = table->parts;
    Span *span;
    int *n_of, at = 0, factor;
    *out = whole == 1 ? split : -1;
    if (whole == 1) return OK;
    if (whole == 0 || extent * whole != product->extent) return OK;
    if (sides.outer == 1) return split_scaled(table, split, -sides.inner, out);
    TRY(ARENA_NEW(table->arena, product->first[parts] + 1, &span));
    TRY(ARENA_NEW(table->arena, parts, &n_of));
    for (int p = 0; p < parts; p++)
        for (int i = product->first[p]; i < product->first[p + 1]; i++) {
            Span s = product->span[i];
            if (s.step != 1) return OK;
            if (s.lo >= first) continue; /* that of a later outer element */
            if (s.hi > first) s.hi = first;
            if (s.lo % sides.inner || s.hi % sides.inner) return OK;
            span[at++] = (Span){s.lo / sides.inner, s.hi / sides.inner, 1};
            n_of[p]++;
        }
    TRY(map_of_spans(table, extent, span, n_of, &map));
    TRY(split_of_map(table, map, 0, &factor));
    TRY(split_of_factor(table, factor, sides, &at));
    if (at == split) *out = factor;
    return OK;
}

/* The search asks for the same few pairs again and again. */
static Err find_pair(PlacementTable *table, const SplitPair *want, int *out)
{
    const int n = table->n_pairs < MAX_SPLIT_PAIRS ? table->n_pairs : MAX_SPLIT_PAIRS;
    for (int i = 0; i < n; i++) {
        const SplitPair *p = &table->pair[i];
        if (p->split == want->split && p->to_factor == want->to_factor &&
            p->sides.outer == want->sides.outer && p->sides.inner == want->sides.inner) {
            *out = p->found;
            return OK;
        }
    }
    TRY((want->to_factor ? find_to_factor : find_of_factor)(table, want->split, want->sides, out));
    SplitPair *p = &table->pair[table->n_pairs++ % MAX_SPLIT_PAIRS];
    *p = *want;
    p->found = *out;
    return OK;
}

Err split_of_factor(PlacementTable *table, int split, ProductSides sides, int *out)
{
    return find_pair(table, &(SplitPair){split, sides, false, 0}, out);
}

Err split_to_factor(PlacementTable *table, int split, ProductSides sides, int *out)
{
    return find_pair(table, &(SplitPair){split, sides, true, 0}, out);
}

Err placement_from_layout(PlacementTable *table, const Layout *layout, unsigned axes,
                          const Dims *dims, PlacementId *out)
{
    Placement placement = {.kind = layout->partial & axes ? PLACEMENT_SUM : PLACEMENT_REPLICATE};
    for (int i = 0; i < layout->n_cuts; i++) {
        const Cut *c = &layout->cut[i];
        if (!(c->axes & axes)) continue;
        placement.kind = PLACEMENT_SHARD;
        placement.dim = c->dim;
        if (c->map)
            TRY(split_of_map(table, c->map, 0, &placement.split));
        else if (c->group)
            TRY(split_read(table, dims->dim[c->dim].cap, c->group, &placement.split));
        else
            TRY(split_even(table, dims->dim[c->dim].cap, c->grain, &placement.split));
    }
    return placement_intern(table, placement, out);
}

void placement_to_layout(const PlacementTable *table, PlacementId id, unsigned axes, Layout *layout)
{
    const Placement *placement = &table->list[id];
    if (placement->kind == PLACEMENT_SUM || placement->kind == PLACEMENT_MAX)
        *layout = layout_partial(*layout, axes);
    if (placement->kind != PLACEMENT_SHARD) return;
    const AxisSplit *s = &table->split[placement->split];
    *layout = s->grain   ? layout_cut(*layout, placement->dim, axes, s->grain)
              : s->group ? layout_cut_read(*layout, placement->dim, axes, s->group)
                         : layout_cut_map(*layout, placement->dim, axes, s->map);
}

/* The bytes of an all-to-all to or from a split with copies: all but each rank's own part of what
 * all ranks together hold. */
static int64_t copies_bytes(const PlacementTable *table, const SpanMap *map, int64_t value_bytes)
{
    int64_t held = 0;
    for (int i = 0; i < map->first[table->parts]; i++) held += span_count(map->span[i]);
    return map->extent ? value_bytes / map->extent * held / table->parts * (table->parts - 1) : 0;
}

/* All ranks along the axis together: (p - 1) times the bytes that one would receive. */
int64_t placement_reshard_bytes(const PlacementTable *table, PlacementId from, PlacementId to,
                                int64_t value_bytes, int *steps)
{
    const Placement *a = &table->list[from], *b = &table->list[to];
    const int64_t all = value_bytes * (table->parts - 1);
    const bool a_copies = a->kind == PLACEMENT_SHARD && table->split[a->split].map->copies;
    const bool b_copies = b->kind == PLACEMENT_SHARD && table->split[b->split].map->copies;
    *steps = from != to;
    if (from == to) return 0;
    if (a->copy_sums && !b->copy_sums && b->kind == PLACEMENT_SHARD && !b_copies &&
        b->dim != a->dim)
        return copies_bytes(table, table->split[a->split].map, value_bytes);
    if (a->copy_sums || b->copy_sums || a_copies) return -1;
    if (a->kind == PLACEMENT_REPLICATE && b->kind == PLACEMENT_SHARD)
        return 0; /* each rank takes its part */
    if (a->kind == PLACEMENT_MAX) return b->kind == PLACEMENT_REPLICATE ? 2 * all : -1;
    if (a->kind == PLACEMENT_SUM && b->kind == PLACEMENT_REPLICATE) return 2 * all;
    if (b_copies && a->kind == PLACEMENT_SHARD && a->dim != b->dim)
        return copies_bytes(table, table->split[b->split].map, value_bytes);
    if (b_copies) return -1;
    if (a->kind == PLACEMENT_SUM && b->kind == PLACEMENT_SHARD) return all;
    if (a->kind == PLACEMENT_SHARD && b->kind == PLACEMENT_REPLICATE) return all;
    if (a->kind == PLACEMENT_SHARD && b->kind == PLACEMENT_SHARD) return all / table->parts;
    return -1;
}

/* The collective that reshards a value; *bytes: those of its larger buffer on a rank. */
static CommKind collective_of(const PlacementTable *table, const Placement *a, const Placement *b,
                              int64_t sent, double *bytes)
{
    if (a->kind != PLACEMENT_SHARD)
        return b->kind == PLACEMENT_SHARD ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE;
    if (b->kind != PLACEMENT_SHARD) return COMM_ALL_GATHER;
    /* Each rank sends all but one of `parts` equal messages. */
    *bytes = (double)sent / (table->parts - 1);
    return COMM_ALL_TO_ALL;
}

double placement_reshard_seconds(const PlaceContext *p, PlacementId from, PlacementId to,
                                 int64_t value_bytes, int64_t bytes)
{
    const PlacementTable *table = &p->placements;
    double whole = (double)value_bytes;
    if (!p->rates || bytes == 0) return 0;
    const CommKind kind = collective_of(table, &table->list[from], &table->list[to], bytes, &whole);
    return cost_transfer_seconds(p->rates, kind, p->group, whole);
}

/* spans.c -- the even rule, windows of spans, and the maps that are common enough to have a
 * name. */
#include "layout/spans.h"
#include "base/math.h"

Span even_part(int64_t n, int64_t grain, int parts, int part)
{
    const int64_t grains = (n + grain - 1) / grain;
    const int64_t each = grains / parts, more = grains % parts;
    const int64_t first = part * each + min_i64(part, more);
    const int64_t last = first + each + (part < more);
    return (Span){min_i64(first * grain, n), min_i64(last * grain, n), 1};
}

bool span_intersect(Span a, Span b, Span *out)
{
    const Span fine = a.step < b.step ? a : b, coarse = a.step < b.step ? b : a;
    const int64_t hi = min_i64(a.hi, b.hi);
    int64_t step = coarse.step, x = coarse.lo;
    if (x < fine.lo) x += (fine.lo - x + step - 1) / step * step;
    /* The residues of the coarse elements modulo the fine step repeat after fine.step of them. */
    for (int64_t tries = 0; (x - fine.lo) % fine.step != 0; tries++, x += step)
        if (tries == fine.step || x >= hi) return false;
    if (x >= hi) return false;
    while (step % fine.step != 0) step += coarse.step;
    const Span both = {x, hi, step};
    *out = span_first(both, span_count(both));
    return true;
}

HeldSpans held_all(int64_t extent) { return (HeldSpans){.count = extent}; }

HeldSpans held_map(const SpanMap *map, int part)
{
    HeldSpans h = {.span = map->span + map->first[part],
                   .n_spans = map->first[part + 1] - map->first[part]};
    for (int i = 0; i < h.n_spans; i++) h.count += span_count(h.span[i]);
    return h;
}

HeldSpans held_even(HeldSpans h, int64_t grain, int parts, int part)
{
    const Span s = even_part(h.count, grain, parts, part);
    h.from += s.lo;
    h.count = s.hi - s.lo;
    return h;
}

HeldSpans held_read(HeldSpans h, int64_t group, int parts, int part)
{
    const Span readers = even_part(h.count * group, 1, parts, part);
    const int64_t lo = readers.lo / group, hi = (readers.hi + group - 1) / group;
    h.from += lo;
    h.count = readers.lo < readers.hi ? hi - lo : 0;
    return h;
}

int64_t held_at(const HeldSpans *h, int64_t i)
{
    int64_t at = h->from + i;
    MUST(i >= 0 && i < h->count, "element %lld of %lld held", (long long)i, (long long)h->count);
    if (!h->span) return at;
    int s = 0;
    while (at >= span_count(h->span[s])) at -= span_count(h->span[s++]);
    return h->span[s].lo + at * h->span[s].step;
}

static int64_t sequence_find(const HeldSpans *h, int64_t coordinate)
{
    int64_t before = 0;
    if (!h->span) return coordinate;
    for (int i = 0; i < h->n_spans; i++) {
        const Span s = h->span[i];
        if (coordinate >= s.lo && coordinate < s.hi && (coordinate - s.lo) % s.step == 0)
            return before + (coordinate - s.lo) / s.step;
        before += span_count(s);
    }
    return -1;
}

int64_t held_find(const HeldSpans *h, int64_t coordinate)
{
    const int64_t at = sequence_find(h, coordinate) - h->from;
    return at >= 0 && at < h->count ? at : -1;
}

Span held_span(const HeldSpans *h, int64_t i) { return held_span_next(h, i, &(HeldCursor){0, 0}); }

Span held_span_next(const HeldSpans *h, int64_t i, HeldCursor *at)
{
    const int64_t x = h->from + i;
    MUST(i >= 0 && i < h->count, "element %lld of %lld held", (long long)i, (long long)h->count);
    if (!h->span) return (Span){x, h->from + h->count, 1};
    for (int64_t n; x - at->before >= (n = span_count(h->span[at->span])); at->span++)
        at->before += n;
    const Span whole = h->span[at->span];
    const Span rest = {whole.lo + (x - at->before) * whole.step, whole.hi, whole.step};
    return span_first(rest, min_i64(span_count(rest), h->count - i));
}

int64_t held_below(const HeldSpans *h, int64_t bound)
{
    const int64_t end = h->from + h->count;
    int64_t before = 0, n = 0;
    if (!h->span) return min_i64(max_i64(bound - h->from, 0), h->count);
    for (int i = 0; i < h->n_spans && before < end; i++) {
        const int64_t count = span_count(h->span[i]);
        const Span below = {h->span[i].lo, min_i64(bound, h->span[i].hi), h->span[i].step};
        const int64_t first = max_i64(h->from - before, 0), last = min_i64(end - before, count);
        n += max_i64(min_i64(span_count(below), last) - first, 0);
        before += count;
    }
    return n;
}

Span held_bounds(const HeldSpans *h)
{
    Span b = {INT64_MAX, 0, 1};
    int64_t before = 0;
    if (h->count == 0) return (Span){0, 0, 1};
    if (!h->span) return (Span){h->from, h->from + h->count, 1};
    for (int i = 0; i < h->n_spans; i++) {
        const Span s = h->span[i];
        const int64_t first = h->from > before ? h->from - before : 0;
        const int64_t last = min_i64(span_count(s), h->from + h->count - before) - 1;
        before += span_count(s);
        if (first > last) continue;
        b.lo = min_i64(b.lo, s.lo + first * s.step);
        if (b.hi <= s.lo + last * s.step) b.hi = s.lo + last * s.step + 1;
    }
    return b;
}

/* A map of n_parts parts with at most `per_part` spans each, filled by push_span. spans_map copies
 * it, a few spans, so that all maps are checked in one function. */
typedef struct {
    int32_t *first;
    Span *span;
    int n_spans;
} MapBuilder;

static Err builder_in(Arena *a, int n_parts, int per_part, MapBuilder *out)
{
    *out = (MapBuilder){0};
    TRY(ARENA_NEW(a, n_parts + 1, &out->first));
    return ARENA_NEW(a, (int64_t)n_parts * per_part, &out->span);
}

static void push_span(MapBuilder *b, int part, Span s)
{
    if (span_count(s) > 0) b->span[b->n_spans++] = s;
    b->first[part + 1] = b->n_spans;
}

Err spans_fused(Arena *a, const int64_t *width, const int64_t *grain, int n_fields, int parts,
                const SpanMap **out)
{
    MapBuilder b;
    int64_t extent = 0;
    TRY(builder_in(a, parts, n_fields, &b));
    for (int p = 0; p < parts; p++) {
        int64_t at = 0;
        for (int f = 0; f < n_fields; f++) {
            const Span s = even_part(width[f], grain[f], parts, p);
            push_span(&b, p, (Span){at + s.lo, at + s.hi, 1});
            at += width[f];
        }
        extent = at;
    }
    return spans_map(a, extent, parts, b.first, b.span, out);
}

Err spans_key_heads(Arena *a, int64_t q_heads, int64_t kv_heads, int64_t head_size, int parts,
                    const SpanMap **out)
{
    MapBuilder b;
    if (kv_heads < 1 || q_heads % kv_heads != 0)
        return err_fail(ERR_CONFIG,
                        "%lld query heads do not share %lld key heads evenly; use a multiple",
                        (long long)q_heads, (long long)kv_heads);
    const int64_t reads = q_heads / kv_heads;
    TRY(builder_in(a, parts, 1, &b));
    for (int p = 0; p < parts; p++) {
        const Span q = even_part(q_heads, 1, parts, p);
        const int64_t lo = q.lo / reads, hi = q.lo == q.hi ? lo : (q.hi + reads - 1) / reads;
        push_span(&b, p, (Span){lo * head_size, hi * head_size, 1});
    }
    return spans_map(a, kv_heads * head_size, parts, b.first, b.span, out);
}

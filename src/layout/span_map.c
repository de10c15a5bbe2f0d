/* span_map.c -- the check that a span map is well formed.
 *
 * One sweep over all spans sorted by their start, striped ones split into elements:
 *
 *     reach    end of the covered prefix of [0, extent); a span that starts beyond it leaves a gap,
 *              one that starts before it holds copies
 *     mine[p]  end of part p so far; a span of p that starts before it repeats elements of p
 *
 * O(n log n) in spans; in elements only where striped. */
#include "layout/spans.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t lo, hi;
    int part;
} SpanPiece;

static int by_start(const void *a, const void *b)
{
    const SpanPiece *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Writes the pieces of one part from out[n] on; with out == NULL only counts. */
static int64_t add_pieces(const SpanMap *map, int part, SpanPiece *out, int64_t n)
{
    for (int i = map->first[part]; i < map->first[part + 1]; i++) {
        const Span s = map->span[i];
        const int64_t pieces = s.step == 1 ? 1 : span_count(s);
        for (int64_t j = 0; out && j < pieces; j++) {
            const int64_t lo = s.lo + j * s.step;
            out[n + j] = (SpanPiece){lo, s.step == 1 ? s.hi : lo + 1, part};
        }
        n += pieces;
    }
    return n;
}

static Err sweep(const SpanPiece *piece, int64_t n, int64_t extent, int64_t *mine, bool *copies)
{
    int64_t reach = 0;
    *copies = false;
    for (int64_t i = 0; i < n; i++) {
        const SpanPiece *p = &piece[i];
        if (p->lo < mine[p->part])
            return err_fail(ERR_CHECK, "span map: part %d holds element %lld twice", p->part,
                            (long long)p->lo);
        if (p->lo > reach) break;
        if (p->lo < reach) *copies = true;
        mine[p->part] = p->hi;
        if (reach < p->hi) reach = p->hi;
    }
    if (reach != extent)
        return err_fail(ERR_CHECK, "span map: element %lld of %lld is in no part", (long long)reach,
                        (long long)extent);
    return OK;
}

Err spans_tile(const SpanMap *map, const int *part, int n, int64_t extent, Arena *temp,
               bool *copies)
{
    const size_t mark = arena_mark(temp);
    int64_t count = 0, *mine;
    SpanPiece *piece;
    for (int i = 0; i < n; i++) count = add_pieces(map, part[i], NULL, count);
    TRY(ARENA_NEW(temp, count, &piece));
    TRY(ARENA_NEW(temp, map->n_parts, &mine));
    count = 0;
    for (int i = 0; i < n; i++) count = add_pieces(map, part[i], piece, count);
    if (count > 0) qsort(piece, (size_t)count, sizeof *piece, by_start);
    const Err err = sweep(piece, count, extent, mine, copies);
    arena_rewind(temp, mark);
    return err;
}

static Err spans_in_range(const SpanMap *map)
{
    if (map->n_parts < 1 || map->extent < 0 || map->first[0] != 0)
        return err_fail(ERR_CHECK,
                        "span map: %d parts of %lld elements from span %d; it has at least one "
                        "part and begins at span 0",
                        map->n_parts, (long long)map->extent, map->first[0]);
    for (int p = 0; p < map->n_parts; p++) {
        if (map->first[p] > map->first[p + 1])
            return err_fail(ERR_CHECK, "span map: part %d begins at span %d and ends at %d", p,
                            map->first[p], map->first[p + 1]);
        for (int i = map->first[p]; i < map->first[p + 1]; i++) {
            const Span s = map->span[i];
            if (s.lo < 0 || s.lo >= s.hi || s.hi > map->extent || s.step < 1)
                return err_fail(ERR_CHECK,
                                "span map: part %d has the span [%lld, %lld) by %lld; spans are "
                                "not empty, lie in [0, %lld) and step by 1 or more",
                                p, (long long)s.lo, (long long)s.hi, (long long)s.step,
                                (long long)map->extent);
        }
    }
    return OK;
}

Err spans_map(Arena *a, int64_t extent, int n_parts, const int32_t *first, const Span *span,
              const SpanMap **out)
{
    SpanMap *map;
    int32_t *first_copy;
    Span *span_copy;
    int *all;
    const SpanMap given = {.extent = extent, .n_parts = n_parts, .first = first, .span = span};
    TRY(spans_in_range(&given));
    TRY(ARENA_NEW(a, 1, &map));
    TRY(ARENA_NEW(a, n_parts + 1, &first_copy));
    TRY(ARENA_NEW(a, first[n_parts], &span_copy));
    memcpy(first_copy, first, sizeof *first * (size_t)(n_parts + 1));
    if (first[n_parts] > 0) memcpy(span_copy, span, sizeof *span * (size_t)first[n_parts]);

    const size_t mark = arena_mark(a);
    bool copies;
    TRY(ARENA_NEW(a, n_parts, &all));
    for (int p = 0; p < n_parts; p++) all[p] = p;
    TRY(spans_tile(&given, all, n_parts, extent, a, &copies));
    arena_rewind(a, mark);
    *map = (SpanMap){extent, n_parts, first_copy, span_copy, copies};
    *out = map;
    return OK;
}

bool spans_equal(const SpanMap *a, const SpanMap *b)
{
    if (a == b) return true;
    if (!a || !b || a->extent != b->extent || a->n_parts != b->n_parts) return false;
    if (memcmp(a->first, b->first, sizeof *a->first * (size_t)(a->n_parts + 1)) != 0) return false;
    return memcmp(a->span, b->span, sizeof *a->span * (size_t)a->first[a->n_parts]) == 0;
}

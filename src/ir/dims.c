/* dims.c -- extents whose rows are a part of a micro-batch's.
 *
 *     rows of the micro-batch   0 1 2 3 4 5 6 7 8 9 10 11      the slot is 9: rows 0 to 8 are live
 *     zigzag on cp=2, part 0    0 1 2             9 10 11      cap 6, live 3
 *                  part 1             3 4 5 6 7 8              cap 6, live 6
 *
 * The live rows of a part are its first ones, because its spans ascend. */
#include "ir/ops.h"

#include <string.h>

static HeldSpans held_of(const Dim *d) { return (HeldSpans){d->span, d->n_spans, d->from, d->cap}; }

/* Drops the spans before and after the window; one span without a step is a range of rows. */
static Dim simplified(Dim d)
{
    if (d.cap == 0) return dim_rows(0, d.slot);
    while (d.span && d.from >= span_count(d.span[0])) {
        d.from -= span_count(d.span[0]);
        d.span++;
        d.n_spans--;
    }
    int64_t reach = 0;
    int n = 0;
    while (d.span && reach < d.from + d.cap) reach += span_count(d.span[n++]);
    d.n_spans = n;
    if (n == 1 && d.span[0].step == 1)
        d = (Dim){.cap = d.cap, .slot = d.slot, .from = d.span[0].lo + d.from};
    return d;
}

Dim dim_held(int32_t slot, const HeldSpans *rows)
{
    for (int i = 1; i < rows->n_spans; i++)
        MUST(rows->span[i - 1].hi <= rows->span[i].lo,
             "rows [%lld, %lld) are stored before [%lld, %lld); live rows must come first",
             (long long)rows->span[i - 1].lo, (long long)rows->span[i - 1].hi,
             (long long)rows->span[i].lo, (long long)rows->span[i].hi);
    return simplified((Dim){.cap = rows->count,
                            .slot = slot,
                            .n_spans = rows->n_spans,
                            .from = rows->from,
                            .span = rows->span});
}

Dim dim_part(Dim d, int64_t from, int64_t cap)
{
    if (d.slot == NO_SLOT) return dim_of(cap);
    d.from += from;
    d.cap = cap;
    return simplified(d);
}

bool dim_same(Dim a, Dim b)
{
    if (a.cap != b.cap || a.slot != b.slot || a.from != b.from || a.n_spans != b.n_spans)
        return false;
    return a.span == b.span || memcmp(a.span, b.span, sizeof *a.span * (size_t)a.n_spans) == 0;
}

int64_t dim_live(const Dim *d, int64_t live)
{
    const HeldSpans h = held_of(d);
    return d->slot == NO_SLOT ? d->cap : held_below(&h, live);
}

/* pairs.c -- counts pairs in closed form, one arithmetic progression of rows at a time. */
#include "ir/pairs.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Pairs of the rows first, first + step, ..., count of them, all of one sequence; first is counted
 * from the start of the sequence. Row r sees r + 1 keys as long as that is at most `span`. */
static int64_t pairs_of_rows(int64_t first, int64_t step, int64_t count, int64_t span)
{
    const int64_t below = first >= span ? 0 : (span - 1 - first) / step + 1; /* see r + 1 <= span */
    const int64_t n = least(below, count);
    return n * (first + 1) + step * (n * (n - 1) / 2) + (count - n) * span;
}

/* The same for rows of several sequences. */
static int64_t pairs_of_progression(Span rows, int64_t sequence, int64_t span)
{
    int64_t pairs = 0;
    while (rows.lo < rows.hi) {
        const int64_t start = rows.lo - rows.lo % sequence;
        const Span here = {rows.lo, least(rows.hi, start + sequence), rows.step};
        const int64_t count = span_count(here);
        pairs += pairs_of_rows(rows.lo - start, rows.step, count, span);
        rows.lo += count * rows.step;
    }
    return pairs;
}

/* Progression i of a dim's rows; rows outside of the window are left out. *skip: rows of the
 * sequence that are still before the window; *left: rows of the window that are still to come. */
static Span progression_of(const Dim *d, int i, int64_t *skip, int64_t *left)
{
    Span s = d->span ? d->span[i] : (Span){0, d->from + d->cap, 1};
    const int64_t dropped = least(*skip, span_count(s));
    s.lo += dropped * s.step;
    s.hi = least(s.hi, s.lo + *left * s.step);
    *skip -= dropped;
    *left -= span_count(s);
    return s;
}

/* The keys that one query sees among those held. */
static int64_t keys_seen(int64_t row, const Attr *attr, const HeldSpans *keys)
{
    const int64_t start = row - row % attr->attention.sequence;
    if (attr->attention.full)
        return held_below(keys, start + attr->attention.sequence) - held_below(keys, start);
    const int64_t low = most(start, row + 1 - attr->attention.span);
    return held_below(keys, row + 1) - held_below(keys, low);
}

/* Counts query by query. */
static int64_t pairs_by_row(Span rows, const Attr *attr, const HeldSpans *keys)
{
    int64_t pairs = 0;
    for (int64_t row = rows.lo; row < rows.hi; row += rows.step)
        pairs += keys_seen(row, attr, keys);
    return pairs;
}

/* The sum of min(max(x, low), high) over n numbers x, x + step, ... */
static int64_t sum_clamped(int64_t x, int64_t step, int64_t n, int64_t low, int64_t high)
{
    const int64_t small = x >= low ? 0 : least(n, (low - x + step - 1) / step); /* x < low */
    const int64_t first = x + small * step;
    const int64_t inside = first >= high ? 0 : least(n - small, (high - first + step - 1) / step);
    return small * low + inside * first + step * (inside * (inside - 1) / 2) +
           (n - small - inside) * high;
}

static int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

/* The sum of held_below(row + more) over rows whose step is a multiple of the keys' steps. */
static int64_t sum_below(Span rows, int64_t more, const HeldSpans *keys)
{
    const int64_t n = span_count(rows), end = keys->from + keys->count;
    int64_t before = 0, sum = 0;
    for (int i = 0; i < (keys->span ? keys->n_spans : 1) && before < end; i++) {
        const Span s = keys->span ? keys->span[i] : (Span){0, end, 1};
        const int64_t first = most(keys->from - before, 0),
                      last = least(end - before, span_count(s));
        const int64_t below = floor_div(rows.lo + more - s.lo + s.step - 1, s.step);
        if (last > first) sum += sum_clamped(below, rows.step / s.step, n, first, last) - n * first;
        before += span_count(s);
    }
    return sum;
}

static bool steps_divide(Span rows, const HeldSpans *keys)
{
    for (int i = 0; keys->span && i < keys->n_spans; i++)
        if (rows.step % keys->span[i].step != 0) return false;
    return true;
}

/* Rows of one sequence, which begins at `start`. */
static int64_t pairs_of_sequence(Span rows, int64_t start, const Attr *attr, const HeldSpans *keys)
{
    const int64_t n = span_count(rows), span = attr->attention.span;
    if (attr->attention.full)
        return n * (held_below(keys, start + attr->attention.sequence) - held_below(keys, start));
    if (!steps_divide(rows, keys)) return pairs_by_row(rows, attr, keys);
    const int64_t ahead = start + span - 1 - rows.lo; /* rows that see the sequence's first key */
    const int64_t n_first = ahead < 0 ? 0 : least(n, ahead / rows.step + 1);
    const Span rest = {rows.lo + n_first * rows.step, rows.hi, rows.step};
    return sum_below(rows, 1, keys) - n_first * held_below(keys, start) -
           (n_first < n ? sum_below(rest, 1 - span, keys) : 0);
}

/* Keys of which some are elsewhere. */
static int64_t pairs_of_block(Span rows, const Attr *attr, const HeldSpans *keys)
{
    const int64_t sequence = attr->attention.sequence;
    int64_t pairs = 0;
    while (rows.lo < rows.hi) {
        const int64_t start = rows.lo - rows.lo % sequence;
        const Span here = {rows.lo, least(rows.hi, start + sequence), rows.step};
        pairs += pairs_of_sequence(here, start, attr, keys);
        rows.lo += span_count(here) * rows.step;
    }
    return pairs;
}

double attention_pairs(const Attr *attr, const Dim *queries, const Dim *keys, int64_t moved_by)
{
    const int64_t sequence = attr->attention.sequence, span = attr->attention.span;
    const bool full = attr->attention.full;
    const HeldSpans held = {keys->span, keys->n_spans,
                            keys->slot == NO_SLOT ? attr->attention.key_at : keys->from, keys->cap};
    int64_t skip = queries->from, left = queries->cap;
    double pairs = 0;
    moved_by += attr->attention.query_at;
    if (sequence == 0) return (double)(queries->cap * span);
    for (int i = 0; i < (queries->span ? queries->n_spans : 1); i++) {
        Span rows = progression_of(queries, i, &skip, &left);
        rows.lo += moved_by;
        rows.hi += moved_by;
        if (span_count(rows) == 0) continue;
        const bool all_keys = !held.span && held.from == 0 && held.count >= rows.hi && !full;
        pairs += (double)(all_keys ? pairs_of_progression(rows, sequence, span)
                                   : pairs_of_block(rows, attr, &held));
    }
    return pairs;
}

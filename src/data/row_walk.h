/* row_walk.h -- a walk over those rows of a range that an input array of a rank holds.
 *
 *     rows held   0 1 . . 4 5        walk of [1, 5): rows 1, 4; their indices in the array: 1, 2 */
#ifndef DATA_ROW_WALK_H
#define DATA_ROW_WALK_H

#include <stdbool.h>
#include "layout/spans.h"

typedef struct {
    const HeldSpans *rows;
    int64_t at, end; /* index of the next row in the array, and of the last one */
    Span span;       /* rows from the next one on */
    HeldCursor cursor;
} RowWalk;

/* `held`: NULL: all rows. */
static inline RowWalk row_walk(const HeldSpans *held, int64_t lo, int64_t hi)
{
    static const HeldSpans all = {.count = INT64_MAX / 2};
    const HeldSpans *rows = held ? held : &all;
    return (RowWalk){.rows = rows, .at = held_below(rows, lo), .end = held_below(rows, hi)};
}

/* Sets the next row and its index in the array; false: there is none. */
static inline bool next_row(RowWalk *w, int64_t *at, int64_t *row)
{
    if (w->at >= w->end) return false;
    if (w->span.lo >= w->span.hi) w->span = held_span_next(w->rows, w->at, &w->cursor);
    *row = w->span.lo;
    *at = w->at++;
    w->span.lo += w->span.step;
    return true;
}

#endif

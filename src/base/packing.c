/* packing.c -- interval packing: each piece at the lowest offset that is free for its lifetime.
 *
 * Orders tried, until one meets the lower bound:
 *
 *     BEGIN_SIZE   by begin; at one position the largest first
 *     BY_SIZE      the largest first
 *     BY_LIFE      the longest-lived first
 *     BEGIN_LIFE   by begin; at one position the longest-lived first: short-lived pieces on top
 *     END_LIFE     BEGIN_LIFE of the reversed list
 *
 * Weights, activations and scratch have few distinct sizes and nested lifetimes, so one of these
 * orders is mostly optimal; the lower bound shows by how much it is not.
 *
 * The orders by begin work like an allocator: only pieces that live at that moment are in the way
 * of the next. They keep a list of gaps, lowest first, and take the lowest gap that is large
 * enough. When a piece ends, its bytes and the adjacent gaps become one gap:
 *
 *     [ A ]-gap-[ B ]-gap-[ C ]-gap to infinity     B ends:     [ A ]----gap----[ C ]-gap ...
 *
 * There are few gaps, however many pieces there are. The other orders compare with all pieces
 * placed so far. */
#include "base/packing.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t key[2];
    int index;
} Sort;

static int by_key(const void *a, const void *b)
{
    const Sort *x = a, *y = b;
    for (int i = 0; i < 2; i++)
        if (x->key[i] != y->key[i]) return x->key[i] < y->key[i] ? -1 : 1;
    return x->index - y->index; /* ties by position: the order is deterministic */
}

typedef enum {
    BEGIN_SIZE,
    BY_SIZE,
    BY_LIFE,
    BEGIN_LIFE,
    END_LIFE,
    N_ORDERS,
    BY_LAST = N_ORDERS /* not for placing: the order in which pieces end */
} Order;

static void sort_pieces(const Piece *piece, int n, Order which, Sort *sort, int *order)
{
    for (int i = 0; i < n; i++) {
        const Piece *p = &piece[i];
        const int64_t size = -(int64_t)p->bytes, life = p->first - p->last;
        const Sort by[] = {
            [BEGIN_SIZE] = {{p->first, size}, i}, [BY_SIZE] = {{size, p->first}, i},
            [BY_LIFE] = {{life, size}, i},        [BEGIN_LIFE] = {{p->first, life}, i},
            [END_LIFE] = {{p->first, life}, i}, /* of mirrored lifetimes */
            [BY_LAST] = {{p->last, 0}, i},
        };
        sort[i] = by[which];
    }
    qsort(sort, (size_t)n, sizeof *sort, by_key);
    for (int i = 0; i < n; i++) order[i] = sort[i].index;
}

/* A free range of bytes. */
typedef struct {
    size_t from, to;
} Gap;

/* Lowest first; no two are adjacent, and the last one has no end. */
typedef struct {
    Gap *gap;
    int n;
} Gaps;

static void remove_gap(Gaps *g, int i)
{
    g->n--;
    memmove(&g->gap[i], &g->gap[i + 1], (size_t)(g->n - i) * sizeof *g->gap);
}

static void insert_gap(Gaps *g, int i, Gap gap)
{
    memmove(&g->gap[i + 1], &g->gap[i], (size_t)(g->n - i) * sizeof *g->gap);
    g->gap[i] = gap;
    g->n++;
}

/* Takes `bytes` bytes from the lowest gap that is large enough. */
static size_t take(Gaps *g, size_t bytes)
{
    int i = 0;
    if (bytes == 0) return 0;
    while (g->gap[i].to - g->gap[i].from < bytes) i++;
    const size_t at = g->gap[i].from;
    g->gap[i].from += bytes;
    if (g->gap[i].from == g->gap[i].to) remove_gap(g, i);
    return at;
}

/* Returns a range to the gaps, merged with the gaps below and above. */
static void give(Gaps *g, size_t from, size_t bytes)
{
    const size_t to = from + bytes;
    int i = 0, high = g->n - 1; /* binary search: i becomes the first gap above */
    if (bytes == 0) return;
    while (i < high) {
        const int middle = (i + high) / 2;
        if (g->gap[middle].from >= to)
            high = middle;
        else
            i = middle + 1;
    }
    const bool above = g->gap[i].from == to, below = i > 0 && g->gap[i - 1].to == from;
    if (above && below) {
        g->gap[i - 1].to = g->gap[i].to;
        remove_gap(g, i);
    } else if (above) {
        g->gap[i].from = from;
    } else if (below) {
        g->gap[i - 1].to = to;
    } else {
        insert_gap(g, i, (Gap){from, to});
    }
}

/* A piece that has its place: bytes from .. to - 1, while it lives. */
typedef struct {
    size_t from, to;
    int32_t first, last;
} PlacedPiece;

/* Work arrays of the orders, [n + 1] each: n pieces leave at most n + 1 gaps. */
typedef struct {
    Sort *sort;
    int *order, *ends; /* pieces in the order of placing, and in the order of ends */
    PlacedPiece *placed;
    Gap *gap;
} Tables;

static size_t top_of(const Piece *p) { return align_up(p->offset + p->bytes); }

/* O(n log n + n * gaps). */
static size_t place_as_they_begin(Piece *piece, int n, const Tables *t)
{
    Gaps gaps = {t->gap, 1};
    size_t peak = 0;
    int ended = 0;
    gaps.gap[0] = (Gap){0, SIZE_MAX};
    sort_pieces(piece, n, BY_LAST, t->sort, t->ends);
    for (int i = 0; i < n; i++) {
        Piece *p = &piece[t->order[i]];
        for (; piece[t->ends[ended]].last < p->first; ended++) {
            const Piece *q = &piece[t->ends[ended]];
            give(&gaps, q->offset, align_up(q->bytes));
        }
        p->offset = take(&gaps, align_up(p->bytes));
        if (top_of(p) > peak) peak = top_of(p);
    }
    return peak;
}

/* The pieces already placed, lowest offset first: copies, so that the search walks over memory. */
typedef struct {
    PlacedPiece *at;
    int n;
} PlacedPieces;

/* The lowest offset at which p overlaps no placed piece that lives at the same time. */
static size_t lowest(const PlacedPieces *done, const Piece *p)
{
    size_t from = 0;
    for (int i = 0; i < done->n; i++) {
        const PlacedPiece *q = &done->at[i];
        if ((p->first > q->last) | (q->first > p->last)) continue; /* one branch */
        if (q->from >= from + p->bytes) break; /* the gap below q is large enough */
        if (q->to > from) from = q->to;
    }
    return from;
}

/* Keeps the list sorted by offset; equal ones in the order of placing. */
static void insert(PlacedPieces *done, const Piece *p)
{
    int low = 0, high = done->n;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (done->at[middle].from > p->offset)
            high = middle;
        else
            low = middle + 1;
    }
    memmove(&done->at[low + 1], &done->at[low], (size_t)(done->n - low) * sizeof *done->at);
    done->at[low] = (PlacedPiece){p->offset, top_of(p), p->first, p->last};
    done->n++;
}

/* O(n^2). */
static size_t place_in_order(Piece *piece, int n, const Tables *t)
{
    PlacedPieces done = {.at = t->placed};
    size_t peak = 0;
    for (int i = 0; i < n; i++) {
        Piece *p = &piece[t->order[i]];
        p->offset = lowest(&done, p);
        insert(&done, p);
        if (top_of(p) > peak) peak = top_of(p);
    }
    return peak;
}

/* Reverses time; applied twice it restores the pieces. */
static void mirror(Piece *piece, int n)
{
    for (int i = 0; i < n; i++) {
        const int32_t first = piece[i].first;
        piece[i].first = -piece[i].last;
        piece[i].last = -first;
    }
}

static size_t place(Piece *piece, int n, Order which, const Tables *t)
{
    const bool slow = which == BY_SIZE || which == BY_LIFE;
    if (slow && n > MAX_SLOW_PIECES) return SIZE_MAX;
    if (which == END_LIFE) mirror(piece, n);
    sort_pieces(piece, n, which, t->sort, t->order);
    const size_t peak = slow ? place_in_order(piece, n, t) : place_as_they_begin(piece, n, t);
    if (which == END_LIFE) mirror(piece, n);
    return peak;
}

/* The maximum of live bytes over all positions: a sweep that adds the bytes of a piece where it
 * begins and subtracts them after it ends. */
static Err lower_bound(const Piece *piece, int n, Arena *temp, size_t *out)
{
    Sort *event;
    int64_t live = 0, most = 0;
    TRY(ARENA_NEW(temp, 2 * n + 1, &event));
    for (int i = 0; i < n; i++) {
        const int64_t bytes = (int64_t)align_up(piece[i].bytes);
        event[2 * i] = (Sort){{2 * (int64_t)piece[i].first, bytes}, 2 * i};
        event[2 * i + 1] = (Sort){{2 * (int64_t)piece[i].last + 1, -bytes}, 2 * i + 1};
    }
    qsort(event, 2 * (size_t)n, sizeof *event, by_key);
    for (int i = 0; i < 2 * n; i++) {
        live += event[i].key[1];
        if (live > most) most = live;
    }
    *out = (size_t)most;
    return OK;
}

Err pack(Piece *piece, int n, Arena *temp, PackResult *out)
{
    Tables t;
    size_t *best, best_peak = SIZE_MAX;
    const size_t mark = arena_mark(temp);
    TRY(ARENA_NEW(temp, n + 1, &t.sort));
    TRY(ARENA_NEW(temp, n + 1, &t.order));
    TRY(ARENA_NEW(temp, n + 1, &t.ends));
    TRY(ARENA_NEW(temp, n + 1, &t.placed));
    TRY(ARENA_NEW(temp, n + 1, &t.gap));
    TRY(ARENA_NEW(temp, n + 1, &best));
    TRY(lower_bound(piece, n, temp, &out->live_bytes));
    for (int which = 0; which < N_ORDERS && best_peak > out->live_bytes; which++) {
        const size_t peak = place(piece, n, (Order)which, &t);
        if (peak >= best_peak) continue;
        best_peak = peak;
        for (int i = 0; i < n; i++) best[i] = piece[i].offset;
    }
    for (int i = 0; i < n; i++) piece[i].offset = best[i];
    out->peak_bytes = best_peak;
    arena_rewind(temp, mark);
    return OK;
}

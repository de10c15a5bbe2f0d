/* packing.c -- interval packing: each piece at the lowest place that is free for its whole life.
 *
 * Orders tried: as they begin (what an allocator would see), the largest first, the longest-lived
 * first. Weights, activations and scratch come in few sizes, so one of the three is mostly optimal;
 * the lower bound says by how much it is not. */
#include "base/packing.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The pieces already placed, lowest offset first. */
typedef struct {
    Piece *piece;
    int *placed, n;
} Placed;

static bool together(const Piece *a, const Piece *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest offset at which piece p meets none that lives with it. */
static size_t lowest(const Placed *done, const Piece *p)
{
    size_t at = 0;
    for (int i = 0; i < done->n; i++) {
        const Piece *q = &done->piece[done->placed[i]];
        if (!together(p, q)) continue;
        if (q->offset >= at + p->bytes) break; /* the gap below q is wide enough */
        const size_t top = align_up(q->offset + q->bytes);
        if (top > at) at = top;
    }
    return at;
}

static void insert(Placed *done, int index)
{
    int i = done->n++;
    const size_t at = done->piece[index].offset;
    for (; i > 0 && done->piece[done->placed[i - 1]].offset > at; i--)
        done->placed[i] = done->placed[i - 1];
    done->placed[i] = index;
}

static size_t place_in_order(Piece *piece, int n, const int *order, int *placed)
{
    Placed done = {.piece = piece, .placed = placed};
    size_t peak = 0;
    for (int i = 0; i < n; i++) {
        Piece *p = &piece[order[i]];
        p->offset = lowest(&done, p);
        insert(&done, order[i]);
        const size_t top = align_up(p->offset + p->bytes);
        if (top > peak) peak = top;
    }
    return peak;
}

typedef struct {
    int64_t key[2];
    int index;
} Sort;

static int by_key(const void *a, const void *b)
{
    const Sort *x = a, *y = b;
    for (int i = 0; i < 2; i++)
        if (x->key[i] != y->key[i]) return x->key[i] < y->key[i] ? -1 : 1;
    return x->index - y->index; /* ties by position: the result is stable */
}

enum { N_ORDERS = 3 };

static void sort_pieces(const Piece *piece, int n, int which, Sort *sort, int *order)
{
    for (int i = 0; i < n; i++) {
        const Piece *p = &piece[i];
        const int64_t size = -(int64_t)p->bytes, life = p->first - p->last;
        sort[i].index = i;
        sort[i].key[0] = which == 0 ? p->first : which == 1 ? size : life;
        sort[i].key[1] = which == 0 ? size : which == 1 ? p->first : size;
    }
    qsort(sort, (size_t)n, sizeof *sort, by_key);
    for (int i = 0; i < n; i++) order[i] = sort[i].index;
}

/* The most that lives at one position: bytes are added where a piece begins, taken where it ended.
 */
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

Err pack(Piece *piece, int n, Arena *temp, Packed *out)
{
    Sort *sort;
    int *order, *placed;
    size_t *best, best_peak = SIZE_MAX;
    const size_t mark = arena_mark(temp);
    TRY(ARENA_NEW(temp, n + 1, &sort));
    TRY(ARENA_NEW(temp, n + 1, &order));
    TRY(ARENA_NEW(temp, n + 1, &placed));
    TRY(ARENA_NEW(temp, n + 1, &best));
    TRY(lower_bound(piece, n, temp, &out->live_bytes));
    for (int which = 0; which < N_ORDERS && best_peak > out->live_bytes; which++) {
        sort_pieces(piece, n, which, sort, order);
        const size_t peak = place_in_order(piece, n, order, placed);
        if (peak >= best_peak) continue;
        best_peak = peak;
        for (int i = 0; i < n; i++) best[i] = piece[i].offset;
    }
    for (int i = 0; i < n; i++) piece[i].offset = best[i];
    out->peak_bytes = n ? best_peak : 0;
    arena_rewind(temp, mark);
    return OK;
}

/* pieces.c -- the part of a rank as boxes.
 *
 * Two steps. A range [from, to) of the row-major elements of `kept` becomes a few boxes of local
 * coordinates: the rest of a row, whole rows, the start of a row (and so on for more dims).
 *
 *     kept [4, 6], range [4, 20):       . . . . A A
 *                                       B B B B B B
 *                                       B B B B B B
 *                                       C C . . . .
 *
 * Then each local box is split where a dim's spans jump, and shifted to global coordinates. */
#include "base/math.h"
#include "layout/holding.h"

typedef struct {
    const Holding *h;
    HeldPiece *out; /* NULL: only count */
    int64_t n;
    int64_t shift; /* storage = row-major index in kept + shift, for this range */
} PieceEmitter;

/* The longest run of the window from local index i on that is contiguous in global coordinates. */
static int64_t held_run(const HeldSpans *h, int64_t i)
{
    const Span s = held_span(h, i);
    return s.step == 1 ? span_count(s) : 1;
}

/* `box` is global in the dims before d, local from d on; its storage begins at `at`. */
static void emit_global(PieceEmitter *sink, Box box, int d, int64_t at)
{
    const Holding *h = sink->h;
    if (d == box.ndim) {
        if (sink->out) sink->out[sink->n] = (HeldPiece){box, at};
        sink->n++;
        return;
    }
    const int64_t hi = box.hi[d];
    HeldCursor cursor = {0, 0};
    for (int64_t i = box.lo[d], run; i < hi; i += run) {
        const Span s = held_span_next(&h->dim[d], i, &cursor);
        run = min_i64(span_count(s), hi - i);
        Box part = box;
        box_set(&part, d, span_first(s, run));
        emit_global(sink, part, d + 1, at + i * h->stride[d]);
    }
}

/* Emits the largest local box that starts at `from` and is a run of whole slices; returns its
 * elements. */
static int64_t emit_slices(PieceEmitter *sink, int64_t from, int64_t to)
{
    const Shape *kept = &sink->h->kept;
    const int64_t *stride = sink->h->stride;
    Box box = {.ndim = kept->ndim};
    int d = 0;
    while (d < kept->ndim - 1 && (from % stride[d] != 0 || from + stride[d] > to)) d++;
    for (int i = 0; i < kept->ndim; i++) {
        const int64_t c = from / stride[i] % kept->n[i];
        box.lo[i] = i <= d ? c : 0;
        box.hi[i] = i < d ? c + 1 : kept->n[i];
    }
    if (kept->ndim == 0) {
        emit_global(sink, box, 0, from + sink->shift);
        return 1;
    }
    const int64_t fit = (to - from) / stride[d];
    if (box.hi[d] - box.lo[d] > fit) box.hi[d] = box.lo[d] + fit;
    /* emit_global adds each dim's index times its stride, which together are `from` */
    emit_global(sink, box, 0, sink->shift);
    return (box.hi[d] - box.lo[d]) * stride[d];
}

static void emit_stretches(PieceEmitter *sink)
{
    const HeldSpans *flat = &sink->h->flat;
    sink->n = 0;
    for (int64_t i = 0, run; i < flat->count; i += run) {
        run = held_run(flat, i);
        const int64_t from = held_at(flat, i);
        sink->shift = i - from;
        for (int64_t done = 0; done < run;) done += emit_slices(sink, from + done, from + run);
    }
}

Err holding_pieces(const Holding *h, Arena *a, const HeldPiece **out, int64_t *n)
{
    PieceEmitter sink = {.h = h};
    HeldPiece *piece;
    emit_stretches(&sink);
    TRY(ARENA_NEW(a, sink.n, &piece));
    sink.out = piece;
    emit_stretches(&sink);
    *out = piece;
    *n = sink.n;
    return OK;
}

/* moves.c -- intersection, clipping and subtraction of boxes. */
#include "layout/moves.h"

#include <string.h>

int64_t box_count(const Box *b)
{
    int64_t count = 1;
    for (int d = 0; d < b->ndim; d++) count *= box_extent(b, d);
    return count;
}

bool box_intersect(const Box *a, const Box *b, Box *out)
{
    Box both = {.ndim = a->ndim};
    for (int d = 0; d < a->ndim; d++) {
        Span s;
        if (!span_intersect(box_span(a, d), box_span(b, d), &s)) return false;
        box_set(&both, d, s);
    }
    if (out) *out = both;
    return true;
}

/* Grows the list to hold one more element of `each` bytes; doubles, so that a list of n costs
 * O(n). */
static Err make_room(Arena *a, void **list, int64_t n, int64_t *cap, size_t each)
{
    void *more;
    if (n < *cap) return OK;
    const int64_t room = *cap ? 2 * *cap : 8;
    TRY(arena_push(a, (size_t)room * each, &more));
    if (n > 0) memcpy(more, *list, (size_t)n * each);
    *list = more;
    *cap = room;
    return OK;
}

Err boxes_push(BoxList *l, const Box *b)
{
    void *list = l->box;
    TRY(make_room(l->arena, &list, l->n, &l->cap, sizeof *b));
    l->box = list;
    l->box[l->n++] = *b;
    return OK;
}

Err moves_push(MoveList *l, const Move *m)
{
    void *list = l->move;
    TRY(make_room(l->arena, &list, l->n, &l->cap, sizeof *m));
    l->move = list;
    l->move[l->n++] = *m;
    return OK;
}

Err moves_reserve(MoveList *l, int64_t room)
{
    MUST(l->n == 0, "room is made before the first of %lld moves", (long long)l->n);
    void *list;
    TRY(arena_push(l->arena, (size_t)room * sizeof *l->move, &list));
    l->move = list;
    l->cap = room;
    return OK;
}

/* Pushes box `a` with another span in dim d, unless that is empty. */
static Err push_span(BoxList *l, Box a, int d, Span s)
{
    const int64_t n = span_count(s);
    if (n <= 0) return OK;
    box_set(&a, d, span_first(s, n));
    return boxes_push(l, &a);
}

/* a minus b, which intersect: per dim the boxes before b and after b, and those between its
 * elements if b has larger steps. The next dim continues with the rest, clipped to b.
 *
 *     a a a a a a       0 0 0 0 0 0
 *     a b b a a a  -->  2 . . 3 3 3
 *     a a a a a a       1 1 1 1 1 1 */
static Err push_less(BoxList *l, Box a, const Box *b)
{
    for (int d = 0; d < a.ndim; d++) {
        const Span s = box_span(&a, d);
        Span both;
        MUST(span_intersect(s, box_span(b, d), &both), "dim %d: the boxes do not meet", d);
        TRY(push_span(l, a, d, (Span){s.lo, both.lo, s.step}));
        TRY(push_span(l, a, d, (Span){both.hi - 1 + s.step, s.hi, s.step}));
        for (int64_t lo = both.lo + s.step; lo < both.lo + both.step; lo += s.step)
            TRY(push_span(l, a, d, (Span){lo, both.hi, both.step}));
        box_set(&a, d, both);
    }
    return OK;
}

Err boxes_remove(BoxList *l, const Box *b)
{
    for (int64_t i = 0; i < l->n;) {
        if (!box_intersect(&l->box[i], b, NULL)) {
            i++;
            continue;
        }
        const Box gone = l->box[i];
        l->box[i] = l->box[--l->n]; /* pushed boxes do not intersect b, so they are skipped */
        TRY(push_less(l, gone, b));
    }
    return OK;
}

/* The storage of box `inner`, given that of `outer`, which contains it. */
static int64_t narrow_storage(const Box *outer, const Box *inner, int64_t at,
                              const int64_t outer_stride[MAX_DIMS], int64_t stride[MAX_DIMS])
{
    for (int d = 0; d < outer->ndim; d++) {
        const int64_t step = outer->skip[d] + 1;
        at += (inner->lo[d] - outer->lo[d]) / step * outer_stride[d];
        stride[d] = (inner->skip[d] + 1 + step - 1) / step * outer_stride[d];
    }
    return at;
}

Move move_within(const Move *m, const Box *box)
{
    Move part = *m;
    MUST(box_intersect(&m->box, box, &part.box), "a move of rank %d does not meet the box",
         m->from);
    part.from_at = narrow_storage(&m->box, &part.box, m->from_at, m->from_stride, part.from_stride);
    part.to_at = narrow_storage(&m->box, &part.box, m->to_at, m->to_stride, part.to_stride);
    return part;
}

Err moves_between(const StoredPieces *from, const StoredPieces *to, bool add, MoveList *out)
{
    Move m = {.from = from->rank, .to = to->rank, .add = add};
    for (int64_t i = 0; i < to->n; i++) {
        const HeldPiece *t = &to->piece[i];
        for (int64_t j = 0; j < from->n; j++) {
            const HeldPiece *f = &from->piece[j];
            if (!box_intersect(&f->box, &t->box, &m.box)) continue;
            m.from_at = narrow_storage(&f->box, &m.box, f->at, from->holding.stride, m.from_stride);
            m.to_at = narrow_storage(&t->box, &m.box, t->at, to->holding.stride, m.to_stride);
            TRY(moves_push(out, &m));
        }
    }
    return OK;
}

/* True if the box, walked row by row, is one contiguous run of storage. */
static bool is_dense(const Box *b, const int64_t *stride)
{
    int64_t each = 1;
    for (int d = b->ndim - 1; d >= 0; d--) {
        const int64_t n = box_extent(b, d);
        if (n > 1 && stride[d] != each) return false;
        each *= n;
    }
    return true;
}

bool moves_read_in_order(const Move *move, int64_t n)
{
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        if (move[i].from_at != at || !is_dense(&move[i].box, move[i].from_stride)) return false;
        at += box_count(&move[i].box);
    }
    return true;
}

bool moves_write_in_order(const Move *move, int64_t n)
{
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        if (move[i].to_at != at || !is_dense(&move[i].box, move[i].to_stride)) return false;
        at += box_count(&move[i].box);
    }
    return true;
}

/* moves.c -- intersection, clipping and subtraction of boxes. */
#include "layout/moves.h"

#include <string.h>

int64_t box_count(const Box *b)
{
    int64_t count = 1;
    for (int d = 0; d < b->ndim; d++) count *= b->hi[d] - b->lo[d];
    return count;
}

bool box_intersect(const Box *a, const Box *b, Box *out)
{
    Box both = {.ndim = a->ndim};
    for (int d = 0; d < a->ndim; d++) {
        both.lo[d] = a->lo[d] > b->lo[d] ? a->lo[d] : b->lo[d];
        both.hi[d] = a->hi[d] < b->hi[d] ? a->hi[d] : b->hi[d];
        if (both.lo[d] >= both.hi[d]) return false;
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

/* a minus b, as at most two boxes per dim: before b and after b. The next dim continues with the
 * rest, clipped to b.
 *
 *     a a a a a a       0 0 0 0 0 0
 *     a b b a a a  -->  2 . . 3 3 3
 *     a a a a a a       1 1 1 1 1 1 */
static Err push_less(BoxList *l, Box a, const Box *b)
{
    for (int d = 0; d < a.ndim; d++) {
        Box before = a, after = a;
        before.hi[d] = b->lo[d];
        after.lo[d] = b->hi[d];
        if (before.lo[d] < before.hi[d]) TRY(boxes_push(l, &before));
        if (after.lo[d] < after.hi[d]) TRY(boxes_push(l, &after));
        if (a.lo[d] < b->lo[d]) a.lo[d] = b->lo[d];
        if (a.hi[d] > b->hi[d]) a.hi[d] = b->hi[d];
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

static int64_t offset_of(const int64_t *stride, const Box *outer, const Box *inner)
{
    int64_t at = 0;
    for (int d = 0; d < outer->ndim; d++) at += (inner->lo[d] - outer->lo[d]) * stride[d];
    return at;
}

Move move_within(const Move *m, const Box *box)
{
    Move part = *m;
    MUST(box_intersect(&m->box, box, &part.box), "a move of rank %d does not meet the box",
         m->from);
    part.from_at += offset_of(m->from_stride, &m->box, &part.box);
    part.to_at += offset_of(m->to_stride, &m->box, &part.box);
    return part;
}

Err moves_between(const StoredPieces *from, const StoredPieces *to, bool add, MoveList *out)
{
    Move m = {.from = from->rank, .to = to->rank, .add = add};
    memcpy(m.from_stride, from->holding.stride, sizeof m.from_stride);
    memcpy(m.to_stride, to->holding.stride, sizeof m.to_stride);
    for (int64_t i = 0; i < to->n; i++) {
        const HeldPiece *t = &to->piece[i];
        for (int64_t j = 0; j < from->n; j++) {
            const HeldPiece *f = &from->piece[j];
            if (!box_intersect(&f->box, &t->box, &m.box)) continue;
            m.from_at = f->at + offset_of(m.from_stride, &f->box, &m.box);
            m.to_at = t->at + offset_of(m.to_stride, &t->box, &m.box);
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
        const int64_t n = b->hi[d] - b->lo[d];
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

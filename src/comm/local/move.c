/* move.c -- the work of a transfer, in tasks that any member may run; p members.
 *
 *     all-reduce       task u: elements of piece u, folded from all, written to all
 *     reduce-scatter   task u: piece u / p of the part of member u mod p, folded, written to it
 *     all-gather       task u: piece u / p of the part of member u mod p, written to all
 *     all-to-all       task u: the part from member u / p to member u mod p, whole
 *     broadcast, send  task u: piece u of the root's array, written to all others
 *
 * A piece is folded block by block on the stack and then written. So an in-place all-reduce reads
 * each element before it is overwritten; no other task reads that piece at all. */
#include "comm/local/local_parts.h"

#include <string.h>
#include "base/math.h"
#include "comm/fold.h"

/* Pieces of a large array are long enough that a claim costs little, and short enough that members
 * finish together. A small array has at least one piece per member. */
enum { MIN_PIECE_BYTES = 2048, MAX_PIECE_BYTES = 256 * 1024 };

static const LocalPost *my_post(const Comm *c, int slot)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    return &entry_of(f, c->pending[slot].sequence)->post[f->member->place];
}

static int64_t largest_part(const Transfer *t, int n)
{
    const bool scatter = t->kind == COMM_REDUCE_SCATTER;
    const int64_t *counts = scatter ? t->from_counts : t->to_counts;
    const int64_t total = scatter ? t->from.count : t->to.count;
    int64_t most = total / n;
    for (int i = 0; counts && i < n; i++) most = counts[i] > most ? counts[i] : most;
    return most;
}

/* Every member computes the same split, from the signature and the counts that all agree on. */
void move_split(Comm *c, int slot)
{
    LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    const LocalPost *mine = my_post(c, slot);
    const int n = f->member->channel->n;
    if (f->device) {
        f->tasks = n;
        return;
    }
    if (t->kind == COMM_ALL_TO_ALL) {
        f->tasks = (int64_t)n * n;
        return;
    }
    const bool parts = t->kind == COMM_ALL_GATHER || t->kind == COMM_REDUCE_SCATTER;
    const int64_t whole = parts ? largest_part(t, n) : mine->signature.count;
    const int64_t each = (int64_t)dtype_bytes((DType)mine->signature.dtype), bytes = whole * each;
    int64_t piece = parts ? bytes / 2 : bytes / n;
    if (piece > MAX_PIECE_BYTES) piece = MAX_PIECE_BYTES;
    if (piece < MIN_PIECE_BYTES) piece = MIN_PIECE_BYTES;
    f->task_elements = (piece + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN / each;
    f->tasks = (whole + f->task_elements - 1) / f->task_elements * (parts ? n : 1);
}

Err move_mismatch(const Comm *c, int slot, int place, const char *what)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    const PendingTransfer *p = &c->pending[slot];
    const Channel *ch = f->member->channel;
    const LocalPost *post = entry_of(f, p->sequence)->post;
    return signature_mismatch(p, what, (MemberSignature){ch->member[0], &post[0].signature},
                              (MemberSignature){ch->member[place], &post[place].signature});
}

static bool overlap(const LocalPost *send, const LocalPost *recv)
{
    const size_t bytes = (size_t)send->signature.count * dtype_bytes((DType)send->signature.dtype);
    const uintptr_t from = (uintptr_t)send->from, to = (uintptr_t)recv->to;
    return from < to + bytes && to < from + bytes;
}

/* Every member compares with the first one, so all find the same difference. */
const char *move_differs(const Comm *c, int slot, int *place)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    const Channel *ch = f->member->channel;
    const LocalPost *post = entry_of(f, c->pending[slot].sequence)->post;
    const char *what = NULL;
    for (*place = 1; *place < ch->n; ++*place)
        if ((what = signature_first_difference(&post[0].signature, &post[*place].signature)) !=
                NULL ||
            (what = post[0].device != post[*place].device ? "memory, a device's or the host's"
                                                          : NULL) != NULL)
            return what;
    *place = 1;
    return ch->from >= 0 && ch->from == ch->to && overlap(&post[0], &post[1])
               ? "memory, which overlaps"
               : NULL;
}

static void copy(char *to, const char *from, size_t bytes)
{
    if (to && to != from && bytes > 0) memcpy(to, from, bytes);
}

/* Folds elements start .. start + count - 1 of all members, and writes them to the `to` of member
 * `only` at element to_start; -1: of all members. */
static void fold_piece(Comm *c, int slot, int64_t start, int64_t count, int only, int64_t to_start)
{
    LocalComm *l = c->state;
    const LocalFlight *f = &l->flight[slot];
    const LocalPost *post = entry_of(f, c->pending[slot].sequence)->post;
    const int n = f->member->channel->n;
    const size_t each = dtype_bytes((DType)post->signature.dtype);
    _Alignas(ARENA_ALIGN) char block[MAX_FOLD_ELEMENTS * sizeof(double)];
    if (count == 0) return;
    if (n == 1) {
        copy(post->to + (size_t)to_start * each, post->from + (size_t)start * each,
             (size_t)count * each);
        return;
    }
    for (int i = 0; i < n; i++) l->source[i] = post[i].from;
    const Fold of = {(DType)post->signature.dtype, (Reduce)post->signature.reduce, n, l->source};
    for (int64_t at = 0; at < count; at += MAX_FOLD_ELEMENTS) {
        const int64_t some = min_i64(MAX_FOLD_ELEMENTS, count - at);
        const size_t to = (size_t)(to_start + at) * each;
        fold(&of, start + at, some, block);
        for (int i = only < 0 ? 0 : only; i < (only < 0 ? n : only + 1); i++)
            memcpy(post[i].to + to, block, (size_t)some * each);
    }
}

static void scatter_piece(Comm *c, int slot, int64_t task)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    const int n = f->member->channel->n, place = (int)(task % n);
    const int64_t at = task / n * f->task_elements;
    const int64_t count = part_count(t->from_counts, t->from.count, n, place) - at;
    const int64_t start = part_start(t->from_counts, t->from.count, n, place) + at;
    if (count > 0) fold_piece(c, slot, start, min_i64(f->task_elements, count), place, at);
}

static void gather_piece(Comm *c, int slot, int64_t task)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    const LocalPost *post = entry_of(f, c->pending[slot].sequence)->post;
    const int n = f->member->channel->n, place = (int)(task % n);
    const int64_t at = task / n * f->task_elements;
    const int64_t count = part_count(t->to_counts, t->to.count, n, place) - at;
    const int64_t start = part_start(t->to_counts, t->to.count, n, place) + at;
    const size_t each = dtype_bytes(t->to.dtype);
    if (count <= 0) return;
    for (int i = 0; i < n; i++)
        copy(post[i].to + (size_t)start * each, post[place].from + (size_t)at * each,
             (size_t)min_i64(f->task_elements, count) * each);
}

/* The two members of a part compare their counts here: the signature does not contain them. */
static Err exchange(Comm *c, int slot, int64_t task)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    const Channel *ch = f->member->channel;
    const int n = ch->n, i = (int)(task / n), j = (int)(task % n);
    const LocalPost *post = entry_of(f, c->pending[slot].sequence)->post;
    const LocalPost *from = &post[i], *to = &post[j];
    const int64_t gives = part_count(from->from_counts, from->from_count, n, j);
    const int64_t takes = part_count(to->to_counts, to->to_count, n, i);
    const size_t each = dtype_bytes((DType)from->signature.dtype);
    char name[TRANSFER_NAME_BYTES];
    if (gives == 0 && takes == 0) return OK;
    if (gives != takes)
        return err_fail(ERR_CHECK,
                        "local: %s: rank %d gives %lld elements to rank %d, which takes %lld",
                        transfer_name(&c->pending[slot].t, c->pending[slot].sequence, name),
                        ch->member[i], (long long)gives, ch->member[j], (long long)takes);
    copy(to->to + (size_t)part_start(to->to_counts, to->to_count, n, i) * each,
         from->from + (size_t)part_start(from->from_counts, from->from_count, n, j) * each,
         (size_t)gives * each);
    return OK;
}

static void spread_piece(Comm *c, int slot, int64_t start, int64_t count)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    const Channel *ch = f->member->channel;
    const LocalPost *post = entry_of(f, c->pending[slot].sequence)->post;
    const size_t each = dtype_bytes((DType)post->signature.dtype), at = (size_t)start * each;
    const char *from = ch->from >= 0 ? post[0].from : NULL; /* the sender is member 0 */
    for (int i = 0; !from && i < ch->n; i++)
        if (ch->member[i] == post->signature.root) from = post[i].from;
    for (int i = 0; i < ch->n; i++)
        if (post[i].to) copy(post[i].to + at, from + at, (size_t)count * each);
}

void move_eager(Comm *c, int slot)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    const Transfer *t = &c->pending[slot].t;
    const LocalPost *post = entry_of(f, c->pending[slot].sequence)->post;
    const int n = f->member->channel->n, me = f->member->place;
    const size_t each = dtype_bytes((DType)post->signature.dtype);
    char *to = post[me].to;
    if (t->kind == COMM_ALL_REDUCE)
        fold_piece(c, slot, 0, post->signature.count, me, 0);
    else if (t->kind == COMM_REDUCE_SCATTER)
        fold_piece(c, slot, part_start(t->from_counts, t->from.count, n, me), t->to.count, me, 0);
    else if (t->kind == COMM_BROADCAST)
        copy(to, post[group_index(t->group, post->signature.root)].from, ref_bytes(&t->to));
    else
        for (int i = 0; i < n; i++) {
            const size_t bytes = (size_t)part_count(t->to_counts, t->to.count, n, i) * each;
            if (bytes > 0)
                copy(to + (size_t)part_start(t->to_counts, t->to.count, n, i) * each, post[i].from,
                     bytes);
        }
}

Err move_task(Comm *c, int slot, int64_t task)
{
    const LocalFlight *f = &((LocalComm *)c->state)->flight[slot];
    const int64_t start = task * f->task_elements;
    const int64_t count = min_i64(f->task_elements, my_post(c, slot)->signature.count - start);
    switch (c->pending[slot].t.kind) {
    case COMM_ALL_REDUCE:
        fold_piece(c, slot, start, count, -1, start);
        break;
    case COMM_REDUCE_SCATTER:
        scatter_piece(c, slot, task);
        break;
    case COMM_ALL_GATHER:
        gather_piece(c, slot, task);
        break;
    case COMM_ALL_TO_ALL:
        return exchange(c, slot, task);
    default:
        spread_piece(c, slot, start, count);
        break;
    }
    return OK;
}

/* backward.c -- the backward plan of any forward plan: the same visits, other payloads.
 *
 *     forward   kv  travels                  backward   kv travels again, dkv follows it home
 *               q   travels                             q travels again, with do, lse and delta
 *               o   returns to its owner                dq returns the same way
 *
 * A rank sends dkv of a block on after its visit. It goes to the rank to which this rank sent the
 * keys, so it travels one visit behind them; from the last one it goes back to the rank from which
 * this ring of keys started. Keys that a bulk move brought start a new inner ring there; when that
 * is closed, dkv follows the bulk moves in the same way, until it is at home.
 *
 * The visit of the block that starts a ring comes last in its round: nothing arrives for it until
 * then, and it hides the last hop. Therefore dkv makes as many hops as the keys. In a ring of 3
 * ranks:
 *
 *     rank 0 | kv0>1,kv2<2 kv2>1,kv1<2 0x2 dkv2>1,dkv1<2 0x1 dkv1>1,dkv0<2 0x0
 *     rank 1 | kv1>2,kv0<0 kv0>2,kv2<0 1x0 dkv0>2,dkv2<0 1x2 dkv2>2,dkv1<0 1x1
 *     rank 2 | kv2>0,kv1<1 kv1>0,kv0<1 2x1 dkv1>0,dkv0<1 2x0 dkv0>0,dkv2<1 2x2
 */
#include "compile/context/plan.h"

typedef struct {
    const ContextPlan *f;
    int ranks;
    bool keys_move;
    int16_t *next;  /* [rank][block]: receiver of dkv of the block after this rank's visit; -1 */
    int16_t *entry; /* [rank][block]: the rank at which the ring that brought the keys starts */
} BackwardBuilder;

static int16_t *cell(const BackwardBuilder *b, int16_t *table, int rank, int block)
{
    return &table[(int64_t)rank * b->ranks + block];
}

/* The rank to which `rank` sends the keys of `block` in a move of this kind; -1: to none. A rank
 * that sends them to several starts rings of one hop. */
static int keys_go_to(const ContextPlan *f, int rank, int block, bool bulk)
{
    for (int i = 0; i < f->n[rank]; i++) {
        const ContextStep *s = &f->list[rank][i];
        if (s->kind == CONTEXT_MOVE && s->payload == PAYLOAD_KV && s->bulk == bulk && s->to >= 0 &&
            s->out.rank == block)
            return s->to;
    }
    return -1;
}

/* Follows the keys of `block` from `rank`, where a ring of them starts. */
static void follow_ring(BackwardBuilder *b, int rank, int block)
{
    for (int i = 0; i < b->f->n[rank]; i++) {
        const ContextStep *s = &b->f->list[rank][i];
        if (s->kind != CONTEXT_MOVE || s->payload != PAYLOAD_KV || s->to < 0 || s->bulk ||
            s->out.rank != block)
            continue;
        for (int at = s->to; at >= 0 && at != rank;) {
            const int to = keys_go_to(b->f, at, block, false);
            *cell(b, b->entry, at, block) = (int16_t)rank;
            *cell(b, b->next, at, block) = (int16_t)(to >= 0 ? to : rank);
            at = to;
        }
    }
}

static void follow_keys(BackwardBuilder *b, int block)
{
    int at = block;
    for (int round = 0; round < b->ranks && at >= 0; round++) {
        const int to = keys_go_to(b->f, at, block, true);
        *cell(b, b->entry, at, block) = (int16_t)at;
        *cell(b, b->next, at, block) = (int16_t)(at == block ? -1 : to >= 0 ? to : block);
        follow_ring(b, at, block);
        at = to;
    }
}

/* The visits of a rank in backward order: in each round, the one that starts its ring is last.
 * Returns their number. */
static int order_visits(const BackwardBuilder *b, int rank, int *order)
{
    int n = 0, late = -1;
    for (int i = 0; i < b->f->n[rank]; i++) {
        const ContextStep *s = &b->f->list[rank][i];
        if (s->kind != CONTEXT_VISIT) continue;
        const bool starts =
            b->keys_move && s->q.rank == rank && *cell(b, b->entry, rank, s->k.rank) == rank;
        if (starts && late >= 0) order[n++] = late;
        if (starts)
            late = i;
        else
            order[n++] = i;
    }
    if (late >= 0) order[n++] = late;
    return n;
}

/* The block whose dkv leaves `rank` after its v-th visit; -1: none. */
static int block_leaving(const BackwardBuilder *b, int rank, const int *order, int n, int v)
{
    if (v >= n || !b->keys_move) return -1;
    const ContextStep *s = &b->f->list[rank][order[v]];
    return *cell(b, b->next, rank, s->k.rank) >= 0 ? s->k.rank : -1;
}

/* The moves of dkv after the v-th visit of all ranks, as `rank` lists them: the block that it
 * sends, and those that others send it, the first of them in the same move. Returns their
 * number. */
static int add_dkv(const BackwardBuilder *b, int rank, int *const *order, const int *n, int v,
                   ContextStep *out)
{
    const int block = block_leaving(b, rank, order[rank], n[rank], v);
    int moves = 0;
    if (block >= 0) {
        const int to = *cell(b, b->next, rank, block);
        out[moves] = step_move(PAYLOAD_DKV, block_whole(block), to, block_none(), -1);
        out[moves++].bulk = *cell(b, b->entry, rank, block) == rank;
    }
    for (int other = 0, came = 0; other < b->ranks; other++) {
        const int comes = block_leaving(b, other, order[other], n[other], v);
        if (comes < 0 || *cell(b, b->next, other, comes) != rank) continue;
        if (came++ > 0 || moves == 0)
            out[moves++] = step_move(PAYLOAD_DKV, block_none(), -1, block_none(), -1);
        out[moves - 1].in = block_whole(comes);
        out[moves - 1].from = (int16_t)other;
    }
    return moves;
}

/* A forward move, with the payload that it has backward. */
static ContextStep backward_move(ContextStep s)
{
    if (s.payload == PAYLOAD_O) s.payload = PAYLOAD_DQ;
    return s;
}

/* Moves keep their place before the visit that follows them, visits are in backward order, and dkv
 * leaves after them. */
static int write_list(const BackwardBuilder *b, int rank, int *const *order, const int *n_visits,
                      int most, ContextStep *out)
{
    const ContextStep *f = b->f->list[rank];
    int n = 0, done = 0; /* forward steps before `done` are written, if they are moves */
    for (int v = 0; v < most; v++) {
        const int visit = v < n_visits[rank] ? order[rank][v] : b->f->n[rank];
        for (; done < visit; done++)
            if (f[done].kind == CONTEXT_MOVE) out[n++] = backward_move(f[done]);
        if (v < n_visits[rank]) out[n++] = f[visit];
        n += add_dkv(b, rank, order, n_visits, v, &out[n]);
    }
    for (; done < b->f->n[rank]; done++)
        if (f[done].kind == CONTEXT_MOVE) out[n++] = backward_move(f[done]);
    return n;
}

static Err builder_init(BackwardBuilder *b, const ContextPlan *f, Arena *arena)
{
    const int P = f->shape.ranks;
    *b = (BackwardBuilder){.f = f, .ranks = P};
    TRY(ARENA_NEW(arena, (int64_t)P * P, &b->next));
    TRY(ARENA_NEW(arena, (int64_t)P * P, &b->entry));
    for (int64_t i = 0; i < (int64_t)P * P; i++) b->next[i] = b->entry[i] = -1;
    for (int block = 0; block < P; block++) {
        b->keys_move = b->keys_move || keys_go_to(f, block, block, false) >= 0 ||
                       keys_go_to(f, block, block, true) >= 0;
        follow_keys(b, block);
    }
    return OK;
}

Err context_backward(const ContextPlan *forward, Arena *arena, ContextPlan *out)
{
    const int P = forward->shape.ranks;
    ContextPlan p = {.row = forward->row, .shape = forward->shape, .backward = true};
    BackwardBuilder b;
    int **order, *n_visits, most = 0;
    TRY(builder_init(&b, forward, arena));
    TRY(ARENA_NEW(arena, P, &p.n));
    TRY(ARENA_NEW(arena, P, &p.list));
    TRY(ARENA_NEW(arena, P, &order));
    TRY(ARENA_NEW(arena, P, &n_visits));
    for (int rank = 0; rank < P; rank++) {
        TRY(ARENA_NEW(arena, MAX_CONTEXT_STEPS(P), &order[rank]));
        n_visits[rank] = order_visits(&b, rank, order[rank]);
        most = n_visits[rank] > most ? n_visits[rank] : most;
    }
    for (int rank = 0; rank < P; rank++) {
        TRY(ARENA_NEW(arena, 2 * MAX_CONTEXT_STEPS(P), &p.list[rank]));
        p.n[rank] = write_list(&b, rank, order, n_visits, most, p.list[rank]);
    }
    *out = p;
    return OK;
}

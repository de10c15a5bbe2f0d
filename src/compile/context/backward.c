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
#include "compile/context/passes.h"

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

/* The visits of a rank in backward order: the one that starts a ring comes last of its ring.
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

/* A forward move, with the payload that it has backward. */
static ContextStep backward_move(ContextStep s)
{
    if (s.payload == PAYLOAD_O) s.payload = PAYLOAD_DQ;
    return s;
}

/* The forward moves and visits of a rank: moves keep their place before the visit that follows
 * them, visits are in backward order. */
static Err list_visits(const BackwardBuilder *b, int rank, Arena *arena, ContextStep **out)
{
    const ContextStep *f = b->f->list[rank];
    int *order, n = 0, done = 0; /* forward steps before `done` are listed, if they are moves */
    TRY(ARENA_NEW(arena, b->f->n[rank] + 1, &order));
    TRY(ARENA_NEW(arena, b->f->n[rank] + 1, out));
    const int visits = order_visits(b, rank, order);
    for (int v = 0; v < visits; v++) {
        for (; done < order[v]; done++)
            if (f[done].kind == CONTEXT_MOVE) (*out)[n++] = backward_move(f[done]);
        (*out)[n++] = f[order[v]];
    }
    for (; done < b->f->n[rank]; done++)
        if (f[done].kind == CONTEXT_MOVE) (*out)[n++] = backward_move(f[done]);
    return OK;
}

/* The block whose dkv leaves the rank after this visit; -1: none. */
static int block_leaving(const BackwardBuilder *b, int rank, const ContextStep *visit)
{
    return b->keys_move && *cell(b, b->next, rank, visit->k.rank) >= 0 ? visit->k.rank : -1;
}

/* Ranks in step: in each round they begin moves, as far as their peers do, then those that have
 * come to a visit visit, then dkv of these visits leaves. */
typedef struct {
    const BackwardBuilder *b;
    ContextStep **list; /* [rank]: without dkv */
    ContextPlan *out;
    int *at, *end; /* [rank]: its next step in `list`, and that after its moves of a round */
    int *sends, *receives; /* [from][to]: in the moves of a round */
    int *leaving;          /* [rank]: block whose dkv leaves in this round; -1 */
} RoundBuilder;

static void push_step(RoundBuilder *w, int rank, ContextStep s)
{
    w->out->list[rank][w->out->n[rank]++] = s;
}

static bool is_next(const RoundBuilder *w, int rank, int at, ContextStepKind kind)
{
    return at < w->b->f->n[rank] && w->list[rank][at].kind == kind;
}

static void count_move(RoundBuilder *w, int rank, const ContextStep *s)
{
    if (s->to >= 0) w->sends[rank * w->b->ranks + s->to]++;
    if (s->from >= 0) w->receives[s->from * w->b->ranks + rank]++;
}

/* Ends the moves of a rank before the first whose peer does not take part. False: none is. */
static bool cut_moves(RoundBuilder *w, int rank, int *sent, int *received)
{
    const int P = w->b->ranks;
    for (int i = 0; i < P; i++) sent[i] = received[i] = 0;
    for (int i = w->at[rank]; i < w->end[rank]; i++) {
        const ContextStep *s = &w->list[rank][i];
        const bool sends = s->to < 0 || ++sent[s->to] <= w->receives[rank * P + s->to];
        const bool receives = s->from < 0 || ++received[s->from] <= w->sends[s->from * P + rank];
        if (sends && receives) continue;
        w->end[rank] = i;
        return true;
    }
    return false;
}

/* Begins the moves before the next visits, of each rank as many as have their other half among
 * them. */
static Err begin_moves(RoundBuilder *w, Arena *temp, bool *more)
{
    const int P = w->b->ranks;
    const size_t mark = arena_mark(temp);
    int *sent, *received;
    TRY(ARENA_NEW(temp, P, &sent));
    TRY(ARENA_NEW(temp, P, &received));
    for (int rank = 0; rank < P; rank++) {
        w->end[rank] = w->at[rank];
        while (is_next(w, rank, w->end[rank], CONTEXT_MOVE)) w->end[rank]++;
    }
    for (bool cut = true; cut;) {
        cut = false;
        for (int i = 0; i < P * P; i++) w->sends[i] = w->receives[i] = 0;
        for (int rank = 0; rank < P; rank++)
            for (int i = w->at[rank]; i < w->end[rank]; i++) count_move(w, rank, &w->list[rank][i]);
        for (int rank = 0; rank < P; rank++) cut = cut_moves(w, rank, sent, received) || cut;
    }
    for (int rank = 0; rank < P; rank++) *more = *more || w->at[rank] < w->end[rank];
    for (int rank = 0; rank < P; rank++)
        while (w->at[rank] < w->end[rank]) push_step(w, rank, w->list[rank][w->at[rank]++]);
    arena_rewind(temp, mark);
    return OK;
}

/* The moves of dkv after the visits of a round, as `rank` lists them: the block that it sends, and
 * those that others send it, the first of them in the same move. */
static void add_dkv(RoundBuilder *w, int rank)
{
    const BackwardBuilder *b = w->b;
    const int block = w->leaving[rank];
    ContextStep move = step_move(PAYLOAD_DKV, block_none(), -1, block_none(), -1);
    if (block >= 0) {
        move.out = block_whole(block);
        move.to = *cell(b, b->next, rank, block);
        move.bulk = *cell(b, b->entry, rank, block) == rank;
    }
    for (int other = 0; other < b->ranks; other++) {
        const int comes = w->leaving[other];
        if (comes < 0 || *cell(b, b->next, other, comes) != rank) continue;
        if (move.from >= 0) { /* a move receives one block */
            push_step(w, rank, move);
            move = step_move(PAYLOAD_DKV, block_none(), -1, block_none(), -1);
        }
        move.in = block_whole(comes);
        move.from = (int16_t)other;
    }
    if (move.to >= 0 || move.from >= 0) push_step(w, rank, move);
}

/* *more: some rank went on. */
static Err run_round(RoundBuilder *w, Arena *temp, bool *more)
{
    const int P = w->b->ranks;
    *more = false;
    TRY(begin_moves(w, temp, more));
    for (int rank = 0; rank < P; rank++) {
        w->leaving[rank] = -1;
        if (!is_next(w, rank, w->at[rank], CONTEXT_VISIT)) continue;
        const ContextStep *visit = &w->list[rank][w->at[rank]++];
        push_step(w, rank, *visit);
        w->leaving[rank] = block_leaving(w->b, rank, visit);
        *more = true;
    }
    for (int rank = 0; rank < P; rank++) add_dkv(w, rank);
    return OK;
}

/* Steps that no round has come to: halves of moves that do not meet. The checker names them. */
static void add_rest(RoundBuilder *w)
{
    for (int rank = 0; rank < w->b->ranks; rank++)
        while (w->at[rank] < w->b->f->n[rank]) push_step(w, rank, w->list[rank][w->at[rank]++]);
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

/* Room for a rank's list: its forward steps, its sends of dkv, and those that come to it. */
static Err open_list(const BackwardBuilder *b, int rank, Arena *arena, ContextStep **out)
{
    int most = b->f->n[rank];
    for (int other = 0; other < b->ranks; other++)
        for (int i = 0; i < b->f->n[other]; i++) {
            const ContextStep *s = &b->f->list[other][i];
            const int block = s->kind == CONTEXT_VISIT ? block_leaving(b, other, s) : -1;
            most += block >= 0 && (other == rank || *cell(b, b->next, other, block) == rank);
        }
    return ARENA_NEW(arena, most + 1, out);
}

Err context_backward_pass(const ContextPlan *forward, Arena *arena, ContextPlan *out)
{
    const int P = forward->shape.ranks;
    ContextPlan p = {.row = forward->row, .shape = forward->shape, .backward = true};
    BackwardBuilder b;
    RoundBuilder w = {.b = &b, .out = &p};
    TRY(builder_init(&b, forward, arena));
    TRY(ARENA_NEW(arena, P, &p.n));
    TRY(ARENA_NEW(arena, P, &p.list));
    TRY(ARENA_NEW(arena, P, &w.list));
    TRY(ARENA_NEW(arena, P, &w.at));
    TRY(ARENA_NEW(arena, P, &w.end));
    TRY(ARENA_NEW(arena, P, &w.leaving));
    TRY(ARENA_NEW(arena, (int64_t)P * P, &w.sends));
    TRY(ARENA_NEW(arena, (int64_t)P * P, &w.receives));
    for (int rank = 0; rank < P; rank++) {
        TRY(list_visits(&b, rank, arena, &w.list[rank]));
        TRY(open_list(&b, rank, arena, &p.list[rank]));
    }
    for (bool more = true; more;) TRY(run_round(&w, arena, &more));
    add_rest(&w);
    *out = p;
    return OK;
}

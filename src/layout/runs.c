/* runs.c -- the moves that a rank receives from each sender, and sends to each receiver.
 *
 *     senders of a rank --> in order --> their moves, a run each --> runs in the order of the fold
 *
 * Without copies a run is the intersection of sender and receiver, so a sender needs only the two
 * holdings. With copies the nearest sender comes first and the others send the remainder, so a
 * sender has to compute all that its receiver receives. */
#include "layout/runs.h"

#include <stdlib.h>

/* Orders copies: by summand, the nearest first. by_fold orders summands and peers. */
static int by_distance(const void *a, const void *b)
{
    const Run *x = a, *y = b;
    if (x->summand != y->summand) return x->summand < y->summand ? -1 : 1;
    if (x->distance != y->distance) return x->distance < y->distance ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static int by_fold(const void *a, const void *b)
{
    const Run *x = a, *y = b;
    if (x->summand != y->summand) return x->summand < y->summand ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

Err stored_at(const Reshard *r, const Sharding *p, int rank, Arena *a, StoredPieces *out)
{
    StoredPieces s = {.rank = rank, .holding = holding_of(&p->layout, p->mesh, &r->shape, rank)};
    TRY(holding_pieces(&s.holding, a, &s.piece, &s.n));
    *out = s;
    return OK;
}

static Err runs_of(const Reshard *r, RankList ranks, int target, Arena *a, Run **out)
{
    Run *run;
    TRY(ARENA_NEW(a, ranks.n, &run));
    for (int i = 0; i < ranks.n; i++) {
        run[i].rank = ranks.rank[i];
        run[i].summand = peers_summand(r, ranks.rank[i]);
        run[i].distance = abs(ranks.rank[i] - target);
    }
    const bool prefer = r->has_copies && !r->from.sum_copies;
    if (ranks.n > 0) qsort(run, (size_t)ranks.n, sizeof *run, prefer ? by_distance : by_fold);
    *out = run;
    return OK;
}

static void run_close(Run *run, const MoveList *moves)
{
    run->n = moves->n - run->first;
    run->count = 0;
    for (int64_t i = 0; i < run->n; i++) run->count += box_count(&moves->move[run->first + i].box);
}

/* Pushes the parts of the move inside `left`, and removes them from it. The other parts are
 * summands of elements that have arrived already, or copies that are not needed. */
static Err push_remaining(const Reshard *r, const Move *m, BoxList *left, Arena *temp,
                          MoveList *out)
{
    BoxList there = {.arena = temp};
    TRY(boxes_push(&there, &m->box));
    for (int64_t i = 0; i < left->n; i++) {
        if (!box_intersect(&left->box[i], &m->box, NULL)) continue;
        const Move part = move_within(m, &left->box[i]);
        TRY(moves_push(out, &part));
        TRY(boxes_remove(&there, &left->box[i]));
    }
    for (int64_t i = 0; r->from.sum_copies && i < there.n; i++) {
        Move part = move_within(m, &there.box[i]);
        part.add = true;
        TRY(moves_push(out, &part));
    }
    return boxes_remove(left, &m->box);
}

/* The moves of senders that may hold the same elements, found in the order of preference. */
static Err receive_copies(const Reshard *r, const StoredPieces *to, Run *run, int n, Arena *temp,
                          MoveList *out)
{
    BoxList left = {.arena = temp};
    MoveList found = {.arena = temp};
    for (int i = 0; i < n; i++) {
        const bool next_summand =
            !r->from.sum_copies && i > 0 && run[i].summand != run[i - 1].summand;
        if (i == 0 || next_summand) {
            left.n = 0;
            for (int64_t p = 0; p < to->n; p++) TRY(boxes_push(&left, &to->piece[p].box));
        }
        StoredPieces from;
        MoveList both = {.arena = temp};
        TRY(stored_at(r, &r->from, run[i].rank, temp, &from));
        TRY(moves_between(&from, to, !r->from.sum_copies && run[i].summand > 0, &both));
        run[i].first = found.n;
        for (int64_t m = 0; m < both.n; m++)
            TRY(push_remaining(r, &both.move[m], &left, temp, &found));
        run_close(&run[i], &found);
    }
    if (n > 0) qsort(run, (size_t)n, sizeof *run, by_fold);
    for (int i = 0; i < n; i++) {
        const int64_t from = run[i].first;
        run[i].first = out->n;
        for (int64_t m = 0; m < run[i].n; m++) TRY(moves_push(out, &found.move[from + m]));
    }
    return OK;
}

Err runs_receive(const Reshard *r, const StoredPieces *to, Arena *temp, MoveList *out, Run **runs,
                 int *n)
{
    RankList senders;
    Run *run;
    TRY(peers_senders(r, to, temp, &senders));
    TRY(runs_of(r, senders, to->rank, temp, &run));
    TRY(moves_reserve(out, senders.n));
    if (r->has_copies) TRY(receive_copies(r, to, run, senders.n, temp, out));
    for (int i = 0; !r->has_copies && i < senders.n; i++) {
        const size_t mark = arena_mark(temp);
        StoredPieces from;
        TRY(stored_at(r, &r->from, run[i].rank, temp, &from));
        run[i].first = out->n;
        TRY(moves_between(&from, to, run[i].summand > 0, out));
        run_close(&run[i], out);
        arena_rewind(temp, mark);
    }
    *runs = run;
    *n = senders.n;
    return OK;
}

/* The moves from `from` to one receiver, found among all that the receiver receives. */
static Err send_of_copies(const Reshard *r, const StoredPieces *from, const StoredPieces *to,
                          Arena *temp, MoveList *out)
{
    MoveList all = {.arena = temp};
    Run *run;
    int n;
    TRY(runs_receive(r, to, temp, &all, &run, &n));
    for (int i = 0; i < n; i++) {
        if (run[i].rank != from->rank) continue;
        for (int64_t m = 0; m < run[i].n; m++) TRY(moves_push(out, &all.move[run[i].first + m]));
    }
    return OK;
}

/* The moves from `from` to one of its receivers. */
static Err send_to(const Reshard *r, const StoredPieces *from, int receiver, Arena *temp,
                   MoveList *out)
{
    StoredPieces to;
    TRY(stored_at(r, &r->to, receiver, temp, &to));
    if (r->has_copies) return send_of_copies(r, from, &to, temp, out);
    return moves_between(from, &to, peers_summand(r, from->rank) > 0, out);
}

Err runs_send(const Reshard *r, const StoredPieces *from, Arena *temp, MoveList *out, Run **runs,
              int *n)
{
    RankList receivers;
    Run *run;
    TRY(peers_receivers(r, from, temp, &receivers));
    TRY(moves_reserve(out, receivers.n));
    TRY(ARENA_NEW(temp, receivers.n, &run));
    for (int i = 0; i < receivers.n; i++) run[i].rank = receivers.rank[i];
    if (receivers.n > 0) qsort(run, (size_t)receivers.n, sizeof *run, by_fold);
    for (int i = 0; i < receivers.n; i++) {
        const size_t mark = arena_mark(temp);
        run[i].first = out->n;
        TRY(send_to(r, from, run[i].rank, temp, out));
        run_close(&run[i], out);
        arena_rewind(temp, mark);
    }
    *runs = run;
    *n = receivers.n;
    return OK;
}

Err runs_count(const Reshard *r, const StoredPieces *from, RankList receivers, Arena *temp,
               int64_t *count)
{
    int64_t sum = 0;
    for (int i = 0; i < receivers.n; i++) {
        const size_t mark = arena_mark(temp);
        MoveList moves = {.arena = temp};
        Run run = {0};
        if (receivers.rank[i] == from->rank) continue;
        TRY(send_to(r, from, receivers.rank[i], temp, &moves));
        run_close(&run, &moves);
        sum += run.count;
        arena_rewind(temp, mark);
    }
    *count = sum;
    return OK;
}

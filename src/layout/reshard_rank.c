/* reshard_rank.c -- one rank's part of a reshard: runs of moves (runs.h) as messages to peers, or
 * to the members of a group. */
#include "layout/runs.h"

/* One run for each member of the group: the given runs, and empty ones between. */
static Err spread(const Run *run, int n, RankList group, Arena *temp, Run **out)
{
    Run *all;
    int next = 0;
    TRY(ARENA_NEW(temp, group.n, &all));
    for (int i = 0; i < group.n; i++) {
        all[i].first = next < n ? run[next].first : n > 0 ? run[n - 1].first + run[n - 1].n : 0;
        all[i].rank = group.rank[i];
        if (next < n && run[next].rank == all[i].rank) all[i] = run[next++];
    }
    MUST(next == n, "rank %d is not of the group", run[next].rank);
    *out = all;
    return OK;
}

/* Runs as messages; in an exchange those without moves are not sent. */
static Err side_of(const Run *run, int n, bool keep_empty, const Move *move, Arena *a,
                   ReshardSide *out)
{
    int32_t *rank;
    int64_t *count, *first, end = 0;
    int peers = 0;
    TRY(ARENA_NEW(a, n, &rank));
    TRY(ARENA_NEW(a, n, &count));
    TRY(ARENA_NEW(a, n + 1, &first));
    for (int i = 0; i < n; i++) {
        if (!keep_empty && run[i].n == 0) continue;
        rank[peers] = run[i].rank;
        count[peers] = run[i].count;
        first[peers++] = run[i].first;
        end = run[i].first + run[i].n;
    }
    first[peers] = end;
    *out = (ReshardSide){{peers, rank}, count, first, move, false};
    return OK;
}

static Err group_of(const Reshard *r, int rank, Arena *a, RankList *out)
{
    *out = (RankList){0, NULL};
    if (!r->axes) return OK;
    return mesh_group(r->from.mesh, r->from.layout.view, r->axes, rank, a, out);
}

static Err part_in(const Reshard *r, int rank, Arena *a, Arena *temp, ReshardSide *out)
{
    MoveList moves = {.arena = a};
    StoredPieces to;
    Run *run;
    RankList group;
    int n;
    TRY(stored_at(r, &r->to, rank, temp, &to));
    TRY(runs_receive(r, &to, temp, &moves, &run, &n));
    TRY(group_of(r, rank, temp, &group));
    if (group.n > 0) TRY(spread(run, n, group, temp, &run));
    TRY(side_of(run, group.n > 0 ? group.n : n, group.n > 0, moves.move, a, out));
    const bool alike = r->kind == RESHARD_REDUCE_SCATTER || r->kind == RESHARD_ALL_REDUCE;
    out->direct = moves_write_in_order(out->move, out->first[alike ? 1 : out->peers.n]);
    return OK;
}

static Err part_out(const Reshard *r, int rank, Arena *a, Arena *temp, ReshardSide *out)
{
    MoveList moves = {.arena = a};
    StoredPieces from;
    Run *run;
    RankList group;
    int n;
    TRY(stored_at(r, &r->from, rank, temp, &from));
    TRY(runs_send(r, &from, temp, &moves, &run, &n));
    TRY(group_of(r, rank, temp, &group));
    if (group.n > 0) TRY(spread(run, n, group, temp, &run));
    TRY(side_of(run, group.n > 0 ? group.n : n, group.n > 0, moves.move, a, out));
    const bool alike = r->kind == RESHARD_ALL_GATHER || r->kind == RESHARD_ALL_REDUCE;
    out->direct = moves_read_in_order(out->move, out->first[alike ? 1 : out->peers.n]);
    return OK;
}

/* A reduce-scatter and an all-gather: the rank sends all parts of the sum but its own, then its own
 * part to all others. */
static int64_t all_reduce_sent(const Reshard *r, int rank, int64_t count)
{
    const Mesh *m = r->from.mesh;
    const int view = r->from.layout.view, p = mesh_parts(m, view, r->axes);
    const Span mine = even_part(count, 1, p, mesh_part(m, view, r->axes, rank));
    return count + (p - 2) * (mine.hi - mine.lo);
}

Err reshard_for_rank(const Reshard *r, int rank, Arena *a, Arena *temp, ReshardPart *out)
{
    const size_t mark = arena_mark(temp);
    ReshardPart part = {0};
    Err err = OK;
    if (sharding_has(&r->to, rank)) err = part_in(r, rank, a, temp, &part.in);
    if (err == OK && sharding_has(&r->from, rank)) err = part_out(r, rank, a, temp, &part.out);
    arena_rewind(temp, mark);
    TRY(err);
    for (int i = 0; i < part.out.peers.n; i++)
        if (part.out.peers.rank[i] != rank) part.sent += part.out.count[i];
    if (r->kind == RESHARD_ALL_REDUCE && part.in.peers.n > 0)
        part.sent = all_reduce_sent(r, rank, part.in.count[0]);
    *out = part;
    return OK;
}

/* Elements that a rank with some of `from` sends. */
static Err sent_by(const Reshard *r, int rank, Arena *temp, int64_t *elements)
{
    StoredPieces from;
    RankList receivers;
    if (r->kind == RESHARD_ALL_REDUCE) {
        const Holding h = holding_of(&r->to.layout, r->to.mesh, &r->shape, rank);
        *elements = all_reduce_sent(r, rank, holding_count(&h));
        return OK;
    }
    TRY(stored_at(r, &r->from, rank, temp, &from));
    if (r->kind == RESHARD_ALL_GATHER) { /* all members get the same: count one */
        const int p = mesh_parts(r->from.mesh, r->from.layout.view, r->axes);
        const int me = mesh_part(r->from.mesh, r->from.layout.view, r->axes, rank);
        int32_t other = mesh_move(r->from.mesh, r->from.layout.view, r->axes, (me + 1) % p, rank);
        TRY(runs_count(r, &from, (RankList){1, &other}, temp, elements));
        *elements *= p - 1;
        return OK;
    }
    TRY(peers_receivers(r, &from, temp, &receivers));
    return runs_count(r, &from, receivers, temp, elements);
}

Err reshard_sent(const Reshard *r, int rank, Arena *temp, int64_t *elements)
{
    const size_t mark = arena_mark(temp);
    *elements = 0;
    if (r->kind == RESHARD_NONE || r->kind == RESHARD_LOCAL || !sharding_has(&r->from, rank))
        return OK;
    const Err err = sent_by(r, rank, temp, elements);
    arena_rewind(temp, mark);
    return err;
}

/* ends.c -- the position at which each transfer is waited for: as late as memory allows.
 *
 *     gather.2 F1.0 F2.0        before the first RUN that reads the pack, or its DROP
 *     B2.1 reduce.2 B1.1 norm   a step's sum: before the norm
 *     reduce.2.0 B1.0 reduce.1.0   that of one micro-batch: before the next one of another (unit,
 *                               micro-batch), so that the gradients of at most two wait for their
 *                               sums at once
 *     recv.F1.0 F1.1 F2.0       before the RUN that reads it
 *     send.F1.0 F0.1 send.F1.1  see moves.c
 *
 * One walk from the end of the list finds the next uses. With in_order every transfer is waited for
 * at once. */
#include "schedule/link/link_parts.h"
#include "base/math.h"

typedef struct {
    int *reader; /* [packs]: the next RUN that reads the pack, or the next DROP */
    int reduce;  /* the next REDUCE of one micro-batch, or another reader of gradients */
    int cell;    /* the unit and the micro-batch of that REDUCE; -1: it is another reader */
    int other;   /* the next after it of another (unit, micro-batch), or another reader */
    int norm;    /* the next NORM or UPDATE */
    int *taker;  /* [cells][N_DIRECTIONS]: the next RUN that reads the value of F, or of I or B */
    int *send;   /* [stages][N_DIRECTIONS]: the next SEND to it */
    int forward; /* the next RUN of an F */
    int *use;    /* [cells]: the next RUN of it, or the SEND that returns its frame */
} NextUses;

static int64_t taken(const Linker *k, int unit, const Action *a, int direction)
{
    return schedule_cell(k->s, unit, a->micro, a->slice) * N_DIRECTIONS + direction;
}

/* F reads the value of the unit before; I and B read that of the unit after. */
static void pass_taker(const Linker *k, int i, NextUses *next)
{
    const Action *a = &k->lp->list[i].action;
    const int direction = action_direction(a),
              maker = a->unit + (direction == DIRECTION_FORWARD ? -1 : 1);
    if (a->phase == PHASE_W || maker < 0 || maker == k->lp->model->n_units) return;
    next->taker[taken(k, maker, a, direction)] = i;
}

static void pass_run(const Linker *k, int i, NextUses *next)
{
    const LinkedAction *l = &k->lp->list[i];
    const PackSet *reads = &k->packs[l->action.unit].reads[l->action.phase];
    for (int p = 0; p < reads->n; p++) next->reader[reads->pack[p]] = i;
    pass_taker(k, i, next);
}

static int64_t cell_of(const Linker *k, const Action *a)
{
    return schedule_cell(k->s, a->unit, a->micro, a->slice);
}

/* An evicted frame has left before the next frame is made; a fetched one arrives before its use. */
static int end_of_frame(const Linker *k, int i, const NextUses *next)
{
    const Action *a = &k->lp->list[i].action;
    if (a->peer < 0) return i;
    if (a->kind == A_FETCH || a->kind == A_RECV) return next->use[cell_of(k, a)];
    return min_int(next->forward, next->norm);
}

/* A SEND of y also ends before the RUN that reads the gradient of y. */
static int end_of_move(const Linker *k, const Action *a, const NextUses *next)
{
    const int direction = action_direction(a);
    if (a->kind == A_RECV) return next->taker[taken(k, a->unit, a, direction)];
    const int end = min_int(next->send[a->peer * N_DIRECTIONS + direction], next->norm);
    if (direction == DIRECTION_BACKWARD) return end;
    return min_int(end, next->taker[taken(k, a->unit + 1, a, DIRECTION_BACKWARD)]);
}

static int reduced_cell(const Linker *k, const Action *reduce)
{
    return k->lp->model->pack[reduce->unit].unit * k->lp->micros + reduce->micro;
}

static void pass_reduce(int i, int cell, NextUses *next)
{
    if (cell != next->cell) next->other = next->reduce;
    next->reduce = i;
    next->cell = cell;
}

static void pass(const Linker *k, int i, NextUses *next)
{
    const Action *a = &k->lp->list[i].action;
    if (a->kind == A_RUN) pass_run(k, i, next);
    if (a->kind == A_DROP) next->reader[a->unit] = i;
    if (a->kind == A_REDUCE && k->grouped[a->unit]) pass_reduce(i, reduced_cell(k, a), next);
    if (a->kind == A_SEND && is_stream(a))
        next->send[a->peer * N_DIRECTIONS + action_direction(a)] = i;
    if (a->kind == A_RUN || (a->kind == A_SEND && is_frame(a))) next->use[cell_of(k, a)] = i;
    if (a->kind == A_RUN && a->phase == PHASE_F) next->forward = i;
    if (a->kind == A_NORM || a->kind == A_UPDATE) {
        next->norm = next->reduce = next->other = i;
        next->cell = -1;
    }
}

static int end_of(const Linker *k, int i, const NextUses *next)
{
    const Action *a = &k->lp->list[i].action;
    if (k->in->in_order) return i;
    if (is_frame(a)) return end_of_frame(k, i, next);
    if (is_move(a)) return end_of_move(k, a, next);
    if (a->kind == A_GATHER) return k->lp->pack[a->unit].group.n > 1 ? next->reader[a->unit] : i;
    if (a->kind != A_REDUCE || !k->plan[a->unit].begins) return i;
    if (!k->grouped[a->unit]) return next->norm;
    return reduced_cell(k, a) == next->cell ? next->other : next->reduce;
}

/* Limits transfers to MAX_IN_FLIGHT: the oldest ends before another starts. Values between stages
 * are exempt: they are few, and a receive that is waited for earlier could deadlock. */
static void limit_flights(LinkedProgram *lp)
{
    int flying[MAX_IN_FLIGHT], n = 0;
    for (int i = 0; i < lp->n; i++) {
        int kept = 0;
        for (int k = 0; k < n; k++)
            if (lp->list[flying[k]].end > i) flying[kept++] = flying[k];
        n = kept;
        const Action *a = &lp->list[i].action;
        if (lp->list[i].end == i || is_move(a) || is_frame(a)) continue;
        if (n == MAX_IN_FLIGHT) {
            lp->list[flying[0]].end = i;
            for (int k = 1; k < n; k++) flying[k - 1] = flying[k];
            n--;
        }
        flying[n++] = i;
    }
}

/* Builds each position's list of transfers that end there, and counts the maximum in flight. */
static Err list_waits(Linker *k)
{
    LinkedProgram *lp = k->lp;
    int32_t *all;
    int in_flight = 0;
    TRY(ARENA_NEW(k->arena, lp->n + 1, &all));
    for (int i = 0; i < lp->n; i++)
        if (lp->list[i].end > i) lp->list[lp->list[i].end].n_waits++;
    for (int i = 0; i <= lp->n; i++) {
        lp->list[i].wait = all;
        all += lp->list[i].n_waits;
        lp->list[i].n_waits = 0;
    }
    for (int i = 0; i < lp->n; i++) {
        LinkedAction *at = &lp->list[lp->list[i].end];
        if (lp->list[i].end > i) ((int32_t *)at->wait)[at->n_waits++] = i;
    }
    for (int i = 0; i < lp->n; i++) {
        const ActionKind kind = (ActionKind)lp->list[i].action.kind;
        in_flight -= lp->list[i].n_waits;
        in_flight += lp->list[i].end > i;
        const bool passing = kind == A_GATHER || kind == A_REDUCE || kind == A_NORM ||
                             kind == A_QUANTIZE ||
                             ((is_move(&lp->list[i].action) || is_frame(&lp->list[i].action)) &&
                              lp->list[i].end == i);
        const int now = in_flight + passing;
        if (lp->in_flight < now) lp->in_flight = now;
    }
    return OK;
}

Err link_ends(Linker *k)
{
    LinkedProgram *lp = k->lp;
    const int64_t values = schedule_cells(k->s) * N_DIRECTIONS;
    NextUses next = {.reduce = lp->n, .cell = -1, .other = lp->n, .norm = lp->n, .forward = lp->n};
    TRY(packs_of_model(lp->model, &lp->programs, k->arena, &k->packs));
    TRY(ARENA_NEW(k->arena, lp->model->n_packs, &next.reader));
    TRY(ARENA_NEW(k->arena, values, &next.taker));
    TRY(ARENA_NEW(k->arena, k->s->stages * N_DIRECTIONS, &next.send));
    for (int p = 0; p < lp->model->n_packs; p++) next.reader[p] = lp->n;
    TRY(ARENA_NEW(k->arena, schedule_cells(k->s), &next.use));
    for (int64_t i = 0; i < values; i++) next.taker[i] = lp->n;
    for (int64_t i = 0; i < schedule_cells(k->s); i++) next.use[i] = lp->n;
    for (int i = 0; i < k->s->stages * N_DIRECTIONS; i++) next.send[i] = lp->n;
    lp->list[lp->n].end = lp->n;
    for (int i = lp->n - 1; i >= 0; i--) {
        lp->list[i].end = end_of(k, i, &next);
        pass(k, i, &next);
    }
    limit_flights(lp);
    return list_waits(k);
}

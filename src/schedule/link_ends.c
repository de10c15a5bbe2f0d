/* link_ends.c -- where what is begun is waited for: as late as its bytes allow.
 *
 *     gather.2 F1.0 F2.0        before the first RUN that reads the pack, or its DROP
 *     B2.1 reduce.2 B1.1 norm   a step's sum: before the norm
 *     reduce.2.0 B1.0 reduce.1.0   one micro-batch's: before the next REDUCE, so that at most two
 *                               units' gradients wait for their sums at once
 *
 * One walk up the list finds what comes next. With in_order everything is waited for at once. */
#include "schedule/link_parts.h"

typedef struct {
    int *reader; /* [units]: the next RUN that reads the pack, or the next DROP */
    int reduce;  /* the next REDUCE, or what else reads gradients */
    int norm;    /* the next NORM or UPDATE */
} Next;

static void pass_run(const Linking *k, int i, Next *next)
{
    const Linked *l = &k->lp->list[i];
    const PackSet *reads = &k->packs[l->action.unit].reads[l->action.phase];
    for (int p = 0; p < reads->n; p++) next->reader[reads->pack[p]] = i;
}

static void pass(const Linking *k, int i, Next *next)
{
    const Action *a = &k->lp->list[i].action;
    if (a->kind == A_RUN) pass_run(k, i, next);
    if (a->kind == A_DROP) next->reader[a->unit] = i;
    if (a->kind == A_REDUCE) next->reduce = i;
    if (a->kind == A_NORM || a->kind == A_UPDATE) next->norm = next->reduce = i;
}

static int end_of(const Linking *k, int i, const Next *next)
{
    const Action *a = &k->lp->list[i].action;
    if (k->in->in_order) return i;
    if (a->kind == A_GATHER) return k->lp->unit[a->unit].group.n > 1 ? next->reader[a->unit] : i;
    if (a->kind != A_REDUCE || !k->plan[a->unit].begins) return i;
    return k->grouped[a->unit] ? next->reduce : next->norm;
}

/* With LINK_FLIGHTS in flight, what was begun first is ended before another begins. */
static void limit_flights(LinkedProgram *lp)
{
    int flying[LINK_FLIGHTS], n = 0;
    for (int i = 0; i < lp->n; i++) {
        int kept = 0;
        for (int k = 0; k < n; k++)
            if (lp->list[flying[k]].end > i) flying[kept++] = flying[k];
        n = kept;
        if (lp->list[i].end == i) continue;
        if (n == LINK_FLIGHTS) {
            lp->list[flying[0]].end = i;
            for (int k = 1; k < n; k++) flying[k - 1] = flying[k];
            n--;
        }
        flying[n++] = i;
    }
}

/* Each position's list of what ends there. */
static Err list_waits(Linking *k)
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
        Linked *at = &lp->list[lp->list[i].end];
        if (lp->list[i].end > i) ((int32_t *)at->wait)[at->n_waits++] = i;
    }
    for (int i = 0; i < lp->n; i++) {
        const ActionKind kind = (ActionKind)lp->list[i].action.kind;
        in_flight -= lp->list[i].n_waits;
        in_flight += lp->list[i].end > i;
        const int now = in_flight + (kind == A_GATHER || kind == A_REDUCE || kind == A_NORM);
        if (lp->in_flight < now) lp->in_flight = now;
    }
    return OK;
}

Err link_ends(Linking *k)
{
    LinkedProgram *lp = k->lp;
    Next next = {NULL, lp->n, lp->n};
    TRY(packs_of_model(lp->model, lp->program, k->arena, &k->packs));
    TRY(ARENA_NEW(k->arena, lp->model->n_units, &next.reader));
    for (int u = 0; u < lp->model->n_units; u++) next.reader[u] = lp->n;
    lp->list[lp->n].end = lp->n;
    for (int i = lp->n - 1; i >= 0; i--) {
        lp->list[i].end = end_of(k, i, &next);
        pass(k, i, &next);
    }
    limit_flights(lp);
    return list_waits(k);
}

/* check.c -- the demands on a plan that was played to its end; check.h lists them. */
#include "compile/context/check.h"

#include <math.h>
#include "compile/context/check_parts.h"

static Err check_channels(const ContextPlayer *w)
{
    for (int from = 0; from < w->ranks; from++)
        for (int to = 0; to < w->ranks; to++) {
            const ContextChannel *c = &w->channel[pair_at(w, from, to)];
            if (c->n_sent != c->n_posted)
                return err_fail(ERR_CHECK,
                                "attention plan %s: rank %d sends %d messages to rank %d, which "
                                "receives %d",
                                w->p->row->name, from, c->n_sent, to, c->n_posted);
        }
    return OK;
}

static Err check_visits(const ContextPlayer *w)
{
    for (int q = 0; q < w->ranks; q++)
        for (int k = 0; k < w->ranks; k++)
            for (int half = 0; half < 4; half++)
                if (context_work(&w->p->shape, q, half / 2, k, half % 2) > 0 &&
                    w->visited[4 * pair_at(w, q, k) + half] != 3)
                    return err_fail(ERR_CHECK,
                                    "attention plan %s: no rank visits the queries of block %d "
                                    "with the keys of block %d",
                                    w->p->row->name, q, k);
    return OK;
}

/* Every contribution is at the owner of its block; nothing is left on other ranks. */
static Err check_partial(const ContextPlayer *w, int partial, int block)
{
    const bool passes = w->p->row->passes;
    const char *name = partial == PARTIAL_VALUES ? "dv"
                       : partial == PARTIAL_KEYS ? (passes ? "dk" : "dkv")
                       : w->p->backward          ? "dq"
                                                 : "o";
    for (int rank = 0; rank < w->ranks; rank++)
        if (rank != block && w->made[partial][pair_at(w, rank, block)])
            return err_fail(ERR_CHECK, "attention plan %s: %s of block %d stays on rank %d",
                            w->p->row->name, name, block, rank);
    const uint8_t *parts = w->parts[partial][pair_at(w, block, block)];
    for (int i = 0; i < 4 * w->ranks; i++) {
        const int other = i / 4, q = partial == PARTIAL_QUERIES ? block : other;
        const int k = partial == PARTIAL_QUERIES ? other : block;
        const int want = context_work(&w->p->shape, q, i / 2 % 2, k, i % 2) > 0;
        if ((parts ? parts[i] : 0) != want)
            return err_fail(ERR_CHECK,
                            "attention plan %s: %s of block %d gets the pair with block %d %d "
                            "times",
                            w->p->row->name, name, block, other, parts ? parts[i] : 0);
    }
    return OK;
}

static Err check_sent(const ContextPlayer *w)
{
    ContextSent want;
    w->p->row->sent(&w->p->shape, w->p->backward, &want);
    for (int i = 0; i < N_PAYLOADS; i++)
        if (w->sent.halves[i] != want.halves[i])
            return err_fail(ERR_CHECK,
                            "attention plan %s sends %lld half blocks of %s; its formula has %lld",
                            w->p->row->name, (long long)w->sent.halves[i], context_payload_name(i),
                            (long long)want.halves[i]);
    return OK;
}

static Err check_work(const ContextPlayer *w, double *balance, int64_t *max)
{
    int64_t sum = 0;
    *max = 0;
    for (int rank = 0; rank < w->ranks; rank++) {
        sum += w->work[rank];
        *max = w->work[rank] > *max ? w->work[rank] : *max;
    }
    *balance = (double)*max * w->ranks / (double)sum;
    const double bound = w->p->row->bound(&w->p->shape);
    if (fabs(*balance - bound) > 1e-12)
        return err_fail(ERR_CHECK,
                        "attention plan %s: the busiest rank has %.6f of the mean work; the "
                        "method's bound is %.6f",
                        w->p->row->name, *balance, bound);
    return OK;
}

Err context_check(const ContextPlan *p, Arena *temp, ContextCounts *counts)
{
    ContextPlayer w;
    ContextCounts got;
    TRY(context_play(p, temp, &w));
    TRY(check_channels(&w));
    TRY(check_visits(&w));
    for (int block = 0; block < w.ranks; block++) {
        TRY(check_partial(&w, PARTIAL_QUERIES, block));
        if (p->backward) TRY(check_partial(&w, PARTIAL_KEYS, block));
        if (p->backward && p->row->passes) TRY(check_partial(&w, PARTIAL_VALUES, block));
    }
    TRY(check_sent(&w));
    TRY(check_work(&w, &got.balance, &got.max_work));
    got.sent = w.sent;
    if (counts) *counts = got;
    return OK;
}

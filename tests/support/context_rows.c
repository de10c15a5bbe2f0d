/* context_rows.c -- the values that ranks have, and those of messages. */
#include <math.h>
#include <string.h>

#include "support/context_run_parts.h"

/* The arrays of a payload. Returns their number. */
static int payload_arrays(bool backward, int payload, int list[4])
{
    static const int arrays[N_PAYLOADS][4] = {[PAYLOAD_KV] = {RUN_K, RUN_V},
                                              [PAYLOAD_Q] = {RUN_Q, RUN_DOUT, RUN_LSE, RUN_DELTA},
                                              [PAYLOAD_O] = {RUN_O, RUN_O_LSE},
                                              [PAYLOAD_DKV] = {RUN_DK, RUN_DV},
                                              [PAYLOAD_DQ] = {RUN_DQ},
                                              [PAYLOAD_K] = {RUN_K},
                                              [PAYLOAD_V] = {RUN_V},
                                              [PAYLOAD_DK] = {RUN_DK},
                                              [PAYLOAD_DV] = {RUN_DV}};
    static const int n[N_PAYLOADS] = {2, 1, 2, 2, 1, 1, 1, 1, 1};
    memcpy(list, arrays[payload], sizeof arrays[payload]);
    return payload == PAYLOAD_Q && backward ? 4 : n[payload];
}

int run_width(const AttentionCase *c, int array)
{
    if (array == RUN_LSE || array == RUN_DELTA || array == RUN_O_LSE) return c->heads;
    const bool keys = array == RUN_K || array == RUN_V || array == RUN_DK || array == RUN_DV;
    return (keys ? c->key_heads : c->heads) * c->size;
}

static double nothing(int array)
{
    return array < RUN_O ? (double)NAN : array == RUN_O_LSE ? -(double)INFINITY : 0;
}

static void clear_row(double *row, int array, int width)
{
    for (int i = 0; i < width; i++) row[i] = nothing(array);
}

static double *row_at(const ContextRun *w, const RunRank *r, int array, int token)
{
    return &r->has.of[array][(int64_t)token * run_width(w->c, array)];
}

Err run_open_rank(ContextRun *w, int rank, const AttentionResult *r)
{
    RunRank *to = &w->rank[rank];
    const double *own[N_RUN_ARRAYS] = {[RUN_Q] = w->c->q, [RUN_K] = w->c->k, [RUN_V] = w->c->v};
    double *delta;
    if (w->kept) to->kept = w->kept[rank];
    TRY(ARENA_NEW(w->temp, (int64_t)w->c->tokens * w->c->heads, &delta));
    if (w->p->backward) {
        TRY(kernel_delta(w, r->o, delta));
        own[RUN_DOUT] = w->c->dout;
        own[RUN_LSE] = r->lse;
        own[RUN_DELTA] = delta;
    }
    for (int a = 0; a < N_RUN_ARRAYS; a++) {
        const int width = run_width(w->c, a);
        TRY(ARENA_NEW(w->temp, (int64_t)w->c->tokens * width, &to->has.of[a]));
        for (int token = 0; token < w->c->tokens; token++) {
            double *row = row_at(w, to, a, token);
            clear_row(row, a, width);
            if (own[a] && w->c->rank[token] == rank)
                memcpy(row, &own[a][(int64_t)token * width], (size_t)width * sizeof *row);
        }
    }
    return OK;
}

Err run_rows(ContextRun *w, ContextBlock b, RunRows *out)
{
    *out = (RunRows){0};
    TRY(ARENA_NEW(w->temp, w->c->tokens + 1, &out->token));
    for (int i = 0; i < w->c->tokens; i++)
        if (w->c->rank[i] == b.rank && (b.halves >> w->c->half[i] & 1)) out->token[out->n++] = i;
    return OK;
}

/* Copies the rows of an array of this rank. */
static Err take_rows(ContextRun *w, const RunRank *r, RunRows *rows, int array)
{
    const int width = run_width(w->c, array);
    TRY(ARENA_NEW(w->temp, (int64_t)rows->n * width + 1, &rows->of[array]));
    for (int i = 0; i < rows->n; i++)
        memcpy(&rows->of[array][(int64_t)i * width], row_at(w, r, array, rows->token[i]),
               (size_t)width * sizeof(double));
    return OK;
}

static void put_rows(ContextRun *w, RunRank *r, const RunRows *rows, int array)
{
    const int width = run_width(w->c, array);
    for (int i = 0; i < rows->n; i++)
        memcpy(row_at(w, r, array, rows->token[i]), &rows->of[array][(int64_t)i * width],
               (size_t)width * sizeof(double));
}

bool run_has(const ContextRun *w, const RunRank *r, int payload, ContextBlock b)
{
    int list[4];
    const int n = payload_arrays(w->p->backward, payload, list);
    for (int i = 0; i < w->c->tokens; i++)
        for (int a = 0; a < n; a++)
            if (w->c->rank[i] == b.rank && (b.halves >> w->c->half[i] & 1) &&
                isnan(row_at(w, r, list[a], i)[0]))
                return false;
    return true;
}

Err run_take(ContextRun *w, RunRank *r, RunMessage *m)
{
    int list[4];
    const int n = payload_arrays(w->p->backward, m->payload, list);
    TRY(run_rows(w, m->block, &m->rows));
    for (int a = 0; a < n; a++) {
        TRY(take_rows(w, r, &m->rows, list[a]));
        for (int i = 0; i < m->rows.n && list[a] >= RUN_O; i++)
            clear_row(row_at(w, r, list[a], m->rows.token[i]), list[a], run_width(w->c, list[a]));
    }
    return OK;
}

void run_store(ContextRun *w, RunRank *r, const RunMessage *m)
{
    for (int a = 0; a < N_RUN_ARRAYS; a++)
        if (m->rows.of[a]) put_rows(w, r, &m->rows, a);
}

Err run_add(ContextRun *w, RunRank *r, const RunMessage *m)
{
    for (int a = RUN_DQ; a < N_RUN_ARRAYS; a++)
        for (int i = 0; i < m->rows.n && m->rows.of[a]; i++)
            for (int j = 0, width = run_width(w->c, a); j < width; j++)
                row_at(w, r, a, m->rows.token[i])[j] += m->rows.of[a][(int64_t)i * width + j];
    if (!m->rows.of[RUN_O]) return OK;
    RunRows rows = m->rows;
    TRY(take_rows(w, r, &rows, RUN_O));
    TRY(take_rows(w, r, &rows, RUN_O_LSE));
    TRY(kernel_merge(w, &rows, m->rows.of[RUN_O], m->rows.of[RUN_O_LSE]));
    put_rows(w, r, &rows, RUN_O);
    put_rows(w, r, &rows, RUN_O_LSE);
    return OK;
}

Err run_visit(ContextRun *w, RunRank *r, const ContextStep *s)
{
    const size_t mark = arena_mark(w->temp);
    RunRows q, k;
    TRY(run_rows(w, s->q, &q));
    TRY(run_rows(w, s->k, &k));
    for (int a = 0; a < N_RUN_ARRAYS; a++) {
        const bool keys = a == RUN_K || a == RUN_V || a == RUN_DK || a == RUN_DV;
        TRY(take_rows(w, r, keys ? &k : &q, a));
    }
    if (s->pass != PASS_BOTH)
        pass_visit(w, r, (VisitPass)s->pass, &q, &k);
    else
        TRY(w->p->backward ? kernel_gradients(w, &q, &k) : kernel_attention(w, &q, &k));
    put_rows(w, r, &q, RUN_O);
    put_rows(w, r, &q, RUN_O_LSE);
    put_rows(w, r, &q, RUN_DQ);
    put_rows(w, r, &k, RUN_DK);
    put_rows(w, r, &k, RUN_DV);
    arena_rewind(w->temp, mark);
    return OK;
}

void run_collect(const ContextRun *w, AttentionResult *r)
{
    double *to[N_RUN_ARRAYS] = {0};
    if (w->p->backward)
        to[RUN_DQ] = r->dq, to[RUN_DK] = r->dk, to[RUN_DV] = r->dv;
    else
        to[RUN_O] = r->o, to[RUN_O_LSE] = r->lse;
    for (int a = 0; a < N_RUN_ARRAYS; a++)
        for (int i = 0; i < w->c->tokens && to[a]; i++) {
            const int width = run_width(w->c, a);
            memcpy(&to[a][(int64_t)i * width], row_at(w, &w->rank[w->c->rank[i]], a, i),
                   (size_t)width * sizeof(double));
        }
}

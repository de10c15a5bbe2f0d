/* context_passes.c -- a visit of a plan in passes: a rank keeps the scores of its queries with all
 * keys, and the gradients of their weights, by the definition of attention. No device has kernels
 * for them. */
#include <math.h>

#include "support/context_run_parts.h"

/* One pair of a query row and a key row of a head. */
typedef struct {
    const double *k, *v;
    double *o, *lse, *dq, *dk, *dv;
    const double *q, *dout, *stat_lse, *stat_delta;
    double *score, *slope; /* kept; the scores of the row are at score - key */
} RowPair;

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void add_times(double *sum, double factor, const double *x, int n)
{
    for (int i = 0; i < n; i++) sum[i] += factor * x[i];
}

/* log of the sum of exp of a whole row; NaN if a score of it is missing. */
static double row_lse(const double *score, int n)
{
    double most = -HUGE_VAL, sum = 0;
    for (int i = 0; i < n; i++) most = score[i] > most || isnan(score[i]) ? score[i] : most;
    if (most == -HUGE_VAL) return most;
    for (int i = 0; i < n; i++) sum += exp(score[i] - most);
    return most + log(sum);
}

static double weight(const RowPair *p, double lse)
{
    return lse == -HUGE_VAL ? 0 : exp(*p->score - lse);
}

static void visit_pair(const ContextRun *w, const RowPair *p, VisitPass pass, int query, int key)
{
    const int d = w->c->size;
    const double scale = 1 / sqrt(d);
    if (!w->p->backward && pass == PASS_SCORES) {
        *p->score = attention_sees(w->c, query, key) ? scale * dot(p->q, p->k, d) : -HUGE_VAL;
    } else if (!w->p->backward) {
        *p->lse = row_lse(p->score - key, w->c->tokens);
        add_times(p->o, weight(p, *p->lse), p->v, d);
    } else if (pass == PASS_VALUES) {
        add_times(p->dv, weight(p, *p->stat_lse), p->dout, d);
        *p->slope = dot(p->dout, p->v, d);
    } else {
        const double ds = weight(p, *p->stat_lse) * (*p->slope - *p->stat_delta) * scale;
        add_times(p->dq, ds, p->k, d);
        add_times(p->dk, ds, p->q, d);
    }
}

void pass_visit(const ContextRun *w, const RunRank *r, VisitPass pass, RunRows *q, RunRows *k)
{
    const int heads = w->c->heads, d = w->c->size, tokens = w->c->tokens;
    for (int i = 0; i < q->n; i++)
        for (int j = 0; j < k->n; j++)
            for (int h = 0; h < heads; h++) {
                const int a = i * heads + h, b = j * heads + h;
                const int64_t at = ((int64_t)q->token[i] * heads + h) * tokens + k->token[j];
                const RowPair p = {.q = &q->of[RUN_Q][a * d],
                                   .dout = &q->of[RUN_DOUT][a * d],
                                   .stat_lse = &q->of[RUN_LSE][a],
                                   .stat_delta = &q->of[RUN_DELTA][a],
                                   .o = &q->of[RUN_O][a * d],
                                   .lse = &q->of[RUN_O_LSE][a],
                                   .dq = &q->of[RUN_DQ][a * d],
                                   .k = &k->of[RUN_K][b * d],
                                   .v = &k->of[RUN_V][b * d],
                                   .dk = &k->of[RUN_DK][b * d],
                                   .dv = &k->of[RUN_DV][b * d],
                                   .score = &r->kept[0][at],
                                   .slope = &r->kept[1][at]};
                visit_pair(w, &p, pass, q->token[i], k->token[j]);
            }
}

Err pass_open(const AttentionCase *c, int ranks, Arena *temp, double *(**out)[2])
{
    const int64_t n = (int64_t)c->tokens * c->heads * c->tokens;
    TRY(ARENA_NEW(temp, ranks, out));
    for (int rank = 0; rank < ranks; rank++)
        for (int i = 0; i < 2; i++) {
            TRY(ARENA_NEW(temp, n + 1, &(*out)[rank][i]));
            for (int64_t at = 0; at < n; at++) (*out)[rank][i][at] = (double)NAN;
        }
    return OK;
}

/* backward_amx.c -- p and ds of a tile by AMX, a row of sub-tiles (32 queries) at a time. AMX runs
 * in parallel with the vector units: in a full tile, it multiplies one row of sub-tiles while
 * vectors compute p and ds of the other.
 *
 *     AMX        s 0, dp 0    s 1, dp 1    dq 0       dq 1
 *     vectors                 p 0, ds 0    p 1, ds 1 */
#include "device/cpu/simd/attention/backward.h"
#include "device/cpu/simd/attention/amx_gemm.h"

void amx_grad_partial(const BackwardInputs *in, TokenBlock keys, const Bounds *b,
                      const QueryPanels *q, KeyBlock *t)
{
    for (int i = 0; i < BLOCK; i += SUBTILE) {
        const GradRows g = {i, i + SUBTILE, &t->s, &t->dp};
        amx_score(in->path, &q->q, &t->k, b, (SubtileRow){i, t->s.f32[i]});
        amx_score(in->path, &q->dout, &t->v, b, (SubtileRow){i, t->dp.f32[i]});
        bf16_softmax_grad(q->stats, keys, b, &g);
    }
}

/* Background work of a GEMM: p and ds of queries up to `end`, `each` queries per call. */
typedef struct {
    const SoftmaxStats *stats;
    TokenBlock keys;
    const Bounds *b;
    GradRows g;
    int end, each;
} GradWork;

static void grad_step(void *work)
{
    GradWork *const w = work;
    if (w->g.from == w->end) return;
    w->g.to = (int)min_i64(w->g.from + w->each, w->end);
    bf16_softmax_grad(w->stats, w->keys, w->b, &w->g);
    w->g.from = w->g.to;
}

static void multiply_with_grad(AttentionPath path, AmxGemmArgs p, GradWork *w)
{
    p.background = grad_step;
    p.work = w;
    path.amx->multiply(&p);
}

static void grad_finish(GradWork *w)
{
    while (w->g.from < w->end) grad_step(w);
}

/* The GEMM of dq: its first row of sub-tiles overlaps with p and ds of the last queries. */
static void dq_with_grad(AttentionPath path, const Bounds *b, const QueryPanels *q, KeyBlock *t,
                         GradWork *w)
{
    AmxGemmArgs dq = amx_other_args(path, &t->dp, &t->k_rows, b, q->dq);
    dq.rows = 1;
    multiply_with_grad(path, dq, w);
    grad_finish(w);
    dq.a += SUBTILE * BLOCK / 2;
    dq.c += SUBTILE * padded(path.channels);
    path.amx->multiply(&dq);
}

void amx_grad_full(const BackwardInputs *in, TokenBlock keys, const Bounds *b, const QueryPanels *q,
                   KeyBlock *t)
{
    const AttentionPath path = in->path;
    /* Background calls of one GEMM. `each` is even: bf16_softmax_grad takes queries in pairs. */
    const int64_t steps = BLOCK / SUBTILE * padded(path.channels) / SUBTILE;
    GradWork w = {.stats = q->stats, .keys = keys, .b = b, .g = {.s = &t->s, .dp = &t->dp}};
    w.each = (int)pad_to(blocks_of(SUBTILE, 2 * steps), 2);
    w.end = SUBTILE;
    amx_score(path, &q->q, &t->k, b, (SubtileRow){0, t->s.f32[0]});
    amx_score(path, &q->dout, &t->v, b, (SubtileRow){0, t->dp.f32[0]});
    multiply_with_grad(
        path, amx_score_args(path, &q->q, &t->k, b, (SubtileRow){SUBTILE, t->s.f32[SUBTILE]}), &w);
    multiply_with_grad(
        path, amx_score_args(path, &q->dout, &t->v, b, (SubtileRow){SUBTILE, t->dp.f32[SUBTILE]}),
        &w);
    grad_finish(&w);
    w.each = (int)pad_to(blocks_of(SUBTILE, steps), 2);
    w.end = BLOCK;
    if (q->dq) dq_with_grad(path, b, q, t, &w);
    grad_finish(&w);
}

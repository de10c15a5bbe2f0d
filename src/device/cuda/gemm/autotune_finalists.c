/* autotune_finalists.c -- the last few algorithms of a product, timed where the product stands.
 *
 * What is fastest alone, over and over on the same operands, need not be among other ops: they leave the
 * caches and the clock as they are in a step. So while choices are measured, a product that has several
 * algorithms left takes turns at them, with a mark before and behind; and when measuring ends, the one
 * that took least stays.
 *
 *     norm  [gemm 0]  gelu  [gemm 0]  ..  norm  [gemm 1]  gelu  [gemm 1]  ..  norm  [gemm 0] ..
 *
 * Marks are read by the hundred, so that the card seldom waits for the host. */
#include "device/cuda/gemm/autotune.h"

#include <stdlib.h>

Err finalists_open(GemmEntry *c, const cublasLtMatmulAlgo_t *algo, int n)
{
    Finalists *f = calloc(1, sizeof *f);
    if (!f) return err_fail(ERR_NOMEM, "cuda: no memory for %d algorithms of a product", n);
    for (int i = 0; i < n; i++) f->algo[i] = algo[i];
    f->n = n;
    c->finalists = f;
    return OK;
}

/* What the marks say, to each algorithm its part. */
static Err read_events(Autotuner *all)
{
    for (int i = 0; i < all->n_timed; i++) {
        const TimedRun *timed = &all->timed[i];
        Finalists *f = all->entry[timed->entry].finalists;
        float ms;
        if (!f) continue; /* a file has decided meanwhile */
        CUDA_TRY(cudaEventSynchronize(timed->event[1]));
        CUDA_TRY(cudaEventElapsedTime(&ms, timed->event[0], timed->event[1]));
        f->ms[timed->finalist] += (double)ms;
        f->runs[timed->finalist]++;
    }
    all->n_timed = 0;
    return OK;
}

static Err next_timed_run(Autotuner *all, TimedRun **out)
{
    if (all->n_timed == MAX_TIMED_RUNS) TRY(read_events(all));
    TimedRun *t = &all->timed[all->n_timed];
    for (int i = 0; i < 2; i++)
        if (!t->event[i]) CUDA_TRY(cudaEventCreate(&t->event[i]));
    *out = t;
    return OK;
}

/* Each once in n turns; who begins is drawn, by a hash. In one order throughout, a product that stands at n
 * places of a program would run by the same algorithm at each of them in every pass. */
static int next_finalist(Finalists *f)
{
    const int launch = f->launches++;
    uint32_t drawn = (uint32_t)(launch / f->n) * 2654435769u;
    drawn = (drawn ^ drawn >> 15) * 2246822519u;
    const int first = (int)((uint64_t)drawn * (uint64_t)f->n >> 32);
    return (launch + first) % f->n;
}

/* Between turns it has the best known. */
Err gemm_entry_run(DeviceQueue *q, GemmEntry *c, const LtOperands *operands)
{
    Autotuner *all = q->context->autotuner;
    Finalists *f = c->finalists;
    TimedRun *timed = NULL;
    if (!f || !all->measuring) return gemm_entry_launch(q, c, operands);
    TRY(next_timed_run(all, &timed));
    *timed =
        (TimedRun){{timed->event[0], timed->event[1]}, (int)(c - all->entry), next_finalist(f)};
    c->algo = f->algo[timed->finalist];
    CUDA_TRY(cudaEventRecord(timed->event[0], q->stream));
    const Err err = gemm_entry_launch(q, c, operands);
    c->algo = f->algo[0];
    TRY(err);
    CUDA_TRY(cudaEventRecord(timed->event[1], q->stream));
    all->n_timed++;
    return OK;
}

void finalists_drop(GemmEntry *c)
{
    free(c->finalists);
    c->finalists = NULL;
}

/* The one that took least, of those that ran; the first, where none did. */
static void settle(GemmEntry *c)
{
    const Finalists *f = c->finalists;
    double least = 0;
    c->algo = f->algo[0];
    for (int i = 0; i < f->n; i++) {
        const double ms = f->runs[i] ? f->ms[i] / f->runs[i] : 0;
        if (!f->runs[i] || (least > 0 && ms >= least)) continue;
        least = ms;
        c->algo = f->algo[i];
    }
    finalists_drop(c);
}

void finalists_settle(Autotuner *all)
{
    (void)read_events(all); /* what cannot be read decides nothing */
    all->n_timed = 0;
    for (int i = 0; i < all->n; i++)
        if (all->entry[i].finalists) settle(&all->entry[i]);
}

void finalists_close(Autotuner *all)
{
    for (int i = 0; i < all->n; i++) free(all->entry[i].finalists);
    for (int i = 0; i < MAX_TIMED_RUNS; i++)
        for (int k = 0; k < 2; k++)
            if (all->timed[i].event[k]) (void)cudaEventDestroy(all->timed[i].event[k]);
}

int cuda_autotune_left(const DeviceContext *c)
{
    int n = 0;
    for (int i = 0; i < c->autotuner->n; i++) n += c->autotuner->entry[i].finalists != NULL;
    return n;
}

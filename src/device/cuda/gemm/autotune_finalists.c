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

Err trial_open(Choice *c, const cublasLtMatmulAlgo_t *algo, int n)
{
    Trial *t = calloc(1, sizeof *t);
    if (!t) return err_fail(ERR_NOMEM, "cuda: no memory for %d algorithms of a product", n);
    for (int i = 0; i < n; i++) t->algo[i] = algo[i];
    t->n = n;
    c->trial = t;
    return OK;
}

/* What the marks say, to each algorithm its part. */
static Err read_marks(Choices *all)
{
    for (int i = 0; i < all->n_timed; i++) {
        const Timed *timed = &all->timed[i];
        Trial *t = all->choice[timed->choice].trial;
        float ms;
        if (!t) continue; /* a file has decided meanwhile */
        CUDA_TRY(cudaEventSynchronize(timed->mark[1]));
        CUDA_TRY(cudaEventElapsedTime(&ms, timed->mark[0], timed->mark[1]));
        t->ms[timed->entry] += (double)ms;
        t->runs[timed->entry]++;
    }
    all->n_timed = 0;
    return OK;
}

static Err next_timed(Choices *all, Timed **out)
{
    if (all->n_timed == MAX_TIMED) TRY(read_marks(all));
    Timed *t = &all->timed[all->n_timed];
    for (int i = 0; i < 2; i++)
        if (!t->mark[i]) CUDA_TRY(cudaEventCreate(&t->mark[i]));
    *out = t;
    return OK;
}

/* Each once in n turns; who begins is drawn, by a hash. In one order throughout, a product that stands at n
 * places of a program would run by the same algorithm at each of them in every pass. */
static int next_entry(Trial *t)
{
    const int turn = t->turn++;
    uint32_t drawn = (uint32_t)(turn / t->n) * 2654435769u;
    drawn = (drawn ^ drawn >> 15) * 2246822519u;
    const int first = (int)((uint64_t)drawn * (uint64_t)t->n >> 32);
    return (turn + first) % t->n;
}

/* Between turns it has the best known. */
Err choice_use(DeviceQueue *q, Choice *c, const Operands *with)
{
    Choices *all = q->context->choices;
    Trial *t = c->trial;
    Timed *timed = NULL;
    if (!t || !all->measure) return choice_run(q, c, with);
    TRY(next_timed(all, &timed));
    *timed = (Timed){{timed->mark[0], timed->mark[1]}, (int)(c - all->choice), next_entry(t)};
    c->algo = t->algo[timed->entry];
    CUDA_TRY(cudaEventRecord(timed->mark[0], q->stream));
    const Err err = choice_run(q, c, with);
    c->algo = t->algo[0];
    TRY(err);
    CUDA_TRY(cudaEventRecord(timed->mark[1], q->stream));
    all->n_timed++;
    return OK;
}

void trial_drop(Choice *c)
{
    free(c->trial);
    c->trial = NULL;
}

/* The one that took least, of those that ran; the first, where none did. */
static void settle(Choice *c)
{
    const Trial *t = c->trial;
    double least = 0;
    c->algo = t->algo[0];
    for (int i = 0; i < t->n; i++) {
        const double ms = t->runs[i] ? t->ms[i] / t->runs[i] : 0;
        if (!t->runs[i] || (least > 0 && ms >= least)) continue;
        least = ms;
        c->algo = t->algo[i];
    }
    trial_drop(c);
}

void trials_end(Choices *all)
{
    (void)read_marks(all); /* what cannot be read decides nothing */
    all->n_timed = 0;
    for (int i = 0; i < all->n; i++)
        if (all->choice[i].trial) settle(&all->choice[i]);
}

void trials_close(Choices *all)
{
    for (int i = 0; i < all->n; i++) free(all->choice[i].trial);
    for (int i = 0; i < MAX_TIMED; i++)
        for (int k = 0; k < 2; k++)
            if (all->timed[i].mark[k]) (void)cudaEventDestroy(all->timed[i].mark[k]);
}

int cuda_autotune_left(const DeviceContext *c)
{
    int n = 0;
    for (int i = 0; i < c->choices->n; i++) n += c->choices->choice[i].trial != NULL;
    return n;
}

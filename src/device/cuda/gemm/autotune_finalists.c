/* autotune_finalists.c -- the last few algorithms of a GEMM, timed inside the training step.
 *
 * The fastest algorithm in a loop over the same operands need not be the fastest between other ops,
 * which leave the caches and the clock in another state. While the context measures, a GEMM with
 * several finalists runs them in turn, between two recorded events. When measuring ends, the one
 * with the least mean time stays.
 *
 *     norm  [gemm 0]  gelu  [gemm 0]  ..  norm  [gemm 1]  gelu  [gemm 1]  ..  norm  [gemm 0] ..
 *
 * Events are read after MAX_TIMED_RUNS launches, so that the GPU seldom waits for the host. */
#include "device/cuda/gemm/autotune.h"

#include <stdlib.h>

Err finalists_open(GemmEntry *c, const cublasLtMatmulAlgo_t *algo, int n)
{
    Finalists *f = calloc(1, sizeof *f);
    if (!f) return err_fail(ERR_NOMEM, "cuda: no memory for %d algorithms of a GEMM", n);
    for (int i = 0; i < n; i++) f->algo[i] = algo[i];
    f->n = n;
    c->finalists = f;
    return OK;
}

/* Reads the recorded events and adds each time to its finalist. */
static Err read_events(Autotuner *all)
{
    for (int i = 0; i < all->n_timed; i++) {
        const TimedRun *timed = &all->timed[i];
        Finalists *f = all->entry[timed->entry].finalists;
        float ms;
        if (!f) continue; /* a file has decided it since then */
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

/* Returns each finalist once per n launches, from a hashed start. With a fixed order, a GEMM at n
 * positions of a program would run the same finalist at the same position in every pass. */
static int next_finalist(Finalists *f)
{
    const int launch = f->launches++;
    uint32_t drawn = (uint32_t)(launch / f->n) * 2654435769u;
    drawn = (drawn ^ drawn >> 15) * 2246822519u;
    const int first = (int)((uint64_t)drawn * (uint64_t)f->n >> 32);
    return (launch + first) % f->n;
}

/* Between timed launches c->algo is the fastest known, algo[0]. */
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

/* Keeps the finalist with the least mean time, or the first one if none ran. */
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
    (void)read_events(all); /* events that cannot be read decide nothing */
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

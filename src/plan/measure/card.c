/* card.c -- operands in device memory, and seconds by the device's own clock. */
#include "plan/measure/card.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/philox.h"

enum { MAX_BATCHES = 32, LEAST_BATCHES = 5, MAX_IN_BATCH = 512, HEAT = 2 };
enum { RANDOM_BYTES = 1 << 26, HOST_BLOCK = 1 << 21 };
static const double batch_s = 2e-3;

/* ---- operands ---- */

/* The first RANDOM_BYTES of the block of operands: bf16 of normal random numbers. Two of them side
 * by side are an f32 of the same size. */
static Err fill_random(Measurer *m, char *block)
{
    const Random random = random_named(0, "operands");
    uint16_t *host;
    TRY(ARENA_NEW(m->r->arena, HOST_BLOCK / 2, &host));
    for (size_t i = 0; i < HOST_BLOCK / 2; i++) {
        const float x = (float)random_normal(&random, i);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        host[i] = (uint16_t)(bits >> 16);
    }
    TRY(m->rt->copy(m->queue, block, host, HOST_BLOCK));
    for (size_t n = HOST_BLOCK; n < RANDOM_BYTES; n *= 2)
        TRY(m->rt->copy(m->queue, block + n, block, n));
    return m->rt->sync(m->queue);
}

static void set_shape(Tensor *t, DType dtype, int ndim, const int64_t *n)
{
    int64_t step = 1;
    *t = (Tensor){.dtype = dtype, .ndim = ndim};
    for (int i = ndim - 1; i >= 0; i--) {
        t->n[i] = n[i];
        t->stride[i] = step;
        step *= n[i];
    }
}

Err card_tensor(Measurer *m, DType dtype, int ndim, const int64_t *n, Tensor *out)
{
    void *at;
    set_shape(out, dtype, ndim, n);
    const size_t bytes = (size_t)tensor_count(out) * dtype_bytes(dtype);
    TRY(arena_push(m->operands, bytes, &at));
    for (size_t done = 0; done < bytes; done += RANDOM_BYTES) {
        const size_t left = bytes - done;
        TRY(m->rt->copy(m->queue, (char *)at + done, m->operands->base,
                        left < RANDOM_BYTES ? left : RANDOM_BYTES));
    }
    out->data = at;
    return OK;
}

Err card_matrix(Measurer *m, DType dtype, int64_t rows, int64_t columns, Tensor *out)
{
    const int64_t n[] = {rows, columns};
    return card_tensor(m, dtype, 2, n, out);
}

Err card_integers(Measurer *m, int ndim, const int64_t *n, const int32_t *value, Tensor *out)
{
    set_shape(out, I32, ndim, n);
    const size_t bytes = (size_t)tensor_count(out) * sizeof *value;
    TRY(arena_push(m->operands, bytes, &out->data));
    TRY(m->rt->copy(m->queue, out->data, value, bytes));
    return m->rt->sync(m->queue);
}

/* ---- seconds ---- */

typedef struct {
    CardWork *enqueue;
    void *work;
    int times; /* the work in a batch */
    DeviceGraph *graph;
    DeviceTimestamps *stamps;
} Batch;

static Err enqueue_times(Measurer *m, const Batch *b, int times)
{
    for (int i = 0; i < times; i++) TRY(b->enqueue(m, b->work));
    return OK;
}

/* The work once, and then three times: the seconds of one, launches included. */
static Err estimate(Measurer *m, const Batch *b, double *seconds)
{
    TRY(enqueue_times(m, b, 1));
    TRY(m->rt->sync(m->queue));
    const double start = now_s();
    TRY(enqueue_times(m, b, 3));
    TRY(m->rt->sync(m->queue));
    *seconds = (now_s() - start) / 3;
    return OK;
}

static Err capture(Measurer *m, Batch *b)
{
    const DeviceGraphs *g = m->rt->graphs;
    if (!g) return OK;
    TRY(g->capture_begin(m->queue));
    const Err err = enqueue_times(m, b, b->times);
    const Err ended = g->capture_end(m->queue, err == OK ? &b->graph : NULL);
    return err == OK ? ended : err;
}

static Err run_batch(Measurer *m, const Batch *b)
{
    return b->graph ? m->rt->graphs->graph_run(m->queue, b->graph) : enqueue_times(m, b, b->times);
}

static Err heat(Measurer *m, const Batch *b)
{
    for (const double until = now_s() + HEAT * m->s->budget_s; now_s() < until;) {
        TRY(run_batch(m, b));
        TRY(run_batch(m, b));
        TRY(m->rt->sync(m->queue));
    }
    return OK;
}

static Err time_batches(Measurer *m, const Batch *b, int n, Measured *row)
{
    double at[MAX_BATCHES + 1];
    TRY(m->rt->timestamp(m->queue, b->stamps, 0));
    for (int i = 0; i < n; i++) {
        TRY(run_batch(m, b));
        TRY(m->rt->timestamp(m->queue, b->stamps, i + 1));
    }
    TRY(m->rt->sync(m->queue));
    TRY(m->rt->timestamps_read(b->stamps, n + 1, at));
    for (int i = 0; i < n; i++) m->seconds[i] = (at[i + 1] - at[i]) / b->times;
    row->value = measure_median(m->seconds, n);
    row->spread = (m->seconds[3 * n / 4] - m->seconds[n / 4]) / row->value;
    return OK;
}

static Err time_batch(Measurer *m, Batch *b, Measured *row)
{
    double each;
    TRY(estimate(m, b, &each));
    b->times = (int)fmax(1, fmin(MAX_IN_BATCH, batch_s / each));
    const double budget = m->s->budget_s / (each * b->times);
    TRY(capture(m, b));
    TRY(heat(m, b));
    return time_batches(m, b, (int)fmax(LEAST_BATCHES, fmin(MAX_BATCHES, budget)), row);
}

Err card_seconds(Measurer *m, CardWork *enqueue, void *work, Measured *row)
{
    DeviceContext *c = m->context;
    Batch b = {.enqueue = enqueue, .work = work};
    TRY(m->rt->timestamps_open(c, MAX_BATCHES + 1, &b.stamps));
    const Err err = time_batch(m, &b, row);
    if (b.graph) m->rt->graphs->graph_close(b.graph);
    m->rt->timestamps_close(b.stamps);
    return err;
}

static Err enqueue_call(Measurer *m, void *work)
{
    const TimedCall *t = work;
    (void)m;
    return t->kernel(&t->call);
}

Err card_call_seconds(Measurer *m, KernelId kernel, const Call *call, double *seconds)
{
    TimedCall t = {m->s->device->kernel[kernel], *call};
    Measured row = {0};
    t.call.queue = m->queue;
    TRY(card_seconds(m, enqueue_call, &t, &row));
    *seconds = row.value;
    m->spread = row.spread;
    return OK;
}

void card_keep(Measurer *m, const char *what, const char *unit, double value, double spread)
{
    m->out->row[m->out->n++] = (Measured){what, unit, value, spread};
}

/* ---- the whole card ---- */

enum { OPERANDS_GIB = 6 };

static Err measure_operands(Measurer *m, Arena *operands)
{
    void *random;
    TRY(arena_push(operands, RANDOM_BYTES, &random));
    TRY(fill_random(m, random));
    TRY(card_rates(m));
    return card_gemms(m);
}

Err measure_card(Measurer *m)
{
    const size_t bytes = m->s->grid == GRID_SMALL ? (size_t)1 << 28 : (size_t)OPERANDS_GIB << 30;
    void *block;
    m->rt->deterministic(m->context, false);
    TRY(m->rt->alloc(m->context, bytes, &block));
    Arena operands = {
        .name = "device operands", .base = block, .cap_bytes = bytes, .is_device = true};
    m->operands = &operands;
    const Err err = measure_operands(m, &operands);
    m->rt->free(m->context, block);
    m->operands = m->r->arena;
    return err;
}

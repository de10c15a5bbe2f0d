/* peak.c -- a product of SIZE^3, timed; and the file that remembers. */
#define _DEFAULT_SOURCE
#include "train/peak.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/arena.h"
#include "base/clock.h"
#include "base/philox.h"

enum { SIZE = 768, TRIES = 20 };
static const double budget_s = 0.02; /* starting is not to wait: a low peak is raised later */

static Err make_operand(Arena *a, DType dtype, Tensor *out)
{
    *out = (Tensor){.dtype = dtype, .ndim = 2, .n = {SIZE, SIZE}, .stride = {SIZE, 1}};
    TRY(arena_push(a, (size_t)SIZE * SIZE * dtype_bytes(dtype), &out->data));
    memset(out->data, 0,
           (size_t)SIZE * SIZE * dtype_bytes(dtype)); /* zeros multiply as fast as others */
    return OK;
}

static Err time_products(const PeakOf *of, Arena *a, double *best)
{
    Call c = {.n_in = 2, .n_out = 1, .team = of->team, .attr = {.gemm = {.tb = true}}};
    for (int i = 0; i < 2; i++) TRY(make_operand(a, of->dtype, &c.in[i]));
    TRY(make_operand(a, of->dtype, &c.out[0]));
    const double start = now_s();
    *best = 0;
    for (int i = 0; i < TRIES && (i < 1 || now_s() - start < budget_s); i++) {
        const double before = now_s();
        TRY(of->device->kernel[KERNEL_gemm](&c));
        const double rate = 2.0 * SIZE * SIZE * (double)SIZE / (now_s() - before);
        if (rate > *best) *best = rate;
    }
    return OK;
}

/* ---- on a device with memory of its own: larger products, of numbers that cost power ---- */

enum { FAR_SIZE = 8192, FAR_WARM = 3, FAR_TRIES = 10, FAR_BLOCK = 1 << 20 };

typedef struct {
    const PeakOf *of;
    const DeviceRuntime *m;
    DeviceContext *context;
    DeviceQueue *q;
    void *at[3], *block;
} Far;

/* Normal ones: a card is faster on zeros than on any weights. */
static Err fill_operand(Far *f, int i)
{
    const size_t each = dtype_bytes(f->of->dtype), bytes = (size_t)FAR_SIZE * FAR_SIZE * each;
    const Random random = random_named((uint64_t)i, "peak");
    for (int64_t k = 0; k < FAR_BLOCK; k++) {
        const float x = (float)random_normal(&random, (uint64_t)k);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (f->of->dtype == BF16)
            ((uint16_t *)f->block)[k] = (uint16_t)(bits >> 16);
        else
            ((uint32_t *)f->block)[k] = bits;
    }
    TRY(f->m->alloc(f->context, bytes, &f->at[i]));
    for (size_t at = 0; at < bytes; at += FAR_BLOCK * each)
        TRY(f->m->copy(f->q, (char *)f->at[i] + at, f->block, FAR_BLOCK * each));
    return f->m->sync(f->q);
}

static Err time_far(Far *f, double *best)
{
    Call c = {.n_in = 2, .n_out = 1, .attr = {.gemm = {.tb = true}}, .queue = f->q};
    TRY(f->m->alloc_host(f->context, FAR_BLOCK * dtype_bytes(f->of->dtype), &f->block));
    for (int i = 0; i < 3; i++) TRY(fill_operand(f, i));
    for (int i = 0; i < 3; i++)
        *(i < 2 ? &c.in[i] : &c.out[0]) =
            (Tensor){f->at[i], f->of->dtype, 2, {FAR_SIZE, FAR_SIZE}, {FAR_SIZE, 1}};
    f->m->autotune->measure(f->context, true);
    *best = 0;
    for (int i = 0; i < FAR_WARM + FAR_TRIES; i++) {
        const double before = now_s();
        TRY(f->of->device->kernel[KERNEL_gemm](&c));
        TRY(f->m->sync(f->q));
        const double rate = 2.0 * FAR_SIZE * FAR_SIZE * (double)FAR_SIZE / (now_s() - before);
        if (i >= FAR_WARM && rate > *best) *best = rate;
    }
    return OK;
}

static Err measure_far(const PeakOf *of, double *best)
{
    Far f = {.of = of, .m = of->device->runtime};
    TRY(f.m->open(0, &f.context));
    f.q = f.m->queue(f.context, QUEUE_COMPUTE);
    const Err err = time_far(&f, best);
    for (int i = 0; i < 3; i++)
        if (f.at[i]) f.m->free(f.context, f.at[i]);
    if (f.block) f.m->free_host(f.context, f.block);
    f.m->close(f.context);
    return err;
}

Err peak_measure(const PeakOf *of, double *flops_per_s)
{
    Arena a;
    if (of->device->runtime) return measure_far(of, flops_per_s);
    TRY(arena_open(&a, "peak", (size_t)SIZE * SIZE * 3 * 8 + 4096));
    const Err err = time_products(of, &a, flops_per_s);
    arena_close(&a);
    return err;
}

/* Replaced as a whole: a run beside this one sees the old file or the new. */
static void remember(const char *cache, json_t *file, const char *key, double rate)
{
    char temporary[1024];
    snprintf(temporary, sizeof temporary, "%s.%ld", cache, (long)getpid());
    json_object_set_new(file, key, json_real(rate));
    if (json_dump_file(file, temporary, JSON_INDENT(1)) != 0 || rename(temporary, cache) != 0)
        unlink(temporary);
}

static void name_key(const PeakOf *of, char *key, size_t bytes)
{
    snprintf(key, bytes, "%s, %s, %d threads, %s", of->text, dtype_name(of->dtype),
             team_threads(of->team), of->processor);
}

void peak_raise(const PeakOf *of, const char *cache, double flops_per_s)
{
    char key[512];
    name_key(of, key, sizeof key);
    json_t *file = json_load_file(cache, 0, NULL);
    if (json_is_object(file) && flops_per_s > json_number_value(json_object_get(file, key)))
        remember(cache, file, key, flops_per_s);
    json_decref(file);
}

Err peak_load(const PeakOf *of, const char *cache, double *flops_per_s, bool *measured)
{
    char key[512];
    name_key(of, key, sizeof key);
    json_t *file = cache ? json_load_file(cache, 0, NULL) : NULL;
    const double kept = json_number_value(json_object_get(file, key));
    *measured = !(kept > 0);
    Err err = OK;
    *flops_per_s = kept;
    if (*measured) err = peak_measure(of, flops_per_s);
    if (err == OK && *measured && cache) {
        if (!json_is_object(file)) {
            json_decref(file);
            file = json_object();
        }
        remember(cache, file, key, *flops_per_s);
    }
    json_decref(file);
    return err;
}

/* profile.c -- times a GEMM of SIZE^3 and stores the best rate in the cache file.
 *
 *     host memory      768^3, operands zero, about 20 ms
 *     device memory    8192^3, operands normal random numbers, 3 warm-up runs and 10 timed runs */
#define _DEFAULT_SOURCE
#include "plan/profile.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/arena.h"
#include "base/clock.h"
#include "base/philox.h"

enum { SIZE = 768, TRIES = 20 };
static const double budget_s = 0.02; /* bounds the start-up delay; a step raises a low peak later */

static Err make_operand(Arena *a, DType dtype, Tensor *out)
{
    *out = (Tensor){.dtype = dtype, .ndim = 2, .n = {SIZE, SIZE}, .stride = {SIZE, 1}};
    TRY(arena_push(a, (size_t)SIZE * SIZE * dtype_bytes(dtype), &out->data));
    /* Zeros: a CPU multiplies all values at the same rate. */
    memset(out->data, 0, (size_t)SIZE * SIZE * dtype_bytes(dtype));
    return OK;
}

static Err time_host(const ProfileTarget *target, Arena *a, double *best)
{
    Call c = {.n_in = 2, .n_out = 1, .team = target->team, .attr = {.gemm = {.tb = true}}};
    for (int i = 0; i < 2; i++) TRY(make_operand(a, target->dtype, &c.in[i]));
    TRY(make_operand(a, target->dtype, &c.out[0]));
    const double start = now_s();
    *best = 0;
    for (int i = 0; i < TRIES && (i < 1 || now_s() - start < budget_s); i++) {
        const double before = now_s();
        TRY(target->device->kernel[KERNEL_gemm](&c));
        const double rate = 2.0 * SIZE * SIZE * (double)SIZE / (now_s() - before);
        if (rate > *best) *best = rate;
    }
    return OK;
}

/* ---- a device with its own memory: larger GEMMs ---- */

enum { DEVICE_SIZE = 8192, DEVICE_WARM_UP = 3, DEVICE_TRIES = 10, FILL_BLOCK = 1 << 20 };

typedef struct {
    const ProfileTarget *target;
    const DeviceRuntime *rt;
    DeviceContext *context;
    DeviceQueue *q;
    void *at[3]; /* operands and result, in device memory */
    void *block; /* FILL_BLOCK random numbers, in pinned host memory */
} DeviceGemm;

/* Fills an operand with normal random numbers. On zeros a GPU draws less power and runs at a higher
 * clock than in training. */
static Err fill_operand(DeviceGemm *f, int i)
{
    const size_t each = dtype_bytes(f->target->dtype),
                 bytes = (size_t)DEVICE_SIZE * DEVICE_SIZE * each;
    const Random random = random_named((uint64_t)i, "peak");
    for (int64_t k = 0; k < FILL_BLOCK; k++) {
        const float x = (float)random_normal(&random, (uint64_t)k);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (f->target->dtype == BF16)
            ((uint16_t *)f->block)[k] = (uint16_t)(bits >> 16);
        else
            ((uint32_t *)f->block)[k] = bits;
    }
    TRY(f->rt->alloc(f->context, bytes, &f->at[i]));
    for (size_t at = 0; at < bytes; at += FILL_BLOCK * each)
        TRY(f->rt->copy(f->q, (char *)f->at[i] + at, f->block, FILL_BLOCK * each));
    return f->rt->sync(f->q);
}

static Err time_device(DeviceGemm *f, double *best)
{
    Call c = {.n_in = 2, .n_out = 1, .attr = {.gemm = {.tb = true}}, .queue = f->q};
    TRY(f->rt->alloc_host(f->context, FILL_BLOCK * dtype_bytes(f->target->dtype), &f->block));
    for (int i = 0; i < 3; i++) TRY(fill_operand(f, i));
    for (int i = 0; i < 3; i++)
        *(i < 2 ? &c.in[i] : &c.out[0]) =
            (Tensor){f->at[i], f->target->dtype, 2, {DEVICE_SIZE, DEVICE_SIZE}, {DEVICE_SIZE, 1}};
    if (f->rt->autotune) f->rt->autotune->measure(f->context, true);
    *best = 0;
    for (int i = 0; i < DEVICE_WARM_UP + DEVICE_TRIES; i++) {
        const double before = now_s();
        TRY(f->target->device->kernel[KERNEL_gemm](&c));
        TRY(f->rt->sync(f->q));
        const double rate =
            2.0 * DEVICE_SIZE * DEVICE_SIZE * (double)DEVICE_SIZE / (now_s() - before);
        if (i >= DEVICE_WARM_UP && rate > *best) *best = rate;
    }
    return OK;
}

static Err measure_device(const ProfileTarget *target, double *best)
{
    DeviceGemm f = {.target = target, .rt = target->device->runtime};
    TRY(f.rt->open(0, &f.context));
    f.q = f.rt->queue(f.context, QUEUE_COMPUTE);
    const Err err = time_device(&f, best);
    for (int i = 0; i < 3; i++)
        if (f.at[i]) f.rt->free(f.context, f.at[i]);
    if (f.block) f.rt->free_host(f.context, f.block);
    f.rt->close(f.context);
    return err;
}

Err profile_peak_measure(const ProfileTarget *target, double *flops_per_s)
{
    Arena a;
    if (target->device->runtime) return measure_device(target, flops_per_s);
    TRY(arena_open(&a, "peak", (size_t)SIZE * SIZE * 3 * 8 + 4096));
    const Err err = time_host(target, &a, flops_per_s);
    arena_close(&a);
    return err;
}

/* Replaces the file atomically: a concurrent run reads either the old file or the new one. */
static void store(const char *cache, json_t *file, const char *key, double rate)
{
    char temporary[1024];
    snprintf(temporary, sizeof temporary, "%s.%ld", cache, (long)getpid());
    json_object_set_new(file, key, json_real(rate));
    if (json_dump_file(file, temporary, JSON_INDENT(1)) != 0 || rename(temporary, cache) != 0)
        unlink(temporary);
}

static void name_key(const ProfileTarget *target, char *key, size_t bytes)
{
    snprintf(key, bytes, "%s, %s, %d threads, %s", target->text, dtype_name(target->dtype),
             team_threads(target->team), target->processor);
}

void profile_peak_raise(const ProfileTarget *target, const char *cache, double flops_per_s)
{
    char key[512];
    name_key(target, key, sizeof key);
    json_t *file = json_load_file(cache, 0, NULL);
    if (json_is_object(file) && flops_per_s > json_number_value(json_object_get(file, key)))
        store(cache, file, key, flops_per_s);
    json_decref(file);
}

Err profile_peak_load(const ProfileTarget *target, const char *cache, double *flops_per_s,
                      bool *measured)
{
    char key[512];
    name_key(target, key, sizeof key);
    json_t *file = cache ? json_load_file(cache, 0, NULL) : NULL;
    const double stored = json_number_value(json_object_get(file, key));
    *measured = !(stored > 0);
    Err err = OK;
    *flops_per_s = stored;
    if (*measured) err = profile_peak_measure(target, flops_per_s);
    if (err == OK && *measured && cache) {
        if (!json_is_object(file)) {
            json_decref(file);
            file = json_object();
        }
        store(cache, file, key, *flops_per_s);
    }
    json_decref(file);
    return err;
}

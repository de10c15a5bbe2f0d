/* kernels.c -- random tensors in device memory, and the time of kernels on them. */
#define _POSIX_C_SOURCE 200809L
#include "support/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support/clock.h"

enum { BLOCK = 1 << 24 };

/* Measured on an H200: a device copy, and a large bf16 GEMM. */
static const double copy_Bps = 4.3e12, bf16_flops = 8.0e14;

void must(Err err)
{
    if (err == OK) return;
    fprintf(stderr, "bench: %s\n", err_text());
    exit(1);
}

/* Uniform in (-1, 1), once as bf16 and once as f32; tensors are filled by copies of these. */
static void make_random(Bench *b)
{
    uint64_t seed = 42;
    uint16_t *half = malloc(BLOCK * sizeof *half);
    float *whole = malloc(BLOCK * sizeof *whole);
    if (!half || !whole) exit(1);
    for (int i = 0; i < BLOCK; i++) {
        uint32_t bits;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        whole[i] = (float)(int32_t)(seed >> 32) / 2147483648.0f;
        memcpy(&bits, &whole[i], sizeof bits);
        half[i] = (uint16_t)(bits >> 16);
    }
    b->random_f32 = (float *)(b->base + b->bytes);
    b->random_bf16 = (uint16_t *)(b->random_f32 + BLOCK);
    must(b->m->copy(b->q, b->random_f32, whole, BLOCK * sizeof *whole));
    must(b->m->copy(b->q, b->random_bf16, half, BLOCK * sizeof *half));
    must(b->m->sync(b->q));
    free(half);
    free(whole);
}

Tensor bench_make(Bench *b, DType type, int64_t n0, int64_t n1, int64_t n2)
{
    Tensor t = {.dtype = type, .ndim = n2 ? 3 : n1 ? 2 : 1, .n = {n0, n1, n2}};
    t.stride[t.ndim - 1] = 1;
    for (int d = t.ndim - 2; d >= 0; d--) t.stride[d] = t.stride[d + 1] * t.n[d + 1];
    const size_t bytes = (size_t)tensor_count(&t) * dtype_bytes(type);
    t.data = b->base + b->used;
    b->used += (bytes + 255) / 256 * 256;
    if (b->used > b->bytes) must(err_fail(ERR_NOMEM, "the bench needs %zu bytes", b->used));
    const void *from = type == BF16 ? (const void *)b->random_bf16 : b->random_f32;
    const size_t block = BLOCK * dtype_bytes(type == BF16 ? BF16 : F32);
    for (size_t at = 0; at < bytes && type != I32; at += block)
        must(b->m->copy(b->q, (char *)t.data + at, from, bytes - at < block ? bytes - at : block));
    return t;
}

Tensor bench_ints(Bench *b, int64_t n, int64_t below, bool positions)
{
    const Tensor t = bench_make(b, I32, n, 0, 0);
    int32_t *host = malloc((size_t)n * sizeof *host);
    if (!host) exit(1);
    for (int64_t i = 0; i < n; i++)
        host[i] = (int32_t)(positions ? i % below : (int64_t)((uint64_t)i * 2654435761u) % below);
    must(b->m->copy(b->q, t.data, host, (size_t)n * sizeof *host));
    must(b->m->sync(b->q));
    free(host);
    return t;
}

Tensor bench_ranges(Bench *b, int64_t n, int64_t seq)
{
    const Tensor t = bench_make(b, I32, n, 4, 0);
    int32_t *host = calloc((size_t)n * 4, sizeof *host);
    if (!host) exit(1);
    for (int64_t i = 0; i < n; i++) {
        host[4 * i] = (int32_t)(i - i % seq);
        host[4 * i + 1] = (int32_t)(i + 1);
    }
    must(b->m->copy(b->q, t.data, host, (size_t)n * 4 * sizeof *host));
    must(b->m->sync(b->q));
    free(host);
    return t;
}

void bench_open(Bench *b, const Device *device, size_t bytes)
{
    *b = (Bench){.device = device, .m = device->runtime, .bytes = bytes};
    must(b->m->open(0, &b->context));
    b->q = b->m->queue(b->context, QUEUE_COMPUTE);
    must(b->m->alloc(b->context, b->bytes + (size_t)BLOCK * 6, (void **)&b->base));
    make_random(b);
}

void bench_close(Bench *b)
{
    b->m->free(b->context, b->base);
    b->m->close(b->context);
}

void bench_clear(Bench *b) { b->used = 0; }

double bench_time(Bench *b, KernelId id, const Call *call)
{
    Call c = *call;
    c.queue = b->q;
    b->m->autotune->measure(b->context, b->measures);
    for (int i = 0; i < (b->measures ? BENCH_REPEATS : 2); i++) must(b->device->kernel[id](&c));
    b->m->autotune->measure(b->context, false); /* timed calls use one algorithm */
    must(b->m->sync(b->q));
    const double start = now_s();
    for (int i = 0; i < BENCH_REPEATS; i++) must(b->device->kernel[id](&c));
    must(b->m->sync(b->q));
    return (now_s() - start) / BENCH_REPEATS;
}

void say_bytes(const char *what, double s, double bytes)
{
    printf("  %-34s %9.3f ms  %7.0f GB/s  %5.1f%% of the floor\n", what, 1e3 * s, 1e-9 * bytes / s,
           100 * bytes / copy_Bps / s);
    fflush(stdout);
}

void say_flops(const char *what, double s, double flops)
{
    printf("  %-34s %9.3f ms  %7.1f TFLOP/s %4.1f%% of the floor\n", what, 1e3 * s,
           1e-12 * flops / s, 100 * flops / bf16_flops / s);
    fflush(stdout);
}

double bytes_of(const Call *c)
{
    double bytes = 0;
    for (int i = 0; i < c->n_in; i++)
        bytes += (double)tensor_count(&c->in[i]) * (double)dtype_bytes(c->in[i].dtype);
    for (int i = 0; i < c->n_out; i++)
        bytes += (double)tensor_count(&c->out[i]) * (double)dtype_bytes(c->out[i].dtype);
    return bytes;
}

void bench_bytes(Bench *b, const char *what, KernelId id, const Call *c)
{
    say_bytes(what, bench_time(b, id, c), bytes_of(c));
    bench_clear(b);
}

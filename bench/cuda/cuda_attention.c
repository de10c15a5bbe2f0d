/* cuda_attention.c -- attention at eight shapes, forward and backward: five causal ones, by our own
 * kernels and by cuDNN's, and three of packed documents, by our own.
 *
 *     build/release/bench/cuda_attention [sheaf-cuda.so] [SHAPE ... | -]
 *
 * A SHAPE is a number from 0; without one, all are measured. `-` reads them from standard input and
 * answers each with one line, so that torch_attention.py can measure PyTorch by turns. Rates count
 * visible pairs of queries and keys. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/registry.h"
#include "support/clock.h"
#include "support/kernels.h"

#ifndef BENCH_CUDA_OBJECT
#define BENCH_CUDA_OBJECT NULL /* next to this program */
#endif

typedef struct {
    int64_t batch, seq, heads, key_heads, channels;
    double document; /* mean length; 0: whole sequences */
} Shape;

static const Shape shapes[] = {
    {64, 1024, 12, 12, 64, 0},  {8, 4096, 32, 8, 64, 0},       {1, 32768, 32, 8, 64, 0},
    {4, 8192, 32, 8, 128, 0},   {1, 32768, 32, 8, 128, 0},     {64, 1024, 12, 12, 64, 700},
    {8, 4096, 32, 32, 64, 700}, {1, 32768, 32, 32, 128, 2000},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Ranges of causal attention inside documents of exponential lengths, 20 or more; returns the
 * visible pairs. torch_attention.py draws the same lengths. */
static double document_ranges(Bench *b, const Shape *s, Tensor *out)
{
    const int64_t tokens = s->batch * s->seq;
    int32_t *host = calloc((size_t)tokens * 4, sizeof *host);
    uint64_t seed = 12345;
    double pairs = 0;
    if (!host) exit(1);
    for (int64_t at = 0; at < tokens;) {
        const int64_t row_end = (at / s->seq + 1) * s->seq;
        int64_t end = row_end;
        if (s->document > 0) {
            seed = (1103515245 * seed + 12345) % 2147483648u;
            const int64_t n = (int64_t)(-s->document * log(((double)seed + 0.5) / 2147483648.0));
            end = at + (n < 20 ? 20 : n);
            if (end > row_end) end = row_end;
        }
        const double n = (double)(end - at);
        pairs += n * (n + 1) / 2;
        for (int64_t t = at; t < end; t++)
            host[4 * t] = (int32_t)at, host[4 * t + 1] = (int32_t)(t + 1);
        at = end;
    }
    *out = bench_make(b, I32, tokens, 4, 0);
    must(b->m->copy(b->q, out->data, host, (size_t)tokens * 4 * sizeof *host));
    must(b->m->sync(b->q));
    free(host);
    return pairs;
}

static void say(const char *what, const Shape *s, double pairs, double forward, double backward)
{
    const double flops = 4 * pairs * (double)s->heads * (double)s->channels;
    printf("%s: forward %.3f ms %.0f TF/s, backward %.3f ms %.0f TF/s; ", what, 1e3 * forward,
           1e-12 * flops / forward, 1e3 * backward, 2.5e-12 * flops / backward);
}

/* Runs both calls while the device measures, then names the kernels of all attention shapes in its
 * file of choices: 1 our own for sm_90, 2 cuDNN's, 3 our generic ones. */
static void force_kernels(Bench *b, Call *f, Call *back, int by)
{
    static const char path[] = "cuda_attention.choices";
    static char text[1 << 16];
    f->queue = back->queue = b->q;
    b->m->autotune->measure(b->context, true);
    must(b->device->kernel[KERNEL_attention](f));
    must(b->device->kernel[KERNEL_attention_dx](back));
    b->m->autotune->measure(b->context, false);
    must(b->m->autotune->save(b->context, path));
    FILE *file = fopen(path, "r+");
    if (!file) exit(1);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    for (char *at = strstr(text, "\nattention "); at; at = strstr(at + 1, "\nattention "))
        strstr(at, ": ")[2] = (char)('0' + by);
    rewind(file);
    fputs(text, file);
    fclose(file);
    must(b->m->autotune->load(b->context, path));
    (void)remove(path);
}

/* Times both kernels, by our own or by cuDNN's. */
static void time_kernels(Bench *b, Call *f, Call *back, int by, double seconds[2])
{
    force_kernels(b, f, back, by);
    seconds[0] = bench_time(b, KERNEL_attention, f);
    seconds[1] = bench_time(b, KERNEL_attention_dx, back);
}

static void bench_shape(Bench *b, int number)
{
    const Shape *s = &shapes[number];
    const int64_t t = s->batch * s->seq, h = s->heads, g = s->key_heads, c = s->channels;
    Call f = {.n_in = 4, .n_out = 2}, back = {.n_in = 7, .n_out = 3};
    double seconds[2];
    for (int i = 0; i < 3; i++) f.in[i] = bench_make(b, BF16, t, i ? g : h, c);
    const double pairs = document_ranges(b, s, &f.in[3]);
    f.out[0] = bench_make(b, BF16, t, h, c), f.out[1] = bench_make(b, F32, t, h, 0);
    f.attr.attention.scale = 1 / sqrt((double)c);
    f.attr.attention.causal = s->document == 0 ? s->seq : 0; /* for cuDNN */
    back.attr = f.attr;
    for (int i = 0; i < 4; i++) back.in[i] = f.in[i];
    back.in[4] = bench_make(b, BF16, t, h, c), back.in[5] = f.out[1], back.in[6] = f.out[0];
    for (int i = 0; i < 3; i++) back.out[i] = bench_make(b, BF16, t, i ? g : h, c);
    printf("%lld x %lld, heads %lld/%lld of %lld, documents %.0f: ", (long long)s->batch,
           (long long)s->seq, (long long)h, (long long)g, (long long)c, s->document);
    time_kernels(b, &f, &back, 1, seconds);
    say("ours", s, pairs, seconds[0], seconds[1]);
    b->m->deterministic(b->context, true);
    time_kernels(b, &f, &back, 1, seconds);
    b->m->deterministic(b->context, false);
    printf("deterministic backward %.3f ms; ", 1e3 * seconds[1]);
    if (s->document == 0) {
        time_kernels(b, &f, &back, 2, seconds);
        say("by cuDNN", s, pairs, seconds[0], seconds[1]);
    }
    printf("\n");
    fflush(stdout);
    bench_clear(b);
}

static void bench_named(Bench *b, const char *text)
{
    char *end;
    const long number = strtol(text, &end, 10);
    if (*end || end == text || number < 0 || number >= N_SHAPES)
        must(err_fail(ERR_CONFIG, "shape '%s': a number from 0 to %d", text, N_SHAPES - 1));
    bench_shape(b, (int)number);
}

int main(int argc, char **argv)
{
    Bench b;
    const Device *device;
    char line[64];
    device_cuda_search(getenv("PATH"));
    if (device_open("cuda", argc > 1 ? argv[1] : BENCH_CUDA_OBJECT, &device) != OK) {
        printf("SKIPPED, nothing was measured: %s\n", err_text());
        return 0;
    }
    bench_open(&b, device, (size_t)8 << 30);
    b.m->deterministic(b.context, false); /* as PyTorch, and training by default */
    for (int i = 0; i < N_SHAPES && argc < 3; i++) bench_shape(&b, i);
    for (int i = 2; i < argc && strcmp(argv[i], "-") != 0; i++) bench_named(&b, argv[i]);
    while (argc == 3 && strcmp(argv[2], "-") == 0 && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        bench_named(&b, line);
    }
    bench_close(&b);
    return 0;
}

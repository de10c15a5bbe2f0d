/* attention.c -- attention on the CPU against its floor: flops of the tiles that are not empty over
 * the GEMM rate of the type. Both are measured here, on one thread.
 *
 *     attention [f32|bf16] [T [heads [channels]]] [microkernel=fma|dot|amx]
 *
 * microkernel= selects the micro-kernel for bf16 (microkernels.h); default: the fastest of the CPU.
 *
 * Seconds are CPU time of the thread. The rate is measured again for each row, because the clock of
 * a core varies. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cpu/cpu.h"
#include "support/microkernel_option.h"

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static Tensor make(DType type, int64_t t, int64_t h, int64_t c)
{
    const int64_t inner = c > 0 ? c : 1, n = t * h * inner;
    Tensor x = {
        .data = malloc((size_t)n * dtype_bytes(type)), .dtype = type, .ndim = c > 0 ? 3 : 2};
    const int64_t extent[3] = {t, h, inner}, stride[3] = {h * inner, inner, 1};
    if (!x.data) exit(1);
    memcpy(x.n, extent, sizeof extent);
    memcpy(x.stride, stride, sizeof stride);
    for (int64_t i = 0; i < n && type != I32; i++) {
        const float value = (float)(rand() % 2001 - 1000) * 1e-3f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (type == F32)
            ((float *)x.data)[i] = value;
        else
            ((uint16_t *)x.data)[i] = (uint16_t)(bits >> 16);
    }
    return x;
}

/* Heads [from, from + n) of x. */
static Tensor heads_of(Tensor x, int64_t from, int64_t n)
{
    x.data = (char *)x.data + (size_t)(from * x.stride[1]) * dtype_bytes(x.dtype);
    x.n[1] = n;
    return x;
}

static double best_of(Kernel kernel, const Call *call)
{
    double best = 1e9;
    for (int i = 0; i < 7; i++) {
        const double start = now_s();
        if (kernel(call) != OK) exit(1);
        const double s = now_s() - start;
        best = s < best ? s : best;
    }
    return best;
}

static void print_row(const char *name, DType type, double seconds, double flops)
{
    const double rate = device_cpu_peak(type);
    printf("%-12s  %8.2f ms  %6.1f Gflop/s  of %6.1f: %5.1f%%\n", name, 1e3 * seconds,
           1e-9 * flops / seconds, 1e-9 * rate, 100 * flops / seconds / rate);
}

int main(int argc, char **argv)
{
    const Device *d;
    if (device_cpu_open(NULL, &d) != OK) return 1;
    if (argc > 1 && strncmp(argv[argc - 1], "microkernel=", 12) == 0 &&
        !microkernel_option(argv[--argc])) {
        fprintf(stderr, "attention: unknown option \"%s\"; use microkernel=fma, dot or amx\n",
                argv[argc]);
        return 2;
    }
    const DType type = argc > 1 && strcmp(argv[1], "bf16") == 0 ? BF16 : F32;
    const int64_t t = argc > 2 ? atoll(argv[2]) : 1024, h = argc > 3 ? atoll(argv[3]) : 12;
    const int64_t c = argc > 4 ? atoll(argv[4]) : 64, tile = 64;
    const Tensor qkv = make(type, t, 3 * h, c), dqkv = make(type, t, 3 * h, c);
    const Tensor o = make(type, t, h, c), dout = make(type, t, h, c);
    const Tensor lse = make(F32, t, h, 0), ranges = make(I32, t, 4, 0);
    for (int64_t i = 0; i < 4 * t; i++)
        ((int32_t *)ranges.data)[i] = i % 4 == 1 ? (int32_t)(i / 4 + 1) : 0;
    const Tensor q = heads_of(qkv, 0, h), k = heads_of(qkv, h, h), v = heads_of(qkv, 2 * h, h);
    const Attr attr = {.attention = {.scale = 0.125, .causal = t}};
    const Call f = {.in = {q, k, v, ranges}, .n_in = 4, .out = {o, lse}, .n_out = 2, .attr = attr};
    const Call b = {.in = {q, k, v, ranges, dout, lse, o},
                    .n_in = 7,
                    .out = {heads_of(dqkv, 0, h), heads_of(dqkv, h, h), heads_of(dqkv, 2 * h, h)},
                    .n_out = 3,
                    .attr = attr};
    const double blocks = (double)((t + tile - 1) / tile), n_tiles = blocks * (blocks + 1) / 2;
    const double gemm_flops = 2.0 * (double)(tile * tile * c * h) * n_tiles; /* of one GEMM */
    printf("%s, %s, causal, T %lld, %lld heads of %lld\n",
           device_cpu_text((char[CPU_TEXT_BYTES]){0}), dtype_name(type), (long long)t, (long long)h,
           (long long)c);
    print_row("attention", type, best_of(d->kernel[KERNEL_attention], &f), 2 * gemm_flops);
    print_row("attention_dx", type, best_of(d->kernel[KERNEL_attention_dx], &b), 5 * gemm_flops);
    return 0;
}

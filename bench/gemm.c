/* gemm.c -- the three products of a linear layer on device cpu, beside the speed of the unit alone.
 *
 *     build/release/bench/gemm                      three sizes, f32 and bf16, 1 and 2 threads
 *     build/release/bench/gemm threads=1 type=bf16 size=2048x768x3072
 *     build/release/bench/gemm unit=tiles           bf16 by AMX; also: dot, fma
 *     build/release/bench/gemm library=none         without OpenBLAS beside us in f32
 *     build/release/bench/gemm clock=cpu threads=1  by the time that the processor gave this program: for a
 *                                                   machine that has others to serve
 *     build/release/bench/gemm parts=1              and packing, multiplying and storing alone, in ms
 *
 * A size is tokens x in x out. Forward is x W^T, dX is dy W, dW adds dy^T x to an f32 gradient; inputs
 * of a product are as a training step leaves them, packing is counted. Figures are GF/s, the best of
 * some turns of a few products each. "peak": the unit on operands that lie in the first cache. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cpu/blas.h"
#include "device/cpu/cpu.h"
#include "device/cpu/units.h"

typedef struct {
    int64_t tokens, in, out;
} Size;

typedef struct {
    Size size[8];
    int n_sizes, threads[2], n_threads;
    DType type[2];
    int n_types;
    bool library, parts;
} Options;

static clockid_t meter = CLOCK_MONOTONIC;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(meter, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static Tensor matrix(DType type, int64_t rows, int64_t columns)
{
    Tensor t = {.dtype = type, .ndim = 2, .n = {rows, columns}, .stride = {columns, 1}};
    t.data = aligned_alloc(64, ((size_t)(rows * columns) * dtype_bytes(type) + 63) / 64 * 64);
    MUST(t.data, "no memory for a matrix of %lld x %lld", (long long)rows, (long long)columns);
    uint32_t seed = 1;
    for (int64_t i = 0; i < rows * columns; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float x = (float)(int32_t)seed / 2147483648.0f;
        if (type == F32)
            ((float *)t.data)[i] = x;
        else {
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            ((uint16_t *)t.data)[i] = (uint16_t)(bits >> 16);
        }
    }
    return t;
}

/* Seconds of a call, or of a part of it: turns of about a tenth of a second, the best of five. */
static double seconds(const Device *d, const Call *call, GemmPart part)
{
    double best = 0;
    int64_t times = 1;
    for (int turn = 0; turn < 6; turn++) {
        const double start = now_s();
        for (int64_t i = 0; i < times; i++)
            MUST((part ? device_cpu_gemm_part(call, part) : d->kernel[KERNEL_gemm](call)) == OK,
                 "gemm");
        const double each = (now_s() - start) / (double)times;
        times = (int64_t)(0.1 / each) + 1;
        if (turn == 1 || (turn > 1 && each < best)) best = each;
    }
    return best;
}

static void measure(const Device *d, Size s, const Options *o, DType type, Team *team)
{
    static const char *const name[N_GEMM_PARTS] = {"all", "packing", "multiplying", "storing"};
    const Tensor x = matrix(type, s.tokens, s.in), w = matrix(type, s.out, s.in);
    const Tensor y = matrix(type, s.tokens, s.out), dx = matrix(type, s.tokens, s.in);
    const Tensor dw = matrix(F32, s.out, s.in);
    const double flops = 2.0 * (double)s.tokens * (double)s.in * (double)s.out;
    Call forward = {.in = {x, w}, .n_in = 2, .out = {y}, .n_out = 1, .team = team};
    Call to_x = {.in = {y, w}, .n_in = 2, .out = {dx}, .n_out = 1, .team = team};
    Call to_w = {.in = {y, x}, .n_in = 2, .out = {dw}, .n_out = 1, .number = {1}, .team = team};
    forward.attr.gemm.tb = true;
    to_w.attr.gemm.ta = true;
    const Call *const call[] = {&forward, &to_x, &to_w};
    double all_s[3];
    for (int i = 0; i < 3; i++)
        printf(" %6.0f", flops / (all_s[i] = seconds(d, call[i], GEMM_WHOLE)) / 1e9);
    printf("\n");
    for (GemmPart part = GEMM_WHOLE; o->parts && part < N_GEMM_PARTS; part++) {
        printf("%*s", 62, name[part]);
        for (int i = 0; i < 3; i++)
            printf(" %6.2f", 1e3 * (part ? seconds(d, call[i], part) : all_s[i]));
        printf(" ms\n");
    }
    free(x.data), free(w.data), free(y.data), free(dx.data), free(dw.data);
}

/* A line for each size: `who` on a team of so many threads. */
static Err measure_all(const Device *d, const Options *o, DType type, const char *who, int threads)
{
    Team *team;
    TRY(team_open(&team, threads, NULL));
    const double peak = device_cpu_peak(type) / 1e9 * threads;
    for (int s = 0; s < o->n_sizes; s++) {
        const Size z = o->size[s];
        printf("%-4s %-18s %7d %6.0f   %5lld x %5lld x %5lld ", dtype_name(type), who, threads,
               peak, (long long)z.tokens, (long long)z.in, (long long)z.out);
        measure(d, z, o, type, team);
        fflush(stdout);
    }
    team_close(team);
    return OK;
}

static Err run(const Options *o)
{
    const Device *d;
    TRY(device_cpu_open(NULL, &d));
    printf("%s\n", device_cpu_text());
    printf("%-4s %-18s %7s %6s   %5s x %5s x %5s  %6s %6s %6s\n", "", "", "threads", "peak",
           "tokens", "in", "out", "x W^T", "dy W", "dy^T x");
    for (int t = 0; t < o->n_types; t++)
        for (int n = 0; n < o->n_threads; n++) {
            const DType type = o->type[t];
            const char *who = type == F32 ? "Sheaf" : units_text(units_in_use());
            TRY(measure_all(d, o, type, who, o->threads[n]));
            if (type != F32 || !o->library || !blas_open(NULL)) continue;
            TRY(measure_all(d, o, type, "OpenBLAS", o->threads[n]));
            blas_use(false);
        }
    return OK;
}

static bool take(Options *o, const char *word)
{
    long long a, b, c;
    if (strncmp(word, "threads=", 8) == 0) {
        o->threads[0] = atoi(word + 8);
        o->n_threads = 1;
        return o->threads[0] >= 1;
    }
    if (sscanf(word, "size=%lldx%lldx%lld", &a, &b, &c) == 3) {
        o->size[0] = (Size){a, b, c};
        o->n_sizes = 1;
        return a > 0 && b > 0 && c > 0;
    }
    if (strncmp(word, "type=", 5) == 0) {
        o->type[0] = strcmp(word + 5, "bf16") == 0 ? BF16 : F32;
        o->n_types = 1;
        return true;
    }
    if (strncmp(word, "unit=", 5) == 0) {
        const CpuUnit unit = word[5] == 't' ? UNIT_TILES : word[5] == 'd' ? UNIT_DOT : UNIT_FMA;
        units_open();
        MUST(units_have(unit), "this CPU has no %s", units_text(unit));
        units_use(unit);
        return true;
    }
    if (strcmp(word, "clock=cpu") == 0) {
        meter = CLOCK_PROCESS_CPUTIME_ID;
        return true;
    }
    if (strcmp(word, "parts=1") == 0) return o->parts = true;
    o->library = false;
    return strcmp(word, "library=none") == 0;
}

int main(int argc, char **argv)
{
    Options o = {.size = {{2048, 768, 768}, {2048, 768, 3072}, {2048, 2048, 8192}},
                 .n_sizes = 3,
                 .threads = {1, 2},
                 .n_threads = 2,
                 .type = {F32, BF16},
                 .n_types = 2,
                 .library = true};
    for (int i = 1; i < argc; i++)
        if (!take(&o, argv[i])) {
            fprintf(stderr, "gemm: what is \"%s\"? bench/gemm.c says what there is\n", argv[i]);
            return 2;
        }
    if (run(&o) == OK) return 0;
    fprintf(stderr, "%s\n", err_text());
    return 1;
}

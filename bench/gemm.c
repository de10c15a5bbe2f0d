/* gemm.c -- the three GEMMs of a linear layer on device cpu, compared with the micro-kernel alone.
 *
 *     build/release/bench/gemm                    three sizes, f32 and bf16, 1 and 2 threads
 *     build/release/bench/gemm threads=1 type=bf16 size=2048x768x3072
 *     build/release/bench/gemm microkernel=amx    bf16 by AMX; also: dot, fma
 *     build/release/bench/gemm library=none       without OpenBLAS for comparison in f32
 *     build/release/bench/gemm clock=cpu threads=1
 *                                                 CPU time of the process, not wall time: for a
 *                                                 machine that is shared
 *     build/release/bench/gemm alone=300          the best of 300 GEMMs, each timed alone: for a
 *                                                 machine that is shared
 *     build/release/bench/gemm parts=1            also packing, multiplying, storing alone, in ms
 *     build/release/bench/gemm cold=1             operands come from memory, as for most GEMMs of
 *                                                 a training step: other layers run in between
 *     build/release/bench/gemm packed=1           W prepacked once, for x W^T and for dy W, on an
 *                                                 extra line, by turns with GEMMs that pack it
 *
 * A size is tokens x in x out. Forward is x W^T, dX is dy W, dW adds dy^T x to an f32 gradient. The
 * operands are stored as in a training step, and packing is included. Figures are GF/s, the best of
 * several turns of a few GEMMs each. "peak": the micro-kernel with operands in L1. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "device/cpu/cpu.h"
#include "device/cpu/microkernels.h"
#include "support/blas_library.h"
#include "support/microkernel_option.h"

typedef struct {
    int64_t tokens, in, out;
} Size;

typedef struct {
    Size size[8];
    int n_sizes, threads[2], n_threads;
    DType type[2];
    int n_types;
    bool library, parts, cold, packed;
} Options;

/* A linear layer and its three GEMMs. */
typedef struct {
    Tensor x, w, y, dx, dw;
    Call forward, to_x, to_w;
    Tensor packed[2]; /* W for forward and to_x; no data: each GEMM packs it */
} Layer;

enum { GEMMS = 3, MAX_LAYERS = 64 };

static clockid_t meter = CLOCK_MONOTONIC;
static int alone; /* turns of one GEMM each; 0: fewer and longer turns */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(meter, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { PAGE = 1 << 21 };

static Tensor matrix(DType type, int64_t rows, int64_t columns)
{
    Tensor t = {.dtype = type, .ndim = 2, .n = {rows, columns}, .stride = {columns, 1}};
    const size_t bytes = ((size_t)(rows * columns) * dtype_bytes(type) + PAGE - 1) / PAGE * PAGE;
    t.data = aligned_alloc(PAGE, bytes);
    MUST(t.data, "no memory for a matrix of %lld x %lld", (long long)rows, (long long)columns);
    (void)madvise(t.data, bytes, MADV_HUGEPAGE); /* as a rank allocates its memory */
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

static Layer layer_of(Size s, DType type, Team *team)
{
    Layer l = {.x = matrix(type, s.tokens, s.in),
               .w = matrix(type, s.out, s.in),
               .y = matrix(type, s.tokens, s.out),
               .dx = matrix(type, s.tokens, s.in),
               .dw = matrix(F32, s.out, s.in)};
    l.forward = (Call){.in = {l.x, l.w}, .n_in = 2, .out = {l.y}, .n_out = 1, .team = team};
    l.to_x = (Call){.in = {l.y, l.w}, .n_in = 2, .out = {l.dx}, .n_out = 1, .team = team};
    l.to_w =
        (Call){.in = {l.y, l.x}, .n_in = 2, .out = {l.dw}, .n_out = 1, .number = {1}, .team = team};
    l.forward.attr.gemm.tb = true;
    l.to_w.attr.gemm.ta = true;
    return l;
}

/* Prepacks W for one of the GEMMs that read it. */
static Tensor pack_w(const Device *d, const Layer *l, bool tb)
{
    const size_t bytes = d->prepack->bytes(l->w.dtype, l->w.n[tb], l->w.n[!tb]);
    const Tensor to = matrix(F32, 1, (int64_t)(bytes / sizeof(float)));
    Call pack = {.in = {l->w}, .n_in = 1, .out = {to}, .n_out = 1, .team = l->forward.team};
    pack.attr.gemm.tb = tb;
    MUST(d->prepack->pack(&pack) == OK, "pack");
    return to;
}

static void layer_pack(const Device *d, Layer *l)
{
    l->packed[0] = pack_w(d, l, true);
    l->packed[1] = pack_w(d, l, false);
}

static void layer_free(Layer *l)
{
    free(l->packed[0].data), free(l->packed[1].data);
    free(l->x.data), free(l->w.data), free(l->y.data), free(l->dx.data), free(l->dw.data);
}

/* Enough layers that a GEMM finds nothing of its operands in a cache when its turn comes again. */
static int layers_of(const Options *o, Size s, DType type)
{
    const double ends = (double)dtype_bytes(type) * (double)(s.tokens * (s.in + s.out));
    const double least_bytes = ends + 4 * (double)(s.in * s.out);
    const double n = 1 + 256e6 / least_bytes;
    return !o->cold ? 1 : n > MAX_LAYERS ? MAX_LAYERS : (int)n;
}

/* Seconds of a GEMM, or of a part of it: the best of five turns of about a tenth of a second, or of
 * `alone` turns of one GEMM. */
static double seconds(const Device *d, const Layer *layer, int layers, int gemm, GemmPart part)
{
    double best = 0;
    int64_t times = 1, count = 0;
    for (int turn = 0; turn < (alone ? 1 + alone : 6); turn++) {
        const double start = now_s();
        for (int64_t i = 0; i < times; i++, count++) {
            const Layer *l = &layer[count % layers];
            const Call *call = gemm == 0 ? &l->forward : gemm == 1 ? &l->to_x : &l->to_w;
            MUST((part ? device_cpu_gemm_part(call, part) : d->kernel[KERNEL_gemm](call)) == OK,
                 "gemm");
        }
        const double each = (now_s() - start) / (double)times;
        times = alone ? 1 : (int64_t)(0.1 / each) + 1;
        if (turn == 1 || (turn > 1 && each < best)) best = each;
    }
    return best;
}

static void use_packed(Layer *layer, int layers, bool on)
{
    for (int i = 0; i < layers; i++) {
        layer[i].forward.prepacked = on ? layer[i].packed[0].data : NULL;
        layer[i].to_x.prepacked = on ? layer[i].packed[1].data : NULL;
    }
}

/* Alternates between both variants, so that load on the machine disturbs both: the gain is a few
 * percent. */
static void measure_packed(const Device *d, Layer *layer, int layers, double flops)
{
    enum { TURNS = 4, READ_W = 2 };
    double best[2][READ_W] = {{0}};
    for (int i = 0; i < layers; i++) layer_pack(d, &layer[i]);
    for (int turn = 0; turn < TURNS; turn++)
        for (int packed = 0; packed < 2; packed++)
            for (int i = 0; i < READ_W; i++) {
                use_packed(layer, layers, packed == 1);
                const double s = seconds(d, layer, layers, i, GEMM_WHOLE);
                if (turn == 0 || s < best[packed][i]) best[packed][i] = s;
            }
    use_packed(layer, layers, false);
    for (int packed = 0; packed < 2; packed++) {
        printf("%*s", 62, packed ? "W prepacked" : "packed per GEMM");
        for (int i = 0; i < READ_W; i++) printf(" %6.0f", flops / best[packed][i] / 1e9);
        for (int i = 0; packed && i < READ_W; i++)
            printf("%s%.3f", i ? " / " : "   gains ", best[0][i] / best[1][i]);
        printf("\n");
    }
}

static void measure(const Device *d, Size s, const Options *o, DType type, Team *team)
{
    static const char *const name[N_GEMM_PARTS] = {"all", "packing", "multiplying", "storing"};
    const double flops = 2.0 * (double)s.tokens * (double)s.in * (double)s.out;
    const int layers = layers_of(o, s, type);
    Layer layer[MAX_LAYERS];
    double all_s[GEMMS];
    for (int i = 0; i < layers; i++) layer[i] = layer_of(s, type, team);
    for (int i = 0; i < GEMMS; i++) {
        all_s[i] = seconds(d, layer, layers, i, GEMM_WHOLE);
        printf(" %6.0f", flops / all_s[i] / 1e9);
    }
    printf("\n");
    for (GemmPart part = GEMM_WHOLE; o->parts && part < N_GEMM_PARTS; part++) {
        printf("%*s", 62, name[part]);
        for (int i = 0; i < GEMMS; i++)
            printf(" %6.2f", 1e3 * (part ? seconds(d, layer, layers, i, part) : all_s[i]));
        printf(" ms\n");
    }
    if (o->packed) measure_packed(d, layer, layers, flops);
    for (int i = 0; i < layers; i++) layer_free(&layer[i]);
}

/* Prints a line for each size. */
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
    const BlasLibrary library = blas_library(NULL);
    const Device *d;
    TRY(device_cpu_open(NULL, &d));
    printf("%s\n", device_cpu_text((char[CPU_TEXT_BYTES]){0}));
    printf("%-4s %-18s %7s %6s   %5s x %5s x %5s  %6s %6s %6s\n", "", "", "threads", "peak",
           "tokens", "in", "out", "x W^T", "dy W", "dy^T x");
    for (int t = 0; t < o->n_types; t++)
        for (int n = 0; n < o->n_threads; n++) {
            const DType type = o->type[t];
            const char *who = type == F32 ? "Sheaf" : microkernel_text(microkernel_in_use());
            TRY(measure_all(d, o, type, who, o->threads[n]));
            if (type != F32 || !o->library || !blas_open(&library)) continue;
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
    if (strncmp(word, "microkernel=", 12) == 0) return microkernel_option(word);
    if (strcmp(word, "clock=cpu") == 0) {
        meter = CLOCK_PROCESS_CPUTIME_ID;
        return true;
    }
    if (strncmp(word, "alone=", 6) == 0) return (alone = atoi(word + 6)) > 0;
    if (strcmp(word, "parts=1") == 0) return o->parts = true;
    if (strcmp(word, "cold=1") == 0) return o->cold = true;
    if (strcmp(word, "packed=1") == 0) return o->packed = true;
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
            fprintf(stderr, "gemm: unknown argument \"%s\"; the head of bench/gemm.c lists all\n",
                    argv[i]);
            return 2;
        }
    if (meter != CLOCK_MONOTONIC && (o.n_threads > 1 || o.threads[0] > 1)) {
        fprintf(stderr, "gemm: clock=cpu adds the time of all threads; use it with threads=1\n");
        return 2;
    }
    if (run(&o) == OK) return 0;
    fprintf(stderr, "%s\n", err_text());
    return 1;
}

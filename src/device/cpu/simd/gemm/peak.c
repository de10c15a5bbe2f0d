/* peak.c -- what a unit gives when its operands are in the first cache: the ceiling of a product. */
#define _DEFAULT_SOURCE
#include "device/cpu/simd/gemm/microkernel.h"

#include <time.h>

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Panels of zeros, 4 KiB of a line's words: the speed does not depend on what is multiplied. */
double CPU_NAME(peak)(DType type)
{
    enum { WORDS = 128, LINES = 32, TIMES = 2000, TURNS = 5 };
    static const _Alignas(64) uint32_t a[WORDS * LINES], b[WORDS * LINES];
    _Alignas(64) float c[LINES * LINES] = {0};
    const Microkernel *u = microkernel_for(type);
    const MicrokernelArgs m = {.words = WORDS, .a = a, .b = b, .c = c, .to = c};
    const double flops =
        2.0 * (type == BF16 && u->type == BF16 ? 2 : 1) * WORDS * u->rows * u->columns * TIMES;
    double best_s = 0;
    u->begin();
    for (int turn = 0; turn < TURNS; turn++) {
        const double start = now_s();
        for (int i = 0; i < TIMES; i++) u->multiply(&m);
        const double took = now_s() - start;
        if (turn == 0 || took < best_s) best_s = took;
    }
    u->end();
    return flops / best_s;
}

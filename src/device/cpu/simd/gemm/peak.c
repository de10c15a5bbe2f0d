/* peak.c -- the rate of a micro-kernel with its operands in L1: the upper bound for any GEMM. */
#define _DEFAULT_SOURCE
#include "device/cpu/simd/gemm/microkernel.h"

#include <time.h>

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Panels of zeros, at most 16 KiB each: the speed does not depend on the values. */
double CPU_NAME(peak)(DType type)
{
    enum { DWORDS = 128, MAX_MN = 32, TIMES = 2000, TURNS = 5 };
    static const _Alignas(64) uint32_t a[DWORDS * MAX_MN], b[DWORDS * MAX_MN];
    _Alignas(64) float c[MAX_MN * MAX_MN] = {0};
    const Microkernel *uk = microkernel_for(type);
    const MicrokernelArgs args = {.dwords = DWORDS, .a = a, .b = b, .c = c, .to = c};
    const double flops =
        2.0 * (type == BF16 && uk->type == BF16 ? 2 : 1) * DWORDS * uk->mr * uk->nr * TIMES;
    double best_s = 0;
    uk->begin();
    for (int turn = 0; turn < TURNS; turn++) {
        const double start = now_s();
        for (int i = 0; i < TIMES; i++) uk->multiply(&args);
        const double took = now_s() - start;
        if (turn == 0 || took < best_s) best_s = took;
    }
    uk->end();
    return flops / best_s;
}

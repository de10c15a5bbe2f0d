/* gemm_cases.h -- GEMM of device/cpu against ref, over everything that may vary.
 *
 *     try_gemm(c, (Size){37, 53, 29}, (How){.in = BF16, .out = F32, .ta = true, .keep = 1});
 *
 * c[m,n] = keep * c + a[m,k] b[k,n] (+ bias), on every instruction set and micro-kernel
 * (unit/cpu_test.h). */
#ifndef TESTS_SUPPORT_PRODUCTS_H
#define TESTS_SUPPORT_PRODUCTS_H

#include "unit/cpu_test.h"

typedef struct {
    int64_t m, n, k;
} Size;

typedef struct {
    DType in, out;
    Strides a, b; /* memory orders; C and the bias have that of A */
    bool ta, tb, bias;
    double keep;
} How;

/* Variant i of sixteen: all combinations of transposes, type of C and accumulator kept or not; A
 * and B in all pairs of memory orders. */
static inline How gemm_variant(int i, DType in)
{
    return (How){.in = in,
                 .out = i >> 2 & 1 ? F32 : BF16,
                 .a = (Strides)(i % N_STRIDES),
                 .b = (Strides)(i / N_STRIDES % N_STRIDES),
                 .ta = i & 1,
                 .tb = i >> 1 & 1,
                 .bias = (i & 3) == 2,
                 .keep = i >> 3 & 1};
}

static inline Call gemm_call(Bench *b, Size s, How h)
{
    Call call = {.n_in = h.bias ? 3 : 2, .n_out = 1, .number = {h.keep}};
    call.attr.gemm.ta = h.ta;
    call.attr.gemm.tb = h.tb;
    call.in[0] = h.ta ? RANDOM(b, h.in, h.a, s.k, s.m) : RANDOM(b, h.in, h.a, s.m, s.k);
    call.in[1] = h.tb ? RANDOM(b, h.in, h.b, s.n, s.k) : RANDOM(b, h.in, h.b, s.k, s.n);
    if (h.bias) call.in[2] = RANDOM(b, h.in, h.a, s.n);
    call.out[0] = accumulator(b, NEW(b, h.out, h.a, s.m, s.n), h.keep);
    return call;
}

static inline void try_gemm(CpuBench *c, Size s, How h)
{
    const Call call = gemm_call(&c->b, s, h);
    expect_like_ref(c, KERNEL_gemm, &call, tol_sum(h.out, (double)s.k));
}

/* Views of wider matrices, as in a fused q, k, v: contiguous rows with a gap between them. */
static inline void try_views(CpuBench *c, DType type, int64_t depth, int64_t columns)
{
    Bench *b = &c->b;
    for (int t = 0; t < 4; t++) {
        Call call = {.n_in = 2, .n_out = 1, .number = {1}};
        Tensor a = RANDOM(b, type, DENSE, 131, 143), w = RANDOM(b, type, DENSE, 150, 145);
        Tensor y = RANDOM(b, F32, DENSE, 60, 100);
        call.attr.gemm.ta = t & 1;
        call.attr.gemm.tb = t >> 1;
        a.n[t & 1] = 50;
        a.n[!(t & 1)] = depth;
        w.n[t >> 1] = depth;
        w.n[!(t >> 1)] = columns;
        y.n[0] = 50;
        y.n[1] = columns;
        call.in[0] = a;
        call.in[1] = w;
        call.out[0] = y;
        against_ref(c, KERNEL_gemm, &call, tol_sum(F32, depth));
        bench_clear(b);
    }
}

#endif

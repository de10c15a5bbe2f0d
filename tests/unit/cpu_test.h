/* cpu_test.h -- compares the kernels of device/cpu with those of ref, value by value.
 *
 * The same call runs on the same bytes: on ref, then on each instruction set that this CPU
 * supports. GEMM and attention also run by each available micro-kernel, GEMM also by the BLAS
 * library. Every result is compared with ref's, relative to the largest entry of its tensor; and
 * the bits of 2, 3 and 4 threads are compared with those of one. */
#ifndef TESTS_UNIT_CPU_TEST_H
#define TESTS_UNIT_CPU_TEST_H

#include <stdio.h>
#include "device/cpu/blas.h"
#include "device/cpu/cpu.h"
#include "device/cpu/microkernels.h"
#include "kernel_test.h"

enum { MAX_THREADS = 4 };

typedef struct {
    Bench b;
    Team *team[MAX_THREADS + 1]; /* by number of threads; 1 is NULL */
    bool no_library; /* GEMM is not run by the library, because the test is about our blocking */
} CpuBench;

/* One bench for a group of tests; *state points to it. */
static inline int cpu_setup(void **state)
{
    static CpuBench c;
    const Device *device;
    assert_int_equal(device_cpu_open(NULL, &device), OK);
    const BlasLibrary library = {.core_type_is_set = getenv("OPENBLAS_CORETYPE") != NULL,
                                 .threads_are_set = getenv("OPENBLAS_NUM_THREADS") != NULL};
    (void)blas_open(&library); /* if one is installed, it is tested too */
    blas_use(false);
    memset(&c, 0, sizeof c);
    bench_open(&c.b);
    for (int n = 2; n <= MAX_THREADS; n++) assert_int_equal(team_open(&c.team[n], n, NULL), OK);
    *state = &c;
    return 0;
}

static inline int cpu_setup_no_library(void **state)
{
    const int rc = cpu_setup(state);
    ((CpuBench *)*state)->no_library = true;
    return rc;
}

static inline int cpu_teardown(void **state)
{
    CpuBench *c = *state;
    for (int n = 2; n <= MAX_THREADS; n++) team_close(c->team[n]);
    bench_close(&c->b);
    return 0;
}

/* Tolerance for a sum of `terms` f32 terms, relative to the largest of such sums: n rounding errors
 * of 2^-24, as if all had the same sign. Short formulas count as 16 terms. The two sides of a tie
 * in bf16 differ by one unit, 2^-7. ref also rounds the term of an accumulator, which may cost
 * another. */
static inline double tol_sum(DType t, double terms)
{
    return (terms + 16) * ldexp(1, -24) + (t == BF16 ? ldexp(1, -6) : 0);
}

typedef struct {
    double *value[MAX_OUT];
    double largest[MAX_OUT];
} Wanted;

static inline void wanted_take(const Call *call, Wanted *w)
{
    for (int o = 0; o < call->n_out; o++) {
        const int64_t n = tensor_count(&call->out[o]);
        w->largest[o] = 0;
        w->value[o] = malloc(sizeof(double) * (size_t)(n + 1));
        assert_non_null(w->value[o]);
        for (int64_t i = 0; i < n; i++) {
            const double x = get(&call->out[o], i);
            w->value[o][i] = x;
            if (isfinite(x)) w->largest[o] = fmax(w->largest[o], fabs(x));
        }
    }
}

static inline void wanted_compare(const Wanted *w, KernelId id, const Call *call, double tolerance,
                                  const char *how)
{
    for (int o = 0; o < call->n_out; o++)
        for (int64_t i = 0; i < tensor_count(&call->out[o]); i++) {
            const double got = get(&call->out[o], i), want = w->value[o][i];
            if (got == want || (isnan(got) && isnan(want))) continue; /* also equal infinities */
            if (!(fabs(got - want) <= tolerance * w->largest[o]))
                fail_msg("%s (%s) output %d [%d]: %.9g, ref %.9g, largest %g, tolerance %g",
                         kernel_name(id), how, o, (int)i, got, want, w->largest[o], tolerance);
        }
}

/* Checks one device: the values with one thread, then the bits with more threads. */
static inline void run_device(CpuBench *c, const Device *device, KernelId id, const Call *call,
                              const Wanted *w, double tolerance, const char *how)
{
    const size_t bytes = c->b.arena.used_bytes;
    char *before = malloc(2 * bytes), *after = before + bytes;
    assert_non_null(before);
    memcpy(before, c->b.arena.base, bytes);
    Call copy = *call;
    copy.team = NULL;
    assert_int_equal(device->kernel[id](&copy), OK);
    wanted_compare(w, id, call, tolerance, how);
    memcpy(after, c->b.arena.base, bytes);
    for (int n = 2; n <= MAX_THREADS; n++) {
        memcpy(c->b.arena.base, before, bytes);
        copy.team = c->team[n];
        assert_int_equal(device->kernel[id](&copy), OK);
        if (memcmp(after, c->b.arena.base, bytes) != 0)
            fail_msg("%s (%s): %d threads give other bits than one", kernel_name(id), how, n);
    }
    memcpy(c->b.arena.base, before, bytes);
    free(before);
}

/* Checks each micro-kernel if bf16 operands leave a choice; the one in use comes last. */
static inline void run_microkernels(CpuBench *c, CpuSimd s, KernelId id, const Call *call,
                                    const Wanted *w, double tolerance)
{
    static const char *const name[N_CPU_SIMD] = {"portable", "avx2", "avx512"};
    const CpuMicrokernel in_use = microkernel_in_use();
    const bool gemm =
        kernel_is_gemm(id) || id == KERNEL_grouped_gemm || id == KERNEL_grouped_gemm_dw;
    const bool attention = id == KERNEL_attention || id == KERNEL_attention_dx;
    const bool choice = s == CPU_AVX512 && call->in[0].dtype == BF16;
    char how[64];
    for (int u = 0; u < N_CPU_MICROKERNELS; u++) {
        if (!choice || u == (int)in_use || !microkernel_available((CpuMicrokernel)u)) continue;
        if (!gemm && !attention && u != MICROKERNEL_FMA)
            continue; /* the others differ only in rounding: hardware or not */
        snprintf(how, sizeof how, "%s", microkernel_text((CpuMicrokernel)u));
        microkernel_use((CpuMicrokernel)u);
        run_device(c, device_cpu_simd(s), id, call, w, tolerance, how);
    }
    microkernel_use(in_use);
    run_device(c, device_cpu_simd(s), id, call, w, tolerance, name[s]);
    if (!gemm || c->no_library) return;
    blas_use(true);
    snprintf(how, sizeof how, "%s, library", name[s]);
    run_device(c, device_cpu_simd(s), id, call, w, tolerance, how);
    blas_use(false);
}

/* Leaves the result of the widest instruction set in the bench, for expect_gaps. */
static inline void against_ref(CpuBench *c, KernelId id, const Call *call, double tolerance)
{
    const size_t bytes = c->b.arena.used_bytes;
    char *before = malloc(bytes + 1);
    Wanted w;
    assert_non_null(before);
    memcpy(before, c->b.arena.base, bytes);
    assert_int_equal(device_ref.kernel[id](call), OK);
    wanted_take(call, &w);
    memcpy(c->b.arena.base, before, bytes);
    const Device *last = NULL;
    for (CpuSimd s = CPU_BASE; s < N_CPU_SIMD; s++) {
        if (!cpu_has(s)) continue;
        last = device_cpu_simd(s);
        run_microkernels(c, s, id, call, &w, tolerance);
    }
    assert_int_equal(last->kernel[id](call), OK);
    for (int o = 0; o < call->n_out; o++) free(w.value[o]);
    free(before);
}

/* against_ref, then checks that the NaN around every tensor is intact. */
static inline void expect_like_ref(CpuBench *c, KernelId id, const Call *call, double tolerance)
{
    against_ref(c, id, call, tolerance);
    expect_gaps(&c->b);
    bench_clear(&c->b);
}

/* F32, and BF16 with statistics and sums in F32. */
static const DType cpu_types[] = {F32, BF16};
enum { N_CPU_TYPES = 2 };

#endif

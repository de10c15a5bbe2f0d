/* gpu_test.h -- compares kernels of device/cuda with those of ref, value by value.
 *
 * The tensors of a test are in one host arena, surrounded by NaN. A call runs three times from the
 * same bytes:
 *
 *     exact     by ref, with all floats widened to f64         the value of the formula
 *     rounded   by ref, in the types of the call               the error of the types alone
 *     got       on the GPU, on a copy of the whole arena, twice, which must give the same bits
 *               unless sums may be added in any order
 *
 * `got` passes if its distance from `exact` is at most 1.5 times that of `rounded`, plus the error
 * that f32 sums may add. No byte of the arena outside the outputs may change. */
#ifndef TESTS_CUDA_GPU_TEST_H
#define TESTS_CUDA_GPU_TEST_H

#include "unit/kernel_test.h"

#include <stdio.h>
#include "device/runtime.h"
#include "device/registry.h"

enum { SKIPPED = 77, GPU_BYTES = 1 << 28 };

typedef struct {
    Bench b, wide; /* the call's tensors; the same in f64 */
    const Device *device;
    const DeviceRuntime *m;
    DeviceContext *context;
    DeviceQueue *q;
    char *base; /* of the arena's copy in device memory */
    int calls;
    bool any_order; /* sums may be added in any order: not the same bits each time */
} Gpu;

static Gpu gpu;

/* Error of a sum of `terms` f32 terms, relative to the largest such sum; a short formula with its
 * exponentials counts as 32. Signs are random, so the square root of the worst case would
 * suffice. */
static inline double gpu_terms(double terms) { return (terms + 32) * ldexp(1, -24); }

static inline int gpu_setup(void **state)
{
    *state = &gpu;
    bench_open(&gpu.b);
    bench_open(&gpu.wide);
    assert_int_equal(gpu.m->open(0, &gpu.context), OK);
    gpu.q = gpu.m->queue(gpu.context, QUEUE_COMPUTE);
    assert_int_equal(gpu.m->alloc(gpu.context, GPU_BYTES, (void **)&gpu.base), OK);
    return 0;
}

static inline int gpu_teardown(void **state)
{
    (void)state;
    printf("%d calls on the GPU\n", gpu.calls);
    gpu.m->free(gpu.context, gpu.base);
    gpu.m->close(gpu.context);
    bench_close(&gpu.wide);
    bench_close(&gpu.b);
    return gpu.calls > 0 ? 0 : 1; /* a GPU, but no call ran on it */
}

static inline void gpu_ok(Err err)
{
    if (err != OK) fail_msg("%s", err_text());
}

/* The tensor's copy in device memory. */
static inline Tensor on_gpu(Tensor t)
{
    if (t.data) t.data = gpu.base + ((char *)t.data - gpu.b.arena.base);
    return t;
}

static inline Call call_on_gpu(const Call *call)
{
    Call c = *call;
    for (int i = 0; i < c.n_in; i++) c.in[i] = on_gpu(c.in[i]);
    for (int i = 0; i < c.n_out; i++) c.out[i] = on_gpu(c.out[i]);
    c.queue = gpu.q;
    return c;
}

/* Runs from the bytes of `before` into `after`, which holds the whole arena. */
static inline void run_on_gpu(KernelId id, const Call *call, const char *before, char *after)
{
    const size_t bytes = gpu.b.arena.used_bytes;
    const Call c = call_on_gpu(call);
    gpu_ok(gpu.m->copy(gpu.q, gpu.base, before, bytes));
    const Err err = gpu.device->kernel[id](&c);
    if (err != OK) fail_msg("%s: %s", kernel_name(id), err_text());
    gpu_ok(gpu.m->copy(gpu.q, after, gpu.base, bytes));
    gpu_ok(gpu.m->sync(gpu.q));
    gpu.calls++;
}

/* The tensor in f64, with the same values. */
static inline Tensor widened(const Tensor *t)
{
    Tensor w = bench_new(&gpu.wide, t->dtype == I32 ? I32 : F64, DENSE, t->n, t->ndim);
    for (int64_t i = 0; i < tensor_count(t); i++) {
        if (t->dtype == I32)
            put(&w, i, ((const int32_t *)t->data)[offset_of(t, i)]);
        else
            put(&w, i, get(t, i));
    }
    return w;
}

typedef struct {
    double *value[MAX_OUT];
} Values;

static inline Values values_of(const Call *call)
{
    Values v = {0};
    for (int o = 0; o < call->n_out; o++) {
        const int64_t n = tensor_count(&call->out[o]);
        v.value[o] = malloc(sizeof(double) * (size_t)(n + 1));
        assert_non_null(v.value[o]);
        for (int64_t i = 0; i < n; i++) v.value[o][i] = get(&call->out[o], i);
    }
    return v;
}

static inline void values_free(const Call *call, Values v)
{
    for (int o = 0; o < call->n_out; o++) free(v.value[o]);
}

static inline Values exact_values(KernelId id, const Call *call)
{
    Call c = *call;
    bench_clear(&gpu.wide);
    for (int i = 0; i < c.n_in; i++) c.in[i] = widened(&call->in[i]);
    for (int o = 0; o < c.n_out; o++) c.out[o] = widened(&call->out[o]);
    c.team = gpu.b.team;
    run(id, &c);
    return values_of(&c);
}

/* Compares the norms of the two errors, and each element relative to the largest. */
static inline void compare(KernelId id, const Call *call, const double *exact[3], int o,
                           const double tolerance[2])
{
    const int64_t n = tensor_count(&call->out[o]);
    const double floor = 1e-12; /* ref's own f64 cancels: 1 + tanh, times 40 and 40 */
    double ours = 0, theirs = 0, whole = 0, largest = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(exact[0][i])) largest = fmax(largest, fabs(exact[0][i]));
    const double each =
        (call->out[o].dtype == BF16 ? ldexp(1, -7) : 0) + tolerance[0] + 4 * tolerance[1];
    for (int64_t i = 0; i < n; i++) {
        const double want = exact[0][i], rounded = exact[1][i], got = exact[2][i];
        if (got == want || (isnan(got) && isnan(want))) continue; /* also infinities */
        if (!(fabs(got - want) <= each * largest + floor))
            fail_msg("%s output %d [%d]: %.9g, exact %.9g, ref %.9g, largest %g, tolerance %g",
                     kernel_name(id), o, (int)i, got, want, rounded, largest, each);
        ours += (got - want) * (got - want);
        theirs += (rounded - want) * (rounded - want);
        whole += want * want;
    }
    if (!(sqrt(ours) <= 1.5 * sqrt(theirs) + (tolerance[0] + tolerance[1]) * sqrt(whole) +
                            floor * sqrt((double)n)))
        fail_msg("%s output %d: error %g, of ref in the same types %g, of %g; tolerance %g",
                 kernel_name(id), o, sqrt(ours), sqrt(theirs), sqrt(whole),
                 tolerance[0] + tolerance[1]);
}

/* Checks that all bytes outside the outputs are unchanged. */
static inline void expect_untouched(KernelId id, const Call *call, const char *before,
                                    const char *after)
{
    const size_t bytes = gpu.b.arena.used_bytes;
    char *may = calloc(bytes + 1, 1);
    assert_non_null(may);
    for (int o = 0; o < call->n_out; o++) {
        const Tensor *t = &call->out[o];
        for (int64_t i = 0; i < tensor_count(t); i++)
            memset(may + ((char *)t->data - gpu.b.arena.base) +
                       offset_of(t, i) * (int64_t)dtype_bytes(t->dtype),
                   1, dtype_bytes(t->dtype));
    }
    for (size_t i = 0; i < bytes; i++)
        if (!may[i] && before[i] != after[i])
            fail_msg("%s wrote byte %zu of %zu, which is no output's", kernel_name(id), i, bytes);
    free(may);
}

/* Tolerances, both relative: of f32 sums, and of intermediate values rounded to bf16. Clears the
 * bench. */
static inline void expect_like_ref(KernelId id, const Call *call, double sums, double inside)
{
    const size_t bytes = gpu.b.arena.used_bytes;
    const double tolerance[2] = {sums, inside};
    char *before = malloc(3 * bytes + 1), *first = before + bytes, *second = first + bytes;
    assert_non_null(before);
    memcpy(before, gpu.b.arena.base, bytes);
    const Values exact = exact_values(id, call);
    Call host = *call;
    host.team = gpu.b.team;
    run(id, &host);
    const Values rounded = values_of(call);
    run_on_gpu(id, call, before, first);
    run_on_gpu(id, call, before, second);
    if (!gpu.any_order && memcmp(first, second, bytes) != 0)
        fail_msg("%s: other bits each time", kernel_name(id));
    expect_untouched(id, call, before, first);
    memcpy(gpu.b.arena.base, first, bytes);
    const Values got = values_of(call);
    for (int o = 0; o < call->n_out; o++)
        compare(id, call, (const double *[]){exact.value[o], rounded.value[o], got.value[o]}, o,
                tolerance);
    values_free(call, exact);
    values_free(call, rounded);
    values_free(call, got);
    free(before);
    bench_clear(&gpu.b);
}

/* Lets kernels add sums in any order, or not, as the tests begin. */
static inline void gpu_any_order(bool any)
{
    gpu.any_order = any;
    gpu.m->deterministic(gpu.context, !any);
}

static const DType gpu_types[] = {F32, BF16};
static const double gpu_keeps[] = {0, 1, 0.5};

/* main: without a GPU, skips and prints the reason. */
#define GPU_MAIN(tests)                                                                            \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        device_cuda_search(getenv("PATH"));                                                        \
        if (device_open("cuda", argc > 1 ? argv[1] : NULL, &gpu.device) != OK) {                   \
            printf("SKIPPED, nothing was tested: %s\n", err_text());                               \
            return SKIPPED;                                                                        \
        }                                                                                          \
        gpu.m = gpu.device->runtime;                                                               \
        return cmocka_run_group_tests(tests, gpu_setup, gpu_teardown);                             \
    }

#endif

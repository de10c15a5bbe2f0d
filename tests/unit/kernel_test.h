/* kernel_test.h -- tensors with any strides, a runner and checks, for tests of kernels.
 *
 * Storage is all NaN before a tensor is filled, including gaps and tail. A read outside of the
 * tensor's extents therefore makes a result NaN, and a write there removes a NaN. */
#ifndef TESTS_UNIT_KERNEL_TEST_H
#define TESTS_UNIT_KERNEL_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/arena.h"
#include "base/fp8.h"
#include "device/device.h"

/* DENSE: row-major. PADDED: every second element of longer rows. COLUMN_MAJOR: the first dim is the
 * fastest. */
typedef enum { DENSE, PADDED, COLUMN_MAJOR, N_STRIDES } Strides;

enum { MAX_MADE = 96, TAIL = 7 };

typedef struct {
    Arena arena;
    uint64_t seed;
    Team *team; /* of three threads */
    Tensor made[MAX_MADE];
    int64_t stored[MAX_MADE];
    int n_made;
} Bench;

static inline void bench_open(Bench *b)
{
    memset(b, 0, sizeof *b);
    assert_int_equal(arena_open(&b->arena, "kernel test", (size_t)1 << 28), OK);
    assert_int_equal(team_open(&b->team, 3, NULL), OK);
    b->seed = 20240607;
}

static inline void bench_close(Bench *b)
{
    team_close(b->team);
    arena_close(&b->arena);
}

/* Removes all tensors; their memory is reused. */
static inline void bench_clear(Bench *b)
{
    arena_rewind(&b->arena, 0);
    b->n_made = 0;
}

/* Uniform in (-1, 1). */
static inline double bench_random(Bench *b)
{
    b->seed = b->seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(b->seed ^ b->seed << 21) / 9223372036854775808.0;
}

static inline int64_t offset_of(const Tensor *t, int64_t index)
{
    int64_t offset = 0;
    for (int d = t->ndim; d-- > 0; index /= t->n[d]) offset += index % t->n[d] * t->stride[d];
    return offset;
}

static inline double get(const Tensor *t, int64_t index)
{
    const int64_t at = offset_of(t, index);
    if (t->dtype == F64) return ((const double *)t->data)[at];
    if (t->dtype == F32) return (double)((const float *)t->data)[at];
    if (t->dtype == I32) return (double)((const int32_t *)t->data)[at];
    if (dtype_is_fp8(t->dtype)) return (double)fp8_get(t->dtype, ((const uint8_t *)t->data)[at]);
    const uint32_t bits = (uint32_t)((const uint16_t *)t->data)[at] << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* Truncates: test data need no rounding. */
static inline uint16_t bf16_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static inline void put(const Tensor *t, int64_t index, double x)
{
    const int64_t at = offset_of(t, index);
    if (t->dtype == F64)
        ((double *)t->data)[at] = x;
    else if (t->dtype == F32)
        ((float *)t->data)[at] = (float)x;
    else if (t->dtype == BF16)
        ((uint16_t *)t->data)[at] = bf16_bits((float)x);
    else if (dtype_is_fp8(t->dtype))
        ((uint8_t *)t->data)[at] = fp8_of(t->dtype, (float)x);
    else
        ((int32_t *)t->data)[at] = (int32_t)x;
}

/* Fills the storage with 0xFF: NaN as a float, -1 as an integer. */
static inline Tensor bench_new(Bench *b, DType dtype, Strides strides, const int64_t *n, int ndim)
{
    Tensor t = {.dtype = dtype, .ndim = ndim};
    int64_t step = strides == PADDED ? 2 : 1;
    for (int i = 0; i < ndim; i++) {
        const int d = strides == COLUMN_MAJOR ? i : ndim - 1 - i;
        t.n[d] = n[d];
        t.stride[d] = step;
        step *= n[d] + (strides == DENSE ? 0 : 1);
    }
    const int64_t stored = step + TAIL;
    assert_int_equal(arena_push(&b->arena, (size_t)stored * dtype_bytes(dtype), &t.data), OK);
    memset(t.data, 0xff, (size_t)stored * dtype_bytes(dtype));
    assert_true(b->n_made < MAX_MADE);
    b->made[b->n_made] = t;
    b->stored[b->n_made++] = stored;
    return t;
}

#define NEW(b, dtype, strides, ...)                                                                \
    bench_new((b), (dtype), (strides), (const int64_t[]){__VA_ARGS__},                             \
              (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

static inline void fill(Bench *b, const Tensor *t, double scale)
{
    for (int64_t i = 0; i < tensor_count(t); i++) put(t, i, scale * bench_random(b));
}

#define RANDOM(b, dtype, strides, ...)                                                             \
    bench_filled((b), bench_new((b), (dtype), (strides), (const int64_t[]){__VA_ARGS__},           \
                                (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))))

static inline Tensor bench_filled(Bench *b, Tensor t)
{
    fill(b, &t, 1);
    return t;
}

/* The left or the right half of a matrix, as gate and up are halves of one GEMM's output. */
static inline Tensor bench_half(Tensor wide, int which)
{
    wide.n[1] /= 2;
    wide.data =
        (char *)wide.data + (size_t)(which * wide.n[1] * wide.stride[1]) * dtype_bytes(wide.dtype);
    return wide;
}

/* An accumulator: random, or NaN if keep == 0, since its content must not be read. */
static inline Tensor accumulator(Bench *b, Tensor t, double keep)
{
    if (keep != 0) fill(b, &t, 2);
    return t;
}

static inline void run(KernelId id, const Call *call)
{
    assert_int_equal(device_ref.kernel[id](call), OK);
}

/* Runs on one thread and on three, and checks that every byte of the bench is equal. */
static inline void run_twice(Bench *b, KernelId id, const Call *call)
{
    const size_t bytes = b->arena.used_bytes;
    char *before = malloc(2 * bytes), *after = before + bytes;
    assert_non_null(before);
    memcpy(before, b->arena.base, bytes);
    Call copy = *call;
    copy.team = NULL;
    run(id, &copy);
    memcpy(after, b->arena.base, bytes);
    memcpy(b->arena.base, before, bytes);
    copy.team = b->team;
    run(id, &copy);
    if (memcmp(after, b->arena.base, bytes) != 0)
        fail_msg("%s: three threads give other bits than one", kernel_name(id));
    free(before);
}

/* Checks that float tensors have no NaN, and that the bytes around them are still NaN. */
static inline void expect_gaps(const Bench *b)
{
    for (int i = 0; i < b->n_made; i++) {
        Tensor all = b->made[i];
        if (all.dtype == I32) continue;
        const int64_t live = tensor_count(&all);
        for (int64_t k = 0; k < live; k++)
            if (isnan(get(&all, k))) fail_msg("tensor %d: NaN at %d", i, (int)k);
        all.ndim = 1;
        all.n[0] = b->stored[i];
        all.stride[0] = 1;
        int64_t set = 0;
        for (int64_t k = 0; k < b->stored[i]; k++) set += !isnan(get(&all, k));
        if (set != live) fail_msg("tensor %d: %d written, %d live", i, (int)set, (int)live);
    }
}

/* The tolerance is relative to the largest entry. */
static inline void expect_close(const char *what, const Tensor *got, const long double *want,
                                double tolerance)
{
    double largest = 0;
    const int64_t n = tensor_count(got);
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)want[i]));
    for (int64_t i = 0; i < n; i++) {
        const double off = fabs(get(got, i) - (double)want[i]);
        if (!(off <= tolerance * largest)) /* NaN fails too */
            fail_msg("%s[%d]: %.17g, want %.17g (largest %g)", what, (int)i, get(got, i),
                     (double)want[i], largest);
    }
}

/* The relative error of a value that is computed in f64 and stored once in this type. */
static inline double rounding(DType t) { return t == F64 ? 1e-13 : 1e-6; }

/* The scalar that tests differentiate: sum of dy * y over a kernel's outputs. */
typedef struct {
    KernelId id;
    Call call;
    Tensor dy[MAX_OUT]; /* no data: the output does not count */
} Probe;

static inline long double probe_value(void *work)
{
    const Probe *p = work;
    long double sum = 0;
    run(p->id, &p->call);
    for (int o = 0; o < p->call.n_out; o++)
        for (int64_t i = 0; p->dy[o].data && i < tensor_count(&p->dy[o]); i++)
            sum += (long double)get(&p->dy[o], i) * (long double)get(&p->call.out[o], i);
    return sum;
}

/* Writes d value / dx to `want`, by central differences of fourth order. */
static inline void differences(long double (*value)(void *work), void *work, const Tensor *x,
                               long double *want)
{
    const double h = 1e-3;
    for (int64_t i = 0; i < tensor_count(x); i++) {
        const double at = get(x, i);
        long double f[4];
        for (int k = 0; k < 4; k++) {
            put(x, i, at + h * (double)((const int[]){-2, -1, 1, 2})[k]);
            f[k] = value(work);
        }
        put(x, i, at);
        want[i] = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * (long double)h);
    }
}

/* Checks that got = base + the gradient of `value` with respect to x. */
static inline void expect_gradient(const char *what, long double (*value)(void *work), void *work,
                                   const Tensor *x, const Tensor *got, const long double *base)
{
    long double *want = malloc(sizeof *want * (size_t)tensor_count(x));
    assert_non_null(want);
    differences(value, work, x, want);
    for (int64_t i = 0; base && i < tensor_count(x); i++) want[i] += base[i];
    expect_close(what, got, want, 1e-8);
    free(want);
}

/* Returns keep times the accumulator's current content, the `base` of expect_gradient. The caller
 * frees it. */
static inline long double *kept(const Tensor *t, double keep)
{
    long double *base = calloc((size_t)tensor_count(t) + 1, sizeof *base);
    assert_non_null(base);
    for (int64_t i = 0; keep != 0 && i < tensor_count(t); i++)
        base[i] = (long double)keep * (long double)get(t, i);
    return base;
}

#endif

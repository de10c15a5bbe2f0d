/* test_cpu_gelu.c -- gelu and its gradient on each instruction set, value by value: relative
 * errors are under the bounds of device/cpu/simd/pointwise_gelu.c; large values, NaN; every
 * bf16.
 *
 * gelu(x) = x s with s = 1 / (1 + exp(-2u)): an absolute error of 2u is a relative error of s. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "device/cpu/cpu.h"
#include "device/cpu/microkernels.h"

enum { COUNT = 1 << 15, BATCHES = 8 };

typedef struct {
    float x[COUNT], y[COUNT], dx[COUNT];
} Values;

static Tensor list_of(float *x)
{
    return (Tensor){.data = x, .dtype = F32, .ndim = 1, .n = {COUNT}, .stride = {1}};
}

/* Both kernels; the gradient for dy = 1. */
static void gelu_of(CpuSimd simd, Values *v)
{
    const Call y = {.in = {list_of(v->x)}, .n_in = 1, .out = {list_of(v->y)}, .n_out = 1};
    const Call dx = {
        .in = {list_of(v->dx), list_of(v->x)}, .n_in = 2, .out = {list_of(v->dx)}, .n_out = 1};
    for (int i = 0; i < COUNT; i++) v->dx[i] = 1;
    assert_int_equal(device_cpu_simd(simd)->kernel[KERNEL_gelu](&y), OK);
    assert_int_equal(device_cpu_simd(simd)->kernel[KERNEL_gelu_dx](&dx), OK);
}

/* Floats of both signs, evenly spaced in their bits from 2^-30 to 9.9. Each batch has another
 * start. */
static void fill_batch(float *x, uint32_t batch)
{
    const uint32_t from = 0x30800000u, to = 0x411e6666u;
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t bits = from + (i / 2 * BATCHES + batch) * 9371u % (to - from);
        memcpy(&x[i], &bits, sizeof bits);
        if (i % 2) x[i] = -x[i];
    }
}

/* The bound of the relative error in units of 2^-24; a rounding adds at most one. 2u has five
 * roundings, constants included, which exp multiplies by |2u|. The power adds a little over four;
 * the sum, its reciprocal and the product with x add one each. The gradient adds nine: its slope, e
 * s, products. */
static double units(double two_u) { return 5 * fabs(two_u) + 8; }
enum { MORE_OF_DX = 9 };

static double check(CpuSimd simd, const Values *v, int i)
{
    const double x = (double)v->x[i], a = sqrt(2 / acos(-1.0)), b = 0.044715;
    const double two_u = 2 * a * (x + b * x * x * x), s = 1 / (1 + exp(-two_u));
    const double bend = x * s / (1 + exp(two_u)) * 2 * a * (1 + 3 * b * x * x);
    const double wrong = fabs((double)v->y[i] - x * s) / fabs(x * s);
    const double wrong_dx = fabs((double)v->dx[i] - (s + bend)) / (s + fabs(bend));
    const double unit = ldexp(1, -24);
    if (!(wrong <= units(two_u) * unit))
        fail_msg("instruction set %d: gelu(%.9g) = %.9g, not %.9g: %g units of %g", (int)simd, x,
                 (double)v->y[i], x * s, wrong / unit, units(two_u));
    if (!(wrong_dx <= (units(two_u) + MORE_OF_DX) * unit))
        fail_msg("instruction set %d: gelu'(%.9g) = %.9g, not %.9g: %g units of %g", (int)simd, x,
                 (double)v->dx[i], s + bend, wrong_dx / unit, units(two_u) + MORE_OF_DX);
    return fmax(wrong / units(two_u), wrong_dx / (units(two_u) + MORE_OF_DX)) / unit;
}

static void errors_are_bounded(void **state)
{
    static Values v;
    (void)state;
    for (CpuSimd simd = CPU_BASE; simd < N_CPU_SIMD; simd++) {
        double worst = 0;
        if (!cpu_has(simd)) continue;
        for (uint32_t batch = 0; batch < BATCHES; batch++) {
            fill_batch(v.x, batch);
            gelu_of(simd, &v);
            for (int i = 0; i < COUNT; i++) worst = fmax(worst, check(simd, &v, i));
        }
        printf("instruction set %d: error up to %.2f of its bound\n", (int)simd, worst);
    }
}

/* Infinite x does not produce NaN: gelu is 0 on the left and x on the right. */
static void large_values(void **state)
{
    static Values v;
    const float given[] = {-9.95f, -40, -1e13f, -3e38f, -INFINITY, 9.95f, 40, 3e38f, INFINITY, NAN};
    const int n = sizeof given / sizeof *given;
    (void)state;
    for (CpuSimd simd = CPU_BASE; simd < N_CPU_SIMD; simd++) {
        if (!cpu_has(simd)) continue;
        for (int i = 0; i < COUNT; i++) v.x[i] = given[i % n];
        gelu_of(simd, &v);
        for (int i = 0; i < COUNT; i++) {
            const float x = v.x[i], y = v.y[i], dx = v.dx[i];
            if (x < 0) assert_true(fabsf(y) < 1e-34f && fabsf(dx) < 1e-34f);
            if (x > 0) assert_true(y == x && dx == 1);
            if (isnan(x)) assert_true(isnan(y) && isnan(dx));
        }
    }
}

static float float_of(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* To nearest, ties to even. */
static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Results below 2^-126 may be 0: AVX512-BF16 flushes denormal numbers. */
static bool is_rounded(uint16_t got, float want)
{
    const uint16_t rounded = bf16_of(want);
    if (want != want) return float_of(got) != float_of(got);
    return got == rounded || (fabsf(want) < ldexpf(1, -126) && (got & 0x7fff) == 0);
}

static Tensor halves_of(uint16_t *x, int n)
{
    return (Tensor){.data = x, .dtype = BF16, .ndim = 1, .n = {n}, .stride = {1}};
}

/* Starts at index `from`, so that each element is once in a full vector and once in the
 * remainder. */
static void check_halves(const Device *d, int from)
{
    enum { ALL = 1 << 16, N = ALL / 2 - 1 };
    static uint16_t x[ALL], y[ALL], dx[ALL];
    static Values v;
    for (int i = 0; i < N; i++) x[i] = (uint16_t)(from + i);
    for (int i = 0; i < N; i++) dx[i] = bf16_of(1.5f);
    for (int i = 0; i < N; i++) v.x[i] = float_of(x[i]), v.dx[i] = 1.5f;
    const Call calls[] = {
        {.in = {halves_of(x, N)}, .n_in = 1, .out = {halves_of(y, N)}, .n_out = 1},
        {.in = {halves_of(dx, N), halves_of(x, N)},
         .n_in = 2,
         .out = {halves_of(dx, N)},
         .n_out = 1},
        {.in = {list_of(v.x)}, .n_in = 1, .out = {list_of(v.y)}, .n_out = 1},
        {.in = {list_of(v.dx), list_of(v.x)}, .n_in = 2, .out = {list_of(v.dx)}, .n_out = 1}};
    for (int i = 0; i < 4; i++)
        assert_int_equal(d->kernel[i % 2 ? KERNEL_gelu_dx : KERNEL_gelu](&calls[i]), OK);
    for (int i = 0; i < N; i++)
        if (!is_rounded(y[i], v.y[i]) || !is_rounded(dx[i], v.dx[i]))
            fail_msg("bf16 %04x, place %d: gelu %04x of %.9g, 1.5 gelu' %04x of %.9g", x[i], i,
                     y[i], (double)v.y[i], dx[i], (double)v.dx[i]);
}

/* For every bf16, the result is the f32 result rounded; with and without hardware rounding. */
static void every_bf16(void **state)
{
    const CpuMicrokernel before = microkernel_in_use(), kernel[] = {MICROKERNEL_FMA, before};
    (void)state;
    for (CpuSimd simd = CPU_BASE; simd < N_CPU_SIMD; simd++)
        for (int i = 0; i < 2 && cpu_has(simd); i++) {
            microkernel_use(kernel[i]);
            for (int from = 0; from < 1 << 16; from += (1 << 15) - 17)
                check_halves(device_cpu_simd(simd), from);
        }
    microkernel_use(before);
}

int main(void)
{
    const Device *cpu;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_bounded),
        cmocka_unit_test(large_values),
        cmocka_unit_test(every_bf16),
    };
    if (device_cpu_open(NULL, &cpu) != OK) return 1;
    return cmocka_run_group_tests_name("cpu_gelu", tests, NULL, NULL);
}

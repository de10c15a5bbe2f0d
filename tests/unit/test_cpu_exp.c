/* test_cpu_exp.c -- exp of vectors on each instruction set: the relative error is under 0.76 *
 * 2^-23 over the whole range, as device/cpu/simd/math.h states; values outside the range, and
 * NaN.
 *
 * It is tested through loss_dx: with m = 0, z = (1, -inf), weight 1 and no target, a row is
 * exp(logits). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "device/cpu/cpu.h"

enum { COUNT = 1 << 16 };

static void exp_of(CpuSimd simd, float *x, float *y)
{
    float m = 0, z[2] = {1, -INFINITY}, weight = 1;
    int32_t target = -1;
    const Call call = {
        .in = {{.data = x, .dtype = F32, .ndim = 2, .n = {1, COUNT}, .stride = {COUNT, 1}},
               {.data = &m, .dtype = F32, .ndim = 1, .n = {1}, .stride = {1}},
               {.data = z, .dtype = F32, .ndim = 2, .n = {1, 2}, .stride = {2, 1}},
               {.data = &target, .dtype = I32, .ndim = 1, .n = {1}, .stride = {1}},
               {.data = &weight, .dtype = F32, .ndim = 1, .n = {1}, .stride = {1}}},
        .n_in = 5,
        .out = {{.data = y, .dtype = F32, .ndim = 2, .n = {1, COUNT}, .stride = {COUNT, 1}}},
        .n_out = 1};
    assert_int_equal(device_cpu_simd(simd)->kernel[KERNEL_loss_dx](&call), OK);
}

/* Floats of both signs, evenly spaced in their bits from 2^-30 to the ends of the range. Each batch
 * has another start. */
static void fill_batch(float *x, uint32_t batch)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t step = 9371, sign = i & 1u, at = (i / 2 * 16 + batch) * step;
        uint32_t bits = 0x30800000u + at % (0x42b00000u - 0x30800000u);
        memcpy(&x[i], &bits, sizeof bits);
        if (sign) x[i] = -x[i];
        if (x[i] > 88.02f) x[i] = 88.02f;
        if (x[i] < -87.33f) x[i] = -87.33f;
    }
}

static void error_is_bounded(void **state)
{
    static float x[COUNT], y[COUNT];
    const double bound = 0.76 * ldexp(1, -23);
    (void)state;
    for (CpuSimd simd = CPU_BASE; simd < N_CPU_SIMD; simd++) {
        double worst = 0;
        if (!cpu_has(simd)) continue;
        for (uint32_t batch = 0; batch < 16; batch++) {
            fill_batch(x, batch);
            exp_of(simd, x, y);
            for (int i = 0; i < COUNT; i++) {
                const double want = exp((double)x[i]);
                const double error = fabs((double)y[i] - want) / want;
                if (!(error <= bound))
                    fail_msg("instruction set %d: exp(%.9g) = %.9g, not %.9g: off by %g of it",
                             (int)simd, (double)x[i], (double)y[i], want, error);
                if (error > worst) worst = error;
            }
        }
        printf("instruction set %d: error up to %.3f * 2^-23\n", (int)simd, ldexp(worst, 23));
    }
}

static void outside_of_its_range(void **state)
{
    static float x[COUNT], y[COUNT];
    const float given[] = {-87.34f, -200, -1e30f, -INFINITY, 88.03f, 1e30f, INFINITY, NAN, 0};
    const int n = sizeof given / sizeof *given;
    (void)state;
    for (CpuSimd simd = CPU_BASE; simd < N_CPU_SIMD; simd++) {
        if (!cpu_has(simd)) continue;
        for (int i = 0; i < COUNT; i++) x[i] = given[i % n];
        exp_of(simd, x, y);
        for (int i = 0; i < COUNT; i++) {
            const int k = i % n;
            if (k < 4) assert_true(y[i] == 0);
            if (k >= 4 && k < 7) assert_true(y[i] > 1.6e38f && isfinite(y[i]));
            if (k == 7) assert_true(isnan(y[i]));
            if (k == 8) assert_true(y[i] == 1);
        }
    }
}

int main(void)
{
    const Device *cpu;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_is_bounded),
        cmocka_unit_test(outside_of_its_range),
    };
    if (device_cpu_open(NULL, &cpu) != OK) return 1;
    return cmocka_run_group_tests_name("cpu_exp", tests, NULL, NULL);
}

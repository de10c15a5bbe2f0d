/* test_cpu_pointwise.c -- elementwise kernels and updates of device/cpu against ref: strides,
 * types, in place, large values. */
#include "cpu_test.h"

static const int64_t lengths[] = {0, 1, 5, 16, 33, 1024, 1100};
enum { N_LENGTHS = 7 };

/* Inputs n_in and outputs n_out of one shape, over all types, strides and lengths. */
static void try_all(CpuBench *c, KernelId id, int n_in, int n_out, double size)
{
    for (int t = 0; t < N_CPU_TYPES; t++)
        for (Strides strides = DENSE; strides < N_STRIDES; strides++)
            for (int l = 0; l < N_LENGTHS; l++) {
                Bench *b = &c->b;
                Call call = {.n_in = n_in, .n_out = n_out};
                call.attr.scale.factor = -1.7; /* the others read no attribute */
                for (int i = 0; i < n_in; i++) {
                    call.in[i] = NEW(b, cpu_types[t], (Strides)((strides + i) % N_STRIDES), 3, 2,
                                     lengths[l]);
                    fill(b, &call.in[i], size);
                }
                for (int o = 0; o < n_out; o++)
                    call.out[o] = NEW(b, cpu_types[t], (Strides)((strides + o) % N_STRIDES), 3, 2,
                                      lengths[l]);
                call.number[0] = id == KERNEL_add_to && l % 2 ? -0.6 : 0;
                if (call.number[0] != 0) fill(b, &call.out[0], size);
                expect_like_ref(c, id, &call, tol_sum(cpu_types[t], 1));
            }
}

static void simple_kernels(void **state)
{
    try_all(*state, KERNEL_add, 2, 1, 3);
    try_all(*state, KERNEL_add_to, 1, 1, 3);
    try_all(*state, KERNEL_scale, 1, 1, 3);
    try_all(*state, KERNEL_cast, 1, 1, 3);
    try_all(*state, KERNEL_copy, 1, 1, 3);
}

static void activations(void **state)
{
    const double size[] = {1, 6, 40};
    for (int i = 0; i < 3; i++) {
        try_all(*state, KERNEL_gelu, 1, 1, size[i]);
        try_all(*state, KERNEL_gelu_dx, 2, 1, size[i]);
        try_all(*state, KERNEL_swiglu, 2, 1, size[i]);
        try_all(*state, KERNEL_swiglu_dx, 3, 2, size[i]);
    }
}

/* Each value relative to itself, not to larger ones: gelu keeps the digits of small results. (Below
 * -5 ref does not.) */
static void gelu_of_small_results(void **state)
{
    CpuBench *c = *state;
    for (double x = -5; x < 9; x += 0.37) {
        Call call = {.n_in = 1, .n_out = 1};
        call.in[0] = NEW(&c->b, F32, DENSE, 1);
        call.out[0] = NEW(&c->b, F32, DENSE, 1);
        put(&call.in[0], 0, x);
        /* exp turns the rounding of its argument into a relative error, proportional to its
         * size. */
        expect_like_ref(c, KERNEL_gelu, &call,
                        tol_sum(F32, 4 * fabs(x) * x * x * 0.08 + 4 * fabs(x)));
    }
}

static void in_place(void **state)
{
    CpuBench *c = *state;
    for (int which = 0; which < 3; which++) {
        const KernelId id[] = {KERNEL_add, KERNEL_scale, KERNEL_gelu_dx};
        Bench *b = &c->b;
        Call call = {.n_in = id[which] == KERNEL_scale ? 1 : 2, .n_out = 1};
        call.attr.scale.factor = 0.3;
        for (int i = 0; i < 2; i++) call.in[i] = RANDOM(b, F32, which ? PADDED : DENSE, 7, 333);
        call.out[0] = call.in[0];
        expect_like_ref(c, id[which], &call, tol_sum(F32, 1));
    }
}

/* dup aliases dy and replaces it after dgate has been computed. */
static void swiglu_dx_in_place(void **state)
{
    CpuBench *c = *state;
    for (int i = 0; i < N_CPU_TYPES * N_STRIDES; i++) {
        const DType type = cpu_types[i / N_STRIDES];
        const Strides strides = (Strides)(i % N_STRIDES), other = (Strides)((i + 1) % N_STRIDES);
        Call call = {.n_in = 3, .n_out = 2};
        for (int k = 0; k < 3; k++)
            call.in[k] = RANDOM(&c->b, type, i % 2 && k ? other : strides, 7, 333);
        call.out[0] = NEW(&c->b, type, strides, 7, 333);
        call.out[1] = call.in[0];
        expect_like_ref(c, KERNEL_swiglu_dx, &call, tol_sum(type, 1));
    }
}

static void casts(void **state)
{
    CpuBench *c = *state;
    const DType types[] = {F64, F32, BF16};
    for (int i = 0; i < 81; i++) {
        Bench *b = &c->b;
        const Call call = {.in = {RANDOM(b, types[i % 3], (Strides)(i / 9 % 3), 5, 77)},
                           .n_in = 1,
                           .out = {NEW(b, types[i / 3 % 3], (Strides)(i / 27), 5, 77)},
                           .n_out = 1};
        /* Rounding from f32 or narrower matches ref. */
        expect_like_ref(c, KERNEL_cast, &call, 0);
    }
}

/* NaN stays NaN: rounding to bf16 does not turn it into infinity. */
static void nan_stays_nan(void **state)
{
    CpuBench *c = *state;
    for (CpuSimd s = CPU_BASE; s < N_CPU_SIMD; s++)
        for (int n = 1; n < 70 && cpu_has(s); n += 3) { /* in full vectors and in the remainder */
            const int at = n / 2;
            const KernelId id[] = {KERNEL_cast, KERNEL_gelu, KERNEL_scale};
            for (int k = 0; k < 3; k++) {
                Call call = {.in = {RANDOM(&c->b, F32, DENSE, n)},
                             .n_in = 1,
                             .out = {NEW(&c->b, BF16, DENSE, n)},
                             .n_out = 1};
                call.attr.scale.factor = 1;
                /* All ones: rounding up would carry into the sign. */
                ((uint32_t *)call.in[0].data)[at] = 0x7fffffff;
                assert_int_equal(device_cpu_simd(s)->kernel[id[k]](&call), OK);
                for (int i = 0; i < n; i++)
                    assert_int_equal(isnan(get(&call.out[0], i)) != 0, i == at);
                bench_clear(&c->b);
            }
        }
}

/* Any bytes: integers, and bit patterns that are NaN as floats. */
static void copies(void **state)
{
    CpuBench *c = *state;
    for (Strides strides = DENSE; strides < N_STRIDES; strides++) {
        Bench *b = &c->b;
        const Call call = {.in = {NEW(b, I32, strides, 9, 31)},
                           .n_in = 1,
                           .out = {NEW(b, I32, (Strides)((strides + 1) % N_STRIDES), 9, 31)},
                           .n_out = 1};
        for (int i = 0; i < 9 * 31; i++) put(&call.in[0], i, -i);
        against_ref(c, KERNEL_copy, &call, 0);
        for (int i = 0; i < 9 * 31; i++)
            assert_int_equal(((int32_t *)call.out[0].data)[offset_of(&call.out[0], i)], -i);
        bench_clear(b);
    }
}

static void updates(void **state)
{
    CpuBench *c = *state;
    for (int t = 0; t < N_CPU_TYPES; t++)
        for (int l = 0; l < 2 * N_LENGTHS; l++) {
            Bench *b = &c->b;
            const int64_t n = lengths[l / 2] * (l % 2 ? 67 : 1);
            Call call = {.in = {RANDOM(b, F32, DENSE, n)},
                         .n_in = 1,
                         .out = {RANDOM(b, cpu_types[t], DENSE, n), RANDOM(b, F32, DENSE, n),
                                 RANDOM(b, F32, DENSE, n)},
                         .n_out = 3,
                         .number = {0.01, 0.3, 1 - pow(0.9, 3), 1 - pow(0.95, 3)}};
            call.attr.adamw.beta1 = 0.9;
            call.attr.adamw.beta2 = 0.95;
            call.attr.adamw.eps = 1e-8;
            call.attr.adamw.decay = 0.1;
            for (int64_t i = 0; i < n; i++)
                put(&call.out[2], i, 0.1 + fabs(get(&call.out[2], i))); /* v > 0 */
            expect_like_ref(c, KERNEL_adamw, &call, tol_sum(cpu_types[t], 1));

            Call sgd = {.in = {RANDOM(b, F32, PADDED, n)},
                        .n_in = 1,
                        .out = {RANDOM(b, cpu_types[t], DENSE, n)},
                        .n_out = 1,
                        .number = {0.01, 0.3}};
            sgd.attr.sgd.decay = 0.1;
            expect_like_ref(c, KERNEL_sgd, &sgd, tol_sum(cpu_types[t], 1));
        }
}

/* f64 throughout: almost no error, even in sums where f32 would lose small terms. */
static void squares(void **state)
{
    CpuBench *c = *state;
    const int64_t n[] = {0, 1, 77, 65536, 300001};
    for (int t = 0; t < N_CPU_TYPES; t++)
        for (int i = 0; i < 5; i++)
            for (int keep = 0; keep < 2; keep++) {
                Bench *b = &c->b;
                const Call call = {.in = {RANDOM(b, cpu_types[t], i == 2 ? PADDED : DENSE, n[i])},
                                   .n_in = 1,
                                   .out = {accumulator(b, NEW(b, F64, DENSE, 1), keep)},
                                   .n_out = 1,
                                   .number = {keep}};
                expect_like_ref(c, KERNEL_sum_squares, &call, ((double)n[i] + 16) * ldexp(1, -53));
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simple_kernels),
        cmocka_unit_test(activations),
        cmocka_unit_test(gelu_of_small_results),
        cmocka_unit_test(in_place),
        cmocka_unit_test(casts),
        cmocka_unit_test(nan_stays_nan),
        cmocka_unit_test(copies),
        cmocka_unit_test(updates),
        cmocka_unit_test(squares),
        cmocka_unit_test(swiglu_dx_in_place),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}

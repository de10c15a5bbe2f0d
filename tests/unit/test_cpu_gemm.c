/* test_cpu_gemm.c -- GEMM of device/cpu against ref: all transposes, strides, odd sizes, long
 * and empty sums, accumulators kept or not; by every instruction set and the BLAS library. bf16,
 * and sizes that are split into blocks, are tested in test_cpu_gemm_*.c. */
#include "support/gemm_cases.h"

static void transposes_and_strides(void **state)
{
    for (Strides strides = DENSE; strides < N_STRIDES; strides++)
        for (int t = 0; t < 4; t++)
            for (int keep = 0; keep < 3; keep++)
                try_gemm(*state, (Size){37, 53, 29},
                         (How){.in = F32,
                               .out = F32,
                               .a = strides,
                               .b = (Strides)((strides + 1) % N_STRIDES),
                               .ta = t & 1,
                               .tb = t >> 1,
                               .bias = keep == 1,
                               .keep = keep * 0.5});
}

/* All dense: operands that the library can read in place. */
static void dense_gemms(void **state)
{
    const Size size[] = {{2, 2, 3},      {67, 35, 1},    {17, 130, 64},
                         {129, 257, 33}, {290, 300, 97}, {33, 1601, 40}};
    for (int i = 0; i < (int)(sizeof size / sizeof *size); i++)
        for (int t = 0; t < 4; t++)
            try_gemm(*state, size[i],
                     (How){.in = F32,
                           .out = F32,
                           .ta = t & 1,
                           .tb = t >> 1,
                           .bias = t != 3,
                           .keep = t == 1   ? 1
                                   : t == 2 ? 0.25
                                            : 0});
}

/* Few rows of A and contiguous rows of B: the skinny path up to eight rows, another from nine. */
static void skinny(void **state)
{
    CpuBench *c = *state;
    const int64_t depth[] = {1, 7, 16, 33, 300}, width[] = {1, 2, 5, 130};
    for (int i = 0; i < 180; i++) {
        Bench *b = &c->b;
        const Size s = {1 + i % 9, width[i / 9 % 4], depth[i / 36]};
        const DType type = i % 2 ? BF16 : F32;
        const double keep = i % 3 * 0.5;
        Call call = {.n_in = i % 5 ? 3 : 2, .n_out = 1, .number = {keep}};
        call.attr.gemm.tb = true;
        call.in[0] = RANDOM(b, type, (Strides)(i / 2 % 3), s.m, s.k);
        call.in[1] = RANDOM(b, type, i % 4 < 2 ? DENSE : PADDED, s.n, s.k);
        call.in[2] = RANDOM(b, type, (Strides)(i % 3), s.n);
        call.out[0] = accumulator(b, NEW(b, i % 7 ? type : F32, (Strides)(i % 3), s.m, s.n), keep);
        const DType out = call.out[0].dtype;
        expect_like_ref(c, KERNEL_gemm, &call, tol_sum(out, (double)s.k));
    }
}

/* The bits of a row do not depend on the other rows. */
static void rows_are_independent(void **state)
{
    CpuBench *c = *state;
    Bench *b = &c->b;
    const Tensor a = RANDOM(b, F32, DENSE, 8, 77), w = RANDOM(b, F32, DENSE, 45, 77);
    const Tensor all = NEW(b, F32, DENSE, 8, 45), one = NEW(b, F32, DENSE, 1, 45);
    Call call = {.n_in = 2, .n_out = 1, .in = {a, w}, .out = {all}};
    call.attr.gemm.tb = true;
    for (CpuSimd s = CPU_BASE; s < N_CPU_SIMD; s++) {
        if (!cpu_has(s)) continue;
        assert_int_equal(device_cpu_simd(s)->kernel[KERNEL_gemm](&call), OK);
        for (int64_t i = 0; i < 8; i++) {
            Call alone = call;
            alone.in[0].data = (float *)a.data + i * 77;
            alone.in[0].n[0] = 1;
            alone.out[0] = one;
            assert_int_equal(device_cpu_simd(s)->kernel[KERNEL_gemm](&alone), OK);
            assert_memory_equal(one.data, (float *)all.data + i * 45, 45 * sizeof(float));
        }
    }
    bench_clear(b);
}

static void views_of_wider(void **state) { try_views(*state, F32, 70, 80); }

/* One row, one column, empty matrices: paths without the library. */
static void thin_and_empty(void **state)
{
    const Size size[] = {{1, 70, 90}, {70, 1, 90}, {1, 1, 5}, {3, 4, 0}, {0, 4, 5}, {4, 0, 5}};
    for (int i = 0; i < (int)(sizeof size / sizeof *size); i++)
        for (int how = 0; how < 4; how++)
            try_gemm(*state, size[i],
                     (How){.in = how < 2 ? F32 : BF16,
                           .out = how < 2 ? F32 : BF16,
                           .b = PADDED,
                           .tb = true,
                           .bias = how % 2 == 0,
                           .keep = how % 2});
}

/* Sums over k that is no multiple of 32: a library's own threads would change bits here. */
static void long_sums(void **state)
{
    const Size size[] = {{130, 150, 777}, {35, 150, 1000}, {30, 70, 5000}};
    for (int i = 0; i < 3; i++)
        for (int ta = 0; ta < 2; ta++)
            try_gemm(*state, size[i], (How){.in = F32, .out = F32, .ta = ta, .tb = !ta, .keep = 1});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transposes_and_strides),
        cmocka_unit_test(dense_gemms),
        cmocka_unit_test(skinny),
        cmocka_unit_test(rows_are_independent),
        cmocka_unit_test(views_of_wider),
        cmocka_unit_test(thin_and_empty),
        cmocka_unit_test(long_sums),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}

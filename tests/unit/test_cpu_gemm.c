/* Products and column sums of device/cpu against ref: all transposes, strides, types, sizes with
 * odd edges, sums over many and over no terms, accumulators kept and not; by every unit. */
#include "cpu_test.h"

typedef struct {
    int64_t m, n, k;
} Size;

typedef struct {
    DType in, out;
    Lay lay;
    bool ta, tb, bias;
    double keep;
} How;

static void try_gemm(CpuBench *c, Size s, How h)
{
    Bench *b = &c->b;
    const Lay lb = (Lay)((h.lay + 1) % N_LAYS);
    Call call = {.n_in = h.bias ? 3 : 2, .n_out = 1, .number = {h.keep}};
    call.attr.gemm.ta = h.ta;
    call.attr.gemm.tb = h.tb;
    call.in[0] = h.ta ? RANDOM(b, h.in, h.lay, s.k, s.m) : RANDOM(b, h.in, h.lay, s.m, s.k);
    call.in[1] = h.tb ? RANDOM(b, h.in, lb, s.n, s.k) : RANDOM(b, h.in, lb, s.k, s.n);
    if (h.bias) call.in[2] = RANDOM(b, h.in, h.lay, s.n);
    call.out[0] = accumulator(b, NEW(b, h.out, h.lay, s.m, s.n), h.keep);
    expect_like_ref(c, KERNEL_gemm, &call, tol_sum(h.out, (double)s.k));
}

static void transposes_and_strides(void **state)
{
    CpuBench *c = *state;
    for (Lay lay = DENSE; lay < N_LAYS; lay++)
        for (int t = 0; t < 4; t++)
            for (int keep = 0; keep < 3; keep++) {
                const How h = {F32, F32, lay, t & 1, t >> 1, keep == 1, keep * 0.5};
                try_gemm(c, (Size){37, 53, 29}, h);
            }
}

/* All dense, so that the library gets what it can take as it lies. */
static void dense_products(void **state)
{
    CpuBench *c = *state;
    const Size size[] = {{2, 2, 3},      {67, 35, 1},    {17, 130, 64},
                         {129, 257, 33}, {290, 300, 97}, {33, 1601, 40}};
    for (int i = 0; i < (int)(sizeof size / sizeof *size); i++)
        for (int t = 0; t < 4; t++) {
            Bench *b = &c->b;
            const Size s = size[i];
            const double keep = t == 1 ? 1 : t == 2 ? 0.25 : 0;
            Call call = {.n_in = t == 3 ? 2 : 3, .n_out = 1, .number = {keep}};
            call.attr.gemm.ta = t & 1;
            call.attr.gemm.tb = t >> 1;
            call.in[0] = t & 1 ? RANDOM(b, F32, DENSE, s.k, s.m) : RANDOM(b, F32, DENSE, s.m, s.k);
            call.in[1] = t >> 1 ? RANDOM(b, F32, DENSE, s.n, s.k) : RANDOM(b, F32, DENSE, s.k, s.n);
            call.in[2] = RANDOM(b, F32, DENSE, s.n);
            call.out[0] = accumulator(b, NEW(b, F32, DENSE, s.m, s.n), keep);
            expect_like_ref(c, KERNEL_gemm, &call, tol_sum(F32, (double)s.k));
        }
}

/* A few rows times a weight whose rows are contiguous: one path up to eight, another from nine on. */
static void few_rows(void **state)
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
        call.in[0] = RANDOM(b, type, (Lay)(i / 2 % 3), s.m, s.k);
        call.in[1] = RANDOM(b, type, i % 4 < 2 ? DENSE : PADDED, s.n, s.k);
        call.in[2] = RANDOM(b, type, (Lay)(i % 3), s.n);
        call.out[0] = accumulator(b, NEW(b, i % 7 ? type : F32, (Lay)(i % 3), s.m, s.n), keep);
        const DType out = call.out[0].dtype;
        expect_like_ref(c, KERNEL_gemm, &call, tol_sum(out, (double)s.k));
    }
}

/* A row is the same whatever stands beside it. */
static void rows_are_alone(void **state)
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

/* Parts of wider matrices, as a fused q, k, v has them: rows contiguous, with a gap between. */
static void try_parts(CpuBench *c, DType type, int64_t depth, int64_t columns)
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

static void parts_of_wider(void **state) { try_parts(*state, F32, 70, 80); }

static void bf16_products(void **state)
{
    CpuBench *c = *state;
    const Size size[] = {{37, 53, 29}, {130, 258, 300}};
    for (int i = 0; i < 2; i++)
        for (int t = 0; t < 4; t++)
            for (int wide = 0; wide < 2; wide++)
                for (int keep = 0; keep < 2; keep++)
                    try_gemm(c, size[i],
                             (How){BF16, wide ? F32 : BF16, t ? PADDED : DENSE, t & 1, t >> 1,
                                   t == 2, keep});
}

/* Several tiles of a thread, several blocks of k, edges of both. */
static void bf16_blocks(void **state)
{
    CpuBench *c = *state;
    const Size size[] = {{270, 263, 1090}, {515, 35, 530}, {20, 550, 540}};
    for (int i = 0; i < 3; i++)
        for (int t = 0; t < 3; t++)
            try_gemm(c, size[i],
                     (How){BF16, t == 1 ? F32 : BF16, DENSE, t == 1, t == 0, t == 0, t == 1});
}

static void bf16_parts(void **state) { try_parts(*state, BF16, 127, 83); }

/* Parts that can be timed: all of it is the product; packing and multiplying leave c alone, storing does not. */
static void parts_of_a_product(void **state)
{
    Bench *b = &((CpuBench *)*state)->b;
    const Tensor x = RANDOM(b, BF16, DENSE, 70, 130), w = RANDOM(b, BF16, DENSE, 90, 130);
    const Tensor want = NEW(b, F32, DENSE, 70, 90), c = RANDOM(b, F32, DENSE, 70, 90);
    const size_t bytes = 70 * 90 * sizeof(float);
    Call call = {.n_in = 2, .n_out = 1, .in = {x, w}, .out = {want}};
    const Device *cpu;
    call.attr.gemm.tb = true;
    assert_int_equal(device_cpu_open(NULL, &cpu), OK);
    assert_int_equal(cpu->kernel[KERNEL_gemm](&call), OK);
    call.out[0] = c;
    float before[70 * 90];
    memcpy(before, c.data, bytes);
    assert_int_equal(device_cpu_gemm_part(&call, GEMM_PACK), OK);
    assert_int_equal(device_cpu_gemm_part(&call, GEMM_MULTIPLY), OK);
    assert_memory_equal(c.data, before, bytes);
    assert_int_equal(device_cpu_gemm_part(&call, GEMM_STORE), OK);
    assert_memory_not_equal(c.data, before, bytes);
    assert_int_equal(device_cpu_gemm_part(&call, GEMM_WHOLE), OK);
    assert_memory_equal(c.data, want.data, bytes);
    bench_clear(b);
}

/* c[m,n] of a[m,k] and b[n,k], dense: sums of f32 in index order, as plain code has them. */
static double plain_error(const Tensor *a, const Tensor *b, const Tensor *exact)
{
    double squares = 0;
    for (int64_t i = 0; i < exact->n[0]; i++)
        for (int64_t j = 0; j < exact->n[1]; j++) {
            float sum = 0;
            for (int64_t k = 0; k < a->n[1]; k++)
                sum += (float)get(a, i * a->n[1] + k) * (float)get(b, j * b->n[1] + k);
            const double off = (double)sum - get(exact, i * exact->n[1] + j);
            squares += off * off;
        }
    return sqrt(squares);
}

/* Of bf16 operands and f32 sums: no unit errs more than 1.5 times what plain code does. */
static void bf16_error(void **state)
{
    CpuBench *c = *state;
    Bench *b = &c->b;
    const CpuUnit in_use = units_in_use();
    const Tensor x = RANDOM(b, BF16, DENSE, 45, 2050), w = RANDOM(b, BF16, DENSE, 67, 2050);
    const Tensor exact = NEW(b, F64, DENSE, 45, 67), got = NEW(b, F32, DENSE, 45, 67);
    Call call = {.n_in = 2, .n_out = 1, .in = {x, w}, .out = {exact}};
    call.attr.gemm.tb = true;
    run(KERNEL_gemm, &call);
    const double plain = plain_error(&x, &w, &exact);
    call.out[0] = got;
    for (int u = 0; u < N_CPU_UNITS; u++) {
        if (!units_have((CpuUnit)u)) continue;
        double squares = 0;
        units_use((CpuUnit)u);
        assert_int_equal(
            device_cpu_simd(u == UNIT_FMA ? CPU_BASE : CPU_AVX512)->kernel[KERNEL_gemm](&call), OK);
        for (int64_t i = 0; i < tensor_count(&got); i++)
            squares += (get(&got, i) - get(&exact, i)) * (get(&got, i) - get(&exact, i));
        if (!(sqrt(squares) <= 1.5 * plain))
            fail_msg("%s: error %g, plain f32 %g", units_text((CpuUnit)u), sqrt(squares), plain);
    }
    units_use(in_use);
    bench_clear(b);
}

/* Where AMX is, the tests above have run it. Elsewhere its loops in C have stood for it. */
static void amx_is_there(void **state)
{
    (void)state;
    if (units_have(UNIT_TILES)) return;
    print_message("AMX is not granted on this machine: its instructions are NOT tested here, only "
                  "all that is around them\n");
    skip();
}

/* One row, one column, nothing at all: no library call, the same result. */
static void thin_and_empty(void **state)
{
    CpuBench *c = *state;
    const Size size[] = {{1, 70, 90}, {70, 1, 90}, {1, 1, 5}, {3, 4, 0}, {0, 4, 5}, {4, 0, 5}};
    for (int i = 0; i < (int)(sizeof size / sizeof *size); i++)
        for (int keep = 0; keep < 2; keep++)
            try_gemm(c, size[i], (How){F32, F32, DENSE, false, true, keep == 0, keep});
}

/* Where a library's own threads would change bits: sums over no multiple of 32. */
static void long_sums(void **state)
{
    CpuBench *c = *state;
    const int64_t k[] = {777, 1000, 5000};
    for (int i = 0; i < 3; i++)
        for (int t = 0; t < 4; t++) {
            const How h = {F32, F32, DENSE, t & 1, t >> 1, false, 1};
            if (t == 1 || t == 2) try_gemm(c, (Size){i < 2 ? 290 : 60, i < 2 ? 150 : 262, k[i]}, h);
        }
    try_gemm(c, (Size){130, 270, 777}, (How){BF16, F32, DENSE, true, false, false, 1});
}

/* Sums of so many terms that a strip of a is packed block by block, and again for more columns than 768;
 * rows of words by fours and some over, panels with lines missing. */
static void deep_sums(void **state)
{
    CpuBench *c = *state;
    const Size size[] = {{50, 835, 1431}, {157, 37, 1501}, {25, 129, 3001}};
    for (int i = 0; i < 3; i++)
        for (int t = 0; t < 4; t++) {
            const DType in = i == 2 ? BF16 : F32;
            if (i == 0 && t % 2 == 0) continue; /* the slowest: of two transposes */
            try_gemm(c, size[i],
                     (How){in, F32, t == 3 ? PADDED : DENSE, t & 1, t >> 1, t == 2, t == 1});
        }
}

/* Sizes at which operands are packed in pieces: along k, with sums that wait, where it is deeper than
 * 4,096 words (a word is two numbers of bf16); of columns, and of rows, where 2 or 4 million words are
 * less. */
static void pieces(void **state)
{
    CpuBench *c = *state;
    const How adds = {F32, F32, DENSE, true, false, true, 1};
    const How narrow = {BF16, BF16, DENSE, false, true, true, 0.5};
    try_gemm(c, (Size){45, 70, 9001}, adds);
    try_gemm(c, (Size){61, 37, 8999}, narrow);
    try_gemm(c, (Size){9, 1337, 4093}, adds);
    try_gemm(c, (Size){1409, 3, 4095}, adds);
    try_gemm(c, (Size){2100, 3, 8190}, adds);
    try_gemm(c, (Size){9, 6000, 731}, (How){F32, F32, DENSE, false, true, false, 0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transposes_and_strides),
        cmocka_unit_test(dense_products),
        cmocka_unit_test(few_rows),
        cmocka_unit_test(rows_are_alone),
        cmocka_unit_test(parts_of_wider),
        cmocka_unit_test(bf16_products),
        cmocka_unit_test(bf16_blocks),
        cmocka_unit_test(bf16_parts),
        cmocka_unit_test(parts_of_a_product),
        cmocka_unit_test(bf16_error),
        cmocka_unit_test(amx_is_there),
        cmocka_unit_test(thin_and_empty),
        cmocka_unit_test(long_sums),
        cmocka_unit_test(deep_sums),
        cmocka_unit_test(pieces),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}

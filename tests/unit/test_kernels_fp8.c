/* test_kernels_fp8.c -- kernels of FP8: quantization has the same bits on every device; GEMMs are
 * those of the values times their scales. */
#include "cpu_test.h"

#include "support/expect.h"

/* All devices of this machine: ref, and each instruction set of cpu. */
static const Device *device_at(int i)
{
    if (i == 0) return &device_ref;
    return cpu_has((CpuSimd)(i - 1)) ? device_cpu_simd((CpuSimd)(i - 1)) : NULL;
}

enum { N_DEVICES = 1 + N_CPU_SIMD };

/* Random numbers of very different sizes; zeros, infinities and NaN if asked for. */
static Tensor spread(Bench *b, DType type, Strides strides, int64_t rows, int64_t columns)
{
    const Tensor x = NEW(b, type, strides, rows, columns);
    for (int64_t i = 0; i < rows * columns; i++)
        put(&x, i, bench_random(b) * ldexp(1, (int)(i * 7 % 23) - 17));
    return x;
}

static Tensor scalar_of(const Tensor *list, int64_t index)
{
    Tensor t = *list;
    t.data = (float *)list->data + index;
    t.n[0] = 1;
    return t;
}

static void expect_same(const char *what, const Device *d, const Tensor *got, const Tensor *want)
{
    for (int64_t i = 0; i < tensor_count(want); i++) {
        const double x = get(got, i), y = get(want, i);
        if (x != y && !(isnan(x) && isnan(y)))
            fail_msg("%s on %s [%d]: %.9g, not %.9g", what, d->name, (int)i, x, y);
    }
}

/* The largest magnitude, by definition. */
static double largest(const Tensor *x, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    double most = 0;
    for (int64_t i = row; i < row + rows && i < x->n[0]; i++)
        for (int64_t j = column; j < column + columns && j < x->n[1]; j++)
            most = fmax(most, fabs(get(x, i * x->n[1] + j)));
    return most;
}

static void quantizes(void **state)
{
    CpuBench *c = *state;
    static const int64_t shape[][2] = {{1, 1}, {7, 130}, {129, 300}, {5, 2100}};
    for (int k = 0; k < 4; k++)
        for (int type = E4M3; type <= E5M2; type++)
            for (int strides = 0; strides < N_STRIDES; strides++) {
                bench_clear(&c->b);
                const int64_t *n = shape[k];
                const Tensor x = spread(&c->b, k % 2 ? BF16 : F32, (Strides)strides, n[0], n[1]);
                const float most = (float)largest(&x, 0, n[0], 0, n[1]);
                const Fp8Scale s = fp8_scale((DType)type, most);
                for (int d = 0; d < N_DEVICES; d++) {
                    const Device *device = device_at(d);
                    if (!device) continue;
                    const Tensor m = NEW(&c->b, F32, DENSE, 1), got_s = NEW(&c->b, F32, DENSE, 1);
                    const Tensor y = NEW(&c->b, (DType)type, (Strides)strides, n[0], n[1]);
                    const Call amax = {
                        .in = {x}, .n_in = 1, .out = {m}, .n_out = 1, .team = c->team[3]};
                    const Call quantize = {.in = {x, m},
                                           .n_in = 2,
                                           .out = {y, got_s},
                                           .n_out = 2,
                                           .attr.quantize.type = (DType)type,
                                           .team = c->team[2]};
                    assert_int_equal(device->kernel[KERNEL_amax](&amax), OK);
                    assert_int_equal(device->kernel[KERNEL_quantize](&quantize), OK);
                    assert_true(get(&m, 0) == (double)most);
                    assert_true(get(&got_s, 0) == (double)s.scale);
                    for (int64_t i = 0; i < n[0] * n[1]; i++)
                        if (get(&y, i) !=
                            (double)fp8_get((DType)type,
                                            fp8_of((DType)type, (float)get(&x, i) * s.inverse)))
                            fail_msg("%s [%d]", device->name, (int)i);
                }
                expect_gaps(&c->b);
            }
}

/* The transpose has the codes of quantize, and both have its scale. */
static void quantizes_turned(void **state)
{
    CpuBench *c = *state;
    static const int64_t shape[][2] = {{1, 1}, {7, 130}, {129, 300}};
    for (int k = 0; k < 3; k++)
        for (int type = E4M3; type <= E5M2; type++)
            for (int d = 0; d < N_DEVICES; d++) {
                const Device *device = device_at(d);
                const int64_t *n = shape[k];
                if (!device) continue;
                bench_clear(&c->b);
                Call call = {
                    .in = {spread(&c->b, BF16, PADDED, n[0], n[1]), NEW(&c->b, F32, DENSE, 1)},
                    .n_in = 2,
                    .attr.quantize.type = (DType)type,
                    .team = c->team[3]};
                put(&call.in[1], 0, 0.7);
                Tensor y[2], z[2];
                for (int i = 0; i < 2; i++) {
                    y[i] = NEW(&c->b, (DType)type, DENSE, n[0], n[1]);
                    z[i] = NEW(&c->b, (DType)type, DENSE, n[1], n[0]);
                }
                const Tensor s = NEW(&c->b, F32, DENSE, 4);
                const Tensor scale[4] = {scalar_of(&s, 0), scalar_of(&s, 1), scalar_of(&s, 2),
                                         scalar_of(&s, 3)};
                call.n_out = 2, call.out[0] = y[0], call.out[1] = scale[0];
                assert_int_equal(device->kernel[KERNEL_quantize](&call), OK);
                call.out[0] = z[0], call.out[1] = scale[1];
                assert_int_equal(device->kernel[KERNEL_quantize_turned](&call), OK);
                call.n_out = 4, call.out[0] = y[1], call.out[1] = scale[2];
                call.out[2] = z[1], call.out[3] = scale[3];
                assert_int_equal(device->kernel[KERNEL_quantize_both](&call), OK);
                for (int i = 0; i < 4; i++) assert_true(get(&s, i) == get(&s, 0));
                for (int64_t i = 0; i < n[0] * n[1]; i++) {
                    const int64_t turned = i % n[1] * n[0] + i / n[1];
                    assert_true(get(&z[0], turned) == get(&y[0], i));
                    assert_true(get(&z[1], turned) == get(&y[0], i));
                    assert_true(get(&y[1], i) == get(&y[0], i));
                }
                expect_gaps(&c->b);
            }
}

/* Fused kernels of delayed scaling have the bits of the kernels that they replace, then
 * quantize_by. */
static void writes_by_a_scale(void **state)
{
    static const struct {
        KernelId by, plain;
        int n_in, stats;
        bool halves;
    } kernel[] = {{KERNEL_rmsnorm_by, KERNEL_rmsnorm, 2, 1, false},
                  {KERNEL_swiglu_by, KERNEL_swiglu, 2, 0, false},
                  {KERNEL_swiglu_dx_by, KERNEL_swiglu_dx, 3, 0, true}};
    CpuBench *c = *state;
    const int64_t t = 37, i = 150;
    for (int k = 0; k < 3; k++)
        for (int d = 0; d < N_DEVICES; d++) {
            const Device *device = device_at(d);
            const int64_t width = kernel[k].halves ? 2 * i : i;
            const int n_in = kernel[k].n_in, m = 1 + kernel[k].stats;
            if (!device) continue;
            bench_clear(&c->b);
            Call by = {.n_in = n_in + 1, .n_out = m + 2, .team = c->team[3]};
            for (int o = 0; o < n_in; o++) by.in[o] = spread(&c->b, BF16, DENSE, t, i);
            if (k == 0) by.in[1] = RANDOM(&c->b, BF16, DENSE, i);
            const Tensor s = by.in[n_in] = NEW(&c->b, F32, DENSE, 1);
            put(&s, 0, ldexp(1, -9));
            by.out[0] = NEW(&c->b, E4M3, DENSE, t, width);
            if (kernel[k].stats) by.out[1] = NEW(&c->b, F32, DENSE, t);
            by.out[m] = NEW(&c->b, F32, DENSE, 1);
            by.out[m + 1] = NEW(&c->b, E4M3, DENSE, width, t);
            by.attr.by.type = E4M3;
            by.attr.by.eps = 1e-5;
            assert_int_equal(device->kernel[kernel[k].by](&by), OK);
            const Tensor whole = NEW(&c->b, BF16, DENSE, t, width);
            Call plain = by, quantize = by;
            plain.n_in = n_in;
            plain.n_out = 1 + kernel[k].stats + kernel[k].halves;
            plain.attr = (Attr){.norm = {1e-5}};
            plain.out[0] = whole;
            if (kernel[k].stats) plain.out[1] = NEW(&c->b, F32, DENSE, t);
            if (kernel[k].halves) {
                plain.out[0].n[1] = i;
                plain.out[1] = plain.out[0];
                plain.out[1].data = (uint16_t *)whole.data + i;
            }
            assert_int_equal(device->kernel[kernel[k].plain](&plain), OK);
            quantize.n_in = 2, quantize.n_out = 3;
            quantize.in[0] = whole, quantize.in[1] = s;
            quantize.out[0] = NEW(&c->b, E4M3, DENSE, t, width);
            quantize.out[1] = NEW(&c->b, F32, DENSE, 1);
            quantize.out[2] = NEW(&c->b, E4M3, DENSE, width, t);
            assert_int_equal(device->kernel[KERNEL_quantize_by](&quantize), OK);
            expect_same("y", device, &by.out[0], &quantize.out[0]);
            expect_same("amax", device, &by.out[m], &quantize.out[1]);
            expect_same("z", device, &by.out[m + 1], &quantize.out[2]);
            assert_true(get(&by.out[m], 0) == largest(&whole, 0, t, 0, width));
            for (int64_t e = 0; e < t * width; e++) {
                const float x = (float)(get(&whole, e) * ldexp(1, 9));
                assert_true(get(&by.out[0], e) == (double)fp8_get(E4M3, fp8_of(E4M3, x)));
                assert_true(get(&by.out[m + 1], e % width * t + e / width) == get(&by.out[0], e));
            }
        }
}

/* Marks of two micro-batches, aged twice; the scale is that of the largest mark that is not
 * forgotten. */
static void marks_give_scales(void **state)
{
    CpuBench *c = *state;
    const int64_t bins = FP8_SITES * FP8_BINS;
    for (int d = 0; d < N_DEVICES; d++) {
        const Device *device = device_at(d);
        if (!device) continue;
        bench_clear(&c->b);
        const Tensor mark = NEW(&c->b, F32, DENSE, bins), sum = NEW(&c->b, F32, DENSE, bins);
        const Tensor s = NEW(&c->b, F32, DENSE, FP8_SITES);
        for (int64_t i = 0; i < bins; i++) put(&mark, i, 0);
        for (int step = 0; step < 11; step++) {
            Call age = {.in = {sum}, .n_in = 1, .out = {mark}, .n_out = 1};
            Call scales = {.in = {mark}, .n_in = 1, .out = {s}, .n_out = 1};
            scales.attr.sites.gradients = 1u << 4;
            for (int micro = 0; micro < 2; micro++) {
                Call call = {.in = {NEW(&c->b, F32, DENSE, 1), NEW(&c->b, F32, DENSE, 1)},
                             .n_in = 2,
                             .out = {sum},
                             .n_out = 1,
                             .number = {micro},
                             .attr.sites.first = 3};
                put(&call.in[0], 0, step == 0 && micro == 1 ? 100 : 3); /* an outlier */
                put(&call.in[1], 0, 0);
                if (step == 2) put(&call.in[1], 0, 0.75e-3);
                assert_int_equal(device->kernel[KERNEL_mark_amax](&call), OK);
            }
            assert_int_equal(device->kernel[KERNEL_age_marks](&age), OK);
            assert_int_equal(device->kernel[KERNEL_delayed_scales](&scales), OK);
            /* 100 is below 2^7, 3 below 2^2, 0.00075 below 2^-10 */
            assert_true(get(&s, 3) == ldexp(1, (step <= 7 ? 7 : 2) - 7));
            assert_true(get(&s, 4) == (step < 2 || step > 9 ? ldexp(1, -8) : ldexp(1, -10 - 14)));
            assert_true(get(&s, 0) == ldexp(1, -4));
        }
        expect_gaps(&c->b);
    }
}

static void quantizes_blocks(void **state)
{
    CpuBench *c = *state;
    static const int32_t block[][2] = {{1, 128}, {128, 1}, {128, 128}};
    for (int k = 0; k < 3; k++) {
        const int64_t n[2] = {131, 300};
        const int64_t blocks[2] = {(n[0] + block[k][0] - 1) / block[k][0],
                                   (n[1] + block[k][1] - 1) / block[k][1]};
        bench_clear(&c->b);
        const Tensor x = spread(&c->b, BF16, DENSE, n[0], n[1]);
        Tensor first = {0};
        for (int d = 0; d < N_DEVICES; d++) {
            const Device *device = device_at(d);
            if (!device) continue;
            const Tensor y = NEW(&c->b, E4M3, DENSE, n[0], n[1]);
            const Tensor s = NEW(&c->b, F32, DENSE, blocks[0], blocks[1]);
            const Call call = {.in = {x},
                               .n_in = 1,
                               .out = {y, s},
                               .n_out = 2,
                               .attr.quantize = {.type = E4M3, .block = {block[k][0], block[k][1]}},
                               .team = c->team[3]};
            assert_int_equal(device->kernel[KERNEL_quantize_blocks](&call), OK);
            for (int64_t i = 0; i < blocks[0] * blocks[1]; i++) {
                const double most = largest(&x, i / blocks[1] * block[k][0], block[k][0],
                                            i % blocks[1] * block[k][1], block[k][1]);
                assert_true(get(&s, i) == (double)fp8_scale(E4M3, (float)most).scale);
            }
            if (d == 0) first = y;
            expect_same("quantize_blocks", device, &y, &first);
        }
        expect_gaps(&c->b);
    }
}

static Tensor codes(Bench *b, DType type, Strides strides, int64_t rows, int64_t columns)
{
    const Tensor t = NEW(b, type, strides, rows, columns);
    for (int64_t i = 0; i < rows * columns; i++)
        put(&t, i, bench_random(b) * (type == E4M3 ? 448 : 57344));
    return t;
}

static Tensor scales_of(Bench *b, const Tensor *x, const int32_t *block)
{
    const int64_t rows = (x->n[0] + block[0] - 1) / (block[0] ? block[0] : 1),
                  columns = (x->n[1] + block[1] - 1) / (block[1] ? block[1] : 1);
    const Tensor s = block[0] ? NEW(b, F32, DENSE, rows, columns) : NEW(b, F32, DENSE, 1);
    for (int64_t i = 0; i < tensor_count(&s); i++) put(&s, i, 1e-3 * (2 + bench_random(b)));
    return s;
}

static double scaled(const Tensor *x, const Tensor *s, const int32_t *block, int64_t i, int64_t j)
{
    const int64_t at = block[0] ? i / block[0] * s->n[1] + j / block[1] : 0;
    return get(x, i * x->n[1] + j) * get(s, at);
}

/* One GEMM against a sum in long double, on each device. */
static void try_gemm(CpuBench *c, bool ta, bool tb, const int32_t *a_block, const int32_t *b_block,
                     bool bias, double keep)
{
    const int64_t m = 9, n = 35, k = 300;
    bench_clear(&c->b);
    const Tensor a = codes(&c->b, ta ? E5M2 : E4M3, DENSE, ta ? k : m, ta ? m : k);
    const Tensor b = codes(&c->b, E4M3, tb ? DENSE : PADDED, tb ? n : k, tb ? k : n);
    const Tensor sa = scales_of(&c->b, &a, a_block), sb = scales_of(&c->b, &b, b_block);
    const Tensor more = RANDOM(&c->b, BF16, DENSE, n);
    for (int d = 0; d < N_DEVICES; d++) {
        const Device *device = device_at(d);
        if (!device) continue;
        const Tensor out = accumulator(&c->b, NEW(&c->b, F32, DENSE, m, n), keep);
        Call call = {.in = {a, b, sa, sb, more},
                     .n_in = bias ? 5 : 4,
                     .out = {out},
                     .n_out = 1,
                     .number = {keep},
                     .attr.gemm = {.ta = ta,
                                   .tb = tb,
                                   .a_block = {a_block[0], a_block[1]},
                                   .b_block = {b_block[0], b_block[1]}},
                     .team = c->team[2]};
        double *want = calloc((size_t)(m * n), sizeof *want), most = 0;
        assert_non_null(want);
        for (int64_t i = 0; i < m * n; i++) {
            long double sum = bias ? (long double)get(&more, i % n) : 0;
            for (int64_t p = 0; p < k; p++)
                sum += (long double)scaled(&a, &sa, a_block, ta ? p : i / n, ta ? i / n : p) *
                       (long double)scaled(&b, &sb, b_block, tb ? i % n : p, tb ? p : i % n);
            want[i] = (double)sum + (keep != 0 ? keep * get(&out, i) : 0);
            most = fmax(most, fabs(want[i]));
        }
        assert_int_equal(device->kernel[KERNEL_scaled_gemm](&call), OK);
        for (int64_t i = 0; i < m * n; i++)
            if (!(fabs(get(&out, i) - want[i]) <= tol_sum(F32, 2 * k) * most))
                fail_msg("%s ta %d tb %d [%d]: %.9g, not %.9g", device->name, ta, tb, (int)i,
                         get(&out, i), want[i]);
        free(want);
    }
    expect_gaps(&c->b);
}

static void multiplies(void **state)
{
    CpuBench *c = *state;
    static const int32_t whole[2] = {0, 0}, row[2] = {1, 128}, column[2] = {128, 1},
                         square[2] = {128, 128};
    for (int bias = 0; bias < 2; bias++)
        for (int keep = 0; keep < 2; keep++) {
            try_gemm(c, false, true, whole, whole, bias, keep);
            try_gemm(c, false, true, row, square, bias, keep);
        }
    try_gemm(c, false, false, whole, whole, false, 1);
    try_gemm(c, false, false, row, square, false, 1);
    try_gemm(c, true, false, whole, whole, false, 1);
    try_gemm(c, true, false, column, column, false, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantizes),         cmocka_unit_test(quantizes_turned),
        cmocka_unit_test(writes_by_a_scale), cmocka_unit_test(marks_give_scales),
        cmocka_unit_test(quantizes_blocks),  cmocka_unit_test(multiplies),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}

/* test_kernels_fp8_experts.c -- experts in 8 bits: a scale for each expert, of the rows that it has
 * and of its matrix, by definition, on every device; experts without rows; rows past the last. */
#include "cpu_test.h"

#include "base/fp8.h"
#include "support/expect.h"

static const Device *device_at(int i)
{
    if (i == 0) return &device_ref;
    return cpu_has((CpuSimd)(i - 1)) ? device_cpu_simd((CpuSimd)(i - 1)) : NULL;
}

enum { N_DEVICES = 1 + N_CPU_SIMD, EXPERTS = 4, ROOM = 23, IN = 37, OUT = 19 };

static const int32_t first_rows[EXPERTS + 1] = {0, 7, 7, 8, 20}; /* rows 20 to 22 are of nobody */

static Tensor offsets_of(Bench *b)
{
    const Tensor t = NEW(b, I32, DENSE, EXPERTS + 1);
    for (int i = 0; i <= EXPERTS; i++) ((int32_t *)t.data)[i] = first_rows[i];
    return t;
}

static int expert_of(int64_t row)
{
    int e = 0;
    while (e < EXPERTS && row >= first_rows[e + 1]) e++;
    return e;
}

static Tensor rows_of(Bench *b, DType type, int64_t columns)
{
    const Tensor x = NEW(b, type, DENSE, ROOM, columns);
    for (int64_t i = 0; i < ROOM * columns; i++)
        put(&x, i, expert_of(i / columns) == EXPERTS ? (double)NAN : bench_random(b) * (double)i);
    return x;
}

/* The codes of x[first..end), one after another, are those of their own largest magnitude. */
static void expect_codes(const Device *d, const Tensor *x, const Tensor *y, const Tensor *s, int e,
                         int64_t first, int64_t end)
{
    double most = 0;
    for (int64_t i = first; i < end; i++) most = fmax(most, fabs(get(x, i)));
    const Fp8Scale scale = fp8_scale(y->dtype, (float)most);
    if ((float)get(s, e) != scale.scale)
        fail_msg("%s: scale %d is %.9g, not %.9g", d->name, e, get(s, e), (double)scale.scale);
    for (int64_t i = first; i < end; i++)
        if (((uint8_t *)y->data)[i] != fp8_of(y->dtype, (float)get(x, i) * scale.inverse))
            fail_msg("%s: code %d of expert %d", d->name, (int)i, e);
}

static void experts_have_scales(void **state)
{
    CpuBench *c = *state;
    for (int k = 0; k < 4 * N_DEVICES; k++) {
        const Device *d = device_at(k % N_DEVICES);
        const DType from = k / N_DEVICES % 2 ? BF16 : F32, to = k / N_DEVICES / 2 ? E5M2 : E4M3;
        if (!d) continue;
        bench_clear(&c->b);
        const Tensor x = rows_of(&c->b, from, IN), w = NEW(&c->b, from, DENSE, EXPERTS, OUT, IN);
        const Tensor y = NEW(&c->b, to, DENSE, ROOM, IN),
                     v = NEW(&c->b, to, DENSE, EXPERTS, OUT, IN);
        const Tensor s = NEW(&c->b, F32, DENSE, EXPERTS), t = NEW(&c->b, F32, DENSE, EXPERTS);
        for (int64_t i = 0; i < EXPERTS * OUT * IN; i++)
            put(&w, i, i / (OUT * IN) == 2 ? 0 : bench_random(&c->b) * (double)(i / OUT));
        Call rows = {.in = {x, offsets_of(&c->b)},
                     .n_in = 2,
                     .out = {y, s},
                     .n_out = 2,
                     .attr.quantize.type = to,
                     .team = c->team[3]};
        Call stack = {.in = {w},
                      .n_in = 1,
                      .out = {v, t},
                      .n_out = 2,
                      .attr.quantize.type = to,
                      .team = c->team[2]};
        const uint8_t unused = ((uint8_t *)y.data)[20 * IN];
        assert_int_equal(d->kernel[KERNEL_grouped_quantize](&rows), OK);
        assert_int_equal(d->kernel[KERNEL_stack_quantize](&stack), OK);
        assert_int_equal(((uint8_t *)y.data)[20 * IN], unused);
        for (int e = 0; e < EXPERTS; e++) {
            expect_codes(d, &x, &y, &s, e, first_rows[e] * IN, first_rows[e + 1] * IN);
            expect_codes(d, &w, &v, &t, e, e * OUT * IN, (e + 1) * OUT * IN);
        }
    }
}

static Tensor codes_of(Bench *b, DType type, int ndim, int64_t n0, int64_t n1, int64_t n2)
{
    const Tensor t = ndim == 2 ? NEW(b, type, DENSE, n0, n1) : NEW(b, type, DENSE, n0, n1, n2);
    for (int64_t i = 0; i < tensor_count(&t); i++)
        put(&t, i, floor(bench_random(b) * 8) / 4); /* values that both types have */
    return t;
}

static Tensor scales_of(Bench *b)
{
    const Tensor t = NEW(b, F32, DENSE, EXPERTS);
    for (int e = 0; e < EXPERTS; e++) put(&t, e, ldexp(1 + e, -3));
    return t;
}

/* which: 0 y = x w', 1 dx = dy w, 2 dw = dy' x. */
static void check_gemm(CpuBench *c, const Device *d, int which, double keep)
{
    Bench *b = &c->b;
    const Tensor x = codes_of(b, E4M3, 2, ROOM, IN, 0), dy = codes_of(b, E5M2, 2, ROOM, OUT, 0),
                 w = codes_of(b, E4M3, 3, EXPERTS, OUT, IN), sa = scales_of(b), sb = scales_of(b);
    const Tensor out = which == 2 ? NEW(b, F32, DENSE, EXPERTS, OUT, IN)
                                  : NEW(b, F32, DENSE, ROOM, which ? IN : OUT);
    for (int64_t i = 0; i < tensor_count(&out); i++) put(&out, i, 3);
    Call call = {.in = {which == 0 ? x : dy, which == 2 ? x : w, sa, sb, offsets_of(b)},
                 .n_in = 5,
                 .out = {out},
                 .n_out = 1,
                 .number = {keep},
                 .team = c->team[3]};
    call.attr.gemm.tb = which == 0;
    const KernelId id = which == 2 ? KERNEL_grouped_scaled_gemm_dw : KERNEL_grouped_scaled_gemm;
    assert_int_equal(d->kernel[id](&call), OK);
    const int64_t columns = which == 0 ? OUT : IN;
    for (int64_t i = 0; i < tensor_count(&out); i++) {
        const int64_t row = i / columns, column = i % columns;
        const int e = which == 2 ? (int)(row / OUT) : expert_of(row);
        double sum = 0;
        if (e == EXPERTS) { /* a row of nobody */
            assert_true(get(&out, i) == 3);
            continue;
        }
        for (int64_t k = 0; which == 0 && k < IN; k++)
            sum += get(&x, row * IN + k) * get(&w, (e * OUT + column) * IN + k);
        for (int64_t k = 0; which == 1 && k < OUT; k++)
            sum += get(&dy, row * OUT + k) * get(&w, (e * OUT + k) * IN + column);
        for (int64_t r = first_rows[e]; which == 2 && r < first_rows[e + 1]; r++)
            sum += get(&dy, r * OUT + row % OUT) * get(&x, r * IN + column);
        const double want = keep * 3 + sum * get(&sa, e) * get(&sb, e);
        if (fabs(get(&out, i) - want) > 1e-4 * (1 + fabs(want)))
            fail_msg("%s, gemm %d [%d]: %.9g, not %.9g", d->name, which, (int)i, get(&out, i),
                     want);
    }
}

static void grouped_gemms_scale_experts(void **state)
{
    CpuBench *c = *state;
    for (int k = 0; k < 6 * N_DEVICES; k++) {
        const Device *d = device_at(k % N_DEVICES);
        if (!d) continue;
        bench_clear(&c->b);
        check_gemm(c, d, k / N_DEVICES % 3, k / N_DEVICES / 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_have_scales),
        cmocka_unit_test(grouped_gemms_scale_experts),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}

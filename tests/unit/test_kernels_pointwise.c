/* test_kernels_pointwise.c -- kernels with a formula per element, and casts and copies of every
 * type. */
#include "kernel_test.h"

#include <float.h>

static Bench bench;

typedef long double (*Formula)(const long double *x); /* of one element */

static long double sigmoid(long double x) { return 1 / (1 + expl(-x)); }

static long double add_of(const long double *x) { return x[0] + x[1]; }

static long double scale_of(const long double *x) { return -2.5L * x[0]; }

static long double gelu_of(const long double *x)
{
    const long double pi = acosl(-1.0L), v = x[0];
    return v / 2 * (1 + tanhl(sqrtl(2 / pi) * (v + 0.044715L * v * v * v)));
}

static long double swiglu_of(const long double *x) { return x[0] * sigmoid(x[0]) * x[1]; }

static const struct {
    KernelId id;
    int n_in;
    Formula formula;
} rows[] = {
    {KERNEL_add, 2, add_of},
    {KERNEL_scale, 1, scale_of},
    {KERNEL_gelu, 1, gelu_of},
    {KERNEL_swiglu, 2, swiglu_of},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static void check_values(const Call *call, int row)
{
    const Tensor *y = &call->out[0];
    long double *want = kept(y, 0), x[2];
    for (int64_t i = 0; i < tensor_count(y); i++) {
        for (int k = 0; k < call->n_in; k++) x[k] = (long double)get(&call->in[k], i);
        want[i] = rows[row].formula(x);
    }
    run_twice(&bench, rows[row].id, call);
    expect_close(kernel_name(rows[row].id), y, want, rounding(y->dtype));
    expect_gaps(&bench);
    free(want);
}

static Tensor shaped(int ndim, DType type, int strides)
{
    const Strides l = (Strides)(strides % N_STRIDES);
    if (ndim == 1) return NEW(&bench, type, l, 4099); /* several pieces, more than one tile */
    if (ndim == 2) return NEW(&bench, type, l, 5, 261);
    return NEW(&bench, type, l, 11, 3, 7);
}

static void values(void **state)
{
    (void)state;
    for (int row = 0; row < N_ROWS; row++)
        for (int ndim = 1; ndim <= 3; ndim++)
            for (int c = 0; c < 2 * N_STRIDES; c++) {
                const DType type = c < N_STRIDES ? F64 : F32;
                bench_clear(&bench);
                Call call = {.n_in = rows[row].n_in, .n_out = 1};
                call.attr.scale.factor = row == 1 ? -2.5 : 0;
                for (int k = 0; k < call.n_in; k++) {
                    call.in[k] = shaped(ndim, type, c + k);
                    fill(&bench, &call.in[k], 4);
                }
                call.out[0] = shaped(ndim, type, c + 2);
                check_values(&call, row);
                call.out[0] = call.in[call.n_in - 1]; /* in place */
                bench.n_made--;
                check_values(&call, row);
            }
}

static void no_elements(void **state)
{
    (void)state;
    for (int row = 0; row < N_ROWS; row++) {
        bench_clear(&bench);
        Call call = {.n_in = rows[row].n_in, .n_out = 1};
        for (int k = 0; k < call.n_in; k++) call.in[k] = NEW(&bench, F64, PADDED, 3, 0);
        call.out[0] = NEW(&bench, F64, DENSE, 3, 0);
        check_values(&call, row);
        for (int k = 0; k < call.n_in; k++) call.in[k] = NEW(&bench, F64, PADDED, 0, 3);
        call.out[0] = NEW(&bench, F64, DENSE, 0, 3);
        check_values(&call, row);
    }
}

static void gradients(void **state)
{
    (void)state;
    bench_clear(&bench);
    Probe p = {.id = KERNEL_gelu, .call = {.n_in = 1, .n_out = 1}};
    const Tensor x = p.call.in[0] = NEW(&bench, F64, COLUMN_MAJOR, 5, 13);
    const Tensor up = p.call.in[1] = RANDOM(&bench, F64, PADDED, 5, 13);
    fill(&bench, &x, 3);
    p.call.out[0] = NEW(&bench, F64, DENSE, 5, 13);
    const Tensor dy = p.dy[0] = RANDOM(&bench, F64, PADDED, 5, 13);
    const Tensor dx = NEW(&bench, F64, PADDED, 5, 13), dup = NEW(&bench, F64, COLUMN_MAJOR, 5, 13);
    run_twice(&bench, KERNEL_gelu_dx, &(Call){.in = {dy, x}, .n_in = 2, .out = {dx}, .n_out = 1});
    expect_gradient("gelu dx", probe_value, &p, &x, &dx, NULL);

    p.id = KERNEL_swiglu;
    p.call.n_in = 2;
    run_twice(&bench, KERNEL_swiglu_dx,
              &(Call){.in = {dy, x, up}, .n_in = 3, .out = {dx, dup}, .n_out = 2});
    expect_gradient("dgate", probe_value, &p, &x, &dx, NULL);
    expect_gradient("dup", probe_value, &p, &up, &dup, NULL);
    expect_gaps(&bench);
}

/* y = keep y + x; without keep the old content, here NaN, is not read. */
static void adds_to(void **state)
{
    static const double keep[] = {0, 1, -0.5};
    (void)state;
    for (int i = 0; i < 3 * N_STRIDES; i++) {
        const DType type = i % 2 ? F64 : F32;
        Call call = {.n_in = 1, .n_out = 1, .number = {keep[i % 3]}};
        bench_clear(&bench);
        call.in[0] = shaped(1 + i % 3, type, i);
        fill(&bench, &call.in[0], 4);
        call.out[0] = accumulator(&bench, shaped(1 + i % 3, type, i / 3), keep[i % 3]);
        long double *want = kept(&call.out[0], keep[i % 3]);
        for (int64_t e = 0; e < tensor_count(&call.out[0]); e++)
            want[e] += (long double)get(&call.in[0], e);
        run_twice(&bench, KERNEL_add_to, &call);
        expect_close("add_to", &call.out[0], want, rounding(type));
        expect_gaps(&bench);
        free(want);
    }
}

/* dup may be dy: both outputs are computed from dy before it is overwritten, with the same bits. */
static void swiglu_dx_in_place(void **state)
{
    (void)state;
    for (int i = 0; i < 3 * N_STRIDES; i++) {
        const DType type = (DType)(F64 + i / N_STRIDES);
        Call call = {.n_in = 3, .n_out = 2};
        Tensor apart[2];
        bench_clear(&bench);
        for (int k = 0; k < 3; k++) {
            call.in[k] = shaped(2, type, i + k / 2);
            fill(&bench, &call.in[k], 4);
        }
        for (int k = 0; k < 2; k++) call.out[k] = apart[k] = shaped(2, type, i + k);
        run(KERNEL_swiglu_dx, &call);
        call.out[0] = shaped(2, type, i);
        call.out[1] = call.in[0];
        run_twice(&bench, KERNEL_swiglu_dx, &call);
        for (int k = 0; k < 2; k++)
            for (int64_t e = 0; e < tensor_count(&apart[k]); e++)
                if (get(&call.out[k], e) != get(&apart[k], e))
                    fail_msg("%s, output %d [%d]: %.17g in place, and %.17g apart",
                             dtype_name(type), k, (int)e, get(&call.out[k], e), get(&apart[k], e));
        expect_gaps(&bench);
    }
}

/* Large values do not overflow to NaN. */
static void saturation(void **state)
{
    (void)state;
    bench_clear(&bench);
    const Tensor x = NEW(&bench, F32, DENSE, 4), one = NEW(&bench, F32, DENSE, 4);
    const Tensor y = NEW(&bench, F32, DENSE, 4), z = NEW(&bench, F32, DENSE, 4);
    const double extreme[] = {-3e38, -900, 900, 3e38}, slope[] = {0, 0, 1, 1};
    for (int i = 0; i < 4; i++) {
        put(&x, i, extreme[i]);
        put(&one, i, 1);
    }
    for (int k = 0; k < 2; k++) {
        const KernelId f = k ? KERNEL_swiglu : KERNEL_gelu;
        run(f, &(Call){.in = {x, one}, .n_in = 1 + k, .out = {y}, .n_out = 1});
        for (int i = 0; i < 4; i++) assert_true(get(&y, i) == slope[i] * get(&x, i));
        run(k ? KERNEL_swiglu_dx : KERNEL_gelu_dx,
            &(Call){.in = {one, x, one}, .n_in = 2 + k, .out = {y, z}, .n_out = 1 + k});
        for (int i = 0; i < 4; i++) assert_true(get(&y, i) == slope[i]);
    }
}

static void expect_cast(DType from, DType to, double x, double want)
{
    bench_clear(&bench);
    const Tensor a = NEW(&bench, from, DENSE, 1), b = NEW(&bench, to, DENSE, 1);
    put(&a, 0, x);
    run(KERNEL_cast, &(Call){.in = {a}, .n_in = 1, .out = {b}, .n_out = 1});
    const double got = get(&b, 0);
    if (isnan(want) ? !isnan(got) : got != want)
        fail_msg("%s to %s: %a became %a, not %a", dtype_name(from), dtype_name(to), x, got, want);
}

/* bf16 has 8 bits of significand: neighbors of 1 are 2^-7 apart above it. */
static void casts(void **state)
{
    (void)state;
    for (int from = F64; from <= F32; from++) {
        expect_cast((DType)from, BF16, 0x1.01p0, 1);            /* a tie goes to even: down */
        expect_cast((DType)from, BF16, 0x1.03p0, 0x1.04p0);     /* and up */
        expect_cast((DType)from, BF16, -0x1.0102p0, -0x1.02p0); /* past the tie */
        expect_cast((DType)from, BF16, 0x1.fffep127, HUGE_VAL);
        expect_cast((DType)from, BF16, -HUGE_VAL, -HUGE_VAL);
        expect_cast((DType)from, BF16, (double)NAN, (double)NAN);
        expect_cast((DType)from, BF16, 0x1p-133, 0x1p-133); /* the smallest there is */
        expect_cast((DType)from, BF16, -0.0, 0);
    }
    expect_cast(F64, BF16, 0x1.0100000001p0, 0x1.02p0); /* f32 would call it a tie */
    expect_cast(F64, BF16, 0x1.02ffffffffp0, 0x1.02p0);
    expect_cast(F64, BF16, 1e300, HUGE_VAL);
    expect_cast(F64, F32, 0x1.0000011p0, 0x1.000002p0);
    expect_cast(F32, F64, (double)FLT_MAX, (double)FLT_MAX);

    bench_clear(&bench); /* there and back, any strides */
    const Tensor a = NEW(&bench, BF16, PADDED, 3, 300), b = NEW(&bench, F32, COLUMN_MAJOR, 3, 300);
    const Tensor c = NEW(&bench, BF16, DENSE, 3, 300);
    for (int64_t i = 0; i < 900; i++) ((uint16_t *)a.data)[offset_of(&a, i)] = (uint16_t)(i * 36);
    run_twice(&bench, KERNEL_cast, &(Call){.in = {a}, .n_in = 1, .out = {b}, .n_out = 1});
    run_twice(&bench, KERNEL_cast, &(Call){.in = {b}, .n_in = 1, .out = {c}, .n_out = 1});
    for (int64_t i = 0; i < 900; i++)
        assert_int_equal(((uint16_t *)c.data)[offset_of(&c, i)],
                         ((uint16_t *)a.data)[offset_of(&a, i)]);
    expect_gaps(&bench);
}

/* Bytes of any meaning: integers, NaN payloads. */
static void copies(void **state)
{
    (void)state;
    for (int type = 0; type < N_DTYPES; type++)
        for (int c = 0; c < N_STRIDES * N_STRIDES; c++) {
            bench_clear(&bench);
            const Tensor x = NEW(&bench, (DType)type, (Strides)(c % N_STRIDES), 70, 3, 5);
            const Tensor y = NEW(&bench, (DType)type, (Strides)(c / N_STRIDES), 70, 3, 5);
            const size_t bytes = dtype_bytes((DType)type);
            for (int64_t i = 0; i < tensor_count(&x); i++)
                for (size_t k = 0; k < bytes; k++)
                    ((char *)x.data)[(size_t)offset_of(&x, i) * bytes + k] =
                        (char)(100 * bench_random(&bench));
            run_twice(&bench, KERNEL_copy, &(Call){.in = {x}, .n_in = 1, .out = {y}, .n_out = 1});
            for (int64_t i = 0; i < tensor_count(&x); i++)
                assert_memory_equal((char *)y.data + (size_t)offset_of(&y, i) * bytes,
                                    (char *)x.data + (size_t)offset_of(&x, i) * bytes, bytes);
            if (c / N_STRIDES == PADDED) /* the gap after the first element */
                assert_int_equal(((unsigned char *)y.data)[bytes], 0xff);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),     cmocka_unit_test(no_elements),
        cmocka_unit_test(adds_to),    cmocka_unit_test(gradients),
        cmocka_unit_test(saturation), cmocka_unit_test(casts),
        cmocka_unit_test(copies),     cmocka_unit_test(swiglu_dx_in_place),
    };
    bench_open(&bench);
    const int failed = cmocka_run_group_tests_name("kernels: pointwise", tests, NULL, NULL);
    bench_close(&bench);
    return failed;
}

/* test_kernels_gemm_epilogue.c -- GEMMs with an epilogue (a sum, a gelu, the gradient of swiglu)
 * against plain loops: every transpose, type and memory order; and against the two kernels that
 * they replace. */
#include "kernel_test.h"

static Bench bench;

static long double entry(const Tensor *t, bool transposed, int64_t i, int64_t j)
{
    return (long double)get(t, transposed ? j * t->n[1] + i : i * t->n[1] + j);
}

static long double gelu_of(long double x)
{
    const long double a = 0.797884560802865355879892119868763737L;
    return x / 2 * (1 + tanhl(a * (x + 0.044715L * x * x * x)));
}

static long double silu_of(long double x) { return x / (1 + expl(-x)); }

/* The slope by differences; its error is in h^4. */
static long double slope_of(long double (*f)(long double), long double x)
{
    const long double h = 1e-3L;
    return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h);
}

/* a b + bias, as [m n]. */
static long double *gemm(const Call *c, const Tensor *bias)
{
    const int64_t m = c->out[0].n[0], n = c->out[0].n[1], k = c->in[0].n[!c->attr.gemm.ta];
    long double *sum = calloc((size_t)(m * n + 1), sizeof *sum);
    assert_non_null(sum);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            sum[i * n + j] = bias ? (long double)get(bias, j) : 0;
            for (int64_t p = 0; p < k; p++)
                sum[i * n + j] += entry(&c->in[0], c->attr.gemm.ta, i, p) *
                                  entry(&c->in[1], c->attr.gemm.tb, p, j);
        }
    return sum;
}

typedef struct {
    int64_t m, n, k;
    int variant; /* bits: ta, tb, bias */
    DType type;
} Case;

/* m, n, k */
static const int64_t size[][3] = {{37, 71, 131}, {3, 5, 7}, {33, 1, 65},
                                  {3, 5, 0},     {0, 5, 7}, {3, 0, 7}};
enum { N_SIZES = sizeof size / sizeof *size };

static Strides strides(const Case *c, int add) { return (Strides)((c->variant + add) % N_STRIDES); }

/* a and b, and an output. */
static Call open_call(const Case *c)
{
    const bool ta = c->variant & 1, tb = c->variant & 2;
    Call call = {.n_in = 2, .n_out = 1};
    bench_clear(&bench);
    call.attr.gemm.ta = ta;
    call.attr.gemm.tb = tb;
    call.in[0] = RANDOM(&bench, c->type, strides(c, 0), ta ? c->k : c->m, ta ? c->m : c->k);
    call.in[1] = RANDOM(&bench, c->type, strides(c, 1), tb ? c->n : c->k, tb ? c->k : c->n);
    call.out[0] = NEW(&bench, c->type, strides(c, 2), c->m, c->n);
    return call;
}

static void check(const Case *c, KernelId id, const Call *call, int out, const long double *want)
{
    run_twice(&bench, id, call);
    expect_close(kernel_name(id), &call->out[out], want, rounding(c->type));
    expect_gaps(&bench);
}

static void try_add(const Case *c)
{
    Call call = open_call(c);
    const Tensor bias = RANDOM(&bench, c->type, strides(c, 0), c->n);
    const bool has = c->variant & 4;
    call.in[call.n_in++] = RANDOM(&bench, c->type, strides(c, 0), c->m, c->n);
    if (has) call.in[call.n_in++] = bias;
    long double *want = gemm(&call, has ? &bias : NULL);
    for (int64_t i = 0; i < c->m * c->n; i++) want[i] += (long double)get(&call.in[2], i);
    check(c, KERNEL_gemm_add, &call, 0, want);
    free(want);
}

static void try_gelu(const Case *c)
{
    Call call = open_call(c);
    const Tensor bias = RANDOM(&bench, c->type, strides(c, 0), c->n);
    const bool has = c->variant & 4;
    if (has) call.in[call.n_in++] = bias;
    call.out[call.n_out++] = NEW(&bench, c->type, strides(c, 0), c->m, c->n);
    long double *want = gemm(&call, has ? &bias : NULL);
    check(c, KERNEL_gemm_gelu, &call, 1, want);
    for (int64_t i = 0; i < c->m * c->n; i++) want[i] = gelu_of(want[i]);
    expect_close("h", &call.out[0], want, 2 * rounding(c->type)); /* gelu of u, rounded twice */
    free(want);
}

static void try_dgelu(const Case *c)
{
    Call call = open_call(c);
    call.in[call.n_in++] = RANDOM(&bench, c->type, strides(c, 0), c->m, c->n);
    long double *want = gemm(&call, NULL);
    for (int64_t i = 0; i < c->m * c->n; i++)
        want[i] *= slope_of(gelu_of, (long double)get(&call.in[2], i));
    const double keep = c->variant & 4 ? 0.5 : 0, tolerance = fmax(rounding(c->type), 1e-11);
    const Tensor db = accumulator(&bench, NEW(&bench, dtype_wide(c->type), PADDED, c->n), keep);
    call.out[call.n_out++] = db;
    call.number[1] = keep;
    long double *sums = kept(&db, keep);
    run_twice(&bench, KERNEL_gemm_dgelu, &call);
    expect_close("dgelu", &call.out[0], want, tolerance);
    for (int64_t i = 0; i < c->m * c->n; i++) sums[i % c->n] += (long double)get(&call.out[0], i);
    expect_close("its sums", &db, sums, rounding(c->type));
    expect_gaps(&bench);
    free(want);
    free(sums);
}

/* Half of the distance of two neighbors of the type, relative to them. */
static double unit_of(DType t) { return ldexp(1, t == F64 ? -53 : t == F32 ? -24 : -8); }

static Call open_dswiglu(const Case *c)
{
    Call call = open_call(c);
    bench.n_made--; /* not its output */
    const Tensor y = NEW(&bench, c->type, strides(c, 0), c->m, 2 * c->n);
    const Tensor dy = NEW(&bench, c->type, strides(c, 2), c->m, 2 * c->n);
    fill(&bench, &y, c->variant & 4 ? 7 : 1); /* far from 0 too */
    for (int k = 0; k < 2; k++) {
        call.in[call.n_in++] = bench_half(y, k);
        call.out[k] = bench_half(dy, k);
    }
    call.n_out = 2;
    return call;
}

static void try_dswiglu(const Case *c)
{
    const Call call = open_dswiglu(c);
    long double *dup = gemm(&call, NULL), *dgate = gemm(&call, NULL);
    for (int64_t i = 0; i < c->m * c->n; i++) {
        const long double gate = (long double)get(&call.in[2], i);
        dgate[i] *= (long double)get(&call.in[3], i) * slope_of(silu_of, gate);
        dup[i] *= silu_of(gate);
    }
    run_twice(&bench, KERNEL_gemm_dswiglu, &call);
    const double tolerance = unit_of(c->type) + 1e-11; /* that of the slope */
    expect_close("dgate", &call.out[0], dgate, tolerance);
    expect_close("dup", &call.out[1], dup, tolerance);
    expect_gaps(&bench);
    free(dgate);
    free(dup);
}

static void against_formula(void **state)
{
    (void)state;
    for (int i = 0; i < N_SIZES; i++)
        for (int variant = 0; variant < 8; variant++)
            for (int type = F64; type <= F32; type++) {
                const Case c = {size[i][0], size[i][1], size[i][2], variant, (DType)type};
                try_add(&c);
                try_gelu(&c);
                try_dgelu(&c);
            }
}

static void dswiglu_against_formula(void **state)
{
    (void)state;
    for (int i = 0; i < N_SIZES; i++)
        for (int variant = 0; variant < 8; variant++)
            for (int type = F64; type <= BF16; type++)
                try_dswiglu(&(Case){size[i][0], size[i][1], size[i][2], variant, (DType)type});
}

/* Two kernels round dy in between, except in f64. With e the unit of the type, the results for x
 * are x (1 + e1) and x (1 + e2)(1 + e3): less than 3 e (1 + 4 e) of either apart. */
static void dswiglu_equals_two_kernels(void **state)
{
    (void)state;
    for (int type = F64; type <= BF16; type++)
        for (int variant = 0; variant < 8; variant++) {
            const Case c = {19, 23, 11, variant, (DType)type};
            const Call one = open_dswiglu(&c);
            const Tensor dy = NEW(&bench, c.type, DENSE, c.m, c.n);
            Call first = one, then = {.in = {dy, one.in[2], one.in[3]}, .n_in = 3, .n_out = 2};
            first.n_in = 2;
            first.out[0] = dy;
            first.n_out = 1;
            for (int k = 0; k < 2; k++) then.out[k] = NEW(&bench, c.type, PADDED, c.m, c.n);
            run(KERNEL_gemm_dswiglu, &one);
            run(KERNEL_gemm, &first);
            run(KERNEL_swiglu_dx, &then);
            const double e = unit_of(c.type), apart = c.type == F64 ? 0 : 3 * e * (1 + 4 * e);
            for (int64_t i = 0; i < 2 * c.m * c.n; i++) {
                const double x = get(&one.out[i % 2], i / 2), y = get(&then.out[i % 2], i / 2);
                if (!(fabs(x - y) <= apart * fabs(y)))
                    fail_msg("%s, variant %d, output %d [%d]: %.17g, one after the other %.17g",
                             dtype_name(c.type), variant, (int)(i % 2), (int)(i / 2), x, y);
            }
        }
}

/* c may be the addend, with the same bits. */
static void adds_in_place(void **state)
{
    (void)state;
    const Case c = {19, 23, 11, 2, F32};
    Call call = open_call(&c);
    const Tensor addend = call.in[call.n_in++] = RANDOM(&bench, F32, strides(&c, 2), c.m, c.n);
    run(KERNEL_gemm_add, &call);
    const Tensor apart = call.out[0];
    call.out[0] = addend;
    run(KERNEL_gemm_add, &call);
    for (int64_t i = 0; i < c.m * c.n; i++) assert_true(get(&addend, i) == get(&apart, i));
}

/* A recomputed value equals the original: h is gelu of u as it is stored, to the bit. */
static void gelu_of_stored_u(void **state)
{
    static const DType type[] = {F32, BF16};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const Case c = {19, 23, 11, 6, type[i]};
        Call call = open_call(&c);
        call.out[call.n_out++] = NEW(&bench, c.type, DENSE, c.m, c.n);
        const Tensor second = NEW(&bench, c.type, DENSE, c.m, c.n);
        run(KERNEL_gemm_gelu, &call);
        run(KERNEL_gelu, &(Call){.in = {call.out[1]}, .n_in = 1, .out = {second}, .n_out = 1});
        for (int64_t k = 0; k < c.m * c.n; k++)
            assert_true(get(&second, k) == get(&call.out[0], k));
    }
}

/* A kernel is a GEMM by its name, wherever it is in the table. */
static void gemms_are_named(void **state)
{
    (void)state;
    for (int k = 0; k < N_KERNELS; k++)
        assert_int_equal(kernel_is_gemm((KernelId)k),
                         strncmp(kernel_name((KernelId)k), "gemm", 4) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemms_are_named),         cmocka_unit_test(against_formula),
        cmocka_unit_test(dswiglu_against_formula), cmocka_unit_test(dswiglu_equals_two_kernels),
        cmocka_unit_test(adds_in_place),           cmocka_unit_test(gelu_of_stored_u),
    };
    bench_open(&bench);
    const int failed = cmocka_run_group_tests_name("kernels: gemm epilogues", tests, NULL, NULL);
    bench_close(&bench);
    return failed;
}

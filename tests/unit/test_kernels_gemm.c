/* test_kernels_gemm.c -- GEMMs and column sums against plain loops: every transpose, type,
 * memory order and `keep`. */
#include "kernel_test.h"

static Bench bench;
static const double keeps[] = {0, 1, 0.5};

/* Element (i, j) of a matrix that may be stored transposed. */
static long double entry(const Tensor *t, bool transposed, int64_t i, int64_t j)
{
    return (long double)get(t, transposed ? j * t->n[1] + i : i * t->n[1] + j);
}

static void check_gemm(const Call *call, const char *what, int64_t k, double tolerance)
{
    const Tensor *c = &call->out[0];
    long double *want = kept(c, call->number[0]);
    for (int64_t i = 0; i < c->n[0]; i++)
        for (int64_t j = 0; j < c->n[1]; j++) {
            long double sum = call->n_in > 2 ? (long double)get(&call->in[2], j) : 0;
            for (int64_t p = 0; p < k; p++)
                sum += entry(&call->in[0], call->attr.gemm.ta, i, p) *
                       entry(&call->in[1], call->attr.gemm.tb, p, j);
            want[i * c->n[1] + j] += sum;
        }
    run_twice(&bench, KERNEL_gemm, call);
    expect_close(what, c, want, tolerance);
    expect_gaps(&bench);
    free(want);
}

static void one_gemm(int64_t m, int64_t n, int64_t k, int variant)
{
    const bool ta = variant & 1, tb = variant & 2, bias = variant & 4;
    for (int type = F64; type <= F32; type++)
        for (int s = 0; s < 3; s++) {
            bench_clear(&bench);
            const Strides strides = (Strides)((variant + s) % N_STRIDES);
            Call call = {.n_in = bias ? 3 : 2, .n_out = 1, .number = {keeps[s]}};
            call.attr.gemm.ta = ta;
            call.attr.gemm.tb = tb;
            call.in[0] = RANDOM(&bench, type, strides, ta ? k : m, ta ? m : k);
            call.in[1] = RANDOM(&bench, type, (strides + 1) % N_STRIDES, tb ? n : k, tb ? k : n);
            call.in[2] = RANDOM(&bench, type, strides, n);
            call.out[0] =
                accumulator(&bench, NEW(&bench, type, (strides + 2) % N_STRIDES, m, n), keeps[s]);
            check_gemm(&call, "c", k, rounding((DType)type));
        }
}

static void gemms(void **state)
{
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        one_gemm(37, 71, 131, variant); /* more than a tile in each dim */
        one_gemm(3, 5, 7, variant);
        one_gemm(33, 1, 65, variant);
    }
}

static void no_terms(void **state)
{
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        one_gemm(3, 5, 0, variant); /* c = keep * c + bias */
        one_gemm(0, 5, 7, variant);
        one_gemm(3, 0, 7, variant);
    }
}

/* A sum in f32 must equal the fold of the results of single calls: g is rounded to the type of the
 * sum before it is added. Values may be narrower than their sum. */
static void sum_is_a_fold(void **state)
{
    (void)state;
    bench_clear(&bench);
    Call call = {.n_in = 2, .n_out = 1};
    call.in[0] = RANDOM(&bench, F32, DENSE, 9, 50);
    call.in[1] = RANDOM(&bench, F32, DENSE, 50, 11);
    const Tensor sum = accumulator(&bench, NEW(&bench, F32, DENSE, 9, 11), 1);
    const Tensor alone = NEW(&bench, F32, PADDED, 9, 11), wide = NEW(&bench, F64, DENSE, 9, 11);
    long double *want = kept(&sum, 1);
    call.out[0] = alone;
    run_twice(&bench, KERNEL_gemm, &call);
    call.out[0] = sum;
    call.number[0] = 1;
    run_twice(&bench, KERNEL_gemm, &call);
    for (int64_t i = 0; i < 99; i++)
        assert_true(get(&sum, i) == (double)((float)want[i] + (float)get(&alone, i)));
    call.out[0] = wide;
    call.number[0] = 0;
    memset(want, 0, 99 * sizeof *want);
    check_gemm(&call, "wide c", 50, 1e-13);
    free(want);
}

/* The gradients of a GEMM are GEMMs: dx = dy w, dw = dy' x, db = column sums of dy. */
static void gradients(void **state)
{
    (void)state;
    enum { T = 5, I = 7, O = 3 };
    bench_clear(&bench);
    Probe p = {.id = KERNEL_gemm, .call = {.n_in = 3, .n_out = 1}};
    p.call.attr.gemm.tb = true;
    const Tensor x = p.call.in[0] = RANDOM(&bench, F64, PADDED, T, I);
    const Tensor w = p.call.in[1] = RANDOM(&bench, F64, COLUMN_MAJOR, O, I);
    const Tensor b = p.call.in[2] = RANDOM(&bench, F64, PADDED, O);
    p.call.out[0] = NEW(&bench, F64, COLUMN_MAJOR, T, O);
    const Tensor dy = p.dy[0] = RANDOM(&bench, F64, PADDED, T, O);

    const Tensor dx = NEW(&bench, F64, COLUMN_MAJOR, T, I);
    const Tensor dw = accumulator(&bench, NEW(&bench, F64, PADDED, O, I), 1);
    const Tensor db = accumulator(&bench, NEW(&bench, F64, PADDED, O), 1);
    long double *old_w = kept(&dw, 1), *old_b = kept(&db, 0.5);
    run_twice(&bench, KERNEL_gemm, &(Call){.in = {dy, w}, .n_in = 2, .out = {dx}, .n_out = 1});
    Call call = {.in = {dy, x}, .n_in = 2, .out = {dw}, .n_out = 1, .number = {1}};
    call.attr.gemm.ta = true;
    run_twice(&bench, KERNEL_gemm, &call);
    run_twice(&bench, KERNEL_sum_rows,
              &(Call){.in = {dy}, .n_in = 1, .out = {db}, .n_out = 1, .number = {0.5}});
    expect_gradient("dx", probe_value, &p, &x, &dx, NULL);
    expect_gradient("dw", probe_value, &p, &w, &dw, old_w);
    expect_gradient("db", probe_value, &p, &b, &db, old_b);
    expect_gaps(&bench);
    free(old_w);
    free(old_b);
}

static void one_sum_rows(int64_t rows, int64_t n, DType type, Strides strides, double keep)
{
    bench_clear(&bench);
    Call call = {.n_in = 1, .n_out = 1, .number = {keep}};
    const Tensor dy = call.in[0] = RANDOM(&bench, type, strides, rows, n);
    const Tensor db = call.out[0] =
        accumulator(&bench, NEW(&bench, dtype_wide(type), PADDED, n), keep);
    long double *want = kept(&db, keep);
    for (int64_t i = 0; i < rows * n; i++) want[i % n] += (long double)get(&dy, i);
    run_twice(&bench, KERNEL_sum_rows, &call);
    expect_close("db", &db, want, rounding(type));
    expect_gaps(&bench);
    free(want);
}

static void column_sums(void **state)
{
    (void)state;
    for (int s = 0; s < 3; s++)
        for (int strides = 0; strides < N_STRIDES; strides++) {
            one_sum_rows(13, 67, F64, (Strides)strides, keeps[s]);
            one_sum_rows(6, 5, F32, (Strides)strides, keeps[s]);
            one_sum_rows(0, 5, F64, (Strides)strides, keeps[s]); /* 0, or the kept content */
            one_sum_rows(4, 0, F64, (Strides)strides, keeps[s]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemms),     cmocka_unit_test(no_terms),    cmocka_unit_test(sum_is_a_fold),
        cmocka_unit_test(gradients), cmocka_unit_test(column_sums),
    };
    bench_open(&bench);
    const int failed = cmocka_run_group_tests_name("kernels: gemm", tests, NULL, NULL);
    bench_close(&bench);
    return failed;
}

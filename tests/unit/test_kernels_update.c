/* test_kernels_update.c -- sums of squares, AdamW and SGD; and that a device without a kernel is
 * refused. */
#include "kernel_test.h"

static Bench bench;

static void sums_of_squares(void **state)
{
    (void)state;
    const double keeps[] = {0, 1, 0.5};
    for (int c = 0; c < 18; c++) {
        bench_clear(&bench);
        const double keep = keeps[c % 3];
        const int64_t n = c < 12 ? 1031 : 0;
        const Tensor x = RANDOM(&bench, c % 2 ? F32 : F64, (Strides)(c % N_STRIDES), n);
        const Tensor sum = accumulator(&bench, NEW(&bench, F64, DENSE, 1), keep);
        double want = 0; /* in index order: the same bits */
        for (int64_t i = 0; i < n; i++) want += get(&x, i) * get(&x, i);
        if (keep != 0) want += keep * get(&sum, 0);
        run_twice(&bench, KERNEL_sum_squares,
                  &(Call){.in = {x}, .n_in = 1, .out = {sum}, .n_out = 1, .number = {keep}});
        assert_true(get(&sum, 0) == want);
        expect_gaps(&bench);
    }
}

typedef struct {
    long double w, m, v;
} Moments;

static Moments adamw_of(Moments s, long double dw, int step, long double decay)
{
    const long double lr = 0.01L, b1 = 0.9L, b2 = 0.95L, factor = 0.25L, eps = 1e-3L;
    const long double g = factor * dw;
    s.m = b1 * s.m + (1 - b1) * g;
    s.v = b2 * s.v + (1 - b2) * g * g;
    const long double m = s.m / (1 - powl(b1, step)), v = s.v / (1 - powl(b2, step));
    s.w = s.w * (1 - lr * decay) - lr * m / (sqrtl(v) + eps); /* decay, then the step */
    return s;
}

static Call adamw_call(const Tensor *t, int step, double decay)
{
    Call call = {.in = {t[0]}, .n_in = 1, .out = {t[1], t[2], t[3]}, .n_out = 3};
    call.attr.adamw.beta1 = 0.9;
    call.attr.adamw.beta2 = 0.95;
    call.attr.adamw.eps = 1e-3;
    call.attr.adamw.decay = decay;
    call.number[0] = 0.01;
    call.number[1] = 0.25;
    call.number[2] = 1 - pow(0.9, step);
    call.number[3] = 1 - pow(0.95, step);
    return call;
}

/* Three steps; a flat pack of several tiles, or a matrix in any order. */
static void adamw_case(DType type, int64_t n, int64_t columns, Strides strides, double decay)
{
    enum { MAX = 5000 };
    static Moments want[MAX];
    static long double out[3][MAX];
    bench_clear(&bench);
    Tensor t[4]; /* dw, w, m, v */
    for (int k = 0; k < 4; k++) {
        const Strides l = (Strides)((strides + k) % N_STRIDES);
        t[k] = columns ? NEW(&bench, type, l, n, columns) : NEW(&bench, type, l, n);
        fill(&bench, &t[k], k < 2 ? 1 : 0);
    }
    const int64_t count = tensor_count(&t[0]);
    for (int64_t i = 0; i < count; i++) want[i] = (Moments){(long double)get(&t[1], i), 0, 0};
    for (int step = 1; step <= 3; step++) {
        fill(&bench, &t[0], 3);
        const Call call = adamw_call(t, step, decay);
        run_twice(&bench, KERNEL_adamw, &call);
        for (int64_t i = 0; i < count; i++) {
            want[i] = adamw_of(want[i], (long double)get(&t[0], i), step, (long double)decay);
            out[0][i] = want[i].w;
            out[1][i] = want[i].m;
            out[2][i] = want[i].v;
        }
        for (int k = 0; k < 3; k++)
            expect_close(k == 0 ? "w" : k == 1 ? "m" : "v", &t[k + 1], out[k], rounding(type));
    }
    expect_gaps(&bench);
}

static void adamw(void **state)
{
    (void)state;
    for (int strides = 0; strides < N_STRIDES; strides++)
        for (int type = F64; type <= F32; type++) {
            adamw_case((DType)type, 4999, 0, (Strides)strides, 0.1);
            adamw_case((DType)type, 13, 7, (Strides)strides, 0);
            adamw_case((DType)type, 0, 0, (Strides)strides, 0.1);
        }
}

static void sgd(void **state)
{
    (void)state;
    for (int c = 0; c < 6; c++) {
        bench_clear(&bench);
        const DType type = c % 2 ? F32 : F64;
        const Tensor dw = RANDOM(&bench, type, (Strides)(c % N_STRIDES), 9, 300);
        const Tensor w = RANDOM(&bench, type, (Strides)((c + 1) % N_STRIDES), 9, 300);
        long double *want = kept(&w, 1);
        for (int64_t i = 0; i < 2700; i++)
            want[i] -= 0.5L * (0.125L * (long double)get(&dw, i) + 0.25L * want[i]);
        Call call = {.in = {dw}, .n_in = 1, .out = {w}, .n_out = 1, .number = {0.5, 0.125}};
        call.attr.sgd.decay = 0.25;
        run_twice(&bench, KERNEL_sgd, &call);
        expect_close("w", &w, want, rounding(type));
        expect_gaps(&bench);
        free(want);
    }
}

/* A step against the sign, whatever the size; elements of gradient 0 stay. */
static void sign_sgd(void **state)
{
    (void)state;
    for (int c = 0; c < 4; c++) {
        bench_clear(&bench);
        const DType type = c % 2 ? F32 : F64;
        const Tensor dw = RANDOM(&bench, type, c / 2 ? PADDED : DENSE, 3, 300);
        const Tensor w = RANDOM(&bench, type, PADDED, 3, 300);
        for (int64_t i = 0; i < 900; i += 7) put(&dw, i, i % 2 ? 0 : 1e6);
        long double *want = kept(&w, 1);
        for (int64_t i = 0; i < 900; i++) {
            const double g = get(&dw, i);
            want[i] -= g > 0 ? 0.125L : g < 0 ? -0.125L : 0;
        }
        run_twice(&bench, KERNEL_sign_sgd,
                  &(Call){.in = {dw}, .n_in = 1, .out = {w}, .n_out = 1, .number = {0.125}});
        expect_close("w", &w, want, rounding(type));
        expect_gaps(&bench);
        free(want);
    }
}

static void every_slot_is_filled(void **state)
{
    (void)state;
    assert_string_equal(kernel_name(KERNEL_NONE), "none");
    assert_string_equal(kernel_name(KERNEL_gemm), "gemm");
    assert_string_equal(kernel_name(KERNEL_attention_dx), "attention_dx");
    assert_int_equal(device_check(&device_ref), OK);
    for (int id = KERNEL_NONE + 1; id < N_KERNELS; id++) {
        Device d = device_ref;
        d.name = "half";
        d.kernel[id] = NULL;
        assert_int_equal(device_check(&d), ERR_CHECK);
        assert_non_null(strstr(err_text(), "half"));
        assert_non_null(strstr(err_text(), kernel_name((KernelId)id)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_squares),
        cmocka_unit_test(adamw),
        cmocka_unit_test(sgd),
        cmocka_unit_test(sign_sgd),
        cmocka_unit_test(every_slot_is_filled),
    };
    bench_open(&bench);
    const int failed = cmocka_run_group_tests_name("kernels: update", tests, NULL, NULL);
    bench_close(&bench);
    return failed;
}

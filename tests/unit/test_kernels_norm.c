/* test_kernels_norm.c -- layernorm and rmsnorm, of rows and of heads, and their gradients. */
#include "kernel_test.h"

static Bench bench;
static const double eps = 1e-3; /* large: a forgotten eps must show */

typedef struct {
    bool layer; /* layernorm, else rmsnorm */
    DType type;
    Strides strides;
    int64_t tokens, heads, width; /* heads 0: rows have no heads */
    Tensor x, w, b, y, mean, rstd, dy;
} Case;

static Tensor grid(const Case *c, DType type, int strides, bool wide)
{
    const Strides l = (Strides)(((int)c->strides + strides) % N_STRIDES);
    if (wide && c->heads) return NEW(&bench, type, l, c->tokens, c->heads, c->width);
    if (wide) return NEW(&bench, type, l, c->tokens, c->width);
    if (c->heads) return NEW(&bench, type, l, c->tokens, c->heads);
    return NEW(&bench, type, l, c->tokens);
}

static Call forward(Case *c)
{
    c->x = bench_filled(&bench, grid(c, c->type, 0, true));
    for (int64_t i = 0; i < tensor_count(&c->x); i++) put(&c->x, i, get(&c->x, i) + 0.7);
    c->w = RANDOM(&bench, c->type, PADDED, c->width);
    c->b = RANDOM(&bench, c->type, DENSE, c->width);
    c->y = grid(c, c->type, 1, true);
    c->mean = grid(c, dtype_wide(c->type), 2, false);
    c->rstd = grid(c, dtype_wide(c->type), 1, false);
    c->dy = bench_filled(&bench, grid(c, c->type, 2, true));
    Call call = {.in = {c->x, c->w, c->b}, .attr.norm.eps = eps};
    call.n_in = c->layer ? 3 : 2;
    call.n_out = c->layer ? 3 : 2;
    call.out[0] = c->y;
    call.out[1] = c->layer ? c->mean : c->rstd;
    call.out[2] = c->rstd;
    return call;
}

static KernelId pick(const Case *c, KernelId layer, KernelId rms) { return c->layer ? layer : rms; }

/* Mean, 1/std and values, straight from the definition. */
static void check_forward(Case *c)
{
    const int64_t rows = tensor_count(&c->rstd), d = c->width;
    long double *y = kept(&c->y, 0), *mean = kept(&c->rstd, 0), *rstd = kept(&c->rstd, 0);
    for (int64_t r = 0; r < rows; r++) {
        long double square = 0;
        for (int64_t i = 0; i < d && c->layer; i++)
            mean[r] += (long double)get(&c->x, r * d + i) / (long double)d;
        for (int64_t i = 0; i < d; i++)
            square += powl((long double)get(&c->x, r * d + i) - mean[r], 2);
        rstd[r] = 1 / sqrtl(square / (long double)d + (long double)eps);
        for (int64_t i = 0; i < d; i++) {
            y[r * d + i] = ((long double)get(&c->x, r * d + i) - mean[r]) * rstd[r];
            y[r * d + i] *= (long double)get(&c->w, i);
            if (c->layer) y[r * d + i] += (long double)get(&c->b, i);
        }
    }
    expect_close("y", &c->y, y, rounding(c->type));
    expect_close("rstd", &c->rstd, rstd, rounding(c->type));
    if (c->layer) expect_close("mean", &c->mean, mean, rounding(c->type));
    free(y);
    free(mean);
    free(rstd);
}

static const Case cases[] = {
    {.layer = true, .tokens = 11, .width = 13},
    {.layer = true, .tokens = 3, .width = 523}, /* several chunks */
    {.layer = false, .tokens = 11, .width = 13},
    {.layer = false, .tokens = 3, .width = 523},
    {.layer = false, .tokens = 7, .heads = 3, .width = 5},
    {.layer = true, .tokens = 0, .width = 5},
    {.layer = false, .tokens = 0, .heads = 3, .width = 5},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static void values(void **state)
{
    (void)state;
    for (int k = 0; k < N_CASES; k++)
        for (int s = 0; s < 2 * N_STRIDES; s++) {
            bench_clear(&bench);
            Case c = cases[k];
            c.type = s < N_STRIDES ? F64 : F32;
            c.strides = (Strides)(s % N_STRIDES);
            const Call call = forward(&c);
            run_twice(&bench, pick(&c, KERNEL_layernorm, KERNEL_rmsnorm), &call);
            check_forward(&c);
            if (!c.layer) fill(&bench, &c.mean, 1); /* not an output of rmsnorm: still NaN */
            expect_gaps(&bench);
        }
}

/* Inputs of a gradient, without a mean for rmsnorm: dy, x, (w,) (mean,) rstd. */
static Call backward(const Case *c, bool with_w)
{
    Call call = {.n_in = 0};
    call.in[call.n_in++] = c->dy;
    call.in[call.n_in++] = c->x;
    if (with_w) call.in[call.n_in++] = c->w;
    if (c->layer) call.in[call.n_in++] = c->mean;
    call.in[call.n_in++] = c->rstd;
    return call;
}

/* The operands and results of a gradient. */
typedef struct {
    Tensor dx, dw, db, addend;
    double keep_w, keep_b;
    bool add; /* dx is added to addend */
} Wanted;

static Wanted new_wanted(const Case *c, double keep_w, double keep_b, bool add)
{
    Wanted w = {.keep_w = keep_w, .keep_b = keep_b, .add = add};
    w.dx = grid(c, F64, 1, true);
    w.dw = accumulator(&bench, NEW(&bench, F64, PADDED, c->width), keep_w);
    w.db = accumulator(&bench, NEW(&bench, F64, DENSE, c->width), keep_b);
    w.addend = bench_filled(&bench, grid(c, F64, 2, true));
    return w;
}

/* dx by itself and dw by itself, or both in one kernel. */
static void run_backward(const Case *c, const Wanted *w, bool fused)
{
    Call call = backward(c, true);
    if (w->add) call.in[call.n_in++] = w->addend;
    call.out[call.n_out++] = w->dx;
    if (!fused) {
        run_twice(&bench, pick(c, KERNEL_layernorm_dx, KERNEL_rmsnorm_dx), &call);
        call = backward(c, false);
    }
    call.number[call.n_out] = w->keep_w;
    call.out[call.n_out++] = w->dw;
    call.number[call.n_out] = w->keep_b;
    if (c->layer) call.out[call.n_out++] = w->db;
    run_twice(&bench,
              fused ? pick(c, KERNEL_layernorm_back, KERNEL_rmsnorm_back)
                    : pick(c, KERNEL_layernorm_dw, KERNEL_rmsnorm_dw),
              &call);
}

static void check_gradients(Case *c, double keep_w, double keep_b, bool add, bool fused)
{
    Probe p = {.id = pick(c, KERNEL_layernorm, KERNEL_rmsnorm), .call = forward(c)};
    p.dy[0] = c->dy;
    run(p.id, &p.call);
    const Wanted w = new_wanted(c, keep_w, keep_b, add);
    long double *old_w = kept(&w.dw, keep_w), *old_b = kept(&w.db, keep_b);
    long double *addend = kept(&w.addend, add);
    run_backward(c, &w, fused);
    expect_gradient("dx", probe_value, &p, &c->x, &w.dx, addend);
    expect_gradient("dw", probe_value, &p, &c->w, &w.dw, old_w);
    if (c->layer) expect_gradient("db", probe_value, &p, &c->b, &w.db, old_b);
    if (!c->layer) fill(&bench, &w.db, 1);
    if (!c->layer) fill(&bench, &c->mean, 1);
    expect_gaps(&bench);
    free(old_w);
    free(old_b);
    free(addend);
}

/* dx may overwrite dy, or its addend. */
static void gradients_in_place(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        bench_clear(&bench);
        Case c = {.layer = k % 2, .tokens = 9, .width = 67};
        Call call = forward(&c);
        run(pick(&c, KERNEL_layernorm, KERNEL_rmsnorm), &call);
        Wanted w = new_wanted(&c, 0, 0, true), over = new_wanted(&c, 0, 0, true);
        over.addend = w.addend;
        run_backward(&c, &w, true);
        const Tensor target = k < 2 ? c.dy : w.addend;
        const Tensor sums = accumulator(&bench, NEW(&bench, F64, PADDED, c.width), 0.5);
        long double *want = kept(&sums, 0.5); /* of addend, before it is overwritten */
        for (int64_t i = 0; i < tensor_count(&w.addend); i++)
            want[i % c.width] += (long double)get(&w.addend, i);
        call = backward(&c, true);
        call.in[call.n_in++] = w.addend;
        call.out[call.n_out++] = target;
        call.out[call.n_out++] = over.dw;
        if (c.layer) call.out[call.n_out++] = over.db;
        if (c.layer) call.out[call.n_out++] = sums;
        call.number[3] = 0.5;
        run(pick(&c, KERNEL_layernorm_back, KERNEL_rmsnorm_back), &call);
        if (c.layer) expect_close("the sums of addend", &sums, want, rounding(F64));
        free(want);
        for (int64_t i = 0; i < tensor_count(&w.dx); i++)
            assert_true(get(&target, i) == get(&w.dx, i));
        for (int64_t i = 0; i < c.width; i++) assert_true(get(&over.dw, i) == get(&w.dw, i));
        for (int64_t i = 0; i < c.width && c.layer; i++)
            assert_true(get(&over.db, i) == get(&w.db, i));
    }
}

static void gradients(void **state)
{
    (void)state;
    for (int k = 0; k < N_CASES; k++) {
        bench_clear(&bench);
        Case c = cases[k];
        c.strides = (Strides)(k % N_STRIDES);
        c.width = c.width > 100 ? 67 : c.width; /* two tiles of dw */
        for (int fused = 0; fused < 2; fused++) {
            check_gradients(&c, k % 2 ? 1 : 0, k % 2 ? 0 : 0.5, k % 2, fused);
            bench_clear(&bench);
            check_gradients(&c, k % 2 ? 0.5 : 1, k % 2 ? 1 : 0, k % 2 == 0, fused);
            bench_clear(&bench);
        }
    }
}

/* A row of equal values has no variance but eps; a row with a large mean keeps its digits. */
static void far_from_zero(void **state)
{
    (void)state;
    bench_clear(&bench);
    Case c = {.layer = true, .tokens = 3, .width = 8};
    const Call call = forward(&c);
    for (int64_t i = 0; i < 8; i++) {
        put(&c.x, i, 5);
        put(&c.x, 8 + i, 1e7 + (double)i);
    }
    run(KERNEL_layernorm, &call);
    for (int64_t i = 0; i < 8; i++) {
        assert_true(fabs(get(&c.y, i) - get(&c.b, i)) < 1e-15);
        const double h = ((double)i - 3.5) / sqrt(5.25 + eps);
        assert_true(fabs(get(&c.y, 8 + i) - (h * get(&c.w, i) + get(&c.b, i))) < 1e-12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(gradients),
        cmocka_unit_test(gradients_in_place),
        cmocka_unit_test(far_from_zero),
    };
    bench_open(&bench);
    const int failed = cmocka_run_group_tests_name("kernels: norms", tests, NULL, NULL);
    bench_close(&bench);
    return failed;
}

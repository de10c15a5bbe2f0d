/* test_cpu_loss.c -- the loss of device/cpu against ref: sharded vocabularies, masked rows,
 * large logits, targets of a probability near 1; and its exp. */
#include "cpu_test.h"

typedef struct {
    DType type;
    Strides strides;
    int64_t rows, vocab, base;
    double size;
    double climb; /* difference of consecutive logits; then rows 2, 5, .. begin with -inf */
} Shape;

/* Targets inside this shard, in other shards, and invalid ones. */
static Tensor targets_of(Bench *b, const Shape *s)
{
    const Tensor t = NEW(b, I32, DENSE, s->rows);
    for (int64_t i = 0; i < s->rows; i++)
        put(&t, i, (double)(i % 5 == 4 ? -1 : s->base - 2 + i * 7 % (s->vocab + 4)));
    return t;
}

static Tensor logits_of(Bench *b, const Shape *s)
{
    const Tensor x = NEW(b, s->type, s->strides, s->rows, s->vocab);
    fill(b, &x, s->size);
    for (int64_t i = 0; s->climb != 0 && i < s->rows * s->vocab; i++) {
        const int64_t row = i / s->vocab, v = i % s->vocab;
        const bool none = row % 3 == 2 && v < s->vocab / 2;
        put(&x, i, none ? -HUGE_VAL : get(&x, i) + s->climb * (double)v - 300);
    }
    return x;
}

static Tensor max_of(Bench *b, const Tensor *logits)
{
    const Tensor m = NEW(b, F32, PADDED, logits->n[0]);
    for (int64_t t = 0; t < logits->n[0]; t++) {
        double max = -HUGE_VAL;
        for (int64_t v = 0; v < logits->n[1]; v++)
            max = fmax(max, get(logits, t * logits->n[1] + v));
        put(&m, t, max + 0.25); /* the maximum is in another shard */
    }
    return m;
}

static void try_all(CpuBench *c, const Shape *s)
{
    Bench *b = &c->b;
    Call max = {.n_in = 1, .n_out = 1};
    max.in[0] = logits_of(b, s);
    max.out[0] = NEW(b, F32, s->strides, s->rows);
    expect_like_ref(c, KERNEL_row_max, &max, 0);

    /* exp turns the rounding of logits - m into a relative error, proportional to its size. */
    const double tolerance = tol_sum(F32, (double)s->vocab + 4 * s->size);
    Call sums = {.n_in = 3, .n_out = 1};
    sums.attr.vocab.base = s->base;
    sums.in[0] = logits_of(b, s);
    sums.in[1] = max_of(b, &sums.in[0]);
    sums.in[2] = targets_of(b, s);
    sums.out[0] = NEW(b, F32, s->strides, s->rows, 2);
    expect_like_ref(c, KERNEL_row_sums, &sums, tolerance);

    Call dx = {.n_in = 5, .n_out = 1};
    dx.attr.vocab.base = s->base;
    dx.in[0] = logits_of(b, s);
    dx.in[1] = max_of(b, &dx.in[0]);
    dx.in[2] = RANDOM(b, F32, s->strides, s->rows, 2);
    dx.in[3] = targets_of(b, s);
    dx.in[4] = RANDOM(b, F32, s->strides, s->rows);
    for (int64_t t = 0; t < s->rows; t++) {
        put(&dx.in[2], 2 * t, 1.5 + get(&dx.in[2], 2 * t));
        if (t % 3 == 1) put(&dx.in[4], t, 0);
    }
    const bool over = s->strides == DENSE; /* in place of the logits */
    dx.out[0] = over ? dx.in[0]
                     : NEW(b, s->type, (Strides)((s->strides + 1) % N_STRIDES), s->rows, s->vocab);
    expect_like_ref(c, KERNEL_loss_dx, &dx, tol_sum(s->type, 4 * s->size));
}

/* The fused kernel, and the loss alone, which has the same bits. The loss is a sum over rows, each
 * with the error of one sum of exponentials. */
static void try_fused(CpuBench *c, const Shape *s)
{
    Bench *b = &c->b;
    const bool over = s->strides == DENSE;
    const double keep = s->rows % 2 ? 1 : 0;
    Call dx = {.n_in = 3, .n_out = 2, .number = {0, keep}};
    dx.in[0] = logits_of(b, s);
    dx.in[1] = targets_of(b, s);
    dx.in[2] = RANDOM(b, F32, s->strides, s->rows);
    for (int64_t t = 0; t < s->rows; t++) /* same sign: no cancellation in the sum */
        put(&dx.in[2], t, t % 3 == 1 ? 0 : 0.5 + fabs(get(&dx.in[2], t)));
    dx.out[0] = over ? dx.in[0]
                     : NEW(b, s->type, (Strides)((s->strides + 1) % N_STRIDES), s->rows, s->vocab);
    dx.out[1] = accumulator(b, NEW(b, F32, DENSE, 1), keep);
    Call loss = {.n_in = 3, .n_out = 1, .number = {keep}};
    memcpy(loss.in, dx.in, sizeof dx.in);
    loss.out[0] = accumulator(b, NEW(b, F32, DENSE, 1), keep);
    if (keep != 0) put(&dx.out[1], 0, 2.25);
    if (keep != 0) put(&loss.out[0], 0, 2.25);
    const double tolerance = tol_sum(s->type, (double)s->vocab + 4 * s->size);
    against_ref(c, KERNEL_token_loss, &loss, tolerance);
    against_ref(c, KERNEL_token_loss_dx, &dx, tolerance);
    assert_true(get(&loss.out[0], 0) == get(&dx.out[1], 0));
    expect_gaps(b);
    bench_clear(b);
}

static void losses(void **state)
{
    const int64_t vocab[] = {1, 15, 16, 301, 1024, 2500};
    const double size[] = {1, 8, 60};
    for (int i = 0; i < 36; i++) {
        const Shape s = {cpu_types[i % 2],
                         (Strides)(i / 2 % 3),
                         i % 7 == 6 ? 0 : 13,
                         vocab[i / 6],
                         (i % 3) * 100,
                         size[i / 2 % 3],
                         0};
        try_all(*state, &s);
        try_fused(*state, &s);
    }
}

/* Maxima that grow from piece to piece by more than the margin before rescaling; falling ones; rows
 * that begin with -inf. */
static void rising_maxima(void **state)
{
    const int64_t vocab[] = {2500, 4099};
    const double climb[] = {0.1, 0.045, -0.1};
    for (int i = 0; i < 36; i++) {
        const Shape s = {cpu_types[i % 2], (Strides)(i / 2 % 3), 9, vocab[i / 18], 0, 60,
                         climb[i / 6 % 3]};
        try_fused(*state, &s);
    }
}

/* A row whose target has a logit `above` the others': loss and gradient at the target are of the
 * size of the others' share, and relative to that they have the error of a sum of exponentials. */
typedef struct {
    const Device *device;
    Tensor logits, targets, weights, dlogits, loss;
} Confident;

static void run_kernel(const Confident *c, KernelId id, Call call)
{
    assert_int_equal(c->device->kernel[id](&call), OK);
}

/* The four kernels of a sharded vocabulary. */
static void run_in_steps(Bench *b, const Confident *c)
{
    const Tensor m = NEW(b, F32, DENSE, 1), z = NEW(b, F32, DENSE, 1, 2);
    run_kernel(c, KERNEL_row_max, (Call){.in = {c->logits}, .n_in = 1, .out = {m}, .n_out = 1});
    run_kernel(c, KERNEL_row_sums,
               (Call){.in = {c->logits, m, c->targets}, .n_in = 3, .out = {z}, .n_out = 1});
    run_kernel(c, KERNEL_loss,
               (Call){.in = {z, c->weights}, .n_in = 2, .out = {c->loss}, .n_out = 1});
    run_kernel(c, KERNEL_loss_dx,
               (Call){.in = {c->logits, m, z, c->targets, c->weights},
                      .n_in = 5,
                      .out = {c->dlogits},
                      .n_out = 1});
}

static void expect_share(const char *what, double got, double want, double tolerance)
{
    if (fabs(got - want) > tolerance * fabs(want)) fail_msg("%s: %g, not %g", what, got, want);
}

static void try_confident(Bench *b, CpuSimd simd, int64_t vocab, int64_t target)
{
    const double above = 19, tolerance = tol_sum(F32, (double)vocab + 4 * above);
    Confident c = {device_cpu_simd(simd), RANDOM(b, F32, DENSE, 1, vocab), NEW(b, I32, DENSE, 1),
                   NEW(b, F32, DENSE, 1), NEW(b, F32, DENSE, 1, vocab),    NEW(b, F32, DENSE, 1)};
    put(&c.logits, target, above);
    put(&c.targets, 0, (double)target);
    put(&c.weights, 0, 0.75);
    double others = 0;
    for (int64_t v = 0; v < vocab; v++)
        if (v != target) others += exp(get(&c.logits, v) - above);
    for (int fused = 0; fused < 2; fused++) {
        if (fused)
            run_kernel(&c, KERNEL_token_loss_dx,
                       (Call){.in = {c.logits, c.targets, c.weights},
                              .n_in = 3,
                              .out = {c.dlogits, c.loss},
                              .n_out = 2});
        else
            run_in_steps(b, &c);
        expect_share("loss", get(&c.loss, 0), 0.75 * log1p(others), tolerance);
        expect_share("gradient", get(&c.dlogits, target), -0.75 * others / (1 + others), tolerance);
    }
    bench_clear(b);
}

static void confident_targets(void **state)
{
    CpuBench *c = *state;
    const int64_t vocab[] = {2, 31, 301, 2500};
    for (CpuSimd s = CPU_BASE; s < N_CPU_SIMD; s++) {
        if (!cpu_has(s)) continue;
        for (int i = 0; i < 4; i++) {
            const int64_t v = vocab[i], at[] = {0, v / 3, v / 2, v - 1};
            for (int k = 0; k < 4; k++) try_confident(&c->b, s, v, at[k]);
        }
    }
}

/* Masked rows may contain anything. */
static void sum_of_tokens(void **state)
{
    CpuBench *c = *state;
    Bench *b = &c->b;
    Call call = {.n_in = 2, .n_out = 1, .number = {1}};
    call.in[0] = RANDOM(b, F32, PADDED, 41, 2);
    call.in[1] = RANDOM(b, F32, DENSE, 41);
    call.out[0] = RANDOM(b, F32, DENSE, 1);
    for (int t = 0; t < 41; t++) put(&call.in[0], 2 * t, 2 + get(&call.in[0], 2 * t));
    expect_like_ref(c, KERNEL_loss, &call, 0);
}

/* z[t,0] of a vocabulary of one is exp(logit - 0) itself: many values, errors in units of the last
 * place, down to the smallest normal f32. */
static void exponential(void **state)
{
    CpuBench *c = *state;
    enum { N = 40000 };
    for (CpuSimd s = CPU_BASE; s < N_CPU_SIMD; s++) {
        if (!cpu_has(s)) continue;
        Bench *b = &c->b;
        Call call = {.n_in = 3, .n_out = 1};
        call.in[0] = NEW(b, F32, DENSE, N, 1);
        call.in[1] = NEW(b, F32, DENSE, N);
        call.in[2] = NEW(b, I32, DENSE, N);
        call.out[0] = NEW(b, F32, DENSE, N, 2);
        for (int i = 0; i < N; i++) {
            put(&call.in[0], i, -87.3 + 175.3 * i / N);
            put(&call.in[1], i, 0);
        }
        assert_int_equal(device_cpu_simd(s)->kernel[KERNEL_row_sums](&call), OK);
        double worst = 0;
        for (int i = 0; i < N; i++) {
            const double want = exp(get(&call.in[0], i)), got = get(&call.out[0], 2 * i);
            worst = fmax(worst, fabs(got - want) / want * ldexp(1, 23));
        }
        if (worst > 1) fail_msg("exp on %d: %g units in the last place", (int)s, worst);
        const double extreme[][2] = {{-88, 0}, {-1000, 0}, {-HUGE_VAL, 0}, {0, 1}};
        for (int i = 0; i < 4; i++) {
            put(&call.in[0], i, extreme[i][0]);
            assert_int_equal(device_cpu_simd(s)->kernel[KERNEL_row_sums](&call), OK);
            assert_true(get(&call.out[0], 2 * i) == extreme[i][1]);
        }
        put(&call.in[0], 0, (double)NAN);
        assert_int_equal(device_cpu_simd(s)->kernel[KERNEL_row_sums](&call), OK);
        assert_true(isnan(get(&call.out[0], 0)));
        bench_clear(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses),
        cmocka_unit_test(rising_maxima),
        cmocka_unit_test(confident_targets),
        cmocka_unit_test(sum_of_tokens),
        cmocka_unit_test(exponential),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}

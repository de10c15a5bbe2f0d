/* test_cpu_norm.c -- norms of device/cpu against ref: values, dx, sums over rows, per head,
 * strides and types. */
#include "cpu_test.h"
#include "support/expect.h"

typedef struct {
    DType type;
    Strides strides;
    int64_t rows, heads, width; /* heads: 0 for [rows, width] */
} Shape;

static Tensor shaped(Bench *b, const Shape *s, Strides strides)
{
    strides = (Strides)((s->strides + strides) % N_STRIDES);
    return s->heads ? NEW(b, s->type, strides, s->rows, s->heads, s->width)
                    : NEW(b, s->type, strides, s->rows, s->width);
}

static Tensor shaped_random(Bench *b, const Shape *s, Strides strides, double size)
{
    const Tensor t = shaped(b, s, strides);
    fill(b, &t, size);
    return t;
}

static Tensor stat(Bench *b, const Shape *s, Strides strides)
{
    return s->heads ? NEW(b, F32, strides, s->rows, s->heads) : NEW(b, F32, strides, s->rows);
}

static Tensor stat_random(Bench *b, const Shape *s, Strides strides)
{
    const Tensor t = stat(b, s, strides);
    for (int64_t i = 0; i < tensor_count(&t); i++) put(&t, i, 1.5 + bench_random(b));
    return t;
}

/* Entries of about `size`; one of them is `odd` unless that is 0. */
static void forward_of(CpuBench *c, const Shape *s, bool layer, double size, double odd)
{
    Bench *b = &c->b;
    Call call = {.n_in = layer ? 3 : 2, .n_out = layer ? 3 : 2};
    call.in[0] = shaped_random(b, s, DENSE, size);
    for (int64_t i = 0; i < tensor_count(&call.in[0]); i++) /* a mean that is not small */
        put(&call.in[0], i, get(&call.in[0], i) + 0.35 * size);
    if (odd != 0) put(&call.in[0], tensor_count(&call.in[0]) / 2, odd);
    call.in[1] = RANDOM(b, s->type, s->strides, s->width);
    if (layer) call.in[2] = RANDOM(b, s->type, s->strides, s->width);
    call.out[0] = shaped(b, s, PADDED);
    for (int o = 1; o < call.n_out; o++) call.out[o] = stat(b, s, s->strides);
    call.attr.norm.eps = 1e-5;
    against_ref(c, layer ? KERNEL_layernorm : KERNEL_rmsnorm, &call,
                tol_sum(s->type, (double)s->width));
    if (isfinite(odd)) expect_gaps(b); /* else NaN is in the results too */
    bench_clear(b);
}

static void forward(CpuBench *c, const Shape *s, bool layer) { forward_of(c, s, layer, 2, 0); }

/* dy, x, (w,) (mean,) rstd. */
static Call gradient_of(CpuBench *c, const Shape *s, bool layer, bool with_w)
{
    Bench *b = &c->b;
    Call call = {.n_in = 0};
    call.in[call.n_in++] = shaped_random(b, s, COLUMN_MAJOR, 1);
    call.in[call.n_in++] = shaped_random(b, s, DENSE, 1);
    if (with_w) call.in[call.n_in++] = RANDOM(b, s->type, s->strides, s->width);
    for (int i = layer ? 0 : 1; i < 2; i++) call.in[call.n_in++] = stat_random(b, s, s->strides);
    return call;
}

static void add_sums(CpuBench *c, const Shape *s, bool layer, double keep, Call *call)
{
    for (int i = 0; i < (layer ? 2 : 1); i++) {
        const double k = i ? 1 - keep : keep;
        call->number[call->n_out] = k;
        call->out[call->n_out++] = accumulator(&c->b, NEW(&c->b, F32, s->strides, s->width), k);
    }
}

/* A single entry has no larger one to be relative to: its error is relative to its two terms, which
 * cancel. They are at most 2.5 and 2.5^3, since statistics are below 2.5. */
static void backward(CpuBench *c, const Shape *s, bool layer, bool addend)
{
    const double alone = s->rows * s->width == 1 ? 2.5 + 2.5 * 2.5 * 2.5 : 1;
    Call call = gradient_of(c, s, layer, true);
    if (addend) call.in[call.n_in++] = shaped_random(&c->b, s, PADDED, 1);
    call.out[call.n_out++] = shaped(&c->b, s, PADDED);
    expect_like_ref(c, layer ? KERNEL_layernorm_dx : KERNEL_rmsnorm_dx, &call,
                    alone * tol_sum(s->type, (double)s->width));
}

static double rows_of(const Shape *s) { return (double)(s->rows * (s->heads ? s->heads : 1)); }

static void take_sign(const Tensor *t, double sign)
{
    for (int64_t i = 0; i < tensor_count(t); i++) put(t, i, sign * fabs(get(t, i)));
}

/* A single sum has no larger one to be relative to. So its terms, and the accumulator, have the
 * same sign: x of a layernorm is below all means. */
static void terms_of_one_sign(const Call *call, bool layer)
{
    const double sign = layer ? -1 : 1;
    take_sign(&call->in[0], 1);
    take_sign(&call->in[1], sign);
    take_sign(&call->out[0], sign);
    if (layer) take_sign(&call->out[1], 1);
}

static void weights(CpuBench *c, const Shape *s, bool layer, double keep)
{
    Call call = gradient_of(c, s, layer, false);
    add_sums(c, s, layer, keep, &call);
    if (s->width == 1) terms_of_one_sign(&call, layer);
    expect_like_ref(c, layer ? KERNEL_layernorm_dw : KERNEL_rmsnorm_dw, &call,
                    tol_sum(F32, rows_of(s) + 16));
}

/* dx and the sums have the same bits computed together or apart, and with dx in place of dy. */
static void dx_with_sums_on(CpuBench *c, const Device *cpu, const Shape *s, bool layer, int variant)
{
    Bench *b = &c->b;
    const double keep = variant % 2;
    const bool addend = variant % 3 == 1;
    Call dx = gradient_of(c, s, layer, true), dw = {.n_in = 0}, both;
    if (addend) dx.in[dx.n_in++] = shaped_random(b, s, PADDED, 1);
    for (int i = 0; i < (layer ? 5 : 4); i++)
        if (i != 2) dw.in[dw.n_in++] = dx.in[i];
    both = dx;
    dx.out[dx.n_out++] = shaped(b, s, PADDED);
    both.out[both.n_out++] = dx.in[0]; /* in place of dy */
    add_sums(c, s, layer, keep, &dw);
    add_sums(c, s, layer, keep, &both);
    for (int o = 0; o < dw.n_out; o++)
        for (int64_t i = 0; i < s->width; i++) put(&both.out[1 + o], i, get(&dw.out[o], i));
    dw.team = c->team[3];
    both.team = c->team[2];
    DO(cpu->kernel[layer ? KERNEL_layernorm_dx : KERNEL_rmsnorm_dx](&dx));
    DO(cpu->kernel[layer ? KERNEL_layernorm_dw : KERNEL_rmsnorm_dw](&dw));
    DO(cpu->kernel[layer ? KERNEL_layernorm_back : KERNEL_rmsnorm_back](&both));
    for (int64_t i = 0; i < tensor_count(&dx.out[0]); i++)
        assert_true(get(&dx.out[0], i) == get(&both.out[0], i));
    for (int o = 0; o < dw.n_out; o++)
        for (int64_t i = 0; i < s->width; i++)
            assert_true(get(&dw.out[o], i) == get(&both.out[1 + o], i));
    bench_clear(b);
}

static void dx_with_sums(CpuBench *c, const Shape *s, bool layer, int variant)
{
    for (CpuSimd simd = CPU_BASE; simd < N_CPU_SIMD; simd++)
        if (cpu_has(simd)) dx_with_sums_on(c, device_cpu_simd(simd), s, layer, variant);
}

/* The column sums of the addend have the bits of sum_rows, and use the addend before dx replaces
 * it. */
static void addend_sum_on(CpuBench *c, const Device *cpu, const Shape *s, int variant)
{
    Bench *b = &c->b;
    const double keep = variant % 2 ? 0.5 : 0;
    Call back = gradient_of(c, s, true, true), alone = {.n_in = 1, .n_out = 1, .number = {keep}};
    const Tensor addend = shaped_random(b, s, PADDED, 1);
    back.in[back.n_in++] = alone.in[0] = addend;
    back.out[back.n_out++] = variant % 3 ? addend : shaped(b, s, PADDED);
    add_sums(c, s, true, 0, &back);
    back.number[2] = 0;
    back.number[back.n_out] = keep;
    back.out[back.n_out++] = accumulator(b, NEW(b, F32, s->strides, s->width), keep);
    alone.out[0] = NEW(b, F32, s->strides, s->width);
    for (int64_t i = 0; i < s->width && keep != 0; i++) put(&alone.out[0], i, get(&back.out[3], i));
    alone.team = c->team[3];
    back.team = c->team[2];
    DO(cpu->kernel[KERNEL_sum_rows](&alone));
    DO(cpu->kernel[KERNEL_layernorm_back](&back));
    for (int64_t i = 0; i < s->width; i++)
        assert_true(get(&alone.out[0], i) == get(&back.out[3], i));
    bench_clear(b);
}

static void addend_sum(CpuBench *c, const Shape *s, int variant)
{
    for (CpuSimd simd = CPU_BASE; simd < N_CPU_SIMD; simd++)
        if (cpu_has(simd)) addend_sum_on(c, device_cpu_simd(simd), s, variant);
}

static void gradients(CpuBench *c, const Shape *s, bool layer, int variant)
{
    backward(c, s, layer, variant % 3 == 0);
    weights(c, s, layer, variant % 2);
    dx_with_sums(c, s, layer, variant);
}

static void all_norms(void **state)
{
    const int64_t width[] = {1, 7, 16, 45, 768, 1030, 2100}, rows[] = {0, 1, 3, 37};
    for (int i = 0; i < 7 * 4 * 6; i++) {
        const Shape s = {cpu_types[i % 2], (Strides)(i / 2 % 3), rows[i / 6 % 4], 0, width[i / 24]};
        for (int layer = 0; layer < 2; layer++) {
            forward(*state, &s, layer);
            gradients(*state, &s, layer, i + layer);
        }
        addend_sum(*state, &s, i);
    }
}

static void norms_per_head(void **state)
{
    for (int i = 0; i < 6; i++) {
        const Shape s = {cpu_types[i % 2], (Strides)(i / 2), 29, 3, i < 3 ? 40 : 21};
        forward(*state, &s, false);
        gradients(*state, &s, false, i);
    }
}

/* More rows than tiles of sums. */
static void many_rows(void **state)
{
    for (int i = 0; i < 4; i++) {
        const Shape s = {cpu_types[i % 2], i / 2 ? COLUMN_MAJOR : DENSE, i / 2 ? 5000 : 40000, 0,
                         7};
        weights(*state, &s, true, 1);
        weights(*state, &s, false, 0);
        dx_with_sums(*state, &s, true, i);
        addend_sum(*state, &s, i);
    }
}

/* Squares that overflow f32: the row is still normalized, and NaN stays visible. */
static void huge_and_not_finite(void **state)
{
    const double size[] = {1e18, 1e25, 1e30, 2e38},
                 odd[] = {1e25, -1e30, (double)INFINITY, -(double)INFINITY, (double)NAN};
    const int64_t width[] = {1, 7, 45, 96, 1030};
    for (int i = 0; i < 5 * 6; i++) {
        const Shape s = {cpu_types[i % 2], (Strides)(i / 2 % 3), 3, 0, width[i / 6]};
        for (int layer = 0; layer < 2; layer++) {
            for (int k = 0; k < 4; k++) forward_of(*state, &s, layer, size[k], 0);
            for (int k = 0; k < 5; k++) forward_of(*state, &s, layer, 2, odd[k]);
        }
    }
}

/* The same values in another memory order. */
static Tensor copy_of(Bench *b, const Tensor *t, Strides strides)
{
    const Tensor copy = t->ndim == 2 ? NEW(b, t->dtype, strides, t->n[0], t->n[1])
                                     : NEW(b, t->dtype, strides, t->n[0]);
    for (int64_t i = 0; i < tensor_count(t); i++) put(&copy, i, get(t, i));
    return copy;
}

static void expect_same(const Tensor *a, const Tensor *b)
{
    for (int64_t i = 0; i < tensor_count(a); i++)
        if (get(a, i) != get(b, i))
            fail_msg("[%d] of %d, %s: %.9g in place, %.9g in a copy", (int)i, (int)tensor_count(a),
                     dtype_name(a->dtype), get(a, i), get(b, i));
}

static void copies_on(CpuBench *c, const Device *cpu, const Shape *s)
{
    Bench *b = &c->b;
    Call f = {.n_in = 3, .n_out = 3, .attr.norm.eps = 1e-5}, f2, g, g2;
    f.in[0] = shaped_random(b, s, DENSE, 3);
    f.in[1] = RANDOM(b, s->type, DENSE, s->width);
    f.in[2] = RANDOM(b, s->type, DENSE, s->width);
    f.out[0] = shaped(b, s, DENSE);
    for (int o = 1; o < 3; o++) f.out[o] = stat(b, s, DENSE);
    g = (Call){.in = {shaped_random(b, s, DENSE, 1), f.in[0], f.in[1], f.out[1], f.out[2]},
               .n_in = 5,
               .out = {shaped(b, s, DENSE)},
               .n_out = 1};
    add_sums(c, s, true, 0, &g);
    g.number[2] = 0;
    f2 = f, g2 = g;
    f2.in[0] = copy_of(b, &f.in[0], COLUMN_MAJOR);
    f2.out[0] = shaped(b, s, COLUMN_MAJOR);
    for (int i = 0; i < 2; i++) g2.in[i] = copy_of(b, &g.in[i], COLUMN_MAJOR);
    for (int o = 0; o < 3; o++) g2.out[o] = copy_of(b, &g.out[o], o ? DENSE : COLUMN_MAJOR);
    DO(cpu->kernel[KERNEL_layernorm](&f2));
    DO(cpu->kernel[KERNEL_layernorm](&f));
    DO(cpu->kernel[KERNEL_layernorm_back](&g));
    DO(cpu->kernel[KERNEL_layernorm_back](&g2));
    expect_same(&f.out[0], &f2.out[0]);
    for (int o = 0; o < 3; o++) expect_same(&g.out[o], &g2.out[o]);
    bench_clear(b);
}

/* Rows read in place have the bits of rows converted to floats first. */
static void copies_have_the_same_bits(void **state)
{
    for (int i = 0; i < 4; i++) {
        const Shape s = {cpu_types[i % 2], DENSE, 37, 0, i < 2 ? 96 : 4096};
        for (CpuSimd simd = CPU_BASE; simd < N_CPU_SIMD; simd++)
            if (cpu_has(simd)) copies_on(*state, device_cpu_simd(simd), &s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_norms),
        cmocka_unit_test(norms_per_head),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(huge_and_not_finite),
        cmocka_unit_test(copies_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}

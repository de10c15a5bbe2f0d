/* Norms of device/cpu against ref: values, dx, sums over rows, per head, strides and types. */
#include "cpu_test.h"

typedef struct {
    DType type;
    Lay lay;
    int64_t rows, heads, width; /* heads: 0 for [rows, width] */
} Shape;

static Tensor shaped(Bench *b, const Shape *s, Lay lay)
{
    lay = (Lay)((s->lay + lay) % N_LAYS);
    return s->heads ? NEW(b, s->type, lay, s->rows, s->heads, s->width)
                    : NEW(b, s->type, lay, s->rows, s->width);
}

static Tensor shaped_random(Bench *b, const Shape *s, Lay lay, double size)
{
    const Tensor t = shaped(b, s, lay);
    fill(b, &t, size);
    return t;
}

static Tensor stat(Bench *b, const Shape *s, Lay lay)
{
    return s->heads ? NEW(b, F32, lay, s->rows, s->heads) : NEW(b, F32, lay, s->rows);
}

static Tensor stat_random(Bench *b, const Shape *s, Lay lay)
{
    const Tensor t = stat(b, s, lay);
    for (int64_t i = 0; i < tensor_count(&t); i++) put(&t, i, 1.5 + bench_random(b));
    return t;
}

/* Entries of about `size`, and `odd` in one of them where it is not 0. */
static void forward_of(CpuBench *c, const Shape *s, bool layer, double size, double odd)
{
    Bench *b = &c->b;
    Call call = {.n_in = layer ? 3 : 2, .n_out = layer ? 3 : 2};
    call.in[0] = shaped_random(b, s, DENSE, size);
    for (int64_t i = 0; i < tensor_count(&call.in[0]); i++) /* a mean that is not small */
        put(&call.in[0], i, get(&call.in[0], i) + 0.35 * size);
    if (odd != 0) put(&call.in[0], tensor_count(&call.in[0]) / 2, odd);
    call.in[1] = RANDOM(b, s->type, s->lay, s->width);
    if (layer) call.in[2] = RANDOM(b, s->type, s->lay, s->width);
    call.out[0] = shaped(b, s, PADDED);
    for (int o = 1; o < call.n_out; o++) call.out[o] = stat(b, s, s->lay);
    call.attr.norm.eps = 1e-5;
    against_ref(c, layer ? KERNEL_layernorm : KERNEL_rmsnorm, &call,
                tol_sum(s->type, (double)s->width));
    if (isfinite(odd)) expect_gaps(b); /* else NaN is in the results too */
    bench_clear(b);
}

static void forward(CpuBench *c, const Shape *s, bool layer) { forward_of(c, s, layer, 2, 0); }

static void backward(CpuBench *c, const Shape *s, bool layer)
{
    Bench *b = &c->b;
    Call call = {.n_in = layer ? 5 : 4, .n_out = 1};
    call.in[0] = shaped_random(b, s, TURNED, 1);
    call.in[1] = shaped_random(b, s, DENSE, 1);
    call.in[2] = RANDOM(b, s->type, s->lay, s->width);
    for (int i = 3; i < call.n_in; i++) call.in[i] = stat_random(b, s, s->lay);
    call.out[0] = shaped(b, s, PADDED);
    expect_like_ref(c, layer ? KERNEL_layernorm_dx : KERNEL_rmsnorm_dx, &call,
                    tol_sum(s->type, (double)s->width));
}

static void weights(CpuBench *c, const Shape *s, bool layer, double keep)
{
    Bench *b = &c->b;
    Call call = {.n_in = layer ? 4 : 3, .n_out = layer ? 2 : 1, .number = {keep, 1 - keep}};
    call.in[0] = shaped_random(b, s, DENSE, 1);
    call.in[1] = shaped_random(b, s, PADDED, 1);
    for (int i = 2; i < call.n_in; i++) call.in[i] = stat_random(b, s, s->lay);
    call.out[0] = accumulator(b, NEW(b, F32, s->lay, s->width), keep);
    if (layer) call.out[1] = accumulator(b, NEW(b, F32, s->lay, s->width), 1 - keep);
    const double rows = (double)(s->rows * (s->heads ? s->heads : 1));
    expect_like_ref(c, layer ? KERNEL_layernorm_dw : KERNEL_rmsnorm_dw, &call,
                    tol_sum(F32, rows + 16));
}

static void all_norms(void **state)
{
    const int64_t width[] = {1, 7, 16, 45, 768, 1030, 2100}, rows[] = {0, 1, 3, 37};
    for (int i = 0; i < 7 * 4 * 6; i++) {
        const Shape s = {cpu_types[i % 2], (Lay)(i / 2 % 3), rows[i / 6 % 4], 0, width[i / 24]};
        for (int layer = 0; layer < 2; layer++) {
            forward(*state, &s, layer);
            backward(*state, &s, layer);
            weights(*state, &s, layer, layer == i % 2);
        }
    }
}

static void norms_per_head(void **state)
{
    for (int i = 0; i < 6; i++) {
        const Shape s = {cpu_types[i % 2], (Lay)(i / 2), 29, 3, i < 3 ? 40 : 21};
        forward(*state, &s, false);
        backward(*state, &s, false);
        weights(*state, &s, false, i % 2);
    }
}

/* More rows than a block of sums. */
static void many_rows(void **state)
{
    for (int i = 0; i < 4; i++) {
        const Shape s = {cpu_types[i % 2], i / 2 ? TURNED : DENSE, 1000, 0, 70};
        weights(*state, &s, true, 1);
        weights(*state, &s, false, 0);
    }
}

/* Squares that f32 does not hold: a row is normalized all the same, and what is not a number
 * stays in sight. */
static void huge_and_not_finite(void **state)
{
    const double size[] = {1e18, 1e25, 1e30, 2e38},
                 odd[] = {1e25, -1e30, (double)INFINITY, -(double)INFINITY, (double)NAN};
    const int64_t width[] = {1, 7, 45, 1030};
    for (int i = 0; i < 4 * 6; i++) {
        const Shape s = {cpu_types[i % 2], (Lay)(i / 2 % 3), 3, 0, width[i / 6]};
        for (int layer = 0; layer < 2; layer++) {
            for (int k = 0; k < 4; k++) forward_of(*state, &s, layer, size[k], 0);
            for (int k = 0; k < 5; k++) forward_of(*state, &s, layer, 2, odd[k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_norms),
        cmocka_unit_test(norms_per_head),
        cmocka_unit_test(many_rows),
        cmocka_unit_test(huge_and_not_finite),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}

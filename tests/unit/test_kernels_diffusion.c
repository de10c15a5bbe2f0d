/* test_kernels_diffusion.c -- kernels of diffusion transformers on device ref: rows by the vectors
 * of their clip against the formulas, gradients against differences, sums that accumulate. */
#include "kernel_test.h"

static Bench bench;

enum { T = 11, B = 3, D = 9, C = 4 };

/* Clips in any order; clip 1 has no token if `skip`. */
static Tensor clip_numbers(Strides strides, bool skip)
{
    const Tensor t = NEW(&bench, I32, strides, T);
    for (int i = 0; i < T; i++) put(&t, i, skip ? i % 2 * 2 : i * 7 % B);
    return t;
}

typedef struct {
    Tensor x, scale, shift, clip, y, mean, rstd;
} Rows;

static Rows new_rows(DType type, Strides strides)
{
    return (Rows){.x = RANDOM(&bench, type, strides, T, D),
                  .scale = RANDOM(&bench, type, PADDED, B, D),
                  .shift = RANDOM(&bench, type, DENSE, B, D),
                  .clip = clip_numbers(strides == COLUMN_MAJOR ? DENSE : strides, false),
                  .y = NEW(&bench, type, strides, T, D),
                  .mean = NEW(&bench, F64, PADDED, T),
                  .rstd = NEW(&bench, F64, DENSE, T)};
}

static Call forward(const Rows *r)
{
    return (Call){.in = {r->x, r->scale, r->shift, r->clip},
                  .n_in = 4,
                  .out = {r->y, r->mean, r->rstd},
                  .n_out = 3,
                  .attr.norm = {0.01}};
}

static void modulates(void **state)
{
    (void)state;
    for (int c = 0; c < 6; c++) {
        bench_clear(&bench);
        const DType type = c % 2 ? F32 : F64;
        const Rows r = new_rows(type, (Strides)(c / 2));
        const Call call = forward(&r);
        long double want[T * D];
        run_twice(&bench, KERNEL_modulate, &call);
        for (int t = 0; t < T; t++) {
            long double mean = 0, square = 0;
            for (int i = 0; i < D; i++) mean += (long double)get(&r.x, t * D + i) / D;
            for (int i = 0; i < D; i++) {
                const long double off = (long double)get(&r.x, t * D + i) - mean;
                square += off * off / D;
            }
            for (int i = 0; i < D; i++) {
                const int at = (int)get(&r.clip, t) * D + i;
                want[t * D + i] = ((long double)get(&r.x, t * D + i) - mean) /
                                      sqrtl(square + 0.01L) * (1 + (long double)get(&r.scale, at)) +
                                  (long double)get(&r.shift, at);
            }
        }
        expect_close("modulate", &r.y, want, rounding(type));
        expect_gaps(&bench);
    }
}

static void modulates_back(void **state)
{
    (void)state;
    for (int c = 0; c < 4; c++) {
        bench_clear(&bench);
        const double keep = c % 2 ? 0.5 : 0;
        const Rows r = new_rows(F64, c / 2 ? COLUMN_MAJOR : PADDED);
        Probe p = {KERNEL_modulate, forward(&r), {RANDOM(&bench, F64, DENSE, T, D)}};
        run(KERNEL_modulate, &p.call);
        const Tensor dx = NEW(&bench, F64, PADDED, T, D);
        const Tensor dscale = accumulator(&bench, NEW(&bench, F64, PADDED, B, D), keep);
        const Tensor dshift = accumulator(&bench, NEW(&bench, F64, DENSE, B, D), keep);
        long double *base[2] = {kept(&dscale, keep), kept(&dshift, keep)};
        const Call back = {.in = {p.dy[0], r.x, r.scale, r.clip, r.mean, r.rstd},
                           .n_in = 6,
                           .out = {dx},
                           .n_out = 1};
        const Call sums = {.in = {p.dy[0], r.x, r.clip, r.mean, r.rstd},
                           .n_in = 5,
                           .out = {dscale, dshift},
                           .n_out = 2,
                           .number = {keep, keep}};
        run_twice(&bench, KERNEL_modulate_dx, &back);
        run_twice(&bench, KERNEL_modulate_dw, &sums);
        expect_gradient("dx", probe_value, &p, &r.x, &dx, NULL);
        expect_gradient("dscale", probe_value, &p, &r.scale, &dscale, base[0]);
        expect_gradient("dshift", probe_value, &p, &r.shift, &dshift, base[1]);
        free(base[0]);
        free(base[1]);
    }
}

static void gates(void **state)
{
    (void)state;
    for (int c = 0; c < 4; c++) {
        bench_clear(&bench);
        const double keep = c % 2 ? 1 : 0;
        const Tensor x = RANDOM(&bench, F64, PADDED, T, D), gate = RANDOM(&bench, F64, DENSE, B, D);
        const Tensor residual = RANDOM(&bench, F64, COLUMN_MAJOR, T, D);
        const Tensor clip = clip_numbers(DENSE, true), y = NEW(&bench, F64, PADDED, T, D);
        Probe p = {KERNEL_gate_add,
                   {.in = {x, gate, clip, residual}, .n_in = 3 + c / 2, .out = {y}, .n_out = 1},
                   {RANDOM(&bench, F64, DENSE, T, D)}};
        run_twice(&bench, KERNEL_gate_add, &p.call);
        for (int t = 0; t < T; t++)
            for (int i = 0; i < D; i++) {
                const double sum = (c / 2 ? get(&residual, t * D + i) : 0) +
                                   get(&gate, (int)get(&clip, t) * D + i) * get(&x, t * D + i);
                assert_true(fabs(get(&y, t * D + i) - sum) < 1e-14);
            }
        const Tensor dgate = accumulator(&bench, NEW(&bench, F64, DENSE, B, D), keep);
        long double *base = kept(&dgate, keep);
        const Call back = {
            .in = {p.dy[0], x, clip}, .n_in = 3, .out = {dgate}, .n_out = 1, .number = {keep}};
        run_twice(&bench, KERNEL_gate_add_dw, &back);
        expect_gradient("dgate", probe_value, &p, &gate, &dgate, base);
        for (int i = 0; i < D && keep == 0; i++) assert_true(get(&dgate, D + i) == 0);
        free(base);
    }
}

static void features_of_times(void **state)
{
    (void)state;
    bench_clear(&bench);
    const Tensor time = RANDOM(&bench, F64, PADDED, B), y = NEW(&bench, F64, PADDED, B, 2 * C);
    const Call call = {.in = {time},
                       .n_in = 1,
                       .out = {y},
                       .n_out = 1,
                       .attr.sinusoid = {.rate = 1000, .base = 10000}};
    run_twice(&bench, KERNEL_sinusoid, &call);
    for (int b = 0; b < B; b++)
        for (int i = 0; i < C; i++) { /* base 10000: frequencies 1, 1/10, 1/100, 1/1000 */
            const double angle = 1000 * get(&time, b) / pow(10, i);
            assert_true(fabs(get(&y, b * 2 * C + i) - cos(angle)) < 1e-12);
            assert_true(fabs(get(&y, b * 2 * C + C + i) - sin(angle)) < 1e-12);
        }
    expect_gaps(&bench);
}

/* Rows of weight 0 may hold anything. */
static void squares(void **state)
{
    (void)state;
    for (int c = 0; c < 4; c++) {
        bench_clear(&bench);
        const double keep = c % 2 ? 0.5 : 0;
        const Tensor x = RANDOM(&bench, F64, PADDED, T, C), dx = NEW(&bench, F64, DENSE, T, C);
        const Tensor target = RANDOM(&bench, F64, c / 2 ? DENSE : COLUMN_MAJOR, T, C);
        const Tensor weights = RANDOM(&bench, F64, DENSE, T);
        const Tensor loss = accumulator(&bench, NEW(&bench, F64, DENSE, 1), keep);
        const Tensor one = NEW(&bench, F64, DENSE, 1), again = NEW(&bench, F64, DENSE, 1);
        put(&one, 0, 1);
        put(&weights, 4, 0);
        double want = keep != 0 ? keep * get(&loss, 0) : 0;
        for (int t = 0; t < T; t++)
            for (int i = 0; i < C; i++) {
                const double off = get(&x, t * C + i) - get(&target, t * C + i);
                want += get(&weights, t) * off * off / C;
            }
        Probe p = {KERNEL_square_loss,
                   {.in = {x, target, weights}, .n_in = 3, .out = {again}, .n_out = 1},
                   {one}};
        const Call back = {.in = {x, target, weights}, .n_in = 3, .out = {dx}, .n_out = 1};
        Call forward_loss = p.call;
        forward_loss.out[0] = loss;
        forward_loss.number[0] = keep;
        run_twice(&bench, KERNEL_square_loss, &forward_loss);
        assert_true(fabs(get(&loss, 0) - want) < 1e-12);
        run_twice(&bench, KERNEL_square_loss_dx, &back);
        expect_gradient("dx", probe_value, &p, &x, &dx, NULL);
        put(&x, 4 * C + 1, (double)NAN);
        run(KERNEL_square_loss, &forward_loss);
        run(KERNEL_square_loss_dx, &back);
        assert_false(isnan(get(&loss, 0)));
        for (int i = 0; i < C; i++) assert_true(get(&dx, 4 * C + i) == 0);
    }
}

static int setup(void **state)
{
    (void)state;
    bench_open(&bench);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bench_close(&bench);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modulates), cmocka_unit_test(modulates_back),
        cmocka_unit_test(gates),     cmocka_unit_test(features_of_times),
        cmocka_unit_test(squares),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

/* test_cpu_diffusion.c -- kernels of diffusion transformers on device cpu against ref: all
 * instruction sets, f32 and bf16, tokens of a clip in runs and mixed, clips without tokens. */
#include "cpu_test.h"

enum { T = 301, B = 4 };

/* How the tokens of the clips follow each other. */
static Tensor clip_numbers(Bench *b, int way)
{
    const Tensor t = NEW(b, I32, way == 1 ? PADDED : DENSE, T);
    for (int i = 0; i < T; i++) put(&t, i, way == 0 ? i * 3 / T : way == 1 ? i * 7 % B : 2);
    return t;
}

static void rows_of_clips(void **state)
{
    CpuBench *c = *state;
    for (int i = 0; i < 24; i++) {
        bench_clear(&c->b);
        const DType type = i % 2 ? BF16 : F32;
        const Strides strides = i / 2 % 2 ? PADDED : DENSE;
        const int64_t width = i / 12 ? 1100 : 37;
        const double keep = i / 4 % 2 ? 0.5 : 0;
        Tensor x[4];
        for (int k = 0; k < 4; k++) x[k] = RANDOM(&c->b, type, strides, T, width);
        const Tensor clip = clip_numbers(&c->b, i % 3);
        const Tensor scale = RANDOM(&c->b, type, PADDED, B, width);
        const Tensor shift = RANDOM(&c->b, type, DENSE, B, width);
        const Tensor mean = NEW(&c->b, F32, DENSE, T), rstd = NEW(&c->b, F32, DENSE, T);
        const Tensor sum[2] = {accumulator(&c->b, NEW(&c->b, F32, DENSE, B, width), keep),
                               accumulator(&c->b, NEW(&c->b, F32, PADDED, B, width), keep)};
        const Call forward = {.in = {x[0], scale, shift, clip},
                              .n_in = 4,
                              .out = {x[1], mean, rstd},
                              .n_out = 3,
                              .attr.norm = {1e-5}};
        const Call back = {
            .in = {x[2], x[0], scale, clip, mean, rstd}, .n_in = 6, .out = {x[3]}, .n_out = 1};
        const Call sums = {.in = {x[2], x[0], clip, mean, rstd},
                           .n_in = 5,
                           .out = {sum[0], sum[1]},
                           .n_out = 2,
                           .number = {keep, keep}};
        const Call gate = {
            .in = {x[0], scale, clip, x[2]}, .n_in = 3 + i / 3 % 2, .out = {x[3]}, .n_out = 1};
        const Call gate_dw = {
            .in = {x[2], x[0], clip}, .n_in = 3, .out = {sum[0]}, .n_out = 1, .number = {keep}};
        against_ref(c, KERNEL_modulate, &forward, tol_sum(type, (double)width));
        assert_int_equal(device_ref.kernel[KERNEL_modulate](&forward), OK);
        against_ref(c, KERNEL_modulate_dx, &back, tol_sum(type, (double)width));
        against_ref(c, KERNEL_modulate_dw, &sums, tol_sum(F32, T));
        against_ref(c, KERNEL_gate_add, &gate, tol_sum(type, 1));
        against_ref(c, KERNEL_gate_add_dw, &gate_dw, tol_sum(F32, T));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_clips)};
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}

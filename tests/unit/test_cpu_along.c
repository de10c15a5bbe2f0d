/* test_cpu_along.c -- attention along one of several token dims on device/cpu against ref: short
 * and long sequences, shared key heads, more keys than queries, results carried on. */
#include "cpu_test.h"

typedef struct {
    int64_t e, b, s, a, h, g, c;
} Sizes;

static const Sizes sizes[] = {
    {1, 5, 5, 7, 4, 2, 8},   {3, 16, 16, 1, 4, 4, 16}, {6, 3, 3, 1, 2, 1, 8}, {2, 9, 4, 5, 6, 3, 8},
    {2, 70, 70, 2, 2, 2, 8}, {2, 300, 20, 1, 2, 2, 8}, {9, 1, 2, 3, 2, 2, 4}};

static Tensor rows(Bench *b, DType type, const Sizes *z, int64_t n, int64_t heads, bool statistic)
{
    const int64_t dims[] = {z->e, n, z->a, heads, z->c};
    const Tensor x = bench_new(b, type, DENSE, dims, statistic ? 4 : 5);
    for (int64_t i = 0; i < tensor_count(&x); i++) put(&x, i, bench_random(b));
    return x;
}

static void try_sizes(CpuBench *cb, const Sizes *z, DType type)
{
    Bench *b = &cb->b;
    const double tolerance = tol_sum(type, 40 + (double)(z->s + z->b));
    Call c = {.attr = {.attention = {.scale = 0.4}}, .n_in = 3, .n_out = 2};
    bench_clear(b);
    c.in[0] = rows(b, type, z, z->b, z->h, false);
    c.in[1] = rows(b, type, z, z->s, z->g, false);
    c.in[2] = rows(b, type, z, z->s, z->g, false);
    c.out[0] = rows(b, type, z, z->b, z->h, false);
    c.out[1] = rows(b, dtype_wide(type), z, z->b, z->h, true);
    for (int keep = 0; keep < 2; keep++) {
        c.number[0] = c.number[1] = keep;
        against_ref(cb, KERNEL_attention_along, &c, tolerance);
    }
    c.number[0] = c.number[1] = 0;
    assert_int_equal(device_ref.kernel[KERNEL_attention_along](&c), OK);
    Call back = {.attr = c.attr, .n_in = 6, .n_out = 3, .number = {1, 0, 1}};
    for (int i = 0; i < 3; i++) back.in[i] = c.in[i];
    back.in[3] = rows(b, type, z, z->b, z->h, false);
    back.in[4] = c.out[1];
    back.in[5] = c.out[0];
    back.out[0] = rows(b, type, z, z->b, z->h, false);
    back.out[1] = rows(b, type, z, z->s, z->g, false);
    back.out[2] = rows(b, type, z, z->s, z->g, false);
    against_ref(cb, KERNEL_attention_along_dx, &back, 3 * tolerance);
    expect_gaps(b);
}

static void all_sizes(void **state)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int t = 0; t < N_CPU_TYPES; t++) try_sizes(*state, &sizes[i], cpu_types[t]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sizes),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}

/* test_cpu_attention_merge.c -- attention_merge of device/cpu against ref; parts without keys. */
#include "cpu_test.h"

static void merge(void **state)
{
    CpuBench *c = *state;
    for (int i = 0; i < 12; i++) {
        Bench *b = &c->b;
        const DType type = cpu_types[i % 2];
        const Strides strides = (Strides)(i % 3);
        const int64_t t = i == 5 ? 0 : 23, n = i < 6 ? 20 : 65;
        Call call = {.n_in = 4, .n_out = 2};
        for (int k = 0; k < 4; k++)
            call.in[k] = k % 2 ? RANDOM(b, F32, strides, t, 3) : RANDOM(b, type, strides, t, 3, n);
        for (int64_t k = 0; k < 3 * t; k++) { /* parts without keys */
            if (k % 7 == 1 || k % 7 == 3) put(&call.in[1], k, -HUGE_VAL);
            if (k % 7 == 2 || k % 7 == 3) put(&call.in[3], k, -HUGE_VAL);
        }
        call.out[0] = i % 2 ? call.in[0] : NEW(b, type, DENSE, t, 3, n);
        call.out[1] = i % 2 ? call.in[1] : NEW(b, F32, PADDED, t, 3);
        expect_like_ref(c, KERNEL_attention_merge, &call, tol_sum(type, 1));
    }
}

/* A part without keys is not read: it may hold NaN. */
static void merge_empty_parts(void **state)
{
    CpuBench *c = *state;
    Call call = {.n_in = 4, .n_out = 2};
    for (int k = 0; k < 4; k++)
        call.in[k] = k % 2 ? RANDOM(&c->b, F32, DENSE, 6, 1) : RANDOM(&c->b, F32, DENSE, 6, 1, 21);
    for (int t = 0; t < 6; t++) {
        put(&call.in[2 * (t % 2) + 1], t, -HUGE_VAL);
        for (int i = 0; i < 21; i++) put(&call.in[2 * (t % 2)], 21 * t + i, (double)NAN);
    }
    call.out[0] = NEW(&c->b, F32, DENSE, 6, 1, 21);
    call.out[1] = NEW(&c->b, F32, DENSE, 6, 1);
    against_ref(c, KERNEL_attention_merge, &call, tol_sum(F32, 1));
    for (int i = 0; i < 6 * 21; i++) assert_false(isnan(get(&call.out[0], i)));
    bench_clear(&c->b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merge),
        cmocka_unit_test(merge_empty_parts),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}

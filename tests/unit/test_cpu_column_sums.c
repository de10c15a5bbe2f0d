/* test_cpu_column_sums.c -- sums over rows on device/cpu against ref: chunks of rows, stripes of
 * columns, all strides. */
#include "cpu_test.h"

/* Random terms with a mean that is not small, so that sums do not cancel: errors scale with the
 * terms. The last chunks of rows and stripes of columns are short. */
static void column_sums(void **state)
{
    CpuBench *c = *state;
    const int64_t rows[] = {0, 1, 37, 300, 1000}, columns[] = {1, 19, 64, 131, 4200};
    for (int r = 0; r < 5; r++)
        for (int n = 0; n < 5; n++)
            for (int i = 0; i < 6; i++) {
                if (rows[r] > 300 && columns[n] > 1000) continue; /* ref takes seconds */
                Bench *b = &c->b;
                const DType type = cpu_types[i / 3];
                const Strides strides = (Strides)(i % 3);
                const double keep = (r + n + i) % 2;
                const Call call = {.in = {RANDOM(b, type, strides, rows[r], columns[n])},
                                   .n_in = 1,
                                   .out = {accumulator(b, NEW(b, F32, strides, columns[n]), keep)},
                                   .n_out = 1,
                                   .number = {keep}};
                for (int64_t k = 0; k < tensor_count(&call.in[0]); k++)
                    put(&call.in[0], k, get(&call.in[0], k) + 0.75);
                expect_like_ref(c, KERNEL_sum_rows, &call, tol_sum(F32, (double)rows[r]));
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(column_sums)};
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}
